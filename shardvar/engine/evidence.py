"""Whether what was read from a source is what its checksums promise.

A task seldom reads a whole payload in one piece. It notes the checksum of every piece that it read, and once all tasks
are done the pieces of each payload are put together: pieces that tile it are combined and compared. A payload of which
only parts were read, or parts twice, is read once more: the runs that were touched where the format has checksums of
runs, else all of it. Nothing is committed and nothing returned before.

Payloads that the source decodes are checked by it when their last byte is read; their pieces carry ``NO_CHECKSUM``,
and one that was read in part is read to its end here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from shardvar.errors import CorruptCheckpoint
from shardvar.formats.protocol import Source
from shardvar.layout.region import Ints
from shardvar.planning.index import NO_CHECKSUM, EntryTable, RunChecksums
from shardvar.wire.crc import Checksum

BLOCK_NBYTES = 4 << 20
"""What is read or written at a time: large enough to hide the call, small enough to stay in the cache."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Pieces of payloads that were read: rows of the sources, first bytes, sizes, checksums."""

    pieces: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(source row, first byte in its payload, number of bytes, checksum or ``NO_CHECKSUM``)."""
    lock: Lock = field(default_factory=Lock)

    def add(self, pieces: Sequence[tuple[int, int, int, int]]) -> None:
        """Note pieces; several threads may."""
        with self.lock:
            self.pieces.extend(pieces)


def check_evidence(source: Source, entries: EntryTable, pieces: Sequence[tuple[int, int, int, int]]) -> None:
    """Raise ``CorruptCheckpoint``, naming key, file and offset, unless every payload that was touched is as promised."""
    if not pieces:
        return
    table = np.array(pieces, dtype=np.int64)
    whole = (table[:, 1] == 0) & (table[:, 2] == entries.slices.nbytes[table[:, 0]])
    wrong = whole & (table[:, 3] != entries.checksum[table[:, 0]])
    if wrong.any():
        raise _corrupt(source, entries, int(table[int(np.argmax(wrong)), 0]))
    parts = table[~whole]
    parts = parts[np.lexsort((parts[:, 1], parts[:, 0]))]
    for rows in np.split(parts, np.flatnonzero(np.diff(parts[:, 0])) + 1):
        if len(rows):
            _check_parts(source, entries, rows)


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
    for first, nbytes, crc in _runs(entries, row, start, stop):
        block = memoryview(bytearray(nbytes))
        source.read_into(entries, row, first, block)
        if source.crc is not None and source.crc.compute(block) != crc:
            raise _corrupt(source, entries, row, first, first + nbytes)


def _check_parts(source: Source, entries: EntryTable, parts: Ints) -> None:
    """The pieces of one payload, by first byte: combined where they tile it, else read again."""
    row = int(parts[0, 0])
    stops = parts[:, 1] + parts[:, 2]
    tile = parts[0, 1] == 0 and stops[-1] == entries.slices.nbytes[row] and (parts[1:, 1] == stops[:-1]).all()
    if tile:
        if entries.checksum[row] != _combined(source.crc, parts):
            raise _corrupt(source, entries, row)
    elif entries.runs is not None:
        for start, stop in _merged(parts):
            check_runs(source, entries, row, start, stop)
    else:
        check_entry(source, entries, row)


def _combined(crc: Checksum | None, parts: Ints) -> int:
    """The checksum of pieces that follow each other; ``NO_CHECKSUM`` of pieces that have none."""
    if crc is None or parts[0, 3] == NO_CHECKSUM:
        return NO_CHECKSUM
    combined = 0
    for nbytes, piece in parts[:, 2:].tolist():
        combined = crc.combine(combined, piece, nbytes)
    return combined


def _merged(parts: Ints) -> Iterator[tuple[int, int]]:
    """Ranges of bytes that hold the pieces, adjacent and repeated ones joined."""
    start, stop = int(parts[0, 1]), int(parts[0, 1] + parts[0, 2])
    for first, nbytes in parts[1:, 1:3].tolist():
        if first > stop:
            yield start, stop
            start, stop = first, first + nbytes
        stop = max(stop, first + nbytes)
    yield start, stop


def _runs(entries: EntryTable, row: int, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """(first byte, number of bytes, checksum) of the runs that hold bytes ``[start, stop)``."""
    runs: RunChecksums | None = entries.runs
    if runs is None or stop <= start:
        return
    nbytes = int(entries.slices.nbytes[row])
    values = runs.of(row, nbytes)
    for number in range(start // runs.run_nbytes, -(-stop // runs.run_nbytes)):
        first = number * runs.run_nbytes
        yield first, min(runs.run_nbytes, nbytes - first), int(values[number])


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
