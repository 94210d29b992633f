"""Orbax's checkpoints: load what Orbax saved, against Orbax itself with NumPy arrays."""

from collections.abc import Iterator

import numpy as np

import shardvar as sv
from benchmarks.figures import Figure
from benchmarks.peers import Arrays, Peer, find_peer
from benchmarks.setting import Setting, skipped
from benchmarks.sizes import MIB
from benchmarks.timing import Run

LOAD_TARGET = 1.1


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of Orbax's checkpoints."""
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
