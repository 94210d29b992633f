"""An open npz archive: its contents, and reading the payloads.

Contents. One array a member, by the zip's directory and the header in front of each array.

The directory has the keys; dtypes and shapes are only in the members. So opening an archive and
listing its keys takes three reads. Everything else reads the headers of all members, together.

The key is the member's name without one ``.npy`` at its end. A fault of a member is a fault of its
key and leaves the others readable. Two members of one key are both refused, because readers
disagree on which of them counts. A member of another name that does not begin as an array does was
added by hand: it is a finding, and not a key. An archive of only such members was written by
another program, and is refused.

An array whose dtype cannot be held (text, dates, fields) is a fault of its key. Its member is kept,
so that ``verify`` can compare the CRC: that needs no dtype.

The CRC of a zip covers header and elements. The CRC of only the elements follows from it, because a
CRC is linear:

    crc(header + elements) == combine(crc(header), 0, nbytes of elements) ^ crc(elements)

So an array that is stored without compression is verified like a payload of any other format. An
example: two arrays of the same dtype and shape have the same header, and the first term, its
*share*, is computed once for both.

Payloads. Plain arrays, which are stored as they are in memory, are read like any file. The others,
which are deflated, big-endian or in Fortran order, are streams:

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

In a bucket each step of a stream would wait for a request. So the members that the engine expects
are brought by spans of neighbours, many at a time, and each is held until it was asked for to its
end.

    expected    b  a  c  d           as they will be asked for
    the file    | a | b | c | d |    spans: [a b c] [d]
    asked: b    both spans are read at once; a, c and d are held
"""

import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from threading import RLock
from typing import Any, NamedTuple, cast

import numpy as np

from shardvar.errors import (
    CheckpointError,
    InvalidCheckpoint,
    ShardvarError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.forks import new_lock
from shardvar.formats.deferred import LateIndex
from shardvar.formats.files import WINDOW_NBYTES, DataFiles, FileSource, Window, first_bytes
from shardvar.formats.protocol import Finding
from shardvar.layout.dtypes import Ints, numpy_dtype
from shardvar.planning.index import NO_CHECKSUM, EntryTable, Index, TableIndex
from shardvar.planning.slices import TensorTable
from shardvar.records import field, mutable
from shardvar.storage.concurrency import do_all
from shardvar.storage.protocol import ReadableFile, Storage, Traits
from shardvar.wire.crc import CRC32
from shardvar.wire.damage import (
    corrupt,
    decoding,
    distrusted,
    foreign_archive,
    foreign_file,
    incomplete,
    invalid,
    is_known_archive,
    malformed,
)
from shardvar.wire.npy import NPY_MAGIC, NpyHeader, parse_preamble, preamble_nbytes
from shardvar.wire.zip import (
    STORED,
    Directory,
    Member,
    check_supported,
    locate_member,
    overlapping,
    read_members,
)

MEMBER_SUFFIX = ".npy"
"""Appended to a key by NumPy to make a member's name."""

_PEEK_NBYTES = 256
"""Bytes at the beginning of a member; nearly every npy header is shorter."""
_HEADER_NBYTES = 1 << 10
"""Bytes at the beginning of a large member that are read by themselves: all headers, mostly."""
_NEAR_NBYTES, _GROUP_NBYTES = WINDOW_NBYTES // 4, 1 << 22
"""The distance of members whose headers are read together, and the bytes of one thread's share."""
_NEAR_IN_BUCKETS = WINDOW_NBYTES
"""The same distance in a bucket, where members in between take less time than another request; what
is further apart is not read along, since a listing should not read the arrays."""
_MODEST_NBYTES, _MODEST_INFLATION = 1 << 30, 64
"""The memory for an array in Fortran order: this size, or this multiple of its size."""


_ParseHeader = Callable[[bytes], tuple[NpyHeader, int]]
"""Returns the header in a preamble, and its share of the CRC of header and elements."""


class PlacedMember(NamedTuple):
    """A member that both of its descriptions describe alike, and its place."""

    member: Member
    start: int
    """Its first byte, after its local header, in bytes of the file."""

    @property
    def key(self) -> str:
        return self.member.name.removesuffix(MEMBER_SUFFIX)


class StoredArray(NamedTuple):
    place: PlacedMember
    header: NpyHeader
    checksum: int
    """The CRC32 of its elements, in their stored byte order, after decompression."""


@mutable
class ArchiveContents:
    places: list[PlacedMember] = field(default_factory=list)
    """All whose place is known."""
    arrays: list[StoredArray] = field(default_factory=list)
    """The arrays that can be read, sorted by key."""
    unsupported: dict[str, PlacedMember] = field(default_factory=dict)
    """The arrays of a dtype that cannot be held, by key."""
    others: list[PlacedMember] = field(default_factory=list)  # members that are not arrays
    faults: dict[str, ShardvarError] = field(default_factory=dict)

    def index(self, name: str) -> TableIndex:
        """Return the table of contents; ``start`` of a non-plain entry is its position in ``arrays``."""
        tensors = TensorTable.of(
            (each.place.key, each.header.dtype, each.header.shape) for each in self.arrays
        )
        plain = np.array(
            [each.place.member.method == STORED and each.header.is_plain for each in self.arrays],
            dtype=np.bool,
        )
        start = np.array(
            [each.place.start + each.header.data_start for each in self.arrays], dtype=np.int64
        )
        checksum = np.array([each.checksum for each in self.arrays], dtype=np.int64)
        # The source decodes and checks other arrays: it needs the position in ``arrays``, and
        # no checksum here.
        entries = EntryTable(
            tensors.whole(),
            np.zeros(len(plain), dtype=np.int64),
            np.where(plain, start, np.arange(len(plain))),
            np.where(plain, checksum, NO_CHECKSUM),
            plain,
        )
        faults = cast(Mapping[str, CheckpointError], self.faults)
        return TableIndex(entries, [name], faults=faults)


def _find_members(
    file: ReadableFile, members: Sequence[Member], stop: int, traits: Traits | None
) -> ArchiveContents:
    """Read the headers of all members, which end before ``stop``; in a bucket, many at a time."""
    # In the order of the file, so that one window serves neighbours.
    ordered = sorted(members, key=lambda member: member.start)
    near = _NEAR_NBYTES if traits is None else _NEAR_IN_BUCKETS
    # Groups of members whose headers lie in the same windows.
    groups, first = list[tuple[int, Sequence[Member]]](), 0
    for number in range(1, len(ordered) + 1):
        if (
            number == len(ordered)
            or ordered[number].start - ordered[number - 1].start > near
            or ordered[number].start - ordered[first].start > _GROUP_NBYTES
        ):
            groups.append((first, ordered[first:number]))
            first = number
    parse = cache(_parse_header)
    parts: dict[int, ArchiveContents] = {}

    def read(work: tuple[int, Sequence[Member]]) -> None:
        number, group = work
        parts[number] = ArchiveContents()
        nbytes = _HEADER_NBYTES + len(group[-1].raw_name)
        if len(group) > 1:
            extent = group[-1].start - group[0].start
            nbytes = WINDOW_NBYTES if traits is None else min(extent + nbytes, _GROUP_NBYTES)
        _read_members(Window(file, nbytes), group, stop, parse, parts[number])

    do_all(read, groups, traits)
    contents = ArchiveContents()
    for number, _ in groups:
        part = parts[number]
        contents.places += part.places
        contents.arrays += part.arrays
        contents.unsupported |= part.unsupported
        contents.others += part.others
        contents.faults |= part.faults
    return contents


def _read_members(
    window: Window,
    members: Sequence[Member],
    stop: int,
    parse: _ParseHeader,
    found: ArchiveContents,
) -> None:
    for member in members:
        is_array = False
        try:
            place = PlacedMember(member, locate_member(window.read, member, stop))
            found.places.append(place)
            check_supported(member)
            # An array by its name or its first bytes.
            is_array = member.name.endswith(MEMBER_SUFFIX) or _peek(
                window, place, _PEEK_NBYTES
            ).startswith(NPY_MAGIC)
            if is_array:
                found.arrays.append(_read_array(window, parse, place))
                check_transposable(found.arrays[-1])
            else:
                found.others.append(place)
        except (CheckpointError, UnsupportedError) as error:
            key = member.name.removesuffix(MEMBER_SUFFIX)
            found.faults[key] = error.at(window.file.name, repr(key))
            if is_array and isinstance(error, UnsupportedError):
                found.unsupported[key] = place


def _parse_header(preamble: bytes) -> tuple[NpyHeader, int]:
    header = parse_preamble(preamble)
    return header, CRC32.combine(CRC32.compute(preamble), 0, header.nbytes)


def _read_array(window: Window, parse: _ParseHeader, place: PlacedMember) -> StoredArray:
    # The header: mostly within the first bytes, which are read with their neighbours' bytes.
    member, start = place
    first = _peek(window, place, _PEEK_NBYTES)
    needed = preamble_nbytes(first[:12], member.nbytes)
    preamble = first if needed <= len(first) else _peek(window, place, needed)
    if len(preamble) < needed:
        raise malformed(f"Its compressed bytes at offset {start} end within the npy header.")

    # The size: header and elements are the whole member.
    header, share = parse(preamble[:needed])
    if needed + header.nbytes > member.nbytes:
        raise incomplete(
            f"Its shape needs {needed + header.nbytes} bytes, but its member has {member.nbytes}."
        )
    if needed + header.nbytes < member.nbytes:
        raise invalid(
            f"Its member has {member.nbytes - needed - header.nbytes} bytes more than its shape "
            "needs."
        )

    # An array without elements is never read, so its CRC is compared now.
    if not header.nbytes and member.crc != share:
        raise corrupt(f"Its {needed} bytes at offset {start} disagree with their CRC.")
    return StoredArray(place, header, member.crc ^ share)


def check_transposable(array: StoredArray) -> None:
    """Raise ``UnsupportedError`` for an array in Fortran order too large to transpose."""
    # The shape comes from the file: an archive of 1 MiB may claim any size, and is refused beyond 1
    # GiB.
    most = max(_MODEST_NBYTES, array.place.member.stored_nbytes * _MODEST_INFLATION)
    if array.header.is_fortran and array.header.nbytes > most:
        raise transpose_error(array)


def transpose_error(array: StoredArray) -> UnsupportedError:
    cause = (
        f"It is in Fortran order, and transposing it takes {2 * array.header.nbytes} bytes of "
        "memory."
    )
    return UnsupportedError(cause, "Save it again in C order, or without compression.")


def _peek(window: Window, place: PlacedMember, nbytes: int) -> bytes:
    member, start = place
    nbytes = min(nbytes, member.nbytes)
    if member.method == STORED:
        return window.read(start, nbytes)
    try:
        # A header takes fewer bytes compressed than not. A stream could begin with empty deflate
        # blocks and need more than this; no writer makes such streams, and they are refused as
        # truncated.
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(
            window.read(start, min(member.stored_nbytes, nbytes + _PEEK_NBYTES)), nbytes
        )
    except zlib.error:
        raise malformed(f"Its compressed bytes at offset {start} cannot be inflated.") from None


_Read = Callable[[int, int], bytes]
"""A function that returns the bytes [start, start + nbytes) of a file."""

_STREAM_NBYTES = 1 << 18
"""Bytes of one read of the file, and of one step of skipping."""
_KEPT_STREAMS = 4
"""Streams that are kept to be read on."""
_SPAN_NBYTES = 1 << 22
"""Members that lie within so many bytes are read by one request; a larger one is not held."""
_GAP_NBYTES = 4096
"""The bytes between two of them, such as a local header."""
_HELD_NBYTES = 1 << 26
"""The bytes that are held, and under way."""

_Span = list[PlacedMember]
"""Neighbours in the file, in its order."""


@mutable
class _Inflater:
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


@mutable
class MemberStream:
    """The bytes of one member, each given once."""

    read: _Read
    """Reads the archive, or bytes that are held of it."""
    place: PlacedMember
    _taken: int = 0
    _given: int = 0
    _crc: int = 0
    _inflater: _Inflater = field(init=False)

    def __post_init__(self) -> None:
        self._inflater = _Inflater(self._take)

    def read_into(self, buffer: memoryview) -> None:
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
            # The CRC is not enough: a stream may go on after the bytes that it covers.
            if not self._is_stored:
                self._inflater.check_end()
            if self._crc != self.place.member.crc:
                raise corrupt(f"Its {self._given} bytes disagree with the CRC of the archive.")

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


@mutable
class _ExpectedMembers:
    """Members as they will be asked for; safe to use from several threads."""

    data: DataFiles
    _spans: list[_Span] = field(default_factory=list)
    """The spans, by the first of their members that is expected."""
    _span_of: dict[int, int] = field(default_factory=dict)
    """The number of the span of each member, by its first byte."""
    _held: dict[int, memoryview] = field(default_factory=dict)
    """The bytes of members that were read and not yet asked for, by their first byte."""
    _lock: Any = field(default_factory=new_lock)

    def expect(self, places: Sequence[PlacedMember]) -> None:
        """Set the members that will be asked for; nothing on a disk."""
        spans = [] if self.data.traits is None else _spans(places)
        span_of = {each.start: number for number, span in enumerate(spans) for each in span}
        order = list(dict.fromkeys(span_of[each.start] for each in places if each.start in span_of))
        rank = {number: position for position, number in enumerate(order)}
        with self._lock:
            self._held = {}
            self._spans = [spans[number] for number in order]
            self._span_of = {start: rank[number] for start, number in span_of.items()}

    def take(self, place: PlacedMember) -> memoryview | None:
        """Return the stored bytes of a member that is expected, and forget them; else None."""
        with self._lock:
            number = self._span_of.pop(place.start, None)
            if number is None:
                return None
            if place.start not in self._held:
                self._read_from(number)
            return self._held.pop(place.start, None)

    def _read_from(self, number: int) -> None:
        """Read a span and the spans after it, as many as are held at a time."""
        total, chosen = sum(map(len, self._held.values())), list[_Span]()
        for span in self._spans[number:]:
            total += span[-1].start + span[-1].member.stored_nbytes - span[0].start
            if chosen and total > _HELD_NBYTES:
                break
            chosen.append(span)
        file = self.data.open(0)

        def read(span: _Span) -> None:
            start, stop = span[0].start, span[-1].start + span[-1].member.stored_nbytes
            try:
                octets = memoryview(file.read(start, stop - start))
            except CheckpointError:
                return  # each member is read by itself then, and the error is of its key
            for each in span:
                begin = each.start - start
                self._held[each.start] = octets[begin : begin + each.member.stored_nbytes]

        do_all(read, chosen, self.data.traits)


def _spans(places: Sequence[PlacedMember]) -> list[_Span]:
    """Return the members of at most a span, in groups of neighbours."""
    spans: list[_Span] = []
    for each in sorted(places, key=lambda place: place.start):
        if each.member.stored_nbytes > _SPAN_NBYTES:
            continue
        stop = spans[-1][-1].start + spans[-1][-1].member.stored_nbytes if spans else 0
        is_near = bool(spans) and stop <= each.start <= stop + _GAP_NBYTES
        if is_near and each.start + each.member.stored_nbytes - spans[-1][0].start <= _SPAN_NBYTES:
            spans[-1].append(each)
        else:
            spans.append([each])
    return spans


@mutable
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
        member = MemberStream(read, array.place)
        member.read_into(memoryview(bytearray(array.header.data_start)))
        return cls(0, member, array.header.swap_nbytes)

    def read_into(self, buffer: memoryview) -> None:
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


@mutable
class NpzSource(FileSource):
    """An open archive: its directory, and the headers of its arrays once they were asked for."""

    data: DataFiles = field()
    name: str
    directory: Directory
    _contents: ArchiveContents | None = None
    _index: Index | None = None
    _streams: OrderedDict[int, PayloadStream] = field(default_factory=OrderedDict)
    _transposed: dict[int, memoryview] = field(default_factory=dict)
    _expected: _ExpectedMembers = field(init=False)
    _lock: RLock = field(default_factory=new_lock)

    crc = CRC32
    bare_index = ""  # members have checksums, and their names are in the archive twice

    def __post_init__(self) -> None:
        self._expected = _ExpectedMembers(self.data)

    @property
    def index(self) -> Index:
        """The table of contents, whose keys the directory has if all names are arrays'."""
        if self._index is None:
            names = [member.name for member in self.directory.members]
            if all(name.endswith(MEMBER_SUFFIX) for name in names) and not self.directory.fault:
                keys = sorted({name.removesuffix(MEMBER_SUFFIX) for name in names})
                whole = cache(lambda: self.contents.index(self.name))
                self._index = LateIndex(keys, [self.name], whole)
            else:
                self._index = self.contents.index(self.name)
        return self._index

    @property
    def contents(self) -> ArchiveContents:
        """The contents; the first call reads the header of each member."""
        with self._lock:
            if self._contents is None:
                self._contents = self._read()
            return self._contents

    def _read(self) -> ArchiveContents:
        file = self.data.open(0)
        with prefix_errors(file.name):
            members, end, fault, cut = self.directory
            contents = _find_members(file, members, end, self.data.traits)
            if members and not (contents.arrays or contents.faults):
                raise foreign_archive("an npz file", [member.name for member in members])
        faults, places = contents.faults, contents.places
        if cut.endswith(MEMBER_SUFFIX):
            key = cut.removesuffix(MEMBER_SUFFIX)
            faults[key] = self.directory.lost().at(file.name, repr(key)).in_file(self.name)
        if fault is not None:
            self.data.note(0, fault.at(file.name))
        start = np.array([each.member.start for each in places], dtype=np.int64)
        stop = np.array([each.start + each.member.stored_nbytes for each in places], np.int64)
        for row in overlapping(start, stop).tolist():
            cause = f"Its bytes at offset {start[row]} also belong to another member."
            key = places[row].key
            faults[key] = distrusted(f"{file.name}: {key!r}: {cause}")
        keys = Counter(member.name.removesuffix(MEMBER_SUFFIX) for member in members)
        for key in (key for key, count in keys.items() if count > 1):
            cause = f"{file.name}: {key!r}: Two members of the archive have this key."
            remedy = "Write the archive again with the right one only."
            faults[key] = InvalidCheckpoint(cause, remedy)
        # An array that is too large to be transposed is listed all the same.
        contents.arrays = sorted(
            (
                each
                for each in contents.arrays
                if isinstance(faults.get(each.place.key), UnsupportedError | None)
            ),
            key=lambda each: each.place.key,
        )
        contents.unsupported = {
            key: place
            for key, place in contents.unsupported.items()
            if isinstance(faults[key], UnsupportedError)
        }
        contents.others = [place for place in contents.others if place.key not in faults]
        return contents

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        begin = int(entries.start[row])
        if entries.plain[row]:
            self.read_span(0, begin + start, buffer)
            return
        number = begin  # the position in ``contents.arrays``
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
        self._expected.expect([])
        self._streams.clear()
        self._transposed.clear()
        self.data.close()

    def findings(self) -> Sequence[Finding]:
        """Return the members that are not arrays, after comparing their CRCs."""
        findings = []
        for place in self.contents.others:
            try:
                MemberStream(self.data.open(0).read, place).skip_all()
            except CheckpointError as error:
                findings.append(Finding(place.member.name, error.cause, True))
            else:
                cause = "It is not an array, and not a part of the checkpoint."
                findings.append(Finding(place.member.name, cause, False))
        return findings

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
        """Return a function that reads the archive, or a member that is held."""
        held = self._expected.take(place)
        if held is None:
            return self.data.open(0).read
        return lambda start, nbytes: bytes(held[start - place.start :][:nbytes])

    def _read_on(self, number: int, start: int, buffer: memoryview) -> None:
        """Read from a kept stream if it is not beyond ``start`` yet, else from a new one."""
        with self._lock:
            stream = self._streams.pop(number, None)  # so that no other thread reads from it
        if stream is None or stream.position > start:
            array = self.contents.arrays[number]
            stream = PayloadStream.of(self._reader(array.place), array)
        stream.skip(start - stream.position)
        stream.read_into(buffer)
        # A stream at its end has compared its CRC, and is dropped. Of the others, the first
        # that was put back goes.
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


def open_npz(storage: Storage, name: str) -> NpzSource:
    """Open an archive. Only its directory is read, unless a name leaves open if it is an array."""
    files = DataFiles(storage, [name], named=name)
    file = files.open(0)
    with prefix_errors(file.name):
        first = first_bytes(file)
        # PK 3 4 begins a member, PK 5 6 the end record of an archive without members.
        if not first.startswith((b"PK\x03\x04", b"PK\x05\x06")):
            why = "it does not begin as a zip archive does"
            raise foreign_file("an npz file", first, file.size, why)
        directory = read_members(file.read, file.size)
        # The archive of another program is refused by the names of its members; none of them is
        # read.
        names = [member.name for member in directory.members]
        if not any(each.endswith(MEMBER_SUFFIX) for each in names) and is_known_archive(names):
            raise foreign_archive("an npz file", names)
    source = NpzSource(files, name, directory)
    if not all(each.endswith(MEMBER_SUFFIX) for each in names) or directory.fault:
        _ = source.contents
    return source
