"""Folders of arrays, Zarr and Orbax: what is left of them when a writer dies, fails or is
interrupted at any step.

Such a folder is not replaced in one step. So a reader may also find that there is no checkpoint,
and never a mixture: no array of another checkpoint, and no fill value in the place of a lost chunk.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import CheckpointError, StorageError, TargetExists
from shardvar.formats.table import format_named
from shardvar.storage.local import LocalStorage
from spec_tests.helpers.faulty_storage import Fault, FaultyStorage, Killed, failing, full, is_same
from spec_tests.helpers.system_calls import Disk, snapshot, survivors

FOLDERS = ("zarr", "orbax")
OLD = {"old/u": np.arange(4, dtype=np.int8), "w": np.arange(6, dtype=np.float32).reshape(2, 3)}
NEW = {"new.v": np.float64(7), "w": np.arange(6, 12, dtype=np.float32).reshape(2, 3)}
FOREIGN = {
    "notes.txt": b"mine",
    "old/u/notes.txt": b"mine too",
    "logs/1": b"a log, and not a chunk",
}
"""Files of the user, which stay. (``logs/1`` is named like a chunk of Orbax.)"""


def save(path: Path, form: str, tensors: dict[str, Any]) -> None:
    sv.save(path, tensors, format=form, force=True, partition={"w": 2})


def state(path: Path) -> str:
    """Return "old", "new" or "nothing"; anything else is a mixture."""
    try:
        read = sv.load(path)
    except CheckpointError:
        return "nothing"
    assert is_same(read, OLD) or is_same(read, NEW), {
        key: array.tolist() for key, array in read.items()
    }
    return "old" if is_same(read, OLD) else "new"


def put(path: Path, files: dict[str, bytes]) -> None:
    for name, octets in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(octets)


@pytest.fixture(params=FOLDERS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clean(form: str, tmp_path: Path) -> dict[str, bytes]:
    """The files of a clean write."""
    save(tmp_path / "clean", form, NEW)
    return snapshot(tmp_path / "clean")


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", [Killed, full, KeyboardInterrupt])
def test_a_save_that_ends_at_any_step_leaves_old_or_new_or_nothing_and_the_next_save_is_clean(
    form: str,
    is_there: bool,
    after: bool,
    kind: Callable[[], BaseException],
    tmp_path: Path,
    clean: dict[str, bytes],
) -> None:
    """The next save leaves nothing of the one that ended, and each file of the user."""
    mine = FOREIGN if is_there else {}
    seen = set()
    for at in range(200):
        path = tmp_path / str(at)
        path.mkdir()
        if is_there:
            save(path, form, OLD)
            put(path, mine)
        fault = Fault(at, kind, after)
        try:
            with failing(path, fault):
                save(path, form, NEW)
        except (Killed, StorageError, KeyboardInterrupt):
            pass
        if fault.taken <= at:
            break
        seen.add(state(path))
        save(path, form, NEW)
        assert snapshot(path) == clean | mine, fault.log
        shutil.rmtree(path)
    assert seen >= {"nothing", "new"} - ({"new"} if not after and kind is not Killed else set())
    assert ("old" in seen) is is_there


def test_a_power_cut_at_any_moment_leaves_old_or_new_or_nothing_and_the_next_save_is_clean(
    form: str, tmp_path: Path, clean: dict[str, bytes]
) -> None:
    path = tmp_path / "run"
    path.mkdir()
    save(path, form, OLD)
    before, disk = snapshot(path), Disk(str(path))
    with disk.meeting():
        save(path, form, NEW)
    for is_done, files in survivors(before, disk.events):
        left = tmp_path / "left"
        left.mkdir()
        put(left, files)
        found = state(left)
        assert found == "new" or not is_done, sorted(files)
        try:
            save(left, form, NEW)
        except TargetExists as error:
            pytest.fail(f"{error} with {sorted(files)}")
        assert snapshot(left) == clean, sorted(files)
        shutil.rmtree(left)


def test_a_removal_that_ends_at_any_step_leaves_old_or_nothing_and_the_next_is_complete(
    form: str, tmp_path: Path
) -> None:
    index = format_named(form).capabilities.folder_index
    for at in range(50):
        path = tmp_path / str(at)
        save(path, form, OLD)
        put(path, {"notes.txt": b"mine"})
        fault, storage = Fault(at), LocalStorage(str(path))
        dying: Any = FaultyStorage(storage, fault)
        with suppress(Killed):
            format_named(form).remove(dying, index)
        if fault.taken <= at:
            break
        assert state(path) in ("old", "nothing")
        format_named(form).remove(storage, index)
        assert os.listdir(path) == ["notes.txt"], fault.log
    assert at > 5


def test_arrays_without_an_index_are_somebody_elses_and_nothing_is_written_among_them(
    form: str, tmp_path: Path
) -> None:
    """A new index would make them a part of the checkpoint."""
    save(tmp_path / "run" / "other", form, OLD)
    (tmp_path / "run" / "other" / format_named(form).capabilities.folder_index).rename(
        tmp_path / "aside"
    )
    before = snapshot(tmp_path)
    with pytest.raises(TargetExists, match="other"):
        save(tmp_path / "run", form, NEW)
    assert snapshot(tmp_path) == before


def test_nothing_is_written_or_removed_behind_a_link(form: str, tmp_path: Path) -> None:
    """A link in the place of an array's folder is refused."""
    (tmp_path / "outside").mkdir()
    put(tmp_path / "outside", {"zarr.json": b"{}", "0.0": b"mine", "c/0/0": b"mine"})
    before = snapshot(tmp_path / "outside")
    (tmp_path / "ck").mkdir()
    (tmp_path / "ck" / "w").symlink_to(tmp_path / "outside")
    with pytest.raises(StorageError, match="symbolic link"):
        save(tmp_path / "ck", form, NEW)
    assert snapshot(tmp_path / "outside") == before


def test_a_lost_chunk_is_damage_and_never_the_fill_value(form: str, tmp_path: Path) -> None:
    save(tmp_path / "ck", form, NEW)
    for name in [
        name for name in snapshot(tmp_path / "ck") if name.startswith("w/") and name[-1].isdigit()
    ]:
        (tmp_path / "ck" / name).rename(tmp_path / "aside")
        with pytest.raises(CheckpointError, match="is missing"):
            sv.load(tmp_path / "ck")
        assert not sv.verify(tmp_path / "ck").ok
        (tmp_path / "aside").rename(tmp_path / "ck" / name)
    assert state(tmp_path / "ck") == "new"
