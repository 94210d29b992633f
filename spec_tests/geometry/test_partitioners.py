"""Partitioners: RFC 000's worked example, the laws of the three families, and which answers are layouts."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError, OutOfRange
from shardvar.layout.partition import Partition, PartitionSpec, div
from shardvar.layout.partitioners import (
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
    fixed_size_partitioner,
    min_max_variable_partitioner,
    variable_axis_size_partitioner,
)
from shardvar.layout.partitioning import ask, check_answer, plan_partition

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
    st.builds(MaxSizePartitioner, st.integers(1, 500), st.none() | st.integers(1, 50), st.integers(1, 20)),
)


def part_sizes(counts: Sequence[int], shape: Sequence[int], dtype: str, axis: int = 0) -> list[int]:
    """The bytes of the parts that div makes of ``counts``: the definition."""
    row = SIZES[dtype] * math.prod(extent for at, extent in enumerate(shape) if at != axis)
    return [(stop - start) * row for start, stop in div(shape[axis], counts[axis])]


def test_the_worked_example_of_rfc_000() -> None:
    """R-PART-3: users in 10 parts of 240 MB, items in 3 of 80 MB, the dense layers not partitioned."""
    partitioner = min_max_variable_partitioner(max_partitions=10, min_slice_size=64 << 20)
    shapes = [(600000, 1000), (60000, 1000), (2000, 100), (100,), (100, 1), (1,)]
    assert [partitioner(shape, np.float32)[0] for shape in shapes] == [10, 3, 1, 1, 1, 1]
    assert part_sizes([10], (600000, 1000), "float32") == [240_000_000] * 10
    assert part_sizes([3], (60000, 1000), "float32") == [80_000_000] * 3


@given(partitioners, shapes, dtypes, st.data())
def test_partitioners_are_total_and_cut_one_axis(
    partitioner: Any, shape: tuple[int, ...], dtype: str, data: st.DataObject
) -> None:
    """R-PART-1: every shape, without rows, axes or bytes too, has an answer: a count an axis, one above 1."""
    axis = data.draw(st.integers(-len(shape), len(shape) - 1)) if shape else 0
    counts = partitioner(shape, dtype, axis)
    assert len(counts) == len(shape) and all(type(count) is int for count in counts)
    for at, count in enumerate(counts):
        assert 1 <= count <= max(1, shape[at]) if at == axis % len(shape) else count == 1


@given(st.integers(1, 50), shapes_with_an_axis, dtypes)
def test_fixed_shards_gives_so_many_or_one_a_row(num_shards: int, shape: tuple[int, ...], dtype: str) -> None:
    assert FixedShardsPartitioner(num_shards)(shape, dtype)[0] == max(1, min(num_shards, shape[0]))


@given(st.integers(1, 500), st.integers(1, 50), shapes_with_an_axis, dtypes)
def test_min_size_is_a_minimum_and_no_more_parts_would_keep_it(
    least: int, most: int, shape: tuple[int, ...], dtype: str
) -> None:
    """R-PART-3 (RFC 000): "allocates at least 64MB for each partition" is held, as TensorFlow's rounding does not."""
    count = MinSizePartitioner(least, most)(shape, dtype)[0]
    if count > 1:
        assert min(part_sizes([count], shape, dtype)) >= least
    if count < most and count < shape[0]:
        assert min(part_sizes([count + 1], shape, dtype)) < least


@given(st.integers(1, 500), st.integers(1, 50), shapes_with_an_axis, dtypes)
def test_min_size_with_ceil_is_tensorflows_formula(least: int, most: int, shape: tuple[int, ...], dtype: str) -> None:
    total = SIZES[dtype] * math.prod(shape)
    expected = max(1, min(shape[0], most, math.ceil(total / least)))
    assert MinSizePartitioner(least, most, rounding="ceil")(shape, dtype)[0] == expected


@given(st.integers(1, 500), shapes_with_an_axis, dtypes)
def test_max_size_is_a_maximum_and_no_fewer_parts_would_keep_it(most: int, shape: tuple[int, ...], dtype: str) -> None:
    count = MaxSizePartitioner(most)(shape, dtype)[0]
    row = part_sizes([max(1, shape[0])], shape, dtype)[0]
    assert max(part_sizes([count], shape, dtype)) <= max(most, row)
    if count > 1:
        assert max(part_sizes([count - 1], shape, dtype)) > most


@given(st.integers(1, 500), st.integers(1, 50), shapes_with_an_axis, dtypes)
def test_max_size_with_max_shards_is_the_smaller(most: int, count: int, shape: tuple[int, ...], dtype: str) -> None:
    free = MaxSizePartitioner(most)(shape, dtype)[0]
    assert MaxSizePartitioner(most, count)(shape, dtype)[0] == min(free, count)
    assert MaxSizePartitioner(most, 0)(shape, dtype)[0] == free


@given(shapes_with_an_axis, dtypes, st.data())
def test_the_names_of_tensorflow_1_are_the_same_rules(shape: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    axis, size, count = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.integers(1, 99)), 7
    pairs: list[tuple[Callable[..., list[int]], Callable[..., list[int]]]] = [
        (fixed_size_partitioner(count, axis), FixedShardsPartitioner(count)),
        (variable_axis_size_partitioner(size, axis, 5, count), MaxSizePartitioner(size, count, 5)),
        (min_max_variable_partitioner(count, axis, size, 5), MinSizePartitioner(size, count, 5)),
        (min_max_variable_partitioner(count, axis, size, 5, "ceil"), MinSizePartitioner(size, count, 5, "ceil")),
    ]
    for old, new in pairs:
        assert old(shape, dtype) == new(shape, dtype, axis)


def test_a_string_counts_as_many_bytes_as_one_says() -> None:
    assert MinSizePartitioner(64, 8, bytes_per_string=16)((9, 2), "string") == [4, 1]
    assert MinSizePartitioner(64, 8, bytes_per_string=32)((9, 2), "string") == [8, 1]
    assert MaxSizePartitioner(50, bytes_per_string=5)((11, 3), "string") == [4, 1]


def test_an_unknown_dimension_is_refused_only_where_it_is_needed() -> None:
    assert FixedShardsPartitioner(2)((4, None), "float32") == [2, 1]
    for rule in (FixedShardsPartitioner(2), MinSizePartitioner(1, 2), MaxSizePartitioner(1)):
        with pytest.raises(ArgumentTypeError, match=r"Dimension 0 of the shape \(None, 3\) is not known"):
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


@pytest.mark.parametrize("rule", [FixedShardsPartitioner(2), MinSizePartitioner(1, 2), MaxSizePartitioner(1)])
def test_an_axis_that_the_shape_does_not_have_is_named(rule: Any) -> None:
    with pytest.raises(OutOfRange, match=r"\(4,\) has no axis 1"):
        rule((4,), "float32", 1)


@given(st.integers(1, 9), shapes_with_an_axis)
def test_an_answer_of_counts_becomes_div_of_the_first_axis(count: int, shape: tuple[int, ...]) -> None:
    """R-DIV-1 through R-PART-4; more parts than rows are clamped, as TensorFlow 2 does."""
    rows = [(part.offset[0], part.stop[0]) for part in check_answer([count, *[1] * (len(shape) - 1)], shape)]
    assert tuple(rows) == div(shape[0], max(1, min(count, shape[0])))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_an_answer_of_sizes_may_be_uneven_and_may_have_empty_parts(sizes: list[int]) -> None:
    """R-SPEC-1 (RFC 002): splits allow "uneven sharding"."""
    shape = (sum(sizes), 4)
    partition = check_answer(PartitionSpec(splits=[sizes]), shape)
    assert [part.shape for part in partition] == [(size, 4) for size in sizes]


@pytest.mark.parametrize(
    "answer",
    [
        [],
        (),
        [0, 1],
        [-1, 1],
        [2, 2],
        [1, 2],
        [2, 1, 1],
        [2.0, 1],
        ["2", 1],
        2,
        None,
        "21",
        np.array([2, 1]),
        PartitionSpec(partitions=[1, 2]),
        PartitionSpec(splits=[[4], [1, 1]]),
    ],
)
def test_an_answer_that_is_no_layout_of_rows_is_refused_with_the_answer_in_the_message(answer: Any) -> None:
    """R-PART-4 (RFC 000): "Exception will raised if the partitioner returns an unsupported partitioning layout." """
    with pytest.raises(LayoutError) as refused:
        check_answer(answer, (4, 2))
    assert repr(answer) in str(refused.value)


def test_sizes_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(LayoutError, match="do not add up to 4"):
        check_answer(PartitionSpec(splits=[[1, 2]]), (4, 2))


def test_partitioners_of_two_and_of_three_arguments_are_asked_as_they_wish() -> None:
    """R-PART-2 (RFC 002): "accepts number of shards, variable shape and variable dtype", or the last two alone."""

    class Rule:
        def __call__(self, shards: int, shape: tuple[int, ...], dtype: Any) -> list[int]:
            return [shards, len(shape), dtype]

    def optional(num_shards: int, shape: tuple[int, ...], dtype: Any = None) -> list[int]:
        return [num_shards, len(shape), dtype]

    assert ask(Rule(), (9, 2), 7, 3) == [3, 2, 7] == ask(optional, (9, 2), 7, 3)
    assert ask(lambda shape, dtype: [len(shape), dtype], (9, 2), 7, 3) == [2, 7]
    assert ask(lambda *both: [len(both), 1], (9, 2), 7, 3) == [2, 1]
    assert ask(FixedShardsPartitioner(2), (9, 2), "int8", 3) == [2, 1]
    assert ask(fixed_size_partitioner(2), (9, 2), "int8", 3) == [2, 1]


def test_no_partitioner_and_no_axis_give_one_whole_part() -> None:
    """R-PART-5: without a partitioner "variables will not be partitioned"; nobody is asked about a scalar."""

    def never(shape: tuple[int, ...], dtype: Any) -> list[int]:
        raise AssertionError(shape)

    assert plan_partition(None, (3, 4), "int8") == Partition.from_counts((3, 4), [1])
    assert len(plan_partition(never, (), "int8")) == 1
