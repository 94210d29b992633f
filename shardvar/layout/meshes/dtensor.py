"""PyTorch's DTensor: one placement for each axis of the mesh (torch 2.13.0,
``torch.distributed.tensor``).

Its documentation says of ``Shard(dim)`` that it "follows the torch.chunk(dim) semantic, where the
last few shards of the DeviceMesh dimension might be empty when the tensor dimension is not evenly
divisible on the DeviceMesh dimension". Placements on one tensor axis are applied from left to
right, each to what the ones before it left.

This is what ``distribute_tensor`` makes of the placements, and what
``compute_local_shape_and_global_offset`` and distributed checkpoints say. The shards of FSDP2 over
tensor parallelism can differ: see ``layouts.fsdp``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange
from shardvar.layout.dtypes import Ints
from shardvar.layout.meshes.intervals import Intervals
from shardvar.layout.meshes.layout import Layout, check_reduction
from shardvar.layout.meshes.mesh import Mesh, check_mesh
from shardvar.layout.region import read_shape

DTENSOR_RULE = "DTensor placements, from left to right (torch 2.13)"


@dataclass(frozen=True, slots=True)
class Shard:
    """The placement that cuts a dimension of the tensor into as many parts as the mesh axis has
    devices.

    Parameters
    ----------
    dim : int
        The dimension; negative ones count from the end.
    """

    dim: int


@dataclass(frozen=True, slots=True)
class Replicate:
    """The placement that gives each device of the mesh axis a copy."""


@dataclass(frozen=True, slots=True)
class Partial:
    """The placement in which each device of the mesh axis holds a term, and the value is their
    reduction.

    Parameters
    ----------
    op : {"sum", "avg", "min", "max"}, default "sum"
        The reduction.
    """

    op: str = "sum"


@dataclass(frozen=True, slots=True)
class StridedShard:
    """The placement ``_StridedShard``: of each of several ranges of the dimension, a part for each
    device.

    FSDP2 makes it where tensor parallelism cuts the same dimension: the ranges are those cuts.

    Parameters
    ----------
    dim : int
        The dimension; negative ones count from the end.
    split_factor : int
        The number of ranges, at least 1.
    """

    dim: int
    split_factor: int


DTensorPlacement = Shard | Replicate | Partial | StridedShard
"""One of the four placements of a DTensor."""


def dtensor(shape: Sequence[int], mesh: Mesh, placements: Sequence[DTensorPlacement]) -> Layout:
    """The layout of a DTensor with these placements.

    Parameters
    ----------
    shape : sequence of int
        The shape of the tensor.
    mesh : Mesh
        The devices.
    placements : sequence of Shard, Replicate, Partial or StridedShard
        One for each axis of the mesh. Those on one tensor axis are applied from left to right.

    Returns
    -------
    Layout
        What ``distribute_tensor`` gives each device. Terms are pending over the mesh axes that are
        ``Partial``.

    Raises
    ------
    ArgumentError
        Where ``distribute_tensor`` refuses the placements: another number of them than mesh axes, a
        ``split_factor`` below 1, a reduction that is not sum, avg, min or max, different reductions
        other than sum with avg.
    ArgumentTypeError
        If `placements` holds other values, `mesh` is not a ``Mesh``, or `shape` is not a sequence
        of integers.
    OutOfRange
        If a placement names a dimension that the tensor does not have.

    Examples
    --------
    >>> layout = dtensor((5, 3), Mesh((2, 2)), [Shard(0), Shard(0)])
    >>> [str(region) for device in range(4) for region in layout.regions(device)]
    ['[0:2, 0:3]', '[2:3, 0:3]', '[3:4, 0:3]', '[4:5, 0:3]']
    >>> layout = dtensor((8,), Mesh((2, 2)), [StridedShard(0, split_factor=2), Shard(0)])
    >>> [str(region) for device in range(4) for region in layout.regions(device)]
    ['[0:2]', '[4:6]', '[2:4]', '[6:8]']
    """
    check_mesh(mesh)
    extents, given = read_shape(shape), check_placements(placements, mesh)
    pending = [(axis, each.op) for axis, each in enumerate(given) if isinstance(each, Partial)]
    return Layout.from_axes(extents, mesh, DTENSOR_RULE, _axes(extents, mesh, given), pending)


def local_shapes_and_offsets(
    shape: Sequence[int], mesh: Mesh, placements: Sequence[DTensorPlacement]
) -> tuple[Ints, Ints]:
    """Return what ``compute_local_shape_and_global_offset`` of torch says of each device.

    Parameters
    ----------
    shape : sequence of int
        The full shape of the tensor.
    mesh : Mesh
        The devices.
    placements : sequence of DTensorPlacement
        A placement for each axis of the mesh, as in `dtensor`, which raises the same errors.

    Returns
    -------
    shapes : ndarray of int64
        The local shapes, [devices, rank].
    offsets : ndarray of int64
        The global offsets, [devices, rank]. Of an empty shard it is the extent of each dimension
        along which it is empty. Of a strided shard it is the first index, so that both do not
        describe what the device holds.

    Examples
    --------
    >>> shapes, offsets = local_shapes_and_offsets((5, 3), Mesh((4,)), [Shard(0)])
    >>> shapes.tolist(), offsets.tolist()
    ([[2, 3], [2, 3], [1, 3], [0, 3]], [[0, 0], [2, 0], [4, 0], [5, 0]])
    """
    check_mesh(mesh)
    extents = read_shape(shape)
    axes = _axes(extents, mesh, check_placements(placements, mesh))
    size = (len(axes), mesh.size)
    lengths, starts = (
        np.array([each(axis, extent) for axis, extent in zip(axes, extents, strict=True)], np.int64)
        .reshape(size)
        .T
        for each in (lambda axis, _: axis.lengths(), Intervals.first)
    )
    return lengths, starts


def _axes(
    extents: tuple[int, ...], mesh: Mesh, placements: Sequence[DTensorPlacement]
) -> list[Intervals]:
    """The indices along each dimension that each device holds."""
    coordinates = mesh.coordinates()
    axes = [Intervals.whole(extent, mesh.size) for extent in extents]
    for axis, placement in enumerate(placements):
        if not isinstance(placement, Shard | StridedShard):
            continue
        dim = read_dim(placement.dim, extents)
        part, count = coordinates[:, axis], mesh.shape[axis]
        if isinstance(placement, Shard):
            axes[dim] = axes[dim].cut(part, count)
        else:
            axes[dim] = axes[dim].cut_strided(part, count, placement.split_factor)
    return axes


def check_placements(
    placements: Sequence[DTensorPlacement], mesh: Mesh
) -> tuple[DTensorPlacement, ...]:
    """The placements as a tuple; ``ArgumentError`` if DTensor refuses them on this mesh."""
    given: Any = placements
    if not isinstance(given, Sequence) or not all(
        isinstance(each, DTensorPlacement) for each in given
    ):
        raise ArgumentTypeError(
            f"The placements are {placements!r}.",
            "Give a list of Shard, Replicate, Partial and StridedShard.",
        )
    if len(placements) != mesh.rank:
        raise ArgumentError(
            f"The mesh {mesh} and the placements {list(placements)} differ in number: {mesh.rank} "
            f"and {len(placements)}.",
            "Give one for each axis of the mesh, not of the tensor.",
        )
    for placement in placements:
        if isinstance(placement, StridedShard) and _integer(placement.split_factor) < 1:
            raise ArgumentError(
                f"{placement} divides a dimension into less than one range.",
                "Give a factor from 1 on.",
            )
    ops = [each.op for each in placements if isinstance(each, Partial)]
    for op in ops:
        check_reduction(op)
        # distribute_tensor: "Replicate to Partial(product) conversion is not supported."
        if op not in ("sum", "avg", "min", "max"):
            raise ArgumentError(
                f"No tensor can be distributed as terms of {op!r}.", "Use sum, avg, min or max."
            )
    if len(set(ops)) > 1 and set(ops) != {"sum", "avg"}:
        raise ArgumentError(
            f"The placements have the reductions {', '.join(sorted(set(ops)))}.",
            "Use one, or sum together with avg.",
        )
    return tuple(placements)


def read_dim(dim: int, shape: Sequence[int]) -> int:
    """A dimension counted from the front; ``OutOfRange`` if the shape does not have it.

    >>> read_dim(-1, (5, 4))
    1
    """
    rank = len(shape)
    if not -rank <= _integer(dim) < rank:
        remedy = (
            f"Give a number from {-rank} to {rank - 1}."
            if rank
            else "A scalar cannot be sharded; replicate it."
        )
        raise OutOfRange(f"The shape {tuple(shape)} has no dimension {dim}.", remedy)
    return int(dim) % rank


def _integer(value: int) -> int:
    if not hasattr(value, "__index__"):
        raise ArgumentTypeError(
            f"{value!r} is used as a number of a placement.", "Give an integer."
        )
    return value
