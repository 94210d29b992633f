"""One output file: what goes into it, and how it is written.

A ``FileTask`` is a value. It holds the part of a plan that fills one file, and may be carried to another process:
running it twice writes the same bytes. Work within a file is cut into units, each a range of the file of a few MiB:
either some whole small payloads, or one block of a large one. A unit is gathered, its checksums are taken while its
bytes are in the cache, and it is written at its place (``engine.units``); units are independent, so threads take them
as they come.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardvar.engine.evidence import BLOCK_NBYTES, Evidence, Piece
from shardvar.engine.moves import lower
from shardvar.engine.pool import run_all, thread_buffer
from shardvar.engine.units import FileWork, Sums, Unit, take_checksums, write_unit
from shardvar.formats.protocol import FileChecksums, FileWriter, Source
from shardvar.layout.dtypes import ITEMSIZES
from shardvar.layout.region import Ints
from shardvar.planning.index import EntryTable
from shardvar.planning.plan import Plan
from shardvar.storage.protocol import Storage


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


def run_task(task: FileTask, source: Source, progress: Callable[[int], object] = lambda nbytes: None) -> FileReport:
    """Write one file whole and sync it."""
    moves, is_run = lower(task.plan)
    evidence = Evidence(source, task.entries)
    file = task.storage.create(task.name)
    try:
        work = FileWork(
            task.writer,
            task.plan,
            task.start,
            source,
            task.entries,
            moves,
            is_run,
            task.plan.bounds(),
            file,
            evidence,
            progress,
        )
        ordered = _in_order(work)
        units = list(_units(task))
        threaded = [number for number, unit in enumerate(units) if not ordered[unit.first : unit.last].any()]
        results = dict(zip(threaded, run_all(lambda number: write_unit(work, units[number]), threaded), strict=True))
        for number in sorted(set(range(len(units))).difference(threaded)):
            results[number] = write_unit(work, units[number])
        checksums = _put_together(task, units, [results[number] for number in range(len(units))])
        for start, frame in task.writer.frame(task.plan.targets, task.start, checksums):
            file.write(start, frame)
    finally:
        file.close()
    return FileReport(checksums, evidence.parts, int(task.plan.targets.nbytes.sum()))


def read_checksums(task: FileTask) -> FileChecksums:
    """The checksums of a file that stands finished, taken from its bytes; an error where it is too short for them."""
    units = list(_units(task))
    file = task.storage.open(task.name)

    def read(unit: Unit) -> Sums:
        block = thread_buffer(unit.nbytes)
        file.read_into(int(task.start[unit.first]) + unit.start, block)
        return take_checksums(task.writer, task.plan.targets, task.start, unit, block)

    try:
        return _put_together(task, units, run_all(read, units))
    finally:
        file.close()


def _units(task: FileTask) -> Iterator[Unit]:
    nbytes, start = task.plan.targets.nbytes, task.start
    stop = start + nbytes
    row, count = 0, len(nbytes)
    while row < count:
        size = int(nbytes[row])
        if size > BLOCK_NBYTES and ITEMSIZES[task.plan.targets.codes()[row]]:
            for begin in range(0, size, BLOCK_NBYTES):
                yield Unit(row, row + 1, begin, min(BLOCK_NBYTES, size - begin))
            row += 1
            continue
        last = max(row + 1, int(np.searchsorted(stop, start[row] + BLOCK_NBYTES, side="right")))
        yield Unit(row, last, 0, int(stop[last - 1] - start[row]))
        row = last


def _in_order(work: FileWork) -> npt.NDArray[np.bool]:
    """[k] True for targets filled from payloads that the source decodes, best read from beginning to end."""
    ordered = np.zeros(len(work.plan.targets), dtype=np.bool)
    copies = work.plan.copies
    ordered[copies.target[~work.entries.plain[copies.source]]] = True
    ordered[work.moves.target[~work.entries.plain[work.moves.source]]] = True
    return ordered


def _put_together(task: FileTask, units: list[Unit], sums: list[Sums]) -> FileChecksums:
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
