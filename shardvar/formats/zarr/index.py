"""The table of contents of arrays whose chunks are followed by their checksums, as the codec crc32c
writes them.

Such a chunk is read in place, or mapped. Its checksum is at the end of its file, and read when its
entry is asked for, by ``find`` or ``scan``. It covers the whole chunk:

    | elements in the array | elements outside of it | checksum of both |

If c is the checksum of the first part and p the checksum of the second, n bytes long, the stored
one is c * x**(8*n) + p modulo the generator. So c is found by a multiplication with x**(-8*n),
which is a power of x too: x**(2**31 - 1) is 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from shardvar.errors import COPY_AGAIN, CheckpointError, CorruptCheckpoint
from shardvar.forks import new_lock
from shardvar.formats.enclosed import Enclosed, put_places
from shardvar.formats.files import DataFiles
from shardvar.layout.dtypes import Bools, Ints
from shardvar.planning.index import EntryTable, TableIndex
from shardvar.storage.concurrency import do_all
from shardvar.wire.crc import CRC32C

TRAILER_NBYTES = 4
"""The bytes of a checksum."""
_ORDER = (1 << 31) - 1
"""The smallest power of x that is 1 modulo CRC32C's generator, which is x + 1 times a primitive one
of degree 31."""
_BLOCK_NBYTES = 1 << 22
"""The bytes that are read at once of the elements outside of an array."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkIndex(TableIndex):
    """A table of contents that reads checksums on demand, from any thread."""

    is_framed: Bools = field(default_factory=lambda: np.zeros(0, np.bool))
    """[m] True for entries whose checksums are still to be read."""
    data: list[DataFiles] = field(default_factory=list)
    """The open files, as the only item, once there are any."""
    errors: dict[int, CheckpointError] = field(default_factory=dict)
    """The errors of checksums that could not be read, by entry."""
    _whole: list[bool] = field(default_factory=list)
    """One item if chunks are to be read whole."""
    _enclosed: list[Enclosed] = field(default_factory=list)
    _reading: Any = field(default_factory=new_lock)

    @property
    def enclosed(self) -> Enclosed:
        """The chunks that are read whole with their checksums, as they are when first asked for."""
        with self._reading:
            if not self._enclosed:
                rows = np.flatnonzero(self.is_framed)
                files, nbytes = self.entries.file[rows], self.entries.slices.nbytes[rows]
                sizes = self.data[0].nbytes
                stop = np.zeros_like(rows) if sizes is None else sizes[files]
                columns = rows, files, np.zeros_like(rows), stop, nbytes
                table = np.column_stack(columns)
                self._enclosed.append(Enclosed.of(self.data[0], table, self._unframe))
            return self._enclosed[0]

    def find(self, key: str) -> EntryTable:
        """The entries of one key; ``UnknownKey`` if the index does not have it."""
        found = super(ChunkIndex, self).find(key)
        if not self.is_framed.any():
            return found
        order, bounds = self._grouped[0]
        row = self._rows[key]
        self._read(order[bounds[row] : bounds[row + 1]])
        return super(ChunkIndex, self).find(key)

    def scan(self) -> Iterator[EntryTable]:
        """All entries in one table; of chunks that are to be read whole, no checksum is read."""
        every = np.arange(len(self.entries))
        if not self._whole:
            self._read(every)
            yield self.entries
            return
        enclosed = self.enclosed
        self._read(np.setdiff1d(every, enclosed.rows))
        is_new = self.is_framed[enclosed.rows]
        start = self.entries.start.copy()
        start[enclosed.rows[is_new]] = enclosed.address[is_new]
        yield replace(self.entries, start=start)

    def prefer_whole(self, is_whole: bool) -> None:
        """From now on give chunks that are read whole an address, or their place."""
        self._whole[:] = [True] * is_whole

    def placed(self, entries: EntryTable) -> EntryTable:
        """Return entries with places instead of addresses; their checksums are read."""
        at, rows = self.enclosed.find(entries)
        self._read(rows)
        return put_places(entries, at, self.entries.take(rows))

    def _unframe(self, row: int, octets: memoryview) -> memoryview:
        """Return the elements in the bytes of a file, after comparing them with their checksum."""
        stop = len(octets) - TRAILER_NBYTES
        if CRC32C.compute(octets[:stop]) != int.from_bytes(octets[stop:], "little"):
            file = self.files[int(self.entries.file[row])]
            cause = (
                f"{file}: Its {stop} bytes, which hold {self.entries.slices.region(row)} of "
                f"{self.entries.slices.key(row)!r}, disagree with the checksum that follows them."
            )
            raise CorruptCheckpoint(cause, COPY_AGAIN).in_file(file)
        return octets[: int(self.entries.slices.nbytes[row])]

    def _read(self, rows: Ints) -> None:
        """Read the checksums of some entries."""
        with self._reading:
            framed = rows[self.is_framed[rows]].tolist()
            do_all(self._read_checksum, framed, self.data[0].traits if framed else None)

    def _read_checksum(self, row: int) -> None:
        try:
            self.entries.checksum[row] = self._checksum(row)
        except CheckpointError as error:
            # It is an error of only that key, and raised when the entry is to be decoded.
            self.errors[row] = error
            self.entries.start[row], self.entries.plain[row] = row, False
        self.is_framed[row] = False

    def _checksum(self, row: int) -> int:
        """Return the checksum of the elements in the array."""
        file, nbytes = (
            self.data[0].open(int(self.entries.file[row])),
            int(self.entries.slices.nbytes[row]),
        )
        stop = file.size - TRAILER_NBYTES
        outside = 0
        for start in range(nbytes, stop, _BLOCK_NBYTES):
            outside = CRC32C.compute(file.read(start, min(_BLOCK_NBYTES, stop - start)), outside)
        stored = int.from_bytes(file.read(stop, TRAILER_NBYTES), "little")
        return first_checksum(stored, outside, stop - nbytes)


def first_checksum(both: int, second: int, second_nbytes: int) -> int:
    """Return the CRC32C of the first of two byte strings, from the CRC32C of both and of the
    second.

    >>> hex(first_checksum(CRC32C.compute(b"123456789"), CRC32C.compute(b"56789"), 5))
    '0xf63af4ee'
    >>> hex(CRC32C.compute(b"1234"))
    '0xf63af4ee'
    """
    return CRC32C.combine(both ^ second, 0, -second_nbytes % _ORDER)
