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
from spec_tests.helpers.command_line import Run, run

__all__ = ["run"]  # a fixture


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


@pytest.mark.parametrize(
    ("key", "name", "form"),
    [
        ("/abs", "t.npz", None),
        ("a/../b", "t.npz", None),
        ("", "t", "tensorflow"),
        ("_CHECKPOINTABLE\udcff", "t", "safetensors"),
        ("__metadata__", "t", "safetensors"),
    ],
)
def test_a_name_that_the_format_cannot_hold(
    key: str, name: str, form: str | None, tmp_path: Path
) -> None:
    source = saved(tmp_path, {key: np.ones(3)})
    assert_refused_alike(source, tmp_path / name, UnsupportedError, tmp_path, format=form)


def test_a_dtype_that_the_format_cannot_hold(tmp_path: Path) -> None:
    source = saved(tmp_path)
    assert_refused_alike(
        source, tmp_path / "t.npz", UnsupportedError, tmp_path, cast={"a": "bfloat16"}
    )


@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "safetensors", "npz"])
def test_a_target_that_exists(form: str, tmp_path: Path) -> None:
    source = saved(tmp_path)
    sv.save(tmp_path / "t", {"b": np.ones(3)}, format=form)
    assert_refused_alike(source, tmp_path / "t", TargetExists, tmp_path, format=form)
    assert sv.reshard(source, tmp_path / "t", format=form, force=True, dry_run=True).dry_run


@pytest.mark.parametrize(
    ("form", "index"),
    [
        ("shardvar", "t.svindex"),
        ("tensorflow", "t.index"),
        ("safetensors", "t/model.safetensors"),
        ("npz", "t.npz"),
    ],
)
def test_a_directory_in_the_place_of_the_index(form: str, index: str, tmp_path: Path) -> None:
    source = saved(tmp_path)
    (tmp_path / index).mkdir(parents=True)
    assert_refused_alike(source, tmp_path / "t", StorageError, tmp_path, format=form)


def test_a_directory_of_the_name_without_ending_is_no_hindrance(tmp_path: Path) -> None:
    source = saved(tmp_path)
    (tmp_path / "t").mkdir()
    for name in ("t.safetensors", "t.npz"):
        assert sv.reshard(source, tmp_path / name, dry_run=True).dry_run
        assert sv.reshard(source, tmp_path / name).num_tensors == 1


@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "safetensors", "npz"])
def test_a_name_that_is_too_long_with_its_endings(form: str, tmp_path: Path) -> None:
    """Whatever the length, the dry run says what the run says."""
    source = saved(tmp_path)
    for length in (200, 215, 225, 230, 235, 240, 245, 250, 255):
        target = tmp_path / ("t" * length)
        dry = refused(lambda target=target: sv.reshard(source, target, format=form, dry_run=True))
        run = refused(lambda target=target: sv.reshard(source, target, format=form))
        assert type(dry) is type(run), (length, dry, run)
        assert dry is None or isinstance(dry, ArgumentError)


def test_a_file_in_the_place_of_a_directory(tmp_path: Path) -> None:
    source = saved(tmp_path)
    (tmp_path / "file").write_bytes(b"x")
    for target in ("file/t", "file/deeper/t"):
        assert_refused_alike(source, tmp_path / target, StorageError, tmp_path)


def test_a_name_of_a_directory_that_is_too_long(tmp_path: Path) -> None:
    source = saved(tmp_path)
    assert_refused_alike(source, tmp_path / ("d" * 300) / "t", StorageError, tmp_path)
    assert_refused_alike(
        source, tmp_path / "/".join(["d" * 200] * 30) / "t", StorageError, tmp_path
    )


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


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a file system without room")
def test_a_place_where_nothing_can_be_made(tmp_path: Path) -> None:
    assert_refused_alike(saved(tmp_path), Path("/proc/x/t"), StorageError, tmp_path)


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


@pytest.mark.parametrize(
    ("key", "target", "words"),
    [("/abs", "t.npz", ()), ("", "t", ("--format", "tensorflow")), ("a", "/proc/x/t", ())],
)
def test_the_command_says_the_same(
    key: str, target: str, words: tuple[str, ...], tmp_path: Path, run: Run
) -> None:
    source = saved(tmp_path, {key: np.ones(3)})
    outcome = run("reshard", source, tmp_path / target, "--dry-run", *words)
    assert outcome.code == 3 and outcome.out == "" and "hint: " in outcome.err
    assert outcome.err == run("reshard", source, tmp_path / target, *words).err or key == "a"


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
