"""Jobs of three processes that gloo connects: the order of their calls, processes that end, and checkpoints
and directories that change while others look."""

import json
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.verbs.training.resuming import gather
from spec_tests.helpers.programs import run_together

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

PROGRAM = """
import json, os, random, signal, sys, time, warnings
warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
import shardvar as sv
import shardvar.torch as face

job, folder, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{folder}.{job}", rank=rank, world_size=3)
dist.barrier()


class Sums:
    \"\"\"An object that adds its values over all processes when it is saved, and when it is loaded.\"\"\"

    def __init__(self, value):
        self.value, self.found = value, None

    def added(self, value):
        value = value.clone()
        dist.all_reduce(value)
        return value

    def state_dict(self):
        return {"value": self.added(self.value) / 3}

    def load_state_dict(self, state):
        self.found = self.added(state["value"])


def state(seed):
    values = {key: Sums(torch.tensor([float(number)])) for number, key in enumerate("abcdef", 1)}
    items = [("a", values["a"]), (7, values["b"]), ("7a", values["c"]), ("in", {"y": values["d"], "x": values["e"]})]
    inner = [*items.pop()[1].items()]
    random.Random(seed).shuffle(inner)
    items += [("in", dict(inner)), ("list", [values["f"]])]
    random.Random(seed).shuffle(items)
    return dict(items), values


def order():
    for form in ("shardvar", "torch"):
        given, values = state(rank)
        before = [*given]
        face.save(f"{folder}/{form}", given, run="1", format=form, timeout=60)
        given, values = state(rank + 10)
        before = [*given]
        face.load(f"{folder}/{form}", given)
        assert [*given] == before
        print(json.dumps([each.found.item() for each in values.values()]))


def moved():
    for number in range(4):
        for form in ("shardvar", "torch"):
            path = f"{folder}/tmp-{form}/{number}"
            face.save(f"{path}/ck", {"w": torch.ones(4)}, run="1", format=form, timeout=20)
            if rank == 0 and number % 2:
                os.rename(path, f"{folder}/{form}-{number}")
            elif rank == 0:
                sv.save(f"{path}/ck", {"w": torch.zeros(4).numpy()}, format=form)
    print("done")


def dies():
    if rank == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
    since = time.monotonic()
    for call in (
        lambda: face.save(f"{folder}/ck", {"w": torch.ones(4)}, run="1", timeout=120),
        lambda: sv.SavedSteps(folder, using=face, timeout=120).restore({"w": torch.ones(4)}),
    ):
        try:
            call()
        except sv.errors.IncompleteCheckpoint as error:
            print(json.dumps([time.monotonic() - since, str(error)]))


def restore():
    for number in range(3):
        given = {"w": torch.zeros(4)}
        found = sv.SavedSteps(folder, using=face, timeout=60).restore(given)
        print(found.number, given["w"].tolist())


def writers():
    from shardvar.verbs.writer_process import WRITER_PROCESS
    how = {"background": "process", "on_error": "warn", "timeout": 150}
    since = time.monotonic()
    for run in "123":
        values = {"w": torch.full((4,), float(run)), f"of-{rank}": torch.ones(rank)}
        if run == "2" and rank == 1:
            os.kill(WRITER_PROCESS._child.process.pid, signal.SIGSTOP)
        pending = face.save(f"{folder}/ck", values, run=run, **how)
        if run == "2" and rank == 1:
            time.sleep(0.5)
            WRITER_PROCESS._child.process.kill()
        error = pending.result().error
        print(json.dumps([type(error).__name__, str(error), time.monotonic() - since]))
        dist.barrier()
    face.load(f"{folder}/ck", values, strict=False)
    print(json.dumps(values["w"].tolist()))


globals()[job]()
sys.stdout.flush()
if job != "dies":
    dist.barrier()
os._exit(0)
"""


def run(job: str, folder: Path, *more: object) -> list[list[str]]:
    command = [sys.executable, "-c", PROGRAM, job, folder]
    printed = run_together([[*command, rank, *more] for rank in range(3)], (0, -9))
    return [each.splitlines() for each in printed]


def test_objects_are_saved_and_loaded_in_one_order_by_processes_with_other_orders(
    tmp_path: Path,
) -> None:
    expected = [json.dumps([3.0 * number for number in range(1, 7)])] * 2
    assert run("order", tmp_path) == [expected] * 3


def test_a_checkpoint_that_process_0_moves_or_replaces_was_saved_by_all(tmp_path: Path) -> None:
    assert run("moved", tmp_path) == [["done"]] * 3
    assert np.array_equal(sv.load(tmp_path / "torch-3" / "ck")["w"], np.ones(4))


@pytest.mark.parametrize("process", [0, 2])
def test_a_process_that_was_killed_is_named_by_the_others_in_seconds(
    tmp_path: Path, process: int
) -> None:
    told = run("dies", tmp_path, process)
    for lines in (told[rank] for rank in range(3) if rank != process):
        errors: list[Any] = [json.loads(line) for line in lines]
        assert len(errors) == 2 and errors[-1][0] < 60
        assert all(f"Process {process} of 3" in text and "ended" in text for _, text in errors)


def test_jobs_that_restore_write_nothing(tmp_path: Path) -> None:
    steps = sv.SavedSteps(tmp_path)
    for number in (1, 2):
        steps.save(number, {"w": np.full(4, float(number), np.float32)})
    before = sorted(os.listdir(tmp_path)), tmp_path.stat().st_mtime_ns
    assert run("restore", tmp_path) == [["2 [2.0, 2.0, 2.0, 2.0]"] * 3] * 3
    assert before == (sorted(os.listdir(tmp_path)), tmp_path.stat().st_mtime_ns)


def test_a_store_that_does_not_answer_keeps_no_process_from_the_end_of_its_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from shardvar.torch import training_states as face

    stopped = threading.Event()
    store = SimpleNamespace(
        check=lambda _keys: stopped.wait() and False, set=lambda *_: stopped.wait()
    )
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda: "cpu:fake")
    monkeypatch.setattr(face, "_ANSWER_SECONDS", 0.1)
    for process in range(2):
        with pytest.raises(sv.errors.IncompleteCheckpoint, match="did not come within 1 s"):
            gather(face._Group(), (process, 2), [1], 1)
    stopped.set()


def test_a_writer_that_is_killed_is_an_error_of_all_processes_at_once_and_the_next_save_works(
    tmp_path: Path,
) -> None:
    """The writers ask for the other processes through the processes that train."""
    for lines in run("writers", tmp_path):
        first, second, third, values = map(json.loads, lines)
        assert first[0] == third[0] == "NoneType"
        assert second[0] == "WorkerLost" and "ck was ended by signal 9" in second[1]
        assert second[2] < 140 and values == [3.0] * 4
