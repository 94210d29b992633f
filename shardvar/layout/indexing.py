"""One grammar of NumPy's index: the elements that a key selects from an array, and the regions to
read.

Variables, readers, lazy slices and the command line all ask here, so the same key selects the same
elements and the same mistake gets the same error everywhere.

1. ``expand_index`` reads the items of a key, replaces the ellipsis, and checks each item against
   its axis. Afterwards every item stands for one axis, apart from None (a new axis) and the scalars
   True and False.
2. ``select_basic`` gives the positions that a basic index (integers, slices, ``...``, None) selects
   along each axis.
3. ``plan_region`` gives the region to read for a basic index, and the index that picks from it.

``plan_gather`` does the same for an index with lists of rows. The oracle of all tests is NumPy on
the whole array. A new kind of item is read in ``_read_item``, and nowhere else.

Gathers. NumPy pairs the arrays of an index, and integers with them, as points. Each point is read
once, and points that follow each other come together:

    x[[7, 3, -6, 2]] of 13 rows     points 7 3 7 2    regions 2:4 and 7:8    picked 2 1 2 0
"""

from math import prod
from operator import index
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange
from shardvar.layout.dtypes import Array, Ints, Shape
from shardvar.layout.region import Region
from shardvar.records import entity

Pick = tuple[slice | int | None, ...]  # a basic index that is applied to an array that was read

Selection = int | range | None
"""The positions along one axis: one, which drops it, or a range; None is a new axis."""


def expand_index(key: Any, shape: Shape, *, basic: bool = False) -> list[Any]:
    """Read a key: one item for each axis, in order, between items that stand for no axis."""
    # An item is a slice, a non-negative integer, an array of integers within its axis, None, or
    # ``np.bool_``. Boolean masks become the integer arrays of their ``nonzero()``, which is how
    # NumPy defines them.
    items = [_read_item(item, basic) for item in (key if isinstance(key, tuple) else (key,))]
    ellipses = [place for place, item in enumerate(items) if item is Ellipsis]
    if len(ellipses) > 1:
        raise OutOfRange(
            "An index has more than one ellipsis.", "One stands for all axes that are left out."
        )
    given = sum(map(_count_axes, items))
    if given > len(shape):
        raise OutOfRange(
            f"{given} indices are too many for the shape {shape}.", f"Give at most {len(shape)}."
        )
    # Without an ellipsis, axes are left out from the end.
    place = ellipses[0] if ellipses else len(items)
    items[place : place + 1] = [slice(None)] * (len(shape) - given)
    expanded: list[Any] = []
    axis = 0
    for item in items:
        count = _count_axes(item)
        covered = shape[axis : axis + count]
        if not _is_mask(item):
            expanded.append(item)
        elif item.shape == covered:
            expanded += item.nonzero()
        else:
            raise OutOfRange(
                f"A mask of shape {item.shape} does not fit the axes {covered} of the shape "
                f"{shape}.",
                "Give a mask of the shape of the axes that it stands for.",
            )
        axis += count
    return _check_positions(expanded, shape)


def is_axis(item: Any) -> bool:
    """Return True if an item of ``expand_index`` stands for an axis."""
    return item is not None and not isinstance(item, np.bool_)


def select_basic(key: Any, shape: Shape) -> list[Selection]:
    """The positions that a basic index selects along each axis; None where it makes a new axis."""
    selected: list[Selection] = []
    axis = 0
    for item in expand_index(key, shape, basic=True):
        selected.append(range(shape[axis])[item] if isinstance(item, slice) else item)
        axis += item is not None
    return selected


def slice_of(indices: range) -> slice:
    """The slice that selects these positions: ``range(length)[slice_of(indices)] == indices``."""
    if not indices:
        return slice(indices.start, indices.start, indices.step)
    # A slice cannot stop at -1, which would count from the end: backwards to the first position it
    # stops at None.
    return slice(indices.start, indices.stop if indices.stop >= 0 else None, indices.step)


def span_of(along: int | range) -> tuple[int, int, slice | int]:
    """The first position to read, how many, and the index that picks the selection from them."""
    if isinstance(along, int):
        return along, 1, 0
    if not along:
        return 0, 0, slice(None)
    # Example: range(9, 2, -3) selects 9, 6, 3. Positions 3 to 9 are read, 7 of them, and picked
    # backwards from the 6th.
    low, high = min(along[0], along[-1]), max(along[0], along[-1])
    return low, high - low + 1, slice(None if along.step > 0 else high - low, None, along.step)


def plan_region(selected: Any, shape: Shape) -> tuple[Region, Pick]:
    """The smallest region and the index of the law ``x[selected] == x[region.slices][pick]``."""
    if selected is None:
        return Region.whole(shape), ()
    if isinstance(selected, Region):
        if not Region.whole(shape).covers(selected):
            raise ArgumentError(
                f"{selected} reaches out of the shape {shape}.",
                f"Give a part of {Region.whole(shape)}.",
            )
        return selected, ()
    offset: list[int] = []
    extent: list[int] = []
    pick: list[slice | int | None] = []
    for along in select_basic(selected, shape):
        if along is None:
            pick.append(None)
            continue
        low, count, picked = span_of(along)
        offset.append(low)
        extent.append(count)
        pick.append(picked)
    return Region(offset, extent), tuple(pick)


def cut_steps(region: Region, pick: Pick, most: int) -> tuple[list[tuple[Region, Pick]], int]:
    """Cut what ``plan_region`` gave, so that a step does not cost memory."""
    steps = [abs(item.step or 1) if isinstance(item, slice) else 1 for item in pick]
    place = steps.index(max(steps)) if steps else 0
    strided = pick[place] if steps else None
    if not isinstance(strided, slice) or steps[place] == 1 or region.size <= most:
        return [(region, pick)], 0
    # `place` counts items of the pick, `axis` axes of the region: a new axis is an item without an
    # axis.
    axis = sum(item is not None for item in pick[:place])
    indices = range(region.shape[axis])[strided]
    # Positions a part: an index along the axis has size / extent elements, and each position spans
    # `step` of them.
    count = max(1, most // (region.size // region.shape[axis] * steps[place]))
    parts = []
    for first in range(0, len(indices), count):
        some = indices[first : first + count]
        low, extent, item = span_of(some)
        offset, shape = list(region.offset), list(region.shape)
        offset[axis] += low
        shape[axis] = extent
        parts.append((Region(offset, shape), (*pick[:place], item, *pick[place + 1 :])))
    # In the result the integers before this item have dropped their axes.
    return parts, sum(not isinstance(item, int) for item in pick[:place])


def _read_item(item: Any, basic: bool) -> Any:
    """None, Ellipsis, a slice, an integer, a NumPy boolean, or an array of these."""
    if item is None or item is Ellipsis:
        return item
    if isinstance(item, slice):
        bounds = (item.start, item.stop, item.step)
        read = slice(*(None if each is None else _read_integer(each, item) for each in bounds))
        if read.step == 0:
            raise ArgumentError("A slice has step 0.", "Give a positive or a negative step.")
        return read
    is_boolean = isinstance(item, bool | np.bool_)
    if hasattr(item, "__index__") and not is_boolean and not isinstance(item, np.ndarray):
        return _read_integer(item, item)
    if basic:
        if isinstance(item, np.ndarray) and item.ndim == 0 and item.dtype.kind in "iu":
            return int(item)
        raise ArgumentTypeError(
            f"Invalid index {item!r}.",
            "Give integers, slices, ... or None; for more, index the array that these select.",
        )
    if is_boolean:
        return np.bool_(item)
    array = np.asarray(item)
    if array.size == 0 and array.dtype == np.float64 and isinstance(item, list | tuple):
        array = array.astype(np.int64)  # NumPy: an empty list selects nothing
    if array.dtype.kind not in "iub":
        raise ArgumentTypeError(
            f"Invalid index {item!r}.",
            "Give integers, slices, ..., None, or arrays of integers or booleans.",
        )
    if array.ndim == 0:
        return np.bool_(array) if array.dtype == np.bool_ else int(array)
    return array if array.dtype == np.bool_ else array.astype(np.int64, copy=False)


def _read_integer(value: Any, item: Any) -> int:
    try:
        return index(value)
    except TypeError:
        raise ArgumentTypeError(
            f"Invalid index {item!r}.", f"{value!r} must be an integer."
        ) from None


def _count_axes(item: Any) -> int:
    if item is None or item is Ellipsis or isinstance(item, np.bool_):
        return 0
    return item.ndim if _is_mask(item) else 1


def _is_mask(item: Any) -> bool:
    return isinstance(item, np.ndarray) and item.dtype == np.bool_


def _check_positions(items: list[Any], shape: Shape) -> list[Any]:
    """The items with integers counted from the front; ``OutOfRange`` outside an axis."""
    # Arrays that broadcast to nothing select nothing, and NumPy then looks at none of them: x[:,
    # [], [99]] is empty. Indexes of the first axis are checked all the same, because they select
    # the rows of a variable that are read.
    is_nothing = any(isinstance(item, np.bool_) and not item for item in items)
    is_nothing |= any(isinstance(item, np.ndarray) and item.size == 0 for item in items)
    checked: list[Any] = []
    axis = 0
    for item in items:
        if isinstance(item, int):
            _check_position(item, shape[axis], axis)
            item %= shape[axis]
        elif isinstance(item, np.ndarray) and item.size and not (axis and is_nothing):
            _check_position(int(item.min()), shape[axis], axis)
            _check_position(int(item.max()), shape[axis], axis)
        checked.append(item)
        axis += is_axis(item)
    return checked


def _check_position(number: int, length: int, axis: int) -> None:
    if not -length <= number < length:
        remedy = (
            f"Give an index from {-length} to {length - 1}." if length else "The axis has no index."
        )
        raise OutOfRange(
            f"Index {number} is out of range for axis {axis} of length {length}.", remedy
        )


@entity
class Gather:
    """Regions of an array, whose elements are an array ``full``, and the index that picks there."""

    offset: Ints  # [k, rank] the first indices of the regions
    shape: Ints  # [k, rank] their extents
    full: Shape  # the shape of the array of all their elements
    axis: int  # the axis of that array that its first axis is picked as
    pick: tuple[Any, ...]  # the index that picks from it

    @property
    def around(self) -> Region:
        """The smallest region that holds all of them."""
        if not len(self.offset):
            return Region.whole([0] * self.offset.shape[1])
        low = self.offset.min(axis=0)
        return Region(low.tolist(), ((self.offset + self.shape).max(axis=0) - low).tolist())

    @property
    def picked_shape(self) -> Shape:
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
        """True if the index picks all elements, in the same order."""
        everything = slice(None), slice(None, None, 1)
        return not self.axis and all(
            item is None
            or isinstance(item, int)
            or (isinstance(item, slice) and item in everything)
            for item in self.pick
        )


def plan_gather(selected: Any, shape: Shape) -> Gather:
    """The regions of an index, and the index into them; ``take`` gives ``x[selected]``."""
    # Lists of rows and masks become a region for each run of rows, each row once.
    items = (
        None if selected is None or isinstance(selected, Region) else expand_index(selected, shape)
    )
    if items is None or not any(isinstance(item, np.ndarray | np.bool_) for item in items):
        region, pick = plan_region(selected, shape)
        offset, extents = np.array([[region.offset], [region.shape]], np.int64)
        return Gather(offset, extents, region.shape, 0, pick)
    # An ellipsis between integers or arrays parts them, also if it stands for no axes.
    given = [
        item is Ellipsis
        for item in (selected if isinstance(selected, tuple) else (selected,))
        if item is not None and not isinstance(item, slice)
    ]
    return _gather_points(items, shape, True in given[1:-1])


def _gather_points(items: list[Any], shape: Shape, are_parted: bool) -> Gather:
    """The regions of an index with arrays: NumPy pairs these, and integers with them, as points."""
    # Along each axis: the positions of a slice, or the array of the points.
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
    """Points that follow each other along the last axis of arrays, as one region."""
    # Its elements lie in the same order only if no slice before that axis has several indices.
    if not len(flat) or (extent[0, :axis] > 1).any():
        return offset, extent
    follows = (np.diff(flat) == 1) & (offset[1:, axis] == offset[:-1, axis] + 1)
    first = np.append(0, np.flatnonzero(~follows) + 1)
    joined = extent[first]
    joined[:, axis] = np.diff(np.append(first, len(flat)))
    return offset[first], joined
