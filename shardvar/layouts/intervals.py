"""Intervals: the indices of one tensor axis that each device holds, as columns over all devices of a mesh.

Every layout whose devices hold a grid (an outer product of indices along each axis) is made here:

1. ``Intervals.whole``: each device holds all indices of the axis.
2. ``cut``, once for each mesh axis that divides this tensor axis, in the order in which the framework does it: each
   device keeps one part of the indices that it held before.
3. ``grid_columns`` multiplies the axes: the regions of each device, in the C order over its intervals of each axis.

Only step 2 knows a rule of division. To add one, add a function that gives the bounds of part ``i`` of ``count``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from shardvar.errors import LayoutError
from shardvar.layout.dtypes import Ints

Division = Callable[[Ints, Ints, int], tuple[Ints, Ints]]
"""``division(length, part, count)``: start and stop of a part of a range of this length, element by element."""


def chunk_bounds(length: Ints, part: Ints, count: int) -> tuple[Ints, Ints]:
    """Start and stop of the parts of PyTorch's rule, as ``sv.chunk`` has them.

    >>> [bound.tolist() for bound in chunk_bounds(np.array([13, 13, 6]), np.array([1, 4, 3]), 5)]
    [[3, 12, 6], [6, 13, 6]]
    """
    size = -(-length // count)  # the quotient rounded up: 13 over 5 is 3
    return np.minimum(part * size, length), np.minimum((part + 1) * size, length)


def div_bounds(length: Ints, part: Ints, count: int) -> tuple[Ints, Ints]:
    """Start and stop of the parts of RFC 000's rule, as ``sv.div`` has them.

    >>> [bound.tolist() for bound in div_bounds(np.array([13, 13]), np.array([2, 3]), 5)]
    [[6, 9], [9, 11]]
    """
    small, larger = np.divmod(length, count)
    # The first `larger` parts have one index more, so min(part, larger) of the parts before this one do.
    start = part * small + np.minimum(part, larger)
    return start, start + small + (part < larger)


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Disjoint ranges of indices of one axis, with the device that holds each."""

    device: Ints
    """[n] the device, ascending."""
    start: Ints
    """[n] the first index, in the tensor's coordinates; rows of one device are in the order in which it keeps them."""
    stop: Ints
    """[n] the index behind the last one, greater than the first."""
    num_devices: int
    """The number of devices; one without rows holds nothing."""

    @classmethod
    def whole(cls, extent: int, num_devices: int) -> Self:
        """All indices of an axis on each device; ``LayoutError`` if the devices hold 2**63 of them or more."""
        if extent * num_devices >= 2**63:
            raise LayoutError(f"{num_devices} devices hold {extent} indices each, which is 2**63 or more.")
        device = np.arange(num_devices if extent else 0, dtype=np.int64)
        return cls(device, np.zeros_like(device), np.full_like(device, extent), num_devices)

    def lengths(self) -> Ints:
        """[num_devices] how many indices each device holds."""
        lengths = np.zeros(self.num_devices, np.int64)
        np.add.at(lengths, self.device, self.stop - self.start)
        return lengths

    def cut(self, part: Ints, count: int, division: Division = chunk_bounds) -> Self:
        """Keep part ``part[device]`` of ``count`` of the indices that each device holds.

        >>> kept = Intervals.whole(13, 5).cut(np.arange(5), 5)
        >>> list(zip(kept.start.tolist(), kept.stop.tolist()))
        [(0, 3), (3, 6), (6, 9), (9, 12), (12, 13)]
        """
        low, high = division(self.lengths(), part, count)
        return self._take(np.arange(self.num_devices), low, high)

    def cut_strided(self, part: Ints, count: int, factor: int) -> Self:
        """Divide the indices of each device into ``factor`` ranges, and keep part ``part[device]`` of each.

        >>> kept = Intervals.whole(12, 2).cut_strided(np.array([0, 1]), 2, factor=3)
        >>> list(zip(kept.device.tolist(), kept.start.tolist(), kept.stop.tolist()))
        [(0, 0, 2), (0, 4, 6), (0, 8, 10), (1, 2, 4), (1, 6, 8), (1, 10, 12)]
        """
        lengths = self.lengths()
        step = np.maximum(-(-lengths // factor), 1)
        # Ranges past the end are left out, and so are devices whose part of each range is empty: a range of `step`
        # indices has no part from number `step` on. So the work is bounded by the indices, whatever the factor is.
        ranges = np.where(part < step, -(-lengths // step), 0)
        device = np.repeat(np.arange(self.num_devices), ranges)
        base = step[device] * (np.arange(len(device)) - np.repeat(np.cumsum(ranges) - ranges, ranges))
        low, high = chunk_bounds(np.minimum(step[device], lengths[device] - base), part[device], count)
        return self._take(device, base + low, base + high)

    def _take(self, device: Ints, low: Ints, high: Ints) -> Self:
        """Keep ``[low, high)`` of the indices that ``device`` holds, counted in the order in which it keeps them."""
        # The indices of all devices are counted one after the other. Example: device 0 holds 2:4 and 8:9, device 1
        # holds 0:5; their places are 0:2, 2:3 and 3:8.
        stops = np.cumsum(self.stop - self.start)
        starts = stops - (self.stop - self.start)
        lengths = self.lengths()
        first = (np.cumsum(lengths) - lengths)[device]
        keep = low < high
        device, low, high = device[keep], (first + low)[keep], (first + high)[keep]
        # Each range [low, high) meets the rows from the one that holds `low` to the one that holds `high - 1`.
        row = np.searchsorted(stops, low, side="right")
        count = np.searchsorted(starts, high, side="left") - row
        each = np.repeat(np.arange(len(device)), count)
        row = row[each] + np.arange(len(each)) - np.repeat(np.cumsum(count) - count, count)
        shift = self.start[row] - starts[row]
        begin = np.maximum(low[each], starts[row]) + shift
        end = np.minimum(high[each], stops[row]) + shift
        return type(self)(*_joined(device[each], begin, end), self.num_devices)


def _joined(device: Ints, start: Ints, stop: Ints) -> tuple[Ints, Ints, Ints]:
    """Join each row with the one before it where that is the same device's and ends where this one begins."""
    if not len(device):
        return device, start, stop
    is_new = np.ones(len(device), bool)
    is_new[1:] = (device[1:] != device[:-1]) | (start[1:] != stop[:-1])
    return device[is_new], start[is_new], stop[np.append(np.flatnonzero(is_new)[1:] - 1, len(device) - 1)]


def grid_columns(axes: Sequence[Intervals], num_devices: int) -> tuple[Ints, Ints, Ints]:
    """Device [n], offset and extent [n, rank] of the regions of each device: the product of its intervals.

    >>> rows = Intervals.whole(4, 2).cut(np.array([0, 1]), 2)
    >>> [column.tolist() for column in grid_columns([rows, Intervals.whole(3, 2)], 2)]
    [[0, 1], [[0, 0], [2, 0]], [[2, 3], [2, 3]]]
    """
    counts = [np.bincount(axis.device, minlength=num_devices) for axis in axes]
    total = np.prod(counts, axis=0, dtype=np.int64) if axes else np.ones(num_devices, np.int64)
    device = np.repeat(np.arange(num_devices), total)
    offset, extent = np.empty((2, len(device), len(axes)), np.int64)
    # The number of a region within its device, whose digits are the numbers of its intervals, the last axis first.
    number = np.arange(len(device)) - np.repeat(np.cumsum(total) - total, total)
    for axis in reversed(range(len(axes))):
        number, digit = np.divmod(number, counts[axis][device])
        row = (np.cumsum(counts[axis]) - counts[axis])[device] + digit
        offset[:, axis] = axes[axis].start[row]
        extent[:, axis] = axes[axis].stop[row] - axes[axis].start[row]
    return device, offset, extent
