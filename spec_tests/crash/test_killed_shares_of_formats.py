"""A process that is killed while it saves its share, or commits, in a format other than the native
one.

The old checkpoint or the new one is there, whole, and another run finds the way free. Formats whose
commit is not one step, and those whose files are named only then, lose the run; they do not lose
the checkpoint.
"""

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from spec_tests.helpers.faulty_storage import kill_myself
from spec_tests.helpers.killed_writers import in_child
from spec_tests.helpers.system_calls import Disk

STEP = 3
"""Of the calls of the operating system at which a process could be killed, every third is tried."""


def save_share(place: Path, form: str, seed: int, process: int) -> None:
    """Save half of a table, and a replica; the second process commits."""
    start = 2 * process
    share = {"w": sv.LocalShard(np.full((2, 3), seed), (start, 0), (4, 3)), "x": np.full(5, seed)}
    commit = process == 1
    sv.save_shards(
        place / "ck",
        share,
        process=process,
        num_processes=2,
        run=str(seed),
        attempt="first",
        format=form,
        commit=commit,
    )


def state(place: Path) -> int:
    """Return the seed of the checkpoint that is there; a mixture is an error."""
    read = sv.load(place / "ck")
    (seed,) = {int(value) for array in read.values() for value in array.ravel()}
    assert read.keys() == {"w", "x"} and not sv.verify(place / "ck").damages
    return seed


@pytest.mark.parametrize("form", ["tensorflow", "torch"])
def test_a_process_that_is_killed_leaves_the_old_or_the_new_and_another_run_goes_through(
    form: str, tmp_path: Path
) -> None:
    prepared, place, seen = tmp_path / "prepared", tmp_path / "place", set[int]()
    prepared.mkdir()
    for seed, process in ((1, 0), (1, 1), (2, 0)):
        save_share(prepared, form, seed, process)
    for at in range(0, 1000, STEP):
        shutil.copytree(prepared, place)

        def save(at: int = at) -> int:
            with Disk(str(place), at, kill_myself, lambda nbytes: nbytes // 2).meeting():
                save_share(place, form, 2, 1)
            return 0

        code = in_child(save)
        assert code in (0, -signal.SIGKILL)
        seen.add(state(place))
        for process in range(2):
            save_share(place, form, 3, process)
        assert state(place) == 3, at
        assert not [name for name in os.listdir(place) if "svshare" in name]
        shutil.rmtree(place)
        if code == 0:
            break
    assert seen == {1, 2}
