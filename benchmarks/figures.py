"""Measured figures and their targets."""

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

SCHEMA = 1


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
    """``x`` for ratios of times, else ``s``, ``ms``, ``us``, ``MiB``; empty for a plain difference."""
    target: float | None
    """What the value should not exceed; None for numbers that are there to compare with."""
    note: str = ""
    """The times behind a ratio, or why it was skipped."""

    @property
    def verdict(self) -> str:
        """``pass``, ``miss``, ``skipped``, or nothing."""
        if self.value is None:
            return "skipped"
        return "" if self.target is None else "pass" if self.value <= self.target else "miss"

    def cells(self) -> list[str]:
        """The figure as a row of a table."""
        value = "" if self.value is None else _number(self.value, self.unit)
        target = "" if self.target is None else f"<= {_number(self.target, self.unit)}"
        return [self.subject, self.against, self.place, value, target, self.verdict, self.note]


HEADS = ["what", "against", "where", "measured", "target", "", "note"]
_STYLES = {"pass": "green", "miss": "red", "skipped": "yellow"}


def print_table(figures: list[Figure]) -> None:
    """The figures as a table for people."""
    table = Table(*HEADS, title="Ratios are medians of interleaved pairs: ours / theirs")
    for figure in figures:
        table.add_row(*figure.cells(), style=_STYLES.get(figure.verdict))
    Console(width=None if Console().is_terminal else 160).print(table)


def to_json(figures: list[Figure]) -> dict[str, Any]:
    """The figures as one JSON object."""
    return {"schema": SCHEMA, "figures": [{**asdict(figure), "verdict": figure.verdict} for figure in figures]}


def _number(value: float, unit: str) -> str:
    return (f"{value:.3g}" if value < 100 else f"{value:.0f}") + f" {unit}".rstrip()
