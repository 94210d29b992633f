"""A dry run refuses what the run would refuse, with the same error, and changes nothing."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import shardvar as sv
from shardvar.engine.files import file_tasks
from shardvar.errors import (
    ArgumentError,
    LockHeld,
    ShardvarError,
    StorageError,
    TargetExists,
    UnsupportedError,
)
from shardvar.planning.policies import BalancedPolicy
from shardvar.storage.local import LocalStorage


def saved(directory: Path, tensors: Any = None) -> Path:
    sv.save(
        directory / "source", {"a": np.ones((4, 2), np.float32)} if tensors is None else tensors
    )
    return directory / "source"


def everything(directory: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


def refused(act: Callable[[], object]) -> ShardvarError | None:
    try:
        act()
    except ShardvarError as error:
        return error
    return None


def assert_refused_alike(
    source: Path, target: Path, kind: type[ShardvarError], root: Path, **options: Any
) -> None:
    """The dry run and the run raise the same; the dry run leaves everything as it is."""
    before = everything(root)
    dry = refused(lambda: sv.reshard(source, target, dry_run=True, **options))
    assert everything(root) == before
    run = refused(lambda: sv.reshard(source, target, **options))
    assert type(dry) is type(run) and isinstance(dry, kind), (dry, run)
    assert dry.cause == run.cause or kind is StorageError
    assert dry.remedy


INDEXES = {
    "shardvar": "t.svindex",
    "tensorflow": "t.index",
    "safetensors": "t/model.safetensors",
    "npz": "t.npz",
}
REFUSED: list[tuple[str, str, type[ShardvarError], dict[str, Any]]] = [
    ("/abs", "t.npz", UnsupportedError, {}),
    ("a/../b", "t.npz", UnsupportedError, {}),
    ("", "t", UnsupportedError, {"format": "tensorflow"}),
    ("_CHECKPOINTABLE\udcff", "t", UnsupportedError, {"format": "safetensors"}),
    ("__metadata__", "t", UnsupportedError, {"format": "safetensors"}),
    ("a", "t.npz", UnsupportedError, {"cast": {"a": "bfloat16"}}),
    ("a", "file/t", StorageError, {}),
    ("a", "file/deeper/t", StorageError, {}),
    ("a", "d" * 300 + "/t", StorageError, {}),
    ("a", "/".join(["d" * 200] * 30) + "/t", StorageError, {}),
    *[("a", "/proc/x/t", StorageError, {}) for _ in range(os.path.isdir("/proc/self"))],
    *[("a", f"old {form}/t", TargetExists, {"format": form}) for form in INDEXES],
    *[("a", f"no {form}/t", StorageError, {"format": form}) for form in INDEXES],
]
"""The key of the source, the target, the error of both runs, and options. A folder "old" has a
checkpoint of the format, and a folder "no" has a folder in the place of its index."""


@pytest.mark.parametrize(("key", "target", "kind", "options"), REFUSED)
def test_what_the_run_refuses_the_dry_run_refuses(
    key: str, target: str, kind: type[ShardvarError], options: dict[str, Any], tmp_path: Path
) -> None:
    source = saved(tmp_path, {key: np.ones(3)})
    (tmp_path / "file").write_bytes(b"x")
    for form, index in INDEXES.items():
        sv.save(tmp_path / f"old {form}" / "t", {"b": np.ones(3)}, format=form)
        (tmp_path / f"no {form}" / index).mkdir(parents=True)
    assert_refused_alike(source, tmp_path / target, kind, tmp_path, **options)
    if kind is TargetExists:
        assert sv.reshard(source, tmp_path / target, force=True, dry_run=True, **options).dry_run


def test_a_directory_of_the_name_without_ending_is_no_hindrance(tmp_path: Path) -> None:
    source = saved(tmp_path)
    (tmp_path / "t").mkdir()
    for name in ("t.safetensors", "t.npz"):
        assert sv.reshard(source, tmp_path / name, dry_run=True).dry_run
        assert sv.reshard(source, tmp_path / name).num_tensors == 1


@pytest.mark.parametrize("form", INDEXES)
def test_a_name_that_is_too_long_with_its_endings(form: str, tmp_path: Path) -> None:
    """Whatever the length, the dry run says what the run says."""
    source = saved(tmp_path)
    for length in (200, 215, 225, 230, 235, 240, 245, 250, 255):
        target = tmp_path / ("t" * length)
        dry = refused(lambda target=target: sv.reshard(source, target, format=form, dry_run=True))
        run = refused(lambda target=target: sv.reshard(source, target, format=form))
        assert type(dry) is type(run), (length, dry, run)
        assert dry is None or isinstance(dry, ArgumentError)


def test_a_directory_that_may_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For root, by an answer of the system in its place: root may write anywhere."""
    source = saved(tmp_path)
    (tmp_path / "sealed").mkdir()
    os.chmod(tmp_path / "sealed", 0o500)
    if os.geteuid() == 0:
        monkeypatch.setattr("shardvar.storage.local.os.access", lambda *_args, **_options: False)
        monkeypatch.setattr("shardvar.storage.local.os.supports_effective_ids", set())
    before = everything(tmp_path)
    for target in (tmp_path / "sealed" / "t", tmp_path / "sealed" / "new" / "t"):
        with pytest.raises(StorageError, match="permission"):
            sv.reshard(source, target, dry_run=True)
    assert everything(tmp_path) == before
    os.chmod(tmp_path / "sealed", 0o700)


def test_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, tensors in ((31, None), (0, None), (0, {}), (0, {"e": np.zeros((0, 2))})):
        directory = tmp_path / f"{free}-{len(tensors or ())}-{tensors is None}"
        directory.mkdir()
        source = saved(directory, tensors)
        with monkeypatch.context() as patched:
            patched.setattr(LocalStorage, "free_nbytes", lambda _self, free=free: free)
            assert_refused_alike(source, directory / "t", StorageError, directory)


def test_a_target_that_another_writer_holds(tmp_path: Path) -> None:
    source = saved(tmp_path)
    with LocalStorage(str(tmp_path)).lock("t"):
        assert_refused_alike(source, tmp_path / "t", LockHeld, tmp_path)
    # What a killed writer left is no hindrance.
    (tmp_path / ".t.lock").write_bytes(b"")
    assert sv.reshard(source, tmp_path / "t", dry_run=True).dry_run
    assert (tmp_path / ".t.lock").exists()


def test_a_lost_file_of_the_source(tmp_path: Path) -> None:
    source = saved(tmp_path)
    next(tmp_path.glob("source.svdata*")).unlink()
    assert_refused_alike(source, tmp_path / "t", ShardvarError, tmp_path)


def test_no_task_is_made_of_what_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of many files is made several times as fast as the tasks of its files."""
    source = saved(tmp_path)
    made = Mock(wraps=file_tasks)
    monkeypatch.setattr("shardvar.verbs.writing.file_tasks", made)
    assert (
        sv.reshard(source, tmp_path / "target", policy=BalancedPolicy(4), dry_run=True).num_files
        == 4
    )
    assert made.call_count == 0
    assert (
        sv.reshard(source, tmp_path / "new folder" / "target", policy=BalancedPolicy(4)).num_files
        == 4
    )
    assert made.call_count == 1
