"""Each system call of a small save, with each error: the old or the new checkpoint is whole, and
nothing else is left.

``test_disk_faults`` looks at what the next write makes of a failure; this looks at the directory
right after it. The scope is small and complete: one tiny checkpoint of each format, replaced by
another.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from shardvar.errors import StorageError
from spec_tests.helpers.faulty_storage import FOLDERS, NEW, OLD, WRITTEN, paths, save, state, strays
from spec_tests.helpers.system_calls import Disk
from spec_tests.helpers.thoroughness import EXHAUSTIVE

ERRORS = (errno.EIO, errno.ENOSPC, errno.EACCES, errno.EINTR, errno.EMFILE)
KINDS = {
    **({os.strerror(number): (number,) for number in ERRORS} if EXHAUSTIVE else {"errors": ERRORS}),
    "interrupt": (KeyboardInterrupt,),
}
"""What a call meets: each error by itself in ``make crash``, else one after the other in turns."""


def fail_each_call(
    old: Path, place: Path, form: str, faults: Sequence[Callable[[], BaseException]], after: bool
) -> Iterator[tuple[Disk, BaseException | None]]:
    """For each call of a save: the calls that were made, and the error; ``place`` is the
    directory."""
    # A folder has a file for each tensor, so that there are many calls of a kind.
    at, step = (0, 1) if EXHAUSTIVE or form not in FOLDERS else (len(faults) % 2, 3)
    while True:
        shutil.copytree(old, place)
        disk = Disk(str(place), at, faults[at % len(faults)], after=after)
        caught: BaseException | None = None
        try:
            with disk.meeting():
                save(place, form, NEW, force=True)
        except (StorageError, KeyboardInterrupt) as error:
            caught = error
        if disk.taken <= at:
            return
        yield disk, caught
        shutil.rmtree(place)
        at += step


def names_after(old: Path, place: Path, form: str) -> tuple[set[str], int]:
    """The paths of the old checkpoint, and the number of files of the new one."""
    shutil.copytree(old, place)
    save(place, form, NEW, force=True)
    count = len(paths(place))
    shutil.rmtree(place)
    return set(paths(old)), count


def may_stay(disk: Disk, found: str) -> Callable[[str], bool]:
    """Whether a file may be left because the call that failed was to remove it, or to find it after
    the commit."""
    call, _, path = disk.log[disk.at].partition(" ")
    if call in ("unlink", "rmdir"):
        return lambda name: name == path or (".tmp" in name and path.startswith(f"{name}/"))
    if found == "new" and not path and call != "scandir":
        # Until it is known that the exchange is on the disk, the old folder stays.
        return lambda name: ".old.tmp" in name
    return lambda name: call == "scandir" and found == "new"


@pytest.mark.sample(4)
@pytest.mark.parametrize("form", WRITTEN)
@pytest.mark.parametrize(
    ("kind", "after"), [*((kind, False) for kind in KINDS), ("interrupt", True)]
)
def test_a_failing_call_leaves_one_whole_checkpoint_and_nothing_else(
    form: str, kind: str, after: bool, tmp_path: Path
) -> None:
    old, place, seen = tmp_path / "old", tmp_path / "run", set()
    save(old, form, OLD)
    old_names, count = names_after(old, place, form)
    faults = [
        partial(OSError, each, os.strerror(each)) if isinstance(each, int) else each
        for each in KINDS[kind]
    ]
    for disk, error in fail_each_call(old, place, form, faults, after):
        where = f"{disk.at}: {disk.log[disk.at :]}"
        found = state(place, form)
        seen.add(found)
        assert found in {"old", "new"}, where
        assert error is not None or found == "new", where
        assert error is None or isinstance(error, StorageError) == (kind != "interrupt"), where
        there = {path for path in paths(place) if not may_stay(disk, found)(path)}
        if found == "old":
            assert there == old_names, (there, where)
        else:
            assert not [name for name in strays(place) if name in there], where
            assert len(there) <= count, (there, where)
    assert seen >= {"old", "new"}
