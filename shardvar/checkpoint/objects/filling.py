"""Filling variables from a checkpoint, whatever slices it holds: everything is read, then everything is written.

A plain variable is one region of its tensor, a sharded one a region a shard, and it is the plan of a resharding that
fills them. Loops here are over variables, of which there may be a hundred thousand: what is one region needs none made.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardvar.checkpoint.reader import Reader
from shardvar.engine.read import read_arrays
from shardvar.layout.dtypes import STRING, Array, dtype_name
from shardvar.planning.index import EntryTable, concatenate_entries
from shardvar.planning.plan import plan_copies
from shardvar.planning.slices import SliceTable, TensorTable, pad
from shardvar.variables import ResourceVariable, ShardedVariable, VariableInterface
from shardvar.variables.operations import plan_replacements
from shardvar.variables.resource import Write
from shardvar.variables.updates import REPLACE

Keyed = Sequence[tuple[str, VariableInterface]]
"""Variables, each with the key of its value; keys and variables differ."""
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
