"""``gather``: the processes of a group tell each other integers through texts that the group keeps."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import IncompleteCheckpoint, StorageError
from shardvar.verbs.training import resuming
from shardvar.verbs.training.resuming import gather
from shardvar.verbs.training.step_records import find_steps
from spec_tests.helpers.step_jobs import in_threads


class Texts:
    """A group that keeps its texts when it is made again; its calls take different times."""

    def __init__(self, seed: int) -> None:
        self.texts: dict[str, str] = {}
        self.dead: set[int] = set()
        self._random = random.Random(seed)

    def tell(self, key: str, text: str) -> None:
        time.sleep(self._random.choice([0, 0, 0.002]))
        self.texts[key] = text

    def told(self, key: str) -> str | None:
        time.sleep(self._random.choice([0, 0, 0.002]))
        return self.texts.get(key)

    def ended(self, processes: Sequence[int]) -> list[int]:
        return [each for each in processes if each in self.dead]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardvar.verbs.together.run._GROUP_SECONDS", (0.05, 0.05))


def forget(process: int, count: int) -> None:
    """Put a new process in the place of one."""
    resuming._rounds.pop((process, count), None)


@given(count=st.integers(2, 4), seed=st.integers(0, 99), data=st.data())
def test_all_processes_get_the_integers_of_one_round_in_groups_with_replaced_processes(
    count: int, seed: int, data: st.DataObject
) -> None:
    group, value = Texts(seed), 0
    for _ in range(3):
        for each in data.draw(st.sets(st.integers(0, count - 1)), "replaced"):
            forget(each, count)
        rounds = [value + number for number in range(data.draw(st.integers(1, 3), "rounds"))]
        value += len(rounds)

        def act(process: int, rounds: list[int] = rounds) -> list[list[list[int]]]:
            return [gather(group, (process, count), [now, process], 20) for now in rounds]

        expected = [[[now, process] for process in range(count)] for now in rounds]
        assert in_threads(range(count), act) == dict.fromkeys(range(count), expected)
    assert len(group.texts) == count, "the number of texts does not grow"


@pytest.mark.parametrize("absent", [0, 1, 2])
@pytest.mark.parametrize("is_dead", [False, True])
def test_a_process_that_does_not_come_is_named_by_all_and_never_gets_an_old_round(
    absent: int, is_dead: bool
) -> None:
    group = Texts(absent)
    for each in range(3):
        forget(each, 3)
    in_threads(range(3), lambda process: gather(group, (process, 3), [process], 20))
    group.dead = {absent} if is_dead else set()
    others = [each for each in range(3) if each != absent]
    timeout = 20 if is_dead else 0.5
    told = in_threads(others, lambda process: gather(group, (process, 3), [7], timeout))
    text = f"Process {absent} of 3 " + ("ended" if is_dead else "did not come")
    assert all(str(each).startswith(text) for each in told.values()) and len(told) == 2
    group.dead = set()
    if absent and not is_dead:
        with pytest.raises(IncompleteCheckpoint, match=text):
            gather(group, (absent, 3), [8], 20)
    elif absent:
        forget(absent, 3)
    found = in_threads(range(3), lambda process: gather(group, (process, 3), [9], 20))
    assert found == dict.fromkeys(range(3), [[9]] * 3)


@dataclass
class Job:
    """Functions of one process of a job that a group connects."""

    process: int
    group: Texts

    save, load = staticmethod(sv.save), staticmethod(sv.load)

    def processes(self) -> tuple[int, int]:
        return self.process, 2

    def gather(self, mine: list[int], timeout: float) -> list[list[int]]:
        return gather(self.group, self.processes(), mine, timeout)


@pytest.mark.parametrize("failing", ["find_steps", "load"])
@pytest.mark.parametrize("process", [0, 1])
def test_an_error_of_one_process_that_restores_ends_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, process: int
) -> None:
    sv.SavedSteps(tmp_path).save(1, {"w": np.ones(2)})
    group, error = Texts(1), StorageError("The disk does not answer.", "Check it.")

    def fail(*_: object, **__: object) -> Any:
        raise error

    def find(directory: str, *rest: Any) -> Any:
        return fail() if directory == "failing" else find_steps(directory, *rest)

    monkeypatch.setattr("shardvar.verbs.training.saved_steps.find_steps", find)

    def restore(each: int) -> Any:
        job, what = Job(each, group), failing if each == process else ""
        job.load = fail if what == "load" else sv.load  # type: ignore[method-assign]
        folder = "failing" if what == "find_steps" else tmp_path
        sv.SavedSteps(folder, using=job, timeout=60).restore()

    since = time.monotonic()
    told = in_threads(range(2), restore)
    assert time.monotonic() < since + 50
    assert told[process] is error
    assert f"Process {process} could not l" in str(told[1 - process])


def test_files_that_are_not_of_a_room_are_left_alone(tmp_path: Path) -> None:
    """Their names begin like a room's, and say no time."""
    sv.SavedSteps(tmp_path).save(1, {"w": np.ones(2)})
    others = [f".step-restore-{rest}" for rest in ("xyz", "0", "00000000zz-a-00002.0", "notes.txt")]
    for name in others:
        (tmp_path / name).write_text("[]")

    def restore(process: int) -> int:
        two = SimpleNamespace(save=sv.save, load=sv.load, processes=lambda: (process, 2))
        found = sv.SavedSteps(tmp_path, using=two, timeout=60).restore()
        return found.number

    assert in_threads(range(2), restore) == {0: 1, 1: 1}
    assert {path.name for path in tmp_path.glob(".step-restore-*")} == set(others)
