"""The cost of a conversion over the same reshard without it, and of a comparison over reading;
memory of both."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

import shardvar as sv
from benchmarks.child import AnonymousPeak, call
from benchmarks.figures import Figure
from benchmarks.holes import one_tensor, write_holes
from benchmarks.places import emptied
from benchmarks.setting import Setting, skipped
from benchmarks.sizes import GIB, MIB
from benchmarks.timing import Run

RENAME_TARGET, CAST_TARGET, TRANSPOSE_TARGET = 1.05, 1.3, 2.5
"""Renames cost nothing; two runs of one program may differ by a twentieth."""
DIGEST_TARGET, DIFF_TARGET = 1.5, 1.3
PEAK_TARGET = 256.0
SIDE = 2048
"""Rows and columns of each matrix, of 16 MiB: the size of the matrices of a model of a billion
parameters."""

CONVERSIONS: dict[str, tuple[dict[str, str], float]] = {
    "renames": ({"add_prefix": "model."}, RENAME_TARGET),
    "casts to bfloat16": ({"cast": "bfloat16"}, CAST_TARGET),
    "transposes": ({"transpose": "*"}, TRANSPOSE_TARGET),
}
"""The options of ``reshard``, and the largest ratio to the reshard without them."""

VERBS: dict[str, Callable[[Path], object]] = {
    "reshard with casts": lambda room: sv.reshard(
        room / "source", room / "target", cast="bfloat16"
    ),
    "digest": lambda room: sv.digest(room / "source"),
    "diff": lambda room: sv.diff(room / "source", room / "other"),
    "verify": lambda room: sv.verify(room / "source"),
}


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of conversions and comparisons."""
    place, nbytes = setting.quiet, setting.sizes.reshard_nbytes // 2
    size = f"{nbytes / GIB:g} GiB"
    if not place.has_room_for(4 * nbytes):
        yield skipped(
            f"conversions of {size}",
            "reshard",
            f"no room for {4 * nbytes / GIB:g} GiB in {place.name}",
        )
        return
    source, target = place.room("source"), place.room("target")
    call(write_matrices, str(source), nbytes)
    for name, (options, goal) in CONVERSIONS.items():
        ours = Run(partial(sv.reshard, source / "a", target / "t", **options), emptied(target))
        theirs = Run(partial(sv.reshard, source / "a", target / "t"), emptied(target))
        yield setting.ratio(f"reshard {size} with {name}", "reshard", place, ours, theirs, goal)
    place.room("target")
    ours, theirs = Run(partial(sv.digest, source / "a")), Run(partial(sv.verify, source / "a"))
    yield setting.ratio(f"digest {size}", "verify", place, ours, theirs, DIGEST_TARGET)
    for other, name in (("b", "equal"), ("c", "every value differs")):
        ours, theirs = (
            Run(partial(sv.diff, source / "a", source / other)),
            Run(partial(load_both, source)),
        )
        yield setting.ratio(
            f"diff of 2 x {size}, {name}", "load both", place, ours, theirs, DIFF_TARGET
        )
    place.room("source")
    yield from _peaks(setting)


def _peaks(setting: Setting) -> Iterator[Figure]:
    nbytes = setting.sizes.reshard_large_nbytes
    room = setting.disk.room("conversions")
    for name in ("source", "other"):
        write_holes(room / name, one_tensor(nbytes // 256, 4), num_files=4)
    for verb in VERBS:
        peak = call(peak_of, verb, str(room))
        yield Figure(
            f"{verb}, {nbytes / GIB:g} GiB: peak of anonymous memory",
            "",
            "disk",
            peak / MIB,
            "MiB",
            PEAK_TARGET,
        )
    setting.disk.room("conversions")


def load_both(source: Path) -> int:
    """Load two checkpoints, one after the other, which is what a comparison in memory begins
    with."""
    return sum(len(sv.load(source / name)) for name in "ab")


def write_matrices(room: str, nbytes: int) -> None:
    """Two equal checkpoints of random matrices, and a third one that differs from them
    everywhere."""
    rng = np.random.default_rng(0)
    count = nbytes // (4 * SIDE * SIDE)
    state = {
        f"layers.{row}.weight": rng.standard_normal((SIDE, SIDE), np.float32)
        for row in range(count)
    }
    for name in "ab":
        sv.save(Path(room, name), state)
    sv.save(Path(room, "c"), {key: matrix[::-1] for key, matrix in state.items()})


def peak_of(verb: str, room: str) -> int:
    """The most anonymous memory of a process that does this alone."""
    with AnonymousPeak() as peak:
        VERBS[verb](Path(room))
    return peak.nbytes
