"""One output file: what goes into it, and how it is written.

A ``FileTask`` is a value. It holds the part of a plan that fills one file, and may be carried to another process:
running it twice writes the same bytes. Work within a file is cut into units, each a range of the file of a few MiB:
either some whole small payloads, or one block of a large one. A unit is gathered, its checksums are taken while its
bytes are in the cache, and it is written at its place (``engine.units``); units are independent, so threads take them
as they come. Units that boxes fill need what others need, too: they are gathered a batch at a time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardvar.engine.evidence import BLOCK_NBYTES, Evidence, Piece
from shardvar.engine.moves import lower
from shardvar.engine.pool import run_all, thread_buffer
from shardvar.engine.units import FileWork, Sums, Unit, take_checksums, write_unit, write_units
from shardvar.formats.protocol import FileChecksums, FileWriter, Source
from shardvar.layout.dtypes import ITEMSIZES, Ints
from shardvar.planning.index import EntryTable
from shardvar.planning.plan import Plan
from shardvar.planning.slices import SliceTable
from shardvar.storage.protocol import Storage

BATCH_NBYTES = 3 * BLOCK_NBYTES
"""Units gathered at once take so much together; with the block that is read meanwhile, four blocks a worker."""

_GRAIN_NBYTES = 64 << 10
"""A multiple of every item size; smaller writes would cost more than they save in reading."""


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
        units = list(_units(task, is_run))
        checksums = _put_together(task, units, _write_all(work, units))
        for start, frame in task.writer.frame(task.plan.targets, task.start, checksums):
            file.write(start, frame)
    finally:
        file.close()
    return FileReport(checksums, evidence.parts, int(task.plan.targets.nbytes.sum()))


def _write_all(work: FileWork, units: list[Unit]) -> list[Sums]:
    """Write all units: by threads, but for those that are best read in order."""
    ordered = _in_order(work)
    results: dict[int, Sums] = {}

    def write(numbers: list[int]) -> None:
        if len(numbers) == 1:
            results[numbers[0]] = write_unit(work, units[numbers[0]])
        else:
            results.update(zip(numbers, write_units(work, [units[number] for number in numbers]), strict=True))

    batches = list(_batches(work, units))
    slow = [any(ordered[units[number].first : units[number].last].any() for number in batch) for batch in batches]
    run_all(write, [batch for batch, is_slow in zip(batches, slow, strict=True) if not is_slow])
    for batch in (batch for batch, is_slow in zip(batches, slow, strict=True) if is_slow):
        write(batch)
    return [results[number] for number in range(len(units))]


def _batches(work: FileWork, units: list[Unit]) -> Iterator[list[int]]:
    """Numbers of units to be gathered at once: one by one, but for those with boxes, in the order of their tensors."""
    boxed = [number for number, unit in enumerate(units) if not work.is_run[unit.first : unit.last].all()]
    yield from ([number] for number in sorted(set(range(len(units))).difference(boxed)))
    batch: list[int] = []
    nbytes = 0
    for number in sorted(boxed, key=lambda number: _place(work.plan.targets, units[number])):
        if batch and nbytes + units[number].nbytes > BATCH_NBYTES:
            yield batch
            batch, nbytes = [], 0
        batch.append(number)
        nbytes += units[number].nbytes
    if batch:
        yield batch


def _place(targets: SliceTable, unit: Unit) -> tuple[int, int]:
    """The tensor that a unit begins in, and which of its elements it begins with, so that neighbours come together."""
    region, tensor = targets.region(unit.first), int(targets.tensor[unit.first])
    element, place, stride = unit.start // max(int(ITEMSIZES[targets.codes()[unit.first]]), 1), 0, 1
    axes = zip(targets.tensors.shape(tensor), region.offset, region.shape, strict=True)
    for length, offset, extent in reversed(list(axes)):
        place += (offset + element % max(extent, 1)) * stride
        element //= max(extent, 1)
        stride *= length
    return tensor, place


def read_checksums(task: FileTask) -> FileChecksums:
    """The checksums of a file that stands finished, taken from its bytes; an error where it is too short for them."""
    units = list(_units(task, np.ones(len(task.start), dtype=np.bool)))
    file = task.storage.open(task.name)

    def read(unit: Unit) -> Sums:
        block = thread_buffer(unit.nbytes)
        file.read_into(int(task.start[unit.first]) + unit.start, block)
        return take_checksums(task.writer, task.plan.targets, task.start, unit, block)

    try:
        return _put_together(task, units, run_all(read, units))
    finally:
        file.close()


def _units(task: FileTask, is_run: npt.NDArray[np.bool]) -> Iterator[Unit]:
    """The ranges of the file, none with more than one of the payloads that are written block by block."""
    nbytes, start = task.plan.targets.nbytes, task.start
    stop = start + nbytes
    steps = _steps(task, is_run)
    large = (nbytes > steps) & (ITEMSIZES[task.plan.targets.codes()] > 0)
    next_large = np.append(np.flatnonzero(large), len(nbytes))
    row, count = 0, len(nbytes)
    while row < count:
        if large[row]:
            size, step = int(nbytes[row]), int(steps[row])
            for begin in range(0, size, step):
                yield Unit(row, row + 1, begin, min(step, size - begin))
            row += 1
            continue
        last = max(row + 1, int(np.searchsorted(stop, start[row] + BLOCK_NBYTES, side="right")))
        last = min(last, int(next_large[np.searchsorted(next_large, row)]))
        yield Unit(row, last, 0, int(stop[last - 1] - start[row]))
        row = last


def _steps(task: FileTask, is_run: npt.NDArray[np.bool]) -> Ints:
    """[k] the bytes of a block of each payload: where boxes fill it, so few that a batch has some of all its fellows.

    Blocks hold whole runs, which have checksums of their own.
    """
    tensor = task.plan.targets.tensor
    fellows = np.bincount(tensor[~is_run], minlength=len(task.plan.targets.tensors))[tensor]
    grain = task.writer.run_nbytes or _GRAIN_NBYTES
    share = np.clip(BATCH_NBYTES // np.maximum(fellows, 1) // grain * grain, grain, BLOCK_NBYTES)
    return np.where(is_run, BLOCK_NBYTES, share)


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
