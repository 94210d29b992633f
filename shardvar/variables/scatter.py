"""The kernel of sparse writes: rows in ascending order, duplicates one after another.

``scatter_sorted`` takes rows that were sorted stably, so that the values for one row stand side by side in the order in
which they were given. It reads and writes each row of the array once: the first value of every distinct row at once,
then the second of those that have one, and so on; the few rows that come very often are folded by themselves.
"""

from collections.abc import Iterator

import numpy as np

from shardvar.layout.dtypes import Array, Ints
from shardvar.variables.updates import ADD, REPLACE, Update

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
    starts, counts = _groups(rows)
    if update is REPLACE:
        array[rows[starts]] = values[starts + counts - 1]
        return
    for block in _blocks(len(starts), array):
        distinct = rows[starts[block]]
        new = update.combine(array[distinct], values[starts[block]])
        array[distinct] = _folded(new, starts[block], counts[block], values, None, update)


def sum_sorted(rows: Ints, values: Array, order: Ints) -> tuple[Ints, Array]:
    """The distinct rows and the sum of each row's values, from the first to the last -> [d], [d, *row].

    ``rows`` [n] ascending; ``values[order[i]]`` belongs to ``rows[i]``. It is ``scatter_sorted`` to zeros, but that
    nothing is added to a zero: a row that comes once has its value, with the sign of its zeros.

    >>> sum_sorted(np.array([2, 5, 5]), np.array([[1.0], [2.0], [4.0]]), np.array([1, 0, 2]))
    (array([2, 5]), array([[2.],
           [5.]]))
    """
    starts, counts = _groups(rows)
    sums = np.empty((len(starts), *values.shape[1:]), values.dtype)
    for block in _blocks(len(starts), sums):
        np.take(values, order[starts[block]], axis=0, out=sums[block], mode="clip")
        _folded(sums[block], starts[block], counts[block], values, order, ADD)
    return rows[starts], sums


def _groups(rows: Ints) -> tuple[Ints, Ints]:
    """Where the equal ones of ascending rows begin, and how many there are of each."""
    is_first = np.ones(len(rows), np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=is_first[1:])
    starts = is_first.nonzero()[0]
    counts = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=counts[:-1])
    counts[-1:] = len(rows) - starts[-1:]
    return starts, counts


def _blocks(count: int, array: Array) -> Iterator[slice]:
    """Slices of ``count`` rows, each of about a block's bytes of the array's rows."""
    step = max(1, _BLOCK_NBYTES // max(1, array[:1].nbytes))
    return (slice(first, first + step) for first in range(0, count, step))


def _folded(new: Array, starts: Ints, counts: Ints, values: Array, order: Ints | None, update: Update) -> Array:
    """``new``, in which the first value of each group is, combined in place with its second, third and so on.

    The group of ``new[i]`` is ``starts[i]`` to ``starts[i] + counts[i]``, in ``values``, or in ``values[order]``.
    """
    if counts.max() == 1:
        return new
    often = counts > _OFTEN if update.fold is not None else np.zeros(len(counts), np.bool_)
    rounds = int(counts[~often].max(initial=1))
    for turn in range(1, rounds):
        left = np.flatnonzero((counts > turn) & ~often)
        places = starts[left] + turn
        new[left] = update.combine(new[left], values[places if order is None else order[places]])
    if update.fold is not None:
        for i in np.flatnonzero(often):
            rest = slice(starts[i] + 1, starts[i] + counts[i])
            new[i] = update.fold(np.concatenate([new[i : i + 1], values[rest if order is None else order[rest]]]))
    return new
