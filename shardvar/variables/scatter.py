"""The kernel of sparse writes: rows in ascending order, duplicates one after another.

``scatter_sorted`` takes rows that were sorted stably, so that the values for one row stand side by side in the order in
which they were given. It reads and writes each row of the array once: the first value of every distinct row at once,
then the second of those that have one, and so on; the few rows that come very often are folded by themselves.
"""

import numpy as np
import numpy.typing as npt

from shardvar.variables.updates import REPLACE, Update
from shardvar.variables.values import Array

Ints = npt.NDArray[np.int64]

_BLOCK_NBYTES = 1 << 18
"""Distinct rows are treated so many bytes at a time, so that they stay in the processor's cache between the rounds."""

_OFTEN = 8
"""A row that comes more often than this is folded alone: after so many rounds few rows are left in each."""


def sort_rows(rows: Ints) -> tuple[Ints, Ints]:
    """The rows in ascending order, and where each came from; equal rows keep their order.

    >>> sort_rows(np.array([7, 0, 7, 3]))
    (array([0, 3, 7, 7]), array([1, 3, 0, 2]))
    """
    bits = len(rows).bit_length()
    if len(rows) == 0 or int(rows.max()) >= 1 << (63 - bits):
        order = np.argsort(rows, kind="stable")
        return rows[order], order
    # Row and place in one integer sort several times faster than an argsort that must be stable.
    keys = np.sort((rows << bits) | np.arange(len(rows)))
    return keys >> bits, keys & ((1 << bits) - 1)


def scatter_sorted(array: Array, rows: Ints, values: Array, update: Update) -> None:
    """``array[rows[i]] = update.combine(array[rows[i]], values[i])`` for i in order, in place.

    ``rows`` [n] ascending and in range, ``values`` [n, *row] of the array's dtype.
    """
    if len(rows) == 0:
        return
    starts = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]]))
    counts = np.diff(starts, append=len(rows))
    if update is REPLACE:
        array[rows[starts]] = values[starts + counts - 1]
        return
    step = max(1, _BLOCK_NBYTES // max(1, array[:1].nbytes))
    for first in range(0, len(starts), step):
        block = slice(first, first + step)
        distinct = rows[starts[block]]
        array[distinct] = _combined(array[distinct], starts[block], counts[block], values, update)


def _combined(old: Array, starts: Ints, counts: Ints, values: Array, update: Update) -> Array:
    """What distinct rows become: ``values[starts[i] : starts[i] + counts[i]]`` are those for ``old[i]``."""
    new = update.combine(old, values[starts])
    often = counts > _OFTEN if update.fold is not None else np.zeros(len(counts), np.bool_)
    rounds = int(counts[~often].max(initial=1))
    for turn in range(1, rounds):
        left = np.flatnonzero((counts > turn) & ~often)
        new[left] = update.combine(new[left], values[starts[left] + turn])
    if update.fold is not None:
        for i in np.flatnonzero(often):
            rest = values[starts[i] + 1 : starts[i] + counts[i]]
            new[i] = update.fold(np.concatenate([new[i : i + 1], rest]))
    return new
