"""Numbers by index: each depends on seed and flat index alone, whatever the partition; and they are
random."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import ArgumentError, LayoutError
from shardvar.layout import Partition, Region
from shardvar.layout.region import row_strides
from shardvar.reference.random import (
    indexed_normal,
    indexed_truncated_normal,
    indexed_uniform,
)
from shardvar.reference.random.indexed import BLOCK_SIZE, blocks_of, draw_blocks
from shardvar.spec.initial_values import INDEXED
from spec_tests.helpers.hypothesis_strategies import regions_in, shapes

DRAWS = [indexed_uniform, indexed_normal, indexed_truncated_normal]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
MIB = 1 << 20
LARGE = st.sampled_from([(2 * BLOCK_SIZE + 9,), (3, BLOCK_SIZE + 5), (BLOCK_SIZE + 5, 2)])
"""Shapes of more than one block."""

seeds = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)),
)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_truncated_values_that_are_drawn_again_are_the_documented_ones(dtype: str) -> None:
    values = indexed_truncated_normal((2000,), 5, dtype=dtype)
    first = indexed_normal((2000,), 5, dtype=dtype)
    again = np.flatnonzero(np.abs(first) >= 2)
    assert 60 <= len(again) <= 130 and np.array_equal(np.flatnonzero(values != first), again)
    expected = INDEXED["truncated"](again.tolist(), 5, 0, 1, dtype)
    np.testing.assert_allclose(values[again], expected, rtol=1e-4, atol=1e-5)


@given(seeds, shapes(3, 5), st.sampled_from(["int32", "uint32", "int64", "uint64"]), st.data())
def test_parts_of_integers_are_the_whole_and_lie_within_the_limits(
    seed: int | tuple[int, int], shape: tuple[int, ...], dtype: str, data: st.DataObject
) -> None:
    limits = np.iinfo(dtype)
    low = data.draw(st.integers(int(limits.min), int(limits.max) - 1))
    high = data.draw(st.integers(low + 1, int(limits.max)))
    whole, part = indexed_uniform(shape, seed, low, high, dtype), data.draw(regions_in(shape))
    np.testing.assert_array_equal(
        indexed_uniform(shape, seed, low, high, dtype, part), whole[part.slices], strict=True
    )
    assert all(low <= int(value) < high for value in whole.flat)


@given(st.sampled_from(DRAWS), st.sampled_from(["float32", "float64"]), st.data())
def test_parts_meet_without_a_seam_where_blocks_of_words_end(
    draw: Any, dtype: str, data: st.DataObject
) -> None:
    """Shapes of more than one block, parts that begin and end anywhere near the ends of blocks."""
    near = st.integers(-3, 3).map(lambda d: BLOCK_SIZE + d)
    shape = data.draw(LARGE)
    axis = data.draw(st.integers(0, len(shape) - 1))
    cut = min(data.draw(near), shape[axis] - 1)
    whole = draw(shape, 7, dtype=dtype)
    sizes = [[cut, extent - cut] if d == axis else [extent] for d, extent in enumerate(shape)]
    for part in Partition.from_sizes(shape, sizes):
        np.testing.assert_array_equal(draw(shape, 7, dtype=dtype, region=part), whole[part.slices])


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_threads_and_axes_do_not_matter(draw: Any, axis: int) -> None:
    shape = (270, 66, 64)  # more elements than one thread draws alone
    whole = draw(shape, 11)
    for part in Partition.from_counts(shape, [3 if d == axis else 1 for d in range(3)]):
        np.testing.assert_array_equal(draw(shape, 11, region=part), whole[part.slices])


def test_a_region_of_a_tensor_that_no_machine_holds_is_drawn_alone() -> None:
    shape, region = (2**30, 2**30), Region((2**29, 2**30 - 3), (3, 3))
    values = indexed_normal(shape, 1, region=region)
    first = [(2**29 + row) * 2**30 + 2**30 - 3 for row in range(3)]
    where = [start + column for start in first for column in range(3)]
    expected = INDEXED["normal"](where, 1, 0, 1, "float32")
    np.testing.assert_allclose(values.ravel(), expected, rtol=1e-5, atol=1e-5)


@given(shapes(4, 7) | LARGE, st.data())
def test_blocks_tile_the_region_in_order_and_their_spans_are_bounded(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    full = tuple(extent + data.draw(st.sampled_from([0, 1, 9, 5000])) for extent in shape)
    strides, seen = row_strides(full), np.zeros(shape, np.int64)
    for block in blocks_of(shape, strides):
        seen[block.slices] += 1
        assert (
            sum((extent - 1) * step for extent, step in zip(block.shape, strides, strict=True))
            < BLOCK_SIZE
        )
    assert np.all(seen == 1)


@pytest.mark.parametrize(
    ("rows", "columns", "width", "spans"),
    [
        (20, 100_000, 3, [3] * 20),
        (20, 1000, 3, [19 * 1000 + 3]),
        (40, 6000, 5000, [21 * 6000 + 5000, 17 * 6000 + 5000]),
    ],
)
def test_large_gaps_are_jumped_over_and_small_ones_drawn(
    rows: int, columns: int, width: int, spans: list[int]
) -> None:
    """Gaps of 99,997, 997 and 1000 elements; of the last, 22 rows fit a block."""
    asked: list[int] = []

    def draw(start: int, out: np.ndarray) -> None:
        asked.append(len(out))
        out[:] = np.arange(start, start + len(out))

    region = Region((0, 5), (rows, width))
    values = draw_blocks((rows, columns), region, np.dtype(np.int64), draw)
    starts = np.arange(rows)[:, None] * columns
    np.testing.assert_array_equal(values, starts + np.arange(5, 5 + width))
    assert asked == spans


@pytest.mark.sample(5)
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "region", [Region((1 << 14, 0), (1 << 14, 64)), Region((0, 16), (1 << 16, 16))], ids=str
)
def test_peak_memory_is_the_region_and_8_mib(draw: Any, dtype: str, region: Region) -> None:
    shape = (1 << 16, 64)
    draw((100,), 1, dtype=dtype)  # imports and caches are not the region's
    tracemalloc.start()
    try:
        values = draw(shape, 1, dtype=dtype, region=region)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= values.nbytes + 8 * MIB


@given(st.sampled_from(FLOATS), st.floats(-1e4, 1e4), st.floats(0, 1e4), st.integers(0, 99))
def test_uniform_values_lie_in_the_half_open_range(
    dtype: str, low: float, width: float, seed: int
) -> None:
    values = indexed_uniform((200,), seed, low, low + width, dtype)
    first, last = np.asarray(low).astype(dtype), np.asarray(low + width).astype(dtype)
    assert np.all((values >= first) & (values < last)) or (
        first == last and np.all(values == first)
    )


def test_the_upper_limit_is_never_reached_where_rounding_would() -> None:
    for dtype, low in (("bfloat16", 100), ("float16", 100), ("float32", 2**20)):
        values = indexed_uniform((1 << 17,), 3, low, low + 1, dtype)
        assert values.min() == low and values.max() < low + 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: indexed_uniform((2,), 1.5),  # type: ignore[arg-type]
        lambda: indexed_uniform((2,), [1, 2, 3]),
        lambda: indexed_uniform((2,), 2**64),
        lambda: indexed_uniform((2,), 1, 2, 1),
        lambda: indexed_uniform((2,), 1, 0, float("inf")),
        lambda: indexed_uniform((2,), 1, -3e38, 3e38),
        lambda: indexed_uniform((2,), 1, 3, 3, "int64"),
        lambda: indexed_uniform((2**32, 2**32), 1),
        lambda: indexed_normal((2,), 1, dtype="int32"),
    ],
)
def test_what_cannot_be_drawn_is_named(call: Any) -> None:
    with pytest.raises(ArgumentError):
        call()


@pytest.mark.parametrize("region", [Region((1,), (2,)), Region((0, 0), (2, 1)), Region((3,), (0,))])
def test_a_region_out_of_the_shape_is_named(region: Region) -> None:
    with pytest.raises(LayoutError, match="reaches out of the shape"):
        indexed_uniform((2,), 1, region=region)
