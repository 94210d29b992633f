"""Ratios of times: two runs in turn, again and again, and the median of the ratios of the pairs.

What else the machine does changes from second to second. It hits both runs of a pair, so their
ratio means more than either time; and the median of the pairs does not mind the one that was hit in
the middle.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

FEWEST = 5
MOST = 15
LONGEST = 2
"""Times the seconds for pairs, after which no further one begins, however few there are."""
SLOW = 2
"""Times the seconds for pairs, beyond which the first pair is the figure: what takes so long is
warm when it ends."""


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
        pairs = "1 pair" if self.pairs == 1 else f"{self.pairs} pairs"
        return f"{self.ours:.3g} s / {self.theirs:.3g} s, {pairs}"


def compare(ours: Run, theirs: Run, seconds: float, fewest: int = FEWEST) -> Comparison:
    """Interleaved pairs for about so many seconds, after one pair that does not count unless it
    alone took too long."""
    first = ours.seconds(), theirs.seconds()
    pairs = [first] if sum(first) > SLOW * seconds else []
    start = perf_counter()
    while not pairs or (
        sum(first) <= SLOW * seconds and _go_on(len(pairs), perf_counter() - start, seconds, fewest)
    ):
        if len(pairs) % 2:
            second = theirs.seconds()
            pairs.append((ours.seconds(), second))
        else:
            pairs.append((ours.seconds(), theirs.seconds()))
    ratio = median(a / b for a, b in pairs)
    return Comparison(ratio, median(a for a, _ in pairs), median(b for _, b in pairs), len(pairs))


def _go_on(pairs: int, elapsed: float, seconds: float, fewest: int) -> bool:
    return elapsed < (seconds if pairs >= fewest else LONGEST * seconds) and pairs < MOST
