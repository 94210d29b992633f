"""Folders of arrays, Zarr and Orbax: what is left of them, and of the files of the user's in them,
when a writer dies, fails or is interrupted at any step.

A reader finds the old checkpoint or the new one, and never a mixture: no array of another
checkpoint, and no fill value in the place of a lost chunk.
"""

import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.engine.pool import in_this_thread
from shardvar.errors import CheckpointError, CheckpointNotFound, StorageError, TargetExists
from shardvar.formats.files import State
from shardvar.formats.table import format_named
from shardvar.storage import local
from shardvar.storage.local import LocalStorage
from spec_tests.helpers.faulty_storage import Killed, is_same
from spec_tests.helpers.orbax_files import settled
from spec_tests.helpers.system_calls import Disk, snapshot, survivors
from spec_tests.helpers.thoroughness import is_due, phase, stride

FOLDERS = ("zarr", "orbax", "orbax-plain")
OLD = {"old/u": np.arange(4, dtype=np.int8), "w": np.arange(600, dtype=np.float32).reshape(2, 300)}
NEW = {"new.v": np.float64(7), "w": np.arange(600, 1200, dtype=np.float32).reshape(2, 300)}
"""Chunks of ``w`` are larger than the nodes of a database take."""
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


def laid_out(path: Path, form: str) -> dict[str, bytes]:
    """Save the old checkpoint, with files of the user's; return the files of a clean overwrite."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, form, OLD)
    put(path, FOREIGN)
    (path / "shortcut").symlink_to("notes.txt")
    (path / "empty").mkdir()
    save(path.parent / "clean", form, NEW)
    clean = settled(snapshot(path.parent / "clean")) | FOREIGN | {"shortcut": FOREIGN["notes.txt"]}
    shutil.rmtree(path.parent / "clean")
    return clean


def check_users_files(path: Path, where: object) -> None:
    """Raise unless all files of the user's are there, whichever checkpoint is."""
    there = snapshot(path)
    assert FOREIGN.items() <= there.items(), where
    assert (path / "shortcut").is_symlink() and os.listdir(path / "empty") == [], where


def error_of(number: int) -> OSError:
    return OSError(number, os.strerror(number))


HOWS: dict[str, tuple[Callable[[], BaseException], bool, bool]] = {
    "killed": (Killed, False, False),
    "killed after": (Killed, True, False),
    "EIO": (partial(error_of, errno.EIO), False, False),
    "ENOSPC": (partial(error_of, errno.ENOSPC), False, False),
    "ENOSPC for ever": (partial(error_of, errno.ENOSPC), False, True),
    "interrupt": (KeyboardInterrupt, False, False),
    "interrupt after": (KeyboardInterrupt, True, False),
}
"""What a call meets, whether it takes effect before, and whether all writing fails from then on."""


@pytest.mark.sample(5)
@pytest.mark.parametrize("has_swap", [True, False], ids=["exchange", "two renames"])
@pytest.mark.parametrize("how", HOWS)
def test_an_overwrite_that_ends_at_any_call_leaves_the_old_or_the_new_and_the_users_files(
    form: str, how: str, has_swap: bool, tmp_path: Path
) -> None:
    """The error says which; and the next overwrite leaves the new one, the user's files, and
    nothing else, in and beside the folder.

    Where the system cannot exchange folders, the folder may be missing after a kill between two
    renames. A reader says where it is, and the next writer puts it back.
    """
    clean = laid_out(tmp_path / "old" / "ck", form)
    kind, after, stays = HOWS[how]
    at, step = phase(31), stride(31)
    seen = set()
    while True:
        place = tmp_path / "run"
        shutil.copytree(tmp_path / "old", place, symlinks=True)
        path, caught = place / "ck", None
        disk = Disk(
            str(place), at, kind, lambda n: n // 2, stays=stays, after=after, has_swap=has_swap
        )
        try:
            with disk.meeting(), in_this_thread():
                save(path, form, NEW)
        except (Killed, StorageError, KeyboardInterrupt) as error:
            caught = error
        if disk.taken <= at:
            break
        local._close_inherited()  # as the end of the process does
        where = disk.log[at:]
        found = state(path)
        seen.add(found)
        if found == "nothing":
            assert not has_swap and not path.exists() and (kind is Killed or stays), where
            with pytest.raises(CheckpointNotFound, match=r"its folder is .*\.was\.tmp"):
                sv.load(path)
            LocalStorage(str(path)).make()
            assert state(path) == "old", where
        check_users_files(path, where)
        if isinstance(caught, StorageError):
            # Before the lock is held, nothing has begun.
            told = {"old": State.OLD, "new": State.NEW, "nothing": State.ASIDE}[found].value
            assert caught.state == told or (caught.state is None and found == "old"), where
            assert str(caught).endswith(caught.state or "")
        save(path, form, NEW)
        assert settled(snapshot(path)) == clean, where
        check_users_files(path, where)
        assert os.listdir(place) == ["ck"], where
        shutil.rmtree(place)
        at += step
    assert seen >= {"old", "new"}


def test_a_power_cut_in_an_overwrite_leaves_the_old_or_the_new_and_the_users_files(
    form: str, tmp_path: Path
) -> None:
    place = tmp_path / "run"
    save(place / "ck", form, OLD)
    put(place / "ck", FOREIGN)
    before, disk = snapshot(place), Disk(str(place))
    with disk.meeting(), in_this_thread():
        save(place / "ck", form, NEW)
    after = settled(snapshot(place))
    for number, (is_done, files) in enumerate(survivors(before, disk.events)):
        if not is_due(number, 17 if is_done else 61):
            continue
        left = tmp_path / "left"
        put(left, files)
        found = state(left / "ck")
        assert found == "new" if is_done else found in ("old", "new"), sorted(files)
        assert {f"ck/{name}": octets for name, octets in FOREIGN.items()}.items() <= files.items()
        save(left / "ck", form, NEW)
        assert settled(snapshot(left)) == after, sorted(files)
        shutil.rmtree(left)


def test_a_file_of_the_users_is_not_replaced_by_one_of_the_checkpoint(
    form: str, tmp_path: Path
) -> None:
    path = tmp_path / "ck"
    name = "ocdbt.process_0" if form == "orbax" else "new.v"
    sv.save(path, {"u": OLD["old/u"]}, format=form)
    put(path, {name: b"mine"})
    before = snapshot(path)
    with pytest.raises(StorageError, match=rf"{name}.* What was there before is as it was\."):
        save(path, form, NEW)
    assert snapshot(path) == before and os.listdir(tmp_path) == ["ck"]


def test_a_folder_that_cannot_be_exchanged_is_refused_before_anything_is_written(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory would be removed under whoever is in it; a first save into it is
    fine."""
    path = tmp_path / "ck"
    (path / "below").mkdir(parents=True)
    monkeypatch.chdir(path / "below")
    save(path, form, OLD)
    before = snapshot(path)
    with pytest.raises(StorageError, match="a working directory is in it. Change to another"):
        save(path, form, NEW)
    assert snapshot(path) == before and state(path) == "old"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os.path, "ismount", lambda place: str(place) == str(path))
    with pytest.raises(StorageError, match="it is a mount point"):
        save(path, form, NEW)
    assert snapshot(path) == before


def test_the_folder_keeps_its_mode_and_the_link_that_leads_to_it(form: str, tmp_path: Path) -> None:
    save(tmp_path / "ck", form, OLD)
    (tmp_path / "ck").chmod(0o750)
    (tmp_path / "link").symlink_to("ck")
    save(tmp_path / "link", form, NEW)
    assert state(tmp_path / "ck") == "new" and (tmp_path / "link").is_symlink()
    assert (tmp_path / "ck").stat().st_mode & 0o777 == 0o750
    assert sorted(os.listdir(tmp_path)) == ["ck", "link"]


def test_a_chunk_whose_key_ends_like_the_name_of_a_chunk_goes_with_its_checkpoint(
    form: str, tmp_path: Path
) -> None:
    """``b/c/0`` may be a chunk of ``b/c`` or, in another version of Zarr, of ``b``."""
    sv.save(tmp_path / "ck", {"b/c": np.ones(3)}, format=form)
    save(tmp_path / "ck", form, NEW)
    assert not (tmp_path / "ck" / "b").exists()


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
    name = "ocdbt.process_0" if form == "orbax" else "w"
    (tmp_path / "ck" / name).symlink_to(tmp_path / "outside")
    with pytest.raises(StorageError, match="symbolic link"):
        save(tmp_path / "ck", form, NEW)
    assert snapshot(tmp_path / "outside") == before


def test_a_lost_chunk_is_damage_and_never_the_fill_value(form: str, tmp_path: Path) -> None:
    save(tmp_path / "ck", form, NEW)
    names = [
        name
        for name in snapshot(tmp_path / "ck")
        if (name.startswith("w/") and name[-1].isdigit()) or name.startswith("ocdbt.process_0/d/")
    ]
    assert len(names) == (1 if form == "orbax" else 2)
    for name in names:
        (tmp_path / "ck" / name).rename(tmp_path / "aside")
        with pytest.raises(CheckpointError, match="is missing|Not enough data"):
            sv.load(tmp_path / "ck")
        assert not sv.verify(tmp_path / "ck").ok
        (tmp_path / "aside").rename(tmp_path / "ck" / name)
    assert state(tmp_path / "ck") == "new"
