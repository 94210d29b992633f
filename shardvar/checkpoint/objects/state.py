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
from shardvar.engine.arrays import ArraySource, array_source
from shardvar.layout.dtypes import STRING, dtype_name
from shardvar.layout.region import Region
from shardvar.planning.slices import LOCAL_DEVICE, SliceTable, TensorTable, pad
from shardvar.variables import (
    AggregatingVariable,
    MirroredVariable,
    ResourceVariable,
    ShardedVariable,
    VariableInterface,
)
from shardvar.variables.resource import Resource, holding

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
