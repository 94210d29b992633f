"""Processes that are killed, interrupted or refused by the disk while they save one checkpoint
together.

Of two processes the first has saved its share; the second dies at each call that it makes of the
operating system, from the first byte of its share to the end of the commit. The old checkpoint or
the new one is there, whole, whoever looks; the same run goes on where the second process died, and
any other save finds the way free.
"""

import errno
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    CheckpointError,
    CheckpointNotFound,
    IncompleteCheckpoint,
    ShardvarError,
    StorageError,
)
from spec_tests.helpers.faulty_storage import kill_myself
from spec_tests.helpers.killed_writers import in_child
from spec_tests.helpers.shared_saves import demo_share, demo_tensors
from spec_tests.helpers.system_calls import Disk, snapshot, survivors
from spec_tests.helpers.thoroughness import stride

FINISHED = re.compile(r"ck\.svindex|ck\.svdata-[0-9a-f]{16}-\d{5}-of-\d{5}")


FROZEN = np.arange(20.0)
"""A tensor that a save with a base takes from it."""


def save_share(
    place: Path, seed: int, process: int, *, commit: bool, form: str = "shardvar", **more: Any
) -> None:
    """Save what one of two processes holds, as the run whose name is the seed."""
    share, start = demo_share(seed, process, 2), 10 * process
    share["frozen"] = sv.LocalShard(FROZEN[start : start + 10], (start,), (20,))
    if form != "shardvar":
        del share["words"]
    names = {"process": process, "num_processes": 2, "run": str(seed), "attempt": "first"}
    options: dict[str, Any] = {**names, "commit": commit, "timeout": 0, "format": form}
    sv.save_shards(place / more.pop("name", "ck"), share, **options, **more)


def prepare(place: Path, *, is_there: bool, form: str = "shardvar") -> None:
    """The old checkpoint, if there is one, and the share of the first process."""
    place.mkdir()
    if is_there:
        for process in range(2):
            save_share(place, 1, process, commit=process == 1, form=form)
    save_share(place, 2, 0, commit=False, form=form)


def state(place: Path, form: str = "shardvar") -> int:
    """Return the seed of the checkpoint that is there, 0 for none; anything else is an error."""
    try:
        read = sv.load(place / "ck")
    except CheckpointNotFound:
        return 0
    seed = int(read["step"])
    tensors = demo_tensors(seed)
    if form != "shardvar":
        del tensors["words"]
    assert all(np.array_equal(read[key], array) for key, array in tensors.items()), "a mixture"
    return seed


def finish(place: Path) -> None:
    """Go on with the same attempt: the second process saves again, unless it is committed."""
    if state(place) != 2:
        save_share(place, 2, 1, commit=True)


def assert_clean(place: Path, files: int = 2) -> None:
    assert sv.verify(place / "ck").ok
    assert len(os.listdir(place)) == 1 + files, os.listdir(place)
    assert all(FINISHED.fullmatch(name) for name in os.listdir(place)), os.listdir(place)


def ends(
    tmp_path: Path, *, is_there: bool, end: Callable[[Path, int], bool], form: str = "shardvar"
) -> Iterator[tuple[Path, int]]:
    """For each call of the second process: the directory in which it came to its end there, and the
    call's number."""
    prepare(tmp_path / "prepared", is_there=is_there, form=form)
    for at in range(0, 1000, stride(4)):  # shares no factor with the three ways to go on
        place = tmp_path / "place"
        shutil.copytree(tmp_path / "prepared", place)
        has_ended = end(place, at)
        if not has_ended:
            return
        yield place, at
        shutil.rmtree(place)
    pytest.fail("the run does not come to its end")


def stopped(
    place: Path, at: int, form: str = "shardvar", fault: Callable[[], BaseException] = kill_myself
) -> bool:
    """Stop the second process at a call; return False if it comes to its end before."""

    def save() -> int:  # in another process, whose lock ends with it
        disk = Disk(str(place), at, fault, lambda nbytes: nbytes // 2)
        with disk.meeting(), suppress(StorageError, CheckpointError, KeyboardInterrupt):
            save_share(place, 2, 1, commit=True, form=form)
        return int(disk.taken > at)

    code = in_child(save)
    assert code in (0, 1, -signal.SIGKILL)
    return code != 0


@pytest.mark.parametrize("is_there", [False, True])
def test_a_process_that_is_killed_leaves_the_old_or_the_new_and_the_same_run_goes_on(
    is_there: bool, tmp_path: Path
) -> None:
    seen = set()
    for place, at in ends(tmp_path, is_there=is_there, end=stopped):
        found = state(place)
        seen.add(found)
        if at % 3 == 0:  # by the process itself, started again
            finish(place)
        elif at % 3 == 1:  # by any process that commits what is complete, or starts what is not
            try:
                sv.commit_shards(place / "ck", num_processes=2, run="2", attempt="first")
            except IncompleteCheckpoint:
                finish(place)
        else:
            sv.save(place / "ck", demo_tensors(2))
        assert state(place) == 2, at
        if found == 2:  # killed after the commit: what it did not remove is left to the next one
            sv.save(place / "ck", demo_tensors(2))
        assert_clean(place, files=1 if found == 2 or at % 3 == 2 else 2)
    assert seen == {int(is_there), 2}


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("form", "fault"),
    [
        ("tensorflow", kill_myself),  # whose commit is not one step
        ("torch", kill_myself),  # whose files are named only then
        ("shardvar", full),
        ("shardvar", KeyboardInterrupt),
    ],
)
def test_a_process_that_is_stopped_loses_no_checkpoint_and_another_run_is_clean(
    form: str, fault: Callable[[], BaseException], tmp_path: Path
) -> None:
    seen, end = set(), partial(stopped, form=form, fault=fault)
    for place, at in ends(tmp_path, is_there=True, end=end, form=form):
        seen.add(state(place, form))
        assert not sv.verify(place / "ck").damages
        for process in range(2):
            save_share(place, 3, process, commit=process == 1, form=form)
        assert state(place, form) == 3, at
        assert not [name for name in os.listdir(place) if "svshare" in name]
        if form == "shardvar":
            assert_clean(place)
    assert seen == {1, 2}


@pytest.mark.parametrize("case", ["new", "replaced", "with a base"])
def test_a_power_cut_leaves_the_old_or_the_new_and_the_new_once_the_call_has_returned(
    case: str, tmp_path: Path
) -> None:
    """The base is whole before and after."""
    place, more, left = tmp_path / "run", dict[str, Any](), tmp_path / "left"
    if case == "with a base":
        place.mkdir()
        for process in range(2):
            save_share(place, 1, process, commit=process == 1, name="base")
        more["base"] = place / "base"
        save_share(place, 2, 0, commit=False, **more)
    else:
        prepare(place, is_there=case == "replaced")
    before, disk = snapshot(place), Disk(str(place))
    with disk.meeting():
        save_share(place, 2, 1, commit=True, **more)
    seen, old = set(), int(case == "replaced")
    for is_done, files in survivors(before, disk.events):
        left.mkdir()
        for name, octets in files.items():
            (left / name).write_bytes(octets)
        found = state(left)
        seen.add(found)
        assert found == 2 or (found == old and not is_done), sorted(files)
        assert not found or sv.load(left / "ck")["frozen"].tolist() == FROZEN.tolist()
        assert all(
            sv.verify(left / name).ok for name in ["ck"] * bool(found) + ["base"] * bool(more)
        )
        shutil.rmtree(left)
    assert seen == {old, 2}


@pytest.mark.parametrize("attempt", [None, "a"])
@pytest.mark.parametrize(
    ("form", "has_base"), [("shardvar", False), ("shardvar", True), ("torch", False)]
)
def test_a_save_that_the_disk_refused_once_is_saved_again_under_the_same_run(
    tmp_path: Path, form: str, has_base: bool, attempt: str | None
) -> None:
    """One thread saves for both processes, in any order; each call fails once."""
    at = 0
    while True:
        place = tmp_path / str(at)
        base = place / "old" if has_base else None
        place.mkdir()
        sv.save(place / "old", demo_tensors(1))
        order = (0, 1) if at % 2 else (1, 0)

        def save(place: Path = place, base: Path | None = base, order: Any = order) -> None:
            for process in order:
                share = {
                    key: each for key, each in demo_share(2, process, 2).items() if key != "words"
                }
                names = {"process": process, "num_processes": 2, "run": "r", "attempt": attempt}
                last = process == order[-1]
                sv.save_shards(
                    place / "ck", share, format=form, base=base, commit=last, timeout=5, **names
                )

        disk = Disk(str(place), at=at)
        with disk.meeting(), suppress(ShardvarError):
            save()
        if disk.taken <= at:
            break
        save()
        expected = demo_tensors(2)
        found = sv.load(place / "ck")
        assert all(np.array_equal(found[key], expected[key]) for key in ("table", "bias", "step"))
        assert not [*place.rglob("*svshare*")]
        shutil.rmtree(place)
        at += stride(13)
    assert at > 30
