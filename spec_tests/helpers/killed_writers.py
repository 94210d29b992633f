"""Writers that are really killed: `python -m spec_tests.helpers.killed_writers COUNT [SEED]`; `make
crash` kills 2,000.

One process forks each writer, which ends itself with SIGKILL at a call of the operating system's
that was drawn for it, a write after some of its bytes. Another fork then reads what is left: it
must be what was there before or what was being written, whole. Every other time a third one writes
again, and must leave nothing but that; the other times the next writer comes, and dies, over what
this one left. The same seed draws the same kills.
"""

import gc
import os
import random
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

import shardvar as sv
from shardvar.errors import AmbiguousPath, CheckpointNotFound, MissingFile
from spec_tests.helpers.faulty_storage import (
    FOLDERS,
    WRITTEN,
    arrays,
    assert_clean,
    is_same,
    kill_myself,
    reshard,
    save,
)
from spec_tests.helpers.system_calls import Disk

NOWHERE = 255
"""The exit code of a child that finds no checkpoint."""
FAILED = 254
"""The exit code of a child that finds a law broken."""


@dataclass
class Series:
    """A checkpoint that is written over and over: version 1, 2, …"""

    name: str
    """Its name in the report."""
    place: Path
    """Its directory."""
    write: Callable[[Path, int], object]
    """Write a version."""
    find: Callable[[Path], int]
    """The version that is there, up to a multiple of 2; 0 for none, and an error for anything
    else."""
    check_clean: Callable[[Path], None]
    """Raise where anything is there but one version."""
    may_vanish: bool = False
    """True if for a moment there may be no checkpoint."""
    is_read_apart: bool = False
    """True if TensorStore reads it, whose threads a forked child of a process that has read lacks."""
    version: int = 0
    """The version that is there."""
    calls: int = 0
    """The number of calls that a write makes."""
    seen: Counter[str] = field(default_factory=Counter)
    """Counts of the versions found after kills."""


def in_child(do: Callable[[], int]) -> int:
    """Run a function in a forked process; return its exit code, or the negative number of the
    signal that ended it."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = FAILED
        try:
            code = do()
        finally:
            if code == FAILED:
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def disturb(series: Series, rng: random.Random) -> bool:
    """Write the next version, kill the writer at a random call, and look; False where it came to
    its end before."""
    before, after = series.version, series.version + 1
    at, share, goes_on = (
        rng.randrange(series.calls),
        rng.choice((0.0, 0.5, 1.0)),
        rng.random() < 0.5,
    )

    def write() -> int:
        disk = Disk(str(series.place), at, kill_myself, lambda nbytes: int(share * nbytes))
        with disk.meeting():
            series.write(series.place, after)
        return 0

    def look() -> int:
        found = series.find(series.place)
        if not goes_on:
            series.write(series.place, after)
            series.check_clean(series.place)
            assert series.find(series.place) == after % 2, "written again, it is not there"
        return found

    ended, found = in_child(write), in_child(look)
    told = f"{series.name}, version {after} over {before}, killed at call {at}, {share} of a write"
    assert ended in (0, -signal.SIGKILL), f"{told}: the writer ended with {ended}"
    expected = {after % 2} if ended == 0 else {before % 2 if before else NOWHERE, after % 2}
    assert found in expected | ({NOWHERE} if series.may_vanish else set()), (
        f"{told}: found {found}, not {expected}"
    )
    is_new = found == after % 2
    series.seen["new" if is_new else "none" if found == NOWHERE else "old"] += ended != 0
    series.version = after if is_new or not goes_on else before if found != NOWHERE else 0
    return ended != 0


def arrays_of(version: int) -> dict[str, np.ndarray]:
    return arrays(1 + version % 2)


def find_arrays(place: Path, form: str) -> int:
    try:
        read = sv.load(place / WRITTEN[form][1])
    except (CheckpointNotFound, MissingFile, AmbiguousPath):
        return NOWHERE
    odd, even = (is_same(read, arrays_of(version)) for version in (1, 2))
    assert odd or even, "a mixture"
    return int(odd)


def plain_series(root: Path, form: str, verb: str) -> Series:
    """``save`` or ``reshard`` in one way of writing."""
    sources = root / "sources"

    def write(place: Path, version: int) -> object:
        if verb == "save":
            return save(place, form, arrays_of(version), force=True)
        return reshard(sources / f"{version % 2}", place, form, force=True)

    return Series(
        f"{verb} {form}",
        root / f"{verb}-{form}".replace(" ", "-"),
        write,
        lambda place: find_arrays(place, form),
        lambda place: assert_clean(place, form, root / f"clean-{form}"),
        is_read_apart=form == "orbax",
    )


def object_series(root: Path, form: str) -> Series:
    """``Checkpoint.write`` of a variable and a sharded one."""

    def objects(version: int) -> tuple[sv.Variable, sv.Checkpoint]:
        rows = [sv.Variable(np.full((rows, 3), version % 2, np.float32)) for rows in (2, 1)]
        whole = sv.Variable(np.full(5, version % 2, np.float32))
        return whole, sv.Checkpoint(whole=whole, table=sv.ShardedVariable(rows))

    def find(place: Path) -> int:
        whole, checkpoint = objects(7)
        try:
            checkpoint.read(place / "ck").assert_consumed()
        except (CheckpointNotFound, MissingFile):
            return NOWHERE
        table = checkpoint.children["table"].numpy()
        assert len({*whole.numpy().tolist(), *table.ravel().tolist()}) == 1, "a mixture"
        return int(whole.numpy()[0])

    def check_clean(place: Path) -> None:
        assert len(os.listdir(place)) == 2, os.listdir(place)

    return Series(
        f"Checkpoint.write {form}",
        root / f"write-{form}",
        lambda place, version: objects(version)[1].write(place / "ck", format=form),
        find,
        check_clean,
    )


def rotating_series(root: Path, form: str) -> Series:
    """``CheckpointManager.save``, which keeps two; a checkpoint holds its own number."""

    def manager(place: Path, version: int = 0) -> tuple[sv.Variable, sv.CheckpointManager]:
        variable = sv.Variable(np.full(5, version, np.float32))
        return variable, sv.CheckpointManager(sv.Checkpoint(number=variable), place, 2, format=form)

    def find(place: Path) -> int:
        variable, series = manager(place)
        assert series.latest_checkpoint == (series.checkpoints[-1] if series.checkpoints else None)
        for path in series.checkpoints:
            series.checkpoint.restore(path).assert_consumed()
            assert variable.numpy().tolist() == [int(path.rpartition("-")[2])] * 5, "a mixture"
        return int(variable.numpy()[0]) % 2 if series.checkpoints else NOWHERE

    def check_clean(place: Path) -> None:
        kept = {os.path.basename(path) for path in manager(place)[1].checkpoints}
        others = {name for name in os.listdir(place) if name.partition(".")[0] not in kept}
        assert others == {"checkpoint"} and len(os.listdir(place)) == 1 + 2 * len(kept), os.listdir(
            place
        )

    return Series(
        f"CheckpointManager.save {form}",
        root / f"manager-{form}",
        lambda place, version: manager(place, version)[1].save(version),
        find,
        check_clean,
    )


def all_series(root: Path) -> list[Series]:
    """Every verb that writes, in every way of writing that it has."""
    plain = [
        plain_series(root, form, verb)
        for form in WRITTEN
        for verb in ("save", "reshard")
        if verb == "save" or form not in FOLDERS
    ]
    others = [
        make(root, form)
        for form in ("shardvar", "tensorflow")
        for make in (object_series, rotating_series)
    ]
    return [*plain, *others]


def crash(count: int, seed: int, root: Path) -> list[Series]:
    """Kill so many writers; what was found of each series."""
    rng = random.Random(seed)
    os.fsync = lambda descriptor: None  # a killed process takes nothing back that the system has
    for version in (0, 1):
        sv.save(root / "sources" / f"{version}", arrays_of(version), partition=2)
    series = all_series(root)
    for each in series:
        prepare(each)
    gc.freeze()  # what is never looked at need not be copied for a child
    kills = 0
    while kills < count:
        kills += disturb(rng.choice(series), rng)
    return series


def prepare(series: Series) -> None:
    """Write four versions and read them, to see how many calls that takes; and what is loaded late
    is loaded now."""
    series.place.mkdir()
    disk = Disk(str(series.place))
    for series.version in (1, 2, 3, 4):
        disk.taken = 0
        with disk.meeting():
            series.write(series.place, series.version)
        found = partial(series.find, series.place)
        assert (in_child(found) if series.is_read_apart else found()) == series.version % 2
    series.check_clean(series.place)
    series.calls = disk.taken


if __name__ == "__main__":
    number, chosen = (
        int(sys.argv[1]),
        int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 32),
    )
    print(f"{number} kills, seed {chosen}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        found = crash(number, chosen, Path(directory))
    for each in found:
        print(f"{each.name:35} {dict(each.seen)}")
