"""Meshes, and the indices of a tensor axis that each of their devices holds.

A mesh is devices in a grid, with a number and a coordinate for each. ``Intervals`` are the indices
of one tensor axis that each device holds, as columns. Every layout whose devices hold a grid (an
outer product of indices along each axis) is made here:

1. ``Intervals.whole``: each device holds all indices of the axis.
2. ``cut``, once for each mesh axis that divides this tensor axis, in the order in which the
   framework does it: each device keeps one part of the indices that it held before.
3. ``grid_columns`` multiplies the axes: the regions of each device, in the C order over its
   intervals of each axis.

Only step 2 knows a rule of division. To add one, add a function that gives the bounds of part ``i``
of ``count``.
"""

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, Self, SupportsIndex

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError, OutOfRange
from shardvar.layout.dtypes import Ints, Shape
from shardvar.layout.region import read_integers
from shardvar.limits import MAX_DEVICES, MAX_NBYTES, MAX_RANK
from shardvar.records import entity, frozen

Division = Callable[[Ints, Ints, int], tuple[Ints, Ints]]
"""``division(length, part, count)``: start and stop of a part of a range of this length."""


def chunk_bounds(length: Ints, part: Ints, count: int) -> tuple[Ints, Ints]:
    """Start and stop of the parts of PyTorch's rule, as ``sv.chunk`` has them."""
    size = -(-length // count)  # the quotient rounded up: 13 over 5 is 3
    return np.minimum(part * size, length), np.minimum((part + 1) * size, length)


def div_bounds(length: Ints, part: Ints, count: int) -> tuple[Ints, Ints]:
    """Start and stop of the parts of RFC 000's rule, as ``sv.div`` has them."""
    small, larger = np.divmod(length, count)
    # The first `larger` parts have one index more, so min(part, larger) of the parts before this
    # one do.
    start = part * small + np.minimum(part, larger)
    return start, start + small + (part < larger)


@entity
class Intervals:
    """Lists of ranges of indices of one axis, and the list that each device holds."""

    owner: Ints
    """[n] the list that each range belongs to, ascending."""
    start: Ints  # [n] the first index, in the tensor's coordinates; a list's rows are in order
    stop: Ints  # [n] the index behind the last one, greater than the first
    number: Ints  # [devices] the list that each device holds; one without rows holds nothing
    num_lists: int  # the number of lists

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
        """Keep part ``part[device]`` of ``count`` of the indices that each device holds."""
        # List l becomes the lists l * count to l * count + count - 1.
        source, number = np.divmod(np.arange(self.num_lists * count), count)
        low, high = division(self._lengths()[source], number, count)
        return self._take(np.arange(len(source)), low, high, part, count)

    def cut_strided(self, part: Ints, count: int, factor: int) -> Self:
        """Keep part ``part[device]`` of each of ``factor`` ranges of a device's indices."""
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
        """Make new lists: ``owner`` gets ``[low, high)`` of list ``owner // count``."""
        # Indices have places: the indices of all lists, counted one after the other. If list 0
        # holds 2:4 and 8:9, and list 1 holds 0:5, the places of the three rows are 0:2, 2:3 and
        # 3:8.
        sizes = self.stop - self.start
        place_stop = np.cumsum(sizes)
        place_start = place_stop - sizes

        # The wanted ranges as places: list 1 begins behind the 3 indices of list 0, so its range
        # [1, 4) is the places 4:7. Empty ranges are left out.
        keep = low < high
        lengths = self._lengths()
        list_start = (np.cumsum(lengths) - lengths)[owner[keep] // count]
        owner, low, high = owner[keep], list_start + low[keep], list_start + high[keep]

        # A wanted range meets the rows from that with `low` to that with `high - 1`. The places 1:3
        # meet row 0 (0:2) and row 1 (2:3).
        first_row = np.searchsorted(place_stop, low, side="right")
        num_rows = np.searchsorted(place_start, high, side="left") - first_row
        each, within = repeated(num_rows)
        row = first_row[each] + within

        # The places that a range and a row share, moved back to indices: of 1:3 row 0 has
        # the place 1, which is index 2 + 1 - 0 = 3, and row 1 has the place 2, index 8 + 2 - 2 = 8.
        shift = self.start[row] - place_start[row]
        begin = np.maximum(low[each], place_start[row]) + shift
        end = np.minimum(high[each], place_stop[row]) + shift
        owner = owner[each]
        # A row that begins where the row before it ends, in the same list, is joined with it.
        is_new = np.ones(len(owner), bool)
        is_new[1:] = (owner[1:] != owner[:-1]) | (begin[1:] != end[:-1])
        is_last = np.append(is_new[1:], True)[: len(owner)]
        rows = owner[is_new], begin[is_new], end[is_last]
        return type(self)(*rows, self.number * count + part, self.num_lists * count)


def repeated(counts: Ints) -> tuple[Ints, Ints]:
    """[n] each position repeated by its count, and [n] the number within the repetitions."""
    each = np.repeat(np.arange(len(counts)), counts)
    return each, np.arange(len(each)) - np.repeat(np.cumsum(counts) - counts, counts)


def grid_columns(axes: Sequence[Intervals], num_devices: int) -> tuple[Ints, Ints, Ints]:
    """Device [n], offset and extent [n, rank] of regions: each device's product of intervals."""
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


@frozen
class Mesh:
    """A grid of devices, counted in C order: the last axis varies fastest.

    Parameters
    ----------
    shape : sequence of int
        The number of devices along each axis, at least 1.
    axis_names : sequence of str, optional
        A name for each axis, all different. Without names, axes have only positions, and the
        attribute is None.
    devices : sequence of int, optional
        The number of the device at each coordinate, in C order: each of 0 to ``size - 1`` once. By
        default the devices are in this order. JAX takes devices in any order.

    Raises
    ------
    ArgumentTypeError
        If `shape` or `devices` holds other values than integers, or `axis_names` is not a sequence
        of texts.
    ArgumentError
        If an axis has no devices, the mesh is larger than is supported, or `axis_names` or
        `devices` does not fit `shape`.

    Examples
    --------
    >>> mesh = Mesh((2, 3), ("dp", "tp"))
    >>> mesh.size, mesh.coordinate(4), mesh.axis("tp")
    (6, (1, 1), 1)
    >>> Mesh((2, 2), ("x", "y"), devices=(3, 1, 2, 0)).coordinate(3)
    (0, 0)
    """

    shape: Shape
    axis_names: tuple[str, ...] | None
    devices: Shape

    # By hand, as in ``Region``: any sequences may be given and tuples are kept.
    def __init__(
        self,
        shape: Sequence[SupportsIndex],
        axis_names: Sequence[str] | None = None,
        devices: Sequence[SupportsIndex] | None = None,
    ) -> None:
        extents, names = read_integers(shape, "mesh shape"), None
        if axis_names is not None:
            # The letters of one text would be names.
            given: Any = axis_names
            if (
                isinstance(given, str)
                or not isinstance(given, Iterable)
                or not all(isinstance(each, str) for each in given)
            ):
                raise ArgumentTypeError(
                    f"axis_names is {given!r}.", "Give a sequence with a text for each axis."
                )
            names = tuple(given)
        size = prod(extents)
        if any(extent < 1 for extent in extents):
            raise ArgumentError(
                f"The mesh shape {extents} has an axis without devices.", "Give extents from 1 on."
            )
        if size > MAX_DEVICES or len(extents) > MAX_RANK:
            raise ArgumentError(
                f"A mesh of shape {extents} has {size} devices on {len(extents)} axes.",
                f"At most {MAX_DEVICES} devices on {MAX_RANK} axes are supported.",
            )
        if names is not None and (len(names) != len(extents) or len(set(names)) != len(names)):
            raise ArgumentError(
                f"axis_names is {names} for the mesh shape {extents}.",
                "Give a different name for each axis.",
            )
        numbers = range(size) if devices is None else read_integers(devices, "order of devices")
        if devices is not None and sorted(numbers) != list(range(size)):
            raise ArgumentError(
                f"devices is {numbers} for a mesh of {size} devices.",
                f"Give each number from 0 to {size - 1} once, in C order over the mesh.",
            )
        for field, value in (
            ("shape", extents),
            ("axis_names", names),
            ("devices", tuple(numbers)),
        ):
            object.__setattr__(self, field, value)

    @property
    def size(self) -> int:
        """The number of devices."""
        return prod(self.shape)

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def coordinates(self) -> Ints:
        """The coordinate of each device.

        Returns
        -------
        ndarray of int64
            [size, rank], row ``i`` for device ``i``.

        Examples
        --------
        >>> Mesh((2, 2)).coordinates().tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1]]
        """
        in_c_order = np.indices(self.shape, dtype=np.int64).reshape(self.rank, self.size).T
        by_device = np.empty_like(in_c_order)
        by_device[np.array(self.devices, np.int64)] = in_c_order
        return by_device

    def coordinate(self, device: int) -> Shape:
        """The position of one device along each axis. See ``check_device`` for the parameters."""
        self.check_device(device)
        place = self.devices.index(device)
        return tuple(int(i) for i in np.unravel_index(place, self.shape))

    def axis(self, name: str | int) -> int:
        """The position of an axis that is given by its name or its position.

        Parameters
        ----------
        name : str or int
            The name, or the position; negative positions count from the end.

        Raises
        ------
        ArgumentError
            If the mesh does not have the name.
        OutOfRange
            If the mesh does not have the position.
        """
        if isinstance(name, str) or not hasattr(name, "__index__"):
            if self.axis_names is None:
                raise ArgumentError(
                    f"The mesh {self} has no axis {name!r}.",
                    "Name its axes: sv.Mesh(shape, names).",
                )
            if name not in self.axis_names:
                raise ArgumentError(
                    f"The mesh {self} has no axis {name!r}.", "Name one of its axes."
                )
            return self.axis_names.index(name)
        if not -self.rank <= name < self.rank:
            raise OutOfRange(f"The mesh {self} has no axis {name}.", f"It has {self.rank} axes.")
        return int(name) % self.rank

    def check_device(self, device: int) -> None:
        """Raise an error unless the mesh has a device of this number.

        Parameters
        ----------
        device : int
            The number of the device, from 0.

        Raises
        ------
        OutOfRange
            If the mesh does not have the device.
        ArgumentTypeError
            If `device` is not an integer.
        """
        if not hasattr(device, "__index__"):
            raise ArgumentTypeError(
                f"The device is {device!r}.", "Give its number, counted from 0."
            )
        if not 0 <= device < self.size:
            raise OutOfRange(
                f"The mesh {self} has no device {device}.",
                f"Give a number from 0 to {self.size - 1}.",
            )

    def __str__(self) -> str:
        names = self.axis_names or map(str, range(self.rank))
        return f"({', '.join(f'{name}={extent}' for name, extent in zip(names, self.shape, strict=True))})"


def check_mesh(mesh: Mesh) -> None:
    if not isinstance(mesh, Mesh):
        raise ArgumentTypeError(f"The mesh is {mesh!r}.", "Give sv.Mesh(shape, axis_names).")
