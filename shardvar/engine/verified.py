"""Payloads as they are stored, for sources that convert them. Each is compared whole before the
first of its bytes is used.

    on a disk     a payload is read whole to be compared, and again, from the cache, where it is
                  used
    in a bucket   small payloads that are expected together are read together, compared, and held in
                  memory until the thread asks for others: each is read once
"""

import threading
from dataclasses import dataclass, field
from threading import RLock

import numpy as np

from shardvar.engine.evidence import Evidence, check_entry
from shardvar.engine.pieces import affordable_gap, spans
from shardvar.engine.pool import BLOCK_NBYTES, new_buffer
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
    _waits: dict[int, RLock] = field(default_factory=dict)
    _lock: RLock = field(default_factory=new_lock)
    _ahead: _Ahead = field(default_factory=_Ahead)

    def verify(self, row: int) -> None:
        """Read one payload whole, in bounded blocks, and raise unless it is right.

        Returns at once if it was read before.
        """
        if row in self._rows:
            return
        with self._lock:
            wait = self._waits.setdefault(row, new_lock())
        # One thread reads it; threads that need the same one wait, and threads that need another
        # one do not.
        with wait:
            if row not in self._rows:
                check_entry(self.source, self.entries, row)
                self._rows.add(row)
        with self._lock:
            self._waits.pop(row, None)

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
