"""One output file: what goes into it, and how it is written.

A ``FileTask`` is a value. It holds the part of a plan that fills one file, and may be carried to another process:
running it twice writes the same bytes. Work within a file is cut into units, each a range of the file of a few MiB:
either some whole small payloads, or one block of a large one. A unit is gathered, its checksums are taken while its
bytes are in the cache, and it is written at its place; units are independent, so threads take them as they come.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardvar.engine.arrays import ArraySource
from shardvar.engine.boxes import fill_range
from shardvar.engine.evidence import BLOCK_NBYTES, Evidence, Piece
from shardvar.engine.gather import gather, gather_arrays
from shardvar.engine.moves import MoveTable, lower
from shardvar.engine.pool import run_all, thread_buffer
from shardvar.formats.protocol import FileChecksums, FileWriter, Source
from shardvar.layout.dtypes import ITEMSIZES
from shardvar.layout.region import Ints
from shardvar.planning.index import NO_CHECKSUM, EntryTable
from shardvar.planning.plan import Plan
from shardvar.storage.protocol import Storage, WritableFile


@dataclass(frozen=True, slots=True, eq=False)
class FileTask:
    """One output file: picklable, idempotent."""

    id: str
    """A digest of source, plan and writer: equal ids write equal bytes."""
    name: str
    """The name under which the file is written."""
    storage: Storage
    """The directory that it is written in."""
    writer: FileWriter
    """How it is framed and guarded."""
    plan: Plan
    """What fills it; the targets are the file's slices in order."""
    entries: EntryTable
    """The plan's sources, row by row."""
    start: Ints
    """[k] where in the file each target's payload begins."""


@dataclass(frozen=True, slots=True, eq=False)
class FileReport:
    """What became of a ``FileTask``."""

    checksums: FileChecksums
    """Of what was written."""
    parts: list[Piece]
    """What was read of payloads of which this file needs a part; whole ones have been compared."""
    nbytes: int
    """Payload bytes written."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """A range of the file that is written at once."""

    first: int
    """The first target in it."""
    last: int
    """The first target past it."""
    start: int
    """Where it begins in the payload of the first target; 0 unless it is a block of one large payload."""
    nbytes: int
    """Its size, from its first payload byte to its last."""


def run_task(task: FileTask, source: Source, progress: Callable[[int], object] = lambda nbytes: None) -> FileReport:
    """Write one file whole and sync it."""
    moves, is_run = lower(task.plan)
    evidence = Evidence(source, task.entries)
    file = task.storage.create(task.name)
    try:
        work = _FileWork(task, source, task.entries, moves, is_run, task.plan.bounds(), file, evidence, progress)
        ordered = _in_order(work)
        units = list(_units(task))
        threaded = [number for number, unit in enumerate(units) if not ordered[unit.first : unit.last].any()]
        results = dict(zip(threaded, run_all(lambda number: _write_unit(work, units[number]), threaded), strict=True))
        for number in sorted(set(range(len(units))).difference(threaded)):
            results[number] = _write_unit(work, units[number])
        checksums = _put_together(task, units, [results[number] for number in range(len(units))])
        for start, frame in task.writer.frame(task.plan.targets, task.start, checksums):
            file.write(start, frame)
    finally:
        file.close()
    return FileReport(checksums, evidence.parts, int(task.plan.targets.nbytes.sum()))


@dataclass(frozen=True, slots=True)
class _FileWork:
    """What every unit of one file has at hand."""

    task: FileTask
    source: Source
    entries: EntryTable
    moves: MoveTable
    is_run: npt.NDArray[np.bool]
    copies: Ints
    file: WritableFile
    evidence: Evidence
    progress: Callable[[int], object]


@dataclass(frozen=True, slots=True)
class _Sums:
    """Checksums of a unit: of each target's bytes in it, and of each run in order."""

    payload: list[int]
    runs: list[int]


def _units(task: FileTask) -> Iterator[_Unit]:
    nbytes, start = task.plan.targets.nbytes, task.start
    stop = start + nbytes
    row, count = 0, len(nbytes)
    while row < count:
        size = int(nbytes[row])
        if size > BLOCK_NBYTES and ITEMSIZES[task.plan.targets.codes()[row]]:
            for begin in range(0, size, BLOCK_NBYTES):
                yield _Unit(row, row + 1, begin, min(BLOCK_NBYTES, size - begin))
            row += 1
            continue
        last = max(row + 1, int(np.searchsorted(stop, start[row] + BLOCK_NBYTES, side="right")))
        yield _Unit(row, last, 0, int(stop[last - 1] - start[row]))
        row = last


def _in_order(work: _FileWork) -> npt.NDArray[np.bool]:
    """[k] True for targets filled from payloads that the source decodes, best read from beginning to end."""
    ordered = np.zeros(len(work.task.plan.targets), dtype=np.bool)
    copies = work.task.plan.copies
    ordered[copies.target[~work.entries.plain[copies.source]]] = True
    ordered[work.moves.target[~work.entries.plain[work.moves.source]]] = True
    return ordered


def _write_unit(work: _FileWork, unit: _Unit) -> _Sums:
    """Gather, take checksums, write."""
    task = work.task
    block = _payload_in_memory(work, unit)
    if block is None:
        block = thread_buffer(unit.nbytes)
        if unit.nbytes != int(task.plan.targets.nbytes[unit.first : unit.last].sum()):
            np.frombuffer(block, np.uint8)[:] = 0  # what lies between payloads
        _fill(work, unit, block)
    sums = _checksums(task, unit, block)
    task_start = int(task.start[unit.first]) if unit.first < len(task.start) else 0
    if unit.nbytes:
        work.file.write(task_start + unit.start, block)
    work.progress(unit.nbytes)
    return sums


def _payload_in_memory(work: _FileWork, unit: _Unit) -> memoryview | None:
    """The unit's bytes where they lie in an array as such, so that they need not be gathered."""
    if not isinstance(work.source, ArraySource) or unit.last - unit.first > 1:
        return None
    rows = _rows(work, unit)
    if len(rows) != 1 or not work.is_run[unit.first]:
        return None
    payload = work.source.payload(int(work.entries.file[work.moves.source[rows[0]]]))
    if payload is None:
        return None
    begin = int(work.moves.source_start[rows[0]]) + unit.start
    return payload[begin : begin + unit.nbytes]


def _rows(work: _FileWork, unit: _Unit) -> Ints:
    """The moves that fill a unit's targets."""
    first, last = np.searchsorted(work.moves.target, [unit.first, unit.last])
    return np.arange(first, last)


def _fill(work: _FileWork, unit: _Unit, block: memoryview) -> None:
    moves = work.moves.take(_rows(work, unit))
    base = int(work.task.start[unit.first]) + unit.start
    places = work.task.start[moves.target] + moves.target_start - base
    if unit.start or unit.last == unit.first + 1:
        moves, places = _clip(moves, places, unit.nbytes)
    if isinstance(work.source, ArraySource):
        gather_arrays(work.source, work.entries.file[moves.source], moves, places, block)
        moves = moves.take(np.zeros(0, dtype=np.int64))
    plain = work.entries.plain[moves.source]
    some = np.flatnonzero(plain)
    work.evidence.add(gather(work.source, work.entries, moves.take(some), places[some].tolist(), block))
    for move in np.flatnonzero(~plain).tolist():
        row, first, nbytes = int(moves.source[move]), int(moves.source_start[move]), int(moves.nbytes[move])
        place = int(places[move])
        work.source.read_into(work.entries, row, first, block[place : place + nbytes])
        work.evidence.add([(row, first, nbytes, NO_CHECKSUM)])
    for target in (np.flatnonzero(~work.is_run[unit.first : unit.last]) + unit.first).tolist():
        _fill_boxes(work, unit, target, block, base)


def _clip(moves: MoveTable, places: Ints, nbytes: int) -> tuple[MoveTable, Ints]:
    """The moves cut to the bytes ``[0, nbytes)`` of the unit that ``places`` count in."""
    start, stop = np.maximum(places, 0), np.minimum(places + moves.nbytes, nbytes)
    rows = np.flatnonzero(stop > start)
    skip = start - places
    clipped = MoveTable(moves.source, moves.source_start + skip, moves.target, moves.target_start + skip, stop - start)
    return clipped.take(rows), start[rows]


def _fill_boxes(work: _FileWork, unit: _Unit, target: int, block: memoryview, base: int) -> None:
    plan = work.task.plan
    copies = [plan.copy(row) for row in range(int(work.copies[target]), int(work.copies[target + 1]))]
    place = int(work.task.start[target]) - base
    nbytes = int(plan.targets.nbytes[target])
    begin, end = max(place, 0), min(place + nbytes, unit.nbytes)
    itemsize = int(ITEMSIZES[plan.targets.codes()[target]])
    fill_range(
        work.source,
        work.entries,
        plan.targets.region(target),
        copies,
        begin - place,
        block[begin:end],
        itemsize,
        work.evidence,
    )


def _checksums(task: FileTask, unit: _Unit, block: memoryview) -> _Sums:
    crc, run = task.writer.crc, task.writer.run_nbytes
    payload: list[int] = []
    runs: list[int] = []
    if crc is None:
        return _Sums([0] * (unit.last - unit.first), runs)
    base = int(task.start[unit.first]) + unit.start
    starts = (task.start[unit.first : unit.last] - base).tolist()
    sizes = task.plan.targets.nbytes[unit.first : unit.last].tolist()
    whole = ITEMSIZES[task.plan.targets.codes()[unit.first : unit.last]] == 0
    for row, (start, nbytes) in enumerate(zip(starts, sizes, strict=True)):
        stop = min(start + nbytes, unit.nbytes)
        piece = block[max(start, 0) : stop]
        if run:
            sums = [crc.compute(piece[at : at + run]) for at in range(0, len(piece), run)]
            runs.extend(sums)
            payload.append(_joined(crc.combine, sums, run, len(piece)))
        elif whole[row]:
            tensor = task.plan.targets[unit.first + row]
            payload.append(task.writer.checksum_whole(tensor.dtype, tensor.region.size, piece))
        else:
            payload.append(crc.compute(piece))
    return _Sums(payload, runs)


def _joined(combine: Callable[[int, int, int], int], sums: list[int], run: int, nbytes: int) -> int:
    """The checksum of ``nbytes`` from those of its runs."""
    crc = sums[0] if sums else 0
    for number, value in enumerate(sums[1:], start=1):
        crc = combine(crc, value, min(run, nbytes - number * run))
    return crc


def _put_together(task: FileTask, units: list[_Unit], sums: list[_Sums]) -> FileChecksums:
    """One checksum a payload, the blocks of large ones combined."""
    payload = np.zeros(len(task.plan.targets), dtype=np.int64)
    crc = task.writer.crc
    for unit, values in zip(units, sums, strict=True):
        if unit.start and crc is not None:
            payload[unit.first] = crc.combine(int(payload[unit.first]), values.payload[0], unit.nbytes)
        else:
            payload[unit.first : unit.last] = values.payload
    runs = np.array([value for values in sums for value in values.runs], dtype=np.uint32)
    return FileChecksums(payload, runs)
