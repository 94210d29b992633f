"""What an npz archive holds: one array a member, by the zip's directory and by the header in front of each array.

The key is the member's name without one ``.npy`` at its end. Whatever is wrong with a member makes its key a fault and
leaves the others alone; two members of one key are both refused, as which of them is meant nobody knows. A member of
another name that does not begin as an array does is a file that somebody put there: a finding, and no key.

The CRC of a zip covers header and elements. That of the elements alone follows from it, since a CRC is linear: to
append elements to the header multiplies the header's CRC and adds their own. So an array that is stored as it is can
be checked like the payload of any other format.
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
from shardvar.wire.damage import COPY_AGAIN, SNIFF_NBYTES, WRITE_AGAIN, foreign_file, invalid, malformed
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

SUFFIX = ".npy"
"""What NumPy adds to a key to make a member's name."""

_WINDOW_NBYTES = 1 << 16
"""Headers of small members are read many at a time, those of large ones one by one."""
_PEEK_NBYTES = 256
"""Nearly every npy header is shorter."""
_MAX_DIRECTORY_NBYTES = 1 << 29


@dataclass(frozen=True, slots=True)
class Array:
    """One array that can be read."""

    member: Member
    """What the zip's directory says of it."""
    start: int
    """Where the member's bytes begin, in bytes of the file."""
    header: NpyHeader
    """What its own header says."""
    checksum: int
    """The CRC32 of its elements as they are stored, once they are no longer compressed."""


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """What an archive holds."""

    index: TableIndex
    """The table of contents; ``start`` of an entry that is not plain is its place in ``arrays``."""
    arrays: Sequence[Array]
    """The arrays."""
    files: DataFiles
    """The archive, opened."""
    findings: Sequence[Finding]
    """Members that are no arrays."""


@dataclass(slots=True)
class _Window:
    """A file that is read mostly forwards, in small pieces."""

    file: ReadableFile
    start: int = 0
    data: bytes = b""

    def read(self, start: int, nbytes: int) -> bytes:
        """The bytes [start, start + nbytes)."""
        begin = start - self.start
        if begin < 0 or begin + nbytes > len(self.data):
            room = max(self.file.size - start, 0)
            self.data = self.file.read(start, max(min(room, _WINDOW_NBYTES), nbytes))
            self.start, begin = start, 0
        return self.data[begin : begin + nbytes]


@dataclass(slots=True)
class _Headers:
    """npy headers already parsed: most arrays of an archive share theirs with others."""

    known: dict[bytes, tuple[NpyHeader, int]] = field(default_factory=dict)

    def parse(self, preamble: bytes) -> tuple[NpyHeader, int]:
        """What the header says, and its share of the CRC of header and elements."""
        if preamble not in self.known:
            header = parse_preamble(preamble)
            share = CRC32.combine(CRC32.compute(preamble), 0, header.nbytes)
            self.known[preamble] = header, share
        return self.known[preamble]


def read_contents(storage: Storage, name: str) -> Contents:
    """The contents of an archive; nothing but its directory and headers is read."""
    files = DataFiles(storage, [name])
    file = files.open(0)
    with prefix_errors(file.name):
        place = _find_directory(file)
        members = parse_directory(file.read(place.start, place.nbytes), place.count)
    arrays: list[Array] = []
    findings: list[Finding] = []
    faults: dict[str, ShardvarError] = {}
    window, headers = _Window(file), _Headers()
    for member in sorted(members, key=lambda member: member.start):
        key = member.name.removesuffix(SUFFIX)
        try:
            array = _read_array(window, headers, member, place.start)
        except (CheckpointError, UnsupportedError) as error:
            faults[key] = type(error)(f"{file.name}: {key!r}: {error.cause}", error.remedy)
            continue
        if array is None:
            findings.append(Finding(member.name, "It is no array, and no part of the checkpoint.", False))
        else:
            arrays.append(array)
    faults |= _shared(file.name, members, arrays)
    arrays = [array for array in arrays if _key(array) not in faults]
    arrays.sort(key=_key)
    return Contents(_table(arrays, name, faults), arrays, files, findings)


def _key(array: Array) -> str:
    return array.member.name.removesuffix(SUFFIX)


def _find_directory(file: ReadableFile) -> DirectoryPlace:
    first = file.read(0, min(SNIFF_NBYTES, file.size))
    if not first.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        raise foreign_file("an npz file", first, file.size, "it does not begin as a zip archive does")
    tail_nbytes = min(TAIL_NBYTES, file.size)
    place = find_directory(file.read(file.size - tail_nbytes, tail_nbytes), file.size)
    if place.nbytes > _MAX_DIRECTORY_NBYTES:
        raise malformed(f"The central directory has {place.nbytes} bytes; {_MAX_DIRECTORY_NBYTES} are the most.")
    return place


def _read_array(window: _Window, headers: _Headers, member: Member, stop: int) -> Array | None:
    """The array in a member, all of whose bytes lie before ``stop``; None for a file that is none."""
    check_member(member)
    start = member.start + LOCAL.size
    if start <= stop:
        start = member.start + local_nbytes(window.read(member.start, LOCAL.size))
    if start + member.stored_nbytes > stop:
        cause = f"It reaches from offset {member.start} to {start + member.stored_nbytes}; the members end at {stop}."
        raise OutOfBounds(cause, WRITE_AGAIN)
    check_local(window.read(member.start, start - member.start), member)
    first = _peek(window, member, start, _PEEK_NBYTES)
    if not member.name.endswith(SUFFIX) and not first.startswith(NPY_MAGIC):
        return None
    needed = preamble_nbytes(first[:12], member.nbytes)
    preamble = first if needed <= len(first) else _peek(window, member, start, needed)
    if len(preamble) < needed:
        raise malformed(f"Its compressed bytes at offset {start} end within the npy header.")
    header, share = headers.parse(preamble[:needed])
    if needed + header.nbytes > member.nbytes:
        cause = f"Its shape needs {needed + header.nbytes} bytes, and its member has {member.nbytes}."
        raise IncompleteCheckpoint(cause, COPY_AGAIN)
    if needed + header.nbytes < member.nbytes:
        raise invalid(
            f"{member.nbytes - needed - header.nbytes} bytes follow its elements that its shape has no place for."
        )
    if not header.nbytes and member.crc != share:
        raise CorruptCheckpoint(
            f"Its {needed} bytes at offset {start} do not have the CRC that they should.", COPY_AGAIN
        )
    return Array(member, start, header, member.crc ^ share)


def _peek(window: _Window, member: Member, start: int, nbytes: int) -> bytes:
    """The first bytes of a member, which begins at ``start``; fewer where it has fewer."""
    nbytes = min(nbytes, member.nbytes)
    if member.method == STORED:
        return window.read(start, nbytes)
    try:
        # Compressed bytes of headers are fewer than those of headers; empty blocks could precede them, but do not.
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(
            window.read(start, min(member.stored_nbytes, nbytes + _PEEK_NBYTES)), nbytes
        )
    except zlib.error:
        raise malformed(f"Its compressed bytes at offset {start} cannot be inflated.") from None


def _shared(place: str, members: Sequence[Member], arrays: Sequence[Array]) -> dict[str, ShardvarError]:
    """Keys that two members have, or whose bytes belong to two members."""
    faults: dict[str, ShardvarError] = {}
    start = np.array([array.member.start for array in arrays], dtype=np.int64)
    stop = np.array([array.start + array.member.stored_nbytes for array in arrays], dtype=np.int64)
    for row in overlapping(start, stop).tolist():
        cause = f"{place}: {_key(arrays[row])!r}: Its bytes, at offset {start[row]}, belong to another member as well."
        faults[_key(arrays[row])] = InvalidCheckpoint(cause, "Do not trust whoever wrote the file.")
    keys = [member.name.removesuffix(SUFFIX) for member in members]
    if len(set(keys)) < len(keys):
        first = {key: row for row, key in reversed(list(enumerate(keys)))}
        for key in {key for row, key in enumerate(keys) if first[key] != row}:
            cause = f"{place}: {key!r}: Two members of the archive have this key."
            faults[key] = InvalidCheckpoint(cause, "Write the archive anew with the one that is meant.")
    return faults


def _table(arrays: Sequence[Array], name: str, faults: Mapping[str, ShardvarError]) -> TableIndex:
    headers = [array.header for array in arrays]
    codes = np.array([code(header.dtype) for header in headers], dtype=np.int64)
    tensors = TensorTable([*map(_key, arrays)], codes, *pad([header.shape for header in headers], fill=1))
    plain = np.array([array.member.method == STORED and array.header.is_plain for array in arrays], dtype=np.bool)
    start = np.array([array.start + array.header.data_start for array in arrays], dtype=np.int64)
    checksum = np.array([array.checksum for array in arrays], dtype=np.int64)
    entries = EntryTable(
        tensors.whole(),
        np.zeros(len(arrays), dtype=np.int64),
        np.where(plain, start, np.arange(len(arrays))),
        np.where(plain, checksum, NO_CHECKSUM),
        plain,
    )
    return TableIndex(entries, [name], faults=cast(Mapping[str, CheckpointError], faults))
