"""Partitioners: RFC 000's worked example, the laws of the three families, and the names of
TensorFlow 1."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange
from shardvar.layout.partition import div
from shardvar.layout.shard_counts import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    fixed_size_partitioner,
    min_max_variable_partitioner,
    variable_axis_size_partitioner,
)

SIZES = {"float32": 4, "bfloat16": 2, "bool": 1, "complex128": 16, "string": 16, "variant": 0}

dtypes = st.sampled_from(sorted(SIZES))
shapes = st.lists(st.integers(0, 40), max_size=3).map(tuple)
shapes_with_an_axis = st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple)
partitioners = st.one_of(
    st.builds(FixedShardsPartitioner, st.integers(1, 50)),
    st.builds(
        MinSizePartitioner,
        st.integers(1, 500),
        st.integers(1, 50),
        st.integers(1, 20),
        st.sampled_from(["floor", "ceil"]),
    ),
    st.builds(
        MaxSizePartitioner, st.integers(1, 500), st.none() | st.integers(1, 50), st.integers(1, 20)
    ),
)


def part_sizes(counts: Sequence[int], shape: Sequence[int], dtype: str, axis: int = 0) -> list[int]:
    """The bytes of the parts that div makes of ``counts``: the definition."""
    row = SIZES[dtype] * math.prod(extent for at, extent in enumerate(shape) if at != axis)
    return [(stop - start) * row for start, stop in div(shape[axis], counts[axis])]


def test_the_worked_example_of_rfc_000() -> None:
    """R-PART-3: "user_embedding is partitioned to 10 shards" of 240 MB, items in 3 of 80 MB, the
    dense layers not."""
    partitioner = min_max_variable_partitioner(max_partitions=10, min_slice_size=64 << 20)
    shapes = [(600000, 1000), (60000, 1000), (2000, 100), (100,), (100, 1), (1,)]
    assert [partitioner(shape, np.float32)[0] for shape in shapes] == [10, 3, 1, 1, 1, 1]
    assert part_sizes([10], (600000, 1000), "float32") == [240_000_000] * 10
    assert part_sizes([3], (60000, 1000), "float32") == [80_000_000] * 3


@given(partitioners, shapes, dtypes, st.data())
def test_partitioners_are_total_and_cut_one_axis(
    partitioner: Any, shape: tuple[int, ...], dtype: str, data: st.DataObject
) -> None:
    """R-PART-1: every shape, without rows, axes or bytes too, has an answer: a count an axis, one
    above 1."""
    axis = data.draw(st.integers(-len(shape), len(shape) - 1)) if shape else 0
    counts = partitioner(shape, dtype, axis)
    assert len(counts) == len(shape) and all(type(count) is int for count in counts)
    for at, count in enumerate(counts):
        assert 1 <= count <= max(1, shape[at]) if at == axis % len(shape) else count == 1


@given(st.integers(1, 500), st.integers(1, 50), shapes_with_an_axis, dtypes)
def test_min_size_with_ceil_is_tensorflows_formula(
    least: int, most: int, shape: tuple[int, ...], dtype: str
) -> None:
    total = SIZES[dtype] * math.prod(shape)
    expected = max(1, min(shape[0], most, math.ceil(total / least)))
    assert MinSizePartitioner(least, most, rounding="ceil")(shape, dtype)[0] == expected


@given(shapes_with_an_axis, dtypes, st.data())
def test_the_names_of_tensorflow_1_are_the_same_rules(
    shape: tuple[int, ...], dtype: str, data: st.DataObject
) -> None:
    axis, size, count = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.integers(1, 99)), 7
    pairs: list[tuple[Callable[..., list[int]], Callable[..., list[int]]]] = [
        (fixed_size_partitioner(count, axis), FixedShardsPartitioner(count)),
        (variable_axis_size_partitioner(size, axis, 5, count), MaxSizePartitioner(size, count, 5)),
        (min_max_variable_partitioner(count, axis, size, 5), MinSizePartitioner(size, count, 5)),
        (
            min_max_variable_partitioner(count, axis, size, 5, "ceil"),
            MinSizePartitioner(size, count, 5, "ceil"),
        ),
    ]
    for old, new in pairs:
        assert old(shape, dtype) == new(shape, dtype, axis)


def test_an_unknown_dimension_is_refused_only_where_it_is_needed() -> None:
    assert FixedShardsPartitioner(2)((4, None), "float32") == [2, 1]
    for rule in (FixedShardsPartitioner(2), MinSizePartitioner(1, 2), MaxSizePartitioner(1)):
        with pytest.raises(
            ArgumentTypeError, match=r"Dimension 0 of the shape \(None, 3\) is not known"
        ):
            rule((None, 3), "float32")
        with pytest.raises(ArgumentError, match="unknown rank"):
            rule(None, "float32")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedShardsPartitioner(0),
        lambda: FixedShardsPartitioner(-1),
        lambda: FixedShardsPartitioner(2.5),  # type: ignore[arg-type]
        lambda: MinSizePartitioner(0),
        lambda: MinSizePartitioner(1, 0),
        lambda: MinSizePartitioner(bytes_per_string=0),
        lambda: MinSizePartitioner(rounding="round"),  # type: ignore[arg-type]
        lambda: MaxSizePartitioner(0),
        lambda: MaxSizePartitioner(1, -1),
        lambda: MaxSizePartitioner(1, bytes_per_string=0),
        lambda: min_max_variable_partitioner(2, min_slice_size=0),
    ],
)
def test_sizes_and_counts_are_positive(make: Callable[[], object]) -> None:
    with pytest.raises(ArgumentError, match=r"must be (a )?positive|'floor' or 'ceil'"):
        make()


@pytest.mark.parametrize(
    "rule", [FixedShardsPartitioner(2), MinSizePartitioner(1, 2), MaxSizePartitioner(1)]
)
def test_an_axis_that_the_shape_does_not_have_is_named(rule: Any) -> None:
    with pytest.raises(OutOfRange, match=r"\(4,\) has no axis 1"):
        rule((4,), "float32", 1)


@pytest.mark.parametrize("make", [variable_axis_size_partitioner, min_max_variable_partitioner])
def test_a_string_counts_as_sixteen_bytes_unless_another_number_is_given(
    make: Callable[..., Any],
) -> None:
    """As in TensorFlow 1; all rows from 1 to 100, in parts of 320 bytes."""
    first = "max_shard_bytes" if make is variable_axis_size_partitioner else "min_slice_size"
    more = {} if make is variable_axis_size_partitioner else {"max_partitions": 50}
    for rows in range(1, 101):
        given = {
            size: list(
                make(**{first: 320, "bytes_per_string_element": size}, **more)((rows,), "string")
            )
            for size in (15, 16, 17)
        }
        assert list(make(**{first: 320}, **more)((rows,), "string")) == given[16]
        if rows == 80:
            assert len({*map(tuple, given.values())}) > 1
