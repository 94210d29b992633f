"""A source whose matrices are transposed on the way.

A stored slice [r, c] at (i, j) becomes the slice [c, r] at (j, i) of the transposed tensor. Its
payload is never held whole: a block of the transposed payload is some columns of the stored one,
which are copied in tiles out of a memory map of the file.

    stored [4, 6]          a block of [6, 4]
    . . x x . .            x x x x     column 2 of the stored payload
    . . x x . .            x x x x     column 3
    . . x x . .
    . . x x . .

A payload that the source decodes is first decoded into a temporary file, which has no name and is
mapped likewise. Each payload is verified whole before its first element is moved.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.engine.pool import BLOCK_NBYTES, MOST_WORKERS, block_ranges, new_buffer, word_of
from shardvar.engine.verified import VerifiedRows, read_in_order
from shardvar.forks import new_lock
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import ITEMSIZES, Bools, Ints
from shardvar.planning.index import NO_CHECKSUM, EntryTable, Index
from shardvar.planning.slices import SliceTable
from shardvar.wire.crc import Checksum

_WIDE_TILE, _TALL_TILE = (8, 512), (256, 128)
"""Stored rows and columns that are copied at a time. A few rows of many columns are read as they
lie and leave lines of 64 bytes in the cache for the next tile; where a block has few columns, more
rows make the copy worth its call."""

_MOST_DECODED = MOST_WORKERS + 4
"""Payloads that are kept in temporary files: more than are read at a time, since each thread reads
one. The first that was decoded is dropped first, and the slowest thread may still be at it."""


@dataclass(frozen=True, slots=True, eq=False)
class TransposedSource:
    """Another source with some of its matrices transposed; rows are rows of ``stored``."""

    verified: VerifiedRows
    """The source of the payloads, its entries as stored, and which were verified."""
    is_transposed: Bools
    """[m] True for entries of matrices that are transposed."""
    map_scratch: Callable[[Iterable[memoryview]], memoryview]
    """A function that keeps bytes in a temporary file, and returns a memory map of it."""
    decoded: "OrderedDict[int, memoryview]" = field(default_factory=OrderedDict)
    """Payloads that do not lie in a file byte for byte, by row."""
    lock: RLock = field(default_factory=new_lock)
    """Guards ``decoded``."""

    @property
    def inner(self) -> Source:
        """The source of the payloads."""
        return self.verified.source

    @property
    def stored(self) -> EntryTable:
        """The entries as they are stored."""
        return self.verified.entries

    def in_order(self, rows: Ints) -> Bools:
        """[rows] True for payloads that are best read in order; a matrix is read by columns, and
        decoded before."""
        return read_in_order(self.inner, self.stored, rows) & ~self.is_transposed[rows]

    @property
    def index(self) -> Index:
        """The table of contents of the inner source."""
        return self.inner.index

    @property
    def crc(self) -> Checksum | None:
        """The checksum of the entries that are not transposed."""
        return self.inner.crc

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with bytes of a file, for entries that are not transposed."""
        self.inner.read_span(file, start, buffer)

    def map(self, file: int) -> memoryview:
        """Return a file as a memory map, for entries that are not transposed."""
        return self.inner.map(file)

    def close(self) -> None:
        """Close the inner source and the temporary files."""
        self.decoded.clear()
        self.inner.close()

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from a transposed payload, from byte ``start`` of it on."""
        if not self.is_transposed[row]:
            self.inner.read_into(self.stored, row, start, buffer)
            return
        itemsize = int(ITEMSIZES[entries.slices.codes()[row]])
        matrix = (
            self._payload(row)
            .view(word_of(itemsize))
            .reshape(self.stored.slices.shape[row, :2].tolist())
        )
        into = np.frombuffer(buffer, word_of(itemsize))
        _copy_transposed(matrix, start // itemsize, into)

    def _payload(self, row: int) -> npt.NDArray[np.uint8]:
        """[nbytes] the payload as it is stored, verified."""
        self.verified.verify(row)
        nbytes = int(self.stored.slices.nbytes[row])
        if nbytes == 0:  # which no map can hold
            return np.zeros(0, np.uint8)
        if not self.stored.plain[row]:
            return np.frombuffer(self._decode(row, nbytes), np.uint8)
        start = int(self.stored.start[row])
        return np.frombuffer(self.inner.map(int(self.stored.file[row])), np.uint8, nbytes, start)

    def _decode(self, row: int, nbytes: int) -> memoryview:
        """The payload in a temporary file; under the lock it is decoded once."""
        with self.lock:
            if row not in self.decoded:
                self.decoded[row] = self.map_scratch(self._blocks(row, nbytes))
                while len(self.decoded) > _MOST_DECODED:
                    self.decoded.popitem(last=False)
            return self.decoded[row]

    def _blocks(self, row: int, nbytes: int) -> Iterator[memoryview]:
        buffer = new_buffer(min(nbytes, BLOCK_NBYTES))
        for start, stop in block_ranges(0, nbytes):
            self.inner.read_into(self.stored, row, start, buffer[: stop - start])
            yield buffer[: stop - start]


def transpose_entries(entries: EntryTable, is_matrix: Bools) -> tuple[EntryTable, Bools]:
    """Return the entries with some tensors [n] transposed, all of rank 2, and [m] True for their
    entries.

    These are no longer plain: ``TransposedSource`` compares the checksums of what is stored.
    """
    slices = entries.slices
    rows = is_matrix[slices.tensor]
    tensors = replace(slices.tensors, shapes=_swapped(slices.tensors.shapes, is_matrix))
    table = SliceTable(
        tensors,
        slices.tensor,
        _swapped(slices.offset, rows),
        _swapped(slices.shape, rows),
        slices.nbytes,
    )
    checksum = np.where(rows, NO_CHECKSUM, entries.checksum)
    # Runs are one table for all entries, so one transposed tensor drops them for all.
    runs = None if rows.any() else entries.runs
    return replace(
        entries, slices=table, plain=entries.plain & ~rows, checksum=checksum, runs=runs
    ), rows


def _swapped(columns: npt.NDArray[np.int64], rows: Bools) -> npt.NDArray[np.int64]:
    """The columns [k, rank] with the first two exchanged in some rows."""
    swapped = columns.copy()
    if rows.any():
        swapped[rows, :2] = columns[rows, 1::-1]
    return swapped


def _copy_transposed(matrix: npt.NDArray[Any], first: int, into: npt.NDArray[Any]) -> None:
    """Fill ``into`` with the transposed matrix, from element ``first`` of its C order."""
    rows, place = matrix.shape[0], 0
    while place < len(into):
        column, row = divmod(first + place, rows)
        left = len(into) - place
        if row or left < rows:
            # A part of one column.
            count = min(rows - row, left)
            into[place : place + count] = matrix[row : row + count, column]
        else:
            columns = left // rows
            count = columns * rows
            whole = into[place : place + count].reshape(columns, rows)
            _copy_tiles(matrix[:, column : column + columns], whole)
        place += count


def _copy_tiles(matrix: npt.NDArray[Any], into: npt.NDArray[Any]) -> None:
    """Copy a matrix [r, c] into one [c, r], by tiles that stay in the cache."""
    rows, columns = matrix.shape
    height, width = _WIDE_TILE if columns >= _TALL_TILE[1] else _TALL_TILE
    for left in range(0, columns, width):
        for top in range(0, rows, height):
            into[left : left + width, top : top + height] = matrix[
                top : top + height, left : left + width
            ].T
