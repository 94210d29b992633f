"""Chapter 10. Checkpoints: slices that know their place, and the tensors made of them again.

A slice is ``(key, shape, offset, values)``: the values of a region of a named tensor, with the full
shape of the tensor. A checkpoint is a list of slices in any order, cut in any way.
"""

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from shardvar.spec.partitions import Region, coverage, intervals
from shardvar.spec.variables import Array, Shards, read, shard

__all__ = [
    "Slice",
    "combine",
    "format_slice_text",
    "parse_slice_text",
    "restore",
    "save",
]

Slice = tuple[str, Sequence[int], Sequence[int], Array]
"""Key, full shape, offset, values."""


# R-CKPT-1 (RFC 002): "Saver reads `_save_slice_info` to save all partitions into one tensor, which
# allows this one tensor to be restored to different numbers of partitions as long as the new
# `PartitionedVariable` has the same full shape."
def save(variables: Mapping[str, Shards]) -> list[Slice]:
    """Return the slices of sharded variables: one for each shard, at its place in the whole.

    >>> [(key, shape, offset) for key, shape, offset, _ in save({"w": [np.zeros(2), np.zeros(1)]})]
    [('w', (3,), (0,)), ('w', (3,), (2,))]
    """
    slices: list[Slice] = []
    for key, shards in variables.items():
        full = read(shards).shape
        for each, (start, _) in zip(shards, intervals([len(s) for s in shards]), strict=True):
            slices.append((key, full, (start, *[0] * (each.ndim - 1)), each.copy()))
    return slices


# R-POLICY-7 (RFC 001): "Additionally, since the user can re-slice tensors in the sharding callback,
# `restore()` will need to combine those to form the original tensor (slice)."
# R-DAMAGE-1 (RFC 001): "When loading a checkpoint, the general expectation is that all variables
# present before saving will be available for loading and restoration."
def combine(slices: Sequence[Slice], key: str) -> Array:
    """Put the slices of one tensor together. Refuse them if one is missing or two overlap.

    >>> combine([("w", [3], [2], np.array([9])), ("w", [3], [0], np.array([7, 8]))], "w")
    array([7, 8, 9])
    """
    own = [(shape, offset, values) for name, shape, offset, values in slices if name == key]
    if not own:
        raise KeyError(key)
    (full, _, first), *_ = own
    if {(tuple(shape), values.dtype) for shape, _, values in own} != {(tuple(full), first.dtype)}:
        raise ValueError(f"The slices of {key!r} disagree on its shape or dtype.")
    verdict = coverage(full, [(offset, values.shape) for _, offset, values in own])
    if verdict != "tiled":
        raise ValueError(f"The slices of {key!r} do not tile {list(full)}: {verdict}.")
    whole = np.empty(tuple(full), first.dtype)
    for _, offset, values in own:
        place: Any = [slice(o, o + n) for o, n in zip(offset, values.shape, strict=True)]
        whole[(*place, ...)] = values  # the ellipsis makes a view of a scalar too
    return whole


# R-CKPT-1 (RFC 000): "being able to save sharded variable to a checkpoint, and restore it to
# possibly a different number of shards."
# R-SLOT-2 (RFC 000): "At saving/loading time, optimizer sees sharded variable as a ShardedVariable
# instance for the purpose of elastic saving and loading."
def restore(slices: Sequence[Slice], key: str, sizes: Sequence[int]) -> list[Array]:
    """Return a tensor, which may be a variable or a slot, in shards of these numbers of rows.

    >>> two = save({"w": [np.array([7, 8]), np.array([9])]})
    >>> restore(two, "w", [1, 1, 1])
    [array([7]), array([8]), array([9])]
    """
    return shard(combine(slices, key), sizes)


# The text with which TensorFlow names a slice in its index.


# TensorFlow, tf.raw_ops.SaveV2: `shape_and_slices`.
def format_slice_text(shape: Sequence[int], region: Region) -> str:
    """Write the full shape, and for each axis ``start,length``, separated by colons.

    >>> format_slice_text([13, 4], ([3, 0], [3, 4]))
    '13 4 3,3:0,4'
    """
    if not shape or not prod(region[1]):
        raise ValueError("A scalar, or a slice without elements, has no slice text.")
    for extent, start, count in zip(shape, *region, strict=True):
        if start < 0 or start + count > extent:
            raise ValueError(f"The region {region} does not fit the shape {shape}.")
    pairs = ":".join(f"{start},{count}" for start, count in zip(*region, strict=True))
    return f"{' '.join(map(str, shape))} {pairs}"


# TensorFlow, tf.raw_ops.RestoreV2: `shape_and_slices`.
def parse_slice_text(text: str) -> tuple[list[int], Region]:
    """Read a slice text. A dash stands for a whole axis.

    >>> parse_slice_text("13 4 3,3:-")
    ([13, 4], ([3, 0], [3, 4]))
    """
    found = re.fullmatch(r"((?:\d+ )+)(\d+,\d+|-)((?::(?:\d+,\d+|-))*)", text, re.ASCII)
    if found is None:
        raise ValueError(f"{text!r} is not a slice text.")
    shape = [int(extent) for extent in found[1].split()]
    items = [found[2], *filter(None, found[3].split(":"))]
    if len(items) != len(shape):
        raise ValueError(f"{text!r} has {len(shape)} axes and {len(items)} extents.")
    pairs = [
        [0, extent] if item == "-" else [int(n) for n in item.split(",")]
        for item, extent in zip(items, shape, strict=True)
    ]
    region = [start for start, _ in pairs], [count for _, count in pairs]
    format_slice_text(shape, region)  # refuses what does not fit
    return shape, region
