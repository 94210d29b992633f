"""Pieces: which reads bring the bytes of payloads to the places where they are wanted?

Load, save, reshard, partial reads, diff, stats and verify ask this question, and differ in what they do with the bytes:
put them into arrays, into a block that is written, hand the block out, or drop it once it was compared. The law of each
read below is that of the plain path: read the whole payload, then cut.

    what is wanted                              how it is read
    small payloads and parts, side by side      together, in one span of their file; by threads          read_small
    long byte ranges                            block by block, straight to their places; by threads     read_moves
    a part of a payload with run checksums      the runs that hold it, each compared                     read_moves
    payloads that the source decodes            block by block from the beginning, in one thread         read_moves
    regions that are not one byte range         in spans, or in one walk over the payload               engine.regions
    arrays in memory                            copied; memory keeps no checksums                        read_moves

Every read goes through ``Evidence``, which compares it. To add a way to read, add a function here and a row above, and
a property to the tests that holds it to the plain path.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardvar.engine.arrays import ArraySource
from shardvar.engine.evidence import Evidence
from shardvar.engine.moves import MoveTable
from shardvar.engine.pool import (
    BLOCK_NBYTES,
    SMALL_NBYTES,
    Done,
    Progress,
    Work,
    block_ranges,
    new_buffer,
    run_all,
    run_in_order,
    thread_buffer,
)
from shardvar.layout.dtypes import Ints
from shardvar.planning.index import EntryTable

_GAP_NBYTES = 4096
"""Bytes between two small ranges that are read along rather than skipped by a second read."""

Buffers = Mapping[int, memoryview]
"""The payload of each target that is filled, by the target's row."""

Receiver = Callable[[MoveTable, memoryview, list[int]], None]
"""A function that takes the payloads of moves out of a span, in which they begin at the given places."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """The evidence, the threads and the progress of one task that reads."""

    evidence: Evidence
    """The source, and what was read of it."""
    progress: Progress = lambda _nbytes: None
    """Called with the number of bytes that were read."""
    in_threads: bool = True
    """False for a task that is itself one of several threads: it reads alone, and its thread's buffer is taken."""

    @property
    def entries(self) -> EntryTable:
        """The entries of the source."""
        return self.evidence.entries

    def run(self, function: Callable[[Work], Done], items: Iterable[Work]) -> list[Done]:
        """Return ``function`` of every item."""
        return run_all(function, items) if self.in_threads else run_in_order(function, items)

    def scratch(self, nbytes: int) -> memoryview:
        """A buffer that the next call may reuse."""
        return thread_buffer(nbytes) if self.in_threads else new_buffer(nbytes)


def read_moves(reading: Reading, moves: MoveTable, buffers: Buffers | None, *, by_runs: bool = False) -> None:
    """Bring the bytes of each move to its place in the buffer of its target; without buffers they are compared alone.

    With ``by_runs``, a part of a payload that has checksums of runs is read by whole runs, and so compared at once.
    Without it, parts are compared once all are read: right where together they are the whole payload.
    """
    source, entries = reading.evidence.source, reading.entries
    if isinstance(source, ArraySource) and buffers is not None:
        source.copy_moves(entries.file[moves.source], moves, buffers)
        return
    plain = entries.plain[moves.source]
    in_runs = plain & by_runs & (entries.runs is not None) & (moves.nbytes != entries.slices.nbytes[moves.source])
    is_small = plain & ~in_runs & (moves.nbytes <= SMALL_NBYTES)
    read_small(reading, moves.where(is_small), None if buffers is None else _put_into(buffers))
    _read_long(reading, moves.where(plain & ~in_runs & ~is_small), buffers, reading.run)
    _read_runs(reading, moves.where(in_runs), buffers or {})
    # Most codings can only be read from their beginning, so threads would make each of them begin anew.
    reading.evidence.expect(moves.source[~plain])
    _read_long(reading, moves.where(~plain), buffers, run_in_order)


def read_small(reading: Reading, moves: MoveTable, receive: Receiver | None, *, gap_nbytes: int | None = None) -> None:
    """Read small plain ranges, neighbours in a file together, and hand each span over.

    Gaps of ``gap_nbytes`` between neighbours are read along; of a page if it is not given.
    """
    if not len(moves):
        return
    entries = reading.entries
    file, start = entries.file[moves.source], entries.start[moves.source] + moves.source_start
    order = np.lexsort((start, file))
    moves, file, start = moves.take(order), file[order], start[order]

    def read(rows: tuple[int, int]) -> None:
        some = moves.slice(*rows)
        span = reading.scratch(int(start[rows[1] - 1] + some.nbytes[-1] - start[rows[0]]))
        begins = reading.evidence.read_span(some.source, some.source_start, some.nbytes, span)
        if receive is not None:
            receive(some, span, begins)
        reading.progress(len(span))

    gap_nbytes = _GAP_NBYTES if gap_nbytes is None else gap_nbytes
    reading.run(read, spans(file, start, moves.nbytes, gap_nbytes))


def spans(file: Ints, start: Ints, nbytes: Ints, gap_nbytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows, sorted by file and place, that one read of at most a block can bring.

    A row larger than a block is a range by itself, and so is one that overlaps its neighbour. With a gap of 4 bytes and
    blocks of 64, ranges at [0, 8), [10, 20), [40, 50) and [50, 60) of a file are the rows (0, 2) and (2, 4).
    """
    stop = start + nbytes
    apart = np.flatnonzero((file[1:] != file[:-1]) | (start[1:] - stop[:-1] > gap_nbytes) | (start[1:] < stop[:-1]))
    first = 0
    for end in [*(apart + 1).tolist(), len(file)]:
        while first < end:
            # Within neighbours the stops ascend, so the last row that still fits in a block is found by bisection.
            last = first + int(np.searchsorted(stop[first:end], start[first] + BLOCK_NBYTES, side="right"))
            last = max(last, first + 1)
            yield first, last
            first = last


def _put_into(buffers: Buffers) -> Receiver:
    def put(moves: MoveTable, span: memoryview, begins: list[int]) -> None:
        columns = (moves.target.tolist(), moves.target_start.tolist(), moves.nbytes.tolist())
        for begin, target, into, nbytes in zip(begins, *columns, strict=True):
            buffers[target][into : into + nbytes] = span[begin : begin + nbytes]

    return put


def _read_long(reading: Reading, moves: MoveTable, buffers: Buffers | None, run: Callable[..., Any]) -> None:
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

    run(read, ((move, start, stop) for move, nbytes in enumerate(sizes) for start, stop in block_ranges(0, nbytes)))


def _read_runs(reading: Reading, moves: MoveTable, buffers: Buffers) -> None:
    """Read parts of payloads that have checksums of runs: the runs that hold the part, and nothing else."""
    runs = reading.entries.runs
    if runs is None or not len(moves):
        return
    # A block is cut where a run ends, so that no run is read for two blocks.
    step = max(BLOCK_NBYTES // runs.run_nbytes, 1) * runs.run_nbytes
    rows, firsts, targets, places, sizes = (column.tolist() for column in moves.columns())

    def read(work: tuple[int, int, int]) -> None:
        move, start, stop = work
        block = reading.evidence.read_runs(rows[move], start, stop, reading.scratch)
        into = places[move] + start - firsts[move]
        buffers[targets[move]][into : into + stop - start] = block
        reading.progress(stop - start)

    ranges = (block_ranges(first, first + nbytes, step) for first, nbytes in zip(firsts, sizes, strict=True))
    reading.run(read, ((move, start, stop) for move, each in enumerate(ranges) for start, stop in each))
