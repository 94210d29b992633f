"""The slices of each tensor: what ``partition=`` and ``--shards`` mean for a whole checkpoint.

``layout.cutting`` says how one tensor is cut. Here tensors are matched with globs, and those of one dtype and shape,
which are cut alike, are cut together: a checkpoint may have 100,000 tensors, but it has few shapes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import translate

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.cutting import Cut, part_columns
from shardvar.layout.dtypes import Ints, is_whole
from shardvar.planning.slices import SliceTable, TensorTable, stack, widen


def cut_slices(slices: SliceTable, partition: Cut | Mapping[str, Cut] | None) -> SliceTable:
    """Cut every tensor that ``partition`` speaks of; the others stay as they are.

    A mapping goes from globs to cuts; the last glob that matches a key counts, and one that matches none is an
    ``ArgumentError``. Counts are clamped to the number of rows, and strings and scalars stay whole, as in TensorFlow. A
    partitioner is asked once for each dtype and shape. One of three arguments gets as ``num_shards`` the number of
    tasks that hold the slices, which is the number of parameter servers; it is 1 for arrays and for files.
    """
    if partition is None:
        return slices
    rules = dict(partition) if isinstance(partition, Mapping) else {"*": partition}
    tensors, cuts = slices.tensors, list(rules.values())
    rule = _rules(tensors.keys, list(rules))
    # A cut of None takes its tensors back from earlier globs; the last place is that of tensors without a rule, -1.
    rule[np.array([cut is None for cut in cuts] + [True])[rule]] = -1
    nbytes = slices.nbytes_of_tensors()
    num_shards = len(slices.tasks()[1]) if any(map(callable, cuts)) else 1
    tables = [slices.take(np.flatnonzero(rule[slices.tensor] < 0))]
    tables += [
        _cut_tensors(tensors, rows, cuts[rule[rows[0]]], nbytes[rows], num_shards) for rows in _alike(tensors, rule)
    ]
    if slices.device is not None:  # a tensor that is cut lies where its first slice was
        present, first = np.unique(slices.tensor, return_index=True)
        of_tensor = np.zeros(len(tensors), dtype=np.int64)
        of_tensor[present] = slices.device[first]
        tables[1:] = [replace(cut, device=of_tensor[cut.tensor], devices=slices.devices) for cut in tables[1:]]
    table = stack(tables)
    # Tensors keep their order; the slices of one follow each other.
    return table.take(table.by_tensor()[0])


def _rules(keys: Sequence[str], globs: Sequence[str]) -> Ints:
    """[n] the number of the last glob that matches each key; -1 if none does."""
    rule = np.full(len(keys), -1, dtype=np.int64)
    for number, glob in enumerate(globs):
        matches = re.compile(translate(glob)).match  # what fnmatchcase does, but once
        matched = [row for row, key in enumerate(keys) if matches(key)]
        if not matched and glob != "*":
            raise ArgumentError(f"No tensor matches {glob!r}.", "`shardvar inspect` lists the keys.")
        rule[matched] = number
    return rule


def _alike(tensors: TensorTable, rule: Ints) -> list[Ints]:
    """The tensors with a rule, those of one rule, dtype and shape together, which are cut alike."""
    rows = np.flatnonzero(rule >= 0)
    if not len(rows):
        return []
    columns = np.column_stack([rule, tensors.codes, tensors.ranks, tensors.shapes])[rows]
    # Equal rows of the matrix are neighbours once they are sorted; where a row differs from the one before, a group
    # begins. Groups are put in the order of their first tensors, so that errors name the first one.
    order = np.lexsort(columns.T[::-1])
    differs = (columns[order[1:]] != columns[order[:-1]]).any(axis=1)
    return sorted(np.split(rows[order], np.flatnonzero(differs) + 1), key=lambda alike: int(alike[0]))


def _cut_tensors(tensors: TensorTable, rows: Ints, cut: Cut, nbytes: Ints, num_shards: int) -> SliceTable:
    """The slices of tensors of one dtype and shape, tensor by tensor; ``nbytes`` are those of the whole tensors."""
    first = int(rows[0])
    full_shape, dtype = tensors.shape(first), tensors.dtype(first)
    if is_whole(dtype) or not full_shape:
        return _whole(tensors, rows, nbytes)
    try:
        offset, shape = part_columns(cut, full_shape, dtype, num_shards)
    except ArgumentError as error:
        raise type(error)(f"{tensors.keys[first]!r}: {error.cause}", error.remedy) from error
    count, rank, times = len(offset), tensors.shapes.shape[1], (len(rows), 1)
    offset, shape = np.tile(widen(offset, rank, 0), times), np.tile(widen(shape, rank, 1), times)
    return SliceTable.of(tensors, np.repeat(rows, count), offset, shape, np.repeat(nbytes, count))


def _whole(tensors: TensorTable, rows: Ints, nbytes: Ints) -> SliceTable:
    """One slice for each of some tensors, which holds all of it."""
    shapes = tensors.shapes[rows]
    return SliceTable.of(tensors, rows, np.zeros_like(shapes), shapes, nbytes)
