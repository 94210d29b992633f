"""Turns: in which order are files written, if arrays are made only when their bytes are due?

Each lazy array is to be made once, and dropped before the next one is made. A file has parts of
many arrays, and an array may have parts in many files:

    arrays    a a b b c c         the turn of a: the files 0 and 1
    files     0 1 0 1 1 2         the turn of b: the files 0 and 1; 0 is finished
                                  the turn of c: the files 1 and 2

So the files are written array by array. A file is opened with its first array, and stays open until
its last one is written.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import numpy as np

from shardvar.engine.arrays import ArraySource, LazyPayload
from shardvar.engine.pool import Work
from shardvar.planning.plan import Plan
from shardvar.planning.slices import widen


def by_turns(
    source: ArraySource, plans: Sequence[Plan], open_file: Callable[[int], dict[int, list[Work]]]
) -> Iterator[Work]:
    """Yield the work of all files, lazy array by lazy array.

    ``open_file`` opens the file of a plan, and returns its work by the row of the lazy array that it
    is for. What it returns for -1 needs no lazy array, and comes first.
    """
    opened: dict[int, dict[int, list[Work]]] = {}
    unopened = dict.fromkeys(range(len(plans)))
    for turn, numbers in _plan_turns(source, plans):
        for number in numbers:
            if number in unopened:
                del unopened[number]
                opened[number] = open_file(number)
                yield from opened[number].pop(-1, [])
            yield from opened[number].pop(turn)
            if not opened[number]:
                del opened[number]
    for number in unopened:
        yield from open_file(number)[-1]


def _plan_turns(source: ArraySource, plans: Sequence[Plan]) -> list[tuple[int, list[int]]]:
    """Return the rows of the lazy arrays that plans copy, each with the numbers of these plans.

    The plans of an array come in the order of the bytes that they copy. From here on each array is
    dropped when it is the turn of the next one. An array is made some rows at a time only if every
    copy has whole rows; what is made then ends where a copy ends, so that no row is made twice.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    for number, plan in enumerate(plans):
        rows, rank = plan.copies.source, plan.copies.shape.shape[1]
        stored = plan.sources.take(rows)
        is_lazy = source.in_order(source.index.entries, rows)
        # The first row of each copy in its array, and the bytes of a row.
        row = (plan.copies.offset - widen(stored.offset, rank, 0))[:, :1].sum(axis=1)
        is_narrow = (plan.copies.shape != widen(stored.shape, rank, 1))[:, 1:].any(axis=1)
        for at in np.flatnonzero(is_lazy).tolist():
            lazy = cast(LazyPayload, source.arrays[int(rows[at])])
            if is_narrow[at]:
                lazy.step = 0
            start = int(row[at]) * lazy.row_nbytes
            found.setdefault(int(rows[at]), []).append((start, number))
    turns = []
    for number, copies in sorted(found.items()):
        cast(LazyPayload, source.arrays[number]).cuts = sorted(start for start, _ in copies)
        turns.append((number, list(dict.fromkeys(plan for _, plan in sorted(copies)))))
    return turns
