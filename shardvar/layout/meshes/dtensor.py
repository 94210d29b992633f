"""The layouts of PyTorch: DTensor and FSDP (torch 2.13.0), and DeepSpeed's ZeRO (deepspeed 0.19.8).

DTensor (``torch.distributed.tensor``) has one placement for each axis of the mesh.

By its documentation ``Shard(dim)`` "follows the torch.chunk(dim) semantic, where the
last few shards of the DeviceMesh dimension might be empty when the tensor dimension is not evenly
divisible on the DeviceMesh dimension". Placements on one tensor axis are applied from left to
right, each to the rest that the placements before it left.

``distribute_tensor``, ``compute_local_shape_and_global_offset`` and distributed checkpoints read
placements so. The shards of FSDP2 over tensor parallelism can differ: see ``fsdp``.

Flat parameters are tensors one after the other in a buffer; each device holds a range of it. A
device then holds a range of the elements of a tensor in C order, which is at most 2 * rank - 1
regions. Padding, in front of a tensor or at the end, is in no region.

**FSDP2** (``fully_shard``) shards each parameter along one dimension by ``torch.chunk``. If tensor
parallelism also cuts the parameter, it comes first, and FSDP cuts the rest. If both cut the
same dimension, the parameter's placements are ``(_StridedShard(dim, split_factor=tp),
Shard(dim))``, and torch has two definitions that differ for some uneven sizes:

    fsdp(shape, mesh, ...)                                   the shards, ``full_tensor`` and
                                                             ``redistribute``
    dtensor(shape, mesh, fsdp_placements(shape, mesh, ...))  the placements, ``distribute_tensor``,
                                                             and the offsets in distributed
                                                             checkpoints

The smallest case is 7 rows on a mesh of (dp 3, tp 2). They agree wherever tp divides the extent.

**FSDP1** (``FullyShardedDataParallel``) flattens the parameters of a module into one, cuts that,
and so holds ranges of elements: ``fsdp_flat``.

Roles of mesh axes: one called ``tp`` or ``ep`` is for tensor or expert parallelism. The other axis
shards. If there are two, "parameters are sharded across the 2nd dim and replicated across the 1st
dim (HSDP)", by the documentation of ``fully_shard``.

**ZeRO** (``deepspeed.runtime.zero``): the elements of each parameter that a rank holds.

    stages 1 and 2   the parameters of a group in one buffer, padded at the end, in equal partitions
    stage 3 each parameter in its own buffer, padded at the end, in equal partitions

Its code divides partitions of stages 1 and 2 like ``sv.div``; after the padding all are equal.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError, OutOfRange
from shardvar.layout.dtypes import Ints, Shape
from shardvar.layout.meshes.layout import Intervals, Layout, Mesh, check_mesh, check_reduction
from shardvar.layout.partition import columns_of
from shardvar.layout.region import read_shape, regions_of_range
from shardvar.records import frozen

DTENSOR_RULE = "DTensor placements, from left to right (torch 2.13)"


@frozen
class Shard:
    """The placement that cuts a dimension of the tensor into as many parts as the mesh axis has
    devices.

    Parameters
    ----------
    dim : int
        The dimension; negative ones count from the end.
    """

    dim: int


@frozen
class Replicate:
    """The placement that gives each device of the mesh axis a copy."""


@frozen
class Partial:
    """The placement in which each device of the mesh axis holds a term, and the value is their
    reduction.

    Parameters
    ----------
    op : {"sum", "avg", "min", "max"}, default "sum"
        The reduction.
    """

    op: str = "sum"


@frozen
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
    """Return the answer of torch's ``compute_local_shape_and_global_offset`` for each device.

    See ``dtensor`` for the parameters.

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
    lengths, starts = np.empty((2, mesh.size, len(axes)), np.int64)
    for dim, (axis, extent) in enumerate(zip(axes, extents, strict=True)):
        lengths[:, dim], starts[:, dim] = axis.lengths(), axis.first(extent)
    return lengths, starts


def _axes(extents: Shape, mesh: Mesh, placements: Sequence[DTensorPlacement]) -> list[Intervals]:
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
    """A dimension counted from the front; ``OutOfRange`` if the shape does not have it."""
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


def flat_layout(
    shape: Shape, mesh: Mesh, rule: str, start: int, length: int, places: Sequence[int]
) -> Layout:
    """The layout of a tensor at ``start`` of a buffer; place p has [p, p + 1) * ``length`` of it."""
    regions_of = {}
    for place in set(places):
        low, high = place * length - start, (place + 1) * length - start
        regions_of[place] = regions_of_range(shape, max(low, 0), min(high, prod(shape)))
    held = [region for place in places for region in regions_of[place]]
    device = np.repeat(np.arange(len(places)), [len(regions_of[place]) for place in places])
    return Layout(shape, mesh, rule, device, *columns_of(held, len(shape)))


def flat_places(mesh: Mesh) -> tuple[list[int], int]:
    """The place of each device along the last mesh axis, and their number; at most 2 axes."""
    check_mesh(mesh)
    if mesh.rank not in (1, 2):
        raise ArgumentError(
            f"Flat parameters have no meaning on the mesh {mesh}.",
            "Give one axis, or (replicate, shard).",
        )
    return mesh.coordinates()[:, -1].tolist(), mesh.shape[-1]


_RULE = "FSDP2 shards: tensor parallelism first, then chunk (torch 2.13)"
_FLAT_RULE = "FSDP1 flat parameter (torch 2.13)"

_TENSOR_PARALLEL = ("tp", "ep")
_ALIGNMENT_NBYTES = 16
"""FSDP1 aligns parameters within a flat one to 16 bytes, the width of vectorised loads on GPUs."""


def fsdp(shape: Sequence[int], mesh: Mesh, fsdp_dim: int = 0, tp_dim: int | None = None) -> Layout:
    """The layout of a parameter under ``fully_shard``: what each device holds.

    Parameters
    ----------
    shape : sequence of int
        The shape of the parameter.
    mesh : Mesh
        An axis called ``tp`` or ``ep`` is for tensor or expert parallelism. The other axis shards;
        of two others the first replicates and the second shards.
    fsdp_dim : int, default 0
        The dimension that FSDP cuts, which is the answer of ``shard_placement_fn``.
    tp_dim : int, optional
        The dimension that the mesh axis ``tp`` or ``ep`` cuts; None if it replicates.

    Returns
    -------
    Layout
        At most one region a device.

    Raises
    ------
    LayoutError
        If a dimension other than the first does not divide: "FSDP does not support uneven sharding
        on dim 1".
    ArgumentError
        If the axes of `mesh` have no roles in FSDP, or `tp_dim` is given for a mesh without ``tp``
        and ``ep``.
    OutOfRange
        If the parameter does not have the dimension `fsdp_dim` or `tp_dim`.

    Examples
    --------
    >>> from shardvar.layouts import dtensor
    >>> layout = fsdp((7, 4), Mesh((3, 2), ("dp", "tp")), tp_dim=0)
    >>> [[str(region) for region in layout.regions(device)] for device in (4, 5)]
    [[], ['[6:7, 0:4]']]
    >>> layout == dtensor((7, 4), layout.mesh, fsdp_placements((7, 4), layout.mesh, tp_dim=0))
    False
    """
    extents = read_shape(shape)
    (dim, shard_axis), (other, tp_axis) = _roles(extents, mesh, fsdp_dim, tp_dim)
    coordinates = mesh.coordinates()
    axes = [Intervals.whole(extent, mesh.size) for extent in extents]
    if other is not None and tp_axis is not None:
        axes[other] = axes[other].cut(coordinates[:, tp_axis], mesh.shape[tp_axis])
    count = mesh.shape[shard_axis]
    lengths = axes[dim].lengths()
    if dim > 0 and (lengths % count).any():
        length = lengths[np.argmax(lengths % count > 0)]
        raise LayoutError(
            f"Dimension {dim} of the shape {extents} has {length} indices on some device, which "
            f"FSDP does not cut into {count} uneven parts.",
            "Shard dimension 0, or pad the parameter.",
        )
    axes[dim] = axes[dim].cut(coordinates[:, shard_axis], count)
    return Layout.from_axes(extents, mesh, _RULE, axes)


def fsdp_placements(
    shape: Sequence[int], mesh: Mesh, fsdp_dim: int = 0, tp_dim: int | None = None
) -> tuple[DTensorPlacement, ...]:
    """The placements that ``fully_shard`` gives the parameter of ``fsdp``.

    Parameters
    ----------
    shape : sequence of int
        The shape of the parameter.
    mesh : Mesh
        The devices, with the roles of axes as in ``fsdp``.
    fsdp_dim : int, default 0
        The dimension that FSDP cuts.
    tp_dim : int, optional
        The dimension that the mesh axis ``tp`` or ``ep`` cuts; None if it replicates.

    Returns
    -------
    tuple of Shard, Replicate or StridedShard
        One placement for each axis of the mesh.

    Raises
    ------
    ArgumentError
        If the axes of `mesh` have no roles in FSDP, or `tp_dim` is given for a mesh without ``tp``
        and ``ep``.
    OutOfRange
        If the parameter does not have the dimension `fsdp_dim` or `tp_dim`.

    Examples
    --------
    >>> fsdp_placements((7, 4), Mesh((3, 2), ("dp", "tp")), tp_dim=0)
    (StridedShard(dim=0, split_factor=2), Shard(dim=0))
    """
    (dim, shard_axis), (other, tp_axis) = _roles(read_shape(shape), mesh, fsdp_dim, tp_dim)
    placements: list[DTensorPlacement] = [Replicate()] * mesh.rank
    placements[shard_axis] = Shard(dim)
    if other is not None and tp_axis is not None:
        placements[tp_axis] = Shard(other)
        if other == dim:
            placements[shard_axis] = StridedShard(dim, mesh.shape[tp_axis])
    return tuple(placements)


def fsdp_flat(
    shapes: Sequence[Sequence[int]],
    mesh: Mesh,
    *,
    use_orig_params: bool = True,
    itemsize: int = 4,
    no_shard: bool = False,
) -> tuple[Layout, ...]:
    """The layouts of the parameters of one FSDP1 module: ranges of a flat parameter.

    The parameters follow each other in C order. The flat parameter is cut into equal ranges, the
    last of them padded.

    Parameters
    ----------
    shapes : sequence of sequences of int
        The shape of each parameter, in the order in which the module has them.
    mesh : Mesh
        One axis, which shards, or two; then the first replicates (HYBRID_SHARD).
    use_orig_params : bool, default True
        True: each parameter begins at a multiple of 16 bytes of the flat one.
    itemsize : int, default 4
        The bytes of an element.
    no_shard : bool, default False
        True: all devices hold everything (NO_SHARD).

    Raises
    ------
    ArgumentError
        If a parameter is a scalar, which FSDP1 refuses, `itemsize` is below 1, or `mesh` has three
        axes or more.

    Examples
    --------
    >>> weight, bias = fsdp_flat([(5, 3), (5,)], Mesh((2,)))
    >>> [[str(region) for region in each.regions(0)] for each in (weight, bias)]
    [['[0:3, 0:3]', '[3:4, 0:2]'], []]
    """
    extents = [read_shape(shape) for shape in shapes]
    if () in extents:
        raise ArgumentError(
            f"Parameter {extents.index(())} is a scalar, which FSDP1 does not flatten.",
            "Give it the shape (1,).",
        )
    if itemsize < 1:
        raise ArgumentError(f"itemsize is {itemsize}.", "Give the bytes of an element.")
    places, ranks = flat_places(mesh)
    step = max(1, _ALIGNMENT_NBYTES // itemsize) if use_orig_params else 1
    starts, end = [], 0
    for parameter in extents:
        # Rounded up to the alignment: 15 elements of 4 bytes end at 16.
        starts.append(-(-end // step) * step)
        end = starts[-1] + prod(parameter)
    count = 1 if no_shard else ranks
    length = -(-end // count)
    held = [place % count for place in places]
    both = zip(extents, starts, strict=True)
    return tuple(flat_layout(shape, mesh, _FLAT_RULE, start, length, held) for shape, start in both)


def _roles(
    shape: Shape, mesh: Mesh, fsdp_dim: int, tp_dim: int | None
) -> tuple[tuple[int, int], tuple[int | None, int | None]]:
    """The dimension and the mesh axis of FSDP's cut, and of tensor parallelism's."""
    check_mesh(mesh)
    names = mesh.axis_names or ("",) * mesh.rank
    tensor = [axis for axis, name in enumerate(names) if name in _TENSOR_PARALLEL]
    others = [axis for axis in range(mesh.rank) if axis not in tensor]
    if len(tensor) > 1 or len(others) not in (1, 2):
        raise ArgumentError(
            f"The axes of the mesh {mesh} have no roles in FSDP.",
            "Give (shard), (replicate, shard), and behind them an axis of the name tp or ep.",
        )
    if tp_dim is not None and not tensor:
        raise ArgumentError(
            f"tp_dim is {tp_dim} and the mesh {mesh} has no axis tp or ep.", "Name the axis tp."
        )
    cut = read_dim(fsdp_dim, shape), others[-1]
    other = None if tp_dim is None else read_dim(tp_dim, shape)
    return cut, (other, tensor[0] if tensor else None)


_ALIGNMENT = 2
"""``nccl_start_alignment_factor``: partitions begin at 4 bytes, which are 2 elements of float16."""


def deepspeed(
    shapes: Sequence[Sequence[int]], mesh: Mesh, stage: int, *, round_robin_gradients: bool = False
) -> tuple[Layout, ...]:
    """Return the layouts of the parameters of one group under DeepSpeed's ZeRO.

    In stages 1 and 2 these are the parts that each rank updates, and whose optimizer's state it
    saves.

    Parameters
    ----------
    shapes : sequence of sequence of int
        The shapes of the parameters, in their order.
    mesh : Mesh
        The ranks. The last axis shards; one in front of it replicates.
    stage : int
        The stage of ZeRO: 1, 2 or 3.
    round_robin_gradients : bool, default False
        True: parameters are ordered by their number modulo the ranks, in stages 1 and 2.

    Raises
    ------
    ArgumentError
        If there is another stage, or a mesh of three axes or more.

    Examples
    --------
    >>> for each in deepspeed([(2, 3), (3,)], Mesh((2,)), stage=2):
    ...     print([[str(region) for region in each.regions(device)] for device in range(2)])
    [['[0:2, 0:3]'], []]
    [[], ['[0:3]']]
    >>> [[str(region) for region in each.regions(1)] for each in deepspeed([(2, 3), (3,)], Mesh((2,)), stage=3)]
    [['[1:2, 0:3]'], ['[2:3]']]
    """
    extents = [read_shape(shape) for shape in shapes]
    if stage not in (1, 2, 3) or (stage == 3 and round_robin_gradients):
        raise ArgumentError(
            f"stage is {stage!r}, round_robin_gradients {round_robin_gradients!r}.",
            "Give stage 1, 2 or 3; round robin is of 1 and 2.",
        )
    places, ranks = flat_places(mesh)
    rule = f"DeepSpeed ZeRO stage {stage} (deepspeed 0.19)"
    if stage == 3:
        return tuple(
            flat_layout(shape, mesh, rule, 0, -(-prod(shape) // ranks), places) for shape in extents
        )
    order = sorted(
        range(len(extents)), key=lambda number: number % ranks if round_robin_gradients else 0
    )
    starts, end = {}, 0
    for number in order:
        starts[number] = end
        end += prod(extents[number])
    # 9 elements on 2 ranks are padded to 12, the next multiple of 2 * 2, so each has 6.
    length = -(-end // (_ALIGNMENT * ranks)) * _ALIGNMENT
    return tuple(
        flat_layout(shape, mesh, rule, starts[number], length, places)
        for number, shape in enumerate(extents)
    )
