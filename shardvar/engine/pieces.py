"""Pieces: which reads bring the bytes of payloads to the places where they are wanted?

Load, save, reshard, partial reads, diff, stats and verify ask this question, and differ in what they do with the bytes:
put them into arrays, into a block that is written, hand the block out, or drop it once it was compared. The law of each
read below is that of the plain path: read the whole payload, then cut.

    what is wanted                              how it is read
    small payloads and parts, side by side      together, in one span of their file; by threads          read_small
    long byte ranges                            block by block, straight to their places; by threads     read_moves
    a part of a payload with run checksums      the runs that hold it, each compared                     read_moves
    payloads that the source decodes            block by block from the beginning, in one thread         read_moves
    regions that are not one byte range         in spans; interleaved ones in one walk over the payload  read_regions
    arrays in memory                            copied; memory keeps no checksums                        read_moves

Every read goes through ``Evidence``, which compares it. To add a way to read, add a function here and a row above, and
a property to the tests that holds it to the plain path.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

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
    word_of,
)
from shardvar.layout.dtypes import Ints
from shardvar.layout.region import Region, regions_of_range
from shardvar.planning.index import EntryTable
from shardvar.planning.plan import Copy

_GAP_NBYTES = 4096
"""Bytes between two small ranges that are read along rather than skipped by a second read."""

_DENSE = 4
"""A span at most this many times larger than the region in it is read in one go."""

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


@dataclass(frozen=True, slots=True, eq=False)
class WantedRegion:
    """A region of one payload, and the array that it fills."""

    row: int
    """The row of the entry."""
    region: Region
    """The region, in the coordinates of the entry's slice."""
    out: npt.NDArray[Any]
    """[*region.shape] words of the payload's item size; any strides."""


# Byte ranges.


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
    _read_long(reading, moves.where(~plain), buffers, run_in_order)


def read_small(reading: Reading, moves: MoveTable, receive: Receiver | None) -> None:
    """Read small plain ranges, neighbours in a file together, and hand each span over."""
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

    reading.run(read, spans(file, start, moves.nbytes))


def spans(file: Ints, start: Ints, nbytes: Ints) -> Iterator[tuple[int, int]]:
    """Ranges of rows, sorted by file and place, that one read of at most a block can bring.

    A row larger than a block is a range by itself, and so is one that overlaps its neighbour. With a gap of 4 bytes and
    blocks of 64, ranges at [0, 8), [10, 20), [40, 50) and [50, 60) of a file are the rows (0, 2) and (2, 4).
    """
    stop = start + nbytes
    apart = np.flatnonzero((file[1:] != file[:-1]) | (start[1:] - stop[:-1] > _GAP_NBYTES) | (start[1:] < stop[:-1]))
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


# Regions that are not a single byte range, such as columns of a matrix.
#
# A region is read by the span from its first element to its last where that span is not much larger than the region;
# otherwise the region is halved until it is. So memory is bounded whatever the shapes are, and a column of a wide
# matrix does not read the matrix at once.
#
# Columns of a matrix lie interleaved in it: read one after the other, each would read all of it. So regions that are
# wanted at the same time are read in one walk over the payload, block by block, and each block gives every region its
# part.


def read_regions(reading: Reading, wanted: Iterable[WantedRegion]) -> None:
    """Fill the arrays of regions that are ordered by row, reading what several of them want once. Memory: a block."""
    for row, group in groupby(wanted, key=lambda each: each.row):
        regions = list(group)
        if len(regions) == 1:
            _read_region(reading.evidence, row, regions[0].region, regions[0].out)
        else:
            _walk(reading.evidence, row, regions)
        for each in regions:
            reading.progress(each.out.nbytes)


def wanted_regions(entries: EntryTable, target: Region, copies: Iterable[Copy], out: Any) -> Iterator[WantedRegion]:
    """The regions that fill ``out`` [*target.shape], words of the item size: one for each copy."""
    for copy in copies:
        inside = copy.region.relative_to(entries.slices.region(copy.source))
        yield WantedRegion(copy.source, inside, out[copy.region.relative_to(target).slices])


def wanted_in_range(
    entries: EntryTable, target: Region, copies: Sequence[Copy], start: int, buffer: memoryview, itemsize: int
) -> Iterator[WantedRegion]:
    """The regions that fill ``buffer`` with the bytes of a target's payload from byte ``start`` on."""
    dtype = word_of(itemsize)
    position = 0
    for inner in regions_of_range(target.shape, start // itemsize, (start + len(buffer)) // itemsize):
        out = np.ndarray(inner.shape, dtype, buffer, position)
        position += out.nbytes
        absolute = Region((a + b for a, b in zip(inner.offset, target.offset, strict=True)), inner.shape)
        met = ((copy, copy.region.intersect(absolute)) for copy in copies)
        parts = (Copy(copy.source, copy.target, common) for copy, common in met if common is not None)
        yield from wanted_regions(entries, absolute, parts, out)


def _read_region(evidence: Evidence, row: int, region: Region, out: npt.NDArray[Any]) -> None:
    """Fill ``out`` with one region of a payload, in as few spans as are dense enough.

    A column of [1000, 1000] float64 spans 8 MB for 8 kB: it is halved to 8 spans of 125 rows... until a span is at most
    ``_DENSE`` times its part, or small. Halves follow in the payload's order, so that a decoding source reads on.
    """
    strides, itemsize = _strides(evidence.entries.slices.region(row).shape), out.dtype.itemsize
    stack = [(region, out)]
    while stack:
        region, out = stack.pop()
        first = _dot(region.offset, strides)
        nbytes = (_last(region, strides) - first + 1) * itemsize
        if nbytes > SMALL_NBYTES and nbytes > min(BLOCK_NBYTES, _DENSE * region.size * itemsize):
            stack.extend(reversed(_halves(region, out)))
            continue
        span = new_buffer(nbytes)
        evidence.read(row, first * itemsize, span)
        # The span has the payload's strides: the region is a view of it, holes and all.
        out[...] = np.ndarray(region.shape, out.dtype, span, strides=[stride * itemsize for stride in strides])


def _walk(evidence: Evidence, row: int, wanted: list[WantedRegion]) -> None:
    """Fill regions of one payload: blocks of which most is wanted are read whole, of the others the regions alone."""
    shape, itemsize = evidence.entries.slices.region(row).shape, wanted[0].out.dtype.itemsize
    strides = _strides(shape)
    for begin, end in _blocks(strides, [each.region for each in wanted], itemsize):
        parts = [
            (at, common, each.out[common.relative_to(each.region).slices])
            for at in regions_of_range(shape, begin, end)
            for each in wanted
            if (common := each.region.intersect(at)) is not None
        ]
        if sum(_cost(common, strides, itemsize) for _, common, _ in parts) < (end - begin) * itemsize:
            for _, common, out in parts:
                _read_region(evidence, row, common, out)
            continue
        block = new_buffer((end - begin) * itemsize)
        evidence.read(row, begin * itemsize, block)
        for at, common, out in parts:
            stored = np.ndarray(at.shape, out.dtype, block, (_dot(at.offset, strides) - begin) * itemsize)
            out[...] = stored[common.relative_to(at).slices]


def _blocks(strides: Sequence[int], regions: Sequence[Region], itemsize: int) -> Iterator[tuple[int, int]]:
    """Ranges of elements from the first of the regions to the last, of whole first indices where a block holds any.

    For columns of [1000, 100] float32 and blocks of 64 kB, a block holds 160 rows (64,000 bytes), not 163.84.
    """
    first = min(_dot(region.offset, strides) for region in regions)
    stop = max(_last(region, strides) for region in regions) + 1
    step = BLOCK_NBYTES // itemsize
    if strides[0] <= step:  # then a block is one region, and blocks read by others meet these without a gap
        step -= step % strides[0]
        first, stop = first - first % strides[0], -(-stop // strides[0]) * strides[0]
    for begin in range(first, stop, step):
        yield begin, min(begin + step, stop)


def _cost(region: Region, strides: Sequence[int], itemsize: int) -> int:
    """About the bytes that ``_read_region`` reads: its span, or its contiguous stretches where they lie far apart."""
    span = (_last(region, strides) - _dot(region.offset, strides) + 1) * itemsize
    stretch = 1
    for extent, stride in zip(reversed(region.shape), reversed(strides), strict=True):
        if stride != stretch:
            break
        stretch *= extent
    return min(span, region.size // stretch * max(stretch * itemsize, SMALL_NBYTES))


def _halves(region: Region, out: npt.NDArray[Any]) -> list[tuple[Region, npt.NDArray[Any]]]:
    """The two halves of a region along its first axis that has more than one index, with their places in ``out``.

    The first such axis has the widest stride, so this shortens the span most: [0:1, 0:8, 3:4] gives [0:1, 0:4, 3:4] and
    [0:1, 4:8, 3:4].
    """
    axis = next(axis for axis, extent in enumerate(region.shape) if extent > 1)
    middle = region.shape[axis] // 2
    halves = []
    for start, stop in ((0, middle), (middle, region.shape[axis])):
        offset, shape = list(region.offset), list(region.shape)
        offset[axis] += start
        shape[axis] = stop - start
        halves.append((Region(offset, shape), out[(*(slice(None) for _ in range(axis)), slice(start, stop))]))
    return halves


def _last(region: Region, strides: Sequence[int]) -> int:
    """The place of a region's last element."""
    return _dot([stop - 1 for stop in region.stop], strides)


def _strides(shape: Sequence[int]) -> list[int]:
    """Elements from one index to the next along each axis of a C-order payload: [20, 5, 1] for (3, 4, 5)."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 1, 0, -1):
        strides[axis - 1] = strides[axis] * shape[axis]
    return strides


def _dot(index: Sequence[int], strides: Sequence[int]) -> int:
    return sum(i * stride for i, stride in zip(index, strides, strict=True))
