"""Every call of the operating system's under a save and a reshard fails once, or for good: the old
or the new stands.

Where ``test_crash`` fails one storage call after the other, here each call fails of which these are
made (``disk``): of a write also after some of its bytes, of a rename each of its two syncs, and
those of the lock and the directory.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import shardvar as sv
from shardvar.errors import ShardvarError, StorageError
from spec_tests.helpers.faulty_storage import (
    CUTS,
    FOLDERS,
    NEW,
    OLD,
    WRITTEN,
    assert_clean,
    reshard,
    save,
    state,
)
from spec_tests.helpers.killed_writers import rotating_series
from spec_tests.helpers.system_calls import Disk, snapshot
from spec_tests.helpers.thoroughness import EXHAUSTIVE, turn

FULL = ("shardvar", "tensorflow", "zarr")
"""The formats of which a disk that stays full is always tried."""
REASONS = (errno.EIO, errno.ENOSPC, errno.EACCES)

Run = Callable[[Path], Any]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The new tensors as a checkpoint, to be resharded."""
    path = tmp_path_factory.mktemp("source") / "source"
    sv.save(path, NEW, partition=2)
    return path


def failed(
    old: Path, place: Path, run: Run, stays: bool, step: int = 1
) -> Iterator[tuple[Path, Disk, ShardvarError | None]]:
    """For every call: the directory after a run that failed there, and the error.

    Of a write, the lengths that were written take turns; ``make crash`` tries all at each write,
    and each call where others try one of ``step``.
    """
    step = 1 if EXHAUSTIVE else step
    at, cuts = 0, list(turn(CUTS, 0))
    while True:
        directory = place / "run"
        shutil.copytree(old, directory)
        number = REASONS[at % 2 if stays else at % 3]
        disk = Disk(
            str(directory), at, partial(OSError, number, os.strerror(number)), cuts[0], stays
        )
        caught = None
        try:
            with disk.meeting():
                run(directory)
        except ShardvarError as error:
            caught = error
        if disk.taken <= at:
            return
        yield directory, disk, caught
        shutil.rmtree(directory)
        cuts.pop(0)
        if not cuts or not disk.log[at].startswith("pwrite"):
            at, cuts = at + step, list(turn(CUTS, at + step))


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("verb", "form", "stays"),
    [
        *(("save", form, False) for form in WRITTEN),
        *(("reshard", form, False) for form in ("shardvar", "tensorflow", "torch", "orbax")),
        *(("save", form, True) for form in WRITTEN if EXHAUSTIVE or form in FULL),
        ("reshard", "shardvar", True),
    ],
)
def test_a_call_that_fails_leaves_the_old_or_the_new_and_the_next_write_is_clean(
    verb: str, form: str, stays: bool, source: Path, tmp_path: Path
) -> None:
    """``StorageError`` tells whoever called; the files of an old checkpoint that stands are what
    they were."""
    run = (
        partial(save, form=form, tensors=NEW)
        if verb == "save"
        else partial(reshard, source, form=form)
    )
    old, seen = tmp_path / "old", set()
    save(old, form, OLD)
    before = snapshot(old)
    (tmp_path / "clean").mkdir()
    run(tmp_path / "clean")
    # A folder has a file for each tensor, so that there are many calls of a kind; 5 shares no factor
    # with the numbers of reasons.
    step = 5 if form in FOLDERS else 1
    for directory, disk, error in failed(old, tmp_path, partial(run, force=True), stays, step):
        where = f"{disk.at}: {disk.log[disk.at :]}"
        found = state(directory, form)
        seen.add(found)
        assert found in {"old", "new"}, where
        assert isinstance(error, StorageError) or (error is None and found == "new"), (error, where)
        assert found != "old" or before.items() <= snapshot(directory).items(), where
        run(directory, force=True)
        assert state(directory, form) == "new", where
        assert_clean(directory, form, tmp_path / "clean")
    assert seen >= {"old", "new"}


@pytest.mark.parametrize(("form", "stays"), [("shardvar", False), ("tensorflow", True)])
def test_a_call_that_fails_in_a_save_with_rotation_leaves_what_the_state_file_names_whole(
    form: str, stays: bool, tmp_path: Path
) -> None:
    """A manager's version 4 beside 2 and 3, of which 2 is to go; then version 5 leaves nothing but
    itself and 4 or 3.

    A lock file that cannot be removed is the one thing that stays: empty, and held by nobody.
    """
    series, seen = rotating_series(tmp_path, form), set()
    (tmp_path / "old").mkdir()
    for version in (1, 2, 3):
        series.write(tmp_path / "old", version)
    for directory, disk, error in failed(
        tmp_path / "old", tmp_path, partial(series.write, version=4), stays
    ):
        where = f"{disk.at}: {disk.log[disk.at :]}"
        found = series.find(directory)
        seen.add(found)
        assert isinstance(error, StorageError) or (error is None and found == 0), (error, where)
        series.write(directory, 5)
        assert series.find(directory) == 1, where
        if disk.log[disk.at].startswith("unlink .ckpt-"):
            (directory / disk.log[disk.at].removeprefix("unlink ")).unlink(missing_ok=True)
        series.check_clean(directory)
    assert seen == {0, 1}
