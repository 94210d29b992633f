"""One interpreter of a cut: what each form means, what is refused, and that save and variables
agree."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError
from shardvar.layout.partition import (
    Partition,
    PartitionSpec,
    call_partitioner,
    div,
    part_columns,
    plan_rows,
    read_cut,
)
from shardvar.layout.region import Region
from shardvar.layout.shard_counts import FixedShardsPartitioner, fixed_size_partitioner
from shardvar.planning.decision import cut_slices
from shardvar.planning.slices import TensorTable
from shardvar.reference.variables.sharded import create_sharded_variable
from spec_tests.helpers.hypothesis_strategies import filled_shapes


def answering(answer: Any) -> Callable[..., Any]:
    return lambda shape, dtype: answer


@given(filled_shapes(min_rank=1), st.data())
def test_the_columns_of_a_grid_are_its_partition(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    """The parts of a save, which are columns, equal those of a ``Partition``, which are proven."""
    counts = [data.draw(st.integers(1, 6)) for _ in shape[: data.draw(st.integers(1, len(shape)))]]
    clamped = [min(count, max(extent, 1)) for count, extent in zip(counts, shape, strict=False)]
    expected = Partition.from_counts(shape, clamped)
    for cut in (counts, PartitionSpec(partitions=counts), expected, answering(counts)):
        offset, extent, _ = part_columns(cut, shape, "int8")
        assert [Region(*row) for row in zip(offset.tolist(), extent.tolist(), strict=True)] == list(
            expected
        )


ROWS_REFUSED: list[Any] = [
    [], (), [2, 2], [1, 2], PartitionSpec(partitions=[1, 2]), PartitionSpec(splits=[[4], [1, 1]]),
]  # fmt: skip
REFUSED: list[Any] = [
    0, -1, 2.5, [0, 1], [-1, 1], [2, 1, 1], [2.0, 1], ["2", 1], "21", np.array([2, 1]), {2}, div(4, 2),
    PartitionSpec(partitions=[0]), PartitionSpec(splits=[[1, 2]]), PartitionSpec(splits=[[5, -1]]),
    PartitionSpec(splits=[[4], [2], [1]]),
]  # fmt: skip


@pytest.mark.parametrize("answer", [*ROWS_REFUSED, *REFUSED, None])
def test_an_answer_that_is_no_layout_of_rows_is_refused_with_the_answer_in_the_message(
    answer: Any,
) -> None:
    """R-PART-4 (RFC 000): "Exception will raised if the partitioner returns an unsupported
    partitioning layout." """
    with pytest.raises(LayoutError) as refused:
        plan_rows(answering(answer), (4, 2), "int8")
    assert f"The partitioner's answer {answer!r}" in str(refused.value)


FORMS: dict[str, Any] = {
    r"a number (n|of parts)\b": 2, r"a list\b": [2, 1], r"\bPartitionSpec\b": PartitionSpec(partitions=[2, 1]),
    r"\bPartition\b": Partition.from_counts((4, 2), [2]),
    r"\bLayout\b": sv.layouts.dtensor((4, 2), sv.Mesh((2,)), [sv.layouts.Shard(0)]),
}  # fmt: skip
"""The forms of a cut, by the words for them in a remedy."""


@pytest.mark.parametrize("rows_only", [False, True])
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("cut", [*ROWS_REFUSED, "21", 2.5, [2, 1, 1]])
def test_a_remedy_names_the_forms_that_are_accepted_in_its_place_and_no_others(
    cut: Any, asks: bool, rows_only: bool
) -> None:
    """A partitioner of variables may answer with less than what a save or a variable is given. A
    save may cut any axis and no axis."""

    def read(given: Any) -> Any:
        return read_cut(answering(given) if asks else given, (4, 2), "int8", rows_only=rows_only)

    if not rows_only and cut in ROWS_REFUSED:
        sizes = read(cut)
        assert not isinstance(sizes, Partition) and [sum(along) for along in sizes] == [4, 2]
        return
    with pytest.raises(LayoutError) as refused:
        read(cut)
    assert refused.value.remedy.startswith("Answer" if asks else "Give")
    for words, form in FORMS.items():
        if re.search(words, refused.value.remedy):
            read(form)
        else:
            with pytest.raises(LayoutError):
                read(form)


def refusal(call: Callable[[], object]) -> tuple[type, str]:
    with pytest.raises(sv.errors.ShardvarError) as refused:
        call()
    return type(refused.value), refused.value.cause.removeprefix("'w': ")


@pytest.mark.parametrize(
    "cut", [*REFUSED, answering([0]), answering(2.5), Partition((3,), (Region((0,), (3,)),))]
)
def test_the_same_mistake_has_the_same_error_in_a_save_and_in_a_variable(
    cut: Any, tmp_path: Path
) -> None:
    """Class and sentence; nothing is written."""
    value = np.zeros((4, 2), np.float32)
    saved = refusal(lambda: sv.save(tmp_path / "m", {"w": value}, partition=cut))
    assert saved == refusal(lambda: create_sharded_variable(value, cut))
    assert (
        saved[0] is LayoutError
        and "does not cut the shape (4, 2)" in saved[1]
        and not list(tmp_path.iterdir())
    )


def test_a_partitioner_of_three_arguments_works_in_a_save_as_in_a_variable(tmp_path: Path) -> None:
    """R-PART-2 (RFC 002): "accepts number of shards, variable shape and variable dtype"; arrays are
    on one task."""
    asked: list[Any] = []

    def partitioner(num_shards: int, shape: tuple[int, ...], dtype: Any) -> list[int]:
        asked.append((num_shards, shape, np.dtype(dtype).name))
        return [num_shards + 2, 1]

    value = np.zeros((13, 4), np.float32)
    assert sv.save(tmp_path / "m", {"w": value}, partition=partitioner).num_slices == 3
    assert sv.reshard(tmp_path / "m", tmp_path / "n", partition={"w": partitioner}).num_slices == 3
    assert len(create_sharded_variable(value, partitioner).variables) == 3
    assert asked == [(1, (13, 4), "float32")] * 3


def test_partitioners_of_two_and_of_three_arguments_are_asked_as_they_wish() -> None:
    """R-PART-2 (RFC 002): "accepts number of shards, variable shape and variable dtype", or the
    last two alone."""

    class Rule:
        def __call__(self, shards: int, shape: tuple[int, ...], dtype: Any) -> list[int]:
            return [shards, len(shape), dtype]

    def optional(num_shards: int, shape: tuple[int, ...], dtype: Any = None) -> list[int]:
        return [num_shards, len(shape), dtype]

    assert (
        call_partitioner(Rule(), (9, 2), 7, 3)
        == [3, 2, 7]
        == call_partitioner(optional, (9, 2), 7, 3)
    )
    assert call_partitioner(lambda shape, dtype: [len(shape), dtype], (9, 2), 7, 3) == [2, 7]
    assert call_partitioner(lambda *both: [len(both), 1], (9, 2), 7, 3) == [2, 1]
    assert call_partitioner(FixedShardsPartitioner(2), (9, 2), "int8", 3) == [2, 1]
    assert call_partitioner(fixed_size_partitioner(2), (9, 2), "int8", 3) == [2, 1]


def test_a_partitioner_of_other_arguments_is_refused_in_both(tmp_path: Path) -> None:
    value = np.zeros((4, 2), np.float32)
    for partitioner in (lambda: [2], lambda a, b, c, d: [2]):
        saved = refusal(
            lambda cut=partitioner: sv.save(tmp_path / "m", {"w": value}, partition=cut)
        )
        made = refusal(lambda cut=partitioner: create_sharded_variable(value, cut))
        assert (
            saved[0] is made[0] is ArgumentTypeError
            and "cannot be called with" in saved[1]
            and made[1]
        )


def test_no_partitioner_and_no_axis_give_one_whole_part() -> None:
    """R-PART-5: without a partitioner "variables will not be partitioned"; nobody is asked about a
    scalar."""

    def never(shape: tuple[int, ...], dtype: Any) -> list[int]:
        raise AssertionError(shape)

    assert plan_rows(None, (3, 4), "int8") == Partition.from_counts((3, 4), [1])
    assert len(plan_rows(never, (), "int8")) == 1


@pytest.mark.parametrize(
    "cut",
    [
        lambda: sv.div(13, 10**9),
        lambda: sv.chunk(13, 10**9),
        lambda: sv.PartitionSpec(partitions=[10**9]).sizes((13,)),
        lambda: sv.Partition.from_counts((1 << 12, 1 << 12), [1 << 12, 1 << 12]),
        lambda: part_columns([1 << 12, 1 << 12], (1 << 12, 1 << 12), "int8"),
        lambda: part_columns(10**9, (1 << 40,), "int8"),
        lambda: cut_slices(
            TensorTable.of((f"w{row}", "int8", (1 << 20,)) for row in range(5)).whole(), 1 << 20
        ),
    ],
)
def test_more_parts_than_memory_holds_are_refused_at_once(cut: Callable[[], object]) -> None:
    """Of one tensor, and of equal ones; ``div_owner`` lists none and takes any number."""
    with pytest.raises(ArgumentError, match="parts are too many; at most 4194304 are allowed"):
        cut()
    assert [each.tolist() for each in sv.div_owner([12], 13, 10**9)] == [[12], [0]]


def test_the_parts_of_all_tensors_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardvar.layout.partition.MAX_PARTS", 12)
    tensors = [
        TensorTable.of((f"w{row}", "int8", (4, row)) for row in range(count)).whole()
        for count in (3, 4)
    ]
    assert len(cut_slices(tensors[0], 4)) == 12
    with pytest.raises(ArgumentError, match="16 parts are too many; at most 12 are allowed"):
        cut_slices(tensors[1], 4)
