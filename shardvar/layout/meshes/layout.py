"""Layouts: the regions of one tensor that each device of a mesh holds.

A layout is geometry and holds no values. Its columns have a row for each region, so that a million
regions are ordinary work; ``regions`` gives the regions of one device, for people. The constructors
of this package make layouts by the rules of the frameworks; nothing that uses a layout needs to
know which.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, Self

import numpy as np

from shardvar.errors import ArgumentError, LayoutError
from shardvar.layout.dtypes import Bools, Ints, Shape
from shardvar.layout.meshes.mesh import Intervals, Mesh, check_mesh, grid_columns
from shardvar.layout.partition import check_tiles
from shardvar.layout.region import Region, read_shape
from shardvar.records import entity

REDUCTIONS = ("sum", "avg", "min", "max", "product", "band", "bor", "bxor")
"""The reductions that turn terms into values, in the words of ``torch.distributed``."""


_MOST_NAMED = 16  # Groups of devices in the text of a layout, and devices and regions of each


@entity(repr=False)
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
