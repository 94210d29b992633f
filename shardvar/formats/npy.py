"""npy, a file of ``numpy.save``: one array, without a name and without a checksum.

The array's key is always ``array``, so that two files with different names can be compared. A
little-endian array in C order is read in place, or mapped. The elements of any other are picked
from the mapped file, a range at a time.
"""

from dataclasses import dataclass, field

import numpy as np

from shardvar.errors import COPY_AGAIN, IncompleteCheckpoint, UnsupportedError, prefix_errors
from shardvar.formats.files import DataFiles, FileSource, read_beginning
from shardvar.formats.protocol import Format
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.index import NO_CHECKSUM, EntryTable, TableIndex
from shardvar.planning.slices import TensorTable
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.damage import SNIFF_NBYTES, foreign_file
from shardvar.wire.npy import NPY_MAGIC, NpyHeader, parse_preamble, preamble_nbytes

KEY = "array"
"""The key of the array."""
_SUFFIX = ".npy"
_SIZED_NBYTES = 12
"""The bytes that tell how long the header is: magic, version and size."""

CAPABILITIES = Capabilities(dtypes=frozenset(), slice_dtypes=frozenset(), many_files=False)
"""Nothing is written: a checkpoint of one tensor that has no name is hardly one."""


@dataclass(frozen=True, slots=True)
class NpySource(FileSource):
    """An open file."""

    index: TableIndex = field()
    """The table of contents: one entry."""
    header: NpyHeader
    """The header of the array."""
    data: DataFiles = field()
    """The file, open."""

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the array's payload, from byte ``start`` of it on."""
        if self.header.is_plain:
            self.read_span(0, self.header.data_start + start, buffer)
        elif len(buffer):
            # Elements 3 to 6 of the payload hold its bytes 13 to 26, if each has 4: the first byte
            # is dropped.
            size = self.header.itemsize
            first, stop = start // size, -(-(start + len(buffer)) // size)
            elements = np.frombuffer(self._elements(first, stop), np.uint8)
            swapped = elements.reshape(-1, self.header.swap_nbytes)[:, ::-1].tobytes()
            buffer[:] = swapped[start - first * size :][: len(buffer)]

    def _elements(self, first: int, stop: int) -> bytes:
        """Return elements, counted in C order, with their bytes as the file has them."""
        size, begin = self.header.itemsize, self.header.data_start
        if not self.header.is_fortran:
            return self.data.open(0).read(begin + first * size, (stop - first) * size)
        stored = self.data.view(0, begin, begin + self.header.nbytes)
        array = np.ndarray(self.header.shape[::-1], f"V{size}", stored).T
        return array.flat[first:stop].tobytes()


@dataclass(frozen=True, slots=True)
class NpyFormat(Format):
    """npy: one array."""

    name: str = "npy"
    """The name for ``format=``."""
    capabilities: Capabilities = CAPABILITIES
    """Nothing: it is only read."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the files that ``name`` may mean."""
        names = storage.names()
        if not name:
            return [each for each in names if each.endswith(_SUFFIX)]
        # The ending is believed; of a file of another name, the first bytes decide.
        if name in names and (
            name.endswith(_SUFFIX) or read_beginning(storage, name, len(NPY_MAGIC)) == NPY_MAGIC
        ):
            return [name]
        return [name + _SUFFIX] if name + _SUFFIX in names else []

    def open(self, storage: Storage, name: str) -> NpySource:
        """Open a file; only its header is read."""
        data = DataFiles(storage, [name], named=name)
        file = data.open(0)
        with prefix_errors(file.name):
            header = _read_header(file)
        tensors = TensorTable.of([(KEY, header.dtype, header.shape)])
        # The start of an array that is decoded says nothing: there is one.
        start, plain = np.array([header.data_start]), np.array([header.is_plain])
        entries = EntryTable(
            tensors.whole(), np.zeros(1, np.int64), start, np.array([NO_CHECKSUM]), plain
        )
        return NpySource(TableIndex(entries, [name]), header, data)


def _read_header(file: ReadableFile) -> NpyHeader:
    """Return the header of the array that fills a file."""
    first = file.read(0, min(SNIFF_NBYTES, file.size))
    if not first.startswith(NPY_MAGIC):
        raise foreign_file("a NumPy array (.npy)", first, file.size, "it begins otherwise")
    header = parse_preamble(file.read(0, preamble_nbytes(first[:_SIZED_NBYTES], file.size)))
    stop = header.data_start + header.nbytes
    if stop > file.size:
        raise IncompleteCheckpoint(
            f"Its shape needs {stop} bytes, but the file has {file.size}.", COPY_AGAIN
        )
    if stop < file.size:
        # numpy.save may be called several times with one open file, and numpy.load as many times.
        cause = f"Its array ends at byte {stop}, and {file.size - stop} bytes follow it."
        raise UnsupportedError(cause, "If they are other arrays, save each to a separate file.")
    return header


FORMAT = NpyFormat()
