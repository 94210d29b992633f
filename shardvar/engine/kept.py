"""Payloads that a source copies elements out of, in any order and several times.

    on a disk, byte for byte    none: parts of the file are read, or it is mapped
    small, in a bucket          read together with the ones that are expected next (``verified``)
    all others                  read once, from the beginning to the end, and kept: in memory if
                                they are small, else in temporary files without a name

Each that is kept is verified whole before its first element is given out.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from threading import RLock

from shardvar.engine.evidence import Evidence
from shardvar.engine.pieces import Reading
from shardvar.engine.pool import (
    BLOCK_NBYTES,
    MOST_WORKERS,
    block_ranges,
    map_ahead,
    new_buffer,
)
from shardvar.engine.verified import VerifiedRows
from shardvar.forks import new_lock

_MOST_DECODED = MOST_WORKERS + 4
"""Entries whose payloads are kept: more than are read at a time, since each thread reads one. The
payload that was read first is dropped first, and the slowest thread may still be at it."""

_MOST_FETCHED = 2
"""Entries from a bucket whose payloads are kept: one thread reads them, in order."""

_MOST_IN_MEMORY = 8 * BLOCK_NBYTES
"""Bytes of payloads that are kept in memory. Others are kept in temporary files."""

Scratch = Callable[[Iterable[memoryview]], memoryview]
"""A function that keeps bytes in a temporary file, and returns a memory map of it."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptPayloads:
    """The payloads of a source, some of them kept; rows are rows of the stored entries."""

    verified: VerifiedRows
    """The source of the payloads, its entries as stored, and which were verified."""
    map_scratch: Scratch
    """A function that keeps bytes in a temporary file, and returns a memory map of it."""
    kept: "OrderedDict[int, memoryview]" = field(default_factory=OrderedDict)
    """The payloads that are kept, by row."""
    lock: RLock = field(default_factory=new_lock)
    """Guards ``kept``."""

    def clear(self) -> None:
        """Drop all of them."""
        self.kept.clear()

    def payload(self, row: int, count: int) -> memoryview | None:
        """Return a payload, verified; None for one in a file on a disk, which may not be yet.

        ``count`` payloads are read in turns with it.
        """
        stored, source = self.verified.entries, self.verified.source
        nbytes = int(stored.slices.nbytes[row])
        if nbytes == 0:
            self.verified.verify(row)
            return memoryview(b"")
        if stored.plain[row] and source.traits is None:
            return None
        kept = self.kept.get(row)
        if kept is not None:
            return kept
        held = self.verified.held(row)
        if held is None:
            return self._keep(row, nbytes, count)
        if count > 1:  # others are read before it is read again
            with self.lock:
                self._add(row, held, count)
        return held

    def _keep(self, row: int, nbytes: int, count: int) -> memoryview:
        """Return a payload that is kept; under the lock it is read once."""
        stored, source = self.verified.entries, self.verified.source
        with self.lock:
            if row not in self.kept:
                evidence = Evidence(source, stored)
                in_memory = sum(len(each) for each in self.kept.values() if _is_in_memory(each))
                with closing(_blocks(evidence, row, nbytes)) as blocks:
                    if nbytes <= BLOCK_NBYTES and in_memory + nbytes <= _MOST_IN_MEMORY:
                        payload = next(blocks)
                    else:
                        payload = self.map_scratch(blocks)
                evidence.check()
                self._add(row, payload, count)
            return self.kept[row]

    def _add(self, row: int, payload: memoryview, count: int) -> None:
        """Keep a payload, and drop the ones that were read first."""
        most = _MOST_DECODED if self.verified.source.traits is None else _MOST_FETCHED
        self.kept[row] = payload
        while len(self.kept) > most * count:
            self.kept.popitem(last=False)


def _is_in_memory(payload: memoryview) -> bool:
    return isinstance(payload.obj, bytearray)


def _blocks(evidence: Evidence, row: int, nbytes: int) -> Generator[memoryview]:
    """Yield the blocks of a payload in order; payloads in a bucket are read several at a time."""

    def read(bounds: tuple[int, int]) -> memoryview:
        start, stop = bounds
        buffer = new_buffer(stop - start)
        evidence.read(row, start, buffer)
        return buffer

    ranges = block_ranges(0, nbytes)
    if evidence.entries.plain[row]:
        yield from map_ahead(read, ranges, Reading(evidence).threads(BLOCK_NBYTES))
    else:
        yield from map(read, ranges)
