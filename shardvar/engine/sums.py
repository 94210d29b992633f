"""Sums: the checksums of what is written, taken unit by unit while the bytes are in the cache, then
put together.

    what is taken of a unit                        what becomes of it
    whole payloads                                 the checksum of each, and of each of its runs
    a block of one payload: whole runs             the runs; the payload's is combined with the
                                                   blocks before it
    a band: a part of every target, cut at runs    combined with the bands before it, part by part, to runs and payloads

The checksum of ``a + b`` follows from both checksums and the length of ``b`` (``wire.crc``): no
byte is read twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shardvar.engine.pool import block_ranges
from shardvar.engine.units import Unit
from shardvar.formats.protocol import FileChecksums, FileWriter
from shardvar.layout.dtypes import ITEMSIZES, Ints
from shardvar.planning.slices import SliceTable
from shardvar.wire.crc import Checksum


@dataclass(frozen=True, slots=True)
class Sums:
    """Checksums of a unit."""

    payload: list[int]
    """Of each target's bytes in it; of a band, of each part of each target, cut where runs end."""
    runs: list[int]
    """Of each run of each target, in order; of a band none."""


def take_checksums(
    writer: FileWriter, targets: SliceTable, places: Ints, unit: Unit, block: memoryview
) -> Sums:
    """Return the checksums that the writer keeps, of each target's bytes in the block, which holds
    the unit's bytes.

    ``places`` are where the targets' payloads begin in the file.
    """
    crc, run = writer.crc, writer.run_nbytes
    if crc is None:
        return Sums([], [])
    starts = unit.places(places).tolist()
    if unit.share:
        parts = _parts(unit, run)
        return Sums(
            [crc.compute(block[at + begin : at + end]) for at in starts for begin, end in parts], []
        )
    payload: list[int] = []
    runs: list[int] = []
    sizes = targets.nbytes[unit.first : unit.last].tolist()
    whole = (ITEMSIZES[targets.codes()[unit.first : unit.last]] == 0).tolist()
    for row, (start, nbytes) in enumerate(zip(starts, sizes, strict=True)):
        mine = block[max(start, 0) : min(start + nbytes, unit.nbytes)]
        if run and len(mine) <= run:
            # The usual case of small tensors: one run at most, which is the payload.
            payload.append(crc.compute(mine))
            runs.extend(payload[-1:] if len(mine) else [])
        elif run:
            sums = [crc.compute(mine[at : at + run]) for at in range(0, len(mine), run)]
            runs.extend(sums)
            payload.append(_joined(crc.combine, sums, run, len(mine)))
        elif whole[row]:
            tensor = targets[unit.first + row]
            payload.append(writer.checksum_whole(tensor.dtype, tensor.region.size, mine))
        else:
            payload.append(crc.compute(mine))
    return Sums(payload, runs)


def _parts(unit: Unit, run: int) -> list[tuple[int, int]]:
    """The bytes of each target in a band, cut where runs end."""
    return list(block_ranges(unit.start, unit.start + unit.share, run or None))


def _joined(combine: Callable[[int, int, int], int], sums: list[int], run: int, nbytes: int) -> int:
    """The checksum of ``nbytes`` from the checksums of its runs."""
    crc = sums[0] if sums else 0
    for number, value in enumerate(sums[1:], start=1):
        crc = combine(crc, value, min(run, nbytes - number * run))
    return crc


def join_sums(
    writer: FileWriter, targets: SliceTable, units: Sequence[Unit], sums: Sequence[Sums]
) -> FileChecksums:
    """Return one checksum a payload, and one a run, from the checksums of a file's units."""
    crc, run = writer.crc, writer.run_nbytes
    # 9 bytes in runs of 4 have -(-9 // 4) = 3 runs.
    counts = -(-targets.nbytes // run) if run and crc is not None else np.zeros_like(targets.nbytes)
    joined = FileChecksums(
        np.zeros(len(targets), dtype=np.int64), np.zeros(int(counts.sum()), dtype=np.uint32)
    )
    first_run = np.cumsum(counts) - counts
    for unit, values in zip(units, sums, strict=True):
        if crc is None:
            continue
        # Units are sorted, so each block and band of a payload is combined with all before it.
        if unit.share:
            _join_band(crc, unit, values, joined, first_run, run)
            continue
        if unit.start:
            joined.payload[unit.first] = crc.combine(
                int(joined.payload[unit.first]), values.payload[0], unit.nbytes
            )
        else:
            joined.payload[unit.first : unit.last] = values.payload
        if run:
            at = int(first_run[unit.first]) + unit.start // run
            joined.runs[at : at + len(values.runs)] = values.runs
    return joined


def _join_band(
    crc: Checksum, unit: Unit, sums: Sums, joined: FileChecksums, first_run: Ints, run: int
) -> None:
    """Add the checksums of a band to the checksums of its payloads and runs; the bands before it
    are in them.

    In bands of 6 bytes and runs of 4, the second band has the parts [6, 8) and [8, 12): the first
    of them ends the run 1, the other one is the run 2.
    """
    rows = np.arange(unit.first, unit.last)
    parts = np.array(sums.payload, dtype=np.int64).reshape(len(rows), -1).T
    for (begin, end), values in zip(_parts(unit, run), parts, strict=True):
        # The checksum of no bytes is 0, so the first part is combined like the others.
        joined.payload[rows] = crc.combine_each(joined.payload[rows], values, end - begin)
        if run:
            at = first_run[rows] + begin // run
            joined.runs[at] = crc.combine_each(joined.runs[at], values, end - begin)
