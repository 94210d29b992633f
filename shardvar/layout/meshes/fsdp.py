"""PyTorch's FSDP: what its shards hold (torch 2.13.0, ``fully_shard`` and
``FullyShardedDataParallel``).

**FSDP2** shards each parameter along one dimension by ``torch.chunk``. If tensor parallelism also
cuts the parameter, it comes first, and FSDP cuts what it left. If both cut the same dimension,
the parameter's placements are ``(_StridedShard(dim, split_factor=tp), Shard(dim))``, and torch has
two definitions that differ for some uneven sizes:

    fsdp(shape, mesh, ...)                                   what the shards hold, ``full_tensor``
                                                             and ``redistribute``
    dtensor(shape, mesh, fsdp_placements(shape, mesh, ...))  what the placements say,
                                                             ``distribute_tensor``, and the offsets
                                                             in distributed checkpoints

The smallest case is 7 rows on a mesh of (dp 3, tp 2). They agree wherever tp divides the extent.

**FSDP1** flattens the parameters of a module into one, cuts that, and so holds ranges of elements:
``fsdp_flat``.

Roles of mesh axes: one called ``tp`` or ``ep`` is for tensor or expert parallelism. The other axis
shards. If there are two, the documentation of ``fully_shard`` says: "parameters are sharded across
the 2nd dim and replicated across the 1st dim (HSDP)".
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from shardvar.errors import ArgumentError, LayoutError
from shardvar.layout.meshes.dtensor import (
    DTensorPlacement,
    Replicate,
    Shard,
    StridedShard,
    read_dim,
)
from shardvar.layout.meshes.flat import flat_layout, flat_places
from shardvar.layout.meshes.intervals import Intervals
from shardvar.layout.meshes.layout import Layout
from shardvar.layout.meshes.mesh import Mesh, check_mesh
from shardvar.layout.region import read_shape

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
    dim, other = _read_dims(extents, mesh, fsdp_dim, tp_dim)
    shard_axis, tp_axis = _roles(mesh)
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
    dim, other = _read_dims(read_shape(shape), mesh, fsdp_dim, tp_dim)
    shard_axis, tp_axis = _roles(mesh)
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


def _roles(mesh: Mesh) -> tuple[int, int | None]:
    """The mesh axis that shards, and the axis of tensor parallelism if there is one;
    ``ArgumentError`` for any others."""
    check_mesh(mesh)
    names = mesh.axis_names or ("",) * mesh.rank
    tensor = [axis for axis, name in enumerate(names) if name in _TENSOR_PARALLEL]
    others = [axis for axis in range(mesh.rank) if axis not in tensor]
    if len(tensor) > 1 or len(others) not in (1, 2):
        raise ArgumentError(
            f"The axes of the mesh {mesh} have no roles in FSDP.",
            "Give (shard), (replicate, shard), and behind them an axis of the name tp or ep.",
        )
    return others[-1], (tensor[0] if tensor else None)


def _read_dims(
    shape: tuple[int, ...], mesh: Mesh, fsdp_dim: int, tp_dim: int | None
) -> tuple[int, int | None]:
    """The dimensions counted from the front; ``ArgumentError`` for a ``tp_dim`` on a mesh without
    such an axis."""
    if tp_dim is not None and _roles(mesh)[1] is None:
        raise ArgumentError(
            f"tp_dim is {tp_dim} and the mesh {mesh} has no axis tp or ep.", "Name the axis tp."
        )
    return read_dim(fsdp_dim, shape), None if tp_dim is None else read_dim(tp_dim, shape)
