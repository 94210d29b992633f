"""Answers of policies that must be refused, each loss by its words; and what a format can do unless
it says more."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from shardvar.errors import ArgumentError
from shardvar.layout.region import Region
from shardvar.planning.decision import find_mixed_tasks, find_unequal
from shardvar.planning.plan import REPLICAS, check_replicas
from shardvar.planning.policies.policy import HOLDS_ALL
from shardvar.planning.slices import (
    Assignment,
    Capabilities,
    SliceTable,
    TensorTable,
    cuttable_rows,
)


def table(shape: tuple[int, ...], regions: Sequence[Region]) -> SliceTable:
    """Slices of one tensor ``t`` of float32."""
    tensors = TensorTable.of([("t", "float32", shape)])
    rank = len(shape)
    return SliceTable.of(
        tensors,
        np.zeros(len(regions), np.int64),
        np.array([region.offset for region in regions], np.int64).reshape(-1, rank),
        np.array([region.shape for region in regions], np.int64).reshape(-1, rank),
        np.array([4 * region.size for region in regions], np.int64),
    )


def test_a_format_can_do_nothing_that_it_does_not_say() -> None:
    """But for several files and a replacement in one step, which all but a few can do."""
    least = Capabilities(frozenset({"float32"}), frozenset())
    found = {
        name: getattr(least, name)
        for name in Capabilities._fields
        if name not in ("dtypes", "slice_dtypes")
    }
    said = {name for name, value in found.items() if value}
    assert {"many_files", "atomic_overwrite"} <= said
    assert not said & {
        "empty_slices", "holds_objects", "guards_metadata", "objects_in_tensor", "holds_ties",
        "is_grid",
    }  # fmt: skip
    assert found["max_slice_rank"] == 0
    # Without a dtype whose slices it holds, and without an axis, it cuts nothing.
    halves = table((4,), [Region((0,), (2,)), Region((2,), (2,))])
    for each in (least, least._replace(slice_dtypes=frozenset({"float32"}))):
        assert not cuttable_rows(halves, each).any()


@pytest.mark.parametrize("wrong", ["last", "", "Equal", "firs"])
def test_replicas_are_treated_in_known_ways_only(wrong: str) -> None:
    for known in REPLICAS:
        check_replicas(known)
    with pytest.raises(ArgumentError, match="not a way to choose") as caught:
        check_replicas(wrong)
    assert "'equal'" in caught.value.remedy and "'first'" in caught.value.remedy


def test_slices_without_elements_may_not_be_stored_more_often_than_given() -> None:
    empty, top, bottom = Region((2, 0), (0, 3)), Region((0, 0), (2, 3)), Region((2, 0), (2, 3))
    given = table((4, 3), [top, empty, bottom])
    for times in range(4):
        answered = table((4, 3), [top, *[empty] * times, bottom])
        losses = find_unequal(given, answered)
        # One line for a region that is stored too often, however often that is.
        assert losses == (["stored [2:2, 0:3] of 't' once more"] if times > 1 else [])


def test_a_hole_an_overlap_and_a_slice_outside_break_a_tensor() -> None:
    given = table((4, 3), [Region((0, 0), (4, 3))])
    for regions in (
        [Region((0, 0), (3, 3))],
        [Region((0, 0), (3, 3)), Region((2, 0), (2, 3))],
        [Region((0, 0), (4, 3)), Region((3, 0), (2, 3))],
    ):
        (loss,) = find_unequal(given, table((4, 3), regions))
        assert loss.startswith("broke a tensor: ") and loss.removeprefix("broke a tensor: ")


@pytest.mark.parametrize("files", [*product(range(2), repeat=4)])
def test_a_file_with_slices_of_two_tasks_is_named_once(files: tuple[int, ...]) -> None:
    """Any assignment of four slices of two tasks to two files; a format of one file has no choice."""
    devices = [f"/job:ps/replica:0/task:{task}/device:CPU:0" for task in range(2)]
    tasks = np.array([0, 1, 0, 1])
    tensors = TensorTable.of([(key, "float32", (2,)) for key in "abcd"])
    slices = replace(tensors.whole(), device=tasks, devices=devices)
    answer = Assignment(slices, np.array(files), 2)
    mixed = [file for file in range(2) if {*tasks[np.array(files) == file].tolist()} == {0, 1}]
    losses = find_mixed_tasks(slices, answer, HOLDS_ALL)
    assert len(losses) == len(mixed)
    for file, loss in zip(mixed, losses, strict=True):
        keys = [
            next("abcd"[row] for row in range(4) if files[row] == file and tasks[row] == task)
            for task in range(2)
        ]
        assert f"in file {file}: " in loss
        assert all(f"{key!r} of " in loss for key in keys) and loss.count(" of /job") == 2
    assert find_mixed_tasks(slices, answer, HOLDS_ALL._replace(many_files=False)) == []
