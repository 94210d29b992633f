"""An open native checkpoint.

Between reading the index and opening the data files, a writer may commit a new checkpoint and remove the old files. So
the files are opened at once, and where one is gone the index is read again. A checkpoint of more files than are
held open can still be replaced while it is read; the error then says so.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from shardvar.errors import CheckpointError, MissingFile, UnsupportedError, prefix_errors
from shardvar.formats.files import ATTEMPTS, is_replaced, replaced
from shardvar.formats.native.data_files import DataFiles
from shardvar.formats.native.index import NativeIndex
from shardvar.formats.native.names import data_names, index_name, leftovers
from shardvar.formats.native.overview import Overview
from shardvar.formats.protocol import Finding
from shardvar.planning.index import EntryTable
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.block_file import open_block_file
from shardvar.wire.crc import CRC32C, Checksum


@dataclass(frozen=True, slots=True, eq=False)
class NativeSource:
    """An open checkpoint."""

    storage: Storage
    """Where it is."""
    prefix: str
    """Its name."""
    file: ReadableFile
    """The index file."""
    index: NativeIndex
    """The table of contents."""
    files: DataFiles
    """The data files."""

    @property
    def crc(self) -> Checksum:
        """The kind of checksum that guards payloads and runs."""
        return CRC32C

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry, from byte ``start`` of the payload on."""
        if not buffer.nbytes:
            return
        try:
            self.read_span(int(entries.file[row]), int(entries.start[row]) + start, buffer)
        except CheckpointError as error:
            raise type(error)(f"{entries.slices.key(row)!r}: {error.cause}", error.remedy) from error

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from one data file, from byte ``start`` of the file on."""
        if buffer.nbytes:
            with self._explained():
                self.files.file(file).read_into(start, buffer)

    def map(self, file: int) -> memoryview:
        """A data file as a read-only memory map."""
        with self._explained():
            return self.files.map(file)

    def findings(self) -> Sequence[Finding]:
        """Data files that are gone or of another size, and files of the prefix that the index does not name."""
        faults = [(name, self.files.fault(number)) for number, name in enumerate(self.index.files)]
        damage = [Finding(name, fault.cause, True) for name, fault in faults if fault is not None]
        others = leftovers(self.storage.names(), self.prefix, self.index.files)
        return [*damage, *(Finding(name, "The index does not name this file.", False) for name in others)]

    def close(self) -> None:
        """Give the files back."""
        self.files.close()
        self.file.close()

    def is_replaced(self) -> bool:
        """True where another index stands in the place of this one."""
        return is_replaced(self.storage, index_name(self.prefix), self.file)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say of a missing file that it was replaced, where it was."""
        try:
            yield
        except MissingFile as error:
            if not self.is_replaced():
                raise
            cause = f"{error.cause} The checkpoint was written anew while it was read."
            raise MissingFile(cause, "Open it again.") from error


def open_source(storage: Storage, prefix: str) -> NativeSource:
    """Open a checkpoint; the index is read again where its files were replaced meanwhile."""
    for _ in range(ATTEMPTS):
        source = _read_index(storage, prefix)
        if source.files.hold() or not source.is_replaced():
            return source
        source.close()
    raise replaced(source.file.name)


def _read_index(storage: Storage, prefix: str) -> NativeSource:
    file = storage.open(index_name(prefix))
    try:
        with prefix_errors(file.name):
            blocks = open_block_file(file.read, file.size)
            overview = Overview.decode(blocks.metadata)
    except CheckpointError:
        file.close()
        raise
    except UnsupportedError as error:
        file.close()
        raise UnsupportedError(f"{file.name}: {error.cause}", error.remedy) from error
    names = data_names(prefix, overview.generation, len(overview.file_nbytes))
    files = DataFiles(storage, names, overview.file_nbytes)
    return NativeSource(storage, prefix, file, NativeIndex(file.name, blocks, overview, names, files.fault), files)
