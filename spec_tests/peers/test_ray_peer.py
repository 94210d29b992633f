"""Ray Train: what its adapter tells Ray, and a job of which a worker is killed."""

import importlib.util
import itertools
import json
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import shardvar as sv
from shardvar.errors import ArgumentError, UnsupportedError
from spec_tests.helpers.programs import ENVIRONMENT, command_of
from spec_tests.helpers.ray_job import LAST, add_optimizer, losses

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
fs = pytest.importorskip("pyarrow.fs", reason="pyarrow is not installed")

Checkpoint = namedtuple("Checkpoint", ["path", "filesystem"])


class _Ray:
    """What Ray does with reports of one worker: it keeps the newest, and removes the folders of the others."""

    def __init__(self, folder: Path, keep: int) -> None:
        storage = SimpleNamespace(
            storage_filesystem=fs.LocalFileSystem(), experiment_fs_path=str(folder)
        )
        self.storage, self.keep, self.known = storage, keep, list[Any]()

    def get_context(self) -> Any:
        return SimpleNamespace(get_storage=lambda: self.storage)

    def get_checkpoint(self) -> Any:
        return self.known[-1] if self.known else None

    def report(self, metrics: Any, checkpoint: Any, checkpoint_upload_mode: str) -> None:
        assert checkpoint_upload_mode == "none" and type(metrics) is dict
        self.known += [checkpoint] if checkpoint else []
        while len(self.known) > self.keep:
            self.storage.storage_filesystem.delete_dir(self.known.pop(0).path)


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    names = {"Checkpoint": Checkpoint, "CheckpointUploadMode": SimpleNamespace(NO_UPLOAD="none")}
    train = SimpleNamespace(**names)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(train=train))
    monkeypatch.setitem(sys.modules, "ray.train", train)
    monkeypatch.delitem(sys.modules, "shardvar.torch.ray", raising=False)
    yield importlib.import_module("shardvar.torch.ray")
    sys.modules.pop("shardvar.torch.ray")


def test_ray_never_removes_the_checkpoint_that_it_gives_to_the_next_attempt(
    adapter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any order of steps, also if one is saved twice."""
    for keep, steps in itertools.product((1, 2), itertools.product(range(3), repeat=3)):
        ray = _Ray(tmp_path / f"{keep}{steps}", keep)
        monkeypatch.setattr(adapter.ray, "train", ray)
        assert not adapter.restore_checkpoint({})
        for count, step in enumerate(steps):
            report = adapter.report_checkpoint({"a": 1}, {"w": torch.full((2,), count)}, step=step)
            assert report.nbytes == 16
            newest, state = max(steps[: count + 1]), {"w": torch.zeros(2, dtype=torch.int64)}
            assert ray.get_checkpoint().path.endswith(f"/step-{newest}")
            assert adapter.restore_checkpoint(state)
            last = max(k for k in range(count + 1) if steps[k] == newest)
            assert state["w"].tolist() == [last, last]


def test_what_ray_cannot_give_to_the_workers_is_an_error(
    adapter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = _Ray(tmp_path, 1)
    monkeypatch.setattr(adapter.ray, "train", ray)
    with pytest.raises(ArgumentError, match=r"finished checkpoint\. Leave out background"):
        adapter.report_checkpoint({}, {}, step=0, background=True)
    with pytest.raises(ArgumentError, match="Step -1 is negative"):
        adapter.report_checkpoint({}, {}, step=-1)
    system = ray.storage.storage_filesystem
    ray.storage.storage_filesystem = SimpleNamespace(type_name="hdfs")
    with pytest.raises(UnsupportedError, match="is of the kind 'hdfs'"):
        adapter.report_checkpoint({}, {}, step=0)
    assert not [*tmp_path.iterdir()]
    ray.storage.storage_filesystem = fs.SubTreeFileSystem(str(tmp_path / "other"), system)
    monkeypatch.setitem(adapter._SCHEMES, "subtree", "")
    with pytest.raises(UnsupportedError, match=r"Ray does not find .*/step-0/, which was saved"):
        adapter.report_checkpoint({}, {"a": 1}, step=0)
    assert not ray.known


def test_workers_resume_after_one_was_killed_and_on_another_number_of_them(tmp_path: Path) -> None:
    """With the losses of one process that trains alone."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: make ray")
    command = command_of("helpers.ray_job", tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=900)
    assert done.returncode == 0, done.stderr[-5000:]
    found = [*map(json.loads, (tmp_path / "losses").read_text().splitlines())]
    begun = [(step, workers, first) for step, _, workers, first in found]
    if (3, 2, 0) in begun:  # which the other worker did not save
        del found[2], begun[2]
    assert begun == [(1, 2, 0), (2, 2, 0), (3, 2, 2), (4, 2, 2), (5, 1, 4), (6, 1, 4)]
    expected = [loss for _, loss, _ in losses(LAST[1], add_optimizer)]
    assert [loss for _, loss, *_ in found] == pytest.approx(expected, rel=1e-6)
    # Ray keeps two, and has the place of the last one.
    newest = done.stdout.splitlines()[-1]
    assert newest.endswith("/step-6") and sv.load(newest)["model.0.weight"].shape == (7, 4)
    assert sv.verify(newest).ok
    assert {each.name for each in Path(newest).parent.glob("step-*")} == {"step-5", "step-6"}
