"""Reading the payloads of an npz archive.

Arrays that are stored as they are in memory are read like any file. The others are streams: one that was read up to
some byte is kept, so that reading on is cheap; to go back is to begin anew.
"""

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardvar.errors import ShardvarError, UnsupportedError
from shardvar.formats.npz.contents import Array, Contents
from shardvar.formats.protocol import Finding
from shardvar.layout.dtypes import numpy_dtype
from shardvar.planning.index import EntryTable, TableIndex
from shardvar.storage.protocol import ReadableFile
from shardvar.wire.crc import CRC32, Checksum
from shardvar.wire.damage import corrupt, malformed
from shardvar.wire.zip import STORED

# Arrays that do not lie in the file as they are in memory: deflated, big-endian, or with the first axis fastest.
#
# A ``MemberStream`` gives the bytes of a member from the first to the last: read, inflated, their CRC taken. It never
# holds more than a block. When the last byte was given, the CRC has been compared, and the compressed bytes have been
# seen to end there and nowhere else.
#
# A ``PayloadStream`` gives the array's payload, in order as well, with the bytes of each element turned round where
# they
# have to be. Arrays in Fortran order have no payload before all of their elements are there: they are the exception
# that
# is held in memory, for a moment twice.


# Inflating a deflate stream piece by piece, never more than was asked for, whatever the stream would become.


@dataclass(slots=True)
class Inflater:
    """One raw deflate stream."""

    take: Callable[[], bytes]
    """Gives the next compressed bytes, none at their end."""
    _zlib: Any = field(default_factory=lambda: zlib.decompressobj(-zlib.MAX_WBITS))

    def read(self, most: int) -> bytes:
        """The next bytes, at least one and at most ``most``; none once the stream has ended."""
        while not self._zlib.eof:
            compressed = self._zlib.unconsumed_tail or self.take()
            try:
                piece: bytes = self._zlib.decompress(compressed, most)
            except zlib.error:
                raise malformed("Its compressed bytes cannot be inflated.") from None
            if piece:
                return piece
            if not compressed and not self._zlib.eof:
                raise malformed("Its compressed bytes break off.")
        return b""

    def check_end(self) -> None:
        """Raise unless the stream has given all its bytes, and no compressed byte is left."""
        if self.read(1):
            raise malformed("Its compressed bytes become more than it should have.")
        if self._zlib.unused_data or self.take():
            raise malformed("Other bytes follow its compressed ones.")


_BLOCK_NBYTES = 1 << 18
"""Bytes that are read or skipped at a time."""
_MODEST_NBYTES, _MODEST_INFLATION = 1 << 30, 64
"""What an array may take in memory: so many bytes, or so many times those of the file that it comes from."""


@dataclass(slots=True)
class MemberStream:
    """The bytes of one member, each seen once."""

    file: ReadableFile
    """The archive."""
    array: Array
    """The array whose member it is."""
    _taken: int = 0
    """Bytes read from the file."""
    _given: int = 0
    """Bytes given."""
    _crc: int = 0
    _inflater: Inflater = field(init=False)

    def __post_init__(self) -> None:
        self._inflater = Inflater(self._take)

    def read_into(self, buffer: memoryview) -> None:
        """Fill ``buffer`` with the next bytes."""
        filled = 0
        while filled < len(buffer):
            wanted = len(buffer) - filled
            piece = self._take(wanted) if self._is_stored else self._inflater.read(wanted)
            if not piece:
                raise malformed(f"Its bytes end after {self._given + filled} of {self.array.member.nbytes}.")
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)
        self._crc = CRC32.compute(buffer, self._crc)
        self._given += filled
        if self._given == self.array.member.nbytes:
            self._check_end()

    @property
    def _is_stored(self) -> bool:
        return self.array.member.method == STORED

    def _take(self, most: int = _BLOCK_NBYTES) -> bytes:
        nbytes = min(most, _BLOCK_NBYTES, self.array.member.stored_nbytes - self._taken)
        self._taken += nbytes
        return self.file.read(self.array.start + self._taken - nbytes, nbytes)

    def _check_end(self) -> None:
        if not self._is_stored:
            self._inflater.check_end()
        if self._crc != self.array.member.crc:
            raise corrupt(f"Its {self._given} bytes do not have the CRC that the archive gives.")


@dataclass(slots=True)
class PayloadStream:
    """The payload of one array from its beginning on."""

    position: int
    """Bytes given or skipped."""
    _member: MemberStream
    _rest: bytes = b""
    """The end of an element of which the beginning was given."""

    @classmethod
    def of(cls, file: ReadableFile, array: Array) -> "PayloadStream":
        """The stream at the payload's beginning."""
        member = MemberStream(file, array)
        member.read_into(memoryview(bytearray(array.header.data_start)))
        return cls(0, member)

    def read_into(self, buffer: memoryview) -> None:
        """Fill ``buffer`` with the next bytes."""
        unit = self._member.array.header.swap_nbytes
        kept = min(len(self._rest), len(buffer))
        buffer[:kept], self._rest = self._rest[:kept], self._rest[kept:]
        whole = (len(buffer) - kept) // unit * unit
        self._read_elements(buffer[kept : kept + whole], unit)
        missing = len(buffer) - kept - whole
        if missing:
            element = bytearray(unit)
            self._read_elements(memoryview(element), unit)
            buffer[kept + whole :], self._rest = element[:missing], bytes(element[missing:])
        self.position += len(buffer)

    def skip(self, nbytes: int) -> None:
        """Go on without keeping what comes."""
        block = memoryview(bytearray(min(nbytes, _BLOCK_NBYTES)))
        while nbytes:
            self.read_into(block[:nbytes])
            nbytes -= min(nbytes, len(block))

    def _read_elements(self, buffer: memoryview, unit: int) -> None:
        self._member.read_into(buffer)
        if unit > 1:
            np.frombuffer(buffer, f"u{unit}").byteswap(inplace=True)


def read_transposed(file: ReadableFile, array: Array) -> memoryview:
    """The whole payload of an array in Fortran order; takes twice its size while it is turned."""
    header = array.header
    cause = f"It lies in Fortran order, and turning it takes {2 * header.nbytes} bytes of memory."
    remedy = "Save it anew in C order, or not compressed."
    if header.nbytes > max(_MODEST_NBYTES, array.member.stored_nbytes * _MODEST_INFLATION):
        raise UnsupportedError(cause, remedy)
    try:
        stored = bytearray(header.nbytes)
        PayloadStream.of(file, array).read_into(memoryview(stored))
        elements = np.frombuffer(stored, numpy_dtype(header.dtype)).reshape(header.shape, order="F")
        return np.ascontiguousarray(elements).reshape(-1).view(np.uint8).data
    except MemoryError:
        raise UnsupportedError(cause, remedy) from None


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
