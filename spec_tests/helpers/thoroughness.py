"""How many combinations the slowest laws try: all in ``make crash``, a sample of them in ``make test``.

A sample takes its turns: each kind of case occurs, at every step some kind occurs, and not each kind
at each step.
"""

import os
import zlib
from collections.abc import Sequence
from typing import TypeVar

Case = TypeVar("Case")

EXHAUSTIVE = bool(os.environ.get("EXHAUSTIVE"))
"""True if the environment asks for all combinations, as ``make crash`` does."""


def turn(cases: Sequence[Case], number: int) -> Sequence[Case]:
    """Return all cases, or in a sample the one whose turn it is at this step.

    >>> turn("abc", 4) if not EXHAUSTIVE else "b"
    'b'
    """
    return cases if EXHAUSTIVE else cases[number % len(cases) :][:1]


def stride(every: int) -> int:
    """Return the step over cases: 1 for all, or ``every`` in a sample.

    >>> stride(1)
    1
    """
    return 1 if EXHAUSTIVE else every


def phase(every: int) -> int:
    """Return the first of the cases of a sample: 0 for all, or another one for each running test.

    >>> phase(1)
    0
    """
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    return 0 if EXHAUSTIVE else zlib.crc32(test.encode()) % every


def is_due(number: int, every: int) -> bool:
    """Return True for all steps, or in a sample for each ``every``-th one.

    >>> [number for number in (0, 3, 6) if is_due(number, 3)]
    [0, 3, 6]
    """
    return EXHAUSTIVE or number % every == 0
