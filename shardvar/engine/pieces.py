"""Pieces: which reads bring the bytes of payloads to the places where they are wanted?

Load, save, reshard, partial reads, diff, stats and verify ask this question, and differ in what
they do with the bytes: put them into arrays, into a block that is written, hand the block out, or
drop it once it was compared. The law of each read below is the plain path's: read the whole
payload, then cut.

    wanted                                      how it is read
    small payloads and parts, side by side      together, in one span of their file; by threads          read_small
    long byte ranges                            block by block, straight to their places; by threads     read_moves
    a part of a payload with run checksums      the runs that hold it, each compared, side by side       read_moves
    payloads that the source decodes            block by block from the beginning, in one thread         read_moves
    regions that are not one byte range         in spans, or in one walk over the payload               engine.read
    arrays in memory                            copied; memory keeps no checksums                        read_moves

A request to a remote storage costs more than one to a disk, so a source of remote files has
``Traits``: by these, ranges that lie further apart are read together, and by more threads. The
bytes that are read in addition to the wanted ones are bounded (``affordable_gap``), and so are the
bytes under way.

Every read goes through ``Evidence``, which compares it. To add a way to read, add a function here
and a row above, and a property to the tests that holds it to the plain path.

Sources that convert (casts, maps) read payloads as they are stored. Each is compared whole before
the first of its bytes is used (``VerifiedRows``).

    on a disk     a part of a payload is read by the runs that have checksums; without these, a
                  payload is read whole to be compared, by all threads that need it, and again, from
                  the cache, where it is used
    in a bucket   small payloads that are expected together are read together, compared, and held in
                  memory until the thread asks for others: each is read once

A source that copies elements out of payloads, in any order and several times, keeps some
(``KeptPayloads``).

    on a disk, byte for byte    none: parts of the file are read, or it is mapped
    small, in a bucket          read together with those that are expected next
    all others                  read once, from the beginning to the end, and kept: in memory if
                                they are small, else in temporary files without a name
"""

import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from functools import partial
from itertools import chain
from threading import RLock
from typing import Any

import numpy as np

from shardvar.engine.arrays import ArraySource, MoveTable, integers_of_ranges
from shardvar.engine.evidence import Evidence
from shardvar.engine.pool import (
    BLOCK_NBYTES,
    BUFFERS_NBYTES,
    MOST_WORKERS,
    SMALL_NBYTES,
    WORKERS,
    Done,
    Progress,
    Together,
    Work,
    block_ranges,
    map_ahead,
    new_buffer,
    run_all,
    run_in_order,
    thread_buffer,
)
from shardvar.errors import ReadError
from shardvar.forks import new_lock
from shardvar.formats.protocol import Source, WrappedSource
from shardvar.layout.dtypes import Bools, Ints
from shardvar.planning.index import EntryTable
from shardvar.records import entity, field
from shardvar.storage.concurrency import exactly
from shardvar.storage.protocol import Traits

_FEW_SPANS = 8
"""Spans that may bring bytes along for the next read; more are a plan, which brings its own."""

_GAP_NBYTES = 4096
"""Bytes between two small ranges that are read along rather than skipped by a second read."""

Buffers = Mapping[int, memoryview]  # the payload of each target that is filled, by the target's row

Receiver = Callable[[MoveTable, memoryview, list[int]], None]
"""A function that takes the payloads of moves out of a span, from the given places."""


_READS = 4
"""Reads of a local disk at a time, also with fewer cores: while some wait, others copy. 1 GiB that is
not in the page cache takes 0.9 to 1.1 s with four, 2.4 to 3.8 s with two, 1.1 to 2.2 s with more."""


@entity
class Reading:
    """The evidence, the threads and the progress of one task that reads."""

    evidence: Evidence  # the source, and what was read of it
    progress: Progress = lambda _nbytes: None  # called with the number of bytes that were read
    in_threads: bool = True  # False for a task that is itself one of several threads: it only reads
    use: str = "span"
    """The name of the thread's buffer. A source that reads regions of another one, while regions
    of it are read, needs another name."""

    @property
    def entries(self) -> EntryTable:
        return self.evidence.entries

    @property
    def traits(self) -> Traits | None:
        return self.evidence.source.traits

    @property
    def small_nbytes(self) -> int:
        """The size of a read up to which it is made together with its neighbours."""
        return SMALL_NBYTES if self.traits is None else max(self.traits.small_nbytes, SMALL_NBYTES)

    def threads(self, nbytes: int) -> int:
        """Return how many items of so many bytes are worked at; requests need more than cores."""
        cores = min(max(WORKERS, _READS), max(2, BUFFERS_NBYTES // max(nbytes, 1)))
        if self.traits is None:
            return cores
        most = self.traits.requests
        if nbytes <= SMALL_NBYTES:
            most = max(most, self.traits.short_requests)
        return max(cores, min(most, self.traits.in_flight_nbytes // max(nbytes, 1)))

    def run(
        self, function: Callable[[Work], Done], items: Iterable[Work], nbytes: int
    ) -> list[Done]:
        if not self.in_threads:
            return run_in_order(function, items)
        return run_all(function, items, self.threads(nbytes))

    def scratch(self, nbytes: int) -> memoryview:
        return thread_buffer(nbytes, self.use)


def read_moves(
    reading: Reading, moves: MoveTable, buffers: Buffers | None, *, by_runs: bool = False
) -> None:
    """Bring the bytes of moves to their buffers; without buffers they are only compared.
    Without ``by_runs``, parts are compared once all are read."""
    source, entries = reading.evidence.source, reading.entries
    if isinstance(source, ArraySource) and buffers is not None:
        source.copy_moves(entries.file[moves.source], moves, buffers)
        return
    plain = entries.plain[moves.source]
    in_runs = (
        plain
        & by_runs
        & (entries.runs is not None)
        & (moves.nbytes != entries.slices.nbytes[moves.source])
    )
    if reading.evidence.bare is not None:
        in_runs &= ~reading.evidence.bare[moves.source]

    def put(moves: MoveTable, span: memoryview, begins: list[int]) -> None:
        filled = buffers or {}
        columns = (moves.target.tolist(), moves.target_start.tolist(), moves.nbytes.tolist())
        for begin, target, into, nbytes in zip(begins, *columns, strict=True):
            filled[target][into : into + nbytes] = span[begin : begin + nbytes]

    is_small = plain & ~in_runs & (moves.nbytes <= reading.small_nbytes)
    read_small(reading, moves.where(is_small), None if buffers is None else put)
    is_long = plain & ~in_runs & ~is_small
    if is_long.any():
        run = partial(reading.run, nbytes=BLOCK_NBYTES)
        _read_long(reading, moves.where(is_long), buffers, run)
    if in_runs.any():
        _read_runs(reading, moves.where(in_runs), buffers or {})
    if plain.all():
        return
    # Most codings can only be read from their beginning, so each thread would have to start from
    # the beginning.
    moves = moves.where(~plain)
    # Forwards in each payload.
    moves = moves.take(np.lexsort((moves.source_start, moves.source)))
    reading.evidence.expect(moves.source)
    _read_long(reading, moves, buffers, run_in_order)


def read_small(
    reading: Reading, moves: MoveTable, receive: Receiver | None, *, gap_nbytes: int | None = None
) -> None:
    """Read small plain ranges, with gaps up to ``gap_nbytes`` (a page), and hand each span over."""
    if not len(moves):
        return
    entries = reading.entries
    file, start = entries.file[moves.source], entries.start[moves.source] + moves.source_start
    order = np.lexsort((start, file))
    moves, file, start = moves.take(order), file[order], start[order]

    def read(first: list[int], last: int) -> None:
        some = moves.take(slice(first[0], last))
        firsts = np.array(first) - first[0]
        with nullcontext() if are_few else exactly():
            span, begins = reading.evidence.read_spans(
                some.source, some.source_start, some.nbytes, firsts, reading.scratch
            )
        if receive is not None:
            receive(some, span, begins)
        reading.progress(len(span))

    gap_nbytes = _GAP_NBYTES if gap_nbytes is None else gap_nbytes
    if reading.traits is not None:
        is_part = moves.nbytes != entries.slices.nbytes[moves.source]
        gap_nbytes = _gap_of_requests(
            file, start, moves.nbytes, reading.traits, 0 if is_part.any() else gap_nbytes
        )
    ranges = list(spans(file, start, moves.nbytes, gap_nbytes))
    are_few = reading.traits is None or len(ranges) <= _FEW_SPANS
    first, last = np.array(ranges).T
    sizes = start[last - 1] + moves.nbytes[last - 1] - start[first]
    if len(ranges) == 1 and sizes[0] <= SMALL_NBYTES and reading.traits is None:
        # A disk sends so few bytes sooner than a thread begins.
        read([0], len(moves))
    elif reading.in_threads:
        # Threads wait for one span each.
        reading.run(lambda rows: read([rows[0]], rows[1]), ranges, int(sizes.max()))
    else:
        # A task that only reads handles many small ones, of a block together, as it does one.
        begins, total = list[int](), 0
        for (begin, _), nbytes in zip(ranges, sizes.tolist(), strict=True):
            if begins and total + nbytes > BLOCK_NBYTES:
                read(begins, begin)
                begins, total = [], 0
            begins.append(begin)
            total += nbytes
        read(begins, len(moves))


def _gap_of_requests(file: Ints, start: Ints, nbytes: Ints, traits: Traits, least: int) -> int:
    """Return the widest gap between two sorted ranges that one request brings along: as long as the
    gaps are less than the wanted bytes, or wider if more ranges are left than two rounds bring."""
    wanted = int(nbytes.sum())
    few = traits._replace(gap_nbytes=SMALL_NBYTES, waste_nbytes=wanted)
    usual = traits._replace(waste_nbytes=min(traits.waste_nbytes, wanted)) if not least else traits
    gap = max(least, *(affordable_gap(file, start, nbytes, some) for some in (few, usual)))
    most = 2 * max(traits.requests, traits.short_requests)
    gaps = _gaps(file, start, nbytes)
    if len(gaps) > most:
        gap = max(gap, min(int(gaps[-most]), traits.gap_nbytes))
    return gap


def _gaps(file: Ints, start: Ints, nbytes: Ints) -> Ints:
    # Between sorted ranges of one file.
    return np.sort((start[1:] - (start + nbytes)[:-1])[file[1:] == file[:-1]])


def affordable_gap(file: Ints, start: Ints, nbytes: Ints, traits: Traits) -> int:
    """Return the widest gap up to which all gaps together may be read along: with 10 bytes to
    waste, of gaps of 1, 2, 4 and 8 bytes 4, which are 7 together."""
    gaps = _gaps(file, start, nbytes)
    gaps = gaps[(gaps > 0) & (gaps <= traits.gap_nbytes)]
    count = int(np.searchsorted(np.cumsum(gaps), traits.waste_nbytes, side="right"))
    # The next gap may be as wide as the last one that is affordable: then neither is read along.
    while 0 < count < len(gaps) and gaps[count] == gaps[count - 1]:
        count = int(np.searchsorted(gaps, gaps[count - 1]))
    return int(gaps[count - 1]) if count else 0


def spans(file: Ints, start: Ints, nbytes: Ints, gap_nbytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of sorted rows that one read of at most a block can bring: with a gap of 4 bytes and
    blocks of 64, [0, 8), [10, 20), [40, 50) and [50, 60) are the rows (0, 2) and (2, 4). A larger
    row, or one that overlaps its neighbour, is by itself."""
    stop = start + nbytes
    apart = np.flatnonzero(
        (file[1:] != file[:-1]) | (start[1:] - stop[:-1] > gap_nbytes) | (start[1:] < stop[:-1])
    )
    first = 0
    for end in [*(apart + 1).tolist(), len(file)]:
        while first < end:
            # Within neighbours the stops ascend, so the last row that still fits in a block is
            # found by bisection.
            last = first + int(
                np.searchsorted(stop[first:end], start[first] + BLOCK_NBYTES, side="right")
            )
            last = max(last, first + 1)
            yield first, last
            first = last


def _read_long(
    reading: Reading, moves: MoveTable, buffers: Buffers | None, run: Callable[..., Any]
) -> None:
    if not len(moves):
        return
    rows, firsts, targets, places, sizes = (column.tolist() for column in moves.columns())

    def read(work: tuple[int, int, int]) -> None:
        move, start, stop = work
        if buffers is None:
            block = reading.scratch(stop - start)
        else:
            block = buffers[targets[move]][places[move] + start : places[move] + stop]
        reading.evidence.read(rows[move], firsts[move] + start, block)
        reading.progress(len(block))

    run(
        read,
        (
            (move, start, stop)
            for move, nbytes in enumerate(sizes)
            for start, stop in block_ranges(0, nbytes)
        ),
    )


def _read_runs(reading: Reading, moves: MoveTable, buffers: Buffers) -> None:
    """Read parts of payloads that have checksums of runs: only the runs that hold the part."""
    runs = reading.entries.runs
    if runs is None or not len(moves):
        return
    firsts, places = moves.source_start, moves.target_start
    count = np.arange(len(moves))
    units = read_units(reading.evidence, count, moves.source, firsts, firsts + moves.nbytes)

    def put(some: MoveTable, span: memoryview, begins: list[int]) -> None:
        # The target of a unit is the number of its move; the unit holds the bytes [start, stop) of
        # the move's payload.
        number = some.target
        start = np.maximum(some.source_start, firsts[number])
        stop = np.minimum(some.source_start + some.nbytes, firsts[number] + moves.nbytes[number])
        # Where the common bytes go in the target, and where they begin in the unit: of a move of
        # [20, 40) to byte 7 and a unit [16, 32), the bytes [20, 32) go to byte 7, after 4 to skip.
        columns = (
            moves.target[number],
            places[number] + start - firsts[number],
            start - some.source_start,
        )
        for begin, target, into, skip, nbytes in zip(
            begins, *(column.tolist() for column in columns), (stop - start).tolist(), strict=True
        ):
            buffers[target][into : into + nbytes] = span[begin + skip : begin + skip + nbytes]
            reading.progress(nbytes)

    read_small(Reading(reading.evidence, in_threads=reading.in_threads), units, put)


def read_units(evidence: Evidence, group: Ints, row: Ints, start: Ints, stop: Ints) -> MoveTable:
    """Return the moves of at most a block, with groups as targets, by which ranges of plain
    payloads are read once and compared: whole runs, whole payloads, or the ranges where no checksum
    is. With runs of 16 bytes, [20, 25) and [30, 40) of a payload of 45 are [16, 32) and [32,
    45)."""
    entries, size = evidence.entries, evidence.entries.slices.nbytes[row]
    guarded = evidence.is_compared(row)
    step = np.full(len(row), BLOCK_NBYTES)
    if entries.runs is not None:
        step[guarded] = entries.runs.run_nbytes
        start = np.where(guarded, start // step * step, start)
        stop = np.where(guarded, np.minimum(-(-stop // step) * step, size), stop)
    else:
        start, stop = np.where(guarded, 0, start), np.where(guarded, size, stop)
    # In coordinates in which the payloads follow each other, no range of one group reaches another
    # group.
    order = np.lexsort((start, group))
    group, row, start, stop, step = (column[order] for column in (group, row, start, stop, step))
    is_first = np.diff(group, prepend=-1) != 0
    base = np.cumsum(np.where(is_first, size[order], 0)) - size[order]
    reach = np.maximum.accumulate(base + stop)
    is_first[1:] |= base[1:] + start[1:] > reach[:-1]
    first = np.flatnonzero(is_first)
    start, stop = start[first], np.maximum.reduceat(stop, first) if len(first) else stop
    group, row, step = group[first], row[first], step[first]
    # Cut at the multiples of the step: of [20, 45) in steps of 16, the cuts are numbers 1 and 2.
    number = integers_of_ranges(start // step, -(-stop // step))
    owner = np.repeat(np.arange(len(first)), -(-stop // step) - start // step)
    begin = np.maximum(number * step[owner], start[owner])
    end = np.minimum((number + 1) * step[owner], stop[owner])
    return MoveTable(row[owner], begin, group[owner], np.zeros_like(begin), end - begin)


class _Ahead(threading.local):
    def __init__(self) -> None:
        self.rows = np.zeros(0, np.int64)  # [k] the rows that it expects, in order
        self.held: dict[int, memoryview] = {}  # the payloads that were read last, by row


@entity
class VerifiedRows:
    """The payloads of a source that were verified: each once, by the first thread that needs it."""

    source: Source
    entries: EntryTable  # its entries, as they are stored
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
                begun = self._begun[row] = (evidence, Together(self._reads(evidence, row)))
        evidence, together = begun
        try:
            together.finish()
            evidence.check()
            self._rows.add(row)
        finally:
            with self._lock:
                self._begun.pop(row, None)

    def _reads(self, evidence: Evidence, row: int) -> list[Callable[[], object]]:
        """The reads of a payload's blocks; a payload that is decoded is read in one go."""
        nbytes = int(self.entries.slices.nbytes[row])
        if nbytes <= BLOCK_NBYTES or not self.entries.plain[row]:
            return [partial(evidence.read_whole, row)]

        def read(start: int, stop: int) -> None:
            evidence.read(row, start, thread_buffer(stop - start, "whole"))

        return [partial(read, *bounds) for bounds in block_ranges(0, nbytes)]

    def read(
        self, row: int, start: int, stop: int, nbytes: int, into: memoryview | None = None
    ) -> memoryview | None:
        """Return bytes of a payload that lies in a file, verified; they last until the next call.

        ``nbytes`` of them are of use: None if more than a quarter would be read in vain. They are
        read to ``into``, and that is returned, if nothing else is read.
        """
        evidence, runs = Evidence(self.source, self.entries), self.entries.runs
        begin, end = start, stop
        is_open = row not in self._rows and bool(evidence.is_guarded(row))
        if is_open and runs is not None:
            begin, end = runs.around(start, stop, int(self.entries.slices.nbytes[row]))
        if 4 * nbytes < 3 * (end - begin):
            return None
        block = into
        if block is None or (begin, end) != (start, stop):
            block = thread_buffer(end - begin, "part")
        if is_open and runs is not None:
            evidence.read_runs(row, start, stop, lambda _nbytes: block)
            return block if block is into else block[start - begin : stop - begin]
        if is_open:
            self.verify(row)
        self.source.read_into(self.entries, row, start, block)
        return block

    def expect(self, rows: Ints) -> None:
        """Note which payloads this thread asks for next, and drop the payloads that it holds."""
        plain = self.entries.plain[rows]
        if not plain.all():
            self.source.expect(self.entries, rows[~plain])
        self._ahead.rows = rows[plain]
        self._ahead.held = {}

    def is_held(self, rows: Ints) -> Bools:
        """[rows] Return True for the small payloads in a bucket that ``held`` returns."""
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
        columns = rows.tolist(), begins, nbytes[rows].tolist()
        return {
            row: buffer[begin : begin + size] for row, begin, size in zip(*columns, strict=True)
        }


@entity
class VerifiedSource(WrappedSource):
    """Another source whose payloads are verified before they are converted or copied."""

    verified: VerifiedRows

    @property
    def inner(self) -> Source:
        return self.verified.source

    @property
    def stored(self) -> EntryTable:
        return self.verified.entries


@entity
class ComposedSource(VerifiedSource):
    """Another source whose tensors are made of stored ones."""

    # ``start`` of an entry that is not plain is its number.
    origin: Ints
    """[m] the stored row that the entry of a number is, as it is; -1 for one that is made."""

    @abstractmethod
    def _used(self, number: int) -> Iterable[int]:
        """Return the stored rows that an entry is made of."""

    @abstractmethod
    def _make(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Do as ``read_into`` for an entry that is made."""

    def files_read(self, entries: EntryTable) -> Ints:
        numbers = entries.start[~entries.plain]
        origins = self.origin[numbers]
        made = chain.from_iterable(map(self._used, numbers[origins < 0].tolist()))
        rows = np.unique([*origins[origins >= 0].tolist(), *made]).astype(np.int64)
        plain = self.inner.files_read(entries.take(np.flatnonzero(entries.plain)))
        return np.union1d(plain, self.inner.files_read(self.stored.take(rows)))

    def decode(self, entries: EntryTable, row: int) -> memoryview | None:
        origin = int(self.origin[entries.start[row]])
        return None if origin < 0 else self.inner.decode(self.stored, origin)

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        if entries.plain[row]:
            file, begin = entries.place(row)
            self.read_span(file, begin + start, buffer)
        elif (origin := int(self.origin[entries.start[row]])) >= 0:
            self.inner.read_into(self.stored, origin, start, buffer)
        else:
            self._make(entries, row, start, buffer)

    @abstractmethod
    def _members(self, key: str) -> Sequence[str]:
        """Return the stored tensors that a tensor is made of."""

    @abstractmethod
    def _is_guarded(self, key: str) -> bool | None:
        """Return True if checksums cover a stored tensor; None if unknown."""

    def is_guarded(self, key: str) -> bool | None:
        answers = {self._is_guarded(member) for member in self._members(key)}
        return False if False in answers else None if None in answers else True

    def compare_bytes(self, key: str) -> bool:
        return all(map(self.inner.compare_bytes, self._members(key)))

    def storage_errors(
        self, keys: Collection[str], only_read: bool = False
    ) -> Mapping[str, ReadError]:
        members = {member: None for key in keys for member in self._members(key)}
        errors = self.inner.storage_errors([*members], only_read)
        return errors and {
            key: errors[member] for key in keys for member in self._members(key) if member in errors
        }

    def is_part(self, key: str) -> bool:
        return any(map(self.inner.is_part, self._members(key)))


_MOST_DECODED = MOST_WORKERS + 4
"""Entries whose payloads are kept: more than are read at a time, since each thread reads one. The
payload that was read first is dropped first, and the slowest thread may still be at it."""

_MOST_FETCHED = 2  # Entries from a bucket whose payloads are kept: one thread reads them, in order

_MOST_IN_MEMORY = 8 * BLOCK_NBYTES
"""Bytes of payloads that are kept in memory. Others are kept in temporary files."""

Scratch = Callable[[Iterable[memoryview]], memoryview]
"""A function that keeps bytes in a temporary file, and returns a memory map of it."""


@entity
class KeptPayloads:
    """The payloads of a source, some of them kept; rows are rows of the stored entries."""

    verified: VerifiedRows
    map_scratch: Scratch
    kept: "OrderedDict[int, memoryview]" = field(default_factory=OrderedDict)
    """The payloads that are kept, by row."""
    lock: RLock = field(default_factory=new_lock)  # Guards ``kept``

    def clear(self) -> None:
        self.kept.clear()

    def payload(self, row: int, count: int) -> memoryview | None:
        """Return a payload, verified; None for one in a file on a disk, which may not be yet."""
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

                def read(bounds: tuple[int, int]) -> memoryview:
                    buffer = new_buffer(bounds[1] - bounds[0])
                    evidence.read(row, bounds[0], buffer)
                    return buffer

                # Several blocks at a time of a payload in a bucket; others are decoded in order.
                workers = Reading(evidence).threads(BLOCK_NBYTES) if stored.plain[row] else 0
                ranges = block_ranges(0, nbytes)
                in_turn = (read(bounds) for bounds in ranges)
                kept = self.kept.values()
                in_memory = sum(len(octets) for octets in kept if isinstance(octets.obj, bytearray))
                with closing(map_ahead(read, ranges, workers) if workers else in_turn) as blocks:
                    if nbytes <= BLOCK_NBYTES and in_memory + nbytes <= _MOST_IN_MEMORY:
                        payload = next(blocks)
                    else:
                        payload = self.map_scratch(blocks)
                evidence.check()
                self._add(row, payload, count)
            return self.kept[row]

    def _add(self, row: int, payload: memoryview, count: int) -> None:
        most = _MOST_DECODED if self.verified.source.traits is None else _MOST_FETCHED
        self.kept[row] = payload
        while len(self.kept) > most * count:
            self.kept.popitem(last=False)
