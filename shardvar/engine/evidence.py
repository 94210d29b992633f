"""Evidence: are the bytes right that were read from a source?

Everything reads payloads through an ``Evidence``. It takes the checksum of each range
while the bytes are in the cache, and compares it with what the index promises for exactly these
bytes: the checksum of the payload, or of one of its runs. The rule, "a checksum is compared
whenever the bytes that it covers are read", is ``Evidence.add``.

    range that was read            what happens
    a whole payload, or one run    compared at once, or with the next few reads
    another part of a payload      kept until ``check``: parts that tile their payload are combined
                                   and compared, others are read again, by the runs that they touch
                                   where the format has checksums of runs, else the whole payload

Before ``check`` has returned, nothing is committed and nothing is given to the caller. Payloads
that the source decodes are checked by the source when their last byte is read; of these, one that
was read in part is read to its end here.

The first error is raised. With ``errors`` it is kept by row instead, so that one damaged payload
hides no other.

R-DAMAGE-1 (RFC 001): "all variables present before saving will be available for loading and
restoration", or it is said which are not: a value other than the saved one is never
returned.
"""

from array import array
from collections.abc import Callable, Iterator
from functools import partial
from threading import RLock
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from shardvar.engine.pool import BLOCK_NBYTES, block_ranges, new_buffer, thread_buffer
from shardvar.errors import (
    COPY_AGAIN,
    LISTS_MORE,
    READ_ERRORS,
    ArgumentError,
    CorruptCheckpoint,
    ReadError,
)
from shardvar.forks import new_lock
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import Bools, Ints
from shardvar.planning.index import NO_CHECKSUM, EntryTable
from shardvar.planning.slices import Columns
from shardvar.records import entity, field

_MOST_NOTED = 64  # Reads after which their checksums are compared, so that damage is found soon


@entity
class ReadTable(Columns):
    """Columns of byte ranges of payloads that were read, each with its checksum."""

    row: Ints  # [k] rows of the entries
    start: Ints  # [k] the first byte, in the payload
    nbytes: Ints  # [k] the number of bytes
    checksum: Ints  # [k] the checksum of these bytes; ``NO_CHECKSUM`` where none was taken

    @classmethod
    def of(cls, table: npt.ArrayLike) -> Self:
        """The table of a matrix [k, 4] whose columns are the fields in order."""
        return cls(*np.asarray(table, np.int64).reshape(-1, 4).T)

    def table(self) -> Ints:
        """The matrix [k, 4] whose columns are the fields in order."""
        return np.column_stack(self.columns())


@entity
class Evidence:
    """A source whose reads are compared with its index's checksums, from any thread."""

    source: Source  # the source that payloads are read from
    entries: EntryTable  # the source's entries; ``ReadTable.row`` counts them
    takes_checksums: bool = True
    """False if reads take no checksums: the caller adds them, or wants no comparison."""
    bare: Bools | None = None
    """[m] True for payloads whose parts are read without a comparison; None for none."""
    errors: dict[int, ReadError] | None = None
    """The first error of each row, where errors are kept; None where they are raised."""
    watch: Callable[[int, memoryview], object] | None = None
    """Called with the row and the bytes of each range that was read, while they are in the cache."""
    _noted: "array[int]" = field(default_factory=partial(array, "q"))
    """Reads that are not compared yet, four integers each, to be compared together."""
    _parts: "array[int]" = field(default_factory=partial(array, "q"))
    """The reads of parts of payloads, likewise: a hundred thousand take a few MiB."""
    _lock: RLock = field(default_factory=new_lock)

    @property
    def parts(self) -> ReadTable:
        """The reads so far that are only parts of their payloads; whole ones are compared first."""
        self.compare()
        return ReadTable.of(np.array(self._parts, np.int64))

    def is_guarded(self, rows: Any) -> Any:
        """[*rows] True for plain rows with a checksum in the index."""
        if self.source.crc is None:
            return np.zeros(np.shape(rows), np.bool)
        return self.entries.plain[rows] & (self.entries.checksum[rows] != NO_CHECKSUM)

    def is_compared(self, rows: Ints) -> Bools:
        """[rows] True for rows whose parts are compared with a checksum, as the whole is."""
        compared: Bools = self.is_guarded(rows) & self.takes_checksums
        return compared if self.bare is None else compared & ~self.bare[rows]

    def read(self, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with a range of one payload, from byte ``start`` of the payload on."""
        if self.errors is not None and row in self.errors:
            return
        try:
            self.source.read_into(self.entries, row, start, buffer)
        except READ_ERRORS as error:
            self._fail(row, error)
            return
        if self.watch:
            self.watch(row, buffer)
        if self.takes_checksums:
            # Reads are noted and compared together, since NumPy takes about as long for one
            # comparison as for 64. Each is four integers in ``_noted``.
            kind = self.source.crc
            crc = kind.compute(buffer) if kind is not None and self.is_guarded(row) else NO_CHECKSUM
            with self._lock:
                self._noted.extend((row, start, len(buffer), crc))
                is_full = len(self._noted) >= 4 * _MOST_NOTED
            if is_full:
                self.compare()

    def expect(self, rows: Ints) -> None:
        if len(rows):
            self.source.expect(self.entries, rows)

    def compare(self) -> None:
        """Compare what was read since the last time."""
        with self._lock:
            # Copied under the lock and compared outside of it, so that other threads go on reading.
            noted = np.array(self._noted, np.int64)
            del self._noted[:]
        if len(noted):
            self.add(ReadTable.of(noted))

    def read_spans(
        self,
        rows: Ints,
        starts: Ints,
        nbytes: Ints,
        first: Ints,
        new_buffer: Callable[[int], memoryview],
    ) -> tuple[memoryview, list[int]]:
        """Read ranges of plain payloads, sorted by file and place; ``first`` [s] begin spans."""
        places, last = self.entries.start[rows] + starts, np.append(first[1:], len(rows)) - 1
        sizes = places[last] + nbytes[last] - places[first]
        into = np.cumsum(sizes) - sizes
        begins: list[int] = (places - np.repeat(places[first] - into, last - first + 1)).tolist()
        buffer = new_buffer(int(sizes.sum()))
        columns = (self.entries.file[rows[first]], places[first], into, into + sizes)
        try:
            for file, place, start, stop in np.column_stack(columns).tolist():
                self.source.read_span(file, place, buffer[start:stop])
        except READ_ERRORS:
            if self.errors is None:
                raise
            # One of them reaches out of the file; each of the others may still be right by itself.
            for row in rows.tolist():
                self.read_whole(row)
            return buffer, begins
        if self.watch:
            for row, begin, count in zip(rows.tolist(), begins, nbytes.tolist(), strict=True):
                self.watch(row, buffer[begin : begin + count])
        if self.takes_checksums:
            self.take(rows, starts, nbytes, buffer, begins)
        return buffer, begins

    def read_runs(
        self, row: int, start: int, stop: int, new_buffer: Callable[[int], memoryview]
    ) -> memoryview:
        """The bytes ``[start, stop)`` of a payload that has checksums of runs, read by whole runs:
        with runs of 16 bytes, [20, 40) of a payload of 45 is read as [16, 45)."""
        runs = self.entries.runs
        if runs is None:
            raise ArgumentError("The entry has no checksums of runs.")
        step = runs.run_nbytes
        begin, end = runs.around(start, stop, int(self.entries.slices.nbytes[row]))
        block = new_buffer(end - begin)
        self.source.read_into(self.entries, row, begin, block)
        starts = np.arange(begin, end, step)
        sizes = np.minimum(step, end - starts)
        if self.takes_checksums:
            rows = np.full(len(starts), row)
            self.take(rows, starts, sizes, block, (starts - begin).tolist())
        return block[start - begin : stop - begin]

    def read_whole(self, row: int) -> None:
        """Read and compare one payload, also an unguarded one, by the plain path."""
        nbytes, guarded, crc = int(self.entries.slices.nbytes[row]), bool(self.is_guarded(row)), 0
        buffer = thread_buffer(min(nbytes, BLOCK_NBYTES), "whole")
        try:
            for start, stop in block_ranges(0, nbytes):
                block = buffer[: stop - start]
                self.source.read_into(self.entries, row, start, block)
                if self.watch:
                    self.watch(row, block)
                if guarded and self.source.crc is not None:
                    crc = self.source.crc.compute(block, crc)
            if nbytes == 0 and not self.entries.plain[row]:
                # A payload without bytes may have stored bytes all the same, such as the header of
                # a deflated array.
                self.source.read_into(self.entries, row, 0, buffer)
        except READ_ERRORS as error:
            self._fail(row, error)
        else:
            self.add(ReadTable.of([row, 0, nbytes, crc if guarded else NO_CHECKSUM]))

    def add(self, reads: ReadTable) -> None:
        """Compare the checksums of reads with the index's; other reads are kept for ``check``."""
        promised, is_whole = self._promised(reads)
        compared = (promised != NO_CHECKSUM) & (reads.checksum != NO_CHECKSUM)
        if (traits := self.source.traits) and traits.is_rehearsed:
            promised = reads.checksum
        for position in np.flatnonzero(compared & (promised != reads.checksum)).tolist():
            self._blame(reads, position)
        # A run stays among the parts although it was compared: with the adjacent parts, it may tile
        # the payload.
        is_open = self.is_guarded(reads.row) & ~(compared & is_whole)
        if self.bare is not None:
            is_open &= ~self.bare[reads.row]
        # A source compares payloads that it decodes in order, at the latest at their end.
        is_decoded = ~self.entries.plain[reads.row] & ~is_whole
        if is_decoded.any():
            is_open |= is_decoded & self.source.in_order(self.entries, reads.row)
        if is_open.any():
            with self._lock:
                self._parts.frombytes(reads.where(is_open).table().tobytes())

    def check(self) -> None:
        """Raise unless all that was read is as the index promises; open parts are read again."""
        parts = self.parts
        if not len(parts):
            return
        # A run that was compared is settled. If a payload has an open part, all its parts are
        # looked at again, because together they may tile it: [0, 16) is a run that was compared,
        # [16, 45) is not a run, and together they are a payload of 45 bytes.
        settled = (self._promised(parts)[0] != NO_CHECKSUM) & (parts.checksum != NO_CHECKSUM)
        rows = np.flatnonzero(np.isin(parts.row, parts.row[~settled]))
        # By row, and then by first byte, so that the parts of a payload follow each other.
        order = rows[np.lexsort((parts.start[rows], parts.row[rows]))]
        # What two files needed was read once for both.
        is_new = np.append(True, np.diff(parts.take(order).table(), axis=0).any(axis=1))
        order = order[is_new[: len(order)]]
        if len(order):
            self._settle_all(parts.take(order), settled[order])

    def take(
        self, rows: Ints, starts: Ints, nbytes: Ints, buffer: memoryview, begins: list[int]
    ) -> None:
        """Take the checksums of ranges that were just read and are in the cache, and add them."""
        checksum = np.full(len(rows), NO_CHECKSUM)
        if self.source.crc is not None:
            compute, ranges = self.source.crc.compute, zip(begins, nbytes.tolist(), strict=True)
            # Views of the buffer are made one at a time: thousands that live at once would start
            # the garbage collector.
            guarded = self.is_guarded(rows).tolist()
            checksum[:] = [
                compute(buffer[begin : begin + count]) if is_guarded else NO_CHECKSUM
                for (begin, count), is_guarded in zip(ranges, guarded, strict=True)
            ]
        self.add(ReadTable(rows, starts, nbytes, checksum))

    def _promised(self, reads: ReadTable) -> tuple[Ints, Bools]:
        """[k] the index's checksum of exactly these bytes, and [k] True for whole payloads."""
        entries, rows = self.entries, reads.row
        sizes, guarded = entries.slices.nbytes[rows], self.is_guarded(rows)
        is_whole = (reads.start == 0) & (reads.nbytes == sizes)
        promised = np.where(is_whole & guarded, entries.checksum[rows], NO_CHECKSUM)
        if entries.runs is not None:
            step = entries.runs.run_nbytes
            is_run = guarded & ~is_whole & (reads.start % step == 0) & (reads.nbytes > 0)
            # Only the last run may be short: of 45 bytes in runs of 16, [32, 45) is a run of 13
            # bytes, but [16, 29) is not a run.
            at = np.flatnonzero(is_run & (reads.nbytes == np.minimum(step, sizes - reads.start)))
            promised[at] = entries.runs.values[
                entries.runs.first[rows[at]] + reads.start[at] // step
            ]
        return promised, is_whole

    def _settle_all(self, parts: ReadTable, settled: Bools) -> None:
        """Decide about payloads from their parts, by row and in the order of their first bytes."""
        # A group of parts for each payload: of the rows 3 3 7, the groups are [0, 2) and [2, 3).
        first = np.flatnonzero(np.diff(parts.row, prepend=-1))
        rows, bounds = parts.row[first], np.append(first, len(parts))
        guarded = self.is_guarded(rows)
        # Parts that tile their payload are enough, if each part of a guarded one has a checksum.
        # [0, 5) and [5, 9) tile 9 bytes: each start (0, 5) equals the stop before it (0, 5), and the
        # last stop is 9.
        stops = parts.start + parts.nbytes
        before = np.append(0, stops[:-1])
        before[first] = 0
        is_tiled: Bools = np.logical_and.reduceat(parts.start == before, first)
        is_tiled &= stops[bounds[1:] - 1] == self.entries.slices.nbytes[rows]
        is_tiled &= ~guarded | np.logical_and.reduceat(parts.checksum != NO_CHECKSUM, first)

        # The cheap way: combine the checksums of the parts, and compare them with the payload's.
        # No byte is read again. An unguarded payload was read to its end, and its source checks it.
        # The CRC of a + b follows from the CRCs of a and b and the length of b.
        combined, crc, checksums = np.flatnonzero(is_tiled & guarded), self.source.crc, list[int]()
        for group in combined.tolist():
            own = slice(bounds[group], bounds[group + 1])
            total, *values = parts.checksum[own].tolist()
            for value, size in zip(values, parts.nbytes[own].tolist()[1:], strict=True):
                total = NO_CHECKSUM if crc is None else crc.combine(total, value, size)
            checksums.append(total)
        nbytes = self.entries.slices.nbytes[rows[combined]]
        self.add(
            ReadTable(
                rows[combined], np.zeros_like(combined), nbytes, np.array(checksums, np.int64)
            )
        )

        # The other payloads: read again what the parts that are not settled touch, or everything.
        for group in np.flatnonzero(~is_tiled).tolist():
            row = int(rows[group])
            if self.errors is not None and row in self.errors:
                continue
            if guarded[group] and self.entries.runs is not None:
                # Runs of 16 bytes and the part [40, 44) of a payload of 45: read [32, 45) again.
                some = np.arange(bounds[group], bounds[group + 1])
                touched = parts.take(some[~settled[some]])
                size = int(self.entries.slices.nbytes[row])
                for start, stop in _touched_runs(touched, self.entries.runs.run_nbytes):
                    self._read_again(row, start, min(stop, size))
            else:
                self.read_whole(row)

    def _read_again(self, row: int, start: int, stop: int) -> None:
        """Compare the runs that hold the bytes ``[start, stop)`` of a payload, block by block."""
        try:
            for begin, end in block_ranges(start, stop):
                self.read_runs(row, begin, end, new_buffer)
        except READ_ERRORS as error:
            self._fail(row, error)

    def _blame(self, reads: ReadTable, position: int) -> None:
        row, start, nbytes, _ = reads.table()[position].tolist()
        runs = self.entries.runs
        if runs is not None and nbytes > runs.run_nbytes:
            self._read_again(row, 0, nbytes)  # names the first run that is damaged
        entry = self.entries.entry(row, self.source.index.files)
        error = CorruptCheckpoint(
            f"{entry.file}: the bytes {entry.start + start} to {entry.start + start + nbytes}, "
            f"which hold {entry.slice.region} of {entry.slice.key!r}, do not have the checksum "
            "that the index gives.",
            f"{COPY_AGAIN} {LISTS_MORE}",
        ).in_file(entry.file)
        self._fail(row, error)

    def _fail(self, row: int, error: ReadError) -> None:
        if self.errors is None:
            raise error
        self.errors.setdefault(row, error)


def _touched_runs(parts: ReadTable, run_nbytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of whole runs that hold the parts, sorted: with runs of 16 bytes, the parts [20, 25),
    [30, 40) and [70, 71) touch [16, 48) and [64, 80)."""
    starts = parts.start // run_nbytes * run_nbytes
    stops = -(-(parts.start + parts.nbytes) // run_nbytes) * run_nbytes
    first, last = int(starts[0]), int(stops[0])
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        if start > last:
            yield first, last
            first = start
        last = max(last, stop)
    yield first, last
