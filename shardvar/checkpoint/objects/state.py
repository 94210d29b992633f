"""The values of variables as slices of tensors: what is stored of them, and how they are filled again.

A plain variable is one whole slice. A sharded one is one tensor and a slice a shard: "13 rows in 5 shards" and "13 rows
in 3" are the same tensor, and that is all that restoring into another layout needs. Copies are saved once.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.checkpoint.reader import Reader
from shardvar.engine.arrays import ArraySource, array_source
from shardvar.engine.read import read_arrays
from shardvar.layout.dtypes import STRING, dtype_name
from shardvar.layout.region import Region
from shardvar.planning.index import EntryTable, concatenate_entries
from shardvar.planning.plan import plan_copies
from shardvar.planning.slices import SliceTable, TensorTable, pad
from shardvar.variables import (
    AggregatingVariable,
    MirroredVariable,
    ResourceVariable,
    ShardedVariable,
    Variable,
    VariableInterface,
)
from shardvar.variables.resource import Write, holding
from shardvar.variables.updates import REPLACE

Keyed = Sequence[tuple[str, VariableInterface]]
"""Variables, each with the key of its value; keys and variables differ."""
_FEW = 100
"""Fewer keys than this are looked up (0.1 ms each); for more, all entries are scanned at once (2 us each)."""
_Pieces = list[tuple[Region, VariableInterface]]


def snapshot(keyed: Keyed, texts: Iterable[tuple[str, bytes]] = ()) -> ArraySource:
    """The values of now of all variables, as of one moment, and some string tensors without axes beside them."""
    pieces = [_stored_pieces(variable) for _, variable in keyed]
    with holding([resource for _, variable in keyed for resource in variable.resources]):
        arrays = [_value(piece) for row in pieces for _, piece in row]
    tensors = [(key, dtype_name(variable.dtype), variable.shape) for key, variable in keyed]
    regions = [[region for region, _ in row] for row in pieces]
    for key, text in texts:
        tensors.append((key, STRING, ()))
        regions.append([Region((), ())])
        arrays.append(np.array(text, dtype=object))
    return array_source(_table(tensors, regions), arrays)


def read_writes(reader: Reader, keyed: Keyed) -> list[Write]:
    """The writes that fill the variables from a checkpoint; everything is read, and nothing written yet.

    ``InconsistentTensor``, before any payload is read, where dtype or full shape differ; ``IncompleteCheckpoint``.
    """
    if not keyed:
        return []
    pieces = [_filled_pieces(variable) for _, variable in keyed]
    tensors = [(key, dtype_name(variable.dtype), variable.shape) for key, variable in keyed]
    targets = _table(tensors, [[region for region, _ in row] for row in pieces])
    entries = _entries(reader, [key for key, _ in keyed])
    arrays = iter(read_arrays(plan_copies(entries.slices, targets), reader.source, entries))
    return [write for row in pieces for _, piece in row for write in _plan_writes(piece, next(arrays))]


def _entries(reader: Reader, keys: Sequence[str]) -> EntryTable:
    """Entries that hold those of the keys, each without a fault."""
    if len(keys) < _FEW:
        return concatenate_entries([reader.find(key) for key in keys])
    for error in filter(None, map(reader.faults.get, keys)):
        raise type(error)(error.cause, error.remedy)
    return reader.entries()


def _stored_pieces(variable: VariableInterface) -> _Pieces:
    """The regions to store, and what has their values; shards without elements only where there is nothing else."""
    while isinstance(variable, MirroredVariable | AggregatingVariable):
        variable = variable.copies[0] if isinstance(variable, MirroredVariable) else variable.variable
    pieces = [(region, shard) for region, shard in _filled_pieces(variable) if region.size]
    return pieces or [(Region.whole(variable.shape), variable)]


def _filled_pieces(variable: VariableInterface) -> _Pieces:
    """The regions to read, and what takes their values; string tensors are never split."""
    if isinstance(variable, ShardedVariable) and dtype_name(variable.dtype) != STRING:
        return list(zip(variable.partition, variable.variables, strict=True))
    return [(Region.whole(variable.shape), variable)]


def _value(variable: VariableInterface) -> npt.NDArray[Any]:
    """A value that nobody else holds; variables of other kinds may read as their own memory."""
    value = variable.read_value()
    return value if isinstance(variable, ResourceVariable | ShardedVariable) else np.array(value)


def _plan_writes(variable: VariableInterface, value: npt.NDArray[Any]) -> list[Write]:
    if isinstance(variable, Variable):
        return [variable.plan_dense(REPLACE, value)]
    return variable._plan_dense(REPLACE, value)


def _table(tensors: Sequence[tuple[str, str, Sequence[int]]], regions: Sequence[Sequence[Region]]) -> SliceTable:
    """The slices of each tensor, in order."""
    counts = [len(row) for row in regions]
    _, offset = pad([region.offset for row in regions for region in row], fill=0)
    _, shape = pad([region.shape for row in regions for region in row], fill=1)
    return SliceTable.of(TensorTable.of(tensors), np.repeat(np.arange(len(tensors)), counts), offset, shape)
