"""Small slices out of a large checkpoint, from a store that answers each request after 20 ms.

The store is a folder of this disk behind the requests of a bucket (``shardvar.storage.requests``),
each of which waits. It computes nothing: what is measured is how many requests wait for one
another. A *round* is counted, not assumed: a request is in the round after the last one that had
ended when it began, so the rounds are the longest chain of requests each of which may have needed
the answer of the one before.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from unittest.mock import patch

import shardvar as sv
from benchmarks.figures import Figure
from benchmarks.holes import write_holes
from benchmarks.setting import Setting
from shardvar.errors import MissingFile
from shardvar.planning.slices import TensorTable
from shardvar.storage.requests import FolderListing, Head

LATENCY = 0.02
"""Seconds until a request is answered."""
TARGET = 3.0
"""Times the latency of all rounds."""
APART = 150_000
"""Floats between two slices that are read: 600 KB, more than is read along."""
RUNS = 5


@dataclass(frozen=True, slots=True)
class Request:
    """A request that was answered."""

    start: float
    """The time at which it was made."""
    stop: float
    """The time of the answer."""


@dataclass(frozen=True, slots=True)
class LateStore:
    """The folder as a bucket that can be read: a ``Client`` that answers late."""

    folder: Path
    """The files."""
    latency: float = LATENCY
    """Seconds for each answer."""
    requests: list[Request] = field(default_factory=list)
    """The requests so far; a list takes one from each thread."""

    can_write = False

    def place(self, key: str) -> str:
        """The URL of a key."""
        return f"s3://bucket/{key}"

    def head(self, key: str) -> Head:
        """Size and version."""
        with self._late():
            path = self.folder / key
            if not path.is_file():
                raise MissingFile(f"{key} is missing.", "Find it.")
            return Head(path.stat().st_size, "1", None)

    def read(self, key: str, head: Head, start: int, nbytes: int) -> memoryview:
        """The bytes of a range."""
        with self._late():
            descriptor = os.open(self.folder / key, os.O_RDONLY)
            try:
                return memoryview(os.pread(descriptor, nbytes, start))
            finally:
                os.close(descriptor)

    def listing(self, key: str) -> FolderListing:
        """The files of a folder."""
        with self._late():
            entries = sorted((self.folder / key).iterdir())
            files = {
                path.name: Head(path.stat().st_size, "1", None)
                for path in entries
                if path.is_file()
            }
            return FolderListing(files, [path.name for path in entries if path.is_dir()])

    def walk(self, key: str) -> dict[str, int]:
        """Nothing: no read asks for it."""
        raise NotImplementedError

    @contextmanager
    def _late(self) -> Iterator[None]:
        start = perf_counter()
        yield
        sleep(max(0.0, start + self.latency - perf_counter()))
        self.requests.append(Request(start, perf_counter()))


def count_rounds(requests: list[Request]) -> int:
    """The number of requests of the longest chain in which each begins after the one before has
    ended."""
    ended: list[tuple[float, int]] = []  # the end of each request, and the rounds until then
    rounds = 0
    for request in sorted(requests, key=lambda request: request.start):
        own = 1 + max((number for stop, number in ended if stop <= request.start), default=0)
        ended.append((request.stop, own))
        rounds = max(rounds, own)
    return rounds


def count_at_once(requests: list[Request]) -> int:
    """The most requests under way at a time."""
    return max(
        sum(each.start <= request.start < each.stop for each in requests) for request in requests
    )


def measure(setting: Setting) -> Iterator[Figure]:
    """The figure of the slices."""
    count, room = setting.sizes.latency_slices, setting.disk.room("latency")
    (room / "run").mkdir()
    tensors = [(f"t{row:05d}", "float32", (APART if row % 2 else 16,)) for row in range(2 * count)]
    write_holes(room / "run" / "model", TensorTable.of(tensors).whole())
    keys = [key for key, _, _ in tensors[::2]]
    found = []
    for _ in range(RUNS):
        store = LateStore(room)
        with patch("shardvar.storage.urls.ObjectClient", lambda _root, store=store: store):
            start = perf_counter()
            loaded = sv.load("s3://bucket/run/model", keys)
            seconds = perf_counter() - start
        if len(loaded) != count:
            raise ValueError("These are not the slices.")
        found.append((seconds, count_rounds(store.requests), store.requests))
    seconds = median(seconds for seconds, _, _ in found)
    rounds, requests = min(
        ((rounds, requests) for _, rounds, requests in found), key=lambda each: each[0]
    )
    note = (
        f"{seconds:.3g} s / {rounds} rounds of {LATENCY * 1000:g} ms; {len(requests):,} requests, "
        "at most "
        f"{count_at_once(requests)} at a time, {RUNS} runs"
    )
    subject = f"load {count:,} tensors of 64 bytes, {APART * 4 // 1000} KB apart"
    yield Figure(
        subject, "the latency of its rounds", "", seconds / (rounds * LATENCY), "x", TARGET, note
    )
    setting.disk.room("latency")
