"""Resharding from 4 files to 3, against ``cp`` of the same bytes, both synced; and the memory that
it takes."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

import shardvar as sv
from benchmarks.child import call, peak_nbytes
from benchmarks.figures import Figure
from benchmarks.holes import one_tensor, write_holes
from benchmarks.places import Place, emptied, sync_tree
from benchmarks.setting import Setting, skipped
from benchmarks.sizes import GIB, MIB
from benchmarks.timing import Run
from shardvar.planning.policies import BalancedPolicy

COPY_TARGET = 1.1
PEAK_TARGET = 256.0
COLUMN_TARGET = 2.0
NUM_COLUMN_PARTS = 1024
COLUMN_LENGTHS = 1024, 4096
"""Rows of the tables that are cut into columns: of 16 MiB, and of 64 MiB, which is several batches
of the engine."""
SAME = 1.1
"""What "the same" memory is taken to mean."""

COPY = ["cp", "--reflink=never"] if sys.platform == "linux" else ["cp"]


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of resharding."""
    nbytes = setting.sizes.reshard_nbytes
    for place in setting.places:
        subject = f"reshard {nbytes / GIB:g} GiB, 4 files to 3"
        if place.has_room_for(2 * nbytes):
            yield _beside_copy(setting, subject, place, nbytes)
        else:
            yield skipped(subject, "cp", f"no room for {2 * nbytes / GIB:g} GiB in {place.name}")
    for num_rows in COLUMN_LENGTHS:
        yield from _columns_beside_rows(setting, num_rows)
    peaks = []
    for size in (nbytes, setting.sizes.reshard_large_nbytes):
        room = setting.disk.room("reshard")
        write_holes(room / "source", one_tensor(size // 256, 4), num_files=4)
        peaks.append(call(peak_of_reshard, str(room)))
        subject = f"reshard {size / GIB:g} GiB: peak memory of the process"
        yield Figure(subject, "", "disk", peaks[-1] / MIB, "MiB", PEAK_TARGET)
    setting.disk.room("reshard")
    yield Figure(subject, "the smaller reshard", "disk", peaks[1] / peaks[0], "x", SAME)


def _beside_copy(setting: Setting, subject: str, place: Place, nbytes: int) -> Figure:
    source, target = place.room("source"), place.room("target")
    # Made in another process, so that this one never holds a table of this size.
    call(write_source, str(source), nbytes)
    files = sorted(map(str, source.iterdir()))

    def copy() -> None:
        subprocess.run([*COPY, *files, str(target)], check=True)
        sync_tree(target)

    ours = Run(lambda: reshard(source, target), emptied(target))
    figure = setting.ratio(
        subject, "cp and fsync", place, ours, Run(copy, emptied(target)), COPY_TARGET
    )
    place.room("source"), place.room("target")
    return figure


def _columns_beside_rows(setting: Setting, num_rows: int) -> Iterator[Figure]:
    """Cutting a table into many columns of a few bytes, and joining them, against as many rows of
    the same bytes."""
    place = setting.places[0]
    room = place.room("columns")
    table = np.random.default_rng(0).standard_normal((num_rows, 4096), np.float32)
    sv.save(room / "whole", {"table": table})
    cuts = {"columns": [1, NUM_COLUMN_PARTS], "rows": [NUM_COLUMN_PARTS, 1]}
    for name, cut in cuts.items():
        sv.reshard(room / "whole", room / name, partition=cut)
    for verb in ("cut into", "join"):
        runs = []
        for name, cut in cuts.items():
            source, partition = ("whole", cut) if verb == "cut into" else (name, 1)
            target = place.room(f"{name} again")
            runs.append(
                Run(
                    partial(sv.reshard, room / source, target / "t", partition=partition),
                    emptied(target),
                )
            )
        subject = (
            f"reshard {table.nbytes / MIB:g} MiB: {verb} {NUM_COLUMN_PARTS} columns of 16 bytes"
        )
        yield setting.ratio(subject, f"{NUM_COLUMN_PARTS} rows", place, *runs, COLUMN_TARGET)
    for name in ("columns", *(f"{name} again" for name in cuts)):
        place.room(name)


def reshard(source: Path, target: Path) -> None:
    """From however many files to three, of three slices."""
    sv.reshard(source / "source", target / "target", partition=3, policy=BalancedPolicy(3))


def write_source(room: str, nbytes: int) -> None:
    """A float32 table of random numbers in four slices and four files."""
    some = np.random.default_rng(0).standard_normal((min(nbytes, 64 * MIB) // 256, 64), np.float32)
    table = np.resize(some, (nbytes // 256, 64))
    sv.save(Path(room, "source"), {"table": table}, partition=4, policy=BalancedPolicy(4))


def peak_of_reshard(room: str) -> int:
    """The most memory of a process that reshards and does nothing else."""
    reshard(Path(room), Path(room))
    return peak_nbytes()
