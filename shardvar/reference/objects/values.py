"""The values of variables as slices of tensors: taken to be stored, and read back.

A plain variable is one whole slice. A sharded one is one tensor, with a slice for each shard: "13
rows in 5 shards" and "13 rows in 3" are the same tensor, and restoring into another number of
shards needs nothing else. A mirrored variable is stored once.

store    ``snapshot`` copies the values, ``in_place`` takes the memory itself; both return a source
         of arrays.
restore  ``read_writes`` reads the regions of all variables by the plan of a resharding, then plans
         their writes.

Loops here are over variables. There may be a hundred thousand, so the loops make few objects for
each.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.engine.arrays import ArraySource, array_source
from shardvar.engine.read import read_arrays
from shardvar.layout.dtypes import STRING, Array, dtype_name
from shardvar.layout.region import Region
from shardvar.planning.index import EntryTable
from shardvar.planning.plan import plan_copies
from shardvar.planning.slices import LOCAL_DEVICE, SliceTable, TensorTable, pad
from shardvar.reference.variables import (
    AggregatingVariable,
    MirroredVariable,
    ResourceVariable,
    ShardedVariable,
    VariableInterface,
)
from shardvar.reference.variables.operations import plan_replacements
from shardvar.reference.variables.updates import REPLACE
from shardvar.reference.variables.writes import Resource, Write, holding
from shardvar.verbs.arguments import stored_dtype
from shardvar.verbs.reader import Reader

Keyed = Sequence[tuple[str, VariableInterface]]
"""Variables, each with the key of its value; keys and variables differ."""
_Parts = list[tuple[Region, VariableInterface]]
"""Regions of a tensor, each with the variable or shard that has its values."""
_FEW_KEYS = 30
"""Fewer keys are looked up; for more, all entries are scanned. Of 3,000 variables, a scan takes 1
ms, and looking up takes 2 ms for 30 keys and 20 ms for 100. Of 30,000, a scan takes as long as
looking up some 150."""


# Store.


def snapshot(keyed: Keyed, others: Sequence[tuple[str, npt.NDArray[Any]]] = ()) -> ArraySource:
    """Copy the values of all variables, as of one moment, and return them with other arrays."""
    parts = [_stored_parts(variable) for _, variable in keyed]
    with holding(resources_of(keyed)):
        arrays = [_value(part) for row in parts for _, part in row]
    return _source(keyed, parts, arrays, others)


def in_place(keyed: Keyed, others: Sequence[tuple[str, npt.NDArray[Any]]] = ()) -> ArraySource:
    """Return a ``snapshot`` without a copy; the caller holds the mutexes of all ``resources_of``
    the variables."""
    parts = [_stored_parts(variable) for _, variable in keyed]
    return _source(keyed, parts, [_memory(part) for row in parts for _, part in row], others)


def resources_of(keyed: Keyed) -> list[Resource]:
    """Return the resources that hold the values."""
    return [resource for _, variable in keyed for resource in variable.resources]


def _source(
    keyed: Keyed,
    parts: Sequence[_Parts],
    arrays: Sequence[npt.NDArray[Any]],
    others: Sequence[tuple[str, npt.NDArray[Any]]],
) -> ArraySource:
    """Return the values in their regions, then the other arrays whole, in order."""
    tensors = [(key, dtype_name(variable.dtype), variable.shape) for key, variable in keyed]
    tensors += [(key, stored_dtype(key, array), array.shape) for key, array in others]
    regions = [[region for region, _ in row] for row in parts]
    slices = _table(tensors, [*regions, *([Region.whole(array.shape)] for _, array in others)])
    return array_source(_with_devices(slices, parts), [*arrays, *(array for _, array in others)])


def _with_devices(slices: SliceTable, parts: Sequence[_Parts]) -> SliceTable:
    """Return the slices, each with its device; other arrays come last, the coordinator's."""
    devices = [_device(part) for row in parts for _, part in row]
    devices += [LOCAL_DEVICE] * (len(slices) - len(devices))
    names = {name: number for number, name in enumerate(dict.fromkeys(devices))}
    device = np.fromiter(map(names.__getitem__, devices), np.int64, len(devices))
    return replace(slices, device=device, devices=tuple(names))


def _device(variable: VariableInterface) -> str:
    """Return the device of a variable; a variable without memory is the coordinator's, as the graph
    of objects is."""
    resources = variable.resources
    return resources[0].device.name if resources else LOCAL_DEVICE


def _stored_parts(variable: VariableInterface) -> _Parts:
    """Return the regions to store, each with the variable that has its values; string tensors are
    never split.

    Shards without elements are left out, unless the whole variable has none: the tensor must still
    be listed.
    """
    # R-CKPT-2 (RFC 002): "In these cases, we'll need to update AggregatingVariable and
    # MirroredVariable's" saving: one copy is stored, or the variable that an AggregatingVariable
    # wraps, in its own parts.
    while isinstance(variable, MirroredVariable | AggregatingVariable):
        variable = (
            variable.copies[0] if isinstance(variable, MirroredVariable) else variable.variable
        )
    parts: _Parts = []
    if isinstance(variable, ShardedVariable) and dtype_name(variable.dtype) != STRING:
        shards = zip(variable.partition, variable.variables, strict=True)
        parts = [(region, shard) for region, shard in shards if region.size]
    return parts or [(Region.whole(variable.shape), variable)]


def _value(variable: VariableInterface) -> npt.NDArray[Any]:
    """Return a value that no other code refers to, unlike ``read_value`` of some variables."""
    value = variable.read_value()
    return value if isinstance(variable, ResourceVariable | ShardedVariable) else np.array(value)


def _memory(variable: VariableInterface) -> npt.NDArray[Any]:
    """Return the memory of a variable; from kinds that hide theirs, a value."""
    return (
        variable.resource.array
        if isinstance(variable, ResourceVariable)
        else np.asarray(variable.read_value())
    )


def _table(
    tensors: Sequence[tuple[str, str, Sequence[int]]], regions: Sequence[Sequence[Region]]
) -> SliceTable:
    """Return the slices of each tensor, in order."""
    counts = [len(row) for row in regions]
    _, offset = pad([region.offset for row in regions for region in row], fill=0)
    _, shape = pad([region.shape for row in regions for region in row], fill=1)
    return SliceTable.of(
        TensorTable.of(tensors), np.repeat(np.arange(len(tensors)), counts), offset, shape
    )


# Restore.


def read_writes(reader: Reader, keyed: Keyed) -> list[Write]:
    """Read the values of the variables from a checkpoint, and return the writes that assign them.

    ``InconsistentTensor``, before any payload is read, where dtype or full shape differ;
    ``IncompleteCheckpoint``.
    """
    if not keyed:
        return []
    # Plan. The stored slices and the regions of the shards need not agree: this is a resharding
    # into arrays.
    targets, filled = _targets(keyed)
    entries = entries_of(reader, targets.tensors.keys)
    plan = plan_copies(entries.slices, targets)
    # Move: into arrays, not into the variables, which no reader may see half restored. The caller
    # commits.
    arrays = read_arrays(plan, reader.source, entries)
    return _plan_writes(filled, arrays)


def _targets(keyed: Keyed) -> tuple[SliceTable, list[VariableInterface]]:
    """Return the slices to read, and the variable or shard of each; strings are not split."""
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
    # Whole variables have the offset (), which needs no tuple of zeros: the columns beyond the
    # shards' are 0 anyway.
    offset = np.zeros((len(tensor), table.shapes.shape[1]), np.int64)
    padded = pad(offsets, fill=0)[1]
    offset[:, : padded.shape[1]] = padded
    return SliceTable.of(table, np.array(tensor), offset, pad(shapes, fill=1)[1]), filled


def entries_of(reader: Reader, keys: Sequence[str]) -> EntryTable:
    """Return entries that include the keys'; raise the fault of a key that has one."""
    if len(keys) < _FEW_KEYS:
        return reader.find_many(dict.fromkeys(keys))
    for error in filter(None, map(reader.faults.get, keys)):
        raise error.at()
    return reader.entries()


def _plan_writes(filled: Sequence[VariableInterface], values: Sequence[Array]) -> list[Write]:
    """Return one write of all variables of the default kind, and the writes of all others."""
    resources, arrays, writes = [], [], []
    for each, value in zip(filled, values, strict=True):
        if type(each) is ResourceVariable:
            resources.append(each.resource)
            arrays.append(value)
        else:
            writes += each.plan_writes(REPLACE, value)
    return [*plan_replacements(resources, arrays), *writes]
