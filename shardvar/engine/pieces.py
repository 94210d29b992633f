"""Pieces: which reads bring the bytes of payloads to the places where they are wanted?

Load, save, reshard, partial reads, diff, stats and verify ask this question, and differ in what
they do with the bytes: put them into arrays, into a block that is written, hand the block out, or
drop it once it was compared. The law of each read below is the plain path's: read the whole
payload, then cut.

    what is wanted                              how it is read
    small payloads and parts, side by side      together, in one span of their file; by threads          read_small
    long byte ranges                            block by block, straight to their places; by threads     read_moves
    a part of a payload with run checksums      the runs that hold it, each compared, side by side       read_moves
    payloads that the source decodes            block by block from the beginning, in one thread         read_moves
    regions that are not one byte range         in spans, or in one walk over the payload               engine.regions
    arrays in memory                            copied; memory keeps no checksums                        read_moves

A request to a remote storage costs more than one to a disk, so a source of remote files has
``Traits``: by these, ranges that lie further apart are read together, and by more threads. The
bytes that are read in addition to what is wanted are bounded (``affordable_gap``), and so are the
bytes under way.

Every read goes through ``Evidence``, which compares it. To add a way to read, add a function here
and a row above, and a property to the tests that holds it to the plain path.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from shardvar.engine.arrays import ArraySource
from shardvar.engine.evidence import Evidence
from shardvar.engine.moves import MoveTable, integers_of_ranges
from shardvar.engine.pool import (
    BLOCK_NBYTES,
    BUFFERS_NBYTES,
    SMALL_NBYTES,
    WORKERS,
    Done,
    Progress,
    Work,
    block_ranges,
    run_all,
    run_in_order,
    thread_buffer,
)
from shardvar.layout.dtypes import Ints
from shardvar.planning.index import EntryTable
from shardvar.storage.concurrency import IN_FLIGHT_NBYTES, exactly
from shardvar.storage.protocol import Traits

_FEW_SPANS = 8
"""Spans that may bring bytes along for the next read; more are a plan, and bring what it needs."""

_GAP_NBYTES = 4096
"""Bytes between two small ranges that are read along rather than skipped by a second read."""

Buffers = Mapping[int, memoryview]
"""The payload of each target that is filled, by the target's row."""

Receiver = Callable[[MoveTable, memoryview, list[int]], None]
"""A function that takes the payloads of moves out of a span, from the given places."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """The evidence, the threads and the progress of one task that reads."""

    evidence: Evidence
    """The source, and what was read of it."""
    progress: Progress = lambda _nbytes: None
    """Called with the number of bytes that were read."""
    in_threads: bool = True
    """False for a task that is itself one of several threads: it only reads."""
    use: str = "span"
    """The name of the thread's buffer. A source that reads regions of another one, while regions
    of it are read, needs another name."""

    @property
    def entries(self) -> EntryTable:
        """The entries of the source."""
        return self.evidence.entries

    @property
    def traits(self) -> Traits | None:
        """The cost of a request to the source's storage; None for a disk, and for memory."""
        return self.evidence.source.traits

    @property
    def small_nbytes(self) -> int:
        """The size of a read up to which it is made together with its neighbours."""
        return SMALL_NBYTES if self.traits is None else max(self.traits.small_nbytes, SMALL_NBYTES)

    def threads(self, nbytes: int) -> int:
        """Return how many items of so many bytes are worked at: as many as there are cores, and as
        memory allows.

        A request to a remote source waits for its answer, so threads beyond the number of cores are
        of use there.
        """
        cores = min(WORKERS, max(2, BUFFERS_NBYTES // max(nbytes, 1)))
        if self.traits is None:
            return cores
        most = self.traits.requests
        if nbytes <= SMALL_NBYTES:
            most = max(most, self.traits.short_requests)
        return max(cores, min(most, IN_FLIGHT_NBYTES // max(nbytes, 1)))

    def run(
        self, function: Callable[[Work], Done], items: Iterable[Work], nbytes: int
    ) -> list[Done]:
        """Return ``function`` of every item; none reads more than ``nbytes`` bytes."""
        return (
            run_all(function, items, self.threads(nbytes))
            if self.in_threads
            else run_in_order(function, items)
        )

    def scratch(self, nbytes: int) -> memoryview:
        """A buffer that the next call may reuse."""
        return thread_buffer(nbytes, self.use)


def read_moves(
    reading: Reading, moves: MoveTable, buffers: Buffers | None, *, by_runs: bool = False
) -> None:
    """Bring the bytes of each move to its place in the buffer of its target; without buffers they
    are only compared.

    With ``by_runs``, a part of a payload that has checksums of runs is read by whole runs, and so
    compared at once. Without it, parts are compared once all are read: right where together they
    are the whole payload.
    """
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
    is_small = plain & ~in_runs & (moves.nbytes <= reading.small_nbytes)
    read_small(reading, moves.where(is_small), None if buffers is None else _put_into(buffers))
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
    """Read small plain ranges, neighbours in a file together, and hand each span over.

    Gaps of ``gap_nbytes`` between neighbours are read along; of a page if it is not given.
    """
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
    found = list(spans(file, start, moves.nbytes, gap_nbytes))
    are_few = reading.traits is None or len(found) <= _FEW_SPANS
    first, last = np.array(found).T
    most = int((start[last - 1] + moves.nbytes[last - 1] - start[first]).max())
    if len(found) == 1 and most <= SMALL_NBYTES and reading.traits is None:
        # A disk sends so few bytes sooner than a thread begins.
        read([0], len(moves))
    elif reading.in_threads:
        # Threads wait for one span each.
        reading.run(lambda rows: read([rows[0]], rows[1]), found, most)
    else:
        # A task that only reads handles many small ones in the steps that it needs for one.
        for group in _grouped(found, start, moves.nbytes):
            read([first for first, _ in group], group[-1][1])


def _gap_of_requests(file: Ints, start: Ints, nbytes: Ints, traits: Traits, least: int) -> int:
    """Return the widest gap between two ranges, sorted by file and place, that one request brings.

    ``least`` is read along at any rate: what lies between whole payloads is of the format. Between
    parts of payloads lies what is not wanted, and it is read along while it is less than what is
    wanted. Where that leaves more ranges than two rounds of requests bring, wider gaps are.
    """
    wanted = int(nbytes.sum())
    few = replace(traits, gap_nbytes=SMALL_NBYTES, waste_nbytes=wanted)
    gap = max(
        least,
        affordable_gap(file, start, nbytes, few),
        affordable_gap(
            file,
            start,
            nbytes,
            traits if least else replace(traits, waste_nbytes=min(traits.waste_nbytes, wanted)),
        ),
    )
    most = 2 * max(traits.requests, traits.short_requests)
    gaps = np.sort((start[1:] - (start + nbytes)[:-1])[file[1:] == file[:-1]])
    if len(gaps) > most:
        gap = max(gap, min(int(gaps[-most]), traits.gap_nbytes))
    return gap


def affordable_gap(file: Ints, start: Ints, nbytes: Ints, traits: Traits) -> int:
    """Return the widest gap up to which all gaps together are few enough bytes to be read along.

    With 10 bytes to waste, gaps of 1, 2, 4 and 8 bytes may be read along up to 4 bytes, which are 7
    together.
    """
    gaps = np.sort((start[1:] - (start + nbytes)[:-1])[file[1:] == file[:-1]])
    gaps = gaps[(gaps > 0) & (gaps <= traits.gap_nbytes)]
    count = int(np.searchsorted(np.cumsum(gaps), traits.waste_nbytes, side="right"))
    # The next gap may be as wide as the last one that is affordable: then neither is read along.
    while 0 < count < len(gaps) and gaps[count] == gaps[count - 1]:
        count = int(np.searchsorted(gaps, gaps[count - 1]))
    return int(gaps[count - 1]) if count else 0


def _grouped(
    found: Iterable[tuple[int, int]], start: Ints, nbytes: Ints
) -> Iterator[list[tuple[int, int]]]:
    """Spans that follow each other, as many as a block holds together."""
    group: list[tuple[int, int]] = []
    total = 0
    for first, last in found:
        size = int(start[last - 1] + nbytes[last - 1] - start[first])
        if group and total + size > BLOCK_NBYTES:
            yield group
            group, total = [], 0
        group.append((first, last))
        total += size
    if group:
        yield group


def spans(file: Ints, start: Ints, nbytes: Ints, gap_nbytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows, sorted by file and place, that one read of at most a block can bring.

    A row larger than a block is a range by itself, and so is one that overlaps its neighbour. With
    a gap of 4 bytes and blocks of 64, ranges at [0, 8), [10, 20), [40, 50) and [50, 60) of a file
    are the rows (0, 2) and (2, 4).
    """
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


def _put_into(buffers: Buffers) -> Receiver:
    def put(moves: MoveTable, span: memoryview, begins: list[int]) -> None:
        columns = (moves.target.tolist(), moves.target_start.tolist(), moves.nbytes.tolist())
        for begin, target, into, nbytes in zip(begins, *columns, strict=True):
            buffers[target][into : into + nbytes] = span[begin : begin + nbytes]

    return put


def _read_long(
    reading: Reading, moves: MoveTable, buffers: Buffers | None, run: Callable[..., Any]
) -> None:
    """Read byte ranges block by block, straight to their places."""
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
    """Return the ranges to read so that every byte of some ranges of plain payloads is read once,
    and compared.

    These are whole runs where the format has checksums of runs, whole payloads if it has checksums
    only of payloads, and the ranges themselves if there is nothing to compare. Ranges of one
    ``group`` are of one payload, and what they share is read once. Each unit is a move of at most a
    block, whose ``target`` is its group. With runs of 16 bytes, the ranges [20, 25) and [30, 40) of
    a payload of 45 bytes are the units [16, 32) and [32, 45).
    """
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
