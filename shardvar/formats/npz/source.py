"""Reading the payloads of an npz archive.

Arrays that are stored as they are in memory are read like any file. The others are streams: one that was read up to
some byte is kept, so that reading on is cheap; to go back is to begin anew.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardvar.errors import ShardvarError
from shardvar.formats.npz.contents import Contents
from shardvar.formats.npz.streams import PayloadStream, read_transposed
from shardvar.formats.protocol import Finding
from shardvar.planning.index import EntryTable, TableIndex
from shardvar.wire.crc import CRC32, Checksum

_KEPT = 4
"""Streams that wait to be read on."""


@dataclass(frozen=True, slots=True)
class NpzSource:
    """An open npz archive."""

    contents: Contents
    """What it holds."""
    _streams: OrderedDict[int, PayloadStream] = field(default_factory=OrderedDict)
    _transposed: dict[int, memoryview] = field(default_factory=dict)
    """An array in Fortran order of which not all has been asked for."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def index(self) -> TableIndex:
        """The table of contents."""
        return self.contents.index

    @property
    def crc(self) -> Checksum:
        """The kind of checksum that guards plain entries."""
        return CRC32

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry, from byte ``start`` of the payload on."""
        begin = int(entries.start[row])
        if entries.plain[row]:
            self.read_span(0, begin + start, buffer)
            return
        try:
            if self.contents.arrays[begin].header.is_fortran:
                self._read_transposed(begin, start, buffer)
            else:
                self._read_on(begin, start, buffer)
        except ShardvarError as error:
            place = f"{self.contents.files.open(0).name}: {entries.slices.key(row)!r}"
            raise type(error)(f"{place}: {error.cause}", error.remedy) from error

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the archive, from byte ``start`` of it on."""
        self.contents.files.open(file).read_into(start, buffer)

    def map(self, file: int) -> memoryview:
        """The archive as a read-only memory map."""
        return self.contents.files.open(file).map()

    def close(self) -> None:
        """Give the file back."""
        self._streams.clear()
        self._transposed.clear()
        self.contents.files.close()

    def findings(self) -> Sequence[Finding]:
        """Members that are no arrays."""
        return self.contents.findings

    def _read_on(self, number: int, start: int, buffer: memoryview) -> None:
        with self._lock:
            stream = self._streams.pop(number, None)
        if stream is None or stream.position > start:
            stream = PayloadStream.of(self.contents.files.open(0), self.contents.arrays[number])
        stream.skip(start - stream.position)
        stream.read_into(buffer)
        if stream.position < self.contents.arrays[number].header.nbytes:
            with self._lock:
                self._streams[number] = stream
                if len(self._streams) > _KEPT:
                    self._streams.popitem(last=False)

    def _read_transposed(self, number: int, start: int, buffer: memoryview) -> None:
        file, array = self.contents.files.open(0), self.contents.arrays[number]
        with self._lock:
            payload = self._transposed.pop(number, None)
            if payload is None:
                self._transposed.clear()
                payload = read_transposed(file, array)
            if start + len(buffer) < array.header.nbytes:
                self._transposed[number] = payload
        buffer[:] = payload[start : start + len(buffer)]
