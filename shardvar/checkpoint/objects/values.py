"""The values of variables as slices of tensors: what is stored of them.

A plain variable is one whole slice. A sharded one is one tensor and a slice a shard: "13 rows in 5 shards" and "13 rows
in 3" are the same tensor, and that is all that restoring into another layout needs. Copies are saved once.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.checkpoint.arguments import dtype_of
from shardvar.checkpoint.reader import Reader
from shardvar.engine.arrays import ArraySource, array_source
from shardvar.engine.read import read_arrays
from shardvar.layout.dtypes import STRING, Array, dtype_name
from shardvar.layout.region import Region
from shardvar.planning.index import EntryTable, concatenate_entries
from shardvar.planning.plan import plan_copies
from shardvar.planning.slices import LOCAL_DEVICE, SliceTable, TensorTable, pad
from shardvar.variables import (
    AggregatingVariable,
    MirroredVariable,
    ResourceVariable,
    ShardedVariable,
    VariableInterface,
)
from shardvar.variables.operations import plan_replacements
from shardvar.variables.updates import REPLACE
from shardvar.variables.writes import Resource, Write, holding

Keyed = Sequence[tuple[str, VariableInterface]]
"""Variables, each with the key of its value; keys and variables differ."""
Pieces = list[tuple[Region, VariableInterface]]
"""Regions of a tensor, each with what has its values."""


def snapshot(keyed: Keyed, others: Sequence[tuple[str, npt.NDArray[Any]]] = ()) -> ArraySource:
    """The values of now of all variables, as of one moment, and other arrays beside them."""
    pieces = [_stored_pieces(variable) for _, variable in keyed]
    with holding(resources_of(keyed)):
        arrays = [_value(piece) for row in pieces for _, piece in row]
    return _source(keyed, pieces, arrays, others)


def in_place(keyed: Keyed, others: Sequence[tuple[str, npt.NDArray[Any]]] = ()) -> ArraySource:
    """``snapshot`` without a copy, for whoever holds the mutexes of all ``resources_of`` the variables."""
    pieces = [_stored_pieces(variable) for _, variable in keyed]
    return _source(keyed, pieces, [_memory(piece) for row in pieces for _, piece in row], others)


def resources_of(keyed: Keyed) -> list[Resource]:
    """What holds the values."""
    return [resource for _, variable in keyed for resource in variable.resources]


def _source(
    keyed: Keyed,
    pieces: Sequence[Pieces],
    arrays: Sequence[npt.NDArray[Any]],
    others: Sequence[tuple[str, npt.NDArray[Any]]],
) -> ArraySource:
    """The values in their regions, and whole arrays beside them, in order."""
    tensors = [(key, dtype_name(variable.dtype), variable.shape) for key, variable in keyed]
    tensors += [(key, dtype_of(key, array), array.shape) for key, array in others]
    regions = [[region for region, _ in row] for row in pieces]
    slices = _table(tensors, [*regions, *([Region.whole(array.shape)] for _, array in others)])
    return array_source(_placed(slices, pieces), [*arrays, *(array for _, array in others)])


def _placed(slices: SliceTable, pieces: Sequence[Pieces]) -> SliceTable:
    """The slices, each with its device; arrays behind those of variables are the coordinator's."""
    devices = [_device(piece) for row in pieces for _, piece in row]
    devices += [LOCAL_DEVICE] * (len(slices) - len(devices))
    names = {name: number for number, name in enumerate(dict.fromkeys(devices))}
    device = np.fromiter(map(names.__getitem__, devices), np.int64, len(devices))
    return replace(slices, device=device, devices=tuple(names))


def _device(variable: VariableInterface) -> str:
    """Where a variable lives; what holds no memory of its own is the coordinator's, as the graph of objects is."""
    resources = variable.resources
    return resources[0].device.name if resources else LOCAL_DEVICE


def _stored_pieces(variable: VariableInterface) -> Pieces:
    """The regions to store, and what has their values; shards without elements only where there is nothing else."""
    # R-CKPT-2 (RFC 002): "In these cases, we'll need to update AggregatingVariable and MirroredVariable's" saving: one
    # copy is stored, or what is aggregated for, cut as it is.
    while isinstance(variable, MirroredVariable | AggregatingVariable):
        variable = variable.copies[0] if isinstance(variable, MirroredVariable) else variable.variable
    pieces = [(region, shard) for region, shard in _filled_pieces(variable) if region.size]
    return pieces or [(Region.whole(variable.shape), variable)]


def _filled_pieces(variable: VariableInterface) -> Pieces:
    """The regions to read, and what takes their values; string tensors are never split."""
    if isinstance(variable, ShardedVariable) and dtype_name(variable.dtype) != STRING:
        return list(zip(variable.partition, variable.variables, strict=True))
    return [(Region.whole(variable.shape), variable)]


def _value(variable: VariableInterface) -> npt.NDArray[Any]:
    """A value that nobody else holds; variables of other kinds may read as their own memory."""
    value = variable.read_value()
    return value if isinstance(variable, ResourceVariable | ShardedVariable) else np.array(value)


def _memory(variable: VariableInterface) -> npt.NDArray[Any]:
    """The memory of a variable; kinds of variables that do not show theirs are asked for a value."""
    return variable.resource.array if isinstance(variable, ResourceVariable) else np.asarray(variable.read_value())


def _table(tensors: Sequence[tuple[str, str, Sequence[int]]], regions: Sequence[Sequence[Region]]) -> SliceTable:
    """The slices of each tensor, in order."""
    counts = [len(row) for row in regions]
    _, offset = pad([region.offset for row in regions for region in row], fill=0)
    _, shape = pad([region.shape for row in regions for region in row], fill=1)
    return SliceTable.of(TensorTable.of(tensors), np.repeat(np.arange(len(tensors)), counts), offset, shape)


# Filling variables from a checkpoint, whatever slices it holds: everything is read, then everything is written.
#
# A plain variable is one region of its tensor, a sharded one a region a shard, and it is the plan of a resharding that
# fills them. Loops here are over variables, of which there may be a hundred thousand: what is one region needs none
# made.


_FEW = 100
"""Fewer keys than this are looked up (0.1 ms each); for more, all entries are scanned at once (2 us each)."""


def read_writes(reader: Reader, keyed: Keyed) -> list[Write]:
    """The writes that fill the variables from a checkpoint; everything is read, and nothing written yet.

    ``InconsistentTensor``, before any payload is read, where dtype or full shape differ; ``IncompleteCheckpoint``.
    """
    if not keyed:
        return []
    targets, filled = _targets(keyed)
    entries = entries_of(reader, targets.tensors.keys)
    arrays = read_arrays(plan_copies(entries.slices, targets), reader.source, entries)
    return _plan_writes(filled, arrays)


def _targets(keyed: Keyed) -> tuple[SliceTable, list[VariableInterface]]:
    """The slices to read, and what each of them fills; string tensors are never split."""
    tensor: list[int] = []
    filled: list[VariableInterface] = []
    offsets: list[tuple[int, ...]] = []
    shapes: list[tuple[int, ...]] = []
    names: dict[np.dtype[Any], str] = {}
    tensors = []
    for row, (key, variable) in enumerate(keyed):
        dtype, shape = variable.dtype, variable.shape
        name = names.get(dtype) or names.setdefault(dtype, dtype_name(dtype))
        tensors.append((key, name, shape))
        if not isinstance(variable, ShardedVariable) or name == STRING:
            tensor.append(row)
            filled.append(variable)
            offsets.append(())
            shapes.append(shape)
        else:
            regions = variable.partition
            tensor += [row] * len(regions)
            filled += variable.variables
            offsets += [region.offset for region in regions]
            shapes += [region.shape for region in regions]
    table = TensorTable.of(tensors)
    offset = np.zeros((len(tensor), table.shapes.shape[1]), np.int64)
    padded = pad(offsets, fill=0)[1]
    offset[:, : padded.shape[1]] = padded
    return SliceTable.of(table, np.array(tensor), offset, pad(shapes, fill=1)[1]), filled


def entries_of(reader: Reader, keys: Sequence[str]) -> EntryTable:
    """Entries that hold those of the keys, each without a fault."""
    if len(keys) < _FEW:
        return concatenate_entries([reader.find(key) for key in keys])
    for error in filter(None, map(reader.faults.get, keys)):
        raise type(error)(error.cause, error.remedy)
    return reader.entries()


def _plan_writes(filled: Sequence[VariableInterface], values: Sequence[Array]) -> list[Write]:
    """One write of all that are resources of the default kind, and those of all others."""
    resources, arrays, writes = [], [], []
    for each, value in zip(filled, values, strict=True):
        if type(each) is ResourceVariable:
            resources.append(each.resource)
            arrays.append(value)
        else:
            writes += each.plan_writes(REPLACE, value)
    return [*plan_replacements(resources, arrays), *writes]
