"""One unit of an output file: some whole small payloads, or one block of a large one.

Gather the unit's bytes into a buffer, take the checksums while they are in the cache, write them at their place. A
unit whose bytes lie in an array as they are is written from there.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardvar.engine.arrays import ArraySource
from shardvar.engine.boxes import Wanted, boxes_in_range, read_boxes
from shardvar.engine.evidence import Evidence
from shardvar.engine.gather import gather, gather_arrays
from shardvar.engine.moves import MoveTable
from shardvar.engine.pool import thread_buffer
from shardvar.formats.protocol import FileWriter, Source
from shardvar.layout.dtypes import ITEMSIZES, Ints
from shardvar.planning.index import NO_CHECKSUM, EntryTable
from shardvar.planning.plan import Plan
from shardvar.planning.slices import SliceTable
from shardvar.storage.protocol import WritableFile


@dataclass(frozen=True, slots=True)
class Unit:
    """A range of the file that is written at once."""

    first: int
    """The first target in it."""
    last: int
    """The first target past it."""
    start: int
    """Where it begins in the payload of the first target; 0 unless it is a block of one large payload."""
    nbytes: int
    """Its size, from its first payload byte to its last."""


@dataclass(frozen=True, slots=True)
class FileWork:
    """What every unit of one file has at hand."""

    writer: FileWriter
    """How the file is framed and guarded."""
    plan: Plan
    """What fills it."""
    start: Ints
    """[k] where in the file each target's payload begins."""
    source: Source
    """Where payloads come from."""
    entries: EntryTable
    """The plan's sources, row by row."""
    moves: MoveTable
    """The runs of bytes that fill targets."""
    is_run: npt.NDArray[np.bool]
    """[k] whether moves fill a target; else its copies are boxes."""
    copies: Ints
    """[k + 1] where each target's copies begin in the plan's."""
    file: WritableFile
    """The file."""
    evidence: Evidence
    """What was read."""
    progress: Callable[[int], object]
    """Is told how many bytes were written."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Checksums of a unit."""

    payload: list[int]
    """Of each target's bytes in it."""
    runs: list[int]
    """Of each run of each target, in order."""


def write_unit(work: FileWork, unit: Unit) -> Sums:
    """Gather, take checksums, write."""
    block = _payload_in_memory(work, unit)
    if block is not None:
        return _finish(work, unit, block, None)
    (sums,) = write_units(work, [unit])
    return sums


def write_units(work: FileWork, units: Sequence[Unit]) -> list[Sums]:
    """Gather several units at once, so that what more than one of them needs is read once; then as ``write_unit``."""
    stops = np.cumsum([unit.nbytes for unit in units]).tolist()
    buffer = thread_buffer(stops[-1])
    blocks = [buffer[stop - unit.nbytes : stop] for unit, stop in zip(units, stops, strict=True)]
    moves: list[MoveTable | None] = []
    wanted: list[Wanted] = []
    for unit, block in zip(units, blocks, strict=True):
        if unit.nbytes != int(work.plan.targets.nbytes[unit.first : unit.last].sum()):
            np.frombuffer(block, np.uint8)[:] = 0  # what lies between payloads
        moves.append(_fill(work, unit, block))
        wanted.extend(_boxes(work, unit, block))
    read_boxes(work.source, work.entries, wanted, work.evidence)
    return [_finish(work, *each) for each in zip(units, blocks, moves, strict=True)]


def _finish(work: FileWork, unit: Unit, block: memoryview, moves: MoveTable | None) -> Sums:
    """Take the checksums of a unit's bytes, and write them."""
    sums = take_checksums(work.writer, work.plan.targets, work.start, unit, block)
    if moves is not None:
        # Each target's bytes are those of one piece of the source: its checksum is the piece's, and is known by now.
        columns = (moves.source.tolist(), moves.source_start.tolist(), moves.nbytes.tolist())
        work.evidence.add(list(zip(*columns, sums.payload, strict=True)))
    if unit.nbytes:
        work.file.write(int(work.start[unit.first]) + unit.start, block)
    work.progress(unit.nbytes)
    return sums


def _payload_in_memory(work: FileWork, unit: Unit) -> memoryview | None:
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


def _rows(work: FileWork, unit: Unit) -> Ints:
    """The moves that fill a unit's targets."""
    first, last = np.searchsorted(work.moves.target, [unit.first, unit.last])
    return np.arange(first, last)


def _fill(work: FileWork, unit: Unit, block: memoryview) -> MoveTable | None:
    """Fill the block but for boxes. Returns the moves where each fills one target, whose checksums the caller takes."""
    moves = work.moves.take(_rows(work, unit))
    base = int(work.start[unit.first]) + unit.start
    places = work.start[moves.target] + moves.target_start - base
    if unit.last == unit.first + 1:
        moves, places = _clip(moves, places, unit.nbytes)
    if isinstance(work.source, ArraySource):
        gather_arrays(work.source, work.entries.file[moves.source], moves, places, block)
        return None
    plain = work.entries.plain[moves.source]
    if plain.all() and _is_shared(work, unit, moves):
        gather(work.source, work.entries, moves, places.tolist(), block, None)
        return moves
    some = np.flatnonzero(plain)
    work.evidence.add(
        gather(work.source, work.entries, moves.take(some), places[some].tolist(), block, work.source.crc)
    )
    for move in np.flatnonzero(~plain).tolist():
        row, first, nbytes = int(moves.source[move]), int(moves.source_start[move]), int(moves.nbytes[move])
        place = int(places[move])
        work.source.read_into(work.entries, row, first, block[place : place + nbytes])
        work.evidence.add([(row, first, nbytes, NO_CHECKSUM)])
    return None


def _is_shared(work: FileWork, unit: Unit, moves: MoveTable) -> bool:
    """Whether each target's bytes in the unit are those of one move, and guarded by the same kind of checksum."""
    if work.source.crc is None or work.source.crc != work.writer.crc or len(moves) != unit.last - unit.first:
        return False
    sized = ITEMSIZES[work.plan.targets.codes()[unit.first : unit.last]] > 0
    each_one = moves.target == np.arange(unit.first, unit.last)
    return bool(sized.all() and each_one.all())


def _clip(moves: MoveTable, places: Ints, nbytes: int) -> tuple[MoveTable, Ints]:
    """The moves cut to the bytes ``[0, nbytes)`` of the unit that ``places`` count in."""
    start, stop = np.maximum(places, 0), np.minimum(places + moves.nbytes, nbytes)
    rows = np.flatnonzero(stop > start)
    skip = start - places
    clipped = MoveTable(moves.source, moves.source_start + skip, moves.target, moves.target_start + skip, stop - start)
    return clipped.take(rows), start[rows]


def _boxes(work: FileWork, unit: Unit, block: memoryview) -> Iterator[Wanted]:
    """What fills the targets in the block that moves do not fill."""
    base = int(work.start[unit.first]) + unit.start
    for target in (np.flatnonzero(~work.is_run[unit.first : unit.last]) + unit.first).tolist():
        yield from _boxes_of_target(work, unit, target, block, base)


def _boxes_of_target(work: FileWork, unit: Unit, target: int, block: memoryview, base: int) -> Iterator[Wanted]:
    """What fills a target's bytes in the block: the copies that meet them."""
    plan = work.plan
    itemsize = int(ITEMSIZES[plan.targets.codes()[target]])
    place = int(work.start[target]) - base
    begin, end = max(place, 0), min(place + int(plan.targets.nbytes[target]), unit.nbytes)
    first, last = (begin - place) // itemsize, (end - place) // itemsize
    rows = np.arange(work.copies[target], work.copies[target + 1])
    rank = plan.targets.shape.shape[1]  # the sources may have tensors of more axes, and the copies their columns
    shape, offset = plan.copies.shape[rows, :rank], plan.copies.offset[rows, :rank] - plan.targets.offset[target]
    strides = np.append(np.cumprod(plan.targets.shape[target, :0:-1])[::-1], 1)
    begins = (offset * strides).sum(axis=1)
    ends = ((offset + shape - 1) * strides).sum(axis=1)
    copies = [plan.copy(row) for row in rows[(begins < last) & (ends >= first)].tolist()]
    region = plan.targets.region(target)
    return boxes_in_range(work.entries, region, copies, begin - place, block[begin:end], itemsize)


def take_checksums(writer: FileWriter, targets: SliceTable, places: Ints, unit: Unit, block: memoryview) -> Sums:
    """The checksums that the writer keeps, of each target's bytes in the block, which holds those of the unit.

    ``places`` are where the targets' payloads begin in the file.
    """
    crc, run = writer.crc, writer.run_nbytes
    if crc is None:
        return Sums([0] * (unit.last - unit.first), [])
    payload: list[int] = []
    runs: list[int] = []
    starts = (places[unit.first : unit.last] - (int(places[unit.first]) + unit.start)).tolist()
    sizes = targets.nbytes[unit.first : unit.last].tolist()
    whole = (ITEMSIZES[targets.codes()[unit.first : unit.last]] == 0).tolist()
    for row, (start, nbytes) in enumerate(zip(starts, sizes, strict=True)):
        piece = block[max(start, 0) : min(start + nbytes, unit.nbytes)]
        if run:
            sums = [crc.compute(piece[at : at + run]) for at in range(0, len(piece), run)]
            runs.extend(sums)
            payload.append(_joined(crc.combine, sums, run, len(piece)))
        elif whole[row]:
            tensor = targets[unit.first + row]
            payload.append(writer.checksum_whole(tensor.dtype, tensor.region.size, piece))
        else:
            payload.append(crc.compute(piece))
    return Sums(payload, runs)


def _joined(combine: Callable[[int, int, int], int], sums: list[int], run: int, nbytes: int) -> int:
    """The checksum of ``nbytes`` from those of its runs."""
    crc = sums[0] if sums else 0
    for number, value in enumerate(sums[1:], start=1):
        crc = combine(crc, value, min(run, nbytes - number * run))
    return crc
