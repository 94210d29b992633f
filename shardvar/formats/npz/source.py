"""Reading the payloads of an npz archive.

Plain arrays, which are stored as they are in memory, are read like any file. The others, which are
deflated, big-endian or in Fortran order, are streams:

    _Inflater       inflated bytes of a member, never more than was asked for, however large the
                    stream is
    MemberStream    the bytes of a member from the first to the last, and their CRC; never more than
                    a block in memory. Once the last byte was given, the CRC has been compared, and
                    the compressed bytes end there too
    PayloadStream   the array's payload in order, with the bytes of each element reversed if they
                    have to be

A stream that was read up to some byte is kept, so that reading on is cheap; going back begins a new
stream. Arrays in Fortran order have no payload until all their elements are there. They are the
exception that is held in memory, for a moment twice.
"""

import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import numpy as np

from shardvar.errors import CheckpointError, ShardvarError, prefix_errors
from shardvar.forks import new_lock
from shardvar.formats.files import DataFiles, FileSource
from shardvar.formats.npz.archive import NpzArchive
from shardvar.formats.npz.contents import (
    ArchiveContents,
    PlacedMember,
    StoredArray,
    check_transposable,
    transpose_error,
)
from shardvar.formats.npz.expected import ExpectedMembers
from shardvar.formats.protocol import Finding
from shardvar.layout.dtypes import Ints, numpy_dtype
from shardvar.planning.index import EntryTable, Index
from shardvar.wire.crc import CRC32, Checksum
from shardvar.wire.damage import corrupt, decoding, malformed
from shardvar.wire.zip import STORED

_Read = Callable[[int, int], bytes]
"""A function that returns the bytes [start, start + nbytes) of a file."""

_STREAM_NBYTES = 1 << 18
"""Bytes of one read of the file, and of one step of skipping."""
_KEPT_STREAMS = 4
"""Streams that are kept to be read on."""


@dataclass(slots=True)
class _Inflater:
    """One raw deflate stream."""

    take: Callable[[], bytes]
    """Returns the next compressed bytes, empty at their end."""
    _zlib: Any = field(default_factory=lambda: zlib.decompressobj(-zlib.MAX_WBITS))

    def read(self, most: int) -> bytes:
        """Return the next bytes, from one to ``most``; empty once the stream has ended."""
        while not self._zlib.eof:
            # ``decompress`` stops after ``most`` bytes and keeps the rest of its input, which is
            # used up first.
            compressed = self._zlib.unconsumed_tail or self.take()
            try:
                inflated: bytes = self._zlib.decompress(compressed, most)
            except zlib.error:
                raise malformed("Its compressed bytes cannot be inflated.") from None
            if inflated:
                return inflated
            if not compressed and not self._zlib.eof:
                raise malformed("Its compressed bytes end too early.")
        return b""

    def check_end(self) -> None:
        """Raise unless the stream has ended, and all compressed bytes with it."""
        if self.read(1):
            raise malformed("Its compressed bytes become more than its size.")
        if self._zlib.unused_data or self.take():
            raise malformed("Its compressed bytes are followed by others.")


@dataclass(slots=True)
class MemberStream:
    """The bytes of one member, each given once."""

    read: _Read
    """Reads the archive, or what is held of it."""
    place: PlacedMember
    """The member."""
    _taken: int = 0
    """The number of bytes read from the file."""
    _given: int = 0
    """The number of bytes given."""
    _crc: int = 0
    _inflater: _Inflater = field(init=False)

    def __post_init__(self) -> None:
        self._inflater = _Inflater(self._take)

    def read_into(self, buffer: memoryview) -> None:
        """Fill ``buffer`` with the next bytes."""
        filled = 0
        while filled < len(buffer):
            wanted = len(buffer) - filled
            part = self._take(wanted) if self._is_stored else self._inflater.read(wanted)
            if not part:
                raise malformed(
                    f"Its bytes end after {self._given + filled} of {self.place.member.nbytes}."
                )
            buffer[filled : filled + len(part)] = part
            filled += len(part)
        self._crc = CRC32.compute(buffer, self._crc)
        self._given += filled
        if self._given == self.place.member.nbytes:
            self._check_end()

    def skip_all(self) -> None:
        """Read and drop all bytes from the first to the last, and compare their CRC."""
        block = memoryview(bytearray(min(self.place.member.nbytes, _STREAM_NBYTES)))
        self.read_into(block)
        while self._given < self.place.member.nbytes:
            self.read_into(block[: self.place.member.nbytes - self._given])

    @property
    def _is_stored(self) -> bool:
        return self.place.member.method == STORED

    def _take(self, most: int = _STREAM_NBYTES) -> bytes:
        """Return the next bytes of the file, compressed or not; empty at the end of the member."""
        nbytes = min(most, _STREAM_NBYTES, self.place.member.stored_nbytes - self._taken)
        self._taken += nbytes
        return self.read(self.place.start + self._taken - nbytes, nbytes)

    def _check_end(self) -> None:
        # The CRC is not enough: a stream may go on after the bytes that it covers.
        if not self._is_stored:
            self._inflater.check_end()
        if self._crc != self.place.member.crc:
            raise corrupt(f"Its {self._given} bytes disagree with the CRC of the archive.")


@dataclass(slots=True)
class PayloadStream:
    """The payload of one array, from its first byte on."""

    position: int
    """The number of payload bytes that were given or skipped."""
    _member: MemberStream
    _unit: int
    """The number of bytes that are reversed together."""
    _rest: bytes = b""
    """The end of an element whose beginning was given."""

    @classmethod
    def of(cls, read: _Read, array: StoredArray) -> "PayloadStream":
        """Return the stream at the payload's first byte."""
        member = MemberStream(read, array.place)
        member.read_into(memoryview(bytearray(array.header.data_start)))
        return cls(0, member, array.header.swap_nbytes)

    def read_into(self, buffer: memoryview) -> None:
        """Fill ``buffer`` with the next bytes."""
        # Bytes can be reversed in whole elements only. With elements of 4 bytes and one byte kept
        # from before, a buffer of 10 takes that byte, two whole elements (8 bytes), and the first
        # byte of a third, whose other 3 are kept.
        unit = self._unit
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
        """Read and drop the next ``nbytes`` bytes."""
        # Skipped bytes are read all the same: the CRC covers them, and deflate cannot jump.
        block = memoryview(bytearray(min(nbytes, _STREAM_NBYTES)))
        while nbytes:
            self.read_into(block[:nbytes])
            nbytes -= min(nbytes, len(block))

    def _read_elements(self, buffer: memoryview, unit: int) -> None:
        self._member.read_into(buffer)
        if unit > 1:
            # As unsigned integers, for elements of any dtype: only the order of their bytes
            # changes.
            np.frombuffer(buffer, f"u{unit}").byteswap(inplace=True)


def read_transposed(read: _Read, array: StoredArray) -> memoryview:
    """Return the whole payload of an array in Fortran order; takes twice its size."""
    check_transposable(array)
    header = array.header
    with decoding(lambda _: transpose_error(array), MemoryError):
        stored = bytearray(header.nbytes)
        PayloadStream.of(read, array).read_into(memoryview(stored))
        elements = np.frombuffer(stored, numpy_dtype(header.dtype)).reshape(header.shape, order="F")
        return np.ascontiguousarray(elements).reshape(-1).view(np.uint8).data


@dataclass(frozen=True, slots=True)
class NpzSource(FileSource):
    """An open npz archive."""

    archive: NpzArchive
    """The archive."""
    _streams: OrderedDict[int, PayloadStream] = field(default_factory=OrderedDict)
    _transposed: dict[int, memoryview] = field(default_factory=dict)
    """The partly read payload of an array in Fortran order."""
    _expected: ExpectedMembers = field(init=False)
    _lock: RLock = field(default_factory=new_lock)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_expected", ExpectedMembers(self.archive.files))

    @property
    def contents(self) -> ArchiveContents:
        """The contents of the archive, read once."""
        return self.archive.contents

    @property
    def index(self) -> Index:
        """The table of contents."""
        return self.archive.index

    @property
    def crc(self) -> Checksum:
        """The kind of checksum that guards plain entries."""
        return CRC32

    @property
    def bare_index(self) -> str:
        """Empty: members have checksums, and their names are in the archive twice."""
        return ""

    @property
    def data(self) -> DataFiles:
        """The archive."""
        return self.archive.files

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry, from byte ``start`` of the payload on."""
        begin = int(entries.start[row])
        if entries.plain[row]:
            self.read_span(0, begin + start, buffer)
            return
        number = (
            begin  # of an entry that is not plain, ``start`` is its position in ``contents.arrays``
        )
        try:
            if self.contents.arrays[number].header.is_fortran:
                self._read_transposed(number, start, buffer)
            else:
                self._read_on(number, start, buffer)
        except ShardvarError as error:
            place = f"{self.data.open(0).name}: {entries.slices.key(row)!r}"
            raise error.at(place) from error

    def expect(self, entries: EntryTable, rows: Ints) -> None:
        """Note which members are read next: in a bucket, neighbours come by one request."""
        arrays = self.contents.arrays
        self._expected.expect([arrays[number].place for number in entries.start[rows].tolist()])

    def close(self) -> None:
        """Close the file."""
        self._expected.expect([])
        self._streams.clear()
        self._transposed.clear()
        self.data.close()

    def findings(self) -> Sequence[Finding]:
        """Return the members that are not arrays, after comparing their CRCs."""
        found = []
        for place in self.contents.others:
            try:
                MemberStream(self.data.open(0).read, place).skip_all()
            except CheckpointError as error:
                found.append(Finding(place.member.name, error.cause, True))
            else:
                cause = "It is not an array, and not a part of the checkpoint."
                found.append(Finding(place.member.name, cause, False))
        return found

    def compare_bytes(self, key: str) -> bool:
        """Compare the CRC of an unreadable key; return False if its bytes are unreadable."""
        place = self.contents.unsupported.get(key)
        if place is None:
            return False
        file = self.data.open(0)
        with prefix_errors(f"{file.name}: {key!r}"):
            MemberStream(file.read, place).skip_all()
        return True

    def _reader(self, place: PlacedMember) -> _Read:
        """Return a function that reads the archive; the bytes of a member that is held, from
        memory."""
        held = self._expected.take(place)
        if held is None:
            return self.data.open(0).read
        return lambda start, nbytes: bytes(held[start - place.start :][:nbytes])

    def _read_on(self, number: int, start: int, buffer: memoryview) -> None:
        """Read from a kept stream if it is not beyond ``start`` yet, else from a new one."""
        with self._lock:
            stream = self._streams.pop(number, None)  # no other thread reads from it meanwhile
        if stream is None or stream.position > start:
            array = self.contents.arrays[number]
            stream = PayloadStream.of(self._reader(array.place), array)
        stream.skip(start - stream.position)
        stream.read_into(buffer)
        # A stream at its end has compared its CRC, and is dropped. Of the others, the one that was
        # put back first goes.
        if stream.position < self.contents.arrays[number].header.nbytes:
            with self._lock:
                self._streams[number] = stream
                if len(self._streams) > _KEPT_STREAMS:
                    self._streams.popitem(last=False)

    def _read_transposed(self, number: int, start: int, buffer: memoryview) -> None:
        """Read from the transposed payload; one array's is kept until its last byte was read."""
        array = self.contents.arrays[number]
        with self._lock:
            payload = self._transposed.pop(number, None)
            if payload is None:
                # One array at a time, since each takes as much memory as its payload.
                self._transposed.clear()
                payload = read_transposed(self._reader(array.place), array)
            if start + len(buffer) < array.header.nbytes:
                self._transposed[number] = payload
        buffer[:] = payload[start : start + len(buffer)]
