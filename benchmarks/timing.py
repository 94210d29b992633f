"""Ratios of times: two runs in turn, again and again, and the median of the ratios of the pairs.

What else the machine does changes from second to second. It hits both runs of a pair, so their ratio means more than
either time; and the median of the pairs does not mind the one that was hit in the middle.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

FEWEST = 5
MOST = 15


@dataclass(frozen=True, slots=True)
class Run:
    """Something that takes time."""

    call: Callable[[], object]
    """What is timed; freeing what it returns is not."""
    before: Callable[[], object] = lambda: None
    """What is done before each call, not timed."""

    def seconds(self) -> float:
        """The time of one call."""
        self.before()
        start = perf_counter()
        result = self.call()
        stop = perf_counter()
        del result
        return stop - start


@dataclass(frozen=True, slots=True)
class Comparison:
    """The summary of the measured pairs."""

    ratio: float
    """The median of ours / theirs."""
    ours: float
    """The median of our seconds."""
    theirs: float
    """The median of theirs."""
    pairs: int
    """How many pairs there were."""

    def __str__(self) -> str:
        return f"{self.ours:.3f} s / {self.theirs:.3f} s, {self.pairs} pairs"


def compare(ours: Run, theirs: Run, seconds: float, fewest: int = FEWEST) -> Comparison:
    """Interleaved pairs for about so many seconds, and so many at least, after one pair that does not count."""
    ours.seconds(), theirs.seconds()
    pairs: list[tuple[float, float]] = []
    start = perf_counter()
    while len(pairs) < fewest or (len(pairs) < MOST and perf_counter() - start < seconds):
        if len(pairs) % 2:
            second = theirs.seconds()
            pairs.append((ours.seconds(), second))
        else:
            pairs.append((ours.seconds(), theirs.seconds()))
    ratio = median(a / b for a, b in pairs)
    return Comparison(ratio, median(a for a, _ in pairs), median(b for _, b in pairs), len(pairs))
