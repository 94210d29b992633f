"""Every call of the operating system's under a save and a reshard fails once, or for good, or is
interrupted: the old or the new stands, and nothing else is left.

Where ``test_crash`` fails one storage call after the other, here each call fails of which these are
made (``disk``): of a write also after some of its bytes, of a rename each of its two syncs, and
those of the lock and the directory. ``test_folders_of_arrays`` does so with folders.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shardvar.errors import ShardvarError, StorageError
from spec_tests.helpers.faulty_storage import (
    CUTS,
    FORMATS,
    NEW,
    OLD,
    assert_clean,
    paths,
    reshard,
    save,
    state,
    strays,
)
from spec_tests.helpers.killed_writers import rotating_series
from spec_tests.helpers.system_calls import Disk, snapshot
from spec_tests.helpers.thoroughness import EXHAUSTIVE, phase, stride, turn

REASONS = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EINTR, errno.EMFILE)
HOWS = {
    "fails": (False, False),
    "all writing fails": (True, False),
    "is interrupted": (False, False),
    "is interrupted after": (False, True),
}
"""What a call meets: whether all writing fails from then on, and whether it takes effect before."""

Run = Callable[[Path], Any]


def failed(
    old: Path, place: Path, run: Run, how: str, every: int
) -> Iterator[tuple[Path, Disk, BaseException | None]]:
    """For every call: the directory after a run that failed there, and the error.

    Of a write, the lengths that were written take turns, as do the reasons; ``make crash`` tries
    all at each write, and each call where others try one of ``every``.
    """
    stays, after = HOWS[how]
    at, number = phase(every), 0
    cuts = list(turn(CUTS, at))
    while True:
        directory = place / "run"
        shutil.copytree(old, directory)
        reason = REASONS[number % (2 if stays else len(REASONS))]
        error = partial(OSError, reason, os.strerror(reason))
        fault = KeyboardInterrupt if "interrupted" in how else error
        disk = Disk(str(directory), at, fault, cuts[0], stays, after)
        caught = None
        try:
            with disk.meeting():
                run(directory)
        except (ShardvarError, KeyboardInterrupt) as error:
            caught = error
        if disk.taken <= at:
            return
        yield directory, disk, caught
        shutil.rmtree(directory)
        cuts.pop(0)
        number += 1
        if not cuts or not disk.log[at].startswith("pwrite"):
            at += stride(every)
            cuts = list(turn(CUTS, number))


def may_stay(disk: Disk, found: str) -> Callable[[str], bool]:
    """Whether a file may be left because the call that failed was to remove it, or to find it after
    the commit."""
    call, _, path = disk.log[disk.at].partition(" ")
    if call in ("unlink", "rmdir"):
        return lambda name: name == path
    return lambda name: call == "scandir" and found == "new"


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("verb", "form", "how"),
    [
        *(("save", form, how) for how in HOWS for form in [*FORMATS, "pt"]),
        *(("reshard", form, "fails") for form in ("shardvar", "tensorflow", "torch")),
        ("reshard", "shardvar", "all writing fails"),
    ],
)
def test_a_call_that_fails_leaves_the_old_or_the_new_and_the_next_write_is_clean(
    verb: str, form: str, how: str, source: Path, tmp_path: Path
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
    before, names = snapshot(old), set(paths(old))
    (tmp_path / "clean").mkdir()
    run(tmp_path / "clean")
    for directory, disk, error in failed(old, tmp_path, partial(run, force=True), how, 5):
        where = f"{disk.at}: {disk.log[disk.at :]}"
        found = state(directory, form)
        seen.add(found)
        assert found in {"old", "new"}, where
        assert error is not None or found == "new", where
        assert error is None or isinstance(error, StorageError) == ("interrupted" not in how), where
        assert found != "old" or before.items() <= snapshot(directory).items(), where
        if verb == "save" and not disk.stays:
            there = {path for path in paths(directory) if not may_stay(disk, found)(path)}
            assert found == "new" or there == names, (there, where)
            assert found == "old" or not there & {*strays(directory)}, (there, where)
        run(directory, force=True)
        assert state(directory, form) == "new", where
        assert_clean(directory, form, tmp_path / "clean")
    assert seen == {"old", "new"} or (seen and not EXHAUSTIVE)


@pytest.mark.parametrize(
    ("form", "how"), [("shardvar", "fails"), ("tensorflow", "all writing fails")]
)
def test_a_call_that_fails_in_a_save_with_rotation_leaves_what_the_state_file_names_whole(
    form: str, how: str, tmp_path: Path
) -> None:
    """A manager's version 4 beside 2 and 3, of which 2 is to go; then version 5 leaves nothing but
    itself and 4 or 3.

    A lock file that cannot be removed is the one thing that stays: empty, and held by nobody.
    """
    series, seen = rotating_series(tmp_path, form), set()
    (tmp_path / "old").mkdir()
    for version in (1, 2, 3):
        series.write(tmp_path / "old", version)
    write = partial(series.write, version=4)
    for directory, disk, error in failed(tmp_path / "old", tmp_path, write, how, 3):
        where = f"{disk.at}: {disk.log[disk.at :]}"
        found = series.find(directory)
        seen.add(found)
        assert isinstance(error, StorageError) or (error is None and found == 0), (error, where)
        series.write(directory, 5)
        assert series.find(directory) == 1, where
        if disk.log[disk.at].startswith("unlink .ckpt-"):
            (directory / disk.log[disk.at].removeprefix("unlink ")).unlink(missing_ok=True)
        series.check_clean(directory)
    assert seen == {0, 1} or (seen and not EXHAUSTIVE)
