"""Chapter 10. Checkpoints: slices that know their place, and the tensors made of them again.

A slice is ``(key, shape, offset, values)``: the values of a region of a named tensor, with the full
shape of the tensor. A checkpoint is a list of slices in any order, cut in any way.
"""

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from shardvar.spec.partitions import Region, coverage, div, intervals
from shardvar.spec.variables import Array, Shards, read, shard

__all__ = [
    "Slice",
    "combine",
    "export",
    "format_slice_text",
    "load_exported",
    "parse_slice_text",
    "restore",
    "save",
    "save_mirrored",
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


# R-CKPT-2 (RFC 002): "we'll need to update `AggregatingVariable` and `MirroredVariable`'s
# `_gather_saveables_for_checkpoint` method."
def save_mirrored(variables: Mapping[str, Sequence[Shards]]) -> list[Slice]:
    """Return the slices of mirrored variables: of one copy, since all copies are equal.

    >>> len(save_mirrored({"w": [[np.zeros(2), np.zeros(1)], [np.zeros(3)]]}))
    2
    """
    return save({key: copies[0] for key, copies in variables.items()})


# R-EXPORT-1 (RFC 000): "one generally wants to save sharded variable as single variable to avoid
# overhead of parallel lookup." R-EXPORT-4 (RFC 000): "Users can also choose to save sharded variable
# as it is by specifying a SaveOption."
def export(variables: Mapping[str, Shards], as_shards: bool = False) -> list[Slice]:
    """Return the slices of an export: one whole tensor a variable, or a slice a shard.

    >>> two = {"w": [np.zeros(2), np.zeros(1)]}
    >>> len(export(two)), len(export(two, as_shards=True))
    (1, 2)
    """
    return save(variables if as_shards else {key: [read(each)] for key, each in variables.items()})


# R-EXPORT-2 (RFC 000): "When the variable is recreated at loading time, the creation will be subject
# to the enclosed variable creation scope" R-EXPORT-3 (RFC 000): "thus the per-layer scope is lost
# across save/load." R-SERIAL-1 (RFC 002): "Some users have the requirement to load a saved model to
# a cluster of different number of parameter servers."
def load_exported(slices: Sequence[Slice], key: str, num_shards: int) -> list[Array]:
    """Create a variable of an export in shards, as the scope around it demands.

    >>> load_exported(export({"w": [np.array([7]), np.array([8, 9])]}), "w", 2)
    [array([7, 8]), array([9])]
    """
    whole = combine(slices, key)
    return shard(whole, [stop - start for start, stop in div(len(whole), num_shards)])


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
    pairs = []
    for item, extent in zip(items, shape, strict=True):
        start, count = (0, extent) if item == "-" else map(int, item.split(","))
        # A dash may also stand for an axis without indices.
        if item != "-" and not 0 < count <= extent - start:
            raise ValueError(f"{item!r} does not fit {extent} indices.")
        pairs.append((start, count))
    return shape, ([start for start, _ in pairs], [count for _, count in pairs])
