"""Regions that are not one byte range of their payloads, such as columns of a matrix: how are they
read?

A region is read by the span from its first element to its last where that span is not much larger
than the region; otherwise the region is halved until it is. So memory is bounded for all shapes,
and a column of a wide matrix does not read the matrix at once.

Columns of a matrix lie interleaved in it: read one after the other, each would read all of it. So
regions that are wanted at the same time are read together:

    the regions of a payload              how they are read
    all within a small span               by that span, with its neighbours in the file
    several                               in one walk over the payload, block by block; each region
                                          takes its part
    one                                   in spans
    any, to be compared at once           by the units that checksums cover, side by side; by
                                          threads

Spans are parts of what a checksum covers, so most would be read again to be compared. Where nothing
else reads the other parts (``by_runs``), whole runs are read instead, or whole payloads, and each
once.

There may be a hundred thousand regions of a few bytes. So they are columns, one row a region, and
all are cut to a block at once; only the copying of the elements, which NumPy does, is one step for
each region and block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from shardvar.engine.evidence import Evidence
from shardvar.engine.moves import MoveTable, integers_of_ranges, strides_of
from shardvar.engine.pieces import Buffers, Reading, read_small, read_units
from shardvar.engine.pool import BLOCK_NBYTES, SMALL_NBYTES, WORDS, new_buffer, word_of
from shardvar.layout.dtypes import ITEMSIZES, Ints
from shardvar.layout.region import Region, intersect, regions_of_range
from shardvar.planning.index import EntryTable
from shardvar.planning.plan import CopyTable
from shardvar.planning.slices import SliceTable, widen

_DENSE = 4
"""A span at most this many times larger than the region in it is read in one go."""


@dataclass(frozen=True, slots=True, eq=False)
class RegionTable:
    """Columns of regions of payloads, and of the places that their elements go to."""

    row: Ints
    """[k] rows of the entries."""
    offset: Ints
    """[k, rank] the first indices, in the coordinates of the entry's slice."""
    shape: Ints
    """[k, rank] the extents."""
    strides: Ints
    """[k, rank] bytes from one index to the next in the payload."""
    itemsize: Ints
    """[k] the size of an element in bytes."""
    target: Ints
    """[k] the number of the buffer that the region goes to."""
    target_start: Ints
    """[k] the place of the region's first element in the buffer, in bytes."""
    target_strides: Ints
    """[k, rank] bytes from one index to the next in the buffer."""

    def __len__(self) -> int:
        return len(self.row)

    def columns(self) -> tuple[Ints, ...]:
        """The columns, in the order of the fields."""
        there = self.target, self.target_start, self.target_strides
        return self.row, self.offset, self.shape, self.strides, self.itemsize, *there

    def take(self, rows: Ints) -> Self:
        """The table of some of the rows, in the given order."""
        return type(self)(*(column[rows] for column in self.columns()))

    def starts(self) -> Ints:
        """[k] the first byte of each region in its payload."""
        return np.asarray((self.offset * self.strides).sum(axis=1))

    def stops(self) -> Ints:
        """[k] the first byte past each region in its payload."""
        return np.asarray(
            ((self.offset + self.shape - 1) * self.strides).sum(axis=1) + self.itemsize
        )

    def nbytes(self) -> Ints:
        """[k] the bytes of the elements of each region."""
        return np.asarray(np.prod(self.shape, axis=1) * self.itemsize)

    def meet(self, region: Region) -> Self:
        """The regions cut to another region, in the coordinates of the entry's slice, without
        regions that miss it."""
        offset, shape = intersect(
            self.offset, self.shape, np.array(region.offset), np.array(region.shape)
        )
        skip = ((offset - self.offset) * self.target_strides).sum(axis=1)
        cut = replace(self, offset=offset, shape=shape, target_start=self.target_start + skip)
        # Of a region that misses the other one, only the extents mean something. It is dropped
        # here.
        return cut.take(np.flatnonzero((shape > 0).all(axis=1)))

    def copy(self, block: memoryview, places: Ints, buffers: Buffers) -> None:
        """Copy each region out of a block of its payload, in which its first element lies at the
        byte of ``places``."""
        # In the order of their targets, since the parts of one row of a table come from many
        # payloads.
        order = np.argsort(self.target_start, kind="stable")
        self.take(order)._copy_in_order(block, places[order], buffers)

    def _copy_in_order(self, block: memoryview, places: Ints, buffers: Buffers) -> None:
        columns = (
            self.shape,
            self.strides,
            self.target_strides,
            self.target,
            self.target_start,
            self.itemsize,
            places,
        )
        first, counts, steps, into_steps = self._series(places)
        values = zip(
            *(column[first].tolist() for column in columns), counts, steps, into_steps, strict=True
        )
        for (
            shape,
            strides,
            into_strides,
            target,
            into,
            size,
            place,
            count,
            step,
            into_step,
        ) in values:
            # Elements that lie side by side on both sides are one: four float32 are a word of 16
            # bytes, and NumPy takes as long for a word as for a float.
            while shape and (shape[-1] == 1 or strides[-1] == into_strides[-1] == size):
                if size * shape[-1] not in WORDS:
                    break
                size *= shape.pop()
                del strides[-1], into_strides[-1]
            # The block has the payload's strides: each region is a view of it, holes and all.
            word, shape = word_of(size), (count, *shape)
            out = np.ndarray(shape, word, buffers[target], into, (into_step, *into_strides))
            out[...] = np.ndarray(shape, word, block, place, (step, *strides))

    def _series(self, places: Ints) -> tuple[Ints, list[int], list[int], list[int]]:
        """Series of regions of one shape at equal distances, such as columns: NumPy copies one in a
        single step.

        Returns the first row of each, their lengths, and the distances in the block and in the
        buffer. Regions at the places 0, 4, 8 and 20 of a block are a series of three with the
        distance 4, and one of one.
        """
        alike = np.column_stack(
            [self.shape, self.strides, self.target_strides, self.target, self.itemsize]
        )
        is_other = (alike[1:] != alike[:-1]).any(axis=1)
        steps, into_steps = np.diff(places), np.diff(self.target_start)
        is_other[1:] |= ~is_other[:-1] & (
            (steps[1:] != steps[:-1]) | (into_steps[1:] != into_steps[:-1])
        )
        first = np.append(0, np.flatnonzero(is_other) + 1)[: len(self)]
        counts = np.diff(np.append(first, len(self)))
        # The last region has no neighbour after it, and the distance in a series of one is never
        # used.
        return (
            first,
            counts.tolist(),
            *(np.append(each, 0)[first].tolist() for each in (steps, into_steps)),
        )


def join_regions(tables: Sequence[RegionTable]) -> RegionTable:
    """All rows of several tables of one rank, in order."""
    return RegionTable(
        *map(np.concatenate, zip(*(table.columns() for table in tables), strict=True))
    )


def wanted_regions(entries: EntryTable, targets: SliceTable, copies: CopyTable) -> RegionTable:
    """The regions that copies take from the payloads of entries, and their places in the payloads
    of the targets."""
    rank, sources = copies.shape.shape[1], entries.slices
    itemsize = ITEMSIZES[targets.codes()][copies.target]
    strides, target_strides = (
        strides_of(widen(slices.shape[rows], rank, 1)) * itemsize[:, None]
        for slices, rows in ((sources, copies.source), (targets, copies.target))
    )
    offset = copies.offset - widen(sources.offset[copies.source], rank, 0)
    start = ((copies.offset - widen(targets.offset[copies.target], rank, 0)) * target_strides).sum(
        axis=1
    )
    return RegionTable(
        copies.source,
        offset,
        copies.shape,
        strides,
        itemsize,
        copies.target,
        np.asarray(start),
        target_strides,
    )


def read_regions(
    reading: Reading, wanted: RegionTable, buffers: Buffers, *, by_runs: bool = False
) -> None:
    """Fill regions of buffers, reading what several of them want once. Memory: a block; with
    threads, a block of each.

    With ``by_runs``, what has checksums is read by the units that these cover, and so compared at
    once. Without it, parts are compared once all are read: right where together they are the whole
    payload.
    """
    if by_runs:
        plain = reading.entries.plain[wanted.row]
        _read_by_units(reading, wanted.take(np.flatnonzero(plain)), buffers)
        wanted = wanted.take(np.flatnonzero(~plain))
    if len(wanted):
        _read_by_spans(reading, wanted, buffers)


def _read_by_spans(reading: Reading, wanted: RegionTable, buffers: Buffers) -> None:
    """Fill regions by spans that hold most of them, or by a walk over a payload with several."""
    # Plan: the regions of each payload side by side, and the span of the payload that holds them.
    wanted = wanted.take(np.argsort(wanted.row, kind="stable"))
    first = np.flatnonzero(np.diff(wanted.row, prepend=-1))
    bounds = np.append(first, len(wanted))
    start = np.minimum.reduceat(wanted.starts(), first)
    stop = np.maximum.reduceat(wanted.stops(), first)
    is_small = reading.entries.plain[wanted.row[first]] & (stop - start <= SMALL_NBYTES)
    # Move: small spans with their neighbours, the payloads of other regions one after the other.
    rows = np.flatnonzero(is_small)
    # The target of these moves is the number of the payload: that is what ``receive`` asks for.
    spans = MoveTable(
        wanted.row[first[rows]], start[rows], rows, np.zeros_like(rows), (stop - start)[rows]
    )

    def receive(moves: MoveTable, span: memoryview, begins: list[int]) -> None:
        low, high = bounds[moves.target], bounds[moves.target + 1]
        mine = wanted.take(integers_of_ranges(low, high))
        mine.copy(
            span,
            mine.starts() + np.repeat(np.array(begins) - moves.source_start, high - low),
            buffers,
        )
        reading.progress(int(mine.nbytes().sum()))

    # Without its progress: of a span, the bytes between the regions are not wanted. The rows of a
    # table of many columns take a few bytes of each, so there are many spans. Wider gaps than in
    # other small reads are read along, but not gaps that take longer than the second read that they
    # save.
    compared = replace(reading, progress=lambda _nbytes: None)
    read_small(compared, spans, receive, gap_nbytes=SMALL_NBYTES // 4)
    payloads = wanted.row[first]
    reading.evidence.expect(payloads[~reading.entries.plain[payloads]])
    for number in np.flatnonzero(~is_small).tolist():
        group = wanted.take(np.arange(bounds[number], bounds[number + 1]))
        if len(group) == 1:
            _read_apart(reading.evidence, group, buffers)
        else:
            _walk(reading, group, buffers)
        reading.progress(int(group.nbytes().sum()))


def _read_by_units(reading: Reading, wanted: RegionTable, buffers: Buffers) -> None:
    """Fill regions of plain payloads by reads that are compared at once."""
    if not len(wanted):
        return
    # Plan: the spans of each payload that hold elements of regions, and the units that hold the
    # spans.
    wanted = wanted.take(np.argsort(wanted.row, kind="stable"))
    first = np.flatnonzero(np.diff(wanted.row, prepend=-1))
    bounds = np.append(first, len(wanted))
    low = np.minimum.reduceat(wanted.starts(), first)
    high = np.maximum.reduceat(wanted.stops(), first)
    spans = join_regions(list(dense_spans(wanted)))
    group = np.searchsorted(wanted.row[first], spans.row)
    units = read_units(reading.evidence, group, spans.row, spans.starts(), spans.stops())

    # Move: each span of the file fills what it holds of the regions.
    def receive(moves: MoveTable, span: memoryview, begins: list[int]) -> None:
        stretch, begin, end = _stretches(moves)
        groups, places = moves.target[stretch], np.array(begins)[stretch]
        # Groups that lie in the span as a whole: all of their regions are copied in one call. A
        # byte of the payload that is at `begin` of it is at `places` of the span.
        is_whole = (begin <= low[groups]) & (end >= high[groups])
        whole, counts = groups[is_whole], (bounds[groups + 1] - bounds[groups])[is_whole]
        mine = wanted.take(integers_of_ranges(bounds[whole], bounds[whole + 1]))
        mine.copy(span, mine.starts() + np.repeat((places - begin)[is_whole], counts), buffers)
        filled = int(mine.nbytes().sum())
        # The others reach out of it: their regions are cut to what the span holds.
        for number in np.flatnonzero(~is_whole).tolist():
            mine = wanted.take(np.arange(bounds[groups[number]], bounds[groups[number] + 1]))
            met = _met(mine, reading.entries, int(begin[number]), int(end[number]))
            met.copy(span, met.starts() + (places - begin)[number], buffers)
            filled += int(met.nbytes().sum())
        reading.progress(filled)

    compared = replace(reading, progress=lambda _nbytes: None)
    read_small(compared, units, receive, gap_nbytes=SMALL_NBYTES)


def dense_spans(wanted: RegionTable) -> Iterator[RegionTable]:
    """Cut regions until each is small from its first element to its last, or most of what lies
    between.

    A column of [1000, 1000] float64 spans 8 MB for 8 kB: it is halved along its first axis to 128
    spans of 7 or 8 rows.
    """
    while len(wanted):
        span, nbytes = wanted.stops() - wanted.starts(), wanted.nbytes()
        is_dense = (span <= SMALL_NBYTES) | (span <= _DENSE * nbytes)
        yield wanted.take(np.flatnonzero(is_dense))
        wanted = wanted.take(np.flatnonzero(~is_dense))
        # The first axis with more than one index has the widest stride, so this shortens the span
        # most.
        axis = np.argmax(wanted.shape > 1, axis=1)[:, None]
        before, offset, shape, rest = (
            column.copy() for column in (wanted.shape, wanted.offset, wanted.shape, wanted.shape)
        )
        half = np.take_along_axis(shape, axis, 1) // 2
        np.put_along_axis(before, axis, half, 1)
        np.put_along_axis(offset, axis, np.take_along_axis(offset, axis, 1) + half, 1)
        np.put_along_axis(rest, axis, np.take_along_axis(shape, axis, 1) - half, 1)
        wanted = join_regions(
            [replace(wanted, shape=before), replace(wanted, offset=offset, shape=rest)]
        )


def _stretches(moves: MoveTable) -> tuple[Ints, Ints, Ints]:
    """[n] the first of each run of moves that follow each other in one payload, [n] their first
    bytes, [n] the ends."""
    end = moves.source_start + moves.nbytes
    follows = (moves.target[1:] == moves.target[:-1]) & (moves.source_start[1:] == end[:-1])
    first = np.flatnonzero(np.append(True, ~follows))
    last = np.append(first[1:], len(moves)) - 1
    return first, moves.source_start[first], end[last]


def _met(wanted: RegionTable, entries: EntryTable, begin: int, end: int) -> RegionTable:
    """The regions of one payload, cut to the elements in its bytes ``[begin, end)``."""
    itemsize, rank = int(wanted.itemsize[0]), wanted.shape.shape[1]
    extents = widen(entries.slices.shape[wanted.row[:1]], rank, 1)[0]
    inside = regions_of_range(extents.tolist(), begin // itemsize, end // itemsize)
    return join_regions([wanted.meet(region) for region in inside])


def _read_apart(evidence: Evidence, wanted: RegionTable, buffers: Buffers) -> None:
    """Fill each region by reads of only this region."""
    for number in range(len(wanted)):
        row, offset, shape, strides, size, target, start, target_strides = (
            column[number].tolist() for column in wanted.columns()
        )
        out = np.ndarray(shape, word_of(size), buffers[target], start, target_strides)
        _read_region(evidence, row, Region(offset, shape), strides, out)


def _read_region(
    evidence: Evidence, row: int, region: Region, strides: Sequence[int], out: npt.NDArray[Any]
) -> None:
    """Fill ``out`` with one region of a payload, halved until each span is at most ``_DENSE`` times
    its part, or small. Halves follow in the payload's order: so a decoding source reads on."""
    stack = [(region, out)]
    while stack:
        region, out = stack.pop()
        first = sum(index * stride for index, stride in zip(region.offset, strides, strict=True))
        last = sum((stop - 1) * stride for stop, stride in zip(region.stop, strides, strict=True))
        nbytes = last - first + out.itemsize
        if nbytes > SMALL_NBYTES and nbytes > min(BLOCK_NBYTES, _DENSE * out.nbytes):
            stack.extend(reversed(_halves(region, out)))
            continue
        span = new_buffer(nbytes)
        evidence.read(row, first, span)
        out[...] = np.ndarray(region.shape, out.dtype, span, strides=strides)


def _walk(reading: Reading, wanted: RegionTable, buffers: Buffers) -> None:
    """Fill regions of one payload: mostly wanted blocks whole, of others only the regions."""
    evidence = reading.evidence
    row, rank = int(wanted.row[0]), wanted.shape.shape[1]
    extents = widen(evidence.entries.slices.shape[[row]], rank, 1)[0]
    for begin, end in _blocks(wanted, int(extents[1:].prod())):
        parts = _met(wanted, evidence.entries, begin, end)
        if _costs(parts, extents).sum() < end - begin:
            _read_apart(evidence, parts, buffers)
            continue
        block = reading.scratch(end - begin)
        evidence.read(row, begin, block)
        parts.copy(block, parts.starts() - begin, buffers)


def _blocks(wanted: RegionTable, stride: int) -> Iterator[tuple[int, int]]:
    """Ranges of bytes from the first of the regions to the last, of whole first indices where a
    block holds any.

    ``stride`` is the number of elements of one first index. For columns of [1000, 100] float32 and
    blocks of 64 kB, a block holds 160 rows (64,000 bytes), not 163.84.
    """
    itemsize = int(wanted.itemsize[0])
    first, stop = int(wanted.starts().min()), int(wanted.stops().max())
    step, stride = BLOCK_NBYTES // itemsize * itemsize, stride * itemsize
    # Then a block is one region, and blocks read by others meet these without a gap.
    if stride <= step:
        step -= step % stride
        first, stop = first - first % stride, -(-stop // stride) * stride
    for begin in range(first, stop, step):
        yield begin, min(begin + step, stop)


def _costs(parts: RegionTable, extents: Ints) -> Ints:
    """[k] about the bytes that ``_read_region`` reads: the span, or contiguous stretches where they
    lie far apart."""
    # A stretch takes in an axis if all axes after it are entire: columns [0:9, 2:4] of (9, 8) have
    # 9 stretches of 2.
    entire = np.logical_and.accumulate((parts.shape == extents)[:, ::-1], axis=1)[:, ::-1]
    entire = np.column_stack([entire[:, 1:], np.ones(len(parts), dtype=np.bool)])
    stretch = np.prod(np.where(entire, parts.shape, 1), axis=1)
    apart = (
        np.prod(parts.shape, axis=1) // stretch * np.maximum(stretch * parts.itemsize, SMALL_NBYTES)
    )
    return np.asarray(np.minimum(parts.stops() - parts.starts(), apart))


def _halves(region: Region, out: npt.NDArray[Any]) -> list[tuple[Region, npt.NDArray[Any]]]:
    """The halves of a region along the axis that ``dense_spans`` halves, with their places in
    ``out``: [0:1, 0:8, 3:4] gives [0:1, 0:4, 3:4] and [0:1, 4:8, 3:4]."""
    axis = next(axis for axis, extent in enumerate(region.shape) if extent > 1)
    middle = region.shape[axis] // 2
    halves = []
    for start, stop in ((0, middle), (middle, region.shape[axis])):
        offset, shape = list(region.offset), list(region.shape)
        offset[axis] += start
        shape[axis] = stop - start
        halves.append(
            (Region(offset, shape), out[(*(slice(None) for _ in range(axis)), slice(start, stop))])
        )
    return halves
