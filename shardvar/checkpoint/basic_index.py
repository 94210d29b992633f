"""NumPy's basic index as a region to read and what to pick from it afterwards."""

from operator import index
from typing import Any

from shardvar.errors import ArgumentError, OutOfRange
from shardvar.layout.region import Region

Pick = tuple[slice | int | None, ...]


def parse_index(selected: Any, shape: tuple[int, ...]) -> tuple[Region, Pick]:
    """The smallest region that holds what ``selected`` selects, and the index that picks it from that region.

    Law: ``x[selected]`` is ``x[region.slices][pick]``. Integers, slices with any step, ``...`` and ``None`` as in
    NumPy; ``OutOfRange`` where an integer is out of range, ``ArgumentError`` for anything that is no basic index.

    >>> region, pick = parse_index((slice(9, 2, -3), 1), (13, 4))
    >>> str(region), pick
    ('[3:10, 1:2]', (slice(6, None, -3), 0))
    """
    if selected is None:
        return Region.whole(shape), ()
    if isinstance(selected, Region):
        if not Region.whole(shape).covers(selected):
            raise ArgumentError(f"{selected} reaches out of the shape {shape}.")
        return selected, ()
    items = expand(selected if isinstance(selected, tuple) else (selected,), shape)
    offset: list[int] = []
    extent: list[int] = []
    pick: list[slice | int | None] = []
    axis = 0
    for item in items:
        if item is None:
            pick.append(None)
            continue
        start, count, picked = _along(item, shape[axis], axis)
        offset.append(start)
        extent.append(count)
        pick.append(picked)
        axis += 1
    return Region(offset, extent), tuple(pick)


def cut_steps(region: Region, pick: Pick, most: int) -> tuple[list[tuple[Region, Pick]], int]:
    """Parts of what ``parse_index`` gave, and the axis along which what they pick is put together.

    So that a step is not paid for with memory: the parts have about ``most`` elements, or one index along the axis of
    the largest step. Without a step there is one part, the whole.

    >>> parts, axis = cut_steps(*parse_index((1, slice(None, None, 3)), (2, 10)), 6)
    >>> [(str(part), picked) for part, picked in parts], axis
    ([('[1:2, 0:4]', (0, slice(None, None, 3))), ('[1:2, 6:10]', (0, slice(None, None, 3)))], 0)
    """
    steps = [abs(item.step or 1) if isinstance(item, slice) else 1 for item in pick]
    place = steps.index(max(steps)) if steps else 0
    strided = pick[place] if steps else None
    if not isinstance(strided, slice) or steps[place] == 1 or region.size <= most:
        return [(region, pick)], 0
    axis = sum(item is not None for item in pick[:place])
    indices = range(region.shape[axis])[strided]
    count = max(1, most // (region.size // region.shape[axis] * steps[place]))
    parts = []
    for first in range(0, len(indices), count):
        some = indices[first : first + count]
        low, high = min(some[0], some[-1]), max(some[0], some[-1])
        offset, shape = list(region.offset), list(region.shape)
        offset[axis] += low
        shape[axis] = high - low + 1
        item = slice(None if some.step > 0 else high - low, None, some.step)
        parts.append((Region(offset, shape), (*pick[:place], item, *pick[place + 1 :])))
    return parts, sum(not isinstance(item, int) for item in pick[:place])


def expand(items: tuple[Any, ...], shape: tuple[int, ...]) -> list[Any]:
    """One item an axis, besides the ``None``s: an ellipsis, or the end, stands for the axes that are left out."""
    given = sum(item is not None and item is not Ellipsis for item in items)
    if given > len(shape):
        raise OutOfRange(f"{given} indices are too many for the shape {shape}.")
    ellipses = sum(item is Ellipsis for item in items)
    if ellipses > 1:
        raise OutOfRange("An index has at most one ellipsis.")
    rest = [slice(None)] * (len(shape) - given)
    expanded: list[Any] = []
    for item in items if ellipses else (*items, Ellipsis):
        expanded.extend(rest if item is Ellipsis else [item])
    return expanded


def _along(item: Any, length: int, axis: int) -> tuple[int, int, slice | int]:
    """(first index, number of indices, what to pick from them) along one axis."""
    if isinstance(item, slice):
        indices = range(length)[bounds_of(item)]
        if not indices:
            return 0, 0, slice(None)
        low, high = min(indices[0], indices[-1]), max(indices[0], indices[-1])
        if indices.step > 0:
            return low, high - low + 1, slice(None, None, indices.step)
        return low, high - low + 1, slice(high - low, None, indices.step)
    number = integer_of(item)
    if not -length <= number < length:
        raise OutOfRange(f"Index {number} is out of range for axis {axis} of length {length}.")
    return number % length, 1, 0


def bounds_of(item: slice) -> slice:
    """The slice with integers for bounds; ``ArgumentError`` where it has others, or a step of 0."""
    bounds = (None if bound is None else integer_of(bound) for bound in (item.start, item.stop, item.step))
    found = slice(*bounds)
    if found.step == 0:
        raise ArgumentError(f"{item!r} has a step of 0.", "Give another step.")
    return found


def integer_of(item: Any) -> int:
    """The integer that an item of a basic index is; ``ArgumentError`` where it is none."""
    try:
        if not isinstance(item, bool):
            return index(item)
    except TypeError:
        pass  # said below, as for bools
    raise ArgumentError(f"{item!r} is no basic index.", "Give integers, slices, ... or None; index the array for more.")
