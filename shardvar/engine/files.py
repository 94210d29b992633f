"""One output file: what goes into it, and how it is written.

A ``FileTask`` is a value. It holds the part of a plan that fills one file, and may be carried to
another process: running it twice writes the same bytes.

    file     | frame | payload 0 | payload 1 | gap | payload 2
             ............................................. | frame |
    units            [ unit 0: whole small payloads  ] [ unit 1: one block ][ unit 2: one block ][ unit 3    ]

The file is cut into units of a few MiB, each some whole small payloads or one block of a large one.
A unit's bytes are read into a buffer (``engine.pieces``), its checksums are taken while they are in
the cache, and it is written at its place; one whose bytes lie in an array as they are is written
from there. Units are independent, so threads take them as they come. Units that regions fill need
what their neighbours need, too: they are read a batch at a time. Of a bucket, whose requests cost
more than their bytes, the batches of several files are read together (``_portions``), in the order
of the source.

Files side by side. The system lets one thread at a time write into a file, so threads that share a
file wait for each other. On a local disk the threads therefore work at as many files as they are,
at a batch of each in turn:

    files              0 ========  2 ===========        each thread has a file for itself, most of
                                                        the time
                       1 ============  3 =======

What lazy arrays fill is written in one thread, array by array. Each lazy array is to be made once,
and dropped before the next one is made. A file has parts of many arrays, and an array may have
parts in many files:

    arrays    a a b b c c         the turn of a: the files 0 and 1
    files     0 1 0 1 1 2         the turn of b: the files 0 and 1; 0 is finished
                                  the turn of c: the files 1 and 2

So the files are written array by array. A file is opened with its first array, and stays open until
its last one is written.

Save and reshard: the targets of a plan as files, committed whole or not at all.

    tasks --run_each--> files aside, synced --journals--> all finished --evidence--> verified
        --sink--> in place

If the process is killed, finished files and their journals stay. The same reshard, run again, finds
them under the same names, since those carry a digest of source, plan and writer, reads them once to
see that they are whole, and goes on with the rest. So a kill and an interrupt leave what a second
run can use. An error removes what this run wrote and keeps what an earlier one had finished, for a
third run: a disk that is full today has room tomorrow. Only where the source turns out to be
damaged is nothing kept, since any of the files may have the damage in it.

Tasks for other processes have no rows of the plan that their file does not need (``shrink_task``). The
task of a plan shares its columns with all others: of a reshard of 10^6 slices to 100 files, each is
285 MB when it is pickled. Its own rows are a hundredth of that. Only the numbers of the rows
change: the sources and the tensors count the rest.
"""

import json
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partialmethod
from itertools import groupby
from operator import attrgetter
from typing import Any, Self, cast

import numpy as np

from shardvar.engine.arrays import (
    ArraySource,
    LazyPayload,
    MoveTable,
    copies_in_range,
    first_sources,
    integers_of_ranges,
    lower,
)
from shardvar.engine.evidence import Evidence, ReadTable
from shardvar.engine.pieces import Reading, read_moves
from shardvar.engine.pool import (
    BLOCK_NBYTES,
    SMALL_NBYTES,
    WORKERS,
    Progress,
    block_ranges,
    map_ahead,
    run_all,
    thread_buffer,
)
from shardvar.engine.read import RegionTable, join_columns, read_regions, wanted_regions
from shardvar.engine.units import Sums, Unit, batch_units, join_sums, plan_units, take_checksums
from shardvar.errors import READ_ERRORS, CheckpointError, StorageError, WorkerLost
from shardvar.formats.protocol import FileChecksums, FileWriter, Sink, Source, WrappedSource
from shardvar.layout.dtypes import ITEMSIZES, Bools, Ints
from shardvar.planning.index import NO_CHECKSUM, EntryTable, RunChecksums
from shardvar.planning.plan import CopyTable, Plan
from shardvar.planning.slices import Assignment, SliceTable, widen
from shardvar.records import entity, field, frozen, replace
from shardvar.storage.concurrency import as_answered, blindly, do_all
from shardvar.storage.protocol import Storage, WritableFile
from shardvar.wire.strict_json import parse_json

_WRITE_NBYTES = 512 << 10
"""Bytes of a write where files are read and others written side by side.

The kernel takes memory for written bytes in portions as large as the write, and the host of a
virtual machine may provide portions of 1 MiB and more several times more slowly. After each write a
thread waits for Python's lock, and in one file for other threads. So a write has a block where
threads share a file, and in a save from memory, which does little else.
"""


_PORTION_NBYTES = 4 * BLOCK_NBYTES
"""Bytes that are read of a bucket at once: each block of them is a request under way."""
_PORTION_FILES = 128  # Files of a portion, which are open; three portions at most are
_PORTIONS = 2  # Portions that are worked at: with the blocks that are read, ``IN_FLIGHT_NBYTES``


@entity
class FileTask:
    """One output file: picklable, idempotent."""

    id: str  # a digest of source, plan and writer: equal ids write equal bytes
    name: str  # the name under which the file is written
    storage: Storage  # the directory that it is written in
    writer: FileWriter  # the frame and the checksums of the file
    plan: Plan  # the copies that fill it; the targets are the file's slices in order
    entries: EntryTable  # the plan's sources, row by row
    start: Ints  # [k] where in the file each target's payload begins

    @property
    def nbytes(self) -> int:
        return int(self.plan.targets.nbytes.sum())


@entity
class FileReport:
    checksums: FileChecksums  # of what was written
    parts: ReadTable
    """The reads of payloads that this file needs a part of; whole ones have been compared."""
    nbytes: int  # Payload bytes written


@entity
class FileWork:
    task: FileTask
    moves: MoveTable  # the byte ranges that fill targets
    is_range: Bools  # [k] True for targets that moves fill; regions fill the others
    ordered: Bools  # [k] True for targets that are best read in order, as from compressed payloads
    turn: Ints
    """[k] the source of each target that a lazy array fills, whose turn it must be; -1 for others."""
    copies: Ints  # [k + 1] where each target's copies begin in the plan's
    file: WritableFile
    reading: Reading  # the source, and what was read of it
    progress: Progress  # called with the number of bytes that were written
    units: list[Unit]  # the ranges that are written, in the order of the file
    batches: list[list[int]]
    """The numbers of units that are read at once; the last batch ends the file."""
    sums: dict[int, Sums]  # the checksums of the units that are written, by number
    is_beside: bool  # True where other files are written at the same time

    threads: int
    """Batches that are worked at together, as many as memory has room for; 0 for a file whose batch
    is written sooner than a thread begins."""
    write_nbytes: int  # the most bytes of a write


def run_task(task: FileTask, source: Source) -> FileReport:
    [(_, report)] = run_each([task], source)
    return report


def run_each(
    tasks: Sequence[FileTask], source: Source, progress: Progress = lambda _nbytes: None
) -> Generator[tuple[FileTask, FileReport]]:
    """Write and sync files, and yield each with its report; threads are at others."""
    begun: list[FileWork] = []
    is_lazy = isinstance(source, ArraySource) and source.is_lazy.any()
    try:
        is_remote = source.traits is not None
        works = _begin(_by_place(tasks) if is_remote else tasks, source, progress, begun)
        alike: Iterable[tuple[tuple[int, bool], Iterator[Any]]]
        alike = groupby(works, attrgetter("threads", "is_beside"))
        if is_lazy:
            lazy = cast(ArraySource, source)
            alike = [((WORKERS, False), _by_turns(tasks, lazy, progress, begun))]
        for (threads, is_beside), group in alike:
            batches = group if is_lazy else _in_turn(group, max(threads, 1) if is_beside else 1)
            portions = _portions(batches) if is_remote else ([pair] for pair in batches)
            # Always closed here, so that no thread writes into a file that is closed below.
            with closing(
                map_ahead(_write_batch, portions, threads, 1 if is_remote else 4 * threads)
                if threads
                else (_write_batch(portion) for portion in portions)
            ) as written:
                for portion, sums in written:
                    # Ordered payloads are read here, between the others' results.
                    values = iter(_write_units(portion) if sums is None else sums)
                    for work, batch in portion:
                        work.sums.update(zip(batch, values, strict=False))
                        if len(work.sums) == len(work.units):
                            begun.remove(work)
                            yield work.task, _finish_file(work)
    finally:
        for work in begun:
            work.file.close()
        if is_lazy:
            cast(ArraySource, source).end_turn()


def _by_turns(
    tasks: Sequence[FileTask], source: ArraySource, progress: Progress, begun: list[FileWork]
) -> Iterator[tuple[FileWork, list[int]]]:
    """Yield the batches of all files, lazy array by lazy array; those without one come first."""
    opened: dict[int, dict[int, list[tuple[FileWork, list[int]]]]] = {}
    unopened = dict.fromkeys(range(len(tasks)))
    copies_of: dict[int, list[tuple[int, int]]] = {}
    # The lazy arrays, each with the plans that copy it, by place. An array is made some rows at a
    # time only if every copy has whole rows, and each such part ends where a copy ends.
    for number, task in enumerate(tasks):
        plan, rank = task.plan, task.plan.copies.shape.shape[1]
        rows = plan.copies.source
        stored = plan.sources.take(rows)
        is_lazy = source.in_order(source.index.entries, rows)
        # The first row of each copy in its array, and the bytes of a row.
        row = (plan.copies.offset - widen(stored.offset, rank, 0))[:, :1].sum(axis=1)
        is_narrow = (plan.copies.shape != widen(stored.shape, rank, 1))[:, 1:].any(axis=1)
        for at in np.flatnonzero(is_lazy).tolist():
            lazy = cast(LazyPayload, source.arrays[int(rows[at])])
            if is_narrow[at]:
                lazy.step = 0
            start = int(row[at]) * lazy.row_nbytes
            copies_of.setdefault(int(rows[at]), []).append((start, number))
    turns = []
    for number, copies in sorted(copies_of.items()):
        cast(LazyPayload, source.arrays[number]).cuts = sorted(start for start, _ in copies)
        turns.append((number, list(dict.fromkeys(plan for _, plan in sorted(copies)))))
    for turn, numbers in [*turns, (-1, list(unopened))]:
        for number in numbers:
            if number in unopened:
                del unopened[number]
                [work] = _begin(tasks[number : number + 1], source, progress, begun)
                batches = opened.setdefault(number, {})
                for batch in work.batches or [[]]:
                    row = int(work.turn[work.units[batch[0]].first]) if batch else -1
                    batches.setdefault(row, []).append((work, batch))
                yield from batches.pop(-1, [])
            if turn >= 0:
                yield from opened[number].pop(turn)
            if not opened.get(number, True):
                del opened[number]


def _by_place(tasks: Sequence[FileTask]) -> list[FileTask]:
    """Sort tasks by the first place in the source that each needs."""
    places = []
    for number, task in enumerate(tasks):
        rows, entries = task.plan.copies.source, task.entries
        first = np.lexsort((entries.start[rows], entries.file[rows]))[:1]
        places.append(
            (entries.file[rows[first]].tolist(), entries.start[rows[first]].tolist(), number)
        )
    return [tasks[number] for *_, number in sorted(places)]


_Batch = tuple[FileWork, list[int]]
"""A file, and the numbers of units of it that are read at once."""


def _portions(batches: Iterable[_Batch]) -> Iterator[list[_Batch]]:
    """Yield neighbours together; a large one is by itself."""
    portion, total = list[_Batch](), 0
    for work, batch in batches:
        nbytes = sum(work.units[number].nbytes for number in batch)
        is_full = total + nbytes > _PORTION_NBYTES or len(portion) == _PORTION_FILES
        if portion and (is_full or portion[0][0].task.entries is not work.task.entries):
            yield portion
            portion, total = [], 0
        portion.append((work, batch))
        total += nbytes
    if portion:
        yield portion


def _in_turn(works: Iterator[FileWork], count: int) -> Iterator[_Batch]:
    under_way: deque[tuple[FileWork, Iterator[list[int]]]] = deque()
    while True:
        while len(under_way) < count and (new := next(works, None)) is not None:
            under_way.append((new, iter(new.batches or [[]])))
        if not under_way:
            return
        work, batches = under_way.popleft()
        batch = next(batches, None)
        if batch is not None:
            yield work, batch
            under_way.append((work, batches))


def _begin(
    tasks: Sequence[FileTask], source: Source, progress: Progress, begun: list[FileWork]
) -> Iterator[FileWork]:
    """Yield each task with its file open and its units planned, after adding it to ``begun``."""
    # A tiny file is written sooner than a thread begins; of many, no server may have to answer.
    most = max((task.nbytes for task in tasks), default=0)
    are_tiny = len(tasks) == 1 or (source.traits is None and most <= SMALL_NBYTES)
    for task in tasks:
        # Plan: what fills the targets, and the ranges that are written.
        moves, is_range = lower(task.plan)
        targets = task.plan.targets
        ordered, turn = np.zeros(len(targets), np.bool), np.full(len(targets), -1)
        has_lazy = isinstance(source, ArraySource) and bool(source.is_lazy.any())
        # Plain payloads are read in any order, but for lazy arrays.
        if has_lazy or not task.entries.plain.all():
            for parts in (task.plan.copies, moves):
                is_ordered = source.in_order(task.entries, parts.source)
                ordered[parts.target[is_ordered]] = True
                if has_lazy:
                    turn[parts.target[is_ordered]] = parts.source[is_ordered]
        units = list(plan_units(targets, task.start, is_range, task.writer.run_nbytes, turn >= 0))
        batches = list(batch_units(targets, units, is_range, turn))
        # Ordered payloads would be read elsewhere for each file, and an upload sends many
        # parts at once anyway.
        is_local, is_remote = task.storage.traits is None, source.traits is not None
        is_beside = len(tasks) > 1 and is_local and not is_remote and not ordered.any()
        # Threads: as many as there is memory for a batch and the block that is read.
        reading = Reading(Evidence(source, task.entries), in_threads=False)
        sums = (sum([units[number].nbytes for number in batch]) for batch in batches)
        largest = max(sums, default=0)
        is_quick = are_tiny and len(batches) <= 1 and largest <= SMALL_NBYTES
        threads = 0 if is_quick and is_local else reading.threads(largest + BLOCK_NBYTES)
        threads = _PORTIONS if is_remote else threads
        is_small = is_beside and not isinstance(source, ArraySource)
        # Open.
        work = FileWork(
            task,
            moves,
            is_range,
            ordered,
            turn,
            task.plan.bounds(),
            task.storage.create(task.name),
            reading,
            progress,
            units,
            batches,
            {},
            is_beside,
            threads,
            _WRITE_NBYTES if is_small else BLOCK_NBYTES,
        )
        begun.append(work)
        yield work


def _finish_file(work: FileWork) -> FileReport:
    """Write the frame, which holds the checksums of the units, and close the file."""
    task, targets = work.task, work.task.plan.targets
    try:
        checksums = join_sums(
            task.writer,
            targets,
            work.units,
            list(map(work.sums.__getitem__, range(len(work.units)))),
        )
        for start, frame in task.writer.frame(targets, task.start, checksums):
            work.file.write(start, frame)
    finally:
        # Closing forces the bytes to the disk, before anything names the file.
        work.file.close()
    return FileReport(checksums, work.reading.evidence.parts, task.nbytes)


def _write_batch(portion: list[_Batch]) -> tuple[list[_Batch], list[Sums] | None]:
    """Write units that are read at once, unless they are best read in order."""
    is_ordered = any(
        work.ordered[work.units[number].first : work.units[number].last].any()
        for work, batch in portion
        for number in (batch if work.ordered.any() else ())
    )
    return portion, None if is_ordered else _write_units(portion)


def _write_units(portion: list[_Batch]) -> list[Sums]:
    """Read several units at once, so that shared bytes are read once; take checksums and write."""
    units = [(work, work.units[number]) for work, batch in portion for number in batch]
    if len(units) == 1:
        block = _payload_in_memory(*units[0])
        if block is not None:
            return [_finish(*units[0], block)]
    # Plan: the units one after the other in one buffer.
    stops = np.cumsum([unit.nbytes for _, unit in units], dtype=np.int64).tolist()
    buffer = thread_buffer(stops[-1] if stops else 0)
    moves: list[MoveTable] = []
    wanted: list[RegionTable] = []
    for (work, unit), stop in zip(units, stops, strict=True):
        begin, targets = stop - unit.nbytes, work.task.plan.targets
        if not unit.share and unit.nbytes != int(targets.nbytes[unit.first : unit.last].sum()):
            np.frombuffer(buffer[begin:stop], np.uint8)[:] = 0  # the gaps between payloads
        moves.append(_moves_of(work, unit))
        if not work.is_range[unit.first : unit.last].all():
            wanted.append(_wanted(work, unit, begin))
    # Move: byte ranges and regions of all units together. The checksums of ranges are taken when
    # the units have theirs.
    if units:
        reading = units[0][0].reading
        source, entries = reading.evidence.source, reading.entries
        in_threads = source.traits is not None
        bare = Reading(Evidence(source, entries, takes_checksums=False), in_threads=in_threads)
        placed = [
            replace(each, target_start=each.target_start + (stop - unit.nbytes))
            for each, (_, unit), stop in zip(moves, units, stops, strict=True)
        ]
        read_moves(bare, join_columns(placed), {0: buffer})
        if wanted:
            reading = Reading(Evidence(source, entries), in_threads=in_threads)
            read_regions(reading, join_columns(wanted), {0: buffer})
            parts = reading.evidence.parts
            for work in {id(work): work for work, _ in units}.values():
                is_own = np.isin(parts.row, work.task.plan.copies.source)
                work.reading.evidence.add(parts.where(is_own))
    return [
        _finish(work, unit, buffer[stop - unit.nbytes : stop], each)
        for (work, unit), stop, each in zip(units, stops, moves, strict=True)
    ]


def _finish(work: FileWork, unit: Unit, block: memoryview, moves: MoveTable | None = None) -> Sums:
    """Take the checksums of a unit and of the moves that filled it, and write it."""
    task = work.task
    sums = take_checksums(task.writer, task.plan.targets, task.start, unit, block)
    if moves is not None and not isinstance(work.reading.evidence.source, ArraySource):
        columns = moves.source, moves.source_start, moves.nbytes
        if _is_shared(work, unit, moves):
            reads = ReadTable(*columns, np.array(sums.payload, np.int64))
            work.reading.evidence.add(reads)
        else:
            work.reading.evidence.take(*columns, block, moves.target_start.tolist())
    if unit.share:
        for number, start in enumerate((task.start[unit.first : unit.last] + unit.start).tolist()):
            work.file.write(start, block[number * unit.share : (number + 1) * unit.share])
    else:
        place = int(task.start[unit.first]) + unit.start
        for begin, end in block_ranges(0, unit.nbytes, work.write_nbytes):
            work.file.write(place + begin, block[begin:end])
    work.progress(unit.nbytes)
    return sums


def _payload_in_memory(work: FileWork, unit: Unit) -> memoryview | None:
    """The unit's bytes where they lie in an array as such, so that they need not be copied."""
    source = work.reading.evidence.source
    if not isinstance(source, ArraySource) or unit.last - unit.first > 1:
        return None
    moves = _moves(work, unit)
    if len(moves) != 1 or not work.is_range[unit.first]:
        return None
    payload = source.payload(int(work.task.entries.file[moves.source[0]]))
    if payload is None:
        return None
    begin = int(moves.source_start[0]) + unit.start
    return payload[begin : begin + unit.nbytes]


def _moves(work: FileWork, unit: Unit) -> MoveTable:
    first, last = np.searchsorted(work.moves.target, [unit.first, unit.last])
    return work.moves.take(slice(int(first), int(last)))


def _moves_of(work: FileWork, unit: Unit) -> MoveTable:
    """The moves cut to the unit, each with its place in the unit's block."""
    task, moves = work.task, _moves(work, unit)
    begin = int(task.start[unit.first]) + unit.start
    return moves.clip(task.start[moves.target] + moves.target_start - begin, unit.nbytes)


def _is_shared(work: FileWork, unit: Unit, moves: MoveTable) -> bool:
    """Return True if each checksum that is written is also the checksum of a move: each target's bytes
    in the unit come from one plain move, under the same kind of checksum."""
    # A target of many moves may have only one of them in this unit.
    task, crc = work.task, work.reading.evidence.source.crc
    some, count = slice(unit.first, unit.last), unit.last - unit.first
    targets = _moves(work, unit).target
    return (
        crc is not None
        and crc == task.writer.crc
        and len(moves) == count
        and (count == 1 or np.array_equal(targets, np.arange(unit.first, unit.last)))
        and bool(task.entries.plain[moves.source].all())
        and bool((ITEMSIZES[task.plan.targets.codes(some)] > 0).all())
    )


def _wanted(work: FileWork, unit: Unit, place: int) -> RegionTable:
    """The regions that fill targets in a unit, which is at byte ``place`` of buffer 0."""
    plan = work.task.plan
    copies = plan.copies.take(np.arange(work.copies[unit.first], work.copies[unit.last]))
    copies = copies.where(~work.is_range[copies.target])
    share = unit.share or (unit.nbytes if unit.last - unit.first == 1 else 0)
    if share and share < plan.targets.nbytes[unit.first]:
        itemsize = int(ITEMSIZES[plan.targets.codes(unit.first)])
        first, last = unit.start // itemsize, (unit.start + share) // itemsize
        copies = copies_in_range(plan.targets, copies, first, last)
    wanted = wanted_regions(work.task.entries, plan.targets, copies)
    # From the coordinates of each target's payload to the coordinates of the buffer.
    shift = unit.places(work.task.start)[wanted.target - unit.first] + place
    return replace(
        wanted, target=np.zeros_like(wanted.target), target_start=wanted.target_start + shift
    )


def read_checksums(task: FileTask) -> FileChecksums:
    """The checksums of a finished file, taken from its bytes; an error where it is too short."""
    targets, writer = task.plan.targets, task.writer
    units = list(plan_units(targets, task.start, np.ones(len(targets), np.bool), writer.run_nbytes))
    # In a rehearsal the file is not right, and is written again.
    with closing(task.storage.open(task.name)) as file, blindly():

        def read(unit: Unit) -> Sums:
            block = thread_buffer(unit.nbytes)
            file.read_into(int(task.start[unit.first]) + unit.start, block)
            return take_checksums(writer, targets, task.start, unit, block)

        return join_sums(writer, targets, units, run_all(read, units))


def shrink_task(task: FileTask) -> tuple[FileTask, Ints]:
    """Return a task that writes the same bytes with only its entries, and [k] their rows."""
    copies = task.plan.copies
    # Strings without elements need no copy; the first slice of their tensor has the payload.
    opaque = np.flatnonzero(ITEMSIZES[task.plan.targets.codes()] == 0)
    bare = first_sources(task.plan, np.setdiff1d(opaque, copies.target))
    rows = np.union1d(copies.source, bare)
    source = np.searchsorted(rows, copies.source)
    entries = shrink_entries(task.entries, rows)
    plan = Plan(
        _own_tensors(task.plan.sources.take(rows)),
        _own_tensors(task.plan.targets),
        CopyTable(source, copies.target, copies.offset, copies.shape),
    )
    return replace(task, plan=plan, entries=entries), rows


def shrink_entries(entries: EntryTable, rows: Ints) -> EntryTable:
    taken = entries.take(rows)
    runs = taken.runs
    if runs is not None:
        counts = -(-taken.slices.nbytes // runs.run_nbytes)
        values = runs.values[integers_of_ranges(runs.first, runs.first + counts)]
        runs = RunChecksums(runs.run_nbytes, values, np.cumsum(counts) - counts)
    return replace(taken, slices=_own_tensors(taken.slices), runs=runs)


def restore_rows(report: FileReport, rows: Ints) -> FileReport:
    return replace(report, parts=replace(report.parts, row=rows[report.parts.row]))


def _own_tensors(slices: SliceTable) -> SliceTable:
    used, tensor = np.unique(slices.tensor, return_inverse=True)
    return replace(slices, tensors=slices.tensors.take(used), tensor=tensor)


FileRunner = Callable[[Sequence[FileTask]], Generator[tuple[FileTask, FileReport]]]
"""Runs tasks and yields each with its report once its file is finished, in any order."""


@frozen
class WriteSummary:
    num_files: int  # Data files of the checkpoint
    reused: int  # of these, files that an earlier run had finished
    nbytes: int  # Payload bytes of the checkpoint


def file_tasks(
    plan: Plan,
    entries: EntryTable,
    assignment: Assignment,
    sink: Sink,
    storage: Storage,
    generation: str,
) -> list[FileTask]:
    # Targets and copies in the order of the files, so that each file's are a range of both.
    order, bounds = assignment.by_file()
    copies = plan.bounds()
    counts = np.diff(copies)[order]
    targets, moved = (
        plan.targets.take(order),
        plan.copies.take(integers_of_ranges(copies[order], copies[order + 1])),
    )
    number_in_file = np.arange(len(order)) - bounds[assignment.file[order]]
    moved = replace(moved, target=np.repeat(number_in_file, counts))
    ends = np.append(0, np.cumsum(counts))[bounds]
    # Once, and not for each file: a sink may make all names and all starts again each time that it
    # is asked.
    asides, start = sink.asides, sink.start[order]
    tasks = []
    for number in range(assignment.num_files):
        rows = slice(int(bounds[number]), int(bounds[number + 1]))
        part = moved.take(slice(int(ends[number]), int(ends[number + 1])))
        tasks.append(
            FileTask(
                f"{generation}-{number:05d}",
                asides[number],
                storage,
                sink.writer,
                Plan(plan.sources, targets.take(rows), part),
                entries,
                start[rows],
            )
        )
    return tasks


def write_checkpoint(
    tasks: list[FileTask],
    source: Source,
    sink: Sink,
    *,
    resume: bool,
    progress: Progress = lambda _: None,
    runner: FileRunner | None = None,
) -> WriteSummary:
    """Run the tasks, verify the reads, and commit. With ``resume`` finished files are kept."""
    begun: list[FileTask] = []
    is_written = False
    try:
        # Move.
        runner = runner or (lambda todo: run_each(todo, source, progress))
        reports = _write_files(tasks, runner, resume, progress, begun)
        # Check: a payload may be in several files, a part in each; only together can the parts be
        # compared.
        parts = [report.parts for report in reports if len(report.parts)]
        if parts:
            evidence = Evidence(source, tasks[0].entries)
            for reads in parts:
                evidence.add(reads)
            evidence.check()
        # Commit: from here on, only the sink can tell which files are in place.
        is_written = True
        sink.commit([report.checksums for report in reports])
    except BaseException as error:
        if is_written:
            sink.withdraw()
            _remove(tasks, JOURNAL)
        # An interrupted write can be taken up again if its files can be found again.
        is_interrupt = isinstance(error, WorkerLost) or not isinstance(error, Exception)
        if not is_written and not (resume and (is_interrupt or sink.is_in_place())):
            # Any file may hold bytes of a damaged source, so all are removed. After other errors,
            # only this run's files are.
            spoilt = tasks if isinstance(error, CheckpointError) else begun
            _remove(spoilt, "")
            _remove(spoilt, JOURNAL)
        raise
    _remove(tasks, JOURNAL)
    return WriteSummary(
        len(tasks), len(tasks) - len(begun), sum([report.nbytes for report in reports])
    )


def _write_files(
    tasks: Sequence[FileTask],
    runner: FileRunner,
    resume: bool,
    progress: Progress,
    begun: list[FileTask],
) -> list[FileReport]:
    """Write the files; with ``resume``, keep those that agree with their journals."""
    if not tasks:
        return []
    storage = tasks[0].storage
    # Take up: files that agree with their journals are not written again.
    reports: dict[str, FileReport] = {}
    if resume:
        there = set(storage.names())
        journaled = [task for task in tasks if task.name + JOURNAL in there]
        answers = as_answered(
            lambda task: (task.name, read_journal(task)),
            journaled,
            storage.traits,
            attrgetter("nbytes"),
        )
        reports = {name: report for name, report in answers if report is not None}
    begun += [task for task in tasks if task.name not in reports]
    for kept in reports.values():
        progress(kept.nbytes)

    def finish(done: tuple[FileTask, FileReport]) -> None:
        task, report = done
        task.storage.finish(task.name)
        if resume:
            write_journal(task, report)
            task.storage.finish(task.name + JOURNAL)
        reports[task.name] = report

    # Move.
    with closing(runner(begun)) as done:
        do_all(finish, done, storage.traits, lambda pair: pair[0].nbytes)
    return [reports[task.name] for task in tasks]


# The journal next to a finished file records what a second run needs to keep the file instead of
# writing it again.
#
# It is written after its file was forced to the disk, so a whole journal means a whole file. It is
# believed as far as it can be compared: the file must still be the file that was closed then (its
# stamp) and have the checksums of the journal (it is read once). Only the journal knows which parts
# of the source were read. They are compared with the source's checksums before anything is
# committed.

JOURNAL = ".done"  # Added to the name under which a file is written: the journal of a finished file

_MAX_NBYTES, _MAX_DEPTH = 1 << 30, 8
"""No journal is read that is larger; it would take a file of some million payloads or runs."""


def write_journal(task: FileTask, report: FileReport) -> None:
    content = {
        "id": task.id,
        "stamp": _stamp(task),
        "payload": report.checksums.payload.tolist(),
        "runs": report.checksums.runs.tolist(),
        "parts": report.parts.table().tolist(),
    }
    # A crash may cut the journal short. It is not valid JSON then, and counts as absent.
    with closing(task.storage.create(task.name + JOURNAL)) as file:
        file.write(0, json.dumps(content).encode())


def read_journal(task: FileTask) -> FileReport | None:
    """The report of an earlier run that finished this task's file, or None."""
    try:
        with closing(task.storage.open(task.name + JOURNAL)) as journal:
            is_small = journal.size <= _MAX_NBYTES
            content = parse_json(journal.read(0, journal.size), _MAX_DEPTH) if is_small else {}
        # The cheap comparisons come first, so that a file that was changed since is not read.
        if content["id"] != task.id or content["stamp"] != _stamp(task):
            return None
        payload, runs = np.array(content["payload"], np.int64), np.array(content["runs"], np.uint32)
        # The parts become indices into the columns of the entries, so their numbers are checked
        # before use.
        parts = ReadTable.of(np.array(content["parts"], np.int64))
        row, start, nbytes = parts.row, parts.start, parts.nbytes
        is_sound = (row >= 0) & (row < len(task.entries)) & (start >= 0) & (nbytes >= 0)
        is_sound &= parts.checksum >= NO_CHECKSUM
        # Not start + nbytes > size, which may overflow: a journal can hold any 64-bit number.
        if not is_sound.all() or (nbytes > task.entries.slices.nbytes[row] - start).any():
            return None
        checksums = read_checksums(task)
    except (CheckpointError, StorageError, ValueError, KeyError, TypeError, OverflowError):
        # A journal that is absent, cut or foreign tells nothing: the file is written again.
        return None
    if not (np.array_equal(payload, checksums.payload) and np.array_equal(runs, checksums.runs)):
        return None
    return FileReport(checksums, parts, task.nbytes)


def _remove(tasks: Sequence[FileTask], ending: str) -> None:
    """Remove files of tasks, or their journals by their ending, as far as the disk lets."""

    def remove(task: FileTask) -> None:
        with suppress(StorageError):
            task.storage.remove(task.name + ending)

    do_all(remove, tasks, tasks[0].storage.traits if tasks else None)


def _stamp(task: FileTask) -> str:
    file = task.storage.open(task.name)
    file.close()
    return file.stamp


# Rehearsing a write (``storage.rehearsal``): reads are made as the tasks plan them and give no
# bytes, and a file has its size and no bytes on the disk.


@entity
class RehearsedSource(WrappedSource):
    inner: Source = field()

    def _read(self, name: str, *given: Any, **options: Any) -> Any:
        method, rehearsal = getattr(self.inner, name), self.inner.traits.rehearsal  # type: ignore[union-attr]
        if not rehearsal.is_on:
            return method(*given, **options)
        try:
            with blindly():
                return method(*given, **options)
        except READ_ERRORS:  # nothing can be decoded without its bytes
            rehearsal.asked[1].append("decode")

    read_into = partialmethod(_read, "read_into")
    read_span = partialmethod(_read, "read_span")
    decode = partialmethod(_read, "decode")
    storage_errors = partialmethod(_read, "storage_errors")


@entity
class _BareWriter(FileWriter):
    run_nbytes: int = field()
    crc: None = None


class _Nowhere:
    """A storage, and a file in it, that keeps nothing."""

    traits = None

    def create(self, _name: str, _octets: object = None) -> Self:
        return self

    write = create

    def close(self) -> None:
        pass


NOWHERE: Any = _Nowhere()


def rehearse_each(
    tasks: Sequence[FileTask], source: Source
) -> Generator[tuple[FileTask, FileReport]]:
    """Yield tasks as ``run_each`` does."""
    if tasks and source.traits:
        evidence = Evidence(source, tasks[0].entries)
        bare = [
            replace(each, storage=NOWHERE, writer=_BareWriter(each.writer.run_nbytes))
            for each in tasks
        ]
        for _, report in run_each(bare, source):
            evidence.add(report.parts)
        evidence.check()
    for task in tasks:
        targets = task.plan.targets
        checksums = join_sums(task.writer, targets, [], [])
        frame = task.writer.frame(targets, task.start, checksums)
        stops = (task.start + targets.nbytes).tolist()
        with closing(task.storage.create(task.name)) as file:
            file.write(max([1, *stops, *(at + len(each) for at, each in frame)]) - 1, b"\0")
        yield task, FileReport(checksums, ReadTable.of([]), task.nbytes)
