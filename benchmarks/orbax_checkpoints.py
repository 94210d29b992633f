"""Checkpoints of Orbax and Zarr: load what Orbax saved, and save, against Orbax itself with NumPy arrays, and against
the libraries that write Zarr."""

from collections.abc import Iterator
from functools import partial

import numpy as np

import shardvar as sv
from benchmarks.figures import Figure
from benchmarks.peers import Arrays, Peer, find_peer
from benchmarks.places import Place, emptied
from benchmarks.setting import Setting, skipped
from benchmarks.sizes import MIB
from benchmarks.timing import Run

LOAD_TARGET = 1.1
SAVE_TARGET = 1.5
FEW = 500
"""Tiny tensors that are saved: as many as take each library some tenths of a second on a disk."""

WRITERS = {"orbax": ("Orbax",), "orbax-plain": ("Orbax plain",), "zarr": ("Zarr", "TensorStore")}
"""The libraries that write what a format of shardvar is written as."""
TARGETS = {"Orbax": SAVE_TARGET, "Orbax plain": SAVE_TARGET, "Zarr": SAVE_TARGET}
"""TensorStore makes no group and no commit, and its arrays have no checksums: it has no target."""


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of checkpoints of Orbax and Zarr."""
    yield from _load_all(setting)
    rng = np.random.default_rng(0)
    tiny = rng.standard_normal((FEW, 16), np.float32)
    arrays = {f"layer_{row:06d}.bias": tiny[row].copy() for row in range(FEW)}
    for form, names in WRITERS.items():
        for name in names:
            yield _save(setting, setting.disk, form, name, f"{FEW} x 16 floats", arrays)
    rows = setting.sizes.table_rows
    parts = np.split(rng.standard_normal((rows, 64), np.float32), 16)
    arrays = {f"layer.{number}": part for number, part in enumerate(parts)}
    for form, names in WRITERS.items():
        for name in names:
            what = f"{rows * 256 // MIB} MiB in 16 tensors"
            yield _save(setting, setting.quiet, form, name, what, arrays)


def _load_all(setting: Setting) -> Iterator[Figure]:
    peer = find_peer("Orbax")
    if peer is None:
        yield skipped("load what Orbax saved", "Orbax", "Orbax is not installed")
        return
    rows, rng = setting.sizes.table_rows, np.random.default_rng(0)
    whole = {"table": rng.standard_normal((rows, 64), np.float32)}
    yield _load(setting, f"{rows * 256 // MIB} MiB of Orbax in 1 tensor", peer, whole)
    parts = {f"layer.{number}": part for number, part in enumerate(np.split(whole["table"], 16))}
    yield _load(setting, f"{rows * 256 // MIB} MiB of Orbax in 16 tensors", peer, parts)


def _load(setting: Setting, what: str, peer: Peer, arrays: Arrays) -> Figure:
    """Load what Orbax saved, after comparing it."""
    room = setting.quiet.room("orbax")
    state = peer.prepare(arrays)
    peer.save(room, state)
    loaded = sv.load(room / "model")
    if any(not np.array_equal(loaded[key], array) for key, array in arrays.items()):
        raise AssertionError("What Orbax saved was read as something else.")
    del loaded
    ours, theirs = Run(lambda: sv.load(room / "model")), Run(lambda: peer.load(room, state))
    figure = setting.ratio(
        f"load {what}", "PyTreeCheckpointer", setting.quiet, ours, theirs, LOAD_TARGET
    )
    setting.quiet.room("orbax")
    return figure


def _save(
    setting: Setting, place: Place, form: str, name: str, what: str, arrays: Arrays
) -> Figure:
    """Save in a format of shardvar, against the library of the format."""
    subject, peer = f"save {what}, {form}", find_peer(name)
    if peer is None:
        return skipped(subject, name, f"{name} is not installed")
    mine, other = place.room("mine"), place.room("other")
    state = peer.prepare(arrays)
    ours = Run(partial(sv.save, mine / "model", arrays, format=form), emptied(mine))
    theirs = Run(partial(peer.save, other, state), emptied(other))
    figure = setting.ratio(subject, name, place, ours, theirs, TARGETS.get(name))
    loaded = sv.load(mine / "model")
    if any(not np.array_equal(loaded[key], array) for key, array in arrays.items()):
        raise AssertionError(f"What was saved in the format {form} was read as something else.")
    place.room("mine")
    place.room("other")
    return figure
