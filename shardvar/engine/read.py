"""Restore: the targets of a plan as arrays in memory, every checksum on the way compared.

    plan --lower--> byte ranges, regions --engine.pieces--> arrays --engine.evidence--> returned

The plan covers its targets; it could not have been constructed otherwise. ``read_arrays`` chooses
what each move is read into: small payloads that are whole targets are cut out of the span that
brought them, all other bytes go straight to their place in an array that was allocated for them,
and strings are decoded from their payload. How the bytes come is a question for ``engine.pieces``,
whether they are right one for ``engine.evidence``. Nothing is returned before everything that was
read is verified.

Regions are not one byte range of their payloads, such as columns of a matrix. A region is read by
the span from its first element to its last where that span is not much larger than the region;
otherwise the region is halved until it is. So memory is bounded for all shapes, and a column of a
wide matrix does not read the matrix at once.

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

A batch of reads:

    requests --plan_gather--> regions --plan_copies--> one plan --read_arrays--> arrays, picked

One request or a thousand have one plan. Each tensor is looked up once, neighbours in a file are
read together, and all requests to a bucket are under way at once.

    request                          regions that are read              into
    a tensor, or a region of it      that region                        its array
    integers, slices                 the smallest region around them    an array, and picked from it
    slices of long steps             some indices at a time             likewise, one part after the other
    lists of rows, masks             a region for each run of rows      one array of all these rows
    strings, packed elements         the whole tensor                   a fresh array, likewise

A checksum of a whole payload does not verify a part of it. Where only parts of such a payload
are wanted, they are read bare, and the requests that need them are noted, unless all is to be
verified.

Flat reads. A digest, a delta and a comparison count the bytes of a tensor in C order. Slices that
are rows hold ranges of these bytes, and columns hold parts of each row. So a range is lowered like
a target of a write: to byte ranges of payloads where it can be, else to regions.

Any thread may read, and each checksum on the way is compared: at the latest by ``check``.
"""

from collections.abc import Iterator, Sequence
from math import prod
from operator import mul
from typing import Any, Self, TypeVar

import numpy as np

from shardvar.engine.arrays import MoveTable, copies_in_range, integers_of_ranges, lower, strides_of
from shardvar.engine.evidence import Evidence
from shardvar.engine.pieces import Buffers, Reading, Receiver, read_moves, read_small, read_units
from shardvar.engine.pool import (
    BLOCK_NBYTES,
    SMALL_NBYTES,
    WORDS,
    Progress,
    bytes_of,
    new_buffer,
    word_of,
)
from shardvar.errors import (
    READ_ERRORS,
    ArgumentError,
    ArgumentTypeError,
    InvalidCheckpoint,
    ReadError,
)
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import (
    HALVES,
    ITEMSIZES,
    NAMES,
    STRING,
    Array,
    Bools,
    Ints,
    code,
    is_whole,
    numpy_dtype,
    unpack_halves,
)
from shardvar.layout.indexing import Gather, Pick, cut_steps, plan_gather
from shardvar.layout.region import Region, intersect, regions_of_range
from shardvar.planning.index import EntryTable, of_tensors, take_tensors
from shardvar.planning.plan import CopyTable, Plan, plan_copies
from shardvar.planning.slices import Columns, SliceTable, widen
from shardvar.records import entity, replace
from shardvar.wire import strings

_DENSE = 4  # a span at most this many times larger than the region in it is read in one go


@entity
class RegionTable(Columns):
    """Columns of regions of payloads, and of the places that their elements go to."""

    row: Ints  # [k] rows of the entries
    offset: Ints  # [k, rank] the first indices, in the coordinates of the entry's slice
    shape: Ints  # [k, rank] the extents
    strides: Ints  # [k, rank] bytes from one index to the next in the payload
    itemsize: Ints  # [k] the size of an element in bytes
    target: Ints  # [k] the number of the buffer that the region goes to
    target_start: Ints  # [k] the place of the region's first element in the buffer, in bytes
    target_strides: Ints  # [k, rank] bytes from one index to the next in the buffer

    def starts(self) -> Ints:
        """[k] the first byte of each region in its payload."""
        return np.asarray((self.offset * self.strides).sum(axis=1))

    def stops(self) -> Ints:
        """[k] the first byte past each region in its payload."""
        return np.asarray(
            ((self.offset + self.shape - 1) * self.strides).sum(axis=1) + self.itemsize
        )

    def nbytes(self) -> Ints:
        return np.asarray(np.prod(self.shape, axis=1) * self.itemsize)

    def meet(self, region: Region) -> Self:
        """The regions cut to another region, in the coordinates of the entry's slice."""
        offset, shape = intersect(
            self.offset, self.shape, np.array(region.offset), np.array(region.shape)
        )
        skip = ((offset - self.offset) * self.target_strides).sum(axis=1)
        cut = replace(self, offset=offset, shape=shape, target_start=self.target_start + skip)
        # Of a region that misses the other one, only the extents mean something. It is dropped
        # here.
        return cut.where(np.all(shape > 0, axis=1))

    def copy(self, block: memoryview, places: Ints, buffers: Buffers) -> None:
        """Copy each region out of a block of its payload, where it begins at ``places``."""
        # In the order of their targets, since the parts of one row of a table come from many
        # payloads.
        order = np.argsort(self.target_start, kind="stable")
        self.take(order)._copy_in_order(block, places[order], buffers)

    def _copy_in_order(self, block: memoryview, places: Ints, buffers: Buffers) -> None:
        first, *series = self._series(places)
        columns = (
            *(self.shape, self.strides, self.target_strides),
            *(self.itemsize, self.target, self.target_start, places),
        )
        for values in zip(*(column[first].tolist() for column in columns), *series, strict=True):
            shape, strides, into_strides, size, target, into, place, count, step, into_step = values
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
        """Series of regions of one shape at equal distances, which NumPy copies in one step."""
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
        distances = (np.append(column, 0)[first].tolist() for column in (steps, into_steps))
        return (first, counts.tolist(), *distances)


_Table = TypeVar("_Table", MoveTable, RegionTable)


def join_columns(tables: Sequence[_Table]) -> _Table:
    columns = zip(*(table.columns() for table in tables), strict=True)
    return type(tables[0])(*map(np.concatenate, columns))


def wanted_regions(entries: EntryTable, targets: SliceTable, copies: CopyTable) -> RegionTable:
    """The regions that copies take from payloads, and their places in the targets' payloads."""
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
    """Fill regions of buffers; without ``by_runs``, parts are compared once all are read."""
    if by_runs:
        plain = reading.entries.plain[wanted.row]
        _read_groups(reading, wanted.where(plain), buffers, by_runs=True)
        wanted = wanted.where(~plain)
    _read_groups(reading, wanted, buffers, by_runs=False)


def _read_groups(reading: Reading, wanted: RegionTable, buffers: Buffers, *, by_runs: bool) -> None:
    """Fill regions, of plain payloads ``by_runs`` by their units, else by spans and walks."""
    if not len(wanted):
        return
    # Plan: the regions of each payload side by side, and the span of the payload that holds them.
    wanted = wanted.take(np.argsort(wanted.row, kind="stable"))
    first = np.flatnonzero(np.diff(wanted.row, prepend=-1))
    bounds, payloads = np.append(first, len(wanted)), wanted.row[first]
    low = np.minimum.reduceat(wanted.starts(), first)
    high = np.maximum.reduceat(wanted.stops(), first)

    # Move: each span of the file fills its part of the regions.
    def receive(moves: MoveTable, span: memoryview, begins: list[int]) -> None:
        # Runs of moves that follow each other in one payload.
        end = moves.source_start + moves.nbytes
        follows = (moves.target[1:] == moves.target[:-1]) & (moves.source_start[1:] == end[:-1])
        stretch = np.flatnonzero(np.append(True, ~follows))
        begin, end = moves.source_start[stretch], end[np.append(stretch[1:], len(moves)) - 1]
        groups, places = moves.target[stretch], np.array(begins)[stretch]
        # Groups that lie in the span as a whole: all of their regions are copied in one call. A
        # byte of the payload that is at `begin` of it is at `places` of the span.
        is_whole = (begin <= low[groups]) & (end >= high[groups])
        whole, counts = groups[is_whole], (bounds[groups + 1] - bounds[groups])[is_whole]
        inner = wanted.take(integers_of_ranges(bounds[whole], bounds[whole + 1]))
        inner.copy(span, inner.starts() + np.repeat((places - begin)[is_whole], counts), buffers)
        filled = int(inner.nbytes().sum())
        # The others reach out of it: their regions are cut to the span.
        for number in np.flatnonzero(~is_whole).tolist():
            group = wanted.take(np.arange(bounds[groups[number]], bounds[groups[number] + 1]))
            met = _met(group, reading.entries, int(begin[number]), int(end[number]))
            met.copy(span, met.starts() + (places - begin)[number], buffers)
            filled += int(met.nbytes().sum())
        reading.progress(filled)

    # Without its progress: of a span, the bytes between the regions are not wanted.
    compared = replace(reading, progress=lambda _nbytes: None)
    if by_runs:
        spans = join_columns(list(dense_spans(wanted)))
        numbers = np.searchsorted(payloads, spans.row)
        units = read_units(reading.evidence, numbers, spans.row, spans.starts(), spans.stops())
        read_small(compared, units, receive, gap_nbytes=SMALL_NBYTES)
        return
    # Small spans with their neighbours, and the payloads of other regions one after the other. The
    # rows of a table of many columns take a few bytes of each, so there are many spans. Wider gaps
    # than in other small reads are read along, but not gaps that take longer than the second read
    # that they save.
    is_small = reading.entries.plain[payloads] & (high - low <= SMALL_NBYTES)
    rows = np.flatnonzero(is_small)
    moves = MoveTable(payloads[rows], low[rows], rows, np.zeros_like(rows), (high - low)[rows])
    read_small(compared, moves, receive, gap_nbytes=SMALL_NBYTES // 4)
    reading.evidence.expect(payloads[~reading.entries.plain[payloads]])
    for number in np.flatnonzero(~is_small).tolist():
        group = wanted.take(np.arange(bounds[number], bounds[number + 1]))
        if len(group) == 1:
            _read_apart(reading.evidence, group, buffers)
        else:
            _walk(reading, group, buffers)
        reading.progress(int(group.nbytes().sum()))


def dense_spans(wanted: RegionTable) -> Iterator[RegionTable]:
    """Cut regions until each is small, or dense, from its first element to its last: a column of
    [1000, 1000] float64 spans 8 MB for 8 kB, and is halved to 128 spans of 7 or 8 rows."""
    while len(wanted):
        span, nbytes = wanted.stops() - wanted.starts(), wanted.nbytes()
        is_dense = (span <= SMALL_NBYTES) | (span <= _DENSE * nbytes)
        yield wanted.where(is_dense)
        wanted = wanted.where(~is_dense)
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
        wanted = join_columns(
            [replace(wanted, shape=before), replace(wanted, offset=offset, shape=rest)]
        )


def _met(wanted: RegionTable, entries: EntryTable, begin: int, end: int) -> RegionTable:
    """The regions of one payload, cut to the elements in its bytes ``[begin, end)``."""
    itemsize, rank = int(wanted.itemsize[0]), wanted.shape.shape[1]
    extents = widen(entries.slices.shape[wanted.row[:1]], rank, 1)[0]
    inside = regions_of_range(extents.tolist(), begin // itemsize, end // itemsize)
    return join_columns([wanted.meet(region) for region in inside])


def _read_apart(evidence: Evidence, wanted: RegionTable, buffers: Buffers) -> None:
    for number in range(len(wanted)):
        row, offset, shape, strides, size, target, start, target_strides = (
            column[number].tolist() for column in wanted.columns()
        )
        out = np.ndarray(shape, word_of(size), buffers[target], start, target_strides)
        # Halved until each span is at most ``_DENSE`` times its part, or small. Halves follow in the
        # payload's order: so a decoding source reads on.
        stack = [(offset, out)]
        while stack:
            offset, part = stack.pop()
            begin = sum(map(mul, offset, strides))
            reach = sum((n - 1) * stride for n, stride in zip(part.shape, strides, strict=True))
            nbytes = reach + size
            if nbytes <= SMALL_NBYTES or nbytes <= min(BLOCK_NBYTES, _DENSE * part.nbytes):
                span = new_buffer(nbytes)
                evidence.read(row, begin, span)
                part[...] = np.ndarray(part.shape, part.dtype, span, strides=strides)
                continue
            axis = next(axis for axis, extent in enumerate(part.shape) if extent > 1)
            middle, before = part.shape[axis] // 2, (slice(None),) * axis
            further = [*offset[:axis], offset[axis] + middle, *offset[axis + 1 :]]
            stack.append((further, part[(*before, slice(middle, None))]))
            stack.append((offset, part[(*before, slice(middle))]))


def _walk(reading: Reading, wanted: RegionTable, buffers: Buffers) -> None:
    """Fill regions of one payload: mostly wanted blocks whole, of others only the regions."""
    evidence = reading.evidence
    row, rank = int(wanted.row[0]), wanted.shape.shape[1]
    extents = widen(evidence.entries.slices.shape[[row]], rank, 1)[0]
    for begin, end in _blocks(wanted, int(extents[1:].prod())):
        parts = _met(wanted, evidence.entries, begin, end)
        # About the bytes that ``_read_apart`` reads: the span, or contiguous stretches far apart. A
        # stretch takes in an axis if all axes after it are entire: columns [0:9, 2:4] of (9, 8)
        # have 9 stretches of 2.
        entire = np.logical_and.accumulate((parts.shape == extents)[:, ::-1], axis=1)[:, ::-1]
        entire = np.column_stack([entire[:, 1:], np.ones(len(parts), np.bool)])
        stretch = np.prod(np.where(entire, parts.shape, 1), axis=1)
        apart = (
            np.prod(parts.shape, axis=1)
            // stretch
            * np.maximum(stretch * parts.itemsize, SMALL_NBYTES)
        )
        if np.minimum(parts.stops() - parts.starts(), apart).sum() < end - begin:
            _read_apart(evidence, parts, buffers)
            continue
        block = reading.scratch(end - begin)
        evidence.read(row, begin, block)
        parts.copy(block, parts.starts() - begin, buffers)


def _blocks(wanted: RegionTable, stride: int) -> Iterator[tuple[int, int]]:
    """Ranges of bytes from the first region to the last, of whole first indices where a block holds
    any: for columns of [1000, 100] float32 and blocks of 64 kB, of 160 rows (64,000 bytes)."""
    itemsize = int(wanted.itemsize[0])
    first, stop = int(wanted.starts().min()), int(wanted.stops().max())
    step, stride = BLOCK_NBYTES // itemsize * itemsize, stride * itemsize
    # Then a block is one region, and blocks read by others meet these without a gap.
    if stride <= step:
        step -= step % stride
        first, stop = first - first % stride, -(-stop // stride) * stride
    for begin in range(first, stop, step):
        yield begin, min(begin + step, stop)


_Arrays = dict[int, Array]  # the arrays so far, by row of the targets


@entity
class Places:
    """The places of targets in given arrays; one array may hold many targets."""

    arrays: Sequence[Array]  # The arrays, contiguous
    array: Ints
    """[m] the position in ``arrays`` of each target's; -1 for targets that get a fresh array."""
    start: Ints  # [m] the first byte of each target there

    def moved(self, table: _Table, number: Ints) -> _Table:
        start = table.target_start + self.start[table.target]
        return replace(table, target=number[table.target], target_start=start)


def read_each(source: Source, entries: EntryTable) -> list[Array | ReadError]:
    """Whole tensors as arrays, in order; in the place of one that is damaged, its error."""
    tensors = entries.slices.tensors
    try:
        return [*read_arrays(plan_copies(entries.slices, tensors.whole()), source, entries)]
    except READ_ERRORS as error:
        if len(tensors) == 1:
            return [error]
        # One by one, so that a damaged tensor does not hide the others.
        rows = np.arange(len(tensors))
        return [read_each(source, of_tensors(entries, rows[n : n + 1]))[0] for n in rows]


def read_arrays(
    plan: Plan,
    source: Source,
    entries: EntryTable,
    progress: Progress = lambda _nbytes: None,
    *,
    is_verified: bool = True,
    bare: Bools | None = None,
    into: Places | None = None,
) -> list[Array]:
    """The targets of a plan as arrays, in order, or in their places ``into`` given arrays.
    Memory: the arrays, and a few blocks. Strings are object arrays of bytes."""
    # Plan: every move is read once, in one of four ways.
    moves, is_range = lower(plan)
    targets = plan.targets
    reading = Reading(Evidence(source, entries, takes_checksums=is_verified, bare=bare), progress)
    if len(targets) > len(targets.tensors) and plan.copies.shape.shape[1]:
        is_range &= ~_with_shared_bytes(moves, targets, reading.evidence)
        moves = moves.where(is_range[moves.target])
    # Each target has the number of its array: its row for a fresh one, and numbers behind the rows
    # for the given ones.
    number, arrays = np.arange(len(targets)), _Arrays()
    if into is not None:
        number = np.where(into.array < 0, number, len(targets) + into.array)
        arrays |= {len(targets) + k: array for k, array in enumerate(into.arrays)}
    is_text = np.isin(targets.codes(), (_STRING, _HALVES))
    is_string, plain = is_text[moves.target], entries.plain[moves.source]
    # A whole small payload that is a whole target: its array is one copy from a span. Equal sizes
    # suffice: a move as long as its payload begins at byte 0.
    is_whole = (moves.nbytes == entries.slices.nbytes[moves.source]) & ~is_string
    is_whole &= moves.nbytes == np.where(number < len(targets), targets.nbytes, -1)[moves.target]
    is_cut_out = plain & is_whole & (moves.nbytes <= reading.small_nbytes)
    is_decoded = ~plain & is_whole & (moves.nbytes > 0)

    # Move: small arrays out of spans, before the others take their memory; then bytes, regions and
    # strings.
    read_small(reading, moves.where(is_cut_out), _cut_out(targets, arrays))
    if is_decoded.any():
        is_decoded[is_decoded] = _decode(reading, moves.where(is_decoded), targets, arrays)
    # The decoding of strings makes their arrays.
    for row in sorted({*number[~is_text].tolist()} - arrays.keys()):
        arrays[row] = np.empty(targets.region(row).shape, numpy_dtype(targets.dtype(row)))
    rest = moves.where(~(is_cut_out | is_decoded | is_string))
    copies = plan.copies.where(~is_range[plan.copies.target])
    regions = wanted_regions(entries, targets, copies) if len(copies) else None
    if into is not None:
        rest, regions = into.moved(rest, number), regions and into.moved(regions, number)
    used = rest.target if regions is None else np.append(rest.target, regions.target)
    buffers = {row: bytes_of(arrays[row]) for row in {*used.tolist()}}
    read_moves(reading, rest, buffers, by_runs=True)
    if regions is not None:
        read_regions(reading, regions, buffers, by_runs=True)
    if is_string.any():
        _read_strings(reading, moves.where(is_string), targets, arrays)

    # Commit: what was read is as the index promises, and what NumPy can hold.
    if is_verified:
        reading.evidence.check()
    bools = np.flatnonzero(targets.codes() == _BOOL)
    for of_row, row in dict(zip(number[bools].tolist(), bools.tolist(), strict=True)).items():
        check_bool(arrays[of_row], targets.key(row), source, entries)
    return list(map(arrays.__getitem__, number.tolist()))


def costs_of_parts(source: Source, entries: EntryTable, plan: Plan, rows: Bools) -> tuple[int, int]:
    """The bytes that are read for the parts of plain payloads ``rows``, bare and compared."""
    copies = plan.copies.where(rows[plan.copies.source])
    parts = join_columns([*dense_spans(wanted_regions(entries, plan.targets, copies))])
    _, group = np.unique(parts.row, return_inverse=True)
    bare, compared = (
        read_units(evidence, group, parts.row, parts.starts(), parts.stops())
        for evidence in (Evidence(source, entries, bare=rows), Evidence(source, entries))
    )
    return int(bare.nbytes.sum()), int(compared.nbytes.sum())


def _with_shared_bytes(moves: MoveTable, targets: SliceTable, evidence: Evidence) -> Bools:
    """[m] True for targets that share bytes: as regions these are read and decoded once."""
    moves = moves.take(np.lexsort((moves.source_start, moves.source)))
    is_other = moves.source[1:] != moves.source[:-1]
    size, runs = evidence.entries.slices.nbytes[moves.source], evidence.entries.runs
    is_part = (moves.nbytes != size) & evidence.is_compared(moves.source)
    step = np.where(is_part, size if runs is None else runs.run_nbytes, 1)
    start = moves.source_start // step * step
    stop = np.minimum(-(-(moves.source_start + moves.nbytes) // step) * step, size)
    # In coordinates in which the payloads follow each other, the last stop so far tells an overlap.
    base = np.cumsum(np.append(0, np.where(is_other, size[:-1], 0)))[: len(moves)]
    reach = np.maximum.accumulate(base + stop)
    meets = (base[1:] + start[1:] < reach[:-1]) & ~is_other
    shared = np.zeros(len(targets), np.bool)
    shared[moves.target[np.isin(moves.source, moves.source[1:][meets])]] = True
    return shared & ~np.isin(targets.codes(), (_STRING, _HALVES))


def read_region(
    source: Source, entries: EntryTable, rows: Ints, wanted: Region, *, is_verified: bool = True
) -> Array:
    """A region of one tensor, whose entries are ``rows``, as a fresh array."""
    taken = entries.take(rows)
    one = taken.slices.tensors.take(taken.slices.tensor[:1])
    # ``one`` has a single tensor, so every slice gets the tensor number 0.
    slices = replace(taken.slices, tensors=one, tensor=np.zeros_like(rows))
    target = SliceTable.of_region(one, wanted, slices.nbytes[:1])
    return read_arrays(plan_copies(slices, target), source, taken, is_verified=is_verified)[0]


def check_bool(array: Array, key: str, source: Source, entries: EntryTable) -> None:
    """Raise for bools stored as other bytes than 0 or 1, which crash NumPy."""
    if array.dtype == np.bool and array.size and array.view(np.uint8).max() > 1:
        rows = (row for row in range(len(entries)) if entries.slices.key(row) == key)
        files = sorted({source.index.files[int(entries.file[row])] for row in rows})
        raise InvalidCheckpoint(
            f"{', '.join(files)}: {key!r} is of dtype bool and holds bytes other than 0 and 1.",
            "The program that wrote the file is at fault, or the file was damaged since; "
            "`shardvar verify` lists more.",
        )


def _cut_out(targets: SliceTable, arrays: _Arrays) -> Receiver:
    """Make arrays of small targets, copied out of the span that holds them."""

    def cut(moves: MoveTable, span: memoryview, begins: list[int]) -> None:
        rows = moves.target
        shapes = targets.shape[rows].tolist()
        ranks = targets.tensors.ranks[targets.tensor[rows]].tolist()
        codes = targets.codes(rows).tolist()
        dtypes = {number: numpy_dtype(NAMES[number]) for number in set(codes)}
        for row, number, shape, rank, begin in zip(
            rows.tolist(), codes, shapes, ranks, begins, strict=True
        ):
            # Copied, since a view would keep the whole span in memory for a few of its bytes.
            arrays[row] = np.ndarray(shape[:rank], dtypes[number], span, begin).copy()

    return cut


def _decode(reading: Reading, moves: MoveTable, targets: SliceTable, arrays: _Arrays) -> Bools:
    """Make arrays of payloads that the source decodes whole into memory; return which it did."""
    entries, source = reading.entries, reading.evidence.source
    is_done = np.zeros(len(moves), np.bool)
    reading.evidence.expect(moves.source)
    columns = moves.source.tolist(), moves.target.tolist(), moves.nbytes.tolist()
    for number, (row, target, nbytes) in enumerate(zip(*columns, strict=True)):
        payload = source.decode(entries, row)
        if payload is None:
            continue
        arrays[target] = np.ndarray(
            targets.region(target).shape, numpy_dtype(targets.dtype(target)), payload
        )
        is_done[number] = True
        reading.progress(nbytes)
    return is_done


def _read_strings(reading: Reading, moves: MoveTable, targets: SliceTable, arrays: _Arrays) -> None:
    """Read strings and packed elements: each payload whole, then decoded."""
    for source, target, nbytes in zip(
        moves.source.tolist(), moves.target.tolist(), moves.nbytes.tolist(), strict=True
    ):
        payload = new_buffer(nbytes)
        reading.evidence.read(source, 0, payload)
        # before it is decoded: a damaged payload should be called damaged, not malformed
        reading.evidence.compare()
        shape = targets.region(target).shape
        if targets.dtype(target) == STRING:
            arrays[target] = strings.decode(payload, shape)
        else:
            arrays[target] = unpack_halves(np.frombuffer(payload, np.uint8))[: prod(shape)].reshape(
                shape
            )
        reading.progress(nbytes)


_BOOL, _STRING, _HALVES = code("bool"), code(STRING), code(HALVES)


@entity
class FlatTensor:
    evidence: Evidence  # the source, and the entries of only this tensor
    nbytes: int  # the bytes of the tensor
    plan: Plan | None  # the copies that fill the whole tensor; None if one payload is the tensor
    moves: MoveTable | None  # the byte ranges that fill it; None if regions do

    @classmethod
    def of(cls, source: Source, entries: EntryTable) -> Self:
        """The tensor of some entries, which are all of that tensor and no others."""
        evidence, tensors = Evidence(source, entries), entries.slices.tensors
        if len(entries) == 1:
            return cls(evidence, int(entries.slices.nbytes[0]), None, None)
        plan = plan_copies(entries.slices, tensors.whole())
        moves, is_range = lower(plan)
        nbytes = int(plan.targets.nbytes[0])
        return cls(evidence, nbytes, plan, moves if is_range.all() else None)

    @property
    def key(self) -> str:
        return self.evidence.entries.slices.tensors.keys[0]

    @property
    def is_ordered(self) -> bool:
        entries = self.evidence.entries
        if entries.plain.all():
            return False
        return bool(self.evidence.source.in_order(entries, np.arange(len(entries))).any())

    def read(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from byte ``start`` of the tensor on; whole elements."""
        if self.plan is None:
            self.evidence.read(0, start, buffer)
        else:
            reading = Reading(self.evidence, in_threads=False, use="flat")
            if self.moves is not None:
                places = self.moves.target_start - start
                read_moves(reading, self.moves.clip(places, len(buffer)), {0: buffer})
            else:
                targets, itemsize = self.plan.targets, int(ITEMSIZES[self.plan.targets.codes()[0]])
                first, stop = start // itemsize, (start + len(buffer)) // itemsize
                copies = copies_in_range(targets, self.plan.copies, first, stop)
                wanted = wanted_regions(reading.entries, targets, copies)
                # From the coordinates of the tensor to the coordinates of the buffer.
                wanted = replace(wanted, target_start=wanted.target_start - start)
                read_regions(reading, wanted, {0: buffer})
        entries = self.evidence.entries
        if entries.slices.tensors.dtype(0) == "bool":
            check_bool(np.frombuffer(buffer, np.bool), self.key, self.evidence.source, entries)

    def check(self) -> None:
        self.evidence.check()


# A batch of reads.

Request = tuple[str, Any]
"""A key, and the part that is wanted: a region, an index, or None for all."""


@entity
class _Item:
    key: str
    tensor: int
    """The number of its tensor in the batch."""
    dtype: np.dtype[Any]
    asked: Gather
    gather: Gather
    """The regions that are read: the same, or the whole tensor, from which they are cut then."""
    parts: list[tuple[Region, Pick]]
    """The parts to read one after the other; empty if all is read at once."""
    axis: int
    """The axis along which the parts follow each other in the result."""
    into: Array | None
    """The caller's array, or None."""

    def place(self) -> Array | None:
        """Return the array that its regions are read into; None for a fresh one of one region."""
        if self.asked is not self.gather:
            return None
        if self.into is not None and self.gather.is_direct and self.into.flags.c_contiguous:
            return self.into
        return np.empty(self.gather.full, self.dtype) if len(self.gather.offset) != 1 else None

    def arrange(self, array: Array) -> Array:
        if array is self.into:
            return array
        if self.asked is not self.gather:
            # The ellipsis keeps an array of objects without axes an array.
            regions = map(Region, self.asked.offset.tolist(), self.asked.shape.tolist())
            indexes: list[Any] = [(*region.slices, ...) for region in regions]
            parts = [array[index].reshape(-1) for index in indexes]
            array = np.concatenate([array.reshape(-1)[:0], *parts])
        return self.give(self.asked.take(array.reshape(self.asked.full)))

    def give(self, array: Array) -> Array:
        if self.into is None:
            return array
        self.into[...] = array
        return self.into


def read_batch(
    source: Source,
    requests: Sequence[Request],
    entries: EntryTable,
    *,
    is_full: bool,
    out: Sequence[Array | None] | None = None,
) -> tuple[list[Array], list[tuple[str, Region]]]:
    """The arrays, and the requests with bytes that were not compared, none with ``is_full``, as the
    region around each. ``entries`` are of all keys."""
    given = [None] * len(requests) if out is None else list(out)
    if len(given) != len(requests):
        raise ArgumentError(
            f"out has {len(given)} arrays for {len(requests)} requests.",
            "Give one for each; None where an array is to be made.",
        )
    tensors = entries.slices.tensors
    number = tensors.rows()
    items = [
        _item(source, entries, number[key], wanted, is_full, into)
        for (key, wanted), into in zip(requests, given, strict=True)
    ]
    parts = {key for key in tensors.keys if source.is_part(key)}
    for error in source.storage_errors(parts).values() if is_full and parts else ():
        raise error
    found: list[Array | None] = [None] * len(items)
    is_bare = [item.key in parts and not is_full for item in items]
    # Items that are read at once.
    rows = [row for row, item in enumerate(items) if not item.parts]
    if rows:
        arrays, bare = _read_at_once(source, entries, [items[row] for row in rows], is_full)
        for row, array, is_part_bare in zip(rows, arrays, bare, strict=True):
            found[row] = array
            is_bare[row] |= is_part_bare
    # Items that are read part by part, so that bytes between their steps are not held.
    for row, item in enumerate(items):
        if not item.parts:
            continue
        alone = take_tensors(entries, {item.key})
        picked = []
        for part, pick in item.parts:
            (array,), unverified = read_batch(source, [(item.key, part)], alone, is_full=is_full)
            picked.append(np.asarray(array[(*pick, ...)]).copy())
            is_bare[row] |= bool(unverified)
        found[row] = item.give(np.concatenate(picked, item.axis))
    noted = [
        (item.key, item.asked.around) for item, bare in zip(items, is_bare, strict=True) if bare
    ]
    return [each for each in found if each is not None], noted


def _item(
    source: Source,
    entries: EntryTable,
    tensor: int,
    wanted: Any,
    is_full: bool,
    into: Any,
) -> _Item:
    tensors = entries.slices.tensors
    key, shape, name = tensors.keys[tensor], tensors.shape(tensor), tensors.dtype(tensor)
    dtype = numpy_dtype(name)
    asked = gather = plan_gather(wanted, shape)
    if into is not None:
        if not isinstance(into, np.ndarray):
            raise ArgumentTypeError(
                f"out has a {type(into).__name__} for {key!r}.", "Give NumPy arrays, or None."
            )
        if into.shape != asked.picked_shape or into.dtype != dtype:
            raise ArgumentError(
                f"{key!r} gives {dtype}{list(asked.picked_shape)}, and its array in out is "
                f"{into.dtype}{list(into.shape)}.",
                "Shapes and dtypes are never changed unasked; give an array of the same.",
            )
        if not into.flags.writeable:
            raise ArgumentError(
                f"The array in out for {key!r} is read-only.", "Give one that may be written."
            )
    parts: list[tuple[Region, Pick]] = []
    axis = 0
    # The place of a string follows from the lengths of all before it, and packed elements share
    # bytes: these are read whole, and cut then.
    if is_whole(name):
        gather = plan_gather(None, shape)
    elif len(asked.offset) == 1 and not any(isinstance(each, np.ndarray) for each in asked.pick):
        # What lies between long steps is left out.
        region = asked.around
        most = BLOCK_NBYTES // dtype.itemsize
        # Elements from the first to the last of a region: column 1 of rows 2 to 7 of (10, 1000)
        # spans these rows.
        axis = next((axis for axis, extent in enumerate(region.shape) if extent > 1), region.rank)
        spanned = max(prod((*region.shape[: axis + 1], *shape[axis + 1 :])), 1)
        parts, axis = cut_steps(region, asked.pick, most * region.size // spanned)
        if len(parts) > 1:
            alone = take_tensors(entries, {key})
            parts = [] if _is_read_at_once(source, alone, region, is_full) else parts
        else:
            parts = []
    return _Item(key, tensor, dtype, asked, gather, parts, axis, into)


def _read_at_once(
    source: Source, entries: EntryTable, items: Sequence[_Item], is_full: bool
) -> tuple[list[Array], list[bool]]:
    """The arrays, and True for items with bytes that were not compared."""
    # Plan.
    counts = np.array([len(item.gather.offset) for item in items], np.int64)
    item_of = np.repeat(np.arange(len(items)), counts)
    first = np.cumsum(counts) - counts
    tensors = entries.slices.tensors
    rank = tensors.shapes.shape[1]
    tensor = np.repeat(np.array([item.tensor for item in items], np.int64), counts)
    offset, shape = (
        np.concatenate([widen(getattr(item.gather, name), rank, fill) for item in items])
        for name, fill in (("offset", 0), ("shape", 1))
    )
    targets = SliceTable.of(tensors, tensor, offset, shape)
    places = [item.place() for item in items]
    plan = plan_copies(entries.slices, targets)
    bare = np.zeros(len(entries), np.bool) if is_full else _bare_rows(source, entries, plan)
    # Move.
    given = [(item, each) for item, each in enumerate(places) if each is not None]
    array = np.full(len(places), -1)
    array[[item for item, _ in given]] = np.arange(len(given))
    # The regions of an item follow each other in its array.
    before = np.cumsum(targets.nbytes) - targets.nbytes
    start = before - before[first[item_of]] if len(targets) else before
    arrays = read_arrays(
        plan,
        source,
        entries,
        bare=bare,
        into=Places([each for _, each in given], array[item_of], start),
    )
    # Arrange.
    found = [
        item.arrange(arrays[row] if place is None else place)
        for item, row, place in zip(items, first.tolist(), places, strict=True)
    ]
    is_bare = np.zeros(len(items), np.bool)
    is_bare[item_of[plan.copies.target[bare[plan.copies.source]]]] = True
    return found, is_bare.tolist()


def _bare_rows(source: Source, entries: EntryTable, plan: Plan) -> Bools:
    """[entries] True for payloads of which a part is read without its checksum, which covers more."""
    none = np.zeros(len(entries), np.bool)
    if entries.runs is not None and source.traits is None:
        return none
    copies = plan.copies
    size = np.prod(entries.slices.shape, axis=1, dtype=np.int64)
    is_part = np.prod(copies.shape, axis=1, dtype=np.int64) != size[copies.source]
    bare, whole = none.copy(), none.copy()
    bare[copies.source[is_part]] = True
    whole[copies.source[~is_part]] = True
    bare &= ~whole & Evidence(source, entries).is_guarded(np.arange(len(entries)))
    if entries.runs is None or source.traits is None or not bare.any():
        return bare
    least, most = costs_of_parts(source, entries, plan, bare)
    return bare if most > max(2 * least, least + source.traits.waste_nbytes) else none


def _is_read_at_once(source: Source, entries: EntryTable, region: Region, is_full: bool) -> bool:
    """True for payloads that are compared whole, or decompressed from their beginning."""
    if entries.runs is not None:
        return False
    guarded = Evidence(source, entries).is_guarded(np.arange(len(entries)))
    is_compared = guarded.any()
    if is_compared and not is_full:
        # A checksum that covers more than the region cannot be compared. If the rows 3:7 are wanted,
        # the slice 0:5 meets them and is not covered; 4:6 is covered.
        slices, rank = entries.slices, region.rank
        offset, shape = slices.offset[:, :rank], slices.shape[:, :rank]
        low, high = np.array(region.offset, np.int64), np.array(region.stop, np.int64)
        meets = (np.minimum(offset + shape, high) > np.maximum(offset, low)).all(axis=1)
        is_covered = ((offset >= low) & (offset + shape <= high)).all(axis=1)
        is_compared = not (guarded & meets & ~is_covered).any()
    return bool(is_compared or not entries.plain.all())
