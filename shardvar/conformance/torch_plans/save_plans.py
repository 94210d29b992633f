"""Plans of checkpoints: the regions that each rank writes and reads, as torch's libraries plan
them.

**torch.distributed.checkpoint** (torch 2.13.0, ``DefaultSavePlanner``, ``DefaultLoadPlanner``).
Each rank plans an item for each DTensor: the local shape and the global offset that the placements
say, also where they are empty. Items with the same key and offset are the same to it, and one rank
keeps each: "only the smallest SavePlan in terms of planned storage keeps the entry", or the lowest
rank. It counts the bytes of the whole tensor for each of its items, so that ranks are not balanced
by what they write. A rank reads from each saved region what overlaps its own.

**torchsnapshot** (0.1.0). A shard is written in regions of at most 512 MiB, cut along the dimension
that is sharded. A tensor that is not sharded is cut by ``torch.chunk`` along its first dimension.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.meshes.dtensor import DTensorPlacement, local_shapes_and_offsets, read_dim
from shardvar.layout.meshes.mesh import Mesh
from shardvar.layout.partition import chunk
from shardvar.layout.region import Region, intersect, read_shape

_MOST_NBYTES = 512 << 20
"""The bytes that torchsnapshot writes as one object, unless its knobs say otherwise."""


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A DTensor that is to be saved; a plain tensor is replicated along each axis of the mesh."""

    shape: tuple[int, ...]
    """Its full shape."""
    placements: tuple[DTensorPlacement, ...]
    """A placement for each axis of the mesh."""
    itemsize: int = 4
    """The bytes of an element."""


@dataclass(frozen=True, slots=True)
class WriteItem:
    """A region of a tensor that a rank writes."""

    key: str
    """The name of the tensor."""
    region: Region
    """The region, in the coordinates of the full tensor; it may be empty."""


@dataclass(frozen=True, slots=True)
class ReadItem:
    """A part of one saved region that a rank reads."""

    saved: int
    """The number of the saved region."""
    storage_offsets: tuple[int, ...]
    """The offset of the part in the saved region."""
    dest_offsets: tuple[int, ...]
    """Its offset in the region that the rank holds."""
    lengths: tuple[int, ...]
    """Its shape."""


def dcp_save_plan(
    tensors: Mapping[str, SavedTensor], mesh: Mesh, *, dedup_save_to_lowest_rank: bool = False
) -> tuple[tuple[WriteItem, ...], ...]:
    """Return the items that each rank writes with ``dcp.save``.

    Parameters
    ----------
    tensors : mapping of str to SavedTensor
        The tensors, in the order of the state dict.
    mesh : Mesh
        The ranks.
    dedup_save_to_lowest_rank : bool, default False
        True: the lowest rank that has an item writes it. False: the one with the least to write.

    Returns
    -------
    tuple of tuples of WriteItem
        The items of each rank. The checkpoint's metadata lists the regions of a key in the order of
        ranks.

    Examples
    --------
    >>> from shardvar.layouts import Replicate, Shard
    >>> table = SavedTensor((5, 2), (Replicate(), Shard(0)))
    >>> for items in dcp_save_plan({"table": table, "bias": SavedTensor((2,), (Replicate(),) * 2)}, Mesh((2, 2))):
    ...     print([f"{item.key}{item.region}" for item in items])
    ['table[0:3, 0:2]']
    ['bias[0:2]']
    []
    ['table[3:5, 0:2]']
    """
    planned = _planned(tensors, mesh)
    # Sets as torch has them: of several ranks with the least to write, it takes the first that the
    # set gives.
    ranks: dict[tuple[str, tuple[int, ...]], set[int]] = {}
    for rank, items in enumerate(planned):
        for item in items:
            ranks.setdefault((item.key, item.region.offset), set()).add(rank)
    nbytes = [0] * mesh.size
    writer = {}
    for index, holders in ranks.items():
        chosen = min(holders) if dedup_save_to_lowest_rank else min(holders, key=nbytes.__getitem__)
        writer[index] = chosen
        # The bytes of the whole tensor, even if the item has only a part; 1 for a tensor without
        # elements.
        nbytes[chosen] += prod(tensors[index[0]].shape) * tensors[index[0]].itemsize or 1
    return tuple(
        tuple(item for item in items if writer[item.key, item.region.offset] == rank)
        for rank, items in enumerate(planned)
    )


def dcp_load_plan(saved: Sequence[Region], wanted: Region) -> tuple[ReadItem, ...]:
    """Return the items that a rank reads with ``dcp.load`` for the region that it holds.

    Parameters
    ----------
    saved : sequence of Region
        The regions of the tensor in the checkpoint.
    wanted : Region
        The region that the rank holds.

    Returns
    -------
    tuple of ReadItem
        The items, in the order of the saved regions.

    Raises
    ------
    ArgumentError
        If the regions are of tensors of different ranks.

    Examples
    --------
    >>> for item in dcp_load_plan([Region((0,), (3,)), Region((3,), (2,))], Region((2,), (2,))):
    ...     print(item.saved, item.storage_offsets, item.dest_offsets, item.lengths)
    0 (2,) (0,) (1,)
    1 (0,) (1,) (1,)
    """
    rank = len(wanted.shape)
    if any(len(region.shape) != rank for region in saved):
        raise ArgumentError(
            f"Regions of other ranks than {rank} were saved.", "Give the regions of one tensor."
        )
    starts, extents = (
        np.array([getattr(region, name) for region in saved], np.int64).reshape(len(saved), rank)
        for name in ("offset", "shape")
    )
    offset, extent = intersect(
        np.array(wanted.offset, np.int64), np.array(wanted.shape, np.int64), starts, extents
    )
    rows = np.flatnonzero((extent > 0).all(axis=1))
    return tuple(
        ReadItem(
            int(row),
            tuple((offset[row] - starts[row]).tolist()),
            tuple((offset[row] - wanted.offset).tolist()),
            tuple(extent[row].tolist()),
        )
        for row in rows
    )


def torchsnapshot_shards(
    region: Region, dim: int = 0, itemsize: int = 4, max_nbytes: int = _MOST_NBYTES
) -> tuple[Region, ...]:
    """Return the regions in which torchsnapshot writes the shard of a rank.

    Parameters
    ----------
    region : Region
        The shard, in the coordinates of the full tensor.
    dim : int, default 0
        The dimension that is sharded, along which the shard is cut.
    itemsize : int, default 4
        The bytes of an element.
    max_nbytes : int, default 536870912
        At most so many bytes a region, unless one index along `dim` has more.

    Raises
    ------
    ArgumentError
        If the shard has no elements, or a number is less than 1.

    Examples
    --------
    >>> [str(part) for part in torchsnapshot_shards(Region((10, 0), (5, 4)), max_nbytes=32)]
    ['[10:12, 0:4]', '[12:14, 0:4]', '[14:15, 0:4]']
    """
    dim = read_dim(dim, region.shape)
    _check_sizes(itemsize, max_nbytes)
    if not prod(region.shape):
        raise ArgumentError(
            f"The shard {region} has no elements.",
            "torchsnapshot writes only shards with elements.",
        )
    row = prod(region.shape) // region.shape[dim] * itemsize
    step = max(max_nbytes // row, 1)
    return tuple(_part(region, dim, start, step) for start in range(0, region.shape[dim], step))


def torchsnapshot_tensor(
    shape: Sequence[int], itemsize: int = 4, max_nbytes: int = _MOST_NBYTES
) -> tuple[Region, ...]:
    """Return the regions in which torchsnapshot writes a tensor that is not sharded.

    Otherwise as ``torchsnapshot_shards``.

    Parameters
    ----------
    shape : sequence of int
        The shape of the tensor; the shape of a scalar becomes (1,).
    max_nbytes : int, default 536870912
        The bytes of a region, about: the number of rows is what ``torch.chunk`` makes of it.

    Raises
    ------
    ArgumentError
        If the tensor has no elements, or a number is less than 1.

    Examples
    --------
    >>> [str(part) for part in torchsnapshot_tensor((5, 4), max_nbytes=32)]
    ['[0:2, 0:4]', '[2:4, 0:4]', '[4:5, 0:4]']
    """
    extents = read_shape(shape) or (1,)
    _check_sizes(itemsize, max_nbytes)
    count = -(-prod(extents) * itemsize // max_nbytes)
    if not count:
        raise ArgumentError(
            f"A tensor of shape {extents} has no elements.", "torchsnapshot writes none of it."
        )
    # torch.chunk gives no empty parts.
    rows = [
        (start, stop) for start, stop in chunk(extents[0], min(count, extents[0])) if start < stop
    ]
    whole = Region((0,) * len(extents), extents)
    return tuple(_part(whole, 0, start, stop - start) for start, stop in rows)


def _planned(tensors: Mapping[str, SavedTensor], mesh: Mesh) -> list[list[WriteItem]]:
    """The items of each rank before equal ones are left out."""
    planned: list[list[WriteItem]] = [[] for _ in range(mesh.size)]
    for key, tensor in tensors.items():
        shapes, offsets = local_shapes_and_offsets(tensor.shape, mesh, tensor.placements)
        for rank, (shape, offset) in enumerate(zip(shapes.tolist(), offsets.tolist(), strict=True)):
            planned[rank].append(WriteItem(key, Region(offset, shape)))
    return planned


def _part(region: Region, dim: int, start: int, count: int) -> Region:
    """The part of a region from ``start``, counted in the region, of at most ``count`` indices
    along a dimension."""
    offset, shape = list(region.offset), list(region.shape)
    shape[dim] = min(count, shape[dim] - start)
    offset[dim] += start
    return Region(offset, shape)


def _check_sizes(itemsize: int, most: int) -> None:
    if itemsize < 1 or most < 1:
        raise ArgumentError(
            f"Elements have {itemsize} bytes, objects at most {most}.", "Give numbers from 1 on."
        )
