"""sv.CheckpointManager after a save that was stopped. (``test_power_cut`` and ``test_disk_faults``:
whatever stops it, the old checkpoints stand or the new ones.)"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import StorageError
from spec_tests.helpers.faulty_storage import Fault, Killed, failing, full
from spec_tests.helpers.managed_checkpoints import Clock, build, stems, value_of
from spec_tests.helpers.thoroughness import phase, stride


def rotated(directory: Path, **options: Any) -> sv.CheckpointManager:
    """A manager that has saved three times and keeps two."""
    clock = Clock()
    manager = build(directory, 2, 0.0, clock=clock, **options)
    for number in (1, 2, 3):
        assign(manager, number)
        clock.now += 1
        manager.save()
    assign(manager, 4)
    return manager


def copies(directory: Path) -> Iterator[tuple[int, Path]]:
    """Steps of a save, and for each a directory in which a manager has saved three times before."""
    counted, original = directory / "counted", directory / "original"
    rotated(original, format="npz")
    shutil.copytree(original, counted)
    fault = Fault(-1)
    with failing(counted, fault):
        build(counted, 2, format="npz").save(checkpoint_number=4)
    assert fault.taken > 10
    for step in range(phase(3), fault.taken, stride(3)):
        yield step, Path(shutil.copytree(original, directory / f"{step}"))


def assign(manager: sv.CheckpointManager, value: float) -> None:
    nodes: Any = manager.checkpoint.children["w"].children
    for number in range(3):
        nodes[str(number)].assign(np.full((2, 3), value + number, np.float32))


def test_the_same_manager_goes_on_after_a_refusal(tmp_path: Path) -> None:
    for step, place in copies(tmp_path):
        manager = build(place, 2, clock=Clock(2e9), format="npz")
        manager.restore_or_initialize()
        assign(manager, 4)
        try:
            with failing(place, Fault(step, full)):
                manager.save()
        except StorageError:
            assert manager.latest_checkpoint == str(place / "ckpt-3")
        manager.save()
        assert value_of(place) == 4.0
        assert len(stems(place)) == 2


def test_the_first_save_of_all_may_stop_at_any_step(tmp_path: Path) -> None:
    fault = Fault(-1)
    with failing(tmp_path / "counted", fault):
        build(tmp_path / "counted").save(checkpoint_number=7)
    for step in range(fault.taken):
        place = tmp_path / f"{step}"
        with pytest.raises(Killed), failing(place, Fault(step)):
            build(place).save(checkpoint_number=7)
        assert sv.latest_checkpoint(place) in (None, str(place / "ckpt-7"))
        is_there = sv.latest_checkpoint(place) is not None
        build(place, 2).save(checkpoint_number=8)
        assert stems(place) == ({"ckpt-7", "ckpt-8"} if is_there else {"ckpt-8"})


def test_a_note_is_void_once_somebody_else_has_saved(tmp_path: Path) -> None:
    """What was noted may be theirs by now."""
    manager = rotated(tmp_path)
    with pytest.raises(Killed), failing(tmp_path, Fault(4)):
        manager.save()
    assert (tmp_path / "checkpoint.unfinished").exists()
    other = sv.Checkpoint(w=sv.Variable(1.0))
    other.save_counter.assign(3)
    other.save(tmp_path / "ckpt")
    other.save(tmp_path / "ckpt")
    build(tmp_path, 1).save(checkpoint_number=50)
    assert stems(tmp_path) >= {"ckpt-4", "ckpt-5", "ckpt-50"}
