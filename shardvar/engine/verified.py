"""Payloads as they are stored, for sources that convert them. Each is compared whole before the
first of its bytes is used.

    on a disk     a part of a payload is read by the runs that have checksums; without these, a
                  payload is read whole to be compared, by all threads that need it, and again, from
                  the cache, where it is used
    in a bucket   small payloads that are expected together are read together, compared, and held in
                  memory until the thread asks for others: each is read once
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import RLock

import numpy as np

from shardvar.engine.evidence import Evidence
from shardvar.engine.pieces import affordable_gap, spans
from shardvar.engine.pool import BLOCK_NBYTES, Together, block_ranges, new_buffer, thread_buffer
from shardvar.forks import new_lock
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import Bools, Ints
from shardvar.planning.index import EntryTable
from shardvar.storage.protocol import Traits


class _Ahead(threading.local):
    """The payloads that one thread asks for next."""

    def __init__(self) -> None:
        self.rows = np.zeros(0, np.int64)
        """[k] the rows that it expects, in order."""
        self.held: dict[int, memoryview] = {}
        """The payloads that were read last, by row."""


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedRows:
    """The payloads of a source that were verified: each once, by the first thread that needs it."""

    source: Source
    """The source."""
    entries: EntryTable
    """Its entries, as they are stored."""
    _rows: set[int] = field(default_factory=set)
    _begun: dict[int, tuple[Evidence, Together]] = field(default_factory=dict)
    _lock: RLock = field(default_factory=new_lock)
    _ahead: _Ahead = field(default_factory=_Ahead)

    def verify(self, row: int) -> None:
        """Read one payload whole, in bounded blocks, and raise unless it is right.

        Returns at once if it was read before.
        """
        if row in self._rows:
            return
        # Threads that need the same payload read it together, and threads that need another one do
        # not wait.
        with self._lock:
            begun = self._begun.get(row)
            if begun is None:
                evidence = Evidence(self.source, self.entries)
                begun = self._begun[row] = (evidence, Together(_blocks(evidence, row)))
        evidence, together = begun
        try:
            together.finish()
            evidence.check()
            self._rows.add(row)
        finally:
            with self._lock:
                self._begun.pop(row, None)

    def read(
        self, row: int, start: int, stop: int, nbytes: int, into: memoryview | None = None
    ) -> memoryview | None:
        """Return bytes of a payload that lies in a file, verified; they last until the next call.

        ``nbytes`` of them are of use: None if more than a quarter would be read in vain. They are
        read to ``into``, and that is returned, if nothing else is read.
        """
        evidence, runs = Evidence(self.source, self.entries), self.entries.runs
        begin, end = start, stop
        is_by_runs = row not in self._rows and bool(evidence.is_guarded(row))
        if is_by_runs and runs is not None:
            begin, end = start // runs.run_nbytes, -(-stop // runs.run_nbytes)
            begin, end = begin * runs.run_nbytes, end * runs.run_nbytes
            end = min(end, int(self.entries.slices.nbytes[row]))
        if 4 * nbytes < 3 * (end - begin):
            return None
        block = into
        if block is None or (begin, end) != (start, stop):
            block = thread_buffer(end - begin, "part")
        if is_by_runs and runs is not None:
            evidence.read_runs(row, start, stop, lambda _nbytes: block)
            return block if block is into else block[start - begin : stop - begin]
        if is_by_runs:
            self.verify(row)
        self.source.read_into(self.entries, row, start, block)
        return block

    def expect(self, rows: Ints) -> None:
        """Note which payloads this thread asks for next, in order, and drop the ones it holds.

        The source prepares for the ones that it decodes.
        """
        plain = self.entries.plain[rows]
        if not plain.all():
            self.source.expect(self.entries, rows[~plain])
        self._ahead.rows = rows[plain]
        self._ahead.held = {}

    def is_held(self, rows: Ints) -> Bools:
        """[rows] Return True for small payloads in a bucket: the ones that ``held`` returns."""
        traits, nbytes = self.source.traits, self.entries.slices.nbytes[rows]
        if traits is None:
            return np.zeros(len(rows), np.bool)
        return self.entries.plain[rows] & (nbytes > 0) & (nbytes <= traits.small_nbytes)

    def held(self, row: int) -> memoryview | None:
        """Return a whole payload, verified, if it is small and in a bucket; None for any other."""
        ahead, traits = self._ahead, self.source.traits
        if row not in ahead.held:
            if traits is None or not self.is_held(np.array([row]))[0]:
                return None
            ahead.held = self._read_with_next(row, traits)
        return ahead.held[row]

    def _read_with_next(self, row: int, traits: Traits) -> dict[int, memoryview]:
        """Read a payload together with the small ones that are expected after it, up to a block."""
        expected = self._ahead.rows
        # A row that is not expected is read by itself: after no place in the list, nothing follows.
        places = np.flatnonzero(expected == row)
        rows = expected[int(places[0]) :] if len(places) else np.array([row])
        rows = rows[self.is_held(rows)]
        nbytes = self.entries.slices.nbytes
        rows = np.unique(rows[: max(1, int((np.cumsum(nbytes[rows]) <= BLOCK_NBYTES).sum()))])
        # In the order of the files: what lies side by side comes in one request.
        rows = rows[np.lexsort((self.entries.start[rows], self.entries.file[rows]))]
        columns = self.entries.file[rows], self.entries.start[rows], nbytes[rows]
        first = np.array([first for first, _ in spans(*columns, affordable_gap(*columns, traits))])
        buffer, begins = Evidence(self.source, self.entries).read_spans(
            rows, np.zeros_like(rows), nbytes[rows], first, new_buffer
        )
        sizes = nbytes[rows].tolist()
        return {
            number: buffer[begin : begin + size]
            for number, begin, size in zip(rows.tolist(), begins, sizes, strict=True)
        }


def _blocks(evidence: Evidence, row: int) -> list[Callable[[], object]]:
    """The reads of a payload's blocks; what the source decodes is read in one go."""
    nbytes = int(evidence.entries.slices.nbytes[row])
    if nbytes <= BLOCK_NBYTES or not evidence.entries.plain[row]:
        return [partial(evidence.read_whole, row)]

    def read(start: int, stop: int) -> None:
        evidence.read(row, start, thread_buffer(stop - start, "whole"))

    return [partial(read, *bounds) for bounds in block_ranges(0, nbytes)]
