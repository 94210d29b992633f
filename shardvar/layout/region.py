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
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Self, SupportsIndex

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError
from shardvar.layout.dtypes import Ints

_MAX_STOP = 2**63 - 1
"""Indices are 64-bit, here as in every checkpoint: columns of regions must not overflow."""

_EXAMPLE = "It reads like '13 4 3,3:0,4'."


def read_integers(
    values: Iterable[SupportsIndex],
    what: str = "shape",
    error: type[ArgumentError] = ArgumentTypeError,
) -> tuple[int, ...]:
    """Integers of any kind as a tuple of Python's; ``error`` for anything else. All shapes are read
    here.

    >>> read_integers(np.array([13, 4]))
    (13, 4)
    """
    given: Any = values
    try:
        given = tuple(values)
        return tuple(map(index, given))
    except TypeError:
        raise error(f"Invalid {what} {given!r}.", "Give a sequence of integers.") from None


def read_integer(value: SupportsIndex, what: str) -> int:
    """One integer of any kind as Python's; ``ArgumentTypeError`` for anything else, also a bool.

    >>> read_integer(np.uint8(13), "length")
    13
    """
    try:
        if not isinstance(value, bool):  # as NumPy's, which cannot be an index
            return index(value)
    except TypeError:
        pass
    raise ArgumentTypeError(f"Invalid {what} {value!r}.", "Give an integer.")


def read_shape(shape: Iterable[SupportsIndex]) -> tuple[int, ...]:
    """A shape as integers; ``ArgumentError`` for a negative extent."""
    extents = read_integers(shape)
    if any(extent < 0 for extent in extents):
        raise ArgumentError(
            f"The shape {extents} has a negative extent.", "Give extents of 0 or more."
        )
    return extents


def read_declared_shape(shape: Any) -> tuple[int | None, ...]:
    """A shape whose extents may be None, for any size; errors as ``read_shape``.

    >>> read_declared_shape([None, np.int32(4)])
    (None, 4)
    """
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

    offset: tuple[int, ...]
    shape: tuple[int, ...]

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
    def stop(self) -> tuple[int, ...]:
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
                np.array(row, dtype=np.int64)
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


def regions_of_range(shape: Sequence[int], start: int, stop: int) -> list[Region]:
    """The elements ``[start, stop)`` of the C order of an array, as at most ``2 * rank - 1``
    regions in that order.

    Coordinates belong to the array; each region is contiguous in its C order.

    >>> [str(region) for region in regions_of_range((3, 4), 2, 9)]
    ['[0:1, 2:4]', '[1:2, 0:4]', '[2:3, 0:1]']
    """
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
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


def parse_slice_text(text: str, empty: bool = False) -> tuple[tuple[int, ...], Region]:
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
    intervals = [
        _interval(item, length, text, empty) for item, length in zip(extents, shape, strict=True)
    ]
    return shape, Region((start for start, _ in intervals), (count for _, count in intervals))


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


def _interval(item: str, length: int, text: str, empty: bool) -> tuple[int, int]:
    if item == "-":
        return 0, length
    numbers = item.split(",")
    if len(numbers) != 2:
        raise LayoutError(
            f"The slice text {text!r} has {item!r} instead of 'start,length' or '-'.", _EXAMPLE
        )
    start, count = (_number(number, text) for number in numbers)
    if (count == 0 and not empty) or start + count > length:
        raise LayoutError(
            f"The slice text {text!r} has the extent {item!r}, which does not fit {length} indices."
        )
    return start, count


def _number(item: str, text: str) -> int:
    # 19 digits hold every 64-bit number; longer ones are not even converted.
    number = int(item) if item.isascii() and item.isdecimal() and len(item) <= 19 else 2**63
    if number >= 2**63:
        raise LayoutError(
            f"The slice text {text!r} has {item!r} instead of a non-negative number.", _EXAMPLE
        )
    return number
