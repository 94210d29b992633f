"""The contents of an npz archive: one array a member, by the zip's directory and the header in
front of each array.

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
"""

import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from threading import RLock
from typing import NamedTuple, cast

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
from shardvar.formats.files import WINDOW_NBYTES, DataFiles, Window
from shardvar.planning.index import NO_CHECKSUM, EntryTable, Index, TableIndex
from shardvar.planning.slices import TensorTable
from shardvar.records import dataclass, field
from shardvar.storage.concurrency import do_all
from shardvar.storage.protocol import ReadableFile, Storage, Traits
from shardvar.wire.crc import CRC32
from shardvar.wire.damage import (
    SNIFF_NBYTES,
    corrupt,
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


@dataclass(slots=True, eq=False, repr=False)
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


@dataclass(slots=True, eq=False, repr=False)
class NpzArchive:
    """An open archive: its directory, and the headers of its arrays once they were asked for."""

    files: DataFiles
    name: str
    directory: Directory
    _contents: ArchiveContents | None = None
    _index: Index | None = None
    _lock: RLock = field(default_factory=new_lock)

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
        file = self.files.open(0)
        with prefix_errors(file.name):
            members, end, fault, cut = self.directory
            contents = _find_members(file, members, end, self.files.traits)
            if members and not (contents.arrays or contents.faults):
                raise foreign_archive("an npz file", [member.name for member in members])
        faults, places = contents.faults, contents.places
        if cut.endswith(MEMBER_SUFFIX):
            key = cut.removesuffix(MEMBER_SUFFIX)
            faults[key] = self.directory.lost().at(file.name, repr(key)).in_file(self.name)
        if fault is not None:
            self.files.note(0, fault.at(file.name))
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


def open_npz(storage: Storage, name: str) -> NpzArchive:
    """Open an archive. Only its directory is read, unless a name leaves open if it is an array."""
    files = DataFiles(storage, [name], named=name)
    file = files.open(0)
    with prefix_errors(file.name):
        first = file.read(0, min(SNIFF_NBYTES, file.size))
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
    archive = NpzArchive(files, name, directory)
    if not all(each.endswith(MEMBER_SUFFIX) for each in names) or directory.fault:
        _ = archive.contents
    return archive


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
