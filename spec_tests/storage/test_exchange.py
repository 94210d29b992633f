"""What an exchange of folders keeps of the old one: the user's files, modes, times and owners."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from shardvar.storage import exchange
from shardvar.storage.local import LocalStorage
from spec_tests.helpers.system_calls import snapshot

OWN = {"index": b"1", "arrays/0": b"2", "arrays/deep/1": b"3"}
USERS = {"notes": b"mine", "arrays/notes": b"mine too", "logs/1": b"a log"}


def put(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("has_swap", [True, False])
def test_after_an_exchange_the_new_files_and_the_users_are_there_and_nothing_else(
    has_links: bool, has_swap: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those too that come while the folders change places. A folder stays if it is the user's."""
    swap, place = exchange._swap, tmp_path / "run"

    def late(ready: str, old: str) -> bool:
        (place / "notes").unlink()
        put(place, {"late/log": b"late", "notes": b"newer"})
        return has_swap and swap(ready, old)

    def no_link(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(exchange, "_swap", late)
    if not has_links:
        monkeypatch.setattr(os, "link", no_link)
    put(place, OWN | USERS)
    os.utime(place / "notes", (1_000, 2_000))
    (place / "link").symlink_to("notes")
    (place / "empty").mkdir()
    beside = exchange.FolderBeside(str(place))
    beside.make()
    beside.write("index", b"new")
    beside.put_in_place(lambda _: OWN)
    new = {"index": b"new", "late/log": b"late", "notes": b"newer", "link": b"newer"}
    assert snapshot(place) == USERS | new and (place / "link").is_symlink()
    folders = {path.name for path in place.iterdir() if path.is_dir()}
    assert folders == {"arrays", "empty", "late", "logs"} and os.listdir(tmp_path) == ["run"]
    assert not (place / "arrays" / "deep").exists()


@pytest.mark.parametrize("kind", ["new", "old", "was"])
def test_what_a_killed_writer_left_is_removed_but_for_files_that_may_be_only_there(
    kind: str, tmp_path: Path
) -> None:
    """A new folder has none: the user's files are in the old one until the exchange."""
    left = tmp_path / f".run.{'0' * 16}.{kind}.tmp"
    put(tmp_path / "run", {"index": b"new"})
    put(left, OWN | USERS)
    exchange.remove_beside(str(left), lambda _: OWN)
    assert snapshot(tmp_path / "run") == {"index": b"new"} | (USERS if kind != "new" else {})
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize("mode", [0o700, 0o751, 0o777])
def test_a_folder_is_made_with_the_rights_and_times_of_the_old_one(
    tmp_path: Path, mode: int
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "notes").mkdir(parents=True)
    new.mkdir()
    (old / "notes").chmod(mode)
    os.utime(old / "notes", (1_000, 2_000))
    exchange._copy_folder(str(old), str(new), "notes")
    found = (new / "notes").stat()
    assert (found.st_mode & 0o777, found.st_mtime) == (mode, 2_000)


def test_a_folder_of_another_owner_keeps_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if it differs: most users may not change the owner of a file."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    given: list[Any] = []
    monkeypatch.setattr(os, "chown", lambda *arguments: given.append(arguments))
    exchange._copy_rights(str(old), str(new))
    assert given == []
    real, status = os.stat, old.stat()

    class Other:
        st_uid, st_gid, st_mode = status.st_uid + 1, status.st_gid, status.st_mode

    monkeypatch.setattr(
        os, "stat", lambda path, **more: Other() if path == str(old) else real(path, **more)
    )
    monkeypatch.setattr(exchange.shutil, "copystat", lambda *_: None)
    exchange._copy_rights(str(old), str(new))
    assert given == [(str(new), status.st_uid + 1, status.st_gid)]


def test_a_folder_that_another_writer_makes_first_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, real = LocalStorage(str(tmp_path / "a" / "b")), os.makedirs

    def raced(path: Any, *arguments: Any, **more: Any) -> None:
        real(path, exist_ok=True)
        real(path, *arguments, **more)

    monkeypatch.setattr(os, "makedirs", raced)
    storage.make()
    file = storage.create("x")
    file.write(0, b"1")
    file.close()
    assert (tmp_path / "a" / "b" / "x").read_bytes() == b"1"
