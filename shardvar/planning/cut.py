"""Into which slices each tensor is cut: what ``partition=`` and ``--shards`` mean."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import translate

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Ints, is_whole
from shardvar.layout.partition import Partition, PartitionSpec, div
from shardvar.planning.slices import SliceTable, TensorTable, stack, widen

Partitioner = Callable[..., "Sequence[int] | PartitionSpec"]
Cut = int | Sequence[int] | PartitionSpec | Partition | Partitioner
"""How one tensor is cut: a number of div parts along axis 0, counts per axis, a spec, a partition, a partitioner."""


def cut_slices(slices: SliceTable, partition: Cut | Mapping[str, Cut] | None) -> SliceTable:
    """The slices with every tensor that ``partition`` speaks of cut as it says; the others stay as they are.

    A mapping goes from globs to cuts; the last glob that matches a key counts, and one that matches none is an
    ``ArgumentError``. Counts are clamped to the number of rows, and strings and scalars stay whole, as in TensorFlow. A
    partitioner is asked once for each dtype and shape.
    """
    if partition is None:
        return slices
    rules = dict(partition) if isinstance(partition, Mapping) else {"*": partition}
    tensors, cuts = slices.tensors, list(rules.values())
    rule = _rules(tensors.keys, list(rules))
    rule[np.array([cut is None for cut in cuts] + [True])[rule]] = -1
    nbytes = np.zeros(len(tensors), dtype=np.int64)
    np.add.at(nbytes, slices.tensor, slices.nbytes)
    tables = [slices.take(np.flatnonzero(rule[slices.tensor] < 0))]
    tables += [_cut_tensors(tensors, rows, cuts[rule[rows[0]]], nbytes[rows]) for rows in _alike(tensors, rule)]
    if slices.device is not None:  # what is cut anew lies where the first slice of its tensor lay
        present, first = np.unique(slices.tensor, return_index=True)
        of_tensor = np.zeros(len(tensors), dtype=np.int64)
        of_tensor[present] = slices.device[first]
        tables[1:] = [replace(cut, device=of_tensor[cut.tensor], devices=slices.devices) for cut in tables[1:]]
    table = stack(tables)
    # Tensors keep their order; the slices of one follow each other.
    return table.take(np.argsort(table.tensor, kind="stable"))


def _rules(keys: Sequence[str], globs: Sequence[str]) -> Ints:
    """[n] which glob, the last one that matches, speaks of each key; -1 where none does."""
    rule = np.full(len(keys), -1, dtype=np.int64)
    for number, glob in enumerate(globs):
        matches = re.compile(translate(glob)).match  # what fnmatchcase does, but once
        matched = [row for row, key in enumerate(keys) if matches(key)]
        if not matched and glob != "*":
            raise ArgumentError(f"No tensor matches {glob!r}.", "`shardvar inspect` lists the keys.")
        rule[matched] = number
    return rule


def _alike(tensors: TensorTable, rule: Ints) -> list[Ints]:
    """The tensors that a rule speaks of, those of one rule, dtype and shape together, which are cut alike."""
    rows = np.flatnonzero(rule >= 0)
    if not len(rows):
        return []
    columns = np.column_stack([rule, tensors.codes, tensors.ranks, tensors.shapes])[rows]
    order = np.lexsort(columns.T[::-1])
    differs = (columns[order[1:]] != columns[order[:-1]]).any(axis=1)
    return sorted(np.split(rows[order], np.flatnonzero(differs) + 1), key=lambda alike: int(alike[0]))


def parts_of(shape: tuple[int, ...], dtype: str, cut: Cut) -> Sequence[tuple[Sequence[int], Sequence[int]]]:
    """The (offset, shape) of each part of one tensor."""
    if callable(cut):
        cut = cut(shape, dtype)
    if is_whole(dtype) or not shape:
        return [((0,) * len(shape), shape)]
    if isinstance(cut, Partition):
        if cut.shape != shape:
            raise ArgumentError(f"A partition of {cut.shape} does not fit a tensor of shape {shape}.")
        return [(part.offset, part.shape) for part in cut]
    if isinstance(cut, (int, np.integer)):
        cut = (int(cut),)
    if not isinstance(cut, (Sequence, PartitionSpec)):
        raise ArgumentError(
            f"{cut!r} does not say how a tensor is cut.", "Give a number of parts, or one for each axis."
        )
    spec = cut if isinstance(cut, PartitionSpec) else PartitionSpec(partitions=cut)
    if spec.partitions is not None:
        counts = [min(count, max(extent, 1)) for count, extent in zip(spec.partitions, shape, strict=False)]
        if len(spec.partitions) == 1:
            # By far the most usual cut, and there may be many tensors: it needs no proof.
            rest_offset, rest = (0,) * (len(shape) - 1), shape[1:]
            return [((a, *rest_offset), (b - a, *rest)) for a, b in div(shape[0], counts[0])]
        spec = PartitionSpec(partitions=[*counts, *spec.partitions[len(shape) :]])
    return [(part.offset, part.shape) for part in Partition.from_sizes(shape, spec.sizes(shape))]


def _cut_tensors(tensors: TensorTable, rows: Ints, cut: Cut, nbytes: Ints) -> SliceTable:
    """The slices of tensors of one dtype and shape, tensor by tensor; ``nbytes`` are those of the whole tensors."""
    first = int(rows[0])
    tensor_shape = tensors.shape(first)
    try:
        parts = parts_of(tensor_shape, tensors.dtype(first), cut)
    except ArgumentError as error:
        raise type(error)(f"{tensors.keys[first]!r}: {error.cause}", error.remedy) from error
    columns = [start for start, _ in parts], [extent for _, extent in parts]
    offset, shape = (np.array(column, dtype=np.int64).reshape(len(parts), len(tensor_shape)) for column in columns)
    rank, times = tensors.shapes.shape[1], (len(rows), 1)
    offset, shape = np.tile(widen(offset, rank, 0), times), np.tile(widen(shape, rank, 1), times)
    return SliceTable.of(tensors, np.repeat(rows, len(parts)), offset, shape, np.repeat(nbytes, len(parts)))
