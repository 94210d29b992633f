"""Every payload of a table of entries, read once and compared with its checksum; what is wrong with which of them.

Small neighbours in a file come in one read, large payloads block by block and by several threads; what the source must
decode comes in order, by one thread. An error stays with its row, and all others are still looked at.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.checkpoint.blocks import READ_ERRORS, Progress, ReadError
from shardvar.engine.evidence import BLOCK_NBYTES, Piece, check_entry, check_evidence
from shardvar.engine.gather import SMALL_NBYTES, spans
from shardvar.engine.pool import run_all, thread_buffer
from shardvar.engine.read import check_bool
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import STRING, Ints, code
from shardvar.planning.index import NO_CHECKSUM, EntryTable
from shardvar.wire import strings


def check_payloads(
    source: Source, entries: EntryTable, progress: Progress = lambda nbytes: None
) -> dict[int, ReadError]:
    """Read every payload; the error of each row that is damaged."""
    check = _Check(source, entries, progress)
    nbytes, plain = entries.slices.nbytes, entries.plain
    small = np.flatnonzero(plain & (nbytes <= SMALL_NBYTES))
    small = small[np.lexsort((entries.start[small], entries.file[small]))]
    bounds = list(spans(entries.file[small], entries.start[small], nbytes[small]))
    run_all(lambda span: check.span(small[span[0] : span[1]]), bounds)
    large = np.flatnonzero(plain & (nbytes > SMALL_NBYTES))
    work = [(row, start) for row in large.tolist() for start in range(0, int(nbytes[row]), BLOCK_NBYTES)]
    run_all(check.block, work)
    check.compare_pieces()
    # Many of the others can only be decoded from their beginning: in order, and by one thread.
    for row in np.flatnonzero(~plain).tolist():
        check.row(row)
        progress(int(nbytes[row]))
    for row in np.flatnonzero(np.isin(entries.slices.codes(), (code(STRING), code("bool")))).tolist():
        check.values(row)
    return check.errors


@dataclass(frozen=True, slots=True, eq=False)
class _Check:
    """The payloads of some entries, and what is wrong with them."""

    source: Source
    entries: EntryTable
    progress: Progress
    errors: dict[int, ReadError] = field(default_factory=dict)
    pieces: list[Piece] = field(default_factory=list)

    def span(self, rows: Ints) -> None:
        """Small payloads that lie side by side in a file: one read, and their checksums as a column."""
        start = self.entries.start[rows]
        stop = start + self.entries.slices.nbytes[rows]
        base = int(start[0])
        span = thread_buffer(int(stop.max()) - base)
        try:
            self.source.read_span(int(self.entries.file[rows[0]]), base, span)
        except READ_ERRORS:
            suspects = rows  # one of them reaches out of the file; alone, each of the others may still be right
        else:
            suspects = rows[self._differ(rows, span, (start - base).tolist(), (stop - base).tolist())]
        for row in suspects.tolist():
            self.row(row)
        self.progress(len(span))

    def _differ(self, rows: Ints, span: memoryview, starts: list[int], stops: list[int]) -> npt.NDArray[np.bool]:
        """Which of the payloads do not have their checksum."""
        crc, promised = self.source.crc, self.entries.checksum[rows]
        if crc is None:
            return np.zeros(len(rows), dtype=np.bool)
        actual = np.array([crc.compute(span[a:b]) for a, b in zip(starts, stops, strict=True)], dtype=np.int64)
        differ: npt.NDArray[np.bool] = (actual != promised) & (promised != NO_CHECKSUM)
        return differ

    def block(self, work: tuple[int, int]) -> None:
        """One block of a large payload."""
        row, start = work
        nbytes = min(BLOCK_NBYTES, int(self.entries.slices.nbytes[row]) - start)
        if row in self.errors:
            return
        block = thread_buffer(nbytes)
        try:
            self.source.read_into(self.entries, row, start, block)
        except READ_ERRORS as error:
            self.errors.setdefault(row, error)
            return
        guarded = self.source.crc is not None and self.entries.checksum[row] != NO_CHECKSUM
        found = self.source.crc.compute(block) if guarded and self.source.crc is not None else NO_CHECKSUM
        self.pieces.append((row, start, nbytes, found))
        self.progress(nbytes)

    def compare_pieces(self) -> None:
        """Put the blocks of each large payload together, and compare."""
        pieces = sorted(piece for piece in self.pieces if piece[0] not in self.errors)
        for row, group in groupby(pieces, key=itemgetter(0)):
            self._catch(row, check_evidence, self.source, self.entries, list(group))

    def row(self, row: int) -> None:
        """One payload, read whole."""
        self._catch(row, check_entry, self.source, self.entries, row)

    def values(self, row: int) -> None:
        """Whether the bytes are ones that such a tensor may have; damaged ones need not be looked at."""
        if row not in self.errors:
            self._catch(row, check_values, self.source, self.entries, row)

    def _catch(self, row: int, check: Callable[..., None], *arguments: Any) -> None:
        try:
            check(*arguments)
        except READ_ERRORS as error:
            self.errors.setdefault(row, error)


def check_values(source: Source, entries: EntryTable, row: int) -> None:
    """Raise where the bytes of a bool or a string tensor are none that it can have, though their checksum is right."""
    nbytes, region = int(entries.slices.nbytes[row]), entries.slices.region(row)
    if entries.slices.dtype(row) == STRING:
        payload = memoryview(bytearray(nbytes))
        source.read_into(entries, row, 0, payload)
        strings.decode(payload, region.shape)
        return
    for start in range(0, nbytes, BLOCK_NBYTES):
        block = memoryview(bytearray(min(BLOCK_NBYTES, nbytes - start)))
        source.read_into(entries, row, start, block)
        check_bool(np.frombuffer(block, np.bool), entries.slices.key(row), source, entries)
