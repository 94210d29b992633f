"""The contents of an npz archive: one array a member, by the zip's directory and the header in front of each array.

The key is the member's name without one ``.npy`` at its end. A fault of a member is a fault of its key and leaves the
others readable. Two members of one key are both refused, because readers disagree on which of them counts. A member of
another name that does not begin as an array does was added by hand: it is a finding, and not a key.

The CRC of a zip covers header and elements. The CRC of the elements alone follows from it, because a CRC is linear:

    crc(header + elements) == combine(crc(header), 0, nbytes of elements) ^ crc(elements)

So an array that is stored without compression is verified like a payload of any other format. An example: two arrays of
the same dtype and shape have the same header, and the first term, its *share*, is computed once for both.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from shardvar.errors import (
    CheckpointError,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    OutOfBounds,
    ShardvarError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles
from shardvar.formats.protocol import Finding
from shardvar.layout.dtypes import code
from shardvar.planning.index import NO_CHECKSUM, EntryTable, TableIndex
from shardvar.planning.slices import TensorTable, pad
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.crc import CRC32
from shardvar.wire.damage import (
    COPY_AGAIN,
    DISTRUST,
    SNIFF_NBYTES,
    WRITE_AGAIN,
    foreign_file,
    invalid,
    malformed,
)
from shardvar.wire.npy import NPY_MAGIC, NpyHeader, parse_preamble, preamble_nbytes
from shardvar.wire.zip import (
    LOCAL,
    STORED,
    TAIL_NBYTES,
    DirectoryPlace,
    Member,
    check_local,
    check_member,
    find_directory,
    local_nbytes,
    overlapping,
    parse_directory,
)

MEMBER_SUFFIX = ".npy"
"""Appended to a key by NumPy to make a member's name."""

_WINDOW_NBYTES = 1 << 16
"""The bytes of one read: many headers of small members at once, or one header of a large member."""
_PEEK_NBYTES = 256
"""Bytes at the beginning of a member; nearly every npy header is shorter."""
# 512 MiB, some million members. The file states the size, and the directory is read whole, so there is a bound.
_MAX_DIRECTORY_NBYTES = 1 << 29


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array that can be read."""

    member: Member
    """Its entry in the zip's directory."""
    start: int
    """The first byte of the member, after its local header, in bytes of the file."""
    header: NpyHeader
    """Its npy header."""
    checksum: int
    """The CRC32 of its elements, in their stored byte order, after decompression."""


@dataclass(frozen=True, slots=True, eq=False)
class ArchiveContents:
    """The contents of an archive."""

    index: TableIndex
    """The table of contents; ``start`` of an entry that is not plain is its position in ``arrays``."""
    arrays: Sequence[StoredArray]
    """The arrays that can be read, sorted by key."""
    files: DataFiles
    """The archive, open."""
    findings: Sequence[Finding]
    """Members that are not arrays."""


@dataclass(slots=True)
class _Window:
    """A file that is read mostly forwards, a few bytes at a time."""

    file: ReadableFile
    start: int = 0
    data: bytes = b""

    def read(self, start: int, nbytes: int) -> bytes:
        """Return the bytes [start, start + nbytes) of the file."""
        begin = start - self.start
        if begin < 0 or begin + nbytes > len(self.data):
            # Not past the end of the file, unless the caller asks for bytes there: only then is a lack of bytes an
            # error.
            room = max(self.file.size - start, 0)
            self.data = self.file.read(start, max(min(room, _WINDOW_NBYTES), nbytes))
            self.start, begin = start, 0
        return self.data[begin : begin + nbytes]


@dataclass(slots=True)
class _Headers:
    """npy headers that were parsed already: most arrays of an archive have the same header as others."""

    known: dict[bytes, tuple[NpyHeader, int]] = field(default_factory=dict)

    def parse(self, preamble: bytes) -> tuple[NpyHeader, int]:
        """Return the header, and its share of the CRC of header and elements."""
        if preamble not in self.known:
            header = parse_preamble(preamble)
            share = CRC32.combine(CRC32.compute(preamble), 0, header.nbytes)
            self.known[preamble] = header, share
        return self.known[preamble]


def read_archive(storage: Storage, name: str) -> ArchiveContents:
    """Return the contents of an archive; only its directory and headers are read."""
    files = DataFiles(storage, [name])
    file = files.open(0)
    with prefix_errors(file.name):
        place = _find_directory(file)
        members = parse_directory(file.read(place.start, place.nbytes), place.count)
    arrays: list[StoredArray] = []
    findings: list[Finding] = []
    faults: dict[str, ShardvarError] = {}
    window, headers = _Window(file), _Headers()
    # In the order of the file, so that one window serves neighbours.
    for member in sorted(members, key=lambda member: member.start):
        key = member.name.removesuffix(MEMBER_SUFFIX)
        try:
            array = _read_array(window, headers, member, place.start)
        except (CheckpointError, UnsupportedError) as error:
            faults[key] = type(error)(f"{file.name}: {key!r}: {error.cause}", error.remedy)
            continue
        if array is None:
            findings.append(Finding(member.name, "It is not an array, and not a part of the checkpoint.", False))
        else:
            arrays.append(array)
    faults |= _shared(file.name, members, arrays)
    arrays = [array for array in arrays if _key(array) not in faults]
    arrays.sort(key=_key)
    return ArchiveContents(_table(arrays, name, faults), arrays, files, findings)


def _key(array: StoredArray) -> str:
    return array.member.name.removesuffix(MEMBER_SUFFIX)


def _find_directory(file: ReadableFile) -> DirectoryPlace:
    first = file.read(0, min(SNIFF_NBYTES, file.size))
    # PK 3 4 begins a member, PK 5 6 the end record of an archive without members.
    if not first.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        raise foreign_file("an npz file", first, file.size, "it does not begin as a zip archive does")
    tail_nbytes = min(TAIL_NBYTES, file.size)
    place = find_directory(file.read(file.size - tail_nbytes, tail_nbytes), file.size)
    if place.nbytes > _MAX_DIRECTORY_NBYTES:
        raise malformed(f"The central directory has {place.nbytes} bytes, more than {_MAX_DIRECTORY_NBYTES}.")
    return place


def _read_array(window: _Window, headers: _Headers, member: Member, stop: int) -> StoredArray | None:
    """Return the array in a member; None for a file that is not an array.

    All bytes of members lie before ``stop``, the beginning of the central directory. Offsets are bytes of the file.
    """
    # The place: after the local header, and before the directory.
    check_member(member)
    start = member.start + LOCAL.size
    if start <= stop:
        start = member.start + local_nbytes(window.read(member.start, LOCAL.size))
    if start + member.stored_nbytes > stop:
        cause = f"It reaches from offset {member.start} to {start + member.stored_nbytes}; the members end at {stop}."
        raise OutOfBounds(cause, WRITE_AGAIN)
    check_local(window.read(member.start, start - member.start), member)

    # The npy header: mostly within the first bytes, which are read with those of neighbours.
    first = _peek(window, member, start, _PEEK_NBYTES)
    if not member.name.endswith(MEMBER_SUFFIX) and not first.startswith(NPY_MAGIC):
        return None
    needed = preamble_nbytes(first[:12], member.nbytes)
    preamble = first if needed <= len(first) else _peek(window, member, start, needed)
    if len(preamble) < needed:
        raise malformed(f"Its compressed bytes at offset {start} end within the npy header.")

    # The size: header and elements are the whole member.
    header, share = headers.parse(preamble[:needed])
    if needed + header.nbytes > member.nbytes:
        cause = f"Its shape needs {needed + header.nbytes} bytes, but its member has {member.nbytes}."
        raise IncompleteCheckpoint(cause, COPY_AGAIN)
    if needed + header.nbytes < member.nbytes:
        raise invalid(f"Its member has {member.nbytes - needed - header.nbytes} bytes more than its shape needs.")

    # An array without elements is never read, so its CRC is compared now.
    if not header.nbytes and member.crc != share:
        raise CorruptCheckpoint(f"Its {needed} bytes at offset {start} disagree with their CRC.", COPY_AGAIN)
    return StoredArray(member, start, header, member.crc ^ share)


def _peek(window: _Window, member: Member, start: int, nbytes: int) -> bytes:
    """Return the first ``nbytes`` bytes of the member that begins at ``start``, or all if it has fewer."""
    nbytes = min(nbytes, member.nbytes)
    if member.method == STORED:
        return window.read(start, nbytes)
    try:
        # A header takes fewer bytes compressed than not. A stream could begin with empty deflate blocks and need more
        # than this; no writer makes such streams, and they are refused as truncated.
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(
            window.read(start, min(member.stored_nbytes, nbytes + _PEEK_NBYTES)), nbytes
        )
    except zlib.error:
        raise malformed(f"Its compressed bytes at offset {start} cannot be inflated.") from None


def _shared(place: str, members: Sequence[Member], arrays: Sequence[StoredArray]) -> dict[str, ShardvarError]:
    """Return an error for each key that two members have, and for each whose bytes belong to two members."""
    faults: dict[str, ShardvarError] = {}
    start = np.array([array.member.start for array in arrays], dtype=np.int64)
    stop = np.array([array.start + array.member.stored_nbytes for array in arrays], dtype=np.int64)
    for row in overlapping(start, stop).tolist():
        cause = f"{place}: {_key(arrays[row])!r}: Its bytes at offset {start[row]} also belong to another member."
        faults[_key(arrays[row])] = InvalidCheckpoint(cause, DISTRUST)
    keys = [member.name.removesuffix(MEMBER_SUFFIX) for member in members]
    if len(set(keys)) < len(keys):
        # Reversed, so that the first member of each key is written last and stays.
        first = {key: row for row, key in reversed(list(enumerate(keys)))}
        for key in {key for row, key in enumerate(keys) if first[key] != row}:
            cause = f"{place}: {key!r}: Two members of the archive have this key."
            faults[key] = InvalidCheckpoint(cause, "Write the archive again with the right one only.")
    return faults


def _table(arrays: Sequence[StoredArray], name: str, faults: Mapping[str, ShardvarError]) -> TableIndex:
    headers = [array.header for array in arrays]
    codes = np.array([code(header.dtype) for header in headers], dtype=np.int64)
    tensors = TensorTable([*map(_key, arrays)], codes, *pad([header.shape for header in headers], fill=1))
    plain = np.array([array.member.method == STORED and array.header.is_plain for array in arrays], dtype=np.bool)
    start = np.array([array.start + array.header.data_start for array in arrays], dtype=np.int64)
    checksum = np.array([array.checksum for array in arrays], dtype=np.int64)
    # The source decodes and checks what is not plain: it needs the position in ``arrays``, and no checksum here.
    entries = EntryTable(
        tensors.whole(),
        np.zeros(len(arrays), dtype=np.int64),
        np.where(plain, start, np.arange(len(arrays))),
        np.where(plain, checksum, NO_CHECKSUM),
        plain,
    )
    return TableIndex(entries, [name], faults=cast(Mapping[str, CheckpointError], faults))
