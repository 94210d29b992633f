"""One grammar of NumPy's index: what does this key select from an array of this shape?

Variables, readers, lazy slices and the command line all ask here, so the same key selects the same
elements and the same mistake gets the same error everywhere.

1. ``expand_index`` reads the items of a key, replaces the ellipsis, and checks each item against
   its axis. Afterwards every item stands for one axis, apart from None (a new axis) and the scalars
   True and False.
2. ``select_basic`` says which positions a basic index (integers, slices, ``...``, None) selects
   along each axis.
3. ``plan_region`` says which region must be read for a basic index, and what to pick from it.

``layout.gathers`` does the same for an index with lists of rows. The oracle of all tests is NumPy
on the whole array. A new kind of item is read in ``_read_item``, and nowhere else.
"""

from operator import index
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange
from shardvar.layout.dtypes import Array, Ints
from shardvar.layout.region import Region

Pick = tuple[slice | int | None, ...]
"""A basic index that is applied to an array that was read."""

Selection = int | range | None
"""The positions along one axis: one, which drops it, or a range; None is a new axis."""


def expand_index(key: Any, shape: tuple[int, ...], *, basic: bool = False) -> list[Any]:
    """Read a key: one item for each axis, in order, between items that stand for no axis.

    An item is a slice, a non-negative integer, an array of integers within its axis, None, or
    ``np.bool_``. Boolean masks become the integer arrays of their ``nonzero()``, which is how NumPy
    defines them. With ``basic``, arrays and booleans are refused.

    ``ArgumentTypeError`` for an item of another kind, ``ArgumentError`` for a step of 0,
    ``OutOfRange`` for more indices than axes, a second ellipsis, or an index that its axis does not
    have.

    >>> expand_index((..., -1, None), (13, 4, 2))
    [slice(None, None, None), slice(None, None, None), 1, None]
    """
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
    # Without an ellipsis, the axes that are left out are the last ones.
    place = ellipses[0] if ellipses else len(items)
    items[place : place + 1] = [slice(None)] * (len(shape) - given)
    expanded: list[Any] = []
    axis = 0
    for item in items:
        expanded += _expand_mask(item, shape, axis) if _is_mask(item) else [item]
        axis += _count_axes(item)
    return _check_positions(expanded, shape)


def is_axis(item: Any) -> bool:
    """Return True if an item of ``expand_index`` stands for an axis."""
    return item is not None and not isinstance(item, np.bool_)


def select_basic(key: Any, shape: tuple[int, ...]) -> list[Selection]:
    """The positions that a basic index selects along each axis; None where it makes a new axis.

    >>> select_basic((slice(9, 2, -3), None, -1), (13, 4))
    [range(9, 2, -3), None, 3]
    """
    selected: list[Selection] = []
    axis = 0
    for item in expand_index(key, shape, basic=True):
        selected.append(range(shape[axis])[item] if isinstance(item, slice) else item)
        axis += item is not None
    return selected


def slice_of(indices: range) -> slice:
    """The slice that selects these positions: ``range(length)[slice_of(indices)] == indices``.

    >>> slice_of(range(6, -1, -3)), slice_of(range(5, 5))
    (slice(6, None, -3), slice(5, 5, 1))
    """
    if not indices:
        return slice(indices.start, indices.start, indices.step)
    # A slice cannot stop at -1, which would count from the end: backwards to the first position it
    # stops at None.
    return slice(indices.start, indices.stop if indices.stop >= 0 else None, indices.step)


def span_of(along: int | range) -> tuple[int, int, slice | int]:
    """The first position to read for a selection, how many, and the index that picks the selected
    ones from these.

    >>> span_of(range(9, 2, -3)), span_of(3)
    ((3, 7, slice(6, None, -3)), (3, 1, 0))
    """
    if isinstance(along, int):
        return along, 1, 0
    if not along:
        return 0, 0, slice(None)
    # Example: range(9, 2, -3) selects 9, 6, 3. Positions 3 to 9 are read, 7 of them, and picked
    # backwards from the 6th.
    low, high = min(along[0], along[-1]), max(along[0], along[-1])
    return low, high - low + 1, slice(None if along.step > 0 else high - low, None, along.step)


def plan_region(selected: Any, shape: tuple[int, ...]) -> tuple[Region, Pick]:
    """The smallest region that holds what ``selected`` selects, and the index that picks it from
    that region.

    ``selected`` is a basic index, a ``Region``, or None for the whole. Law: ``x[selected]`` is
    ``x[region.slices][pick]``. Errors as ``expand_index``; ``ArgumentError`` for a region that
    reaches out of the shape.

    >>> region, pick = plan_region((slice(9, 2, -3), 1), (13, 4))
    >>> str(region), pick
    ('[3:10, 1:2]', (slice(6, None, -3), 0))
    """
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
    """Cut what ``plan_region`` gave, so that a step does not cost memory.

    Returns the parts, and the axis along which their picks are concatenated. Each part has about
    ``most`` elements, or one index along the axis of the largest step. Without a step there is one
    part, the whole.

    >>> parts, axis = cut_steps(*plan_region((1, slice(None, None, 3)), (2, 10)), 6)
    >>> [(str(part), picked) for part, picked in parts], axis
    ([('[1:2, 0:4]', (0, slice(None, None, 3))), ('[1:2, 6:10]', (0, slice(None, None, 3)))], 0)
    """
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
        return _read_slice(item)
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
    return np.bool_(item) if is_boolean else _read_array(item)


def _read_array(item: Any) -> Any:
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


def _read_slice(item: slice) -> slice:
    bounds = (
        None if bound is None else _read_integer(bound, item)
        for bound in (item.start, item.stop, item.step)
    )
    found = slice(*bounds)
    if found.step == 0:
        raise ArgumentError("A slice has step 0.", "Give a positive or a negative step.")
    return found


def _read_integer(value: Any, item: Any) -> int:
    try:
        return index(value)
    except TypeError:
        raise ArgumentTypeError(
            f"Invalid index {item!r}.", f"{value!r} must be an integer."
        ) from None


def _count_axes(item: Any) -> int:
    """Number of axes that an item stands for."""
    if item is None or item is Ellipsis or isinstance(item, np.bool_):
        return 0
    return item.ndim if _is_mask(item) else 1


def _is_mask(item: Any) -> bool:
    return isinstance(item, np.ndarray) and item.dtype == np.bool_


def _expand_mask(mask: Array, shape: tuple[int, ...], axis: int) -> list[Ints]:
    covered = shape[axis : axis + mask.ndim]
    if mask.shape != covered:
        raise OutOfRange(
            f"A mask of shape {mask.shape} does not fit the axes {covered} of the shape {shape}.",
            "Give a mask of the shape of the axes that it stands for.",
        )
    return list(mask.nonzero())


def _check_positions(items: list[Any], shape: tuple[int, ...]) -> list[Any]:
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
