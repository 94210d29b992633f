"""Measured figures and their targets."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from rich.console import Console
from rich.table import Table

SCHEMA = 2
DIGITS = 4
"""Digits that are stored of a value: fewer than a measurement has to itself, more than a table
shows."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number."""

    subject: str
    """What was done, and to what."""
    against: str
    """What it is compared with; empty for a plain number."""
    place: str
    """``disk``, ``memory``, or empty."""
    value: float | None
    """The number; None where it was skipped."""
    unit: str
    """``x`` for ratios of times, else ``s``, ``ms``, ``us``, ``MiB``; empty for a plain
    difference."""
    target: float | None
    """What the value should not exceed; None for numbers that are there to compare with."""
    note: str = ""
    """The times behind a ratio, or why it was skipped or failed."""
    size: int | None = None
    """The amount of work, for a point of a curve: tensors, bytes, files, slices or workers."""
    failed: bool = False
    """True if there is no number because something raised an error."""

    @property
    def verdict(self) -> str:
        """``pass``, ``miss``, ``skipped``, ``failed``, or nothing."""
        if self.value is None:
            return "failed" if self.failed else "skipped"
        return "" if self.target is None else "pass" if self.value <= self.target else "miss"

    def cells(self) -> list[str]:
        """The figure as a row of a table."""
        target = "" if self.target is None else f"<= {number_text(self.target, self.unit)}"
        subject = self.subject if self.size is None else f"{self.subject}, {self.size:,}"
        return [subject, self.against, self.place, self.measured, target, self.verdict, self.note]

    @property
    def measured(self) -> str:
        """The value and its unit as text; empty where there is no value."""
        return "" if self.value is None else number_text(self.value, self.unit)

    def to_json(self) -> dict[str, Any]:
        """The fields, without those at the end that are as they are by default."""
        values = asdict(self)
        if self.value is not None:
            values["value"] = float(f"{self.value:.{DIGITS}g}")
        return {name: value for name, value in values.items() if name not in _OPTIONAL or value}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Return the figure of which ``to_json`` made this."""
        return cls(**values)


_OPTIONAL = frozenset(["note", "size", "failed"])

HEADS = ["what", "against", "where", "measured", "target", "", "note"]
_STYLES = {"pass": "green", "miss": "red", "skipped": "yellow", "failed": "red"}


def print_table(figures: list[Figure]) -> None:
    """The figures as a table for people."""
    table = Table(*HEADS, title="Ratios are medians of interleaved pairs: ours / theirs")
    for figure in figures:
        table.add_row(*figure.cells(), style=_STYLES.get(figure.verdict))
    Console(width=None if Console().is_terminal else 160).print(table)


def number_text(value: float, unit: str) -> str:
    """The number with three digits and its unit."""
    return (f"{value:.3g}" if value < 100 else f"{value:,.0f}") + f" {unit}".rstrip()
