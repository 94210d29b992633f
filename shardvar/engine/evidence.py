"""Whether what was read from a source is what its checksums promise.

A task seldom reads a whole payload in one piece. It notes the checksum of every piece that it read, and once all tasks
are done the pieces of each payload are put together: pieces that tile it are combined and compared. A payload of which
only parts were read, or parts twice, is read once more: the runs that were touched where the format has checksums of
runs, else all of it. Nothing is committed and nothing returned before.

Payloads that the source decodes are checked by it when their last byte is read; their pieces carry ``NO_CHECKSUM``,
and one that was read in part is read to its end here.

R-DAMAGE-1 (RFC 001): "all variables present before saving will be available for loading and restoration", or it is said
which are not: a value that is not the one that was saved is never returned.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from threading import Lock

import numpy as np

from shardvar.errors import ArgumentError, CorruptCheckpoint
from shardvar.formats.protocol import Source
from shardvar.planning.index import NO_CHECKSUM, EntryTable
from shardvar.wire.crc import Checksum

BLOCK_NBYTES = 4 << 20
"""What is read or written at a time: large enough to hide the call, small enough to stay in the cache."""


Piece = tuple[int, int, int, int]
"""(source row, first byte in its payload, number of bytes, checksum or ``NO_CHECKSUM``)."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was read of a source so far."""

    source: Source
    """The source."""
    entries: EntryTable
    """Its entries, which ``Piece`` counts by row."""
    parts: list[Piece] = field(default_factory=list)
    """The pieces that are only parts of their payloads."""
    lock: Lock = field(default_factory=Lock)
    """Guards ``parts``."""

    def add(self, pieces: Sequence[Piece]) -> None:
        """Note pieces; those that are whole payloads are compared at once and need not be kept."""
        nbytes, promised = self.entries.slices.nbytes, self.entries.checksum
        whole: list[Piece] = []
        parts: list[Piece] = []
        for piece in pieces:
            row, _, size, crc = piece
            known = crc != NO_CHECKSUM or promised[row] == NO_CHECKSUM
            (whole if known and size == nbytes[row] else parts).append(piece)
        check_evidence(self.source, self.entries, whole)
        with self.lock:
            self.parts.extend(parts)

    def check(self) -> None:
        """Raise unless everything that was noted is as promised."""
        check_evidence(self.source, self.entries, self.parts)


def check_evidence(source: Source, entries: EntryTable, pieces: Sequence[Piece]) -> None:
    """Raise ``CorruptCheckpoint``, naming key, file and offset, unless every payload that was read is as promised."""
    if not pieces:
        return
    table = np.array(pieces, dtype=np.int64)
    promised = entries.checksum[table[:, 0]]
    table = table[(promised != NO_CHECKSUM) | ~entries.plain[table[:, 0]]]
    promised = entries.checksum[table[:, 0]]
    # A piece of a payload that has a checksum may have been read without taking one: its payload is read again.
    known = (table[:, 3] == NO_CHECKSUM) == (promised == NO_CHECKSUM)
    whole = known & (table[:, 1] == 0) & (table[:, 2] == entries.slices.nbytes[table[:, 0]])
    wrong = whole & (table[:, 3] != promised)
    if wrong.any():
        raise _corrupt(source, entries, int(table[int(np.argmax(wrong)), 0]))
    order = np.flatnonzero(~whole)
    order = order[np.lexsort((table[order, 1], table[order, 0]))]
    unknown = set(table[~known, 0].tolist())
    for row, parts in groupby(map(tuple, table[order].tolist()), itemgetter(0)):
        _check_parts(source, entries, list(parts), row not in unknown)


def check_entry(source: Source, entries: EntryTable, row: int) -> None:
    """Read one payload whole, in bounded blocks, and raise unless its checksum is right. Reads even what has none."""
    nbytes = int(entries.slices.nbytes[row])
    buffer = memoryview(bytearray(min(nbytes, BLOCK_NBYTES)))
    checked = source.crc is not None and entries.checksum[row] != NO_CHECKSUM
    crc = 0
    for start in range(0, nbytes, BLOCK_NBYTES):
        block = buffer[: min(BLOCK_NBYTES, nbytes - start)]
        source.read_into(entries, row, start, block)
        if checked and source.crc is not None:
            crc = source.crc.compute(block, crc)
    if nbytes == 0 and not entries.plain[row]:
        source.read_into(entries, row, 0, buffer)
    if checked and crc != entries.checksum[row]:
        raise _corrupt(source, entries, row)


def check_runs(source: Source, entries: EntryTable, row: int, start: int, stop: int) -> None:
    """Raise unless the runs that hold bytes ``[start, stop)`` of one payload are right. Needs checksums of runs."""
    for at in range(start // BLOCK_NBYTES * BLOCK_NBYTES, stop, BLOCK_NBYTES):
        read_verified(source, entries, row, max(at, start), min(at + BLOCK_NBYTES, stop), _new_buffer)


def read_verified(
    source: Source, entries: EntryTable, row: int, start: int, stop: int, new_buffer: Callable[[int], memoryview]
) -> memoryview:
    """The bytes ``[start, stop)`` of one payload, which has checksums of runs: read by whole runs, each compared."""
    runs = entries.runs
    if runs is None:
        raise ArgumentError("The entry has no checksums of runs.")
    nbytes, step = int(entries.slices.nbytes[row]), runs.run_nbytes
    values = runs.of(row, nbytes)
    begin, end = start // step * step, min(-(-stop // step) * step, nbytes)
    block = new_buffer(end - begin)
    source.read_into(entries, row, begin, block)
    for at in range(0, end - begin, step):
        run = block[at : at + step]
        if source.crc is not None and source.crc.compute(run) != values[(begin + at) // step]:
            raise _corrupt(source, entries, row, begin + at, begin + at + len(run))
    return block[start - begin : stop - begin]


def _new_buffer(nbytes: int) -> memoryview:
    return memoryview(bytearray(nbytes))


def _check_parts(source: Source, entries: EntryTable, parts: list[Piece], known: bool) -> None:
    """The pieces of one payload, by first byte: combined where they tile it and are known, else read again."""
    row = parts[0][0]
    nbytes = int(entries.slices.nbytes[row])
    if known and _tile(parts, nbytes):
        if entries.checksum[row] != _combined(source.crc, parts):
            raise _corrupt(source, entries, row)
    elif entries.runs is not None:
        for start, stop in _merged(parts, entries.runs.run_nbytes):
            check_runs(source, entries, row, start, min(stop, nbytes))
    else:
        check_entry(source, entries, row)


def _tile(parts: list[Piece], nbytes: int) -> bool:
    """Whether the pieces follow each other from the first byte of a payload to its last."""
    done = 0
    for _, first, count, _ in parts:
        if first != done:
            return False
        done += count
    return done == nbytes


def _combined(crc: Checksum | None, parts: list[Piece]) -> int:
    """The checksum of pieces that follow each other; ``NO_CHECKSUM`` of pieces that have none."""
    combined = parts[0][3]
    if crc is None or combined == NO_CHECKSUM:
        return NO_CHECKSUM
    for _, _, nbytes, piece in parts[1:]:
        combined = crc.combine(combined, piece, nbytes)
    return combined


def _merged(parts: list[Piece], run_nbytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of whole runs that hold the pieces; each run is in one of them, however many pieces touch it."""
    start = stop = parts[0][1] // run_nbytes * run_nbytes
    for _, first, nbytes, _ in parts:
        begin, end = first // run_nbytes * run_nbytes, -(-(first + nbytes) // run_nbytes) * run_nbytes
        if begin > stop:
            yield start, stop
            start = begin
        stop = max(stop, end)
    yield start, stop


def _corrupt(
    source: Source, entries: EntryTable, row: int, start: int = 0, stop: int | None = None
) -> CorruptCheckpoint:
    """The error for a payload whose checksum is wrong; names the runs where the format can tell them apart."""
    nbytes = int(entries.slices.nbytes[row])
    if stop is None and entries.runs is not None:
        check_runs(source, entries, row, 0, nbytes)
    entry = entries.entry(row, source.index.files)
    stop = nbytes if stop is None else stop
    return CorruptCheckpoint(
        f"{entry.file}: the bytes {entry.start + start} to {entry.start + stop}, which hold {entry.slice.region} of "
        f"{entry.slice.key!r}, do not have the checksum that the index gives.",
        "The file is damaged; take it from a copy. `shardvar verify` lists what else is.",
    )
