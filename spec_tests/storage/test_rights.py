"""What an exchange of folders keeps of the old one: modes, times and owners."""

import os
from pathlib import Path
from typing import Any

import pytest

from shardvar.storage import exchange
from shardvar.storage.local import LocalStorage


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
