"""Overlaps: the pairs of regions, one of each of two columns, that have a common element.

The search is output-sensitive, never quadratic. Given regions A and B, columns of offsets and
shapes [n, rank], list the pairs (i, j) with a common element.

1. Along each axis, with B sorted by its first index, the regions that may meet A[i] are a
   contiguous range of that order: the ones that start before A[i] stops, less the leading ones
   whose running maximum of stops lies before A[i] starts.
2. If along some axis these ranges together are at most a few times as long as the input, expand
   them and keep the pairs that meet along every axis. Row slices, column slices and whole tensors
   end here at once.
3. Otherwise cut space near the median start along the axis that separates best and answer both
   halves. A region that straddles the cut goes to both; a pair belongs to the half that holds the
   first corner of its common region, so it is reported once.
4. If no cut separates anything (identical regions), expand the ranges after all, a bounded batch at
   a time.

To treat several tensors at once, add an axis for the tensor: regions of different tensors then
never meet.
"""

from collections.abc import Iterator

import numpy as np

from shardvar.layout.dtypes import Ints
from shardvar.layout.region import intersect

_BATCH = 1 << 20
"""Candidate pairs expanded at a time: 8 MiB a column of int64."""

_SLACK = 8
"""Ranges at most this many times longer than the input are expanded rather than cut further."""

Pairs = tuple[Ints, Ints]
"""Rows of A and rows of B, side by side."""

_Spans = tuple[Ints, Ints]
"""Regions as first indices and stops [n, rank], which the search compares without adding."""


def overlapping_pairs(
    offset_a: Ints, shape_a: Ints, offset_b: Ints, shape_b: Ints
) -> Iterator[Pairs]:
    """All (i, j) for which region i of A and region j of B have a common element, each once, in
    bounded batches.

    >>> a = np.array([[0], [5]]), np.array([[5], [5]])
    >>> b = np.array([[0], [3], [9]]), np.array([[3], [6], [1]])
    >>> [(i.tolist(), j.tolist()) for i, j in overlapping_pairs(*a, *b)]
    [([0, 0, 1, 1], [0, 1, 1, 2])]
    """
    rank = offset_a.shape[1]
    if rank == 0:
        yield from _all_pairs(len(offset_a), len(offset_b))
        return
    spans_a, spans_b = (offset_a, offset_a + shape_a), (offset_b, offset_b + shape_b)
    rows_a = np.flatnonzero((shape_a > 0).all(axis=1))
    rows_b = np.flatnonzero((shape_b > 0).all(axis=1))
    # A cell is a part of space, [low, high) along each axis, with the rows that reach into it. The
    # first one is all of it.
    everywhere = np.iinfo(np.int64)
    cells = [(rows_a, rows_b, np.full(rank, everywhere.min), np.full(rank, everywhere.max))]
    while cells:
        rows_a, rows_b, low, high = cells.pop()
        if not (len(rows_a) and len(rows_b)):
            continue
        cell_a = spans_a[0][rows_a], spans_a[1][rows_a]
        cell_b = spans_b[0][rows_b], spans_b[1][rows_b]
        ranges = [_candidates(cell_a, cell_b, axis) for axis in range(rank)]
        totals = [int((stop - start).sum()) for _, start, stop in ranges]
        best = int(np.argmin(totals))
        halves = None
        if totals[best] > _SLACK * (len(rows_a) + len(rows_b)):
            halves = _cut(cell_a, cell_b)
        if halves is None:
            for i, j in _expand(*ranges[best]):
                # The first corner of what two regions share lies in one cell, which reports them.
                start_a, start_b = cell_a[0][i], cell_b[0][j]
                offset, shape = intersect(
                    start_a, cell_a[1][i] - start_a, start_b, cell_b[1][j] - start_b
                )
                keep = ((shape > 0) & (low <= offset) & (offset < high)).all(axis=1)
                if keep.any():
                    yield rows_a[i[keep]], rows_b[j[keep]]
            continue
        axis, cut, (left_a, left_b), (right_a, right_b) = halves
        middle_high, middle_low = high.copy(), low.copy()
        middle_high[axis], middle_low[axis] = min(high[axis], cut), max(low[axis], cut)
        cells.append((rows_a[right_a], rows_b[right_b], middle_low, high))
        cells.append((rows_a[left_a], rows_b[left_b], low, middle_high))


def find_overlap(offset: Ints, shape: Ints) -> tuple[int, int] | None:
    """Two rows of one column of regions that have a common element, or None if all are disjoint.

    >>> find_overlap(np.array([[0], [3], [4]]), np.array([[3], [2], [9]]))
    (1, 2)
    """
    for i, j in overlapping_pairs(offset, shape, offset, shape):
        twice = np.flatnonzero(i != j)
        if len(twice):
            first, second = int(i[twice[0]]), int(j[twice[0]])
            return min(first, second), max(first, second)
    return None


def _candidates(spans_a: _Spans, spans_b: _Spans, axis: int) -> tuple[Ints, Ints, Ints]:
    """The order of B along an axis, and for each of A the range of that order which may meet it."""
    # Stops are not sorted, but their running maximum is, so both ends are found by bisection.
    # Example: B = 0:9, 1:2, 5:6 has the running maxima 9, 9, 9; for A = 3:5 the first with a
    # maximum above 3 is the 0th, and 0:9 and 1:2 start before 5: the range is 0 to 2. It holds 1:2
    # too, which does not meet A; candidates are checked later.
    start_b, stop_b = spans_b[0][:, axis], spans_b[1][:, axis]
    order = np.argsort(start_b, kind="stable")
    first = np.searchsorted(np.maximum.accumulate(stop_b[order]), spans_a[0][:, axis], side="right")
    last = np.searchsorted(start_b[order], spans_a[1][:, axis], side="left")
    return order, first, np.maximum(first, last)


def _expand(order: Ints, first: Ints, last: Ints) -> Iterator[Pairs]:
    """The pairs (i, order[k]) for first[i] <= k < last[i], in batches of about ``_BATCH``."""
    # Pairs are numbered in the order of i, and ends[i] is the number of those up to i. Example:
    # first = 2, 0 and last = 4, 3 give counts 2, 3 and ends 2, 5; the pairs 0 and 1 have i = 0 and
    # k = 2, 3, and the pairs 2, 3, 4 have i = 1 and k = 0, 1, 2. `within` is a pair's number less
    # the number of the first pair of its i, so k = first + within.
    counts = last - first
    ends = np.cumsum(counts)
    row, done = 0, 0
    while row < len(counts):
        upto = max(row + 1, int(np.searchsorted(ends, done + _BATCH, side="right")))
        repeat = counts[row:upto]
        i = np.repeat(np.arange(row, upto), repeat)
        within = np.arange(done, int(ends[upto - 1])) - np.repeat(ends[row:upto] - repeat, repeat)
        yield i, order[first[i] + within]
        row, done = upto, int(ends[upto - 1])


def _cut(
    spans_a: _Spans, spans_b: _Spans
) -> tuple[int, int, tuple[Ints, Ints], tuple[Ints, Ints]] | None:
    """The axis and place of the cut whose larger half is smallest, with the rows of both halves;
    None if none helps."""
    best = None
    fewest = len(spans_a[0]) + len(spans_b[0])
    for axis in range(spans_a[0].shape[1]):
        for cut in _places(np.concatenate([spans_a[0][:, axis], spans_b[0][:, axis]])):
            # A span on both sides of a cut is in both halves: with the cut 4, [1, 5) starts before
            # 4 and stops after it. So a cut helps only if both halves have fewer spans than all.
            left = tuple(np.flatnonzero(spans[0][:, axis] < cut) for spans in (spans_a, spans_b))
            right = tuple(np.flatnonzero(spans[1][:, axis] > cut) for spans in (spans_a, spans_b))
            larger = max(len(left[0]) + len(left[1]), len(right[0]) + len(right[1]))
            if larger < fewest:
                fewest = larger
                best = (axis, cut, (left[0], left[1]), (right[0], right[1]))
    return best


def _places(starts: Ints) -> list[int]:
    """The median start, and the next: if most regions start at one place, cut after it."""
    median = np.partition(starts, len(starts) // 2)[len(starts) // 2]
    later = starts[starts > median]
    return [int(median), int(later.min())] if len(later) else [int(median)]


def _all_pairs(count_a: int, count_b: int) -> Iterator[Pairs]:
    # At rank 0 every pair meets: pair n of a batch is row n // count_b of A with row n % count_b of
    # B.
    step = max(1, _BATCH // max(1, count_b))
    for start in range(0, count_a if count_b else 0, step):
        i, j = np.divmod(np.arange(min(step, count_a - start) * count_b), count_b)
        yield i + start, j
