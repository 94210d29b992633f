"""Strategies for shapes and arrays: every dtype, byte order and memory layout."""

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from shardvar.layout import Partition, Region
from shardvar.layout.dtypes import Array, DType, numpy_dtype
from shardvar.layout.shard_counts import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    Partitioner,
)
from shardvar.planning.policies import AllInOnePolicy, BalancedPolicy, MaxShardSizePolicy

NUMBERS = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 "
    "complex128 "
    "bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3b11fnuz float4_e2m1fn int4 uint4 int2"
).split()
"""Dtypes with values of a fixed size, one of each kind that is treated differently anywhere."""


def shapes(
    max_rank: int = 3, max_extent: int = 6, min_rank: int = 0
) -> st.SearchStrategy[tuple[int, ...]]:
    """Return shapes, including shapes without elements and without axes.

    Parameters
    ----------
    max_rank : int, default 3
        The most axes.
    max_extent : int, default 6
        The largest extent of an axis.
    min_rank : int, default 0
        The fewest axes.

    Returns
    -------
    SearchStrategy of tuple of int
        The strategy. Shapes shrink to ``()``.
    """
    return st.lists(st.integers(0, max_extent), min_size=min_rank, max_size=max_rank).map(tuple)


def counting(shape: Sequence[int], dtype: npt.DTypeLike = np.float32) -> Array:
    """Return the array 1, 2, 3 and so on: each element shows its origin, and none is zero, as a
    hole would be.

    Parameters
    ----------
    shape : sequence of int
        The shape.
    dtype : dtype_like, optional
        The dtype, float32 by default.

    Examples
    --------
    >>> counting((2, 2), np.int64)
    array([[1, 2],
           [3, 4]])
    """
    return np.arange(1, np.prod(shape, dtype=int) + 1).reshape(shape).astype(dtype)


# Each is stored in a whole byte, and random bytes would set bits that its values do not have.
_NARROW = {"bool": (0, 1), "int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}
"""The least and the greatest value of the dtypes that are narrower than a byte, but for floats."""


def values(dtype: DType, count: int) -> st.SearchStrategy[Array]:
    """Return ``count`` elements of any bits that the dtype allows, including NaNs with payloads."""
    if dtype.name in _NARROW:
        numbers = st.integers(*_NARROW[dtype.name])
        return st.lists(numbers, min_size=count, max_size=count).map(
            lambda v: np.array(v).astype(dtype)
        )
    bits = _used_bits(dtype)
    # One seed instead of one draw a byte: Hypothesis is slow with long lists, and shrinking single
    # bits gains nothing.
    octets = st.integers(0, 2**32 - 1).map(np.random.default_rng)
    return octets.map(
        lambda rng: rng.integers(0, 1 << bits, count * dtype.itemsize, dtype=np.uint8).view(dtype)
    )


def _used_bits(dtype: DType) -> int:
    """Return the lower bits of each byte that a number uses: 4 for a float4, 6 for a float6."""
    return int(dtype.name[5]) if dtype.itemsize == 1 and dtype.name.startswith("float") else 8


def bits(dtype: DType, shape: Sequence[int]) -> st.SearchStrategy[Array]:
    """Return arrays of a dtype and a shape: 1, 2, 3 and so on, with one odd element, or of any
    bits.

    Parameters
    ----------
    dtype : dtype
        The dtype.
    shape : sequence of int
        The shape.

    Returns
    -------
    SearchStrategy of ndarray
        The strategy. Arrays shrink to 1, 2, 3 and so on. The odd element is a NaN with a sign and a
        payload, or the largest integer.
    """
    count = prod(shape)
    counted = counting((count,), dtype)
    # Not every bit of a byte is the value's in the narrow dtypes.
    if not count or dtype.name in _NARROW or _used_bits(dtype) < 8:
        return values(dtype, count).map(lambda array: array.reshape(shape))
    odd = st.integers(0, count - 1).map(lambda at: _with_odd(counted, at))
    return st.one_of(st.just(counted), odd, values(dtype, count)).map(
        lambda array: array.reshape(shape)
    )


def _with_odd(array: Array, at: int) -> Array:
    """Return an array in which one element has ones for bits, but for the sign of an integer."""
    changed = array.copy()
    element = changed[at : at + 1].view(np.uint8)
    element[:] = 255
    if array.dtype.kind == "i":
        # The highest byte of a little-endian integer: 0x7f and ones are the largest, and lose it in
        # fewer bits.
        element[-1] = 127
    return changed


@st.composite
def arrays(
    draw: st.DrawFn, dtypes: Sequence[str] = tuple(NUMBERS), max_rank: int = 3, max_extent: int = 6
) -> Array:
    """Draw arrays of any dtype, byte order and strides: transposed, reversed, spread out,
    read-only, 0-d, empty.

    Parameters
    ----------
    dtypes : sequence of str, optional
        The names of the dtypes; one of each kind by default.
    max_rank : int, default 3
        The most axes.
    max_extent : int, default 6
        The largest extent of an axis.

    Returns
    -------
    SearchStrategy of ndarray
        The strategy. Arrays shrink to fewer axes and elements in plain C order.
    """
    dtype = numpy_dtype(draw(st.sampled_from(list(dtypes))))
    shape = draw(shapes(max_rank, max_extent))
    array = draw(values(dtype, prod(shape))).reshape(shape)
    manner = draw(
        st.sampled_from(
            ["plain", "fortran", "reversed", "spread", "swapped", "transposed", "read-only"]
        )
    )
    if manner == "fortran":
        return np.asfortranarray(array)
    if manner == "reversed":
        return array[tuple(slice(None, None, -1) for _ in shape)]
    if manner == "spread" and shape:
        wide = np.zeros((*shape[:-1], 2 * shape[-1]), dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    # Dtypes of ml_dtypes (``isbuiltin`` 2) have one byte order only.
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
    """Draw object arrays of bytes: empty texts, NULs at their ends, 0-d arrays.

    Parameters
    ----------
    max_rank : int, default 2
        The most axes.
    max_extent : int, default 3
        The largest extent of an axis.

    Returns
    -------
    SearchStrategy of ndarray
        The strategy. Elements shrink to ``b""``.
    """
    shape = draw(shapes(max_rank, max_extent))
    array = np.empty(shape, object)
    # The length 300 does not fit in one byte, and 0xff is not UTF-8.
    element = st.one_of(st.sampled_from([b"", b"\0", b"a\0", b"\xff" * 300]), st.binary(max_size=9))
    for index in np.ndindex(shape):
        array[index] = draw(element)
    return array


def regions(rank: int, limit: int = 6) -> st.SearchStrategy[Region]:
    """Return regions of a rank anywhere below ``2 * limit``, including empty ones.

    Parameters
    ----------
    rank : int
        The number of axes.
    limit : int, default 6
        The largest offset and the largest extent along an axis.

    Returns
    -------
    SearchStrategy of Region
        The strategy. Regions shrink towards the origin.
    """
    axis = st.tuples(st.integers(0, limit), st.integers(0, limit))
    return st.lists(axis, min_size=rank, max_size=rank).map(
        lambda axes: Region([offset for offset, _ in axes], [extent for _, extent in axes])
    )


def regions_in(shape: Sequence[int]) -> st.SearchStrategy[Region]:
    """Return regions within a shape, including empty ones.

    Parameters
    ----------
    shape : sequence of int
        The shape.
    """
    axes = [
        st.tuples(st.integers(0, extent), st.integers(0, extent)).map(sorted) for extent in shape
    ]
    return st.tuples(*axes).map(lambda cuts: Region((a for a, _ in cuts), (b - a for a, b in cuts)))


@st.composite
def tilings(draw: st.DrawFn, shape: Sequence[int], max_cuts: int = 6) -> list[Region]:
    """Draw regions that tile a shape, made by repeatedly cutting one of them in two, in any order.

    Parameters
    ----------
    shape : sequence of int
        The shape.
    max_cuts : int, default 6
        The most cuts. They may be at an end, which makes empty regions.

    Returns
    -------
    SearchStrategy of list of Region
        The strategy. Most tilings are not grids; they shrink to the whole.
    """
    # Cuts in two do not reach every tiling: a pinwheel of five rectangles has no cut from end to
    # end.
    parts = [Region.whole(shape)]
    if shape:
        for _ in range(draw(st.integers(0, max_cuts))):
            part = parts.pop(draw(st.integers(0, len(parts) - 1)))
            axis = draw(st.integers(0, len(shape) - 1))
            parts.extend(halves(part, axis, draw(st.integers(0, part.shape[axis]))))
    return draw(st.permutations(parts))


def halves(region: Region, axis: int, count: int) -> tuple[Region, Region]:
    """Return the first ``count`` indices of a region along an axis, and the others."""
    offset, first, rest = list(region.offset), list(region.shape), list(region.shape)
    first[axis], rest[axis] = count, rest[axis] - count
    low = Region(offset, first)
    offset[axis] += count
    return low, Region(offset, rest)


def partitions(shape: Sequence[int]) -> st.SearchStrategy[Partition]:
    """Return partitions of a shape. See ``tilings`` for the parameters."""
    return tilings(shape).map(lambda parts: Partition(tuple(shape), tuple(parts)))


def layouts(max_shards: int = 13, max_rows: int = 4) -> st.SearchStrategy[list[int]]:
    """Return the rows of each shard: uneven numbers, including zero.

    Parameters
    ----------
    max_shards : int, default 13
        The most shards. If it is above ten, some have more than ten: sorted as text, shard 10 comes
        before shard 2.
    max_rows : int, default 4
        The most rows of a shard.

    Returns
    -------
    SearchStrategy of list of int
        The strategy. Layouts shrink to one shard without rows.
    """
    rows = st.integers(0, max_rows)
    few = st.lists(rows, min_size=1, max_size=min(max_shards, 5))
    if max_shards <= 5:
        return few
    # Long lists are rare where short lists are allowed, so they are asked for.
    return few | st.lists(rows, min_size=min(max_shards, 11), max_size=max_shards)


def partitioners(max_shards: int = 9, max_nbytes: int = 200) -> st.SearchStrategy[Partitioner]:
    """Return partitioners of the three families, with limits that small variables reach.

    Parameters
    ----------
    max_shards : int, default 9
        The most shards.
    max_nbytes : int, default 200
        The largest limit of a shard, in bytes.
    """
    shards, nbytes = st.integers(1, max_shards), st.integers(1, max_nbytes)
    return st.one_of(
        st.builds(FixedShardsPartitioner, shards),
        st.builds(MinSizePartitioner, nbytes, shards),
        st.builds(MaxSizePartitioner, nbytes, st.none() | shards),
    )


Policy = AllInOnePolicy | BalancedPolicy | MaxShardSizePolicy

# ``a`` comes first, since ``sampled_from`` shrinks to its first element. ``a`` and ``A`` may be one
# file.
ODD_KEYS = (
    "a", "b", "w/b", "w/.ATTRIBUTES/VARIABLE_VALUE", "layer.0.weight", "é", "日本", "a b", "..", "../x", "/a", "a\\b",
    "A", "a.npy", ".", "-", "*", "[x]", "x" * 200, "\u0001", "🙂", "~", "key:0", "a/", "%s", "'", '"',
)  # fmt: skip
"""Legal names that break naive handling of paths, patterns, headers or escapes."""


def keys() -> st.SearchStrategy[str]:
    """Return names of tensors: plain, odd, any text without surrogates and NULs.

    Returns
    -------
    SearchStrategy of str
        The strategy. Names shrink to ``"a"``.
    """
    text = st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12
    )
    return st.one_of(st.sampled_from(ODD_KEYS), text)


def checkpoints(
    dtypes: Sequence[str] = tuple(NUMBERS),
    strings: bool = False,
    max_size: int = 4,
    names: st.SearchStrategy[str] | None = None,
) -> st.SearchStrategy[dict[str, Array]]:
    """Return the content of a checkpoint: a few named arrays of any kind.

    Parameters
    ----------
    dtypes : sequence of str, optional
        The names of the dtypes; one of each kind by default.
    strings : bool, default False
        Also draw object arrays of bytes.
    max_size : int, default 4
        The most arrays.
    names : SearchStrategy of str, optional
        The names, by ``keys`` if not given.

    Returns
    -------
    SearchStrategy of dict of str to ndarray
        The strategy. Contents shrink to fewer, smaller, plainer tensors under plainer names.
    """
    each = st.one_of(arrays(dtypes), string_arrays()) if strings else arrays(dtypes)
    return st.dictionaries(keys() if names is None else names, each, max_size=max_size)


@st.composite
def sharded_checkpoints(
    draw: st.DrawFn, dtypes: Sequence[str] = tuple(NUMBERS), max_shards: int = 13
) -> tuple[dict[str, Array], dict[str, list[int]]]:
    """Draw named arrays and the rows of the shards of each, by ``layouts``: uneven, empty, more
    than ten.

    Parameters
    ----------
    dtypes : sequence of str, optional
        The names of the dtypes; one of each kind by default.
    max_shards : int, default 13
        The most shards of an array.

    Returns
    -------
    SearchStrategy of tuple
        The strategy of pairs: the arrays by name, and lists of rows by name. They shrink to one
        array without rows.
    """
    tensors, sizes = {}, {}
    for key in draw(st.lists(keys(), min_size=1, max_size=3, unique=True)):
        sizes[key] = draw(layouts(max_shards))
        shape = (sum(sizes[key]), *draw(st.sampled_from([(), (2,), (0,)])))
        tensors[key] = draw(bits(numpy_dtype(draw(st.sampled_from(list(dtypes)))), shape))
    return tensors, sizes


def policies(max_nbytes: int = 200, max_files: int = 5) -> st.SearchStrategy[Policy]:
    """Return policies, which decide the slices that share a file.

    Parameters
    ----------
    max_nbytes : int, default 200
        The largest limit of a file, in bytes.
    max_files : int, default 5
        The most files of a balanced policy.

    Returns
    -------
    SearchStrategy of policy
        The strategy. Policies shrink to one file for all.
    """
    return st.one_of(
        st.just(AllInOnePolicy()),
        st.builds(MaxShardSizePolicy, st.integers(1, max_nbytes)),
        st.builds(BalancedPolicy, st.integers(1, max_files)),
    )
