"""Chapters 1 and 2: divisions, regions and partitioners equal their plain rules."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import LayoutError, ShardvarError
from shardvar.layout import shard_counts
from shardvar.layout.dtypes import numpy_dtype
from shardvar.layout.partition import chunk, div, div_owner
from shardvar.layout.region import format_slice_text, parse_slice_text
from shardvar.reference.nn.rebalance import mod_to_div
from shardvar.reference.variables import Variable
from shardvar.spec import checkpoints, meshes, partitioners, partitions
from shardvar.testing import regions

counts = st.integers(1, 9)
large = st.integers(0, 2**62)
shapes = st.lists(st.integers(0, 6), max_size=3)


@given(st.one_of(st.integers(0, 30), large), counts)
def test_div(length: int, num_shards: int) -> None:
    """R-DIV-1 (RFC 000): "each of the first several shards will be assigned one more id"."""
    assert list(div(length, num_shards)) == partitions.div(length, num_shards)


@given(st.integers(0, 30), counts)
def test_chunk(length: int, num_shards: int) -> None:
    plain = meshes.chunk(range(length), num_shards)
    assert [list(range(*each)) for each in chunk(length, num_shards)] == plain


@given(st.integers(1, 30), counts, st.lists(st.integers(0, 29), max_size=5))
def test_div_owner(length: int, num_shards: int, ids: list[int]) -> None:
    """R-ID-1 (RFC 000): "ids are assigned to shards in a contiguous manner"."""
    ids = [one % length for one in ids]
    sizes = [stop - start for start, stop in partitions.div(length, num_shards)]
    shard, row = div_owner(ids, length, num_shards)
    found = list(zip(shard.tolist(), row.tolist(), strict=True))
    assert found == [partitions.owner(one, sizes) for one in ids]
    for outside in (-1, length):
        with pytest.raises(IndexError):
            partitions.owner(outside, sizes)
        with pytest.raises(ShardvarError):
            div_owner([outside], length, num_shards)


@given(st.integers(1, 30), counts)
def test_mod_owner(length: int, num_shards: int) -> None:
    """R-MOD-1 (RFC 000): 'We are not going to support other partition strategies like "mod".'"""
    shards: list[list[int]] = [[] for _ in range(num_shards)]
    for one in range(length):
        shard, row = partitions.mod_owner(one, num_shards)
        assert row == len(shards[shard])
        shards[shard].append(one)
    by_div = mod_to_div([Variable(np.array(ids, np.int64)) for ids in shards])
    assert by_div.numpy().tolist() == list(range(length))


@st.composite
def specs(draw: st.DrawFn) -> tuple[list[int], dict[str, Any]]:
    """A shape, and counts or sizes for some of its axes, some of them wrong."""
    shape = draw(shapes)
    given_axes = draw(st.integers(0, len(shape) + 1))
    cut: dict[str, Any] = {}
    if draw(st.integers(0, 3)):
        cut["partitions"] = draw(
            st.lists(st.integers(0, 4), min_size=given_axes, max_size=given_axes)
        )
    if not cut or not draw(st.integers(0, 5)):
        sizes = st.lists(st.integers(-1, 3), min_size=1, max_size=3)
        cut["splits"] = [
            draw(sizes)
            if not draw(st.integers(0, 4))
            else [stop - start for start, stop in partitions.div(extent, draw(counts))][::-1]
            for extent in [*shape, 1][:given_axes]
        ]
    return shape, cut


@given(specs())
def test_partition_specs(case: tuple[list[int], dict[str, Any]]) -> None:
    """R-SPEC-1 (RFC 002): "Either partitions or splits should be given but not both."

    Both refuse the same, and of equal sizes both make the same parts in the same order.
    """
    shape, cut = case
    try:
        plain = partitions.axis_sizes(shape, **cut)
    except ValueError:
        with pytest.raises(ShardvarError):
            sv.Partition.from_sizes(shape, sv.PartitionSpec(**cut).sizes(shape))
        return
    assert [list(each) for each in sv.PartitionSpec(**cut).sizes(shape)] == plain
    parts = [(part.offset, part.shape) for part in sv.Partition.from_sizes(shape, plain).parts]
    assert parts == partitions.grid(plain)


@given(st.integers(0, 3), st.data())
def test_regions(rank: int, data: st.DataObject) -> None:
    a, b = data.draw(regions(rank, 4)), data.draw(regions(rank, 4))
    one, other = (a.offset, a.shape), (b.offset, b.shape)
    common = a.intersect(b)
    assert (common and (common.offset, common.shape)) == partitions.common(one, other)
    rest = [
        index for part in a.subtract(b) for index in partitions.indices((part.offset, part.shape))
    ]
    assert sorted(rest) == partitions.difference(one, other)
    assert a.size == len(partitions.indices(one))


@st.composite
def covers(draw: st.DrawFn) -> tuple[list[int], list[tuple[list[int], list[int]]]]:
    """A shape and parts: a grid, from which one may be moved, dropped or doubled."""
    shape = draw(st.lists(st.integers(0, 4), max_size=2))
    cut = [draw(st.integers(1, 3)) for _ in shape]
    parts = [(list(o), list(s)) for o, s in partitions.grid(partitions.axis_sizes(shape, cut))]
    one = draw(st.integers(0, len(parts) - 1))
    change = draw(st.sampled_from(["none", "drop", "double", "grow"]))
    if change == "drop":
        del parts[one]
    elif change == "double":
        parts.append(parts[one])
    elif change == "grow" and shape:
        parts[one][1][draw(st.integers(0, len(shape) - 1))] += 1
    return shape, draw(st.permutations(parts))


@given(covers())
def test_coverage(case: tuple[list[int], list[tuple[list[int], list[int]]]]) -> None:
    """R-POLICY-1 (RFC 001): "all variables present before saving will be available for loading"."""
    shape, parts = case
    tiles = [sv.Region(offset, extent) for offset, extent in parts]
    if partitions.coverage(shape, parts) == "tiled":
        assert sv.Partition(tuple(shape), tuple(tiles)).parts == tuple(tiles)
    else:
        with pytest.raises(LayoutError):
            sv.Partition(tuple(shape), tuple(tiles))


@given(covers(), st.data())
def test_slice_texts(
    case: tuple[list[int], list[tuple[list[int], list[int]]]], data: st.DataObject
) -> None:
    shape, parts = case
    if not parts:
        return
    region = data.draw(st.sampled_from(parts))
    try:
        text = checkpoints.format_slice_text(shape, region)
    except ValueError:
        with pytest.raises(LayoutError):
            format_slice_text(shape, sv.Region(*region))
        return
    assert format_slice_text(shape, sv.Region(*region)) == text
    whole, read = parse_slice_text(text)
    assert (list(whole), (list(read.offset), list(read.shape))) == checkpoints.parse_slice_text(
        text
    )


@example("0 -")
@given(st.text("0123 ,:-", max_size=12))
def test_other_slice_texts(text: str) -> None:
    try:
        plain = checkpoints.parse_slice_text(text)
    except ValueError:
        # TensorFlow skips empty items between colons, and so does the fast reader.
        if "::" not in text and not text.rstrip().endswith(":") and " :" not in text:
            with pytest.raises(LayoutError):
                parse_slice_text(text)
        return
    shape, region = parse_slice_text(text)
    assert (list(shape), (list(region.offset), list(region.shape))) == plain


dtypes = st.sampled_from(["bool", "int8", "bfloat16", "float32", "float64", "complex128"])
sized = st.tuples(shapes, dtypes, st.integers(1, 200), st.integers(1, 9), st.integers(0, 2)).filter(
    lambda case: not case[0] or case[4] < len(case[0])
)


@given(sized)
def test_partitioners(case: tuple[list[int], str, int, int, int]) -> None:
    """R-PART-3 (RFC 000): "Create a partitioner that allocates at least 64MB for each partition."
    R-PART-1 (RFC 000): "so they can be directly used"."""
    shape, dtype, nbytes, most, axis = case
    item = numpy_dtype(dtype).itemsize
    fixed = shard_counts.FixedShardsPartitioner(most)(shape, dtype, axis)
    assert fixed == partitioners.fixed_shards(shape, most, axis)
    least = shard_counts.MinSizePartitioner(nbytes, most)(shape, dtype, axis)
    assert least == partitioners.min_size(shape, item, nbytes, most, axis)
    for limit in (None, most):
        found = shard_counts.MaxSizePartitioner(nbytes, limit)(shape, dtype, axis)
        assert found == partitioners.max_size(shape, item, nbytes, limit, axis)


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=2),
    st.none() | st.lists(st.integers(-1, 3), min_size=1, max_size=3),
)
def test_shards_of_a_new_variable(shape: list[int], answer: list[int] | None) -> None:
    """R-PART-4 (RFC 000): "Exception will raised if the partitioner returns an unsupported
    partitioning layout." R-CREATE-2 (RFC 000): "We will fall back to creating normal variables when
    there are less than two partitions." R-PART-5 (RFC 000): "If users don't explicitly pass in a
    partitioner, variables will not be partitioned."
    """
    partitioner: Any = None if answer is None else lambda shape, dtype: answer
    strategy = sv.ParameterServerStrategy(2, partitioner)
    value = np.zeros(shape, ml_dtypes.bfloat16)
    try:
        rows = partitioners.shard_rows(shape, 2, partitioner)
    except ValueError:
        with strategy.scope(), pytest.raises(ShardvarError):
            sv.Variable(value)
        return
    with strategy.scope():
        made = sv.Variable(value)
    shards = made.variables if isinstance(made, sv.ShardedVariable) else None
    assert (shards is None) == (rows is None)
    sizes = [stop - start for start, stop in rows or ()]
    assert [int(each.shape[0]) for each in shards or ()] == sizes


@given(st.integers(0, 3), st.integers(3, 9), st.booleans())
def test_partitioners_of_two_and_three_arguments(
    servers: int, rows: int, is_of_three: bool
) -> None:
    """R-PART-2 (RFC 002): "a callable that accepts number of shards, variable shape and variable
    dtype", and "The legacy partitioner in 1.x that only accepts variable shape and variable dtype".
    R-PSS-3 (RFC 002): "The number of shards is the number of ps in multi-worker case and 1 in local
    case."."""
    of_three = lambda num_shards, shape, dtype: [num_shards]  # noqa: E731
    of_two = lambda shape, dtype: [shape[0]]  # noqa: E731
    partitioner = of_three if is_of_three else of_two
    with sv.ParameterServerStrategy(servers, partitioner).scope():
        made: Any = Variable(np.zeros(rows, np.float32))
    [count] = partitioners.answer(partitioner, servers, [rows], "float32")
    assert (len(made.variables) if isinstance(made, sv.ShardedVariable) else 1) == count
