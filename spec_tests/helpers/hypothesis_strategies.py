"""Hypothesis strategies that the tests share: the public ones of ``shardvar.testing``, and tables
of columns.

What others can use is written there and has its name here too; what only shardvar's own layers know
of is written here.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from shardvar.layout import PartitionSpec, Region
from shardvar.layout.dtypes import dtype_name
from shardvar.layout.partition import Cut
from shardvar.planning.slices import SliceTable, TensorTable
from shardvar.testing.arrays import (
    NUMBERS,
    ODD_KEYS,
    arrays,
    checkpoints,
    halves,
    keys,
    partitions,
    regions,
    regions_in,
    shapes,
    string_arrays,
    tilings,
    values,
)

__all__ = [
    "NUMBERS", "ODD_KEYS", "any_indexes", "arrays", "cut_tables", "cuts", "filled_shapes", "halves", "keys",
    "named_regions", "partitions", "payload_of", "regions", "regions_in", "same", "shapes", "slice_tables",
    "string_arrays", "table_of", "tensor_dicts", "tensor_tables", "tilings", "values",
]  # fmt: skip

Array = npt.NDArray[Any]

tensor_dicts = checkpoints
"""Named arrays of any kind."""


def filled_shapes(
    max_rank: int = 3, max_extent: int = 6, min_rank: int = 0
) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes with at least one element; they shrink to ``()``."""
    return st.lists(st.integers(1, max_extent), min_size=min_rank, max_size=max_rank).map(tuple)


@st.composite
def any_indexes(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """Any index of NumPy: integers, slices, new axes, an ellipsis, lists, arrays of several axes,
    masks, booleans. Arrays may not broadcast."""
    items: list[Any] = []
    for extent in shape[: draw(st.integers(0, len(shape)))]:
        rows = st.integers(-extent, extent - 1)
        several: st.SearchStrategy[Any] = st.lists(rows, max_size=4) if extent else st.just([])
        if extent:
            two = st.lists(st.tuples(rows, rows, rows), min_size=1, max_size=2)
            several = st.one_of(several, rows, two.map(np.array))
        mask = st.lists(st.booleans(), min_size=extent, max_size=extent)
        masks = mask.map(lambda bits: np.array(bits, np.bool))
        items.append(draw(st.one_of(st.slices(extent), several, masks)))
    for extra in draw(st.lists(st.sampled_from([None, ..., True, False]), max_size=2)):
        if extra is not ... or ... not in [each for each in items if each is ...]:
            items.insert(draw(st.integers(0, len(items))), extra)
    return tuple(items)


@st.composite
def cuts(draw: st.DrawFn, shape: tuple[int, ...]) -> Cut:
    """Anything that says how one tensor is cut."""
    counts = draw(st.lists(st.integers(1, 7), max_size=len(shape)))
    return draw(
        st.one_of(
            st.integers(1, 9),
            st.just(tuple(counts)),
            st.just(PartitionSpec(partitions=counts)),
            partitions(shape),
            st.just(lambda shape, dtype: counts[: len(shape)]),
        )
    )


@st.composite
def cut_tables(draw: st.DrawFn, tensors: TensorTable) -> SliceTable:
    """Every tensor of a table cut by a tiling of its own; strings stay whole."""
    rows = []
    for row in range(len(tensors)):
        whole = tensors.dtype(row) in ("string", "variant")
        shape = tensors.shape(row)
        rows.extend(
            (row, part) for part in ([Region.whole(shape)] if whole else draw(tilings(shape)))
        )
    return table_of(tensors, rows)


def table_of(tensors: TensorTable, rows: Sequence[tuple[int, Region]]) -> SliceTable:
    """The table of (tensor, region) rows."""
    rank = tensors.shapes.shape[1]
    offset = np.zeros((len(rows), rank), np.int64)
    shape = np.ones((len(rows), rank), np.int64)
    for position, (_, region) in enumerate(rows):
        offset[position, : region.rank] = region.offset
        shape[position, : region.rank] = region.shape
    tensor = np.array([tensor for tensor, _ in rows], np.int64)
    return SliceTable.of(tensors, tensor, offset, shape, np.full(len(rows), 7))


@st.composite
def tensor_tables(draw: st.DrawFn, max_tensors: int = 4, max_rank: int = 3) -> TensorTable:
    """Tables of tensors with different keys, strings among them."""
    names = draw(st.lists(keys(), max_size=max_tensors, unique=True))
    dtypes = st.sampled_from(["float32", "bfloat16", "int8", "complex128", "string"])
    return TensorTable.of([(name, draw(dtypes), draw(shapes(max_rank, 5))) for name in names])


@st.composite
def slice_tables(draw: st.DrawFn, max_tensors: int = 4) -> SliceTable:
    """Well-formed tables of slices, in any order."""
    table = draw(cut_tables(draw(tensor_tables(max_tensors))))
    return table.take(np.array(draw(st.permutations(range(len(table)))), np.int64))


def same(a: Array, b: Array) -> bool:
    """True where two arrays have the same dtype but for byte order, the same shape and the same
    bits or strings."""
    if dtype_name(a.dtype) != dtype_name(b.dtype) or a.shape != b.shape:
        return False
    if a.dtype == object:
        return [bytes(x) for x in a.ravel()] == [bytes(x) for x in b.ravel()]
    return payload_of(a) == payload_of(b)


def payload_of(array: Array) -> bytes:
    """The bytes of an array of numbers in C order, little-endian: the definition, by NumPy
    alone."""
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def named_regions(cause: str) -> list[tuple[slice, ...]]:
    """The regions that an error says are missing, as NumPy's indexes."""
    texts = [part[part.index("[") + 1 :] for part in cause.partition(" lacks ")[2].split("]")[:-1]]
    return [
        tuple(slice(*map(int, axis.split(":"))) for axis in text.split(", ") if axis)
        for text in texts
    ]
