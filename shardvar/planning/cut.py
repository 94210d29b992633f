"""Into which slices each tensor is cut: what ``partition=`` and ``--shards`` mean."""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import is_whole
from shardvar.layout.partition import Partition, PartitionSpec, div
from shardvar.planning.slices import SliceTable, TensorTable, concatenate

Partitioner = Callable[..., "Sequence[int] | PartitionSpec"]
Cut = int | Sequence[int] | PartitionSpec | Partition | Partitioner
"""How one tensor is cut: a number of div parts along axis 0, counts per axis, a spec, a partition, a partitioner."""


def cut_slices(slices: SliceTable, partition: Cut | Mapping[str, Cut] | None) -> SliceTable:
    """The slices with every tensor that ``partition`` speaks of cut as it says; the others stay as they are.

    A mapping goes from globs to cuts; the last glob that matches a key counts, and one that matches none is an
    ``ArgumentError``. Counts are clamped to the number of rows, and strings and scalars stay whole, as in TensorFlow.
    """
    if partition is None:
        return slices
    rules = dict(partition) if isinstance(partition, Mapping) else {"*": partition}
    for glob in rules:
        if not any(fnmatchcase(key, glob) for key in slices.tensors.keys) and glob != "*":
            raise ArgumentError(f"No tensor matches {glob!r}.", "`shardvar inspect` lists the keys.")
    cuts = [
        next((cut for glob, cut in reversed(rules.items()) if fnmatchcase(key, glob)), None)
        for key in slices.tensors.keys
    ]
    spoken = np.array([cut is not None for cut in cuts], dtype=np.bool)
    tables = [slices.take(np.flatnonzero(~spoken[slices.tensor]))]
    nbytes = np.zeros(len(slices.tensors), dtype=np.int64)
    np.add.at(nbytes, slices.tensor, slices.nbytes)
    for row, cut in enumerate(cuts):
        if cut is not None:
            tables.append(_cut_tensor(slices.tensors, row, cut, int(nbytes[row])))
    table = concatenate(tables)
    # Tensors keep their order; the slices of one follow each other.
    return table.take(np.argsort(table.tensor, kind="stable"))


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


def _cut_tensor(tensors: TensorTable, row: int, cut: Cut, nbytes: int) -> SliceTable:
    one = tensors.take(np.array([row]))
    rank = one.shapes.shape[1]
    try:
        parts = parts_of(tensors.shape(row), tensors.dtype(row), cut)
    except ArgumentError as error:
        raise type(error)(f"{tensors.keys[row]!r}: {error.cause}", error.remedy) from error
    offset = np.zeros((len(parts), rank), dtype=np.int64)
    shape = np.ones((len(parts), rank), dtype=np.int64)
    for position, (start, extent) in enumerate(parts):
        offset[position, : len(start)] = start
        shape[position, : len(extent)] = extent
    count = len(parts)
    return SliceTable.of(one, np.zeros(count, dtype=np.int64), offset, shape, np.full(count, nbytes))
