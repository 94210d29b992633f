"""A source whose matrices are transposed on the way.

A stored slice [r, c] at (i, j) becomes the slice [c, r] at (j, i) of the transposed tensor. Its
payload is never held whole: a block of the transposed payload is some columns of the stored one,
which are copied in tiles out of a memory map of the file.

    stored [4, 6]          a block of [6, 4]
    . . x x . .            x x x x     column 2 of the stored payload
    . . x x . .            x x x x     column 3
    . . x x . .
    . . x x . .

A payload that cannot be mapped is read once, from its beginning to its end, and mapped likewise:
into memory if it is small, else into a temporary file without a name. These are payloads that the
source decodes, and those in a bucket. Each payload is verified whole before its first element is
moved.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.engine.evidence import Evidence
from shardvar.engine.pieces import Reading
from shardvar.engine.pool import (
    BLOCK_NBYTES,
    MOST_WORKERS,
    block_ranges,
    map_ahead,
    new_buffer,
    word_of,
)
from shardvar.engine.verified import VerifiedRows
from shardvar.forks import new_lock
from shardvar.formats.protocol import Source
from shardvar.formats.source import WrappedSource
from shardvar.layout.dtypes import ITEMSIZES, Bools, Ints
from shardvar.planning.index import NO_CHECKSUM, EntryTable
from shardvar.planning.slices import SliceTable

_WIDE_TILE, _TALL_TILE = (8, 512), (256, 128)
"""Stored rows and columns that are copied at a time. A few rows of many columns are read as they
lie and leave lines of 64 bytes in the cache for the next tile; where a block has few columns, more
rows make the copy worth its call."""

_MOST_DECODED = MOST_WORKERS + 4
"""Payloads that are kept in temporary files: more than are read at a time, since each thread reads
one. The first that was decoded is dropped first, and the slowest thread may still be at it."""

_MOST_FETCHED = 2
"""Payloads of a bucket that are kept: one thread reads them, in order (``in_order``)."""


@dataclass(frozen=True, slots=True, eq=False)
class TransposedSource(WrappedSource):
    """Another source with some of its matrices transposed; rows are rows of ``stored``."""

    verified: VerifiedRows
    """The source of the payloads, its entries as stored, and which were verified."""
    is_transposed: Bools
    """[m] True for entries of matrices that are transposed."""
    map_scratch: Callable[[Iterable[memoryview]], memoryview]
    """A function that keeps bytes in a temporary file, and returns a memory map of it."""
    copied: "OrderedDict[int, memoryview]" = field(default_factory=OrderedDict)
    """Payloads in temporary files, by row."""
    lock: RLock = field(default_factory=new_lock)
    """Guards ``copied``."""

    @property
    def inner(self) -> Source:
        """The source of the payloads."""
        return self.verified.source

    @property
    def stored(self) -> EntryTable:
        """The entries as they are stored."""
        return self.verified.entries

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        """[rows] Return True for payloads that are best read in order.

        A matrix is read by columns, and copied before if that would be slow. Matrices that a bucket
        sends are read one after the other, each by many requests at once: all at once would need a
        temporary file each.
        """
        is_fetched = self.stored.plain[rows] & (self.traits is not None)
        is_fetched &= ~self.verified.is_held(rows)
        is_ordered = self.inner.in_order(self.stored, rows)
        return np.where(self.is_transposed[rows], is_fetched, is_ordered)

    def expect(self, entries: EntryTable, rows: Ints) -> None:
        """Prepare for reads of matrices, and of entries that the inner source decodes."""
        # A matrix that is decoded is copied when it is asked for, so it is not decoded ahead.
        self.verified.expect(rows[self.stored.plain[rows] | ~self.is_transposed[rows]])

    def decode(self, entries: EntryTable, row: int) -> memoryview | None:
        """Let the inner source decode an entry that is not transposed."""
        return None if self.is_transposed[row] else self.inner.decode(self.stored, row)

    def close(self) -> None:
        """Close the inner source and the temporary files."""
        self.copied.clear()
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
        nbytes = int(self.stored.slices.nbytes[row])
        is_mapped = bool(self.stored.plain[row]) and self.traits is None
        if is_mapped or nbytes == 0:
            self.verified.verify(row)
        if nbytes == 0:  # which no map can hold
            return np.zeros(0, np.uint8)
        if is_mapped:
            start = int(self.stored.start[row])
            file = self.inner.map(int(self.stored.file[row]))
            return np.frombuffer(file, np.uint8, nbytes, start)
        held = self.verified.held(row)
        return np.frombuffer(self._copy(row, nbytes) if held is None else held, np.uint8)

    def _copy(self, row: int, nbytes: int) -> memoryview:
        """Return the payload in a temporary file; under the lock it is read once."""
        most = _MOST_DECODED if self.traits is None else _MOST_FETCHED
        with self.lock:
            if row not in self.copied:
                evidence = Evidence(self.inner, self.stored)
                with closing(self._blocks(evidence, row, nbytes)) as blocks:
                    scratch = self.map_scratch(blocks)
                evidence.check()
                self.copied[row] = scratch
                while len(self.copied) > most:
                    self.copied.popitem(last=False)
            return self.copied[row]

    def _blocks(self, evidence: Evidence, row: int, nbytes: int) -> Generator[memoryview]:
        """Yield the blocks of a payload in order; payloads in a bucket are read several at a
        time."""

        def read(bounds: tuple[int, int]) -> memoryview:
            start, stop = bounds
            buffer = new_buffer(stop - start)
            evidence.read(row, start, buffer)
            return buffer

        ranges = block_ranges(0, nbytes)
        if self.stored.plain[row]:
            workers = Reading(evidence).threads(BLOCK_NBYTES)
            yield from map_ahead(read, ranges, workers)
        else:
            yield from map(read, ranges)


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
