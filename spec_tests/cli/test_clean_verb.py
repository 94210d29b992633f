"""``shardvar clean``: lists, and removes only with ``--remove`` and beyond the age limit."""

import json
import os
from pathlib import Path

import pytest

from spec_tests.helpers.command_line import Run, run

__all__ = ["run"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for number in range(3):
        path = tmp_path / f"m{number}.svindex.0123456789abcdef.tmp"
        path.write_bytes(bytes(7))
        os.utime(path, (0, 0))
    return tmp_path


def test_it_lists_and_removes_only_when_told(place: Path, run: Run) -> None:
    listed = run("clean", place)
    assert listed.code == 0 and listed.out.startswith(f"3 leftovers in {place}, 21 B")
    assert listed.out.count("temporary file") == 3 and "--remove removes 3" in listed.err
    young = place / "m1.svindex.0123456789abcdef.tmp"
    young.touch()
    removed = run("clean", place, "--remove", "--older-than=2h", "--all", "--color=never")
    assert removed.code == 0 and "removed 2" in removed.out
    assert "1 leftover younger than 2 h 0 min" in removed.err and os.listdir(place) == [young.name]
    about = run("clean", place, "--remove", "--older-than", "0", "--json").json
    assert (about["num_removed"], about["nbytes"]) == (1, 7) and not os.listdir(place)


@pytest.mark.parametrize("age", ["x", "-1", "1y", "", "1 d"])
def test_an_age_that_is_not_one_is_refused(age: str, place: Path, run: Run) -> None:
    refused = run("clean", place, f"--older-than={age}")
    assert refused.code == 2 and f"Invalid age {age!r}" in refused.err
    assert len(os.listdir(place)) == 3


def test_a_path_that_is_not_a_folder_is_refused(place: Path, run: Run) -> None:
    refused = run("clean", place / "none")
    assert refused.code == 2 and "is not a folder" in refused.err


def test_it_says_what_removes_unfinished_uploads(tmp_path: Path, run: Run) -> None:
    """obstore cannot list them: if it can one day, ``clean`` does."""
    obstore = pytest.importorskip("obstore")
    assert not [name for name in dir(obstore) if "multipart" in name or "abort" in name]
    owner = {"host": "h", "process": 1, "shardvar": "1", "time": "2026-01-01T00:00:00"}
    (tmp_path / ".m.0123456789abcdef.uploads").write_text(json.dumps(owner))
    listed = run("clean", tmp_path)
    assert "(AbortIncompleteMultipartUpload) ends them; Azure drops them after a week" in listed.err
