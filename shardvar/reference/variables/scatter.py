"""The kernel of sparse writes. It takes rows in ascending order, equal rows side by side.

Rows are sorted stably, so the values for one row keep the order in which they were given. The
kernel reads and writes each row of the array once:

1. Combine the first value of every distinct row, all at once; then the second value of the rows
   that have one, and so on ("rounds").
2. Fold the few rows that occur very often one by one, because late rounds would hold a handful of
   rows each.

Rows 3, 7, 7, 7 take three rounds: {3, 7}, {7}, {7}. The result equals a plain loop over all rows,
bit for bit.
"""

from collections.abc import Iterator

import numpy as np

from shardvar.layout.dtypes import Array, Ints
from shardvar.reference.variables.updates import ADD, REPLACE, UpdateKind

_BLOCK_NBYTES = 1 << 18
"""Distinct rows are combined in row blocks of so many bytes, which stay in the processor's cache
between rounds."""

_OFTEN = 8
"""A row that occurs more often is folded by itself: later rounds have few rows."""


def sort_rows(rows: Ints) -> tuple[Ints, Ints]:
    """Return the rows in ascending order, and the place where each was; equal rows keep their
    order.

    >>> sort_rows(np.array([7, 0, 7, 3]))
    (array([0, 3, 7, 7]), array([1, 3, 0, 2]))
    """
    bits = len(rows).bit_length()
    if len(rows) == 0 or int(rows.max()) >= 1 << (63 - bits):
        order = np.argsort(rows, kind="stable")
        return rows[order], order
    # Row and place in one integer sort several times faster than a stable argsort. Four rows need 3
    # bits for the place: row 7 at place 2 is 7 << 3 | 2 = 58, and 58 >> 3, 58 & 7 are row and place
    # again.
    keys = np.sort((rows << bits) | np.arange(len(rows)))
    return keys >> bits, keys & ((1 << bits) - 1)


def ascending(rows: Ints) -> tuple[Ints, Ints | None]:
    """Return the rows in ascending order and the place where each was, or None for rows that ascend
    already.

    >>> ascending(np.array([0, 3, 3]))
    (array([0, 3, 3]), None)
    """
    return (rows, None) if np.all(rows[1:] >= rows[:-1]) else sort_rows(rows)


def scatter_sorted(array: Array, rows: Ints, values: Array, update: UpdateKind) -> None:
    """``array[rows[i]] = update.combine(array[rows[i]], values[i])`` for i in order, in place.

    ``rows`` [n] ascending and in range, ``values`` [n, *row] of the array's dtype.
    """
    starts, counts = _groups(rows)
    if update is REPLACE:
        # Of several values for one row the last stays.
        array[rows[starts]] = values[starts + counts - 1]
        return
    for block in _row_blocks(len(starts), array):
        distinct = rows[starts[block]]
        new = update.combine(array[distinct], values[starts[block]])
        array[distinct] = _folded(new, starts[block], counts[block], values, None, update)


def sum_sorted(rows: Ints, values: Array, order: Ints) -> tuple[Ints, Array]:
    """Return the distinct rows and the sum of each row's values, added from first to last -> [d],
    [d, *row].

    ``rows`` [n] ascending; ``values[order[i]]`` belongs to ``rows[i]``. The result equals
    ``scatter_sorted`` to zeros, except that nothing is added to a zero: a row that occurs once has
    its value, with the sign of its zeros.

    >>> sum_sorted(np.array([2, 5, 5]), np.array([[1.0], [2.0], [4.0]]), np.array([1, 0, 2]))
    (array([2, 5]), array([[2.],
           [5.]]))
    """
    starts, counts = _groups(rows)
    sums = np.empty((len(starts), *values.shape[1:]), values.dtype)
    for block in _row_blocks(len(starts), sums):
        np.take(values, order[starts[block]], axis=0, out=sums[block], mode="clip")
        _folded(sums[block], starts[block], counts[block], values, order, ADD)
    return rows[starts], sums


def _groups(rows: Ints) -> tuple[Ints, Ints]:
    """Return the places where groups of equal ascending rows begin, and the size of each: [3, 7, 7]
    -> [0, 1], [1, 2].

    A group begins where a row differs from the one before it, and its size is the distance to the
    next beginning.
    """
    is_first = np.ones(len(rows), np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=is_first[1:])
    starts = is_first.nonzero()[0]
    counts = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=counts[:-1])
    counts[-1:] = len(rows) - starts[-1:]  # slices, so that no rows at all give no groups
    return starts, counts


def _row_blocks(count: int, array: Array) -> Iterator[slice]:
    """Return slices of ``count`` rows, each of about ``_BLOCK_NBYTES`` of the array's rows, and at
    least one row."""
    step = max(1, _BLOCK_NBYTES // max(1, array[:1].nbytes))
    return (slice(first, first + step) for first in range(0, count, step))


def _folded(
    new: Array, starts: Ints, counts: Ints, values: Array, order: Ints | None, update: UpdateKind
) -> Array:
    """Return ``new``, which holds the first value of each group, combined in place with the second,
    third and so on.

    The group of ``new[i]`` is ``starts[i]`` to ``starts[i] + counts[i]``, in ``values``, or in
    ``values[order]``.
    """
    if counts.max() == 1:
        return new
    # Groups of 1, 3 and 20 values with a fold: the last is `often`, so there are two more rounds
    # for the first two.
    often = counts > _OFTEN if update.fold is not None else np.zeros(len(counts), np.bool_)
    rounds = int(counts[~often].max(initial=1))
    for turn in range(1, rounds):
        left = np.flatnonzero((counts > turn) & ~often)
        places = starts[left] + turn
        new[left] = update.combine(new[left], values[places if order is None else order[places]])
    if update.fold is not None:
        for i in np.flatnonzero(often):
            rest = slice(starts[i] + 1, starts[i] + counts[i])
            new[i] = update.fold(
                np.concatenate([new[i : i + 1], values[rest if order is None else order[rest]]])
            )
    return new
