"""Recognition: the layout whose parts the slices of a tensor are.

A checkpoint lists the regions that it stores, and not who held them. Regions that are a grid of
parts can be named:

1. ``_grid`` finds the sizes of the parts along each axis, or that the regions are not a grid.
2. Each rule in turn is asked for these sizes: chunk along each axis (DTensor, and equal parts of
   every framework), then div along each axis (parameter servers, and ``partition=``), then FSDP2
   over tensor parallelism.

The first rule that gives exactly these parts is the answer. Parts without elements are not stored,
so a mesh with more devices than parts is not found again.
"""

from collections.abc import Sequence

import numpy as np

from shardvar.layout.dtypes import Ints, Shape
from shardvar.layout.meshes.dtensor import DTensorPlacement, Replicate, Shard, dtensor, fsdp
from shardvar.layout.meshes.layout import Layout
from shardvar.layout.meshes.mesh import Intervals, Mesh, div_bounds
from shardvar.layout.meshes.named_sharding import parameter_servers
from shardvar.layout.partition import Sizes, chunk, div

_MOST_DEVICES = 1024
"""Parts up to which FSDP2 over tensor parallelism is looked for: meshes are tried in turn."""


def recognize(shape: Sequence[int], offset: Ints, extent: Ints) -> Layout | None:
    """The layout whose devices, in C order, hold exactly these regions, one each, or None."""
    grid = _grid(tuple(shape), offset, extent)
    if grid is None:
        return None
    cut = [axis for axis, sizes in enumerate(grid) if len(sizes) > 1]
    mesh = Mesh([len(grid[axis]) for axis in cut] or [1])
    if all(grid[axis] == _sizes(chunk(shape[axis], len(grid[axis]))) for axis in cut):
        placements: list[DTensorPlacement] = [Shard(axis) for axis in cut]
        return dtensor(shape, mesh, placements or [Replicate()])
    if all(grid[axis] == _sizes(div(shape[axis], len(grid[axis]))) for axis in cut):
        if cut == [0]:
            return parameter_servers(shape, mesh)
        # Each mesh axis cuts one axis of the tensor by div, as ``partition=[5, 2]`` does.
        axes = [Intervals.whole(length, mesh.size) for length in shape]
        for number, axis in enumerate(cut):
            part = mesh.coordinates()[:, number]
            axes[axis] = axes[axis].cut(part, mesh.shape[number], div_bounds)
        return Layout.from_axes(shape, mesh, "div on each axis, as sv.save(partition=...)", axes)
    return _fsdp_over_tensor_parallelism(tuple(shape), grid[0]) if cut == [0] else None


def _grid(shape: Shape, offset: Ints, extent: Ints) -> Sizes | None:
    """The sizes of the parts along each axis; None if the regions are not a grid of them."""
    number = np.zeros(len(offset), np.int64)
    sizes: list[tuple[int, ...]] = []
    for axis, length in enumerate(shape):
        pairs, part = np.unique(
            np.stack([offset[:, axis], extent[:, axis]], axis=1), axis=0, return_inverse=True
        )
        ends = np.cumsum(pairs[:, 1])
        if not len(pairs) or ends[-1] != length or (pairs[:, 0] != ends - pairs[:, 1]).any():
            return None
        sizes.append(tuple(pairs[:, 1].tolist()))
        # With more parts than regions the number could pass 64 bits, and the regions are not their
        # product.
        if np.prod([len(along) for along in sizes], dtype=float) > len(offset):
            return None
        number = number * len(pairs) + part.ravel()
    # Each cell of the grid once: as many cells as regions, and no cell twice.
    cells = int(np.prod([len(along) for along in sizes], dtype=np.int64))
    return tuple(sizes) if len(offset) == cells == len(np.unique(number)) else None


def _fsdp_over_tensor_parallelism(shape: Shape, sizes: tuple[int, ...]) -> Layout | None:
    """The layout of FSDP2 over tensor parallelism that cuts the first axis so, or None."""
    count = len(sizes)
    if count > _MOST_DEVICES:
        return None
    for tensor in range(2, count):
        if count % tensor == 0:
            parts = [
                chunk(stop - start, count // tensor) for start, stop in chunk(shape[0], tensor)
            ]
            if sizes == tuple(size for part in parts for size in _sizes(part)):
                return fsdp(shape, Mesh((count // tensor, tensor), ("dp", "tp")), tp_dim=0)
    return None


def _sizes(intervals: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in intervals)
