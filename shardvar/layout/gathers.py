"""Gathers: the regions that must be read for an index with lists of rows, and the picks from them.

NumPy pairs the arrays of an index, and integers with them, as points. Each point is read once, and
points that follow each other come together:

    x[[7, 3, -6, 2]] of 13 rows     points 7 3 7 2    regions 2:4 and 7:8    picked 2 1 2 0

A basic index has one region, and what to pick from it, as ``layout.indexing`` says. The oracle of
all tests is NumPy on the whole array.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from shardvar.errors import OutOfRange
from shardvar.layout.dtypes import Array, Ints
from shardvar.layout.indexing import expand_index, plan_region, span_of
from shardvar.layout.region import Region


@dataclass(frozen=True, slots=True, eq=False)
class Gather:
    """Regions of an array, and what an index picks from them.

    The elements of the regions, one region after the other, are an array of the shape ``full``.
    """

    offset: Ints
    """[k, rank] the first indices of the regions."""
    shape: Ints
    """[k, rank] their extents."""
    full: tuple[int, ...]
    """The shape of the array of all their elements."""
    axis: int
    """The axis of that array that its first axis is picked as."""
    pick: tuple[Any, ...]
    """The index that picks from it."""

    @property
    def around(self) -> Region:
        """The smallest region that holds all of them."""
        if not len(self.offset):
            return Region.whole([0] * self.offset.shape[1])
        low = self.offset.min(axis=0)
        return Region(low.tolist(), ((self.offset + self.shape).max(axis=0) - low).tolist())

    @property
    def picked_shape(self) -> tuple[int, ...]:
        """The shape of what is picked."""
        extents = [*self.full[1 : self.axis + 1], *self.full[:1], *self.full[self.axis + 1 :]]
        shape: list[int] = []
        for item in self.pick:
            if isinstance(item, slice):
                shape.append(len(range(extents.pop(0))[item]))
            elif isinstance(item, int):
                del extents[0]
            elif item is None:
                shape.append(1)
            else:
                del extents[0]
                shape += item.shape
        return (*shape, *extents)

    def take(self, array: Array) -> Array:
        """Pick from the array of all elements; the result is an array also for one element."""
        # The ellipsis keeps even a single element an array.
        picked: Array = np.moveaxis(array, 0, self.axis) if self.axis else array
        return np.asarray(picked[(*self.pick, ...)])

    @property
    def is_direct(self) -> bool:
        """True if the array of all elements has what is picked, in the same order."""
        return not self.axis and all(
            item is None or isinstance(item, int) or (isinstance(item, slice) and _is_all(item))
            for item in self.pick
        )


def plan_gather(selected: Any, shape: tuple[int, ...]) -> Gather:
    """The regions that hold what ``selected`` selects, and what to pick from them.

    ``selected`` is any index of NumPy, a ``Region``, or None for the whole. Lists of rows and masks
    become a region for each run of rows, each row once. Law: ``x[selected]`` is what ``take`` picks
    of the elements of the regions. Errors as ``plan_region``; ``OutOfRange`` for arrays that do not
    broadcast.

    >>> gather = plan_gather([7, 3, -6, 2], (13, 4))
    >>> [str(Region(*region)) for region in zip(gather.offset.tolist(), gather.shape.tolist())]
    ['[2:4, 0:4]', '[7:8, 0:4]']
    >>> gather.full, gather.pick
    ((3, 4), (array([2, 1, 2, 0]), slice(None, None, 1)))
    """
    items = (
        None if selected is None or isinstance(selected, Region) else expand_index(selected, shape)
    )
    if items is None or not any(isinstance(item, np.ndarray | np.bool_) for item in items):
        region, pick = plan_region(selected, shape)
        offset, extents = np.array([[region.offset], [region.shape]], np.int64)
        return Gather(offset, extents, region.shape, 0, pick)
    return _gather_points(items, shape, _are_parted(selected))


def _are_parted(key: Any) -> bool:
    """Return True if an ellipsis lies between integers or arrays of a key, if only of no axes."""
    given = [
        item is Ellipsis
        for item in (key if isinstance(key, tuple) else (key,))
        if item is not None and not isinstance(item, slice)
    ]
    return True in given[1:-1]


def _gather_points(items: list[Any], shape: tuple[int, ...], are_parted: bool) -> Gather:
    """The regions of an index with arrays: NumPy pairs these, and integers with them, as points."""
    # Along each axis: what is read for a slice, or the array of the points.
    spans: dict[int, tuple[int, int, slice | int]] = {}
    arrays: dict[int, Ints] = {}
    broadcast, pick, places = [], [], []
    axis = 0
    for place, item in enumerate(items):
        if item is None or isinstance(item, slice):
            if item is not None:
                spans[axis] = span_of(range(shape[axis])[item])
            pick.append(None if item is None else spans[axis][2])
            axis += item is not None
            continue
        places.append(place)
        if isinstance(item, np.bool_):  # an axis of 0 or 1
            broadcast.append(np.zeros(int(item), np.int64))
            continue
        numbers = np.asarray(item)
        arrays[axis] = np.where(numbers < 0, numbers + shape[axis], numbers)
        broadcast.append(arrays[axis])
        axis += 1
    try:
        points = np.broadcast_shapes(*(each.shape for each in broadcast))
    except ValueError as error:
        raise OutOfRange(
            f"Arrays that do not broadcast: {error}.", "Give arrays that broadcast, as NumPy asks."
        ) from None
    # Each point once, in C order: of the rows 7, 3, 7, 2 that is 2, 3, 7, picked as 2, 1, 2, 0.
    alongs = [np.broadcast_to(each, points).reshape(-1) for each in arrays.values()]
    flat = np.zeros(prod(points), np.int64)
    for axis, along in zip(arrays, alongs, strict=True):
        flat = flat * shape[axis] + along
    distinct, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
    # NumPy puts the axes of the points where the arrays are, or first if something is between them.
    is_together = places[-1] - places[0] == len(places) - 1 and not are_parted
    position = places[0] if is_together else 0
    chosen: Any = inverse.reshape(points)
    if len(points) == 1 and np.array_equal(inverse, np.arange(len(distinct))):
        chosen = slice(None)
    pick.insert(position, chosen)
    basic = [span[1] for span in spans.values()]
    offset = np.zeros((len(distinct), len(shape)), np.int64)
    extents = np.ones_like(offset)
    for axis, (low, count, _) in spans.items():
        offset[:, axis], extents[:, axis] = low, count
    for axis, along in zip(arrays, alongs, strict=True):
        offset[:, axis] = along[first]
    if arrays:
        offset, extents = _join_runs(offset, extents, distinct, max(arrays))
    return Gather(
        offset,
        extents,
        (len(distinct), *basic),
        sum(item is not None for item in items[:position]) if is_together else 0,
        tuple(pick),
    )


def _join_runs(offset: Ints, extent: Ints, flat: Ints, axis: int) -> tuple[Ints, Ints]:
    """Points that follow each other along the last axis of arrays, as one region.

    Its elements lie in the same order only if no slice before that axis has several indices.
    """
    if not len(flat) or (extent[0, :axis] > 1).any():
        return offset, extent
    follows = (np.diff(flat) == 1) & (offset[1:, axis] == offset[:-1, axis] + 1)
    first = np.append(0, np.flatnonzero(~follows) + 1)
    joined = extent[first]
    joined[:, axis] = np.diff(np.append(first, len(flat)))
    return offset[first], joined


def _is_all(item: slice) -> bool:
    return item.start is None and item.stop is None and item.step in (None, 1)
