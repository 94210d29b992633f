"""Holders: the device that held each slice before it was saved, where a checkpoint tells.

A checkpoint stores regions, and seldom the devices that held them. Two things tell:

1. Names of files, where each process wrote its own: torch's ``__3_0.distcp``, and a number after
   ``rank``.
2. The layout that the slices of a tensor are recognised as. Its devices are counted in the C order
   of the slices, so only tensors on the largest number of devices count: device 1 of 2 and device 1
   of 8 may be different ones.

Names are asked first, since they are what a process wrote; a layout follows from the regions only.

Recognition. Regions that are a grid of parts can be named: ``_grid`` finds the sizes of the parts
along each axis, and each rule in turn is asked for these sizes: chunk along each axis (DTensor, and
equal parts of every framework), then div along each axis (parameter servers, and ``partition=``),
then FSDP2 over tensor parallelism. The first rule that gives exactly these parts is the answer,
but the rule that gives the parts of most tensors is asked first: one writer cut them all.
Parts without elements are not stored, so a mesh with more devices than parts is not found again.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from shardvar.layout.dtypes import Ints, Shape
from shardvar.layout.meshes.dtensor import Replicate, Shard, dtensor, fsdp
from shardvar.layout.meshes.layout import Intervals, Layout, Mesh, div_bounds
from shardvar.layout.meshes.named_sharding import parameter_servers
from shardvar.layout.partition import Sizes, chunk, div
from shardvar.planning.index import EntryTable
from shardvar.planning.slices import SliceTable
from shardvar.records import entity

_MOST_DEVICES = 1024
"""Parts up to which FSDP2 over tensor parallelism is looked for: meshes are tried in turn."""


GridRule = Callable[[Shape, Sizes, list[int]], Layout | None]
"""Return the layout of a rule whose parts along the axes of the list have these sizes, or None."""


def recognize(
    shape: Sequence[int], offset: Ints, extent: Ints, first: GridRule | None = None
) -> Layout | None:
    """The layout whose devices, in C order, hold exactly these regions, one each, or None."""
    grid = _grid(tuple(shape), offset, extent)
    if grid is None:
        return None
    cut = [axis for axis, sizes in enumerate(grid) if len(sizes) > 1]
    if not cut:
        return dtensor(shape, Mesh([1]), [Replicate()])
    rules = [first, *_RULES] if first else _RULES
    return next(filter(None, (rule(tuple(shape), grid, cut) for rule in rules)), None)


def usual_rule(slices: SliceTable) -> GridRule:
    """Return the rule that gives the parts of most tensors that are cut."""
    fitting = Counter[GridRule]()
    known: dict[tuple[Shape, bytes, bytes], list[GridRule]] = {}
    for _, shape, offset, extent in _cuts(slices):
        cut = shape, offset.tobytes(), extent.tobytes()
        if cut not in known:
            grid = _grid(shape, offset, extent) or ()
            axes = [axis for axis, sizes in enumerate(grid) if len(sizes) > 1]
            known[cut] = [rule for rule in _RULES if grid and rule(shape, grid, axes)]
        fitting.update(known[cut])
    return max(_RULES, key=fitting.__getitem__)


def _cuts(slices: SliceTable) -> Iterator[tuple[Ints, Shape, Ints, Ints]]:
    """The rows of each tensor in several slices, its shape, and its regions."""
    order, bounds = slices.by_tensor(by_offset=True)
    for tensor in np.flatnonzero(np.diff(bounds) > 1).tolist():
        rows, shape = order[bounds[tensor] : bounds[tensor + 1]], slices.tensors.shape(tensor)
        yield rows, shape, slices.offset[rows, : len(shape)], slices.shape[rows, : len(shape)]


def _chunked(shape: Shape, grid: Sizes, cut: list[int]) -> Layout | None:
    if any(grid[axis] != _sizes(chunk(shape[axis], len(grid[axis]))) for axis in cut):
        return None
    return dtensor(shape, _mesh(grid, cut), [Shard(axis) for axis in cut])


def _divided(shape: Shape, grid: Sizes, cut: list[int]) -> Layout | None:
    if any(grid[axis] != _sizes(div(shape[axis], len(grid[axis]))) for axis in cut):
        return None
    mesh = _mesh(grid, cut)
    if cut == [0]:
        return parameter_servers(shape, mesh)
    # Each mesh axis cuts one axis of the tensor by div, as ``partition=[5, 2]`` does.
    axes = [Intervals.whole(length, mesh.size) for length in shape]
    for number, axis in enumerate(cut):
        part = mesh.coordinates()[:, number]
        axes[axis] = axes[axis].cut(part, mesh.shape[number], div_bounds)
    return Layout.from_axes(shape, mesh, "div on each axis, as sv.save(partition=...)", axes)


def _mesh(grid: Sizes, cut: list[int]) -> Mesh:
    return Mesh([len(grid[axis]) for axis in cut])


def _grid(shape: Shape, offset: Ints, extent: Ints) -> Sizes | None:
    """The sizes of the parts along each axis; None if the regions are not a grid of them."""
    number = np.zeros(len(offset), np.int64)
    sizes: list[Shape] = []
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


def _fsdp_over_tensor_parallelism(shape: Shape, grid: Sizes, cut: list[int]) -> Layout | None:
    sizes = grid[0]
    count = len(sizes)
    if cut != [0] or count > _MOST_DEVICES:
        return None
    for tensor in range(2, count):
        if count % tensor == 0:
            parts = [
                chunk(stop - start, count // tensor) for start, stop in chunk(shape[0], tensor)
            ]
            if sizes == tuple(size for part in parts for size in _sizes(part)):
                return fsdp(shape, Mesh((count // tensor, tensor), ("dp", "tp")), tp_dim=0)
    return None


_RULES: tuple[GridRule, ...] = (_chunked, _divided, _fsdp_over_tensor_parallelism)


def _sizes(intervals: Sequence[tuple[int, int]]) -> Shape:
    return tuple(stop - start for start, stop in intervals)


_RANKED_NAME = re.compile(r"(?:^|/)__(\d{1,9})_\d+[^/]*\.distcp$|rank[-_]?(\d{1,9})(?!\d)")
"""``__3_0.distcp`` of torch, or ``rank_3`` and ``mp_rank_03``."""

_LEAST_SHARE = 0.1
"""The least share of the bytes that layouts must tell of. A file limit cuts some tensors where a
file is full, and of a thousand such cuts some are equal by chance."""


@entity
class Holders:
    noun: str
    """The word for one of them: ``rank`` where names of files tell, else ``device``."""
    device: Ints
    """[m] its number for each entry; -1 where nothing tells."""


def holders_of(entries: EntryTable, files: Sequence[str]) -> Holders | None:
    """Return the device of each entry; None where nothing tells two of them apart."""
    names = [_RANKED_NAME.search(name) for name in files]
    if names and None not in names:
        ranks = np.array([int(each[1] or each[2]) for each in names if each], np.int64)
        found = Holders("rank", ranks[entries.file])
    else:
        # [m] the device that holds each slice, by the layout of its tensor; -1 if unknown.
        slices = entries.slices
        device, size_of = np.full(len(slices), -1, np.int64), np.zeros(len(slices), np.int64)
        known: dict[tuple[Shape, bytes, bytes], Ints | None] = {}
        for rows, shape, offset, extent in _cuts(slices):
            # Tensors of one shape are cut alike, in most checkpoints: each cut is looked at once.
            cut = shape, offset.tobytes(), extent.tobytes()
            if cut not in known:
                layout = recognize(shape, offset, extent)
                known[cut] = None
                if layout is not None:
                    places = zip(layout.offset.tolist(), layout.device.tolist(), strict=True)
                    device_of = {tuple(place): number for place, number in places}
                    known[cut] = np.array([device_of[tuple(each)] for each in offset.tolist()])
            numbers = known[cut]
            if numbers is not None:
                device[rows], size_of[rows] = numbers, len(rows)
        device[size_of < size_of.max(initial=0)] = -1
        if slices.nbytes[device >= 0].sum() < _LEAST_SHARE * slices.nbytes.sum():
            device[:] = -1
        found = Holders("device", device)
    return found if len(np.unique(found.device[found.device >= 0])) > 1 else None
