"""Hypothesis strategies that the tests share: regions, tilings, tables, arrays, partitions, keys.

Everything that they draw is small and odd: laws break at zero rows, at rank 0, at strides that run backwards and at
keys that nobody would choose, not at size.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from shardvar.layout import Partition, PartitionSpec, Region
from shardvar.layout.dtypes import dtype_name, numpy_dtype
from shardvar.planning.cut import Cut
from shardvar.planning.slices import SliceTable, TensorTable

Array = npt.NDArray[Any]

NUMBERS = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 "
    "bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3b11fnuz float4_e2m1fn int4 uint4 int2"
).split()
"""Dtypes with values of a fixed size, one of each kind that is treated differently anywhere."""

ODD_KEYS = (
    "a", "b", "w/b", "w/.ATTRIBUTES/VARIABLE_VALUE", "layer.0.weight", "é", "日本", "a b", "..", "../x", "/a", "a\\b",
    "A", "a.npy", ".", "-", "*", "[x]", "x" * 200, "\u0001", "🙂", "~", "key:0", "a/", "%s", "'", '"',
)  # fmt: skip
"""Names that are legal and that a path, a pattern, a header or an escape may trip over."""


def shapes(max_rank: int = 3, max_extent: int = 6, min_rank: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes, those without elements and without axes included."""
    return st.lists(st.integers(0, max_extent), min_size=min_rank, max_size=max_rank).map(tuple)


def filled_shapes(max_rank: int = 3, max_extent: int = 6, min_rank: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes with at least one element."""
    return st.lists(st.integers(1, max_extent), min_size=min_rank, max_size=max_rank).map(tuple)


def regions(rank: int, limit: int = 6) -> st.SearchStrategy[Region]:
    """Regions anywhere below ``2 * limit``, empty ones included."""
    axis = st.tuples(st.integers(0, limit), st.integers(0, limit))
    return st.lists(axis, min_size=rank, max_size=rank).map(lambda axes: Region(*_columns(axes)))


def regions_in(shape: Sequence[int]) -> st.SearchStrategy[Region]:
    """Regions within a shape, empty ones included."""
    axes = [st.tuples(st.integers(0, extent), st.integers(0, extent)).map(sorted) for extent in shape]
    return st.tuples(*axes).map(lambda cuts: Region((a for a, _ in cuts), (b - a for a, b in cuts)))


@st.composite
def tilings(draw: st.DrawFn, shape: Sequence[int], max_cuts: int = 6) -> list[Region]:
    """Regions that tile a shape, made by cutting one of them in two again and again, in any order.

    Cuts may be at an end, which makes empty regions; most such tilings are no grid.
    """
    parts = [Region.whole(shape)]
    if shape:
        for _ in range(draw(st.integers(0, max_cuts))):
            part = parts.pop(draw(st.integers(0, len(parts) - 1)))
            axis = draw(st.integers(0, len(shape) - 1))
            parts.extend(halves(part, axis, draw(st.integers(0, part.shape[axis]))))
    return draw(st.permutations(parts))


def halves(region: Region, axis: int, count: int) -> tuple[Region, Region]:
    """The first ``count`` indices of a region along an axis, and the others."""
    offset, first, rest = list(region.offset), list(region.shape), list(region.shape)
    first[axis], rest[axis] = count, rest[axis] - count
    low = Region(offset, first)
    offset[axis] += count
    return low, Region(offset, rest)


def partitions(shape: Sequence[int]) -> st.SearchStrategy[Partition]:
    """Proven partitions of a shape."""
    return tilings(shape).map(lambda parts: Partition(tuple(shape), tuple(parts)))


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


def keys() -> st.SearchStrategy[str]:
    """Names of tensors: plain ones, odd ones, any text without surrogates and NULs."""
    text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
    return st.one_of(st.sampled_from(ODD_KEYS), text)


def values(dtype: np.dtype[Any], count: int) -> st.SearchStrategy[Array]:
    """``count`` elements of any bits that the dtype allows, NaNs with payloads included."""
    if dtype == np.bool:
        return st.lists(st.booleans(), min_size=count, max_size=count).map(lambda v: np.array(v, np.bool))
    if dtype.name in ("int4", "uint4", "int2", "uint2"):
        low, high = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}[dtype.name]
        return st.lists(st.integers(low, high), min_size=count, max_size=count).map(lambda v: np.array(v).astype(dtype))
    bits = 4 if dtype.name.startswith("float4") else 8
    octets = st.integers(0, 2**32 - 1).map(np.random.default_rng)
    return octets.map(lambda rng: rng.integers(0, 1 << bits, count * dtype.itemsize, dtype=np.uint8).view(dtype))


@st.composite
def arrays(draw: st.DrawFn, dtypes: Sequence[str] = tuple(NUMBERS), max_rank: int = 3, max_extent: int = 6) -> Array:
    """Arrays of any dtype, byte order and strides: transposed, reversed, spread out, broadcast, 0-d, empty."""
    dtype = numpy_dtype(draw(st.sampled_from(list(dtypes))))
    shape = draw(shapes(max_rank, max_extent))
    array = draw(values(dtype, int(np.prod(shape, dtype=np.int64)))).reshape(shape)
    manner = draw(st.sampled_from(["plain", "fortran", "reversed", "spread", "swapped", "transposed", "read-only"]))
    if manner == "fortran":
        return np.asfortranarray(array)
    if manner == "reversed":
        return array[tuple(slice(None, None, -1) for _ in shape)]
    if manner == "spread" and shape:
        wide = np.zeros((*shape[:-1], 2 * shape[-1]), dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if manner == "swapped" and dtype.isbuiltin == 1:
        return array.astype(dtype.newbyteorder(">"))
    if manner == "transposed":
        return array.T
    if manner == "read-only":
        array = array.copy()
        array.flags.writeable = False
    return array


@st.composite
def string_arrays(draw: st.DrawFn, max_rank: int = 2, max_extent: int = 3) -> Array:
    """Object arrays of bytes: empty ones, NULs at their ends, 0-d arrays."""
    shape = draw(shapes(max_rank, max_extent))
    array = np.empty(shape, object)
    element = st.one_of(st.sampled_from([b"", b"\0", b"a\0", b"\xff" * 300]), st.binary(max_size=9))
    for index in np.ndindex(shape):
        array[index] = draw(element)
    return array


@st.composite
def tensor_dicts(draw: st.DrawFn, dtypes: Sequence[str] = tuple(NUMBERS), strings: bool = False) -> dict[str, Array]:
    """A few named arrays; with ``strings`` object arrays of bytes among them."""
    each = arrays(dtypes)
    names = st.dictionaries(keys(), st.one_of(each, string_arrays()) if strings else each, max_size=4)
    return draw(names)


@st.composite
def cut_tables(draw: st.DrawFn, tensors: TensorTable) -> SliceTable:
    """Every tensor of a table cut by a tiling of its own; strings stay whole."""
    rows = []
    for row in range(len(tensors)):
        whole = tensors.dtype(row) in ("string", "variant")
        shape = tensors.shape(row)
        rows.extend((row, part) for part in ([Region.whole(shape)] if whole else draw(tilings(shape))))
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
    """True where two arrays have the same dtype but for byte order, the same shape and the same bits or strings."""
    if dtype_name(a.dtype) != dtype_name(b.dtype) or a.shape != b.shape:
        return False
    if a.dtype == object:
        return [bytes(x) for x in a.ravel()] == [bytes(x) for x in b.ravel()]
    return payload_of(a) == payload_of(b)


def payload_of(array: Array) -> bytes:
    """The bytes of an array of numbers in C order, little-endian: the definition, by NumPy alone."""
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def named_regions(cause: str) -> list[tuple[slice, ...]]:
    """The regions that an error says are missing, as NumPy's indexes."""
    texts = [part[part.index("[") + 1 :] for part in cause.partition(" lacks ")[2].split("]")[:-1]]
    return [tuple(slice(*map(int, axis.split(":"))) for axis in text.split(", ") if axis) for text in texts]


def _columns(axes: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [offset for offset, _ in axes], [extent for _, extent in axes]
