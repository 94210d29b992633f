"""Clean: what killed writers have left is listed exactly, removed when told, and nothing else is.

The oracle is a set of names: those before the save, and those that a whole save of the same
generation leaves. All other names are leftovers.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
from collections.abc import Set
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.engine.pool import in_this_thread
from shardvar.errors import ArgumentError, CheckpointError, ShardvarError
from shardvar.planning.policies import BalancedPolicy
from shardvar.storage.local import LocalStorage
from spec_tests.helpers.faulty_storage import FOLDERS, WRITTEN, arrays, is_same, kill_myself, save
from spec_tests.helpers.killed_writers import in_child
from spec_tests.helpers.memory_bucket import Dead, MemoryBucket, in_bucket
from spec_tests.helpers.system_calls import Disk
from spec_tests.helpers.thoroughness import phase, stride


def files(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if not path.is_dir()}


def fixed(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    """Two writers of one generation give their files the same names."""
    monkeypatch.setattr("secrets.token_hex", lambda _=8: token)


def run(place: Path, form: str, version: int, at: int) -> int:
    """Save in another process, which kills itself at a call; return the calls of a whole save."""
    disk = Disk(str(place), at, kill_myself, lambda nbytes: nbytes // 2)

    def write() -> int:
        with disk.meeting():
            save(place, form, arrays(version), force=True)
        (place.parent / "calls").write_text(str(disk.taken))
        return 0

    ended = in_child(write)
    assert ended in (0, -signal.SIGKILL)
    return int((place.parent / "calls").read_text()) if ended == 0 else 0


def loaded(place: Path, form: str) -> int:
    """Return the version that is in place; 0 for none."""
    for version in (1, 2):
        with contextlib.suppress(CheckpointError, ShardvarError):
            if is_same(sv.load(place / WRITTEN[form][1]), arrays(version)):
                return version
    return 0


def prepared(place: Path) -> None:
    sv.save(place / "other", {"a": np.arange(9)}, partition=3)
    sv.save(place / "beside.safetensors", {"a": np.arange(9)})
    (place / "notes.txt").write_text("mine")
    (place / "notes.0123456789abcdef.tmp").write_text("mine")


@pytest.mark.parametrize("form", sorted(WRITTEN))
@pytest.mark.parametrize("is_replaced", [False, True])
def test_exactly_the_leftovers_of_a_killed_writer_are_listed_and_removed(
    form: str, is_replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, whole, place = tmp_path / "start", tmp_path / "whole", tmp_path / "run"
    start.mkdir()
    if form not in ("torch", *FOLDERS):
        prepared(start)
    fixed(monkeypatch, "00000000000000aa")
    if is_replaced:
        save(start, form, arrays(1))
    fixed(monkeypatch, "00000000000000bb")
    shutil.copytree(start, whole)
    calls = run(whole, form, 2, -1)
    before, after = files(start), files(whole)
    for at in range(phase(27), calls, stride(27)):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(start, place)
        run(place, form, 2, at)
        version = loaded(place, form)
        kept = after if version == 2 else before if version or not is_replaced else after & before
        expected = files(place) - kept
        report = sv.clean(place, older_than=0)
        found = {os.path.relpath(each.path, place) for each in report.leftovers}
        inside = {name for name in files(place) if any(name.startswith(f"{f}/") for f in found)}
        assert (found & files(place)) | inside == expected, (at, version)
        held = {name: (place / name).read_bytes() for name in files(place) - expected}
        sv.clean(place, remove=True, older_than=0)
        assert files(place) == set(held), at
        assert all((place / name).read_bytes() == octets for name, octets in held.items())
        assert not sv.clean(place, older_than=0).leftovers
        assert loaded(place, form) == version
        if form not in ("torch", *FOLDERS):
            assert sv.verify(place / "other").ok


BUCKETS = {name: WRITTEN[name] for name in WRITTEN if name not in ("npz", "pt", "safetensors")}


def in_bucket_of(bucket: MemoryBucket, form: str, version: int) -> None:
    kind, name, count = WRITTEN[form]
    policy = BalancedPolicy(count) if count > 1 else None
    sv.save(f"s3://b/run/{name}", arrays(version), format=kind, policy=policy, force=True)


@pytest.mark.parametrize("form", sorted(BUCKETS))
@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("takes_effect", [False, True])
def test_exactly_the_leftovers_in_a_bucket_are_listed_and_removed(
    form: str, is_replaced: bool, takes_effect: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = MemoryBucket()
    with in_bucket(bucket), in_this_thread():
        if form not in ("torch", *FOLDERS):
            sv.save("s3://b/run/other", {"a": np.arange(9)}, partition=3)
        bucket.files["run/notes.0123456789abcdef.tmp"] = b"mine"
        fixed(monkeypatch, "00000000000000aa")
        if is_replaced:
            in_bucket_of(bucket, form, 1)
        fixed(monkeypatch, "00000000000000bb")
        before, begin = dict(bucket.files), len(bucket.log)
        in_bucket_of(bucket, form, 2)
        after, count = dict(bucket.files), len(bucket.log) - begin
        for at in range(phase(3), count, stride(3)):
            dead = MemoryBucket(
                dict(before),
                [""] * begin,
                begin + at,
                takes_effect,
                error=Dead,
                times=dict.fromkeys(before, 0.0),
            )
            with in_bucket(dead), pytest.raises(Dead):
                in_bucket_of(dead, form, 2)
            left = MemoryBucket(dict(dead.files), [""] * len(dead.log), times=dict(dead.times))
            with in_bucket(left):
                check_bucket(left, form, before.keys(), after.keys(), is_replaced, at)


def check_bucket(
    bucket: MemoryBucket, form: str, before: Set[str], after: Set[str], is_replaced: bool, at: int
) -> None:
    version = 0
    for each in (1, 2):
        with contextlib.suppress(ShardvarError):
            version = (
                each
                if is_same(sv.load(f"s3://b/run/{WRITTEN[form][1]}"), arrays(each))
                else version
            )
    kept = after if version == 2 else before if version or not is_replaced else after & before
    if not version and form in FOLDERS:
        kept = {key for key in kept if "ck/" not in key}
    expected = bucket.files.keys() - kept
    found = {each.path.removeprefix("s3://bucket/") for each in sv.clean("s3://b/run").leftovers}
    assert found == expected, (at, version)
    sv.clean("s3://b/run", remove=True)
    assert bucket.files.keys() == kept & bucket.files.keys() and not found & bucket.files.keys()
    assert not sv.clean("s3://b/run").leftovers
    if version:
        assert is_same(sv.load(f"s3://b/run/{WRITTEN[form][1]}"), arrays(version))


def test_a_writer_at_work_and_what_is_young_stay(tmp_path: Path) -> None:
    aside = tmp_path / "ck.svindex.0123456789abcdef.tmp"
    other = tmp_path / "it.svindex.0123456789abcdef.tmp"
    for path in (aside, other):
        path.write_bytes(b"x")
        os.utime(path, (0, 0))
    with LocalStorage(str(tmp_path)).lock("ck"):
        report = sv.clean(tmp_path, remove=True)
    assert aside.exists() and not other.exists()
    assert (report.num_at_work, report.num_removed) == (2, 1)
    (tmp_path / "ck.svdata-0123456789abcdef-00000-of-00001").write_bytes(b"young")
    report = sv.clean(tmp_path, remove=True)
    assert len(report.leftovers) == 2 and not any(each.is_old for each in report.leftovers)
    assert report.num_removed == 0 and aside.exists()
    assert sv.clean(tmp_path, remove=True, older_than=0).num_removed == 2
    assert not os.listdir(tmp_path)


def claim(process: int, host: str = "") -> bytes:
    about = {"host": host or socket.gethostname(), "process": process, "shardvar": "1", "time": "t"}
    return json.dumps(about).encode()


def test_a_claim_of_a_process_that_is_alive_here_stays() -> None:
    dead = os.fork()
    if not dead:
        os._exit(0)
    os.waitpid(dead, 0)
    bucket = MemoryBucket()
    bucket.files.update(
        {
            "run/.a.claim": claim(os.getppid()),
            "run/a.safetensors-00001.0123456789abcdef.tmp": b"",
            "run/.b.claim": claim(dead),
            "run/.c.claim": claim(os.getppid(), "elsewhere"),
            "run/.d.claim": b"not JSON",
        }
    )
    bucket.times = dict.fromkeys(bucket.files, 0.0)
    with in_bucket(bucket):
        report = sv.clean("s3://b/run", remove=True)
    assert [each.path[-8:] for each in report.leftovers] == [".b.claim", ".c.claim"]
    assert "run/.a.claim" in bucket.files and "run/.d.claim" in bucket.files
    assert len(bucket.files) == 3


def test_files_of_others_stay_and_an_unreadable_index_keeps_all_data(tmp_path: Path) -> None:
    sv.save(tmp_path / "a", {"a": np.arange(4)})
    index = tmp_path / "a.svindex"
    index.write_bytes(index.read_bytes()[:-9])
    others = [
        "b.svdata-0123456789abcdef-00000-of-00001",
        "model-00001-of-00002.safetensors",
        "model.data-00000-of-00001",
        "__0_0.distcp",
        "mine.0123456789abcdef.tmp",
        "run.tmp",
        ".busy.lock",
    ]
    for name in others:
        (tmp_path / name).write_text("mine")
    before = files(tmp_path)
    assert not sv.clean(tmp_path, remove=True, older_than=0).leftovers and files(tmp_path) == before
    sv.remove(tmp_path / "a")
    left = sv.clean(tmp_path, older_than=0).leftovers
    assert {each.path.rpartition("/")[2] for each in left} == {others[0]} | files(tmp_path) - {
        *others
    }


def test_only_a_folder_and_seconds_are_taken(tmp_path: Path) -> None:
    for path, seconds in ((tmp_path / "none", 1), (tmp_path, -1), (tmp_path, float("nan"))):
        with pytest.raises(ArgumentError):
            sv.clean(path, older_than=seconds)
