"""Curves of time over size, each of one program and one verb, and the exponent with which time
grows at their ends.

A point is a figure with a size whose subject is "family: verb". The families, and how a size of
each reads, are in ``FAMILIES``.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import log

from benchmarks.figures import Figure
from benchmarks.sizes import GIB, MIB

LAST = 3
"""Points of which the exponent is taken, the last ones: before, fixed costs hide how time grows."""

LINEAR = 1.1
"""The largest exponent that counts as linear: runs of a second vary by more than a tenth from one
to another."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The sizes of a family."""

    title: str
    """What is counted."""
    label: Callable[[int], str] = "{:,}".format
    """A size as text."""
    slope: int = 1
    """The exponent of the line that is drawn to compare with: 1 for time in proportion to size, -1
    for its inverse."""


def nbytes_text(nbytes: int) -> str:
    """A number of bytes in GiB or MiB."""
    return f"{nbytes / GIB:g} GiB" if nbytes >= GIB else f"{nbytes / MIB:g} MiB"


FAMILIES = {
    "tensors": Axis("tensors of 16 floats"),
    "bytes": Axis("bytes", nbytes_text),
    "files": Axis("files"),
    "slices": Axis("slices of one tensor"),
    "workers": Axis("workers", slope=-1),
}


@dataclass(frozen=True, slots=True)
class Curve:
    """The times of one program."""

    family: str
    """Its sizes, of ``FAMILIES``."""
    verb: str
    """What was done."""
    program: str
    """By what."""
    points: dict[int, float]
    """Seconds by size."""

    @property
    def axis(self) -> Axis:
        """The sizes of its family."""
        return FAMILIES[self.family]

    @property
    def exponent(self) -> float | None:
        """The slope of the line of least squares through the logarithms of the last points; None if
        they are fewer."""
        last = sorted(self.points.items())[-LAST:]
        if len(last) < LAST:
            return None
        xs, ys = [log(size) for size, _ in last], [log(seconds) for _, seconds in last]
        middle, height = sum(xs) / LAST, sum(ys) / LAST
        over = sum((x - middle) * (y - height) for x, y in zip(xs, ys, strict=True))
        return over / sum((x - middle) ** 2 for x in xs)

    def exponent_text(self) -> str:
        """The exponent, and a word where it is more than linear."""
        exponent = self.exponent
        if exponent is None:
            return "-"
        return f"{round(exponent, 2) + 0.0:.2f}" + (
            ", more than linear" if exponent > LINEAR else ""
        )


def curves_of(figures: Iterable[Figure]) -> list[Curve]:
    """The curves, in the order of their first points."""
    found: dict[tuple[str, str], Curve] = {}
    for figure in figures:
        if figure.size is not None and figure.value is not None:
            family, _, verb = figure.subject.partition(": ")
            curve = found.setdefault(
                (figure.subject, figure.against), Curve(family, verb, figure.against, {})
            )
            curve.points[figure.size] = figure.value
    verbs = list(dict.fromkeys(curve.verb for curve in found.values()))
    return sorted(found.values(), key=lambda curve: verbs.index(curve.verb))
