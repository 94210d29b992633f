"""Saving and loading arrays: what is compared with raw input and output and with the peers."""

import os
from collections.abc import Iterator, Mapping
from io import RawIOBase
from pathlib import Path
from typing import Any

import numpy as np

import shardvar as sv
from benchmarks.figures import Figure
from benchmarks.peers import Arrays, Peer
from benchmarks.places import Place, emptied, sync_tree
from benchmarks.setting import Setting, failed, skipped
from benchmarks.timing import Run


def our_save(place: Place, arrays: Arrays) -> Run:
    """``sv.save`` of a checkpoint that was not there before."""
    room = place.room("ours")
    return Run(lambda: sv.save(room / "model", arrays), emptied(room))


def our_load(place: Place, arrays: Arrays) -> Run:
    """``sv.load`` of the arrays, which are saved for it."""
    room = place.room("ours")
    sv.save(room / "model", arrays)
    return Run(lambda: sv.load(room / "model"))


def raw_write(place: Place, arrays: Arrays) -> Run:
    """One file of the same bytes, written and synced."""
    room = place.room("theirs")

    def write() -> None:
        with open(room / "raw", "wb", buffering=0) as file:
            for array in arrays.values():
                _write(file.fileno(), memoryview(array).cast("B"))
            os.fsync(file.fileno())

    return Run(write, emptied(room))


def raw_read(place: Place, arrays: Arrays) -> Run:
    """``readinto`` of the same bytes into fresh arrays."""
    write = raw_write(place, arrays)
    write.before(), write.call()
    path = place.path / "theirs" / "raw"

    def read() -> list[np.ndarray]:
        fresh = [np.empty_like(array) for array in arrays.values()]
        with open(path, "rb", buffering=0) as file:
            for array in fresh:
                _read(file, memoryview(array).cast("B"))
        return fresh

    return Run(read)


def peer_save(place: Place, arrays: Arrays, peer: Peer) -> Run:
    """A peer's save, synced."""
    return saving(place.room("theirs"), peer, peer.prepare(arrays))


def saving(room: Path, peer: Peer, state: Any) -> Run:
    """A peer's save of what it prepared into a folder, synced."""

    def save() -> None:
        peer.save(room, state)
        sync_tree(room)

    return Run(save, emptied(room))


def peer_load(place: Place, arrays: Arrays, peer: Peer) -> Run:
    """A peer's load of what it saved."""
    room, state = place.room("theirs"), peer.prepare(arrays)
    peer.save(room, state)
    return Run(lambda: peer.load(room, state))


def beside_peers(
    setting: Setting,
    subject: str,
    place: Place,
    arrays: Arrays,
    targets: Mapping[str, float | None],
) -> Iterator[Figure]:
    """Save and load, compared with the peers that have a target, or None for one. One that fails is left
    out, and said."""
    for name, peer in setting.peers():
        if name not in targets:
            continue
        if peer is None:
            yield skipped(subject, name, f"{name} is not installed")
            continue
        target = targets[name]
        try:
            yield from _beside(setting, subject, place, arrays, (name, peer), target)
        except Exception as error:  # noqa: BLE001 - whatever a library raises, the others are measured
            yield failed(subject, name, error)


def _beside(
    setting: Setting,
    subject: str,
    place: Place,
    arrays: Arrays,
    named: tuple[str, Peer],
    target: float | None,
) -> Iterator[Figure]:
    name, peer = named
    room, state = place.room("theirs"), peer.prepare(arrays)
    yield setting.ratio(
        f"save {subject}", name, place, our_save(place, arrays), saving(room, peer, state), target
    )
    load = Run(
        lambda: peer.load(room, state)
    )  # what the last save left, since some of them take minutes for one
    yield setting.ratio(f"load {subject}", name, place, our_load(place, arrays), load, target)


def check_same(path: Path, arrays: Arrays) -> None:
    """Raise unless what was saved is what is loaded: nothing is gained by being quick and wrong."""
    loaded = sv.load(path)
    if loaded.keys() != arrays.keys() or any(
        (loaded[key] != array).any() for key, array in arrays.items()
    ):
        raise ValueError(f"{path} does not hold what was saved there.")


def _write(descriptor: int, octets: memoryview) -> None:
    while octets:
        octets = octets[os.write(descriptor, octets[: 1 << 30]) :]


def _read(file: RawIOBase, octets: memoryview) -> None:
    while octets:
        octets = octets[file.readinto(octets) or 0 :]
