"""Units: the ranges of an output file that are each read, summed and written at once.

    what the file holds                            its units
    small payloads, side by side                   as many whole ones as fit in a block
    a large payload                                one block of it each
    targets whose elements lie interleaved         bands: the same bytes of every target

Columns of a table are interleaved. What one of them needs of a row of the table lies between what
the others need, so they are read together, a batch at a time, and a batch should have all columns:
where it holds a fifth of them, whole, the table is read five times.

    table        | 0 1 | 2 3 | 4 5 |  row 0      band 0: rows 0 and 1 of the targets 0, 1 and 2
                 | 0 1 | 2 3 | 4 5 |  row 1
                 | 0 1 | 2 3 | 4 5 |  row 2      band 1: rows 2 and 3
                 | 0 1 | 2 3 | 4 5 |  row 3

A block, of one large target, can have its share of a batch while it holds a whole run, the bytes
that have a checksum by themselves. A band can be less: its checksums are put together later
(``take_checksums``, ``join_sums``).
"""

from collections.abc import Iterator, Sequence

import numpy as np

from shardvar.engine.pool import BLOCK_NBYTES, SMALL_NBYTES, block_ranges
from shardvar.formats.protocol import FileChecksums, FileWriter
from shardvar.layout.dtypes import ITEMSIZES, Bools, Ints
from shardvar.planning.slices import SliceTable, sum_by
from shardvar.records import frozen

BATCH_NBYTES = 7 * BLOCK_NBYTES
"""Units that are read together take so much; with the block that is being read, eight blocks a
worker."""

_BAND_NBYTES = 4096
"""A band has at least a page of each target: a write costs as much as copying a few pages."""

_BAND_COUNT = 8
"""A band has at least so many targets: below, the steps of Python cost more than the reading that
it saves."""


@frozen
class Unit:
    """A range of the file, or a band, that is written at once."""

    first: int  # the first target in it
    last: int  # the first target past it
    start: int  # its first byte in the first target's payload, for a band; 0 for whole payloads
    nbytes: int  # its size, from its first payload byte to its last
    share: int = 0  # of a band, the bytes of each target; 0 for one range of the file

    def places(self, start: Ints) -> Ints:
        """[last - first] Return the place of each target's payload, from the unit's first byte."""
        if self.share:
            return np.arange(self.last - self.first, dtype=np.int64) * self.share - self.start
        return start[self.first : self.last] - (int(start[self.first]) + self.start)


def plan_units(
    targets: SliceTable,
    start: Ints,
    is_range: Bools,
    run_nbytes: int,
    is_alone: Bools | None = None,
) -> Iterator[Unit]:
    nbytes, stop = targets.nbytes, start + targets.nbytes
    # Only what regions fill has blocks of other sizes, and bands.
    steps, bands, ends = np.full_like(nbytes, BLOCK_NBYTES), np.zeros_like(nbytes), nbytes
    if not is_range.all():
        # Blocks hold whole runs, which have checksums by themselves. A batch should have a block of
        # each fellow, the other targets of a tensor, since they need neighbouring bytes: 16 columns
        # of a table share a batch of 28 MiB, and their blocks are of 1.75 MiB.
        grain = run_nbytes or SMALL_NBYTES
        fellows = np.maximum(_of_fellows(targets, is_range, np.ones_like(nbytes)), 1)
        shares = np.clip(BATCH_NBYTES // fellows // grain * grain, grain, BLOCK_NBYTES)
        steps = np.where(is_range, BLOCK_NBYTES, shares)
        bands, ends = _bands(targets, is_range, steps)
    large = (nbytes > steps) & (ITEMSIZES[targets.codes()] > 0)
    if is_alone is None:
        is_alone = np.zeros_like(large)
    next_large = np.append(np.flatnonzero(large | (bands > 0) | is_alone), len(nbytes))
    row = 0
    while row < len(nbytes):
        if bands[row]:
            last, band = int(ends[row]), int(bands[row])
            # Several groups where a band of all of them does not fit in a batch.
            most = max(1, BATCH_NBYTES // band)
            for first in range(row, last, most):
                count = min(most, last - first)
                for begin, end in block_ranges(0, int(nbytes[row]), band):
                    share = end - begin
                    yield Unit(first, first + count, begin, share * count, share)
        elif large[row]:
            last = row + 1
            ranges = block_ranges(0, int(nbytes[row]), int(steps[row]))
            yield from (Unit(row, last, begin, end - begin) for begin, end in ranges)
        else:
            # Small payloads lie in the file in order, so the last that fits in this block is found
            # by bisection.
            last = max(row + 1, int(np.searchsorted(stop, start[row] + BLOCK_NBYTES, side="right")))
            last = min(last, int(next_large[np.searchsorted(next_large, row)]))
            last = row + 1 if is_alone[row] else last
            yield Unit(row, last, 0, int(stop[last - 1] - start[row]))
        row = last


def _bands(targets: SliceTable, is_range: Bools, steps: Ints) -> tuple[Ints, Ints]:
    """[k] the bytes of each target in a band, or 0, and [k] the first row past its group:
    neighbours of one shape, from the same rows of one tensor, whose bands have the same rows."""
    count, shape = len(targets), targets.shape
    # Rows. A row is one index of the first axis with several indices, and all of the axes after it.
    # In a target of shape (1, 256, 4) it is [0:1, i:i+1, 0:4]: 256 rows of 4 elements.
    axis = (shape > 1).argmax(axis=1)
    num_rows = np.maximum(shape[np.arange(count), axis], 1)
    row_nbytes = targets.nbytes // num_rows

    # Size. A batch has room for some rows of all fellows; a band has these rows of one target, and
    # at least a page. 16 columns of float32 have rows of 4 bytes, together 64: a batch of 28 MiB
    # has room for 458,752 rows, so a band has 1.75 MiB of each column.
    fellow_row_nbytes = np.maximum(_of_fellows(targets, is_range, row_nbytes), 1)
    rows_in_batch = np.maximum(BATCH_NBYTES // fellow_row_nbytes, 1)
    rows_in_page = _BAND_NBYTES // np.maximum(row_nbytes, 1)
    bands = np.maximum(rows_in_batch, rows_in_page) * row_nbytes

    # Use. Bands are for regions, and smaller than what would be read otherwise: a block, or the
    # whole target. Fellows that fit in one batch are read once as they are.
    fits_in_batch = _of_fellows(targets, is_range, targets.nbytes) <= BATCH_NBYTES
    is_banded = ~is_range & (bands < np.minimum(steps, targets.nbytes)) & ~fits_in_batch

    # Groups. One ends where the next target differs in what makes a group. Of the tensors a a a b b
    # the groups begin at 0 and 3, and have 3 and 2 targets: too few for bands.
    first_row = targets.offset[np.arange(count), axis]
    begins = np.ones(count, np.bool)
    begins[1:] = (
        (shape[1:] != shape[:-1]).any(axis=1)
        | (targets.tensor[1:] != targets.tensor[:-1])
        | (first_row[1:] != first_row[:-1])
        | (is_banded[1:] != is_banded[:-1])
    )
    first = np.flatnonzero(begins)
    sizes = np.diff(first, append=count)
    is_banded &= np.repeat(sizes >= _BAND_COUNT, sizes)
    return np.where(is_banded, bands, 0), np.repeat(first + sizes, sizes)


def _of_fellows(targets: SliceTable, is_range: Bools, values: Ints) -> Ints:
    """[k] the sum of the values of each target's fellows, itself included."""
    # The tensors are renumbered, because the table has the tensors of all files.
    _, tensor = np.unique(targets.tensor, return_inverse=True)
    return sum_by(tensor, np.where(is_range, 0, values), len(tensor))[tensor]


def batch_units(
    targets: SliceTable, units: Sequence[Unit], is_range: Bools, turn: Ints
) -> Iterator[list[int]]:
    """Yield the units to read at once: one by one, or with regions by place and ``turn``."""
    has_regions = []
    for number, unit in enumerate(units):
        if is_range[unit.first : unit.last].all():
            yield [number]
        else:
            has_regions.append(number)
    batch: list[int] = []
    nbytes, last = 0, -1
    for number in sorted(has_regions, key=lambda number: place_of_unit(targets, units[number])):
        before, last = last, int(turn[units[number].first])
        if batch and (nbytes + units[number].nbytes > BATCH_NBYTES or last != before):
            yield batch
            batch, nbytes = [], 0
        batch.append(number)
        nbytes += units[number].nbytes
    if batch:
        yield batch


def place_of_unit(targets: SliceTable, unit: Unit) -> tuple[int, int]:
    """Return the tensor that a unit begins in, and its first element there in C order: element 5 of
    a slice [0:4, 6:9] of a tensor of shape (4, 10) is (1, 8) of the tensor, element 18."""
    region, tensor = targets.region(unit.first), int(targets.tensor[unit.first])
    element, place, stride = unit.start // max(int(ITEMSIZES[targets.codes(unit.first)]), 1), 0, 1
    axes = zip(targets.tensors.shape(tensor), region.offset, region.shape, strict=True)
    # From the last axis to the first: the remainder is the index in the slice, the quotient goes to
    # the next axis. An axis without indices counts as one, so that an empty slice has a place too.
    for length, offset, extent in reversed(list(axes)):
        place += (offset + element % max(extent, 1)) * stride
        element //= max(extent, 1)
        stride *= length
    return tensor, place


# Sums: the checksums of written bytes, taken unit by unit while the bytes are in the cache, then
# put together. The checksum of ``a + b`` follows from both checksums and the length of ``b``
# (``wire.crc``): no byte is read twice.
#
#     taken of a unit                               becomes
#     whole payloads                                the checksum of each, and of each of its runs
#     a block of one payload: whole runs            the runs; the payload's is combined with the
#                                                   blocks before it
#     a band: a part of every target, cut at runs   combined with the bands before it, part by part,
#                                                   to runs and payloads


@frozen
class Sums:
    payload: list[int]
    """Of each target's bytes in it; of a band, of each part of each target, cut where runs end."""
    runs: list[int]  # of each run of each target, in order; of a band none


def take_checksums(
    writer: FileWriter, targets: SliceTable, places: Ints, unit: Unit, block: memoryview
) -> Sums:
    """Return the checksums that the writer keeps, of each target's bytes in the unit's block."""
    crc, run = writer.crc, writer.run_nbytes
    if crc is None:
        return Sums([], [])
    starts = unit.places(places).tolist()
    if unit.share:
        sums = [
            crc.compute(block[at + begin : at + end])
            for at in starts
            for begin, end in _parts(unit, run)
        ]
        return Sums(sums, [])
    payload: list[int] = []
    runs: list[int] = []
    sizes = targets.nbytes[unit.first : unit.last].tolist()
    whole = (ITEMSIZES[targets.codes(slice(unit.first, unit.last))] == 0).tolist()
    for row, (start, nbytes) in enumerate(zip(starts, sizes, strict=True)):
        octets = block[max(start, 0) : min(start + nbytes, unit.nbytes)]
        if run:
            sums = [crc.compute(octets[at : at + run]) for at in range(0, len(octets), run)]
            runs.extend(sums)
            joined, *others = sums or [0]
            for number, value in enumerate(others, 1):
                joined = crc.combine(joined, value, min(run, len(octets) - number * run))
            payload.append(joined)
        elif whole[row]:
            tensor = targets[unit.first + row]
            payload.append(writer.checksum_whole(tensor.dtype, tensor.region.size, octets))
        else:
            payload.append(crc.compute(octets))
    return Sums(payload, runs)


def _parts(unit: Unit, run: int) -> list[tuple[int, int]]:
    """The bytes of each target in a band, cut where runs end."""
    return list(block_ranges(unit.start, unit.start + unit.share, run or None))


def join_sums(
    writer: FileWriter, targets: SliceTable, units: Sequence[Unit], sums: Sequence[Sums]
) -> FileChecksums:
    """Return one checksum a payload, and one a run, from the checksums of a file's units."""
    crc, run = writer.crc, writer.run_nbytes
    # 9 bytes in runs of 4 have -(-9 // 4) = 3 runs.
    counts = -(-targets.nbytes // run) if run and crc is not None else np.zeros_like(targets.nbytes)
    joined = FileChecksums(np.zeros(len(targets), np.int64), np.zeros(int(counts.sum()), np.uint32))
    first_run = np.cumsum(counts) - counts
    for unit, values in zip(units, sums, strict=True):
        if crc is None:
            continue
        # Units are sorted, so each block and band of a payload is combined with all before it.
        if unit.share:
            # In bands of 6 bytes and runs of 4, the second band has the parts [6, 8) and [8, 12):
            # the first of them ends the run 1, the other one is the run 2.
            rows = np.arange(unit.first, unit.last)
            parts = np.array(values.payload, np.int64).reshape(len(rows), -1).T
            for (begin, end), part in zip(_parts(unit, run), parts, strict=True):
                # The checksum of no bytes is 0, so the first part is combined like the others.
                joined.payload[rows] = crc.combine_each(joined.payload[rows], part, end - begin)
                if run:
                    places = first_run[rows] + begin // run
                    joined.runs[places] = crc.combine_each(joined.runs[places], part, end - begin)
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
