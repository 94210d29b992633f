"""sv.CheckpointManager: whatever stops a save, at whichever step, the old checkpoints stand or the
new ones."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import StorageError
from shardvar.planning.policies import BalancedPolicy
from spec_tests.helpers.faulty_storage import FORMATS, Fault, Killed, failing, full
from spec_tests.helpers.managed_checkpoints import Clock, build, names, stems, value_of
from spec_tests.helpers.thoroughness import phase, stride


def options_of(form: str) -> dict[str, Any]:
    name, _, files = FORMATS[form]
    return {"format": name, "policy": BalancedPolicy(files) if files > 1 else None}


def rotated(directory: Path, form: str, clock: Clock) -> sv.CheckpointManager:
    """A manager that has saved three times and keeps two."""
    manager = build(directory, 2, 0.0, clock=clock, **options_of(form))
    for number in (1, 2, 3):
        assign(manager, number)
        clock.now += 1
        manager.save()
    assign(manager, 4)
    return manager


def copies(directory: Path, form: str) -> Iterator[tuple[int, Path]]:
    """Steps of a save, and for each a directory in which a manager has saved three times before."""
    counted, original = directory / "counted", directory / "original"
    rotated(original, form, Clock())
    shutil.copytree(original, counted)
    fault = Fault(-1)
    with failing(counted, fault):
        build(counted, 2, **options_of(form)).save(checkpoint_number=4)
    assert fault.taken > 10
    for step in range(phase(3), fault.taken, stride(3)):
        yield step, Path(shutil.copytree(original, directory / f"{step}"))


def assign(manager: sv.CheckpointManager, value: float) -> None:
    nodes: Any = manager.checkpoint.children["w"].children
    for number in range(3):
        nodes[str(number)].assign(np.full((2, 3), value + number, np.float32))


HOWS = [(form, "killed") for form in ("shardvar", "tensorflow", "safetensors set")]
HOWS += [("shardvar", "killed after"), ("tensorflow", "refused")]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("form", "how"), HOWS)
def test_a_save_that_stops_at_any_step_leaves_the_old_checkpoints_or_the_new_ones(
    tmp_path: Path, form: str, how: str
) -> None:
    """And the next save, of another number, succeeds and leaves nothing of what was begun."""
    for step, place in copies(tmp_path, form):
        clock = Clock(2e9)
        manager = build(place, 2, clock=clock, **options_of(form))
        manager.restore_or_initialize()
        assign(manager, 4)
        kind: Any = full if how == "refused" else Killed
        try:
            with failing(place, Fault(step, kind, after=how == "killed after")):
                manager.save()
        except (Killed, StorageError):
            pass
        assert value_of(place) in (3.0, 4.0)
        listed = build(place, 2, **options_of(form)).checkpoints
        assert [sv.verify(path).ok for path in listed] == [True, True]
        clock.now += 1
        again = build(place, 2, clock=clock, **options_of(form))
        assign(again, 9)
        again.save(checkpoint_number=9)
        assert value_of(place) == 9.0
        whole = {name for name in os.listdir(place) if not name.endswith(".lock")}
        assert stems(place) == {"ckpt-9", names(listed)[-1]}, sorted(whole)
        assert {name for name in whole if not name.startswith("ckpt-")} == {"checkpoint"}
        assert not [name for name in whole if name.endswith((".tmp", ".done"))]


def test_the_same_manager_goes_on_after_a_refusal(tmp_path: Path, form: str = "npz") -> None:
    for step, place in copies(tmp_path, form):
        manager = build(place, 2, clock=Clock(2e9), **options_of(form))
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
    manager = rotated(tmp_path, "shardvar", Clock())
    with pytest.raises(Killed), failing(tmp_path, Fault(4)):
        manager.save()
    assert (tmp_path / "checkpoint.unfinished").exists()
    other = sv.Checkpoint(w=sv.Variable(1.0))
    other.save_counter.assign(3)
    other.save(tmp_path / "ckpt")
    other.save(tmp_path / "ckpt")
    build(tmp_path, 1).save(checkpoint_number=50)
    assert stems(tmp_path) >= {"ckpt-4", "ckpt-5", "ckpt-50"}
