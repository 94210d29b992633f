"""Answers of policies that must be refused, each loss by its words."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from shardvar.errors import ArgumentError, PolicyError
from shardvar.layout.region import Region
from shardvar.planning.decision import (
    check_answer,
    decide,
    find_mixed_tasks,
    find_unequal,
    raise_losses,
)
from shardvar.planning.plan import REPLICAS, check_replicas
from shardvar.planning.policies import MaxShardSizePolicy, SeparatePolicy
from shardvar.planning.policies.policy import HOLDS_ALL
from shardvar.planning.slices import Assignment, TensorTable
from spec_tests.helpers.hypothesis_strategies import table_of


@pytest.mark.parametrize("wrong", ["last", "", "Equal", "firs"])
def test_replicas_are_treated_in_known_ways_only(wrong: str) -> None:
    for known in REPLICAS:
        check_replicas(known)
    with pytest.raises(ArgumentError, match="not a way to choose") as caught:
        check_replicas(wrong)
    assert "'equal'" in caught.value.remedy and "'first'" in caught.value.remedy


def test_slices_without_elements_may_not_be_stored_more_often_than_given() -> None:
    empty, top, bottom = Region((2, 0), (0, 3)), Region((0, 0), (2, 3)), Region((2, 0), (2, 3))
    tensors = TensorTable.of([("t", "float32", (4, 3))])
    given = table_of(tensors, [(0, part) for part in (top, empty, bottom)])
    for times in range(4):
        answered = table_of(tensors, [(0, part) for part in (top, *[empty] * times, bottom)])
        losses = find_unequal(given, answered)
        # One line for a region that is stored too often, however often that is.
        assert losses == (["stored [2:2, 0:3] of 't' once more"] if times > 1 else [])


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


THREE = TensorTable.of([("a", "float32", (4,)), ("s", "string", (2,)), ("b", "int8", (2, 2))])
A, S, B = (0, Region((0,), (4,))), (1, Region((0,), (2,))), (2, Region((0, 0), (2, 2)))
HALVES = [(0, Region((start,), (2,))) for start in (0, 2)]


@pytest.mark.parametrize(
    ("rows", "files", "losses"),
    [
        ([A, S, B], [0, 1, 1], []),
        ([*HALVES, S, B], [0, 1, 1, 0], []),
        ([A, S, B], [0, 1, 2], ["named files other than its 2"]),
        ([A, S, B], [0, -1, 1], ["named files other than its 2"]),
        ([A, S, B], [0, 1], ["named files other than its 2"]),
        ([S, A], [0, 1], ["lost 'b'"]),
        ([HALVES[1]], [0], ["lost 's'", "lost 'b'", "broke a tensor: 'a' lacks [0:2]"]),
        (
            [A, HALVES[0], S, B], [0, 0, 0, 0],
            ["broke a tensor: the slices [0:4] and [0:2] of 'a' overlap in [0:2]"],
        ),
        (
            [A, B, *[(1, Region((n,), (1,))) for n in (0, 1)]], [0, 0, 0, 0],
            ["cut 's', which is of dtype string and stored whole"],
        ),
        (
            [A, S, *[(2, Region((n, 0), (1, 2))) for n in (0, 1)]], [0, 0, 0, 0],
            ["cut 'b', which is of dtype int8 and stored whole"],
        ),
    ],
)  # fmt: skip
def test_each_loss_of_an_answer_in_words(
    rows: list[tuple[int, Region]], files: list[int], losses: list[str]
) -> None:
    given = table_of(THREE, [A, S, B])
    answer = Assignment(table_of(THREE, rows), np.array(files), 2, "Mine.")
    can = HOLDS_ALL._replace(slice_dtypes=frozenset({"float32"}))
    if not losses:
        check_answer(given, answer, can)
        return
    with pytest.raises(PolicyError) as caught:
        check_answer(given, answer, can)
    assert caught.value.cause == f"The policy 'Mine.' {'; '.join(losses)}."


def test_an_answer_has_the_tensors_and_the_tasks_that_were_given() -> None:
    given = table_of(THREE, [A, S, B])
    other = TensorTable.of([("b", "int8", (2, 2)), ("a", "float32", (4,)), ("s", "string", (2,))])
    with pytest.raises(PolicyError, match="'' answered with other tensors than it was given"):
        check_answer(given, Assignment(other.whole(), np.zeros(3, np.int64), 1), HOLDS_ALL)
    same = TensorTable.of([("a", "float32", (4,)), ("s", "string", (2,)), ("b", "int8", (2, 2))])
    check_answer(given, Assignment(same.whole(), np.zeros(3, np.int64), 1), HOLDS_ALL)
    devices = tuple(f"/job:w/task:{task}/device:CPU:0" for task in (1, 0))
    given = replace(given, device=np.array([0, 0, 1]), devices=devices)
    with pytest.raises(PolicyError) as caught:
        check_answer(given, Assignment(given, np.zeros(3, np.int64), 1), HOLDS_ALL)
    assert caught.value.cause == (
        "The policy '' put tensors of several tasks in file 0: 'a' of /job:w/task:1, 'b' of /job:w/task:0."
    )


@pytest.mark.parametrize(("count", "more"), [(256, ""), (258, "; and 2 more")])
def test_256_losses_are_listed(count: int, more: str) -> None:
    raise_losses("Mine.", [])
    with pytest.raises(PolicyError) as caught:
        raise_losses("Mine.", [*map(str, range(count))], "Do.")
    assert caught.value.cause == f"The policy 'Mine.' {'; '.join(map(str, range(256)))}{more}."
    assert caught.value.remedy == "Do."


@pytest.mark.parametrize("is_grid", [False, True])
def test_a_decision_has_the_answer_of_its_policy_in_the_order_of_the_format(is_grid: bool) -> None:
    """A format of grids gets only slices that were given; the copies fill the answer."""
    given, times = table_of(THREE, [A, S, B]), iter([10.0, 12.5])
    can = HOLDS_ALL._replace(is_grid=is_grid, file_order=("int8", "float32", "string"))
    policy = MaxShardSizePolicy(8)
    found = decide(policy, given, can, THREE.whole(), lambda: next(times))
    slices = found.assignment.slices
    parts = (
        ["b[0:2, 0:2]", "a[0:4]", "s[0:2]"]
        if is_grid
        else ["b[0:2, 0:2]", "a[0:2]", "a[2:4]", "s[0:2]"]
    )
    assert [f"{slices.key(row)}{slices.region(row)}" for row in range(len(slices))] == parts
    assert found.assignment.file.tolist() == ([1, 0, 1] if is_grid else [2, 0, 1, 2])
    assert [copy.region for copy in map(found.plan.copy, range(len(parts)))] == [
        slices.region(row) for row in range(len(slices))
    ]
    assert found.seconds == 2.5 and found.num_empty == 0
    assert found.exceeding and [*found.exceeding] == policy.exceeding(found.assignment)
    assert decide(SeparatePolicy(), given, HOLDS_ALL, given, lambda: 0.0).exceeding == ()
