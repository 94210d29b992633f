"""Checkpoint.save(background=True): a copy of one moment, written beside the program, and no
failure lost."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import StillSaving, StorageError
from shardvar.planning.policies import AllInOnePolicy
from shardvar.reference.variables import create_sharded_variable
from spec_tests.helpers.programs import ENVIRONMENT

KEY = "w/.ATTRIBUTES/VARIABLE_VALUE"


class Held:
    """A policy that keeps a save under way until it is let go, and then may fail."""

    description = "waits to be let go"

    def __init__(self, error: BaseException | None = None) -> None:
        self.begun, self.go, self.error = threading.Event(), threading.Event(), error
        self.thread: threading.Thread | None = None

    def assign(self, slices: Any, capabilities: Any) -> Any:
        self.thread = threading.current_thread()
        self.begun.set()
        assert self.go.wait(20)
        if self.error is not None:
            raise self.error
        return AllInOnePolicy().assign(slices, capabilities)


def test_what_is_assigned_after_the_call_is_not_in_the_checkpoint(tmp_path: Path) -> None:
    w, policy = create_sharded_variable(np.ones(10, np.float32), 3), Held()
    handle = sv.Checkpoint(w=w).save(tmp_path / "model", policy=policy, background=True)
    assert policy.begun.wait(20)
    assert isinstance(handle, sv.PendingSave)
    w.assign(np.zeros(10, np.float32))
    assert not handle.done()
    assert sv.latest_checkpoint(tmp_path) is None
    policy.go.set()
    report = handle.join()
    assert handle.done()
    assert (report.path, handle.path) == (str(tmp_path / "model-1"),) * 2
    assert sv.load(report)[KEY].tolist() == [1.0] * 10
    assert sv.latest_checkpoint(tmp_path) == report.path
    assert handle.join() == report


def test_a_checkpoint_is_of_one_moment_while_others_write(tmp_path: Path) -> None:
    """All rows are always equal where nobody looks in between; so they are in every checkpoint."""
    w = create_sharded_variable(np.zeros(2000, np.float32), 10)
    checkpoint, stop = sv.Checkpoint(w=w), threading.Event()

    def train() -> None:
        while not stop.is_set():
            w.assign_add(np.ones(2000, np.float32))

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        paths = []
        for _ in range(10):
            handle: Any = checkpoint.save(tmp_path / "model", background=True)
            paths.append(handle.join().path)
    finally:
        stop.set()
        trainer.join()
    values = [sv.load(path)[KEY] for path in paths]
    assert all(len(set(value.tolist())) == 1 for value in values)
    assert [value[0] for value in values] == sorted(value[0] for value in values)


def test_a_restore_waits_for_the_save_and_counts_from_what_it_restored(tmp_path: Path) -> None:
    checkpoint, policy = sv.Checkpoint(w=sv.Variable([1.0])), Held()
    checkpoint.save(tmp_path / "model")
    handle: Any = checkpoint.save(tmp_path / "model", policy=policy, background=True)
    assert policy.begun.wait(20)
    threading.Timer(0.05, policy.go.set).start()
    checkpoint.restore(tmp_path / "model-1").assert_consumed()
    assert handle.done() or handle.join()
    assert int(checkpoint.save_counter) == 1


def test_a_failure_is_raised_when_joined_each_time_and_the_next_save_goes_on(
    tmp_path: Path,
) -> None:
    checkpoint, policy = (
        sv.Checkpoint(w=sv.Variable([1.0])),
        Held(StorageError("The disk is gone.", "Find it.")),
    )
    handle: Any = checkpoint.save(tmp_path / "model", policy=policy, background=True)
    policy.go.set()
    for _ in range(2):
        with pytest.raises(StorageError, match="The disk is gone"):
            handle.join(20)
    assert int(checkpoint.save_counter) == 0
    assert checkpoint.save(tmp_path / "model").path == str(tmp_path / "model-1")


def test_joining_for_too_short_a_time_is_an_error_and_the_save_goes_on(tmp_path: Path) -> None:
    policy = Held(TimeoutError("of its own"))
    handle: Any = sv.Checkpoint(w=sv.Variable([1.0])).save(
        tmp_path / "model", policy=policy, background=True
    )
    with pytest.raises(StillSaving, match="model-1 is still being written"):
        handle.join(0.01)
    policy.go.set()
    with pytest.raises(TimeoutError, match="of its own"):
        handle.join()


@pytest.mark.parametrize("dropped", ["before it ends", "after it ended"])
def test_a_failure_that_nobody_joins_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dropped: str
) -> None:
    checkpoint, policy = (
        sv.Checkpoint(w=sv.Variable([1.0])),
        Held(StorageError("The disk is gone.", "Find it.")),
    )
    handle: Any = checkpoint.save(tmp_path / "model", policy=policy, background=True)
    assert policy.begun.wait(20)
    if dropped == "before it ends":
        del handle
        gc.collect()
        assert caplog.text == ""
    policy.go.set()
    assert policy.thread is not None
    policy.thread.join(20)
    if dropped == "after it ended":
        assert caplog.text == ""
        del handle
        gc.collect()
    assert "model-1 was not saved: The disk is gone." in caplog.text


PROGRAM = """
import sys, time
import numpy as np
import shardvar as sv
from shardvar.errors import StorageError
from shardvar.planning.policies import AllInOnePolicy

class Slow:
    description = "slow"
    def assign(self, slices, capabilities):
        time.sleep(0.3)
        if sys.argv[2] == "fails":
            raise StorageError("The disk is gone.", "Find it.")
        return AllInOnePolicy().assign(slices, capabilities)

handle = sv.Checkpoint(w=sv.Variable([1.0])).save(sys.argv[1], policy=Slow(), background=True)
print("the program ends")
"""


@pytest.mark.parametrize("how", ["succeeds", "fails"])
def test_a_program_that_ends_waits_for_its_saves_and_tells_of_failures(
    tmp_path: Path, how: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "model"), how],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    assert done.stdout == "the program ends\n"
    if how == "succeeds":
        assert done.stderr == ""
        assert sv.load(tmp_path / "model-1")[KEY].tolist() == [1.0]
    else:
        assert "model-1 was not saved: The disk is gone." in done.stderr
        assert os.listdir(tmp_path) == []
