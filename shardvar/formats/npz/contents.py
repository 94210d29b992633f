"""The contents of an npz archive: one array a member, by the zip's directory and the header in
front of each array.

The directory has the keys, and the members have dtypes and shapes: these are read when they are
asked for. The key is the member's name without one ``.npy`` at its end. A fault of a member is a fault of its
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import numpy as np

from shardvar.errors import (
    COPY_AGAIN,
    CheckpointError,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    OutOfBounds,
    ShardvarError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import WINDOW_NBYTES, DataFiles, Window
from shardvar.layout.dtypes import code
from shardvar.planning.index import NO_CHECKSUM, EntryTable, TableIndex
from shardvar.planning.slices import TensorTable, pad
from shardvar.storage.concurrency import do_all
from shardvar.storage.protocol import ReadableFile, Traits
from shardvar.wire.crc import CRC32
from shardvar.wire.damage import (
    DISTRUST,
    WRITE_AGAIN,
    foreign_archive,
    invalid,
    malformed,
)
from shardvar.wire.npy import NPY_MAGIC, NpyHeader, parse_preamble, preamble_nbytes
from shardvar.wire.zip import (
    LOCAL,
    STORED,
    Member,
    check_local,
    check_member,
    check_supported,
    local_nbytes,
    overlapping,
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


class PlacedMember(NamedTuple):
    """A member that both of its descriptions describe alike, and its place."""

    member: Member
    """Its entry in the zip's directory."""
    start: int
    """Its first byte, after its local header, in bytes of the file."""

    @property
    def key(self) -> str:
        """The key of the array that it may be."""
        return self.member.name.removesuffix(MEMBER_SUFFIX)


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array that can be read."""

    place: PlacedMember
    """Its member."""
    header: NpyHeader
    """Its npy header."""
    checksum: int
    """The CRC32 of its elements, in their stored byte order, after decompression."""


@dataclass(frozen=True, slots=True, eq=False)
class ArchiveContents:
    """The contents of an archive."""

    index: TableIndex
    """The table of contents; ``start`` of a non-plain entry is its position in ``arrays``."""
    arrays: Sequence[StoredArray]
    """The arrays that can be read, sorted by key."""
    files: DataFiles
    """The archive, open."""
    unsupported: Mapping[str, PlacedMember]
    """The members of those faults that are arrays of a dtype that cannot be held, by key."""
    others: Sequence[PlacedMember]
    """Members that are not arrays."""


@dataclass(slots=True)
class _Headers:
    """npy headers that were parsed already: many arrays of an archive share one."""

    known: dict[bytes, tuple[NpyHeader, int]] = field(default_factory=dict)

    def parse(self, preamble: bytes) -> tuple[NpyHeader, int]:
        """Return the header, and its share of the CRC of header and elements."""
        if preamble not in self.known:
            header = parse_preamble(preamble)
            share = CRC32.combine(CRC32.compute(preamble), 0, header.nbytes)
            self.known[preamble] = header, share
        return self.known[preamble]


def read_contents(
    files: DataFiles, name: str, members: Sequence[Member], stop: int
) -> ArchiveContents:
    """Return the contents of an archive; the header of each member is read.

    Members end before ``stop``, the first byte of the directory.
    """
    file = files.open(0)
    with prefix_errors(file.name):
        found = _find_members(file, members, stop, files.traits)
        if members and not (found.arrays or found.faults):
            raise foreign_archive("an npz file", [member.name for member in members])
    faults = found.faults | _shared(file.name, members, found.places)
    # An array that is too large to be transposed is listed all the same.
    arrays = [
        each
        for each in found.arrays
        if isinstance(faults.get(each.place.key), UnsupportedError | None)
    ]
    arrays.sort(key=lambda each: each.place.key)
    return ArchiveContents(
        _table(arrays, name, faults),
        arrays,
        files,
        {
            place.key: place
            for place in found.unsupported
            if isinstance(faults[place.key], UnsupportedError)
        },
        [place for place in found.others if place.key not in faults],
    )


@dataclass(slots=True)
class _Members:
    """The members of an archive, by what they are."""

    places: list[PlacedMember] = field(default_factory=list)
    """All whose place is known."""
    arrays: list[StoredArray] = field(default_factory=list)
    unsupported: list[PlacedMember] = field(default_factory=list)
    others: list[PlacedMember] = field(default_factory=list)
    faults: dict[str, ShardvarError] = field(default_factory=dict)


def _find_members(
    file: ReadableFile, members: Sequence[Member], stop: int, traits: Traits | None
) -> _Members:
    """Read the headers of all members, which end before ``stop``, the central directory; in a
    bucket, with many requests at a time."""
    # In the order of the file, so that one window serves neighbours.
    ordered = sorted(members, key=lambda member: member.start)
    near = _NEAR_NBYTES if traits is None else _NEAR_IN_BUCKETS
    headers, groups = _Headers(), [*enumerate(_groups(ordered, near))]
    parts: dict[int, _Members] = {}

    def read(work: tuple[int, Sequence[Member]]) -> None:
        number, group = work
        parts[number] = _Members()
        nbytes = _HEADER_NBYTES + len(group[-1].raw_name)
        if len(group) > 1:
            extent = group[-1].start - group[0].start
            nbytes = WINDOW_NBYTES if traits is None else min(extent + nbytes, _GROUP_NBYTES)
        _read_members(Window(file, nbytes), group, stop, headers, parts[number])

    do_all(read, groups, traits)
    found = _Members()
    for number, _ in groups:
        part = parts[number]
        found.places += part.places
        found.arrays += part.arrays
        found.unsupported += part.unsupported
        found.others += part.others
        found.faults |= part.faults
    return found


def _groups(members: Sequence[Member], near: int) -> Iterator[Sequence[Member]]:
    """Cut members, in the order of the file, into those whose headers lie in the same windows."""
    first = 0
    for number in range(1, len(members) + 1):
        if (
            number == len(members)
            or members[number].start - members[number - 1].start > near
            or members[number].start - members[first].start > _GROUP_NBYTES
        ):
            yield members[first:number]
            first = number


def _read_members(
    window: Window, members: Sequence[Member], stop: int, headers: _Headers, found: _Members
) -> None:
    """Read the headers of members next to each other."""
    for member in members:
        is_array = False
        try:
            place = PlacedMember(member, _locate(window, member, stop))
            found.places.append(place)
            check_supported(member)
            is_array = _is_array(window, place)
            if is_array:
                found.arrays.append(_read_array(window, headers, place))
                check_transposable(found.arrays[-1])
            else:
                found.others.append(place)
        except (CheckpointError, UnsupportedError) as error:
            key = member.name.removesuffix(MEMBER_SUFFIX)
            found.faults[key] = error.at(window.file.name, repr(key))
            if is_array and isinstance(error, UnsupportedError):
                found.unsupported.append(place)


def _locate(window: Window, member: Member, stop: int) -> int:
    """Return a member's first byte after its local header, which must agree with the directory.

    All bytes of members lie before ``stop``, the beginning of the central directory. Offsets are
    bytes of the file.
    """
    check_member(member)
    start = member.start + LOCAL.size
    if start <= stop:
        start = member.start + local_nbytes(window.read(member.start, LOCAL.size))
    if start + member.stored_nbytes > stop:
        cause = (
            f"It reaches from offset {member.start} to {start + member.stored_nbytes}; the members "
            f"end at {stop}."
        )
        raise OutOfBounds(cause, WRITE_AGAIN)
    check_local(window.read(member.start, start - member.start), member)
    return start


def _is_array(window: Window, place: PlacedMember) -> bool:
    """Return True for a member that is an array by its name or its first bytes."""
    return place.member.name.endswith(MEMBER_SUFFIX) or _peek(
        window, place, _PEEK_NBYTES
    ).startswith(NPY_MAGIC)


def _read_array(window: Window, headers: _Headers, place: PlacedMember) -> StoredArray:
    """Return the array in a member, by its npy header."""
    # The header: mostly within the first bytes, which are read with their neighbours' bytes.
    member, start = place
    first = _peek(window, place, _PEEK_NBYTES)
    needed = preamble_nbytes(first[:12], member.nbytes)
    preamble = first if needed <= len(first) else _peek(window, place, needed)
    if len(preamble) < needed:
        raise malformed(f"Its compressed bytes at offset {start} end within the npy header.")

    # The size: header and elements are the whole member.
    header, share = headers.parse(preamble[:needed])
    if needed + header.nbytes > member.nbytes:
        cause = (
            f"Its shape needs {needed + header.nbytes} bytes, but its member has {member.nbytes}."
        )
        raise IncompleteCheckpoint(cause, COPY_AGAIN)
    if needed + header.nbytes < member.nbytes:
        raise invalid(
            f"Its member has {member.nbytes - needed - header.nbytes} bytes more than its shape "
            "needs."
        )

    # An array without elements is never read, so its CRC is compared now.
    if not header.nbytes and member.crc != share:
        raise CorruptCheckpoint(
            f"Its {needed} bytes at offset {start} disagree with their CRC.", COPY_AGAIN
        )
    return StoredArray(place, header, member.crc ^ share)


def check_transposable(array: StoredArray) -> None:
    """Raise ``UnsupportedError`` for an array in Fortran order too large to transpose."""
    # The shape comes from the file: an archive of 1 MiB may claim any size, and is refused beyond 1
    # GiB.
    most = max(_MODEST_NBYTES, array.place.member.stored_nbytes * _MODEST_INFLATION)
    if array.header.is_fortran and array.header.nbytes > most:
        raise transpose_error(array)


def transpose_error(array: StoredArray) -> UnsupportedError:
    """Return the error for an array in Fortran order for which there is not enough memory."""
    cause = (
        f"It is in Fortran order, and transposing it takes {2 * array.header.nbytes} bytes of "
        "memory."
    )
    return UnsupportedError(cause, "Save it again in C order, or without compression.")


def _peek(window: Window, place: PlacedMember, nbytes: int) -> bytes:
    """Return the first ``nbytes`` bytes of a member, or all if it has fewer."""
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


def _shared(
    place: str, members: Sequence[Member], placed: Sequence[PlacedMember]
) -> dict[str, ShardvarError]:
    """Return an error for each key in two members, and for each with shared bytes."""
    faults: dict[str, ShardvarError] = {}
    start = np.array([each.member.start for each in placed], dtype=np.int64)
    stop = np.array([each.start + each.member.stored_nbytes for each in placed], dtype=np.int64)
    for row in overlapping(start, stop).tolist():
        cause = (
            f"{place}: {placed[row].key!r}: Its bytes at offset {start[row]} also belong to "
            "another member."
        )
        faults[placed[row].key] = InvalidCheckpoint(cause, DISTRUST)
    keys = [member.name.removesuffix(MEMBER_SUFFIX) for member in members]
    # Reversed, so that the first member of each key is written last and stays.
    first = {key: row for row, key in reversed(list(enumerate(keys)))}
    for key in {key for row, key in enumerate(keys) if first[key] != row}:
        cause = f"{place}: {key!r}: Two members of the archive have this key."
        faults[key] = InvalidCheckpoint(cause, "Write the archive again with the right one only.")
    return faults


def _table(
    arrays: Sequence[StoredArray], name: str, faults: Mapping[str, ShardvarError]
) -> TableIndex:
    headers = [array.header for array in arrays]
    codes = np.array([code(header.dtype) for header in headers], dtype=np.int64)
    keys = [array.place.key for array in arrays]
    tensors = TensorTable(keys, codes, *pad([header.shape for header in headers], fill=1))
    plain = np.array([_is_plain(array) for array in arrays], dtype=np.bool)
    start = np.array(
        [array.place.start + array.header.data_start for array in arrays], dtype=np.int64
    )
    checksum = np.array([array.checksum for array in arrays], dtype=np.int64)
    # The source decodes and checks what is not plain: it needs the position in ``arrays``, and no
    # checksum here.
    entries = EntryTable(
        tensors.whole(),
        np.zeros(len(arrays), dtype=np.int64),
        np.where(plain, start, np.arange(len(arrays))),
        np.where(plain, checksum, NO_CHECKSUM),
        plain,
    )
    return TableIndex(entries, [name], faults=cast(Mapping[str, CheckpointError], faults))


def _is_plain(array: StoredArray) -> bool:
    return array.place.member.method == STORED and array.header.is_plain
