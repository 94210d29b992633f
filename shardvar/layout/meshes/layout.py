"""Layouts: the regions of one tensor that each device of a mesh holds.

A layout is geometry and holds no values. Its columns have a row for each region, so that a million
regions are ordinary work; ``regions`` gives the regions of one device, for people. The constructors
of this package make layouts by the rules of the frameworks; nothing that uses a layout needs to
know which.

Meshes, and the indices of a tensor axis that each of their devices holds.

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
from shardvar.layout.dtypes import Bools, Ints, Shape
from shardvar.layout.partition import check_tiles
from shardvar.layout.region import Region, read_integers, read_shape
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


REDUCTIONS = ("sum", "avg", "min", "max", "product", "band", "bor", "bxor")
"""The reductions that turn terms into values, in the words of ``torch.distributed``."""


_MOST_NAMED = 16  # Groups of devices in the text of a layout, and devices and regions of each


@entity
class Layout:
    """The regions of a tensor that each device of a mesh holds.

    Constructors such as ``layouts.dtensor`` make layouts by the rules of the frameworks. Two
    layouts are equal if they have the same shape, each device holds the same regions in the same
    order, and the same terms are pending. The mesh's shape, its names and the rule do not matter. A
    device without regions holds an empty shard.

    Raises
    ------
    LayoutError
        If the columns are not regions of the tensor on devices of the mesh.
    ArgumentError
        If ``pending`` names a mesh axis twice, or an axis or a reduction that does not exist.

    Examples
    --------
    >>> from shardvar.layouts import Replicate, Shard, dtensor
    >>> dtensor((8, 4), Mesh((2, 2)), [Shard(0), Shard(0)]) == dtensor((8, 4), Mesh((4,)), [Shard(0)])
    True

    A device without regions holds an empty shard.

    >>> layout = dtensor((5, 4), Mesh((4,)), [Shard(0)])
    >>> [str(region) for region in layout.regions(2)], layout.regions(3)
    (['[4:5, 0:4]'], ())
    """

    shape: Shape
    """The full shape of the tensor."""
    mesh: Mesh
    """The devices."""
    rule: str
    """The definition that the layout follows, as text: a framework, its version and its rule."""
    device: Ints
    """[n] the device that holds each region, ascending."""
    offset: Ints
    """[n, rank] the offset of each region in the tensor's coordinates; of one device, in the order
    in which it keeps them."""
    extent: Ints
    """[n, rank] the shape of each region, which has elements. Neighbours along an axis are one
    region, except where the framework keeps a tensor for each, as Megatron does for layers."""
    pending: tuple[tuple[int, str], ...] = ()
    """(mesh axis, reduction) of each mesh axis whose devices hold terms of the value."""

    def __post_init__(self) -> None:
        check_mesh(self.mesh)
        object.__setattr__(self, "shape", read_shape(self.shape))
        object.__setattr__(self, "pending", tuple((int(axis), op) for axis, op in self.pending))
        for name in ("device", "offset", "extent"):
            column = np.array(getattr(self, name), np.int64)
            column.flags.writeable = False
            object.__setattr__(self, name, column)
        self._check_columns()
        axes = [axis for axis, _ in self.pending]
        if len(set(axes)) != len(axes) or not set(axes) <= set(range(self.mesh.rank)):
            raise ArgumentError(
                f"pending is {self.pending} on the mesh {self.mesh}.",
                "Name axes of the mesh, once.",
            )
        for _, op in self.pending:
            check_reduction(op)

    def _check_columns(self) -> None:
        """Raise ``LayoutError`` unless the columns are regions on devices of the mesh."""
        rows, rank = len(self.device), len(self.shape)
        if self.device.ndim != 1 or {self.offset.shape, self.extent.shape} != {(rows, rank)}:
            raise LayoutError(
                f"The columns have the shapes {self.device.shape}, {self.offset.shape} and "
                f"{self.extent.shape}.",
                f"Give [n], [n, {rank}] and [n, {rank}].",
            )
        if rows and (
            self.device[0] < 0
            or self.device[-1] >= self.mesh.size
            or (np.diff(self.device) < 0).any()
        ):
            raise LayoutError(
                f"The column of devices is not ascending from 0 to {self.mesh.size - 1} at most.",
                "Sort the regions.",
            )
        outside = (
            (self.offset < 0)
            | (self.extent < 1)
            | (self.offset + self.extent > np.array(self.shape, np.int64))
        )
        if outside.any():
            row = int(np.argmax(outside.any(axis=1)))
            raise LayoutError(
                f"Device {self.device[row]} holds offset {self.offset[row].tolist()}, shape "
                f"{self.extent[row].tolist()}, which is empty or reaches out of {self.shape}.",
                "Leave out empty regions.",
            )

    @classmethod
    def from_axes(
        cls,
        shape: Sequence[int],
        mesh: Mesh,
        rule: str,
        axes: Sequence[Intervals],
        pending: Sequence[tuple[int, str]] = (),
    ) -> Self:
        """The layout in which each device holds the product of its intervals along each axis of the
        tensor.

        Parameters
        ----------
        shape : sequence of int
            The full shape of the tensor.
        mesh : Mesh
            The devices.
        rule : str
            The definition that the layout follows, as text.
        axes : sequence of Intervals
            For each axis of the tensor the ranges of indices that each device holds.
        pending : sequence of tuple, default ()
            (mesh axis, reduction) of each mesh axis whose devices hold terms.

        Returns
        -------
        Layout
            The regions of each device, in the C order over its intervals of each axis.

        Raises
        ------
        LayoutError
            If an interval reaches out of `shape`.
        ArgumentError
            If `pending` names a mesh axis twice, or an axis or a reduction that does not exist.
        """
        return cls(tuple(shape), mesh, rule, *grid_columns(axes, mesh.size), tuple(pending))

    def regions(self, device: int) -> tuple[Region, ...]:
        """The regions that a device holds, in its order; empty for an empty shard.

        See ``Mesh.check_device`` for the parameters.
        """
        self.mesh.check_device(device)
        first, last = np.searchsorted(self.device, [device, device + 1])
        rows = zip(self.offset[first:last].tolist(), self.extent[first:last].tolist(), strict=True)
        return tuple(Region(offset, extent) for offset, extent in rows)

    @property
    def replicas(self) -> tuple[Shape, ...]:
        """Groups of devices that hold the same regions in the same order; devices that hold nothing
        are one group.

        Groups, and the devices in each, are in the C order of the mesh. Where something is pending,
        the devices of a group may hold different terms: ``terms`` tells those apart.
        """
        bounds = np.searchsorted(self.device, np.arange(self.mesh.size + 1))
        columns = np.concatenate([self.offset, self.extent], axis=1)
        groups: dict[tuple[int, bytes], list[int]] = {}
        for device in self.mesh.devices:
            held = columns[bounds[device] : bounds[device + 1]]
            # The number of regions counts too: a region of a scalar has no coordinates.
            groups.setdefault((len(held), held.tobytes()), []).append(device)
        return tuple(map(tuple, groups.values()))

    @property
    def terms(self) -> dict[str, Ints]:
        """For each pending reduction, [devices] the number of the term that each device holds.

        Devices that hold the same regions and the same numbers are copies of each other. Mesh axes
        of one device need no reduction and are left out.

        Examples
        --------
        >>> from shardvar.layouts import Partial, Replicate, dtensor
        >>> dtensor((4,), Mesh((2, 2)), [Replicate(), Partial("sum")]).terms
        {'sum': array([0, 1, 0, 1])}
        """
        terms: dict[str, Ints] = {}
        coordinates = self.mesh.coordinates()
        for axis, op in sorted(self.pending):
            count = self.mesh.shape[axis]
            if count > 1:
                terms[op] = (
                    terms.get(op, np.zeros(self.mesh.size, np.int64)) * count + coordinates[:, axis]
                )
        return terms

    def holders(self, index: Sequence[int]) -> Shape:
        """The devices that hold the element at an index of the tensor.

        Parameters
        ----------
        index : sequence of int
            An index for each axis.

        Returns
        -------
        tuple of int
            The numbers of the devices, ascending.

        Raises
        ------
        ArgumentError
            If `index` has another rank, or lies outside of the shape.
        """
        place = np.array(read_shape(index), np.int64)
        if len(place) != len(self.shape) or (place >= np.array(self.shape, np.int64)).any():
            raise ArgumentError(
                f"The shape {self.shape} has no element {tuple(index)}.", "Give an index an axis."
            )
        held = ((self.offset <= place) & (place < self.offset + self.extent)).all(axis=1)
        return tuple(np.unique(self.device[held]).tolist())

    def distinct_parts(self) -> tuple[Ints, Ints, Ints]:
        """Each region once, as checkpoints store it, in the order of devices.

        Returns
        -------
        device : ndarray of int64
            [n] the first device that holds each region.
        offset : ndarray of int64
            [n, rank] the offset of each region.
        shape : ndarray of int64
            [n, rank] the shape of each region.

        Raises
        ------
        LayoutError
            If the regions do not tile the tensor, or something is pending: a term is not a value.

        Examples
        --------
        >>> from shardvar.layouts import Replicate, Shard, dtensor
        >>> device, offset, shape = dtensor((4,), Mesh((2, 2)), [Replicate(), Shard(0)]).distinct_parts()
        >>> device.tolist(), offset.tolist(), shape.tolist()
        ([0, 1], [[0], [2]], [[2], [2]])
        """
        if any(self.mesh.shape[axis] > 1 for axis, _ in self.pending):
            raise LayoutError(
                f"{self!r} holds terms, which are not values.",
                "Reduce them first: sv.redistribute.",
            )
        order, is_first = sorted_regions(self.offset, self.extent, self.device)
        rows = np.sort(order[is_first])
        device, offset, extent = self.device[rows], self.offset[rows], self.extent[rows]
        if not prod(self.shape):  # no device holds a region; the tensor exists all the same
            return (
                np.zeros(1, np.int64),
                np.zeros((1, len(self.shape)), np.int64),
                np.array([self.shape], np.int64),
            )
        check_tiles(self.shape, list(map(Region, offset.tolist(), extent.tolist())))
        return device, offset, extent

    def _identity(self) -> tuple[Any, ...]:
        """The part of the layout that equality compares."""
        columns = (self.device, self.offset, self.extent)
        terms = tuple((op, numbers.tobytes()) for op, numbers in sorted(self.terms.items()))
        return self.shape, self.mesh.size, *(column.tobytes() for column in columns), terms

    def __eq__(self, other: object) -> bool:
        return (
            self._identity() == other._identity() if isinstance(other, Layout) else NotImplemented
        )

    def __hash__(self) -> int:
        return hash(self._identity())

    def __str__(self) -> str:
        """The devices that hold the same, and their regions, a line a group; at most 16 each."""
        groups = self.replicas
        names = [_some(group, ", ") for group in groups[:_MOST_NAMED]]
        width = max(map(len, names))
        lines = [
            f"{self.shape} on the mesh {self.mesh}: {self.rule}",
            *map(self._pending_text, self.pending),
        ]
        for group, name in zip(groups, names, strict=False):
            lines.append(f"  {name:{width}}  {_some(self.regions(group[0]), ' ') or 'nothing'}")
        if len(groups) > _MOST_NAMED:
            lines.append(f"  and {len(groups) - _MOST_NAMED} more groups of devices")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The mesh and the tensor as drawings, in colours of devices, for notebooks."""
        from shardvar.pictures.drawings import layout_html

        groups = [
            (group, [(region.offset, region.shape) for region in self.regions(group[0])])
            for group in self.replicas
        ]
        about = (self.rule, *map(self._pending_text, self.pending))
        return layout_html(
            self.shape, (self.mesh.shape, str(self.mesh), self.mesh.devices), groups, about
        )

    def _pending_text(self, pending: tuple[int, str]) -> str:
        axis, op = pending
        name = self.mesh.axis_names[axis] if self.mesh.axis_names else axis
        return f"{op} pending over the mesh axis {name}: devices along it hold terms"

    def __repr__(self) -> str:
        waiting = "".join(f", {op} pending over axis {axis}" for axis, op in self.pending)
        return f"<Layout of {self.shape} on the mesh {self.mesh}{waiting}: {self.rule}>"


def sorted_regions(offset: Ints, extent: Ints, device: Ints) -> tuple[Ints, Bools]:
    """[n] the rows sorted by region, then by device; and True for the first row of each region."""
    columns = np.column_stack([offset, extent])
    order = np.lexsort((device, *columns.T[::-1]))
    is_first = np.ones(len(order), np.bool)
    is_first[1:] = (columns[order][1:] != columns[order][:-1]).any(axis=1)
    return order, is_first


def _some(values: Sequence[object], separator: str) -> str:
    """The first values as a text, and the number of the others."""
    more = f" and {len(values) - _MOST_NAMED} more" if len(values) > _MOST_NAMED else ""
    return separator.join(map(str, values[:_MOST_NAMED])) + more


def check_reduction(op: str) -> None:
    """Raise ``ArgumentError`` unless the text names a reduction."""
    if op not in REDUCTIONS:
        raise ArgumentError(
            f"There is no reduction {op!r}.", f"Name one of {', '.join(REDUCTIONS)}."
        )
