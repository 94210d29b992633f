"""Arrays in memory as a source, so that saving is the same program as resharding.

Every array is one entry and one "file". What is read is the payload: C order, little-endian, for an
array of any order and strides; an array that lies in memory as its payload does is never copied.

An array may also be a ``LazyPayload``, whose values are made when their bytes are read. Such arrays
are written one after the other (``engine.files``), and each is dropped before the next one is made:

    planned      only shape and dtype are known; what a policy reads of the values is kept
    its turn     made, whole or some rows at a time, and read from its first byte to its last
    written      dropped
"""

import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from shardvar.engine.moves import MoveTable
from shardvar.engine.pool import SMALL_NBYTES, bytes_of
from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import STRING, Array, Bools, Ints, code
from shardvar.planning.index import NO_CHECKSUM, EntryTable, TableIndex
from shardvar.planning.slices import SliceTable
from shardvar.wire import strings


@dataclass(slots=True, eq=False)
class LazyPayload:
    """An array whose values are made when they are read."""

    shape: tuple[int, ...]
    """The shape that it announces."""
    dtype: np.dtype[Any]
    """The dtype that it announces."""
    make: Callable[[int, int], Array]
    """Returns the rows ``[start, stop)`` of the first axis, as announced; or everything, if ``step``
    is 0."""
    step: int
    """The rows that are made at a time; 0 if it can only be made whole."""
    cuts: list[int] | None = None
    """The bytes at which what is made at a time also ends; None before it is its turn, and it is made
    whole."""
    _first: int = 0
    _made: Array | None = None

    @property
    def nbytes(self) -> int:
        """The size of the payload in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def row_nbytes(self) -> int:
        """The size of a row of the first axis."""
        return self.nbytes // self.shape[0] if self.shape else self.nbytes

    def fill(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the payload from byte ``start`` on."""
        done = 0
        while done < len(buffer):
            made, first = self._at(start + done)
            stop = min(len(buffer), first + made.nbytes - start)
            _copy_payload(made, start + done - first, buffer[done:stop])
            done = stop
            del made  # before the next rows are made

    def release(self) -> None:
        """Drop the values."""
        self._made = None

    def _at(self, byte: int) -> tuple[Array, int]:
        """Return rows that hold a byte of the payload, and the first byte of these rows."""
        if self._made is None or not self._first <= byte < self._first + self._made.nbytes:
            self._made = None  # before the next rows are made
            start, stop = self._bounds(byte)
            size = self.row_nbytes
            self._made, self._first = self.make(start // size, stop // size), start
        return self._made, self._first

    def _bounds(self, byte: int) -> tuple[int, int]:
        """Return the first byte of the rows to make, and the first byte past them.

        With rows of 4 bytes, 5 of them at a time, and a cut at 28, byte 24 is in [20, 28).
        """
        start, stop = 0, self.nbytes
        if self.step and self.cuts is not None:
            size = self.step * self.row_nbytes
            start = byte // size * size
            stop = min(start + size, stop)
            number = bisect_right(self.cuts, byte)
            start = max([start, *self.cuts[:number][-1:]])
            stop = min([stop, *self.cuts[number:][:1]])
        return start, stop


@dataclass(frozen=True, slots=True, eq=False)
class ArraySource(Source):
    """Arrays behind the source protocol."""

    arrays: Sequence[npt.NDArray[Any] | bytes | LazyPayload]
    """[m] the arrays; strings already encoded as payloads."""
    index: TableIndex = field()
    """The table of contents: one plain entry for each array."""
    is_lazy: Bools = field(init=False)
    """[m] True for lazy arrays."""
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
        """Return the size of the payload in bytes."""
        array = self.arrays[row]
        return len(array) if isinstance(array, bytes) else array.nbytes

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        """[rows] Return True for lazy arrays, which are read from their beginning to their end."""
        return np.asarray(self.is_lazy[entries.file[rows]])

    def end_turn(self) -> None:
        """Drop the values of the lazy array whose turn it was."""
        for array in self.turn:
            array.release()
        self.turn.clear()

    def release(self, row: int) -> None:
        """Drop the values of an array if it is lazy."""
        array = self.arrays[row]
        if isinstance(array, LazyPayload):
            array.release()

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the payload of array ``file`` from byte ``start`` on."""
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
        """Fill ``buffer`` from the payload of one entry."""
        self.read_span(int(entries.file[row]), start, buffer)

    def copy_moves(self, arrays: Ints, moves: MoveTable, buffers: Mapping[int, memoryview]) -> None:
        """Copy each move's bytes from its array, [k] rows of ``arrays``, to its place in the buffer
        of its target."""
        columns = (arrays, moves.source_start, moves.target, moves.target_start, moves.nbytes)
        for row, start, target, place, nbytes in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            into = buffers[target][place : place + nbytes]
            # A small array is copied whole in one call; its payload as a memoryview would take
            # several.
            array = self.arrays[row]
            is_small = nbytes <= SMALL_NBYTES and self.nbytes(row) == nbytes
            if is_small and not isinstance(array, LazyPayload):
                into[:] = _small_payload(array)
            else:
                self.read_span(row, start, into)

    def map(self, file: int) -> memoryview:
        """Return the payload of one array."""
        payload = self.payload(file)
        if payload is None:
            raise UnsupportedError("An array that is not contiguous cannot be mapped.")
        return payload

    def close(self) -> None:
        """Do nothing: arrays need not be closed."""


_STRING_CODE = code(STRING)


def array_source(slices: SliceTable, arrays: Sequence[Array | LazyPayload | bytes]) -> ArraySource:
    """Return the source of arrays that hold these slices, row by row; strings are encoded, and
    their sizes set, unless they are encoded already."""
    payloads: list[Array | LazyPayload | bytes] = list(arrays)
    nbytes: Ints = slices.nbytes.copy()
    # The size of strings is known only once they are encoded.
    for row in np.flatnonzero(slices.codes() == _STRING_CODE).tolist():
        if isinstance(arrays[row], bytes):
            continue
        try:
            encoded = strings.encode(_as_bytes_objects(cast(Array, arrays[row])))
        except ArgumentError as error:
            raise ArgumentError(f"{slices.key(row)!r}: {error.cause}", error.remedy) from None
        payloads[row] = encoded
        nbytes[row] = len(encoded)
    table = replace(slices, nbytes=nbytes)
    count = len(table)
    # Array i is file i, and its payload begins at byte 0.
    entries = EntryTable(
        table,
        np.arange(count),
        np.zeros(count, dtype=np.int64),
        np.full(count, NO_CHECKSUM, dtype=np.int64),
        np.ones(count, dtype=np.bool),
    )
    return ArraySource(payloads, TableIndex(entries, ["memory"] * count))


def _payload_of(array: Array) -> memoryview | None:
    """Return the payload of an array if it lies in memory as such, else None."""
    is_payload = array.flags.c_contiguous and is_little_endian(array.dtype)
    return bytes_of(array) if is_payload else None


def _small_payload(array: Array | bytes) -> bytes | memoryview:
    """Return the payload of a small array, which may be copied."""
    if isinstance(array, bytes):
        return array
    return (
        array.tobytes()
        if is_little_endian(array.dtype)
        else array.astype(array.dtype.newbyteorder("<")).tobytes()
    )


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


def is_little_endian(dtype: np.dtype[Any]) -> bool:
    """Return True if the elements lie in memory as in a payload."""
    return dtype.byteorder not in _BIG_ENDIAN


def _as_bytes_objects(array: npt.NDArray[Any]) -> npt.NDArray[np.object_]:
    return array if array.dtype.kind == "O" else array.astype(object)
