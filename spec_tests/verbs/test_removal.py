"""sv.remove: a checkpoint of any format that is written goes whole, and nothing else does; sv.clean,
and what a killed writer has left."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import AmbiguousPath, CheckpointNotFound, LockHeld, UnsupportedError
from shardvar.storage.local import LocalStorage
from spec_tests.helpers.faulty_storage import FOLDERS, FORMATS, WRITTEN, arrays, save, state
from spec_tests.helpers.paths import GOLDEN


@pytest.mark.parametrize(
    ("form", "has_notes"), [*((f, True) for f in sorted(FORMATS)), *((f, False) for f in FOLDERS)]
)
def test_a_checkpoint_goes_and_other_files_stay(form: str, has_notes: bool, tmp_path: Path) -> None:
    """A folder stays only with files of the user's."""
    save(tmp_path / "run", form, arrays(1))
    place = tmp_path / "run" / FOLDERS[form][1] if form in FOLDERS else tmp_path / "run"
    path = place if form in FOLDERS else place / FORMATS[form][1]
    if has_notes:
        (place / "notes.txt").write_text("mine")
    sv.remove(path)
    assert os.listdir(place) == ["notes.txt"] if has_notes else not place.exists()
    assert not has_notes or (place / "notes.txt").read_text() == "mine"
    with pytest.raises(CheckpointNotFound):
        sv.remove(path)


@pytest.mark.parametrize("form", sorted(WRITTEN))
@pytest.mark.parametrize("above", ["", "..", "../.."])
def test_a_folder_is_not_searched_for_something_to_remove(
    form: str, above: str, tmp_path: Path
) -> None:
    """Only a folder in which the checkpoint itself lies means it; the error says what lies below."""
    place = tmp_path / "exp" / "a" / "step-9"
    save(place, form, arrays(1))
    there = place / WRITTEN[form][1] if form in FOLDERS else place
    named = (there / above).resolve() if above else there
    if named == there:
        sv.remove(named)
        assert not there.exists() or not os.listdir(there)
        return
    with pytest.raises(CheckpointNotFound, match="none is taken") as caught:
        sv.remove(named)
    assert str(there) in caught.value.cause
    assert state(place, form) == "old"


def test_neighbours_stay_and_a_folder_of_two_checkpoints_is_ambiguous(tmp_path: Path) -> None:
    for name in ("step-1", "step-10"):
        sv.save(tmp_path / name, {"a": np.arange(4)})
    with pytest.raises(AmbiguousPath):
        sv.remove(tmp_path)
    sv.remove(tmp_path / "step-1.svindex")
    assert sv.verify(tmp_path / "step-10").ok
    assert not [name for name in os.listdir(tmp_path) if name.startswith("step-1.")]


def test_a_checkpoint_that_is_being_written_is_not_removed(tmp_path: Path) -> None:
    sv.save(tmp_path / "ck", {"a": np.arange(4)})
    with LocalStorage(str(tmp_path)).lock("ck"), pytest.raises(LockHeld):
        sv.remove(tmp_path / "ck")
    assert sv.verify(tmp_path / "ck").ok


def test_a_folder_that_a_killed_writer_has_left_goes_whole(tmp_path: Path) -> None:
    sv.save(tmp_path / "a.zarr", {"a": np.arange(4), "b/c": np.ones(3)})
    left = shutil.copytree(tmp_path / "a.zarr", tmp_path / f".a.zarr.{'0f' * 8}.new.tmp")
    nbytes = sum(each.stat().st_size for each in left.rglob("*") if each.is_file())
    report = sv.clean(tmp_path, remove=True, older_than=0)
    (found,) = report.leftovers
    assert (found.path, found.kind, found.nbytes) == (str(left), "folder", nbytes)
    assert report.num_removed == 1 and os.listdir(tmp_path) == ["a.zarr"]
    assert not sv.verify(tmp_path / "a.zarr").damages


def test_a_format_that_is_only_read_is_refused() -> None:
    folder = GOLDEN / "keras"
    file = sorted(folder.rglob("*.h5"))[0]
    with pytest.raises(UnsupportedError, match="read and not written"):
        sv.remove(file)
    assert file.exists()
