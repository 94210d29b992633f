"""Reading the payloads of a tensor bundle.

Little-endian elements lie in the data file as they are, and so do strings and variants; but the checksum of those is
not that of their bytes, so this source checks them by itself, as soon as their last byte was read. The elements of a
big-endian bundle are turned round, piece by piece, and checked in the same way, over the bytes of the file.

Data files have the same names again every other time that a checkpoint is overwritten. So they are opened at once, and
then the index must still be the one that was read; otherwise both are read anew. Files that are open stay what they
are, whoever overwrites the checkpoint; one that is opened later must be the file that it was.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardvar.errors import CorruptCheckpoint, MalformedCheckpoint, prefix_errors
from shardvar.formats.files import ATTEMPTS, DataFiles, is_replaced, replaced
from shardvar.formats.protocol import Finding
from shardvar.formats.tensorflow.index import BundleIndex, read_index
from shardvar.formats.tensorflow.names import data_files, index_name
from shardvar.layout.dtypes import STRING, VARIANT, numpy_dtype
from shardvar.planning.index import EntryTable, TableIndex
from shardvar.storage.protocol import Storage
from shardvar.wire import strings
from shardvar.wire.crc import CRC32C, Checksum
from shardvar.wire.damage import COPY_AGAIN

_UNITS = {"qint16": 2, "quint16": 2, "qint32": 4}
"""Bytes of an element that NumPy has no type for."""


@dataclass(frozen=True, slots=True)
class BundleSource:
    """An open tensor bundle."""

    storage: Storage
    """Where the files are."""
    prefix: str
    """The checkpoint's name."""
    contents: BundleIndex
    """Its index."""

    @property
    def index(self) -> TableIndex:
        """The table of contents."""
        return self.contents.table

    @property
    def crc(self) -> Checksum:
        """The kind of checksum that guards plain entries."""
        return CRC32C

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry, from byte ``start`` of the payload on."""
        file, begin = int(entries.file[row]), int(entries.start[row])
        nbytes = int(entries.slices.nbytes[row])
        dtype = entries.slices.dtype(row)
        with prefix_errors(f"{entries.slices.key(row)!r}"):
            if entries.plain[row] or not self.contents.is_big_endian:
                self.read_span(file, begin + start, buffer)
            elif dtype == STRING:
                stored = self._files.open(file).read(begin, nbytes)
                buffer[:] = strings.from_big_endian(stored, _count(entries, row))[start : start + len(buffer)]
            else:
                self._read_swapped(file, begin, start, buffer, _unit(dtype))
            if not entries.plain[row] and start + len(buffer) == nbytes:
                is_payload = len(buffer) == nbytes and not self.contents.is_big_endian
                self._check(entries, row, buffer if is_payload else self.map(file)[begin : begin + nbytes])

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from one data file, from byte ``start`` of the file on."""
        self._files.open(file).read_into(start, buffer)

    def map(self, file: int) -> memoryview:
        """A data file as a read-only memory map."""
        return self._files.open(file).map()

    def close(self) -> None:
        """Give the files back."""
        self._files.close()
        self.contents.file.close()

    def findings(self) -> Sequence[Finding]:
        """Data files that the index does not name, and bytes after the last payload of those that it does."""
        index = self.contents
        entries = index.table.entries
        stop = np.zeros(len(index.sizes), np.int64)
        np.maximum.at(stop, entries.file, entries.start + entries.slices.nbytes)
        findings = [
            Finding(name, f"The last {size - end} of its {size} bytes belong to no tensor.", False)
            for name, size, end in zip(index.table.files, index.sizes.tolist(), stop.tolist(), strict=True)
            if size > end
        ]
        strays = (name for name, _ in data_files(self.prefix, self.storage.names()) if name not in index.table.files)
        return [*findings, *(Finding(name, "No tensor of the index lies in this data file.", False) for name in strays)]

    @property
    def _files(self) -> DataFiles:
        return self.contents.data

    def _read_swapped(self, file: int, begin: int, start: int, buffer: memoryview, unit: int) -> None:
        """Fill ``buffer`` with words turned round; whole words are read, of which it may want a part."""
        first, stop = start // unit * unit, -(-(start + len(buffer)) // unit) * unit
        stored = self._files.open(file).read(begin + first, stop - first)
        words = np.frombuffer(stored, f">u{unit}").astype(f"<u{unit}").tobytes()
        buffer[:] = words[start - first : start - first + len(buffer)]

    def _check(self, entries: EntryTable, row: int, stored: memoryview) -> None:
        """Raise ``CorruptCheckpoint`` where the bytes of the file do not have the checksum of their entry."""
        if not len(stored):
            return
        file, start = int(entries.file[row]), int(entries.start[row])
        expected, actual = self.contents.guards[file, start, len(stored)], self._checksum(entries, row, stored)
        if actual != expected:
            found = "no checksum" if actual is None else f"the checksum {actual:08x}"
            raise CorruptCheckpoint(
                f"{self._files.open(file).name}: the {len(stored)} bytes at offset {start} have {found}, and the index "
                f"gives {expected:08x}.",
                COPY_AGAIN,
            )

    def _checksum(self, entries: EntryTable, row: int, stored: memoryview) -> int | None:
        """The checksum of an entry's bytes in the file; None where they are such that they can have none."""
        dtype = entries.slices.dtype(row)
        try:
            if dtype == STRING:
                byteorder = ">" if self.contents.is_big_endian else "<"
                return strings.bundle_checksum(stored, _count(entries, row), byteorder)
            if dtype == VARIANT:
                return strings.variant_checksum(stored, _count(entries, row))
        except MalformedCheckpoint:
            return None
        return CRC32C.compute(stored)


def open_source(storage: Storage, prefix: str) -> BundleSource:
    """Open a bundle; its index is read again where another took its place before the data files were open."""
    for _ in range(ATTEMPTS):
        source = BundleSource(storage, prefix, read_index(storage, prefix))
        if not is_replaced(storage, index_name(prefix), source.contents.file):
            return source
        source.close()
    raise replaced(source.contents.file.name)


def _count(entries: EntryTable, row: int) -> int:
    """The number of elements of an entry."""
    return entries.slices.region(row).size


def _unit(dtype: str) -> int:
    """The bytes that a change of byte order turns round as one: an element, or half of a complex one."""
    if dtype in _UNITS:
        return _UNITS[dtype]
    element = numpy_dtype(dtype)
    return element.itemsize // 2 if element.kind == "c" else element.itemsize
