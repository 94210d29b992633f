"""Arrays in memory as a source, so that saving is the same program as resharding.

Every array is one entry and one "file". What is read is the payload: C order, little-endian, for an
array of any order and strides; an array that lies in memory as its payload does is never copied.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.engine.moves import MoveTable
from shardvar.engine.pool import SMALL_NBYTES, bytes_of
from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import STRING, Ints, code
from shardvar.planning.index import NO_CHECKSUM, EntryTable, TableIndex
from shardvar.planning.slices import SliceTable
from shardvar.wire import strings


@dataclass(frozen=True, slots=True, eq=False)
class ArraySource(Source):
    """Arrays behind the source protocol."""

    arrays: Sequence[npt.NDArray[Any] | bytes]
    """[m] the arrays; strings already encoded as payloads."""
    index: TableIndex = field()
    """The table of contents: one plain entry for each array."""

    def payload(self, row: int) -> memoryview | None:
        """Return the payload if it lies in memory as such, else None."""
        array = self.arrays[row]
        if isinstance(array, bytes):
            return memoryview(array)
        if array.flags.c_contiguous and is_little_endian(array.dtype):
            return bytes_of(array)
        return None

    def nbytes(self, row: int) -> int:
        """Return the size of the payload in bytes."""
        array = self.arrays[row]
        return len(array) if isinstance(array, bytes) else array.nbytes

    def _small_payload(self, row: int) -> bytes | memoryview:
        """Return the payload of a small array, which may be copied."""
        array = self.arrays[row]
        if isinstance(array, bytes):
            return array
        return (
            array.tobytes()
            if is_little_endian(array.dtype)
            else array.astype(array.dtype.newbyteorder("<")).tobytes()
        )

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the payload of array ``file`` from byte ``start`` on."""
        payload = self.payload(file)
        if payload is not None:
            buffer[:] = payload[start : start + len(buffer)]
            return
        array = self.arrays[file]
        if isinstance(array, bytes):
            raise UnsupportedError("Encoded strings lie in memory as they are.")
        # The whole elements that hold the bytes: the bytes [6, 13) of a float32 array lie in its
        # elements 1 to 3, from 2 bytes into the first one on.
        first, last = start // array.itemsize, -(-(start + len(buffer)) // array.itemsize)
        elements = array.flat[first:last]  # a copy, in C order for any strides
        octets = elements.astype(array.dtype.newbyteorder("<"), copy=False).view(np.uint8)
        skip = start - first * array.itemsize
        buffer[:] = octets.data[skip : skip + len(buffer)]

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
            if nbytes <= SMALL_NBYTES and self.nbytes(row) == nbytes:
                into[:] = self._small_payload(row)
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


def array_source(slices: SliceTable, arrays: Sequence[npt.NDArray[Any]]) -> ArraySource:
    """Return the source of arrays that hold these slices, row by row; strings are encoded, and
    their sizes set."""
    payloads: list[npt.NDArray[Any] | bytes] = list(arrays)
    nbytes: Ints = slices.nbytes.copy()
    # The size of strings is known only once they are encoded.
    for row in np.flatnonzero(slices.codes() == _STRING_CODE).tolist():
        try:
            encoded = strings.encode(_as_bytes_objects(arrays[row]))
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


# "|" is a dtype without byte order, such as int8. "=" is the processor's order; NumPy writes "<" or
# ">" only for the other one.
_BIG_ENDIAN = ">" if sys.byteorder == "little" else ">="


def is_little_endian(dtype: np.dtype[Any]) -> bool:
    """Return True if the elements lie in memory as in a payload."""
    return dtype.byteorder not in _BIG_ENDIAN


def _as_bytes_objects(array: npt.NDArray[Any]) -> npt.NDArray[np.object_]:
    return array if array.dtype.kind == "O" else array.astype(object)
