"""Intervals: the indices of one tensor axis that each device of a mesh holds, as columns.

Every layout whose devices hold a grid (an outer product of indices along each axis) is made here:

1. ``Intervals.whole``: each device holds all indices of the axis.
2. ``cut``, once for each mesh axis that divides this tensor axis, in the order in which the
   framework does it: each device keeps one part of the indices that it held before.
3. ``grid_columns`` multiplies the axes: the regions of each device, in the C order over its
   intervals of each axis.

Only step 2 knows a rule of division. To add one, add a function that gives the bounds of part ``i``
of ``count``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from shardvar.errors import LayoutError
from shardvar.layout.dtypes import Ints
from shardvar.limits import MAX_NBYTES

Division = Callable[[Ints, Ints, int], tuple[Ints, Ints]]
"""``division(length, part, count)``: start and stop of a part of a range of this length."""


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
    # The first `larger` parts have one index more, so min(part, larger) of the parts before this
    # one do.
    start = part * small + np.minimum(part, larger)
    return start, start + small + (part < larger)


@dataclass(frozen=True, slots=True, eq=False)
class Intervals:
    """Lists of ranges of indices of one axis, and the list that each device holds.

    Devices that differ only on other mesh axes share a list, so the work does not grow with their
    number.
    """

    owner: Ints
    """[n] the list that each range belongs to, ascending."""
    start: Ints
    """[n] the first index, in the tensor's coordinates; a list's rows are in order."""
    stop: Ints
    """[n] the index behind the last one, greater than the first."""
    number: Ints
    """[devices] the list that each device holds; one without rows holds nothing."""
    num_lists: int
    """The number of lists."""

    @classmethod
    def whole(cls, extent: int, num_devices: int) -> Self:
        """All indices of an axis on each device; ``LayoutError`` for an impossible extent."""
        if extent > MAX_NBYTES:
            raise LayoutError(
                f"An axis has {extent} indices.", f"At most {MAX_NBYTES} are supported."
            )
        rows = 1 if extent else 0
        zeros = np.zeros(rows, np.int64)
        return cls(
            zeros, zeros, np.full(rows, extent, np.int64), np.zeros(num_devices, np.int64), 1
        )

    def lengths(self) -> Ints:
        """[devices] how many indices each device holds."""
        return self._lengths()[self.number]

    def first(self, empty: int) -> Ints:
        """[devices] the first index that each device holds, in its order, or ``empty``."""
        first = np.full(self.num_lists, empty, np.int64)
        # From the last row to the first, so that the first row of each list is what stays.
        first[self.owner[::-1]] = self.start[::-1]
        return first[self.number]

    def cut(self, part: Ints, count: int, division: Division = chunk_bounds) -> Self:
        """Keep part ``part[device]`` of ``count`` of the indices that each device holds.

        >>> kept = Intervals.whole(13, 5).cut(np.arange(5), 5)
        >>> list(zip(kept.start.tolist(), kept.stop.tolist()))
        [(0, 3), (3, 6), (6, 9), (9, 12), (12, 13)]
        """
        # List l becomes the lists l * count to l * count + count - 1.
        source, number = np.divmod(np.arange(self.num_lists * count), count)
        low, high = division(self._lengths()[source], number, count)
        return self._take(np.arange(len(source)), low, high, part, count)

    def cut_strided(self, part: Ints, count: int, factor: int) -> Self:
        """Divide the indices of each device into ``factor`` ranges, and keep part ``part[device]``
        of each.

        >>> kept = Intervals.whole(12, 2).cut_strided(np.array([0, 1]), 2, factor=3)
        >>> list(zip(kept.owner.tolist(), kept.start.tolist(), kept.stop.tolist()))
        [(0, 0, 2), (0, 4, 6), (0, 8, 10), (1, 2, 4), (1, 6, 8), (1, 10, 12)]
        """
        source, number = np.divmod(np.arange(self.num_lists * count), count)
        lengths = self._lengths()[source]
        # More ranges than indices have one index each.
        step = np.maximum(-(-lengths // min(factor, MAX_NBYTES)), 1)
        # Ranges past the end are left out, and so are lists whose part of each range is empty: a
        # range of `step` indices has no part from number `step` on. So the work is bounded by the
        # indices, for any factor.
        ranges = np.where(number < step, -(-lengths // step), 0)
        owner, within = repeated(ranges)
        base = step[owner] * within
        low, high = chunk_bounds(
            np.minimum(step[owner], lengths[owner] - base), number[owner], count
        )
        return self._take(owner, base + low, base + high, part, count)

    def _lengths(self) -> Ints:
        """[lists] the number of indices of each list."""
        lengths = np.zeros(self.num_lists, np.int64)
        np.add.at(lengths, self.owner, self.stop - self.start)
        return lengths

    def _take(self, owner: Ints, low: Ints, high: Ints, part: Ints, count: int) -> Self:
        """Make new lists: ``owner`` gets ``[low, high)`` of list ``owner // count``.

        Indices have places: the indices of all lists, counted one after the other. If list 0 holds
        2:4 and 8:9, and list 1 holds 0:5, the places of the three rows are 0:2, 2:3 and 3:8.
        """
        sizes = self.stop - self.start
        place_stop = np.cumsum(sizes)
        place_start = place_stop - sizes

        # The wanted ranges as places: list 1 begins behind the 3 indices of list 0, so its range
        # [1, 4) is the places 4:7. Empty ranges are left out.
        keep = low < high
        lengths = self._lengths()
        list_start = (np.cumsum(lengths) - lengths)[owner[keep] // count]
        owner, low, high = owner[keep], list_start + low[keep], list_start + high[keep]

        # A wanted range meets the rows from the one that holds `low` to the one that holds
        # `high - 1`. The places 1:3 meet row 0 (0:2) and row 1 (2:3).
        first_row = np.searchsorted(place_stop, low, side="right")
        num_rows = np.searchsorted(place_start, high, side="left") - first_row
        each, within = repeated(num_rows)
        row = first_row[each] + within

        # What a range and a row have in common, as places, moved back to indices: of 1:3 row 0 has
        # the place 1, which is index 2 + 1 - 0 = 3, and row 1 has the place 2, index 8 + 2 - 2 = 8.
        shift = self.start[row] - place_start[row]
        begin = np.maximum(low[each], place_start[row]) + shift
        end = np.minimum(high[each], place_stop[row]) + shift
        return type(self)(
            *_joined(owner[each], begin, end), self.number * count + part, self.num_lists * count
        )


def repeated(counts: Ints) -> tuple[Ints, Ints]:
    """[n] each position repeated by its count, and [n] the number within the repetitions.

    >>> [column.tolist() for column in repeated(np.array([2, 0, 3]))]
    [[0, 0, 2, 2, 2], [0, 1, 0, 1, 2]]
    """
    each = np.repeat(np.arange(len(counts)), counts)
    return each, np.arange(len(each)) - np.repeat(np.cumsum(counts) - counts, counts)


def _joined(owner: Ints, start: Ints, stop: Ints) -> tuple[Ints, Ints, Ints]:
    """Join each row with the one before if that is in the same list and ends there."""
    if not len(owner):
        return owner, start, stop
    is_new = np.ones(len(owner), bool)
    is_new[1:] = (owner[1:] != owner[:-1]) | (start[1:] != stop[:-1])
    return (
        owner[is_new],
        start[is_new],
        stop[np.append(np.flatnonzero(is_new)[1:] - 1, len(owner) - 1)],
    )


def grid_columns(axes: Sequence[Intervals], num_devices: int) -> tuple[Ints, Ints, Ints]:
    """Device [n], offset and extent [n, rank] of the regions of each device: the product of its
    intervals.

    >>> rows = Intervals.whole(4, 2).cut(np.array([0, 1]), 2)
    >>> [column.tolist() for column in grid_columns([rows, Intervals.whole(3, 2)], 2)]
    [[0, 1], [[0, 0], [2, 0]], [[2, 3], [2, 3]]]
    """
    rows = [np.bincount(axis.owner, minlength=axis.num_lists) for axis in axes]
    counts = [row[axis.number] for row, axis in zip(rows, axes, strict=True)]
    first = [(np.cumsum(row) - row)[axis.number] for row, axis in zip(rows, axes, strict=True)]
    total = np.prod(counts, axis=0, dtype=np.int64) if axes else np.ones(num_devices, np.int64)
    # The number of a region within its device has the numbers of its intervals as digits, the last
    # axis first. Of 2 intervals along axis 0 and 3 along axis 1, region 4 has the intervals 1, 1.
    device, number = repeated(total)
    offset, extent = np.empty((2, len(device), len(axes)), np.int64)
    for axis in reversed(range(len(axes))):
        number, digit = np.divmod(number, counts[axis][device])
        row = first[axis][device] + digit
        offset[:, axis] = axes[axis].start[row]
        extent[:, axis] = axes[axis].stop[row] - axes[axis].start[row]
    return device, offset, extent
