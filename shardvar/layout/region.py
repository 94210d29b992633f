"""Boxes of integers: the one geometry under partitions, slices and copies.

A region is the half-open box ``offset[d] <= i[d] < offset[d] + shape[d]``. Offsets are always in the coordinates of
the full tensor; ``relative_to`` is the only place where one offset is subtracted from another.
``intersect`` is the only intersection in shardvar: it works on one pair of boxes and on columns of them alike.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self, SupportsIndex

import numpy as np

from shardvar.errors import LayoutError
from shardvar.layout.dtypes import Ints

_MAX_STOP = 2**63 - 1
"""Indices are 64-bit, here as in every checkpoint: columns of boxes must not overflow."""


def intersect(offset_a: Ints, shape_a: Ints, offset_b: Ints, shape_b: Ints) -> tuple[Ints, Ints]:
    """The common boxes of two columns of boxes [..., rank], as offsets and shapes; disjoint ones get a zero extent.

    >>> intersect(np.array([0, 0]), np.array([5, 4]), np.array([3, 1]), np.array([9, 2]))
    (array([3, 1]), array([2, 2]))
    """
    offset = np.maximum(offset_a, offset_b)
    stop = np.minimum(offset_a + shape_a, offset_b + shape_b)
    return offset, np.maximum(stop - offset, 0)


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """A half-open box of integers.

    >>> Region((5, 0), (4, 4)).intersect(Region((0, 0), (6, 2)))
    Region(offset=(5, 0), shape=(1, 2))
    """

    offset: tuple[int, ...]
    """The first index along each axis, in the coordinates of the full tensor."""
    shape: tuple[int, ...]
    """The number of indices along each axis; zero is allowed."""

    def __init__(self, offset: Iterable[SupportsIndex], shape: Iterable[SupportsIndex]) -> None:
        object.__setattr__(self, "offset", tuple(_index(i) for i in offset))
        object.__setattr__(self, "shape", tuple(_index(i) for i in shape))
        if len(self.offset) != len(self.shape):
            raise LayoutError(
                f"Offset {self.offset} and shape {self.shape} differ in rank.", "Give one of each an axis."
            )
        if any(i < 0 for i in (*self.offset, *self.shape)):
            raise LayoutError(f"Offset {self.offset} and shape {self.shape} must not be negative.")
        if any(o + s > _MAX_STOP for o, s in zip(self.offset, self.shape, strict=True)):
            raise LayoutError(f"Offset {self.offset} and shape {self.shape} reach to an index of 2**63 or more.")

    @classmethod
    def whole(cls, shape: Iterable[SupportsIndex]) -> Self:
        """The region of a full tensor.

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

        >>> np.arange(12).reshape(3, 4)[Region((1, 2), (2, 1)).slices].tolist()
        [[6], [10]]
        """
        return tuple(slice(o, o + s) for o, s in zip(self.offset, self.shape, strict=True))

    def covers(self, other: "Region") -> bool:
        """True where every index of ``other`` lies in this region; an empty region within the bounds is covered."""
        _check_same_rank(self, other)
        return all(
            a <= b and c <= d for a, b, c, d in zip(self.offset, other.offset, other.stop, self.stop, strict=True)
        )

    def intersect(self, other: "Region") -> "Region | None":
        """The common region in full-tensor coordinates, or None where no element is common.

        Laws: symmetric; ``a.intersect(a) == a`` for a non-empty ``a``; the indices of the result are the common ones.
        """
        _check_same_rank(self, other)
        offset, shape = intersect(
            *(np.array(row, dtype=np.int64) for row in (self.offset, self.shape, other.offset, other.shape))
        )
        return Region(offset.tolist(), shape.tolist()) if np.all(shape > 0) else None

    def relative_to(self, outer: "Region") -> "Region":
        """The same elements in the coordinates of ``outer``, which must cover this region.

        Law: ``x[outer.slices][inner.relative_to(outer).slices]`` is ``x[inner.slices]``.

        >>> Region((5, 1), (2, 2)).relative_to(Region((4, 0), (9, 4)))
        Region(offset=(1, 1), shape=(2, 2))
        """
        if not outer.covers(self):
            raise LayoutError(f"{self} reaches out of {outer}.")
        return Region((a - b for a, b in zip(self.offset, outer.offset, strict=True)), self.shape)

    def subtract(self, other: "Region") -> "list[Region]":
        """Disjoint regions that hold the elements of this one that ``other`` does not.

        >>> Region((0,), (9,)).subtract(Region((3,), (2,)))
        [Region(offset=(0,), shape=(3,)), Region(offset=(5,), shape=(4,))]
        """
        common = self.intersect(other)
        if common is None:
            return [self] if self.size else []
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
        # Most pieces do not meet `other`: that is found for all of them at once.
        offset, shape = (np.array([getattr(piece, name) for piece in rest], np.int64) for name in ("offset", "shape"))
        _, common = intersect(offset, shape, np.array(other.offset, np.int64), np.array(other.shape, np.int64))
        meets: list[bool] = np.all(common > 0, axis=1).tolist()
        rest = [new for old, hit in zip(rest, meets, strict=True) for new in (old.subtract(other) if hit else [old])]
    return rest


def boxes_of_range(shape: Sequence[int], start: int, stop: int) -> list[Region]:
    """The elements ``[start, stop)`` of a box's C order, as at most ``2 * rank - 1`` regions in that order.

    Coordinates are the box's own; each region is contiguous in its C order.

    >>> [str(box) for box in boxes_of_range((3, 4), 2, 9)]
    ['[0:1, 2:4]', '[1:2, 0:4]', '[2:3, 0:1]']
    """
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    boxes = []
    while start < stop:
        # The outermost axis along which a whole index begins here and ends in time.
        axis = next((d for d, s in enumerate(strides) if start % s == 0 and start + s <= stop), len(shape))
        if axis == len(shape):
            return [Region.whole(())]
        index = [start // stride % extent for stride, extent in zip(strides, shape, strict=True)]
        count = min((stop - start) // strides[axis], shape[axis] - index[axis])
        inner = len(shape) - axis - 1
        boxes.append(Region((*index[: axis + 1], *[0] * inner), (*[1] * axis, count, *shape[axis + 1 :])))
        start += count * strides[axis]
    return boxes


def _index(value: SupportsIndex | Any) -> int:
    try:
        return int(value.__index__())
    except AttributeError:
        raise LayoutError(f"{value!r} is not an integer.", "Offsets and shapes are integers.") from None


def _check_same_rank(a: Region, b: Region) -> None:
    if a.rank != b.rank:
        raise LayoutError(f"{a} and {b} differ in rank.")
