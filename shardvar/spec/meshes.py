"""Chapter 12. Meshes: which indices each device of a mesh holds.

A mesh is a grid of devices, counted in C order. What a device holds is a list of indices for each
axis of the tensor; it holds the elements at their product.

    held  # [devices][axes of the tensor][indices]
"""

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

import numpy as np

from shardvar.spec.partitions import div
from shardvar.spec.variables import Array

__all__ = [
    "Held",
    "Placement",
    "by_placements",
    "by_spec",
    "chunk",
    "coordinates",
    "elements",
    "flat",
    "fsdp",
    "hsdp",
    "megatron",
    "padded_vocabulary",
    "parameter_servers",
    "parts",
    "strided",
]

Held = list[list[int]]
"""For each axis of the tensor, the indices that one device holds."""
Placement = int | None | tuple[str, int, int]
"""The effect of a mesh axis: the axis that it cuts, None for copies, or ``("strided", axis, factor)``."""


def coordinates(mesh: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the place of each device in the grid.

    >>> coordinates([2, 2])
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    return list(product(*(range(count) for count in mesh)))


# PyTorch, torch.chunk.
def chunk(indices: Sequence[int], count: int) -> list[list[int]]:
    """Cut indices into parts that are all as long as the first, until they run out.

    >>> chunk(range(6), 4)  # not 2, 2, 1, 1 as div
    [[0, 1], [2, 3], [4, 5], []]
    """
    size = -(-len(indices) // count)
    return [list(indices[part * size : (part + 1) * size]) for part in range(count)]


# PyTorch, DTensor: placements are applied from left to right, each to what the ones before it left.
def by_placements(
    shape: Sequence[int], mesh: Sequence[int], placements: Sequence[Placement]
) -> list[Held]:
    """Return what each device holds of a tensor with one placement for each mesh axis.

    >>> by_placements([5], [2, 2], [0, 0])  # not one cut by 4: 2, 2, 1, 0
    [[[0, 1]], [[2]], [[3]], [[4]]]
    """
    found = []
    for coordinate in coordinates(mesh):
        held = _whole(shape)
        for part, count, placement in zip(coordinate, mesh, placements, strict=True):
            if isinstance(placement, tuple):
                _, axis, factor = placement
                held[axis] = strided(held[axis], factor, count, part)
            elif placement is not None:
                held[placement] = chunk(held[placement], count)[part]
        found.append(held)
    return found


# PyTorch, DTensor: _StridedShard.
def strided(indices: Sequence[int], factor: int, count: int, part: int) -> list[int]:
    """Return one part of each of `factor` ranges of indices.

    >>> strided(range(8), 2, 2, 0)
    [0, 1, 4, 5]
    """
    return [index for run in chunk(indices, factor) for index in chunk(run, count)[part]]


# JAX, NamedSharding: "the mesh axes that an entry names cut its tensor axis together", the last name
# fastest. Extents must divide.
def by_spec(
    shape: Sequence[int],
    mesh: Mapping[str, int],
    spec: Sequence[Sequence[str]],
    devices: Sequence[int] | None = None,
) -> list[Held]:
    """Return what each device holds of an array with the names of mesh axes for each tensor axis.

    `devices` are the numbers of the devices in the order of the grid.

    >>> by_spec([4], {"x": 2, "y": 2}, [["y", "x"]])
    [[[0]], [[2]], [[1]], [[3]]]
    """
    names, found = list(mesh), {}
    places = coordinates(list(mesh.values()))
    for device, coordinate in zip(devices or range(len(places)), places, strict=True):
        held = _whole(shape)
        for axis, entry in enumerate(spec):
            parts = list(product(*(range(mesh[name]) for name in entry)))
            if shape[axis] % len(parts):
                raise ValueError(f"{shape[axis]} indices are not divisible by {len(parts)}.")
            part = parts.index(tuple(coordinate[names.index(name)] for name in entry))
            held[axis] = chunk(held[axis], len(parts))[part]
        found[device] = held
    return [found[device] for device in sorted(found)]


# PyTorch, fully_shard: tensor parallelism cuts first, and FSDP cuts the rest.
def fsdp(
    shape: Sequence[int], mesh: tuple[int, int], fsdp_axis: int = 0, tp_axis: int | None = None
) -> list[Held]:
    """Return what each device of a mesh (data, tensor) holds of a parameter.

    >>> fsdp([7], (3, 2), tp_axis=0)[4:]  # the placements (strided, shard) would give [6] to device 4
    [[[]], [[6]]]
    """
    data, tensor = mesh
    found = []
    for d, t in coordinates(mesh):
        held = _whole(shape)
        if tp_axis is not None:
            held[tp_axis] = chunk(held[tp_axis], tensor)[t]
        held[fsdp_axis] = chunk(held[fsdp_axis], data)[d]
        found.append(held)
    return found


# PyTorch, fully_shard (HSDP): "parameters are sharded across the 2nd dim and replicated across the
# 1st dim".
def hsdp(
    shape: Sequence[int], mesh: Sequence[int], fsdp_axis: int = 0, tp_axis: int | None = None
) -> list[Held]:
    """Return what each device of a mesh (copies, data, tensor) holds of a parameter.

    >>> hsdp([4], (2, 2, 1))
    [[[0, 1]], [[2, 3]], [[0, 1]], [[2, 3]]]
    """
    copies, data, tensor = mesh
    return fsdp(shape, (data, tensor), fsdp_axis, tp_axis) * copies


# PyTorch, FSDP1; DeepSpeed. A tensor is laid flat in a buffer from `start` on, and each device has
# an equal range of the buffer.
def flat(size: int, start: int, length: int, num_devices: int) -> list[list[int]]:
    """Return the elements, in C order, of a tensor in a buffer that is cut into equal ranges.

    >>> flat(3, start=2, length=4, num_devices=2)
    [[0, 1], [2]]
    """
    return [
        [at - start for at in range(d * length, (d + 1) * length) if start <= at < start + size]
        for d in range(num_devices)
    ]


# Megatron: parts are equal, so extents must divide.
def megatron(
    shape: Sequence[int],
    tensor: int,
    parallel: str | None = None,
    gated: bool = False,
) -> list[Held]:
    """Return what each rank of tensor parallelism holds of a weight.

    Column parallel cuts the first axis, the output, as a vocabulary is cut; row parallel the second.
    A gated weight is [gate; up], and a rank has its part of each.

    >>> megatron([8], 2, "column", gated=True)
    [[[0, 1, 4, 5]], [[2, 3, 6, 7]]]
    """
    axis, halves = (1 if parallel == "row" else 0), (2 if gated else 1)
    if parallel and shape[axis] % (halves * tensor):
        raise ValueError(f"{shape[axis]} indices are not divisible by {halves * tensor}.")
    found = [_whole(shape) for _ in range(tensor)]
    for rank, held in enumerate(found):
        if parallel:
            held[axis] = strided(held[axis], halves, tensor, rank)
    return found


# Megatron, make_vocab_size_divisible_by.
def padded_vocabulary(size: int, tensor: int, multiple: int = 128) -> int:
    """Count up from the size of a vocabulary to a multiple that all ranks divide.

    >>> padded_vocabulary(50257, 8)
    51200
    """
    return next(
        rows
        for rows in range(size, size + multiple * tensor + 1)
        if rows % (multiple * tensor) == 0
    )


# R-PSS-1 (RFC 000): "Variables created under `strategy.scope()` may be created as
# `ShardedVariable`, depending on some user-supplied partitioner."
def parameter_servers(shape: Sequence[int], servers: int) -> list[Held]:
    """Return what each parameter server holds: the rows of the div rule.

    >>> parameter_servers([6], 4)
    [[[0, 1]], [[2, 3]], [[4]], [[5]]]
    """
    return [[[*range(*rows)], *_whole(shape[1:])] for rows in div(shape[0], servers)]


def parts(value: Array, held: Sequence[Held]) -> list[Array]:
    """Return the values that each device holds.

    >>> parts(np.arange(4), by_placements([4], [2], [0]))
    [array([0, 1]), array([2, 3])]
    """
    return [value[np.ix_(*axes)] if axes else value.copy() for axes in held]


def elements(held: Held, shape: Sequence[int]) -> list[int]:
    """Return the C order numbers of the elements that a device holds.

    >>> elements([[1], [0, 2]], [2, 3])
    [3, 5]
    """
    return [sum(i * prod(shape[d + 1 :]) for d, i in enumerate(at)) for at in product(*held)]


def _whole(shape: Sequence[int]) -> Held:
    return [list(range(extent)) for extent in shape]
