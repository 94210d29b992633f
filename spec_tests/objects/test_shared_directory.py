"""A directory belongs to one manager: another one that saves there is told so, and nothing is left
that no manager knows."""

import os
from itertools import product
from pathlib import Path
from threading import Barrier, Thread

import pytest

import shardvar as sv
from shardvar.errors import LockHeld, StorageError
from spec_tests.helpers.faulty_storage import Fault, failing, full
from spec_tests.helpers.managed_checkpoints import build, names, stems, value_of
from spec_tests.helpers.thoroughness import EXHAUSTIVE, is_due

MOST = 2


def check_directory(place: Path, manager: sv.CheckpointManager) -> None:
    """Fail unless the directory has the checkpoints of the manager, and no other file."""
    assert stems(place) == {*names(manager.checkpoints)} and len(manager.checkpoints) <= MOST
    others = {name for name in os.listdir(place) if not name.startswith("ckpt-")}
    assert others <= {"checkpoint"}, others
    assert value_of(place) >= 0


@pytest.mark.parametrize("steps", [*product("sSmM", repeat=5 if EXHAUSTIVE else 3)])
def test_of_two_managers_only_the_one_that_was_made_last_saves(
    steps: tuple[str, ...], tmp_path: Path
) -> None:
    """Exhaustive: each of two managers is made again (m, M) or saves (s, S), in all orders.

    A manager may save if no other has saved since it was made or has saved itself.
    """
    managers = [build(tmp_path, MOST, number) for number in range(2)]
    is_current = [True, True]
    last = None
    for step in steps:
        number = int(step.isupper())
        if step in "mM":
            managers[number], is_current[number] = build(tmp_path, MOST, number), True
            continue
        before = {name: os.stat(tmp_path / name).st_mtime_ns for name in os.listdir(tmp_path)}
        if is_current[number]:
            managers[number].save()
            is_current[1 - number], last = False, managers[number]
        else:
            with pytest.raises(LockHeld, match="another manager or program has saved here since"):
                managers[number].save()
            after = {name: os.stat(tmp_path / name).st_mtime_ns for name in os.listdir(tmp_path)}
            assert before == after
        assert last is not None
        check_directory(tmp_path, last)


@pytest.mark.parametrize("count", [2, 3])
def test_managers_that_save_at_once_leave_no_orphans(count: int, tmp_path: Path) -> None:
    managers = [build(tmp_path, MOST, number) for number in range(count)]
    barrier, saved = Barrier(count), [0] * count

    def save(number: int) -> None:
        barrier.wait()
        for _ in range(5):
            try:
                managers[number].save()
                saved[number] += 1
            except LockHeld:
                continue

    threads = [Thread(target=save, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(map(bool, saved)) == 1, saved
    check_directory(tmp_path, managers[max(range(count), key=saved.__getitem__)])


@pytest.mark.parametrize("after", [False, True])
def test_a_manager_that_failed_at_any_step_is_not_taken_for_another(
    after: bool, tmp_path: Path
) -> None:
    """Its state file has the old content or the new one, and either is its own."""
    for at in range(200):
        if not is_due(at + after, 4):
            continue
        place = tmp_path / str(at)
        manager = build(place, MOST)
        for _ in range(MOST):
            manager.save()
        fault = Fault(at, full, after=after)
        with failing(place, fault):
            try:
                manager.save()
                failed = False
            except StorageError as error:
                assert not isinstance(error, LockHeld)
                failed = True
        for _ in range(2):
            manager.save()
        check_directory(place, manager)
        if not failed and fault.taken <= at:
            break
    assert at > 10
