"""Arrays in memory as a source, and the copies of a plan as byte ranges.

Saving arrays is reading them, so that saving is the same program as resharding.

Every array is one entry and one "file". Its bytes are the payload's: C order, little-endian, for an
array of any order and strides; an array that lies in memory as its payload does is never copied.

An array may also be a ``LazyPayload``, whose values are made when their bytes are read. Such arrays
are written one after the other (``engine.files``), and each is dropped before the next one is made:

    planned      only shape and dtype are known; what a policy reads of the values is kept
    its turn     made, whole or some rows at a time, and read from its first byte to its last
    written      dropped

Moves. A copy tells which region of elements goes from a source slice to a target slice. Where that
region is contiguous in both payloads, as it is for whole tensors and for cuts along the first axis,
it is one byte range, and what reads or writes it needs no geometry. ``lower`` finds these copies,
all at once, and leaves the others to ``regions.read_regions``.

    copy                                         in the source [4, 6]   in the target [2, 6]
    [1:3, 0:6] of a tensor, stored whole         bytes of rows 1 and 2  the whole payload      -> one move
    [1:3, 2:4]                                   two stretches of 2     two stretches of 2     -> a region

A string tensor is one slice on both sides, so its payload moves whole, also where it has no
element.
"""

import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Self, cast

import numpy as np

from shardvar.engine.pool import SMALL_NBYTES, bytes_of
from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import ITEMSIZES, STRING, Array, Bools, DType, Ints, code
from shardvar.layout.region import intersect, regions_of_range
from shardvar.planning.index import EntryTable, TableIndex
from shardvar.planning.plan import CopyTable, Plan
from shardvar.planning.slices import Columns, SliceTable, widen
from shardvar.records import entity, field, mutable, replace
from shardvar.wire import strings


@entity
class MoveTable(Columns):
    """Byte ranges that go from a source's payload to a target's, ordered by target and place."""

    source: Ints  # [k] rows of the sources
    source_start: Ints  # [k] the first byte, in the source's payload
    target: Ints  # [k] rows of the targets
    target_start: Ints  # [k] the first byte, in the target's payload
    nbytes: Ints  # [k] the number of bytes

    def clip(self, places: Ints, nbytes: int) -> Self:
        """The moves cut to the bytes ``[0, nbytes)`` of a buffer in which they begin at ``places``:
        one of 10 bytes at place -4 becomes one of 6 at place 0, from 4 bytes further on."""
        start, stop = np.maximum(places, 0), np.minimum(places + self.nbytes, nbytes)
        skip = start - places
        zeros = np.zeros_like(self.target)
        clipped = type(self)(self.source, self.source_start + skip, zeros, start, stop - start)
        # A move that lies outside the buffer has stop <= start. Until it is dropped here, its
        # columns mean nothing.
        return clipped.where(stop > start)


def lower(plan: Plan) -> tuple[MoveTable, Bools]:
    """The moves of a plan, and [m] True for targets that moves fill; regions fill the others."""
    copies, sources, targets = plan.copies, plan.sources, plan.targets
    itemsize = ITEMSIZES[targets.codes()]
    in_a, start_a = _as_range(copies.offset, copies.shape, sources, copies.source)
    in_b, start_b = _as_range(copies.offset, copies.shape, targets, copies.target)
    is_range = np.ones(len(targets), np.bool)
    # A target may have several copies, and all must be byte ranges. Plain indexing would keep the
    # answer of the last one.
    np.logical_and.at(is_range, copies.target, in_a & in_b)
    # An item size of 0 means strings or variants, whose bytes no shape tells. They are added below,
    # whole.
    rows = np.flatnonzero((is_range & (itemsize > 0))[copies.target])
    size = itemsize[copies.target[rows]]
    # Elements times item size: the rows [1:3] of a float32 [4, 6] begin at element 6, so at byte
    # 24.
    moves = MoveTable(
        copies.source[rows],
        start_a[rows] * size,
        copies.target[rows],
        start_b[rows] * size,
        np.prod(copies.shape[rows], axis=1, dtype=np.int64) * size,
    )
    whole = np.flatnonzero(itemsize == 0)
    if len(whole):
        # Payloads that are never cut, each from one source slice. Without elements there is no copy
        # either, and the payload belongs to the first slice of the tensor.
        planned = np.full(len(plan.targets), -1, np.int64)
        planned[plan.copies.target] = plan.copies.source
        source = planned[whole]
        bare = np.flatnonzero(source < 0)
        source[bare] = first_sources(plan, whole[bare])
        zero = np.zeros_like(whole)
        added = MoveTable(source, zero, whole, zero, plan.sources.nbytes[source])
        joined = MoveTable(*map(np.concatenate, zip(moves.columns(), added.columns(), strict=True)))
        # ``MoveTable`` promises this order. lexsort takes its last key first, so targets come before
        # places.
        moves = joined.take(np.lexsort((joined.target_start, joined.target)))
    return moves, is_range | (itemsize == 0)


def copies_in_range(targets: SliceTable, copies: CopyTable, first: int, last: int) -> CopyTable:
    """The copies of targets of one shape, cut to the elements ``[first, last)`` of each."""
    if not len(copies):
        return copies
    rank = copies.shape.shape[1]
    corner = widen(targets.offset[copies.target], rank, 0)
    extents = widen(targets.shape[copies.target[:1]], rank, 1)[0]
    parts = []
    for inner in regions_of_range(extents.tolist(), first, last):
        offset, shape = intersect(
            copies.offset, copies.shape, corner + inner.offset, np.array(inner.shape)
        )
        rows = np.flatnonzero((shape > 0).all(axis=1))
        parts.append((copies.source[rows], copies.target[rows], offset[rows], shape[rows]))
    return CopyTable(*map(np.concatenate, zip(*parts, strict=True)))


def first_sources(plan: Plan, targets: Ints) -> Ints:
    """[k] the first source slice of the tensor of each of some targets."""
    if not len(targets):  # of a plan of many files, most are asked for no target
        return np.zeros(0, np.int64)
    order, bounds = plan.sources.by_tensor()
    rows = plan.sources.tensors.rows()
    first: Ints = order[bounds[[rows[plan.targets.key(row)] for row in targets.tolist()]]]
    return first


def _as_range(offset: Ints, shape: Ints, slices: SliceTable, rows: Ints) -> tuple[Bools, Ints]:
    """[c] True for regions that are contiguous in their slice's payload, and [c] their first
    element there: in a slice of shape (4, 5, 6), [1:2, 2:4, 0:6] is, and [1:3, 2:4, 0:6] is not."""
    rank = shape.shape[1]
    outer = widen(slices.shape[rows], rank, 1)
    start = ((offset - widen(slices.offset[rows], rank, 0)) * strides_of(outer)).sum(axis=1)
    # For [1:2, 2:4, 0:6] of (4, 5, 6), ``single`` is T, F, F and ``entire`` is F, F, T. So axis 1
    # has only single indices before it and only whole extents after it.
    single = np.logical_and.accumulate(shape == 1, axis=1)
    entire = np.logical_and.accumulate((shape == outer)[:, ::-1], axis=1)[:, ::-1]
    yes = np.ones((len(rows), 1), np.bool)
    # before[:, d]: only single indices on the axes before d.
    before = np.concatenate([yes, single], axis=1)
    after = np.concatenate([entire, yes], axis=1)  # after[:, d]: only whole extents from axis d on
    contiguous = after[:, 0].copy()
    for axis in range(rank):
        contiguous |= before[:, axis] & after[:, axis + 1]
    return contiguous, start


def strides_of(shapes: Ints) -> Ints:
    """[k, rank] elements from one index to the next in the C order of shapes [k, rank]."""
    strides = np.ones_like(shapes)
    if shapes.shape[1] > 1:
        strides[:, :-1] = np.cumprod(shapes[:, :0:-1], axis=1)[:, ::-1]
    return strides


def integers_of_ranges(first: Ints, last: Ints) -> Ints:
    """The integers of the ranges ``[first[i], last[i])``: [5, 6, 9] for [5, 7) and [9, 10)."""
    counts = last - first
    stops = np.cumsum(counts)
    total = int(stops[-1]) if len(stops) else 0
    # For [5, 7) and [9, 10): the counts are 2, 1 and the shifts 5 - 0, 9 - 2, so 0, 1, 2 become 5,
    # 6, 9.
    return np.asarray(np.arange(total) + np.repeat(first - (stops - counts), counts))


@mutable
class LazyPayload:
    """An array whose values are made when they are read."""

    shape: tuple[int, ...]  # the shape that it announces
    dtype: DType  # the dtype that it announces
    make: Callable[[int, int], Array]
    """Returns the rows ``[start, stop)`` of the first axis, as announced; or everything, if ``step``
    is 0."""
    step: int  # the rows that are made at a time; 0 if it can only be made whole
    cuts: list[int] | None = None
    """The bytes at which the rows made at a time also end; None before it is its turn, and it is made
    whole."""
    _first: int = 0
    _made: Array | None = None

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def row_nbytes(self) -> int:
        return self.nbytes // self.shape[0] if self.shape else self.nbytes

    def fill(self, start: int, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            made, first = self._at(start + done)
            stop = min(len(buffer), first + made.nbytes - start)
            _copy_payload(made, start + done - first, buffer[done:stop])
            done = stop
            del made  # before the next rows are made

    def release(self) -> None:
        self._made = None

    def _at(self, byte: int) -> tuple[Array, int]:
        """Return rows that hold a byte of the payload, and the first byte of these rows."""
        if self._made is None or not self._first <= byte < self._first + self._made.nbytes:
            self._made = None  # before the next rows are made
            # With rows of 4 bytes, 5 of them at a time, and a cut at 28, byte 24 is in [20, 28).
            start, stop, size = 0, self.nbytes, self.row_nbytes
            if self.step and self.cuts is not None:
                number, step = bisect_right(self.cuts, byte), self.step * size
                start = max([byte // step * step, *self.cuts[:number][-1:]])
                stop = min([byte // step * step + step, stop, *self.cuts[number:][:1]])
            self._made, self._first = self.make(start // size, stop // size), start
        return self._made, self._first


@entity
class ArraySource(Source):
    arrays: Sequence[Array | bytes | LazyPayload]
    """[m] the arrays; strings already encoded as payloads."""
    index: TableIndex = field()  # the table of contents: one plain entry for each array
    is_lazy: Bools = field(init=False)  # [m] True for lazy arrays
    turn: list[LazyPayload] = field(default_factory=list, init=False)
    """The lazy array whose turn it is, if any."""

    def __post_init__(self) -> None:
        kinds = np.fromiter(map(type, self.arrays), object, len(self.arrays))
        object.__setattr__(self, "is_lazy", np.asarray(kinds == LazyPayload, np.bool))

    def payload(self, row: int) -> memoryview | None:
        """Return the payload if it lies in memory as such, else None."""
        array = self.arrays[row]
        if isinstance(array, bytes):
            return memoryview(array)
        return None if isinstance(array, LazyPayload) else _payload_of(array)

    def nbytes(self, row: int) -> int:
        array = self.arrays[row]
        return len(array) if isinstance(array, bytes) else array.nbytes

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        return np.asarray(self.is_lazy[entries.file[rows]])

    def end_turn(self) -> None:
        """Drop the values of the lazy array whose turn it was."""
        for array in self.turn:
            array.release()
        self.turn.clear()

    def release(self, row: int) -> None:
        array = self.arrays[row]
        if isinstance(array, LazyPayload):
            array.release()

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        array = self.arrays[file]
        if isinstance(array, bytes):
            buffer[:] = memoryview(array)[start : start + len(buffer)]
        elif isinstance(array, LazyPayload):
            if array.cuts is not None and array not in self.turn:
                self.end_turn()  # before the values of the next one are made
                self.turn.append(array)
            array.fill(start, buffer)
        else:
            _copy_payload(array, start, buffer)

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        self.read_span(int(entries.file[row]), start, buffer)

    def copy_moves(self, arrays: Ints, moves: MoveTable, buffers: Mapping[int, memoryview]) -> None:
        """Copy each move's bytes from its array [k] to its place in the buffer of its target."""
        columns = (arrays, moves.source_start, moves.target, moves.target_start, moves.nbytes)
        for row, start, target, place, nbytes in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            into = buffers[target][place : place + nbytes]
            # A small array is copied whole in one call; its payload as a memoryview would take
            # several.
            array = self.arrays[row]
            is_small = nbytes <= SMALL_NBYTES and self.nbytes(row) == nbytes
            if is_small and isinstance(array, np.ndarray):
                if not is_little_endian(array.dtype):
                    array = array.astype(array.dtype.newbyteorder("<"))
                into[:] = array.tobytes()
            else:
                self.read_span(row, start, into)

    def map(self, file: int) -> memoryview:
        """Return the payload of one array."""
        payload = self.payload(file)
        if payload is None:
            raise UnsupportedError("An array that is not contiguous cannot be mapped.")
        return payload

    def close(self) -> None: ...


_STRING_CODE = code(STRING)


def array_source(slices: SliceTable, arrays: Sequence[Array | LazyPayload | bytes]) -> ArraySource:
    """Return the source of arrays that hold these slices; strings other than bytes are encoded."""
    payloads: list[Array | LazyPayload | bytes] = list(arrays)
    nbytes: Ints = slices.nbytes.copy()
    # The size of strings is known only once they are encoded.
    for row in np.flatnonzero(slices.codes() == _STRING_CODE).tolist():
        if isinstance(arrays[row], bytes):
            continue
        try:
            encoded = strings.encode(cast(Array, arrays[row]).astype(object, copy=False))
        except ArgumentError as error:
            raise error.at(repr(slices.key(row))) from None
        payloads[row] = encoded
        nbytes[row] = len(encoded)
    table = replace(slices, nbytes=nbytes)
    count = len(table)
    # Array i is file i, and its payload begins at byte 0.
    entries = EntryTable.without_checksums(table, np.zeros(count, np.int64), np.arange(count))
    return ArraySource(payloads, TableIndex(entries, ["memory"] * count))


def _payload_of(array: Array) -> memoryview | None:
    is_payload = array.flags.c_contiguous and is_little_endian(array.dtype)
    return bytes_of(array) if is_payload else None


def _copy_payload(array: Array, start: int, buffer: memoryview) -> None:
    """Fill ``buffer`` with the payload of an array from byte ``start`` on."""
    payload = _payload_of(array)
    if payload is not None:
        buffer[:] = payload[start : start + len(buffer)]
        return
    # The whole elements that hold the bytes: the bytes [6, 13) of a float32 array lie in its
    # elements 1 to 3, from 2 bytes into the first one on.
    first, last = start // array.itemsize, -(-(start + len(buffer)) // array.itemsize)
    elements = array.flat[first:last]  # a copy, in C order for any strides
    octets = elements.astype(array.dtype.newbyteorder("<"), copy=False).view(np.uint8)
    skip = start - first * array.itemsize
    buffer[:] = octets.data[skip : skip + len(buffer)]


# "|" is a dtype without byte order, such as int8. "=" is the processor's order; NumPy writes "<" or
# ">" only for the other one.
_BIG_ENDIAN = ">" if sys.byteorder == "little" else ">="


def is_little_endian(dtype: DType) -> bool:
    """Return True if the elements lie in memory as in a payload."""
    return dtype.byteorder not in _BIG_ENDIAN
