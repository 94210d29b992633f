"""Regions: the one geometry under partitions, slices and copies.

A region holds the indices ``i`` with ``offset[d] <= i[d] < offset[d] + shape[d]`` along every axis
``d``. Offsets are always in the coordinates of the full tensor; ``relative_to`` is the only place
where one offset is subtracted from another. ``intersect`` is the only intersection in shardvar: it
works on one pair of regions and on columns of them alike.

The texts of slices are TensorFlow's, ``"13 4 3,3:0,4"``: the full shape's extents, each followed by
one blank, then one item for each axis, separated by colons, either ``start,length`` or ``-`` for
the whole axis. In TensorFlow neither scalars nor slices of zero length have such a text; the parser
refuses them, and the printer never makes them from a region that has an element. Sharding callbacks
do get slices of zero length, since no tensor may be removed: for them ``empty=True`` takes ``"13 4
13,0:0,4"``.

Overlaps. ``overlapping_pairs`` finds the pairs of regions, one of each of two columns, that have a
common element. The search is output-sensitive, never quadratic. Given regions A and B, columns of
offsets and shapes [n, rank], list the pairs (i, j) with a common element.

1. Along each axis, with B sorted by its first index, the regions that may meet A[i] are a
   contiguous range of that order: all that start before A[i] stops, less leading regions whose
   running maximum of stops lies before A[i] starts.
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

Tilings. ``find_flaw`` proves that regions hold each element of a shape exactly once, or finds an
element that they do not. The search for overlaps takes longer than linear time where regions
interlock along three axes, which a file may be made to do. This proof takes about n log n steps for
any arrangement:

1. Cut each axis at every first index and stop. Give each interval between neighbouring cuts a
   random weight modulo a prime, and each region the product, over its axes, of the sums of its
   weights.
2. If the regions tile the shape, their weights add up to the weight of the shape for any random
   numbers. If they do not, the sums agree only by chance: their difference is a polynomial in the
   random numbers, not 0, of degree 1 in each axis, and the lemma of Schwartz and Zippel bounds the
   share of its roots by ``rank / prime``. Two rounds make that less than 10^-14 for 64 axes. The
   numbers come from the operating system, so no file can be made to fit them.
3. If they disagree, they do so in one half of the shape or in the other. Halving goes on in such a
   half until a cell is left that no cut divides: it is a hole, or two regions hold it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, NamedTuple, Self, SupportsIndex

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError
from shardvar.layout.dtypes import Ints, Shape
from shardvar.records import entity

_MAX_STOP = 2**63 - 1
"""Indices are 64-bit, here as in every checkpoint: columns of regions must not overflow."""

_EXAMPLE = "It reads like '13 4 3,3:0,4'."


def read_integers(
    values: Iterable[SupportsIndex],
    what: str = "shape",
    error: type[ArgumentError] = ArgumentTypeError,
) -> Shape:
    """Integers of any kind as a tuple of Python's, such as a shape; ``error`` for anything else."""
    given: Any = values
    try:
        given = tuple(values)
        return tuple(map(index, given))
    except TypeError:
        raise error(f"Invalid {what} {given!r}.", "Give a sequence of integers.") from None


def read_integer(value: SupportsIndex, what: str) -> int:
    """One integer of any kind as Python's; ``ArgumentTypeError`` for anything else, also a bool."""
    try:
        if not isinstance(value, bool):  # as NumPy's, which cannot be an index
            return index(value)
    except TypeError:
        pass
    raise ArgumentTypeError(f"Invalid {what} {value!r}.", "Give an integer.")


def read_shape(shape: Iterable[SupportsIndex]) -> Shape:
    extents = read_integers(shape)
    if any(extent < 0 for extent in extents):
        raise ArgumentError(
            f"The shape {extents} has a negative extent.", "Give extents of 0 or more."
        )
    return extents


def read_declared_shape(shape: Any) -> tuple[int | None, ...]:
    """A shape whose extents may be None, for any size; errors as ``read_shape``."""
    given = read_integers(shape) if not isinstance(shape, Iterable) else tuple(shape)
    known = iter(read_shape([extent for extent in given if extent is not None]))
    return tuple(None if extent is None else next(known) for extent in given)


def intersect(offset_a: Ints, shape_a: Ints, offset_b: Ints, shape_b: Ints) -> tuple[Ints, Ints]:
    """The common regions of two columns of regions [..., rank], as offsets and shapes; zero extents
    where disjoint.

    >>> intersect(np.array([0, 0]), np.array([5, 4]), np.array([3, 1]), np.array([9, 2]))
    (array([3, 1]), array([2, 2]))
    """
    offset = np.maximum(offset_a, offset_b)
    stop = np.minimum(offset_a + shape_a, offset_b + shape_b)
    return offset, np.maximum(stop - offset, 0)


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """A half-open range of indices along every axis.

    Parameters
    ----------
    offset : iterable of int
        The first index along each axis, in the coordinates of the full tensor.
    shape : iterable of int
        The number of indices along each axis; zero is allowed.

    Raises
    ------
    LayoutError
        If the two differ in rank, hold other values than integers from 0 on, or reach to an index
        of 2**63 or more.

    Examples
    --------
    >>> Region((5, 0), (4, 4)).intersect(Region((0, 0), (6, 2)))
    Region(offset=(5, 0), shape=(1, 2))
    """

    offset: Shape
    shape: Shape

    # By hand: any iterable of integers may be given and a tuple is kept, so the parameters and the
    # fields differ in type. A generated __init__ would give them one type, and write each field
    # twice, in the hottest constructor of planning.
    def __init__(self, offset: Iterable[SupportsIndex], shape: Iterable[SupportsIndex]) -> None:
        object.__setattr__(self, "offset", read_integers(offset, "offset", LayoutError))
        object.__setattr__(self, "shape", read_integers(shape, "shape", LayoutError))
        if len(self.offset) != len(self.shape):
            raise LayoutError(
                f"Offset {self.offset} and shape {self.shape} differ in rank.",
                "Give both for each axis.",
            )
        if any(i < 0 for i in (*self.offset, *self.shape)):
            raise LayoutError(
                f"Offset {self.offset} and shape {self.shape} must not be negative.",
                "Count from 0.",
            )
        if any(o + s > _MAX_STOP for o, s in zip(self.offset, self.shape, strict=True)):
            raise LayoutError(
                f"Offset {self.offset} and shape {self.shape} reach to an index of 2**63 or more."
            )

    @classmethod
    def whole(cls, shape: Iterable[SupportsIndex]) -> Self:
        """The region of a full tensor.

        Parameters
        ----------
        shape : iterable of int
            The shape of the tensor.

        Returns
        -------
        Region
            All indices of each axis.

        Raises
        ------
        LayoutError
            If `shape` holds other values than integers from 0 on.

        Examples
        --------
        >>> Region.whole((3, 4)), Region.whole(())
        (Region(offset=(0, 0), shape=(3, 4)), Region(offset=(), shape=()))
        """
        extents = tuple(shape)
        return cls((0,) * len(extents), extents)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def stop(self) -> Shape:
        """The first index past the region along each axis."""
        return tuple(o + s for o, s in zip(self.offset, self.shape, strict=True))

    @property
    def size(self) -> int:
        """The number of elements; 1 at rank 0."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def slices(self) -> tuple[slice, ...]:
        """The NumPy index that selects the region from the full tensor.

        Examples
        --------
        >>> np.arange(12).reshape(3, 4)[Region((1, 2), (2, 1)).slices].tolist()
        [[6], [10]]
        """
        return tuple(slice(o, o + s) for o, s in zip(self.offset, self.shape, strict=True))

    def covers(self, other: "Region") -> bool:
        """Return True if every index of another region lies in this one, or if it is empty and
        within the bounds.

        Parameters
        ----------
        other : Region
            A region of the same rank.

        Raises
        ------
        LayoutError
            If the ranks differ.
        """
        _check_same_rank(self, other)
        return all(
            a <= b and c <= d
            for a, b, c, d in zip(self.offset, other.offset, other.stop, self.stop, strict=True)
        )

    def intersect(self, other: "Region") -> "Region | None":
        """The common region of two, in full-tensor coordinates.

        Laws: symmetric; ``a.intersect(a) == a`` for a non-empty ``a``; the indices of the result
        are the common ones.

        Parameters
        ----------
        other : Region
            A region of the same rank.

        Returns
        -------
        Region or None
            None if no element is common.

        Raises
        ------
        LayoutError
            If the ranks differ.
        """
        _check_same_rank(self, other)
        offset, shape = intersect(
            *(
                np.array(row, np.int64)
                for row in (self.offset, self.shape, other.offset, other.shape)
            )
        )
        return Region(offset.tolist(), shape.tolist()) if np.all(shape > 0) else None

    def relative_to(self, outer: "Region") -> "Region":
        """The same elements in the coordinates of a region around this one.

        Law: ``x[outer.slices][inner.relative_to(outer).slices]`` is ``x[inner.slices]``.

        Parameters
        ----------
        outer : Region
            A region that covers this one.

        Raises
        ------
        LayoutError
            If `outer` does not cover this region.

        Examples
        --------
        >>> Region((5, 1), (2, 2)).relative_to(Region((4, 0), (9, 4)))
        Region(offset=(1, 1), shape=(2, 2))
        """
        if not outer.covers(self):
            raise LayoutError(f"{self} reaches out of {outer}.", "Intersect the two first.")
        return Region((a - b for a, b in zip(self.offset, outer.offset, strict=True)), self.shape)

    def subtract(self, other: "Region") -> "list[Region]":
        """Disjoint regions that hold the elements of this one that another does not.

        Parameters
        ----------
        other : Region
            A region of the same rank.

        Returns
        -------
        list of Region
            At most two regions for each axis; empty if `other` covers this one.

        Raises
        ------
        LayoutError
            If the ranks differ.

        Examples
        --------
        >>> Region((0,), (9,)).subtract(Region((3,), (2,)))
        [Region(offset=(0,), shape=(3,)), Region(offset=(5,), shape=(4,))]
        """
        common = self.intersect(other)
        if common is None:
            return [self] if self.size else []
        # Axis by axis, cut off what lies before and behind the common region; the axes done so far
        # are then as short as the common region. [0:4, 0:4] without [1:2, 1:2] is [0:1, 0:4] and
        # [2:4, 0:4], then [1:2, 0:1] and [1:2, 2:4].
        rest: list[Region] = []
        start, stop = list(self.offset), list(self.stop)
        for axis in range(self.rank):
            for low, high in ((start[axis], common.offset[axis]), (common.stop[axis], stop[axis])):
                if low < high:
                    corner = [*start[:axis], low, *start[axis + 1 :]]
                    end = [*stop[:axis], high, *stop[axis + 1 :]]
                    rest.append(Region(corner, [e - c for c, e in zip(corner, end, strict=True)]))
            start[axis], stop[axis] = common.offset[axis], common.stop[axis]
        return rest

    def __str__(self) -> str:
        inside = ", ".join(f"{o}:{o + s}" for o, s in zip(self.offset, self.shape, strict=True))
        return f"[{inside}]"


def subtract_all(region: Region, others: Iterable[Region]) -> list[Region]:
    """Disjoint regions that hold the elements of ``region`` that none of ``others`` holds.

    >>> [str(r) for r in subtract_all(Region.whole((9,)), [Region((0,), (3,)), Region((4,), (5,))])]
    ['[3:4]']
    """
    rest = [region] if region.size else []
    for other in others:
        if not rest:
            break
        # Most of these regions do not meet `other`: that is found for all of them at once.
        offset, shape = (
            np.array([getattr(part, name) for part in rest], np.int64)
            for name in ("offset", "shape")
        )
        _, common = intersect(
            offset, shape, np.array(other.offset, np.int64), np.array(other.shape, np.int64)
        )
        meets: list[bool] = np.all(common > 0, axis=1).tolist()
        rest = [
            new
            for old, hit in zip(rest, meets, strict=True)
            for new in (old.subtract(other) if hit else [old])
        ]
    return rest


def row_strides(shape: Sequence[int]) -> list[int]:
    """The number of elements from one index to the next along each axis, in C order."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return strides


def regions_of_range(shape: Sequence[int], start: int, stop: int) -> list[Region]:
    """The elements ``[start, stop)`` of the C order of an array, as at most ``2 * rank - 1``
    regions in that order.

    Coordinates belong to the array; each region is contiguous in its C order.

    >>> [str(region) for region in regions_of_range((3, 4), 2, 9)]
    ['[0:1, 2:4]', '[1:2, 0:4]', '[2:3, 0:1]']
    """
    strides = row_strides(shape)
    regions = []
    while start < stop:
        # The outermost axis along which a whole index begins here and ends in time. Example: of (3,
        # 4) the strides are 4 and 1. Element 2 begins no row, so single elements follow up to the
        # row's end (2 of them); element 4 begins one.
        axis = next(
            (d for d, s in enumerate(strides) if start % s == 0 and start + s <= stop), len(shape)
        )
        if axis == len(shape):
            return [Region.whole(())]
        index = [start // stride % extent for stride, extent in zip(strides, shape, strict=True)]
        count = min((stop - start) // strides[axis], shape[axis] - index[axis])
        inner = len(shape) - axis - 1
        regions.append(
            Region((*index[: axis + 1], *[0] * inner), (*[1] * axis, count, *shape[axis + 1 :]))
        )
        start += count * strides[axis]
    return regions


def _check_same_rank(a: Region, b: Region) -> None:
    if a.rank != b.rank:
        raise LayoutError(f"{a} and {b} differ in rank.")


def parse_slice_text(text: str, empty: bool = False) -> tuple[Shape, Region]:
    """The full shape and the region that a slice text describes; ``LayoutError`` names the item
    that is wrong.

    >>> parse_slice_text("13 4 3,3:-")
    ((13, 4), Region(offset=(3, 0), shape=(3, 4)))
    """
    *dimensions, items = text.split(" ")
    if not dimensions:
        raise LayoutError(f"The slice text {text!r} has no shape.", _EXAMPLE)
    shape = tuple(_number(item, text) for item in dimensions)
    # TensorFlow skips empty items between colons.
    extents = [item for item in items.split(":") if item]
    if len(extents) != len(shape):
        raise LayoutError(
            f"The slice text {text!r} has {len(shape)} axes and {len(extents)} extents.", _EXAMPLE
        )
    offset, counts = [], []
    for item, length in zip(extents, shape, strict=True):
        numbers = item.split(",")
        if item == "-":
            start, count = 0, length
        elif len(numbers) == 2:
            start, count = (_number(number, text) for number in numbers)
        else:
            raise LayoutError(
                f"The slice text {text!r} has {item!r} instead of 'start,length' or '-'.", _EXAMPLE
            )
        if item != "-" and ((count == 0 and not empty) or start + count > length):
            raise LayoutError(
                f"The slice text {text!r} has the extent {item!r}, which does not fit {length} "
                "indices."
            )
        offset.append(start)
        counts.append(count)
    return shape, Region(offset, counts)


def format_slice_text(shape: Sequence[int], region: Region, empty: bool = False) -> str:
    """The slice text with explicit numbers on every axis, as TensorFlow's checkpoints write it.

    >>> format_slice_text((13, 4), Region((3, 0), (3, 4)))
    '13 4 3,3:0,4'
    """
    if (
        len(shape) != region.rank
        or not Region.whole(shape).covers(region)
        or not (region.size or empty)
        or not shape
    ):
        raise LayoutError(f"{region} of shape {tuple(shape)} has no slice text.")
    extents = ":".join(
        f"{start},{count}" for start, count in zip(region.offset, region.shape, strict=True)
    )
    return f"{' '.join(map(str, shape))} {extents}"


def _number(item: str, text: str) -> int:
    # 19 digits hold every 64-bit number; longer ones are not even converted.
    number = int(item) if item.isascii() and item.isdecimal() and len(item) <= 19 else 2**63
    if number >= 2**63:
        raise LayoutError(
            f"The slice text {text!r} has {item!r} instead of a non-negative number.", _EXAMPLE
        )
    return number


_BATCH = 1 << 20  # Candidate pairs expanded at a time: 8 MiB a column of int64

_SLACK = 8
"""Ranges at most this many times longer than the input are expanded rather than cut further."""

Pairs = tuple[Ints, Ints]  # rows of A and rows of B, side by side

_Spans = tuple[Ints, Ints]
"""Regions as first indices and stops [n, rank], which the search compares without adding."""


def overlapping_pairs(
    offset_a: Ints, shape_a: Ints, offset_b: Ints, shape_b: Ints
) -> Iterator[Pairs]:
    """All (i, j) of regions i of A and j of B with a common element, in bounded batches."""
    rank = offset_a.shape[1]
    if rank == 0:
        # Every pair meets: pair n of a batch is row n // count of A with row n % count of B.
        count = len(offset_b)
        step = max(1, _BATCH // max(1, count))
        for start in range(0, len(offset_a) if count else 0, step):
            i, j = np.divmod(np.arange(min(step, len(offset_a) - start) * count), count)
            yield i + start, j
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
    """Two rows of one column of regions that have a common element, or None if all are disjoint."""
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
    """The cut whose larger half is smallest, with the rows of both halves; None if none helps."""
    best = None
    fewest = len(spans_a[0]) + len(spans_b[0])
    for axis in range(spans_a[0].shape[1]):
        starts = np.concatenate([spans_a[0][:, axis], spans_b[0][:, axis]])
        median = np.partition(starts, len(starts) // 2)[len(starts) // 2]
        # The median start, and the next: if most regions start at one place, cut after it.
        later = starts[starts > median]
        for cut in map(int, [median, later.min()] if len(later) else [median]):
            # A span on both sides of a cut is in both halves: with the cut 4, [1, 5) starts before
            # 4 and stops after it. So a cut helps only if both halves have fewer spans than all.
            left = tuple(np.flatnonzero(spans[0][:, axis] < cut) for spans in (spans_a, spans_b))
            right = tuple(np.flatnonzero(spans[1][:, axis] > cut) for spans in (spans_a, spans_b))
            larger = max(len(left[0]) + len(left[1]), len(right[0]) + len(right[1]))
            if larger < fewest:
                fewest = larger
                best = (axis, cut, (left[0], left[1]), (right[0], right[1]))
    return best


_PRIME = np.uint64((1 << 31) - 1)
"""The product of two numbers below it fits 64 bits, and so does the sum of four billion of them."""

_ROUNDS = 2  # Independent random numbers for each interval

_Weights = npt.NDArray[np.uint64]


class Flaw(NamedTuple):
    """A cell of a shape that the regions do not hold exactly once."""

    cell: Region  # the cell, which no region holds in part
    rows: Shape  # the rows of the regions that hold it: none, or two or more


@entity
class _Cell:
    """A part of the shape, in numbers of cuts, with the regions in it, clipped to it."""

    low: Ints  # [rank]
    high: Ints  # [rank]
    rows: Ints  # [count]
    first: Ints  # [count, rank]
    last: Ints  # [count, rank]

    def half(self, axis: int, upper: bool) -> "_Cell":
        low, high = self.low.copy(), self.high.copy()
        (low if upper else high)[axis] = (self.low[axis] + self.high[axis]) // 2
        first, last = np.maximum(self.first, low), np.minimum(self.last, high)
        keep = (first < last).all(axis=1)
        return _Cell(low, high, self.rows[keep], first[keep], last[keep])


def find_flaw(offset: Ints, shape: Ints, full: Sequence[int]) -> Flaw | None:
    """Return a cell of ``full`` that is in no region or in several; None if the regions tile it."""
    if 0 in full:
        return None
    # The places where each axis is cut, the regions as numbers of cuts, and the sums of random
    # weights: sums[axis][round, i] is the weight of the intervals before cut i.
    random = np.random.default_rng()
    cuts, sums = [], []
    first, last = np.empty_like(offset), np.empty_like(offset)
    for axis, extent in enumerate(full):
        start = offset[:, axis]
        along, number = np.unique(
            np.concatenate([[0, extent], start, start + shape[:, axis]]), return_inverse=True
        )
        first[:, axis], last[:, axis] = np.split(number[2:], 2)
        cuts.append(along)
        weights = random.integers(1, int(_PRIME), (_ROUNDS, len(along)), dtype=np.uint64)
        weights[:, 0] = 0
        sums.append(np.cumsum(weights, axis=1) % _PRIME)
    high = np.array([len(along) - 1 for along in cuts], np.int64)
    cell = _Cell(np.zeros_like(high), high, np.arange(len(offset)), first, last)
    if _is_even(sums, cell):
        return None
    # A cell without regions is a hole as it is.
    while len(cell.rows) and (cell.high - cell.low > 1).any():
        axis = int(np.argmax(cell.high - cell.low))
        lower, upper = cell.half(axis, upper=False), cell.half(axis, upper=True)
        cell = (
            upper
            if _is_even(sums, lower) or (_is_surplus(cuts, upper) and not _is_surplus(cuts, lower))
            else lower
        )
    corner = [along[low] for along, low in zip(cuts, cell.low, strict=True)]
    extents = [along[high] - at for along, high, at in zip(cuts, cell.high, corner, strict=True)]
    return Flaw(Region(corner, extents), tuple(cell.rows.tolist()))


def _weight(sums: list[_Weights], first: Ints, last: Ints) -> _Weights:
    """The sum of the weights of regions, [rounds]."""
    product = np.ones((_ROUNDS, len(first)), np.uint64)
    for axis, before in enumerate(sums):
        # The prime is added first, since unsigned numbers have no negative differences.
        product = (
            product
            * ((before[:, last[:, axis]] + _PRIME - before[:, first[:, axis]]) % _PRIME)
            % _PRIME
        )
    return np.asarray(product.sum(axis=1) % _PRIME)


def _is_even(sums: list[_Weights], cell: _Cell) -> bool:
    """Return True if each element of the cell lies in exactly one region."""
    whole = _weight(sums, cell.low[None], cell.high[None])
    return bool((_weight(sums, cell.first, cell.last) == whole).all())


def _is_surplus(cuts: list[Ints], cell: _Cell) -> bool:
    """Return True if the regions have more elements than the cell, so that some overlap."""
    held, whole = np.ones(len(cell.rows)), 1.0
    for axis, along in enumerate(cuts):
        held *= along[cell.last[:, axis]] - along[cell.first[:, axis]]
        whole *= float(along[cell.high[axis]] - along[cell.low[axis]])
    return bool(held.sum() > whole * (1 + 1e-9))
