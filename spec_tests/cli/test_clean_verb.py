"""``shardvar clean``: lists, and removes only with ``--remove`` and beyond the age limit."""

import json
import os
from pathlib import Path

import pytest

from spec_tests.helpers.command_line import Run, run

__all__ = ["run"]


def test_only_what_is_old_is_removed(tmp_path: Path, run: Run) -> None:
    paths = [tmp_path / f"m{number}.svindex.0123456789abcdef.tmp" for number in range(3)]
    for path in paths:
        path.write_bytes(bytes(7))
        os.utime(path, (0, 0))
    paths[1].touch()
    removed = run("clean", tmp_path, "--remove", "--older-than=2h", "--all")
    assert removed.code == 0 and "removed 2" in removed.out and [*tmp_path.iterdir()] == [paths[1]]
    assert "1 leftover younger than 2 h 0 min" in removed.err


def test_it_says_what_removes_unfinished_uploads(tmp_path: Path, run: Run) -> None:
    """obstore cannot list them: if it can one day, ``clean`` does."""
    obstore = pytest.importorskip("obstore")
    assert not [name for name in dir(obstore) if "multipart" in name or "abort" in name]
    owner = {"host": "h", "process": 1, "shardvar": "1", "time": "2026-01-01T00:00:00"}
    (tmp_path / ".m.0123456789abcdef.uploads").write_text(json.dumps(owner))
    listed = run("clean", tmp_path)
    assert "(AbortIncompleteMultipartUpload) ends them; Azure drops them after a week" in listed.err
