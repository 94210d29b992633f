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


def save_share(
    place: Path, seed: int, process: int, *, commit: bool, form: str = "shardvar"
) -> None:
    """Save what one of two processes holds, as the run whose name is the seed."""
    share = demo_share(seed, process, 2)
    if form != "shardvar":
        del share["words"]
    sv.save_shards(
        place / "ck",
        share,
        process=process,
        num_processes=2,
        run=str(seed),
        attempt="first",
        commit=commit,
        timeout=0,
        format=form,
    )


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


def killed(place: Path, at: int, form: str = "shardvar") -> bool:
    """Kill the second process at a call; return False if it comes to its end before."""

    def save() -> int:
        with Disk(str(place), at, kill_myself, lambda nbytes: nbytes // 2).meeting():
            save_share(place, 2, 1, commit=True, form=form)
        return 0

    code = in_child(save)
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.parametrize("is_there", [False, True])
def test_a_process_that_is_killed_leaves_the_old_or_the_new_and_the_same_run_goes_on(
    is_there: bool, tmp_path: Path
) -> None:
    seen = set()
    for place, at in ends(tmp_path, is_there=is_there, end=killed):
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


@pytest.mark.parametrize("form", ["tensorflow", "torch"])
def test_a_process_that_is_killed_in_another_format_loses_the_run_and_not_the_checkpoint(
    form: str, tmp_path: Path
) -> None:
    """Its commit is not one step, or its files are named only then; another run goes through."""
    seen = set()
    for place, at in ends(tmp_path, is_there=True, end=partial(killed, form=form), form=form):
        seen.add(state(place, form))
        assert not sv.verify(place / "ck").damages
        for process in range(2):
            save_share(place, 3, process, commit=process == 1, form=form)
        assert state(place, form) == 3, at
        assert not [name for name in os.listdir(place) if "svshare" in name]
    assert seen == {1, 2}


@pytest.mark.parametrize("kind", [errno.ENOSPC, KeyboardInterrupt])
def test_an_error_or_an_interrupt_leaves_the_old_or_the_new_and_another_run_is_clean(
    kind: int | type[KeyboardInterrupt], tmp_path: Path
) -> None:
    seen = set()

    def fail(place: Path, at: int) -> bool:
        fault = kind if isinstance(kind, type) else lambda: OSError(kind, os.strerror(kind))

        def save() -> int:  # in another process, whose lock ends with it
            disk = Disk(str(place), at, fault)
            with disk.meeting(), suppress(StorageError, CheckpointError, KeyboardInterrupt):
                save_share(place, 2, 1, commit=True)
            return int(disk.taken > at)

        return bool(in_child(save))

    for place, at in ends(tmp_path, is_there=True, end=fail):
        seen.add(state(place))
        for process in range(2):
            save_share(place, 3, process, commit=process == 1)
        assert state(place) == 3, at
        assert_clean(place)
    assert seen == {1, 2}


def left_by_cuts(before: dict[str, bytes], disk: Disk, left: Path) -> Iterator[tuple[bool, Path]]:
    """Yield a folder with the files that each power cut leaves, and True if the call had returned."""
    for is_done, files in survivors(before, disk.events):
        left.mkdir()
        for name, octets in files.items():
            (left / name).write_bytes(octets)
        yield is_done, left
        shutil.rmtree(left)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_power_cut_leaves_the_old_or_the_new_and_the_new_once_the_call_has_returned(
    is_there: bool, tmp_path: Path
) -> None:
    place = tmp_path / "run"
    prepare(place, is_there=is_there)
    before, disk = snapshot(place), Disk(str(place))
    with disk.meeting():
        save_share(place, 2, 1, commit=True)
    seen = set()
    for is_done, left in left_by_cuts(before, disk, tmp_path / "left"):
        found = state(left)
        seen.add(found)
        assert found == 2 or (found == int(is_there) and not is_done), sorted(left.iterdir())
        if found:
            assert sv.verify(left / "ck").ok
    assert seen == {int(is_there), 2}


def test_a_power_cut_of_a_save_with_a_base_leaves_the_base_whole(tmp_path: Path) -> None:
    """And the new checkpoint once the call has returned; before, that one or none."""
    place, frozen = tmp_path / "run", np.arange(20.0)
    place.mkdir()

    def save(name: str, seed: int, process: int, base: Path | None = None) -> None:
        start = 10 * process
        shard = sv.LocalShard(frozen[start : start + 10], (start,), (20,))
        sv.save_shards(
            place / name,
            {**demo_share(seed, process, 2), "frozen": shard},
            process=process,
            num_processes=2,
            run=str(seed),
            attempt="first",
            commit=process == 1,
            timeout=0,
            base=base,
        )

    for process in range(2):
        save("base", 1, process)
    save("ck", 2, 0, base=place / "base")
    before, disk = snapshot(place), Disk(str(place))
    with disk.meeting():
        save("ck", 2, 1, base=place / "base")
    seen = set()
    for is_done, left in left_by_cuts(before, disk, tmp_path / "left"):
        found = state(left)
        seen.add(found)
        assert found == 2 or not is_done, sorted(left.iterdir())
        assert not found or sv.load(left / "ck")["frozen"].tolist() == frozen.tolist()
        assert sv.verify(left / "base").ok and (not found or sv.verify(left / "ck").ok)
    assert seen == {0, 2}


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
