"""The frame of a zip archive: the directory at its end, and the header in front of each member.

    member              local header (30 bytes, name, extra field), bytes, perhaps a data descriptor
    …
    central directory   for each member 46 bytes, name, extra field, comment
    [zip64 end record, 56 bytes or more, and its locator, 20 bytes]
    end record          22 bytes and a comment, with which the file ends

Offsets count from the beginning of the archive. *Zip64*: a number that does not fit in its 16 or 32
bits is all ones there, and is stored in 64 bits in the zip64 end record or in extra field 1 of its
member. A member of 5 GiB has the size 0xffffffff and an extra field ``01 00 | 10 00 | 64-bit size |
64-bit stored size``. Where a member was written as a stream (flag bit 3), only the directory has
its size and CRC.

Reading. The directory rules: a reader MUST find members through it. But an archive describes each
member twice, and readers that believe different descriptions see different files, so a disagreement
is refused here. A fault of the directory is a fault of the archive; any other is a fault of one
member and leaves the others readable.

Rescue. Where the directory is lost or wrong, ``read_members`` follows the local headers from the
first byte on: each member, and next to its end the next one. The size of a stream is in its data
descriptor, which is looked for: ``PK 7 8 | CRC | stored size | size``, whose stored size is the
distance from the beginning. Nothing is sought behind a place where no header is, since the bytes
of a member may be another archive.

Writing. Sizes and offsets are planned before the bytes are known, and the CRCs
come last. A member's bytes begin at a multiple of ``MEMBER_ALIGNMENT``, so that they can be mapped:
an extra field, of the kind that Android's zipalign uses, fills the gap. Members have no date, so
that the same bytes make the same archive.
"""

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardvar.errors import (
    CheckpointError,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
    OutOfBounds,
    UnsupportedError,
)
from shardvar.limits import MAX_DIRECTORY_NBYTES, MAX_INFLATION
from shardvar.records import frozen
from shardvar.wire.damage import (
    WRITE_AGAIN,
    distrusted,
    incomplete,
    invalid,
    malformed,
    past_limit,
)

_Ints = NDArray[np.int64]

STORED = 0
DEFLATED = 8

# Signature, version, flags, method, time, date, crc, stored, size, name, extra.
LOCAL = struct.Struct("<4s5HLLLHH")
CENTRAL = struct.Struct("<4s6HLLL5HLL")
# Signature, disk, first disk, count here, count, size, start, comment.
END = struct.Struct("<4s4HLLH")
END64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR = struct.Struct("<4sLQL")

LOCAL_MAGIC, CENTRAL_MAGIC, END_MAGIC = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
END64_MAGIC, LOCATOR_MAGIC = b"PK\x06\x06", b"PK\x06\x07"
ONES_16, ONES_32 = 0xFFFF, 0xFFFFFFFF
ZIP64_EXTRA = 1
_DESCRIPTOR_MAGIC = b"PK\x07\x08"
_DESCRIPTORS = struct.Struct("<LQQ"), struct.Struct("<LLL")
"""CRC, stored size, size. The wide form is tried first: a short one does not match it, because its
size would be the upper half."""
_MOST_DESCRIPTORS = 1 << 16
"""The places that may look like the descriptor of one member."""
_BLOCK_NBYTES = 1 << 22

TAIL_NBYTES = END64.size + LOCATOR.size + END.size + ONES_16
"""The bytes at the end of a file in which the end records lie: their sizes, and the longest comment
after them."""

FLAG_STREAMED, FLAG_UTF8 = 1 << 3, 1 << 11
_FLAG_MASKED = 1 << 13
"""The local header has neither name nor sizes; only the directory, which is encrypted, has them."""
_FLAG_PATCH = 1 << 5
_ENCRYPTED_FLAGS = 1 | 1 << 6 | _FLAG_MASKED
_METHODS = {9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz"}


class Member(NamedTuple):
    """A member of the central directory; a tuple, since an archive may have very many."""

    name: str  # decoded: from UTF-8 by a flag, or from code page 437
    raw_name: bytes
    flags: int  # bits, such as ``FLAG_UTF8``
    method: int  # ``STORED``, ``DEFLATED`` or another number
    crc: int  # the CRC32 of its bytes after decompression
    stored_nbytes: int  # its size in the archive
    nbytes: int  # its size after decompression
    start: int  # the first byte of its local header, in bytes of the archive


@frozen
class DirectoryPlace:
    start: int  # in bytes of the archive
    nbytes: int
    count: int  # of members


def find_directory(tail: bytes, file_nbytes: int) -> DirectoryPlace:
    """Return the central directory's place, from at least ``TAIL_NBYTES`` at the end of an archive.

    The directory must end where the end records begin. Otherwise another reader could take bytes
    between them, or in front of the archive, for another directory.
    """
    # ``end`` is an offset in ``tail``. Search backwards for an end record whose comment ends with
    # the file: the bytes of the magic may occur in the comment too.
    end = len(tail)
    while True:
        end = tail.rfind(END_MAGIC, 0, end)
        if end < 0:
            raise malformed(
                f"The archive is cut short at byte {file_nbytes}, or its end was overwritten: it has "
                "no end record of a zip archive."
            )
        if end + END.size <= len(tail) and end + END.size + END.unpack_from(tail, end)[7] == len(
            tail
        ):
            break
    _, disk, first_disk, count_here, count, nbytes, start, _ = END.unpack_from(tail, end)
    stop = file_nbytes - len(tail) + end  # the same place in bytes of the archive
    if end >= LOCATOR.size and tail.startswith(LOCATOR_MAGIC, end - LOCATOR.size):
        # Zip64: each number of the short record is all ones or agrees with the wide one.
        stop, *wide = _read_end64(tail, end - LOCATOR.size, file_nbytes)
        for narrow, value, ones in zip(
            (count, nbytes, start), wide, (ONES_16, ONES_32, ONES_32), strict=True
        ):
            if narrow not in (value, ones):
                raise invalid(
                    f"The two end records of the archive disagree: one says {narrow}, the other "
                    f"{value}."
                )
        count, nbytes, start = wide
    elif count != count_here or disk or first_disk:
        raise InvalidCheckpoint("The archive is split over several disks.", "Join it to one file.")
    if start + nbytes != stop:
        raise invalid(
            f"The central directory should end at offset {stop}, but its end record says "
            f"{start + nbytes}."
        )
    return DirectoryPlace(start, nbytes, count)


class Directory(NamedTuple):
    members: list[Member]
    stop: int
    """The end of the members: the first byte of the directory, if there is one."""
    fault: CheckpointError | None = None
    """The error of a directory that cannot be read, so that local headers gave the members."""
    cut: str = ""
    """The member that is cut off then, and is not among them."""

    def lost(self) -> IncompleteCheckpoint:
        """Return the error of the bytes in a member that local headers did not give."""
        return incomplete(
            f"It is cut off: what can be read of the archive ends at byte {self.stop}."
        )


_Read = Callable[[int, int], bytes]


def read_directory(read: _Read, nbytes: int, tails: Sequence[int] = (TAIL_NBYTES,)) -> Directory:
    """Return what the directory of an archive has. ``tails`` are the bytes at the end of which it is
    looked for, one after the other."""
    for most in tails:
        tail = read(max(nbytes - most, 0), min(most, nbytes))
        try:
            place = find_directory(tail, nbytes)
            break
        except MalformedCheckpoint:
            if most >= min(tails[-1], nbytes):
                raise
    if place.nbytes > MAX_DIRECTORY_NBYTES:
        raise past_limit(f"The central directory has {place.nbytes} bytes", "MAX_DIRECTORY_NBYTES")
    in_tail = place.start - (nbytes - len(tail))
    octets = tail[in_tail:][: place.nbytes] if in_tail >= 0 else read(place.start, place.nbytes)
    return Directory(parse_directory(octets, place.count), place.start)


def read_members(read: _Read, nbytes: int, tails: Sequence[int] = (TAIL_NBYTES,)) -> Directory:
    """Return the members of an archive, by its local headers if its directory cannot be read."""
    try:
        return read_directory(read, nbytes, tails)
    except (MalformedCheckpoint, InvalidCheckpoint) as error:
        found = _follow_headers(read, nbytes)
        if not found.members:
            raise
        return found._replace(fault=error)


def _follow_headers(read: _Read, nbytes: int) -> Directory:
    members, position, room = list[Member](), 0, MAX_DIRECTORY_NBYTES
    while position + LOCAL.size <= nbytes:
        fixed = read(position, LOCAL.size)
        if not fixed.startswith(LOCAL_MAGIC):
            break
        start = position + local_nbytes(fixed)
        room -= start - position
        if start > nbytes:
            return Directory(members, nbytes)
        if room < 0:
            break
        local = read(position, start - position)
        _, _, flags, method, _, _, crc, stored, size, name_nbytes, _ = LOCAL.unpack_from(local)
        raw_name, extra = local[LOCAL.size :][:name_nbytes], local[LOCAL.size + name_nbytes :]
        name = _decoded(raw_name, flags)
        if ONES_32 in (stored, size):
            size, stored = _widen(extra, (size, stored))
        if not name:
            break
        stop = start + stored
        if flags & FLAG_STREAMED:
            crc, stored, size, stop = _find_descriptor(read, start, nbytes) or (0, 0, 0, nbytes + 1)
        if stop > nbytes:
            return Directory(members, nbytes, cut=name)
        members.append(Member(name, raw_name, flags, method, crc, stored, size, position))
        position = stop
    return Directory(members, nbytes if nbytes - position < LOCAL.size else position)


def _find_descriptor(read: _Read, start: int, nbytes: int) -> tuple[int, int, int, int] | None:
    """Return CRC, stored size and size of the stream at ``start``, and the end of its descriptor."""
    longest, left = len(_DESCRIPTOR_MAGIC) + _DESCRIPTORS[0].size, _MOST_DESCRIPTORS
    for begin in range(start, nbytes, _BLOCK_NBYTES):
        octets = read(begin, min(_BLOCK_NBYTES + longest, nbytes - begin))
        at = octets.find(_DESCRIPTOR_MAGIC)
        while 0 <= at < _BLOCK_NBYTES and left:
            left -= 1
            for form in _DESCRIPTORS:
                stop = at + len(_DESCRIPTOR_MAGIC) + form.size
                if stop <= len(octets):
                    crc, stored, size = form.unpack_from(octets, stop - form.size)
                    if stored == begin + at - start and (size or not stored):
                        return crc, stored, size, begin + stop
            at = octets.find(_DESCRIPTOR_MAGIC, at + 1)
    return None


def parse_directory(directory: bytes, count: int) -> list[Member]:
    """Return the members that the central directory lists, in its order; ``MalformedCheckpoint`` if
    its entries do not end where it ends, or a name is not in the encoding that it claims."""
    members = []
    position = 0
    for row in range(count):
        if position + CENTRAL.size > len(directory) or not directory.startswith(
            CENTRAL_MAGIC, position
        ):
            raise malformed(
                f"The central directory should list {count} members but ends after {row}."
            )
        _, _, _, flags, method, _, _, crc, stored, nbytes, *lengths, _, _, _, start = (
            CENTRAL.unpack_from(directory, position)
        )
        name_nbytes, extra_nbytes, comment_nbytes = lengths
        name_start = position + CENTRAL.size
        extra_start = name_start + name_nbytes
        position = extra_start + extra_nbytes + comment_nbytes
        if ONES_32 in (stored, nbytes, start):
            extra = directory[extra_start : extra_start + extra_nbytes]
            nbytes, stored, start = _widen(extra, (nbytes, stored, start))
        raw_name = directory[name_start:extra_start]
        name = _decoded(raw_name, flags)
        if not name and raw_name:
            raise malformed(f"The name of the member {raw_name!r} is not UTF-8, as it claims.")
        members.append(Member(name, raw_name, flags, method, crc, stored, nbytes, start))
    if position != len(directory):
        raise malformed(
            f"The central directory has {len(directory)} bytes, but its {count} entries have "
            f"{position}."
        )
    return members


def _decoded(raw_name: bytes, flags: int) -> str:
    """Return the name of a member; empty if it is not in the encoding that it claims."""
    with suppress(UnicodeDecodeError):
        return raw_name.decode("utf-8" if flags & FLAG_UTF8 else "cp437")
    return ""


def check_member(member: Member) -> None:
    """Raise ``InvalidCheckpoint`` if the directory contradicts itself about a member."""
    if "\0" in member.name or not member.name:
        raise invalid("Its name is empty or contains a NUL, where other readers cut it.")
    if member.flags & _FLAG_PATCH:
        raise InvalidCheckpoint(
            "It is a patch to be applied to another archive.", "Write the archive again whole."
        )
    # The sizes of encrypted members, and of methods that are not known, follow other laws.
    if member.flags & _ENCRYPTED_FLAGS or member.method not in (STORED, DEFLATED):
        return
    if member.method == STORED and member.stored_nbytes != member.nbytes:
        raise invalid(
            f"It is not compressed, but has {member.stored_nbytes} bytes in the archive and "
            f"{member.nbytes} outside."
        )
    if member.nbytes > member.stored_nbytes * MAX_INFLATION:
        raise distrusted(
            f"It claims {member.nbytes} bytes, more than {member.stored_nbytes} compressed ones "
            "can become."
        )


def check_supported(member: Member) -> None:
    """Raise ``UnsupportedError`` if a member is encrypted, or its method is not read.

    Call ``check_local`` first: a member with two different descriptions is damaged.
    """
    if member.flags & _ENCRYPTED_FLAGS:
        raise UnsupportedError("It is encrypted.", "Write the archive again without encryption.")
    if member.method not in (STORED, DEFLATED):
        cause = (
            f"It is compressed by method {member.method} "
            f"({_METHODS.get(member.method, 'unknown')})."
        )
        raise UnsupportedError(
            cause, "Stored and deflated members are read: write the archive again."
        )


def local_nbytes(fixed: bytes) -> int:
    """Return the size of a local header from its first ``LOCAL.size`` bytes."""
    magic, *_, name_nbytes, extra_nbytes = LOCAL.unpack(fixed)
    if magic != LOCAL_MAGIC:
        raise malformed("The central directory points to bytes that are not a local header.")
    return LOCAL.size + int(name_nbytes) + int(extra_nbytes)


def first_name(local: bytes) -> bytes:
    """Return the name in a local header, as far as it is there; none if the header is cut."""
    name_nbytes = LOCAL.unpack_from(local)[9] if len(local) >= LOCAL.size else 0
    return local[LOCAL.size :][:name_nbytes]


def check_local(local: bytes, member: Member) -> None:
    """Raise ``InvalidCheckpoint`` if the local header disagrees with the directory."""
    _, _, flags, method, _, _, crc, stored, nbytes, name_nbytes, _ = LOCAL.unpack_from(local)
    extra_start = LOCAL.size + name_nbytes
    if ONES_32 in (stored, nbytes):
        nbytes, stored = _widen(local[extra_start:], (nbytes, stored))
    if (
        local[LOCAL.size : extra_start] != member.raw_name
        and not flags & member.flags & _FLAG_MASKED
    ):
        raise invalid(f"Its local header has another name: {local[LOCAL.size : extra_start]!r}.")
    if (flags, method) != (member.flags, member.method):
        raise invalid(
            "Its local header and the central directory disagree on its flags or its method."
        )
    if flags & _FLAG_MASKED:
        return
    # A stream's writer did not know these three when it wrote the header, and left zeros.
    is_streamed = flags & FLAG_STREAMED and not (crc or stored or nbytes)
    if not is_streamed and (crc, stored, nbytes) != (
        member.crc,
        member.stored_nbytes,
        member.nbytes,
    ):
        raise invalid("Its local header and the central directory disagree on its size or its CRC.")


def locate_member(read: Callable[[int, int], bytes], member: Member, stop: int) -> int:
    """Return the offset in the file of a member's bytes, after its local header, which is checked.
    All members end before ``stop``."""
    check_member(member)
    start = member.start + LOCAL.size
    if start <= stop:
        start = member.start + local_nbytes(read(member.start, LOCAL.size))
    if start + member.stored_nbytes > stop:
        cause = (
            f"It reaches from offset {member.start} to {start + member.stored_nbytes}; the members "
            f"end at {stop}."
        )
        raise OutOfBounds(cause, WRITE_AGAIN)
    check_local(read(member.start, start - member.start), member)
    return start


def overlapping(start: _Ints, stop: _Ints) -> _Ints:
    """Return the positions of the ranges [start, stop) that share bytes with another one.

    >>> overlapping(np.array([0, 30, 10]), np.array([20, 40, 30]))
    array([0, 2])
    """
    # Sorted by start, a range overlaps an earlier one if it starts before the largest stop so far,
    # and a later one if its successor starts before its stop: in the example, [10, 30) starts
    # before 20, and [0, 20) stops after 10.
    order = np.lexsort((stop, start))
    start, stop = start[order], stop[order]
    shares = np.zeros(len(order), dtype=np.bool)
    shares[1:] = start[1:] < np.maximum.accumulate(stop)[:-1]
    shares[:-1] |= stop[:-1] > start[1:]
    return np.sort(order[shares])


def _widen(extra: bytes, values: tuple[int, ...]) -> tuple[int, ...]:
    """Return the values, all ones replaced by the next number of the zip64 field.

    >>> _widen(struct.pack("<2HQ", 1, 8, 5 << 30), (7, 0xFFFFFFFF))
    (7, 5368709120)

    A value for which a truncated field has no number stays all ones, and is refused later as an
    offset out of bounds.
    """
    position = 0
    while position + 4 <= len(extra):
        kind, nbytes = struct.unpack_from("<2H", extra, position)
        position += 4
        if kind == ZIP64_EXTRA:
            # The field may claim more bytes than the extra has.
            there = min(nbytes, len(extra) - position)
            wide = iter(struct.iter_unpack("<Q", extra[position : position + there // 8 * 8]))
            return tuple(next(wide, (value,))[0] if value == ONES_32 else value for value in values)
        position += nbytes
    return values


def _read_end64(tail: bytes, locator: int, file_nbytes: int) -> tuple[int, int, int, int]:
    """Return the offset of the zip64 end record, and the count, size and start of the directory.
    ``locator`` is an offset in ``tail``, the last bytes of the archive."""
    _, disk, record, num_disks = LOCATOR.unpack_from(tail, locator)
    # From an offset in the archive to one in ``tail``.
    position = record - (file_nbytes - len(tail))
    if (
        position < 0
        or position + END64.size > locator
        or not tail.startswith(END64_MAGIC, position)
    ):
        raise malformed(f"The bytes at offset {record} are not a zip64 end record.")
    _, nbytes, _, _, this_disk, first_disk, count_here, count, size, start = END64.unpack_from(
        tail, position
    )
    # Its size does not count its magic and the size itself, 12 bytes.
    if position + 12 + nbytes != locator:
        raise invalid(
            f"The zip64 end record at offset {record} does not end where its locator begins."
        )
    if disk or num_disks > 1 or this_disk or first_disk or count != count_here:
        raise InvalidCheckpoint("The archive is split over several disks.", "Join it to one file.")
    return record, count, size, start


MEMBER_ALIGNMENT = 64
"""Bytes: a cache line."""
_PADDING_EXTRA = 0xD935
_PADDING_NBYTES = 6
"""Kind and least size of the field that fills a gap: kind, size and alignment, 2 bytes each."""
_DATE = 1 << 5 | 1
"""1 January 1980, the first day of zip: month 1, day 1, years since 1980 in the bits above."""
_VERSION, _VERSION_64 = 20, 45
"""The versions of zip, times ten, that a reader needs: 2.0, and 4.5 for zip64."""
_UNIX = 3 << 8
_ATTRIBUTES = 0o600 << 16
"""Permissions of unpacked files: their owner may read and write them."""


def encode_name(name: str) -> bytes:
    """Return a member's name as it is stored; ``UnsupportedError`` if zip cannot hold it."""
    try:
        raw_name = name.encode("utf-8")
    except UnicodeEncodeError:
        raise UnsupportedError(
            f"{name!r} cannot be encoded as a name in a zip archive.", "Rename the tensor."
        ) from None
    if len(raw_name) > ONES_16 or b"\0" in raw_name:
        cause = (
            f"A zip archive cannot hold the name {name[:80]!r}: it has a NUL or more than "
            f"{ONES_16} bytes."
        )
        raise UnsupportedError(cause, "Rename the tensor.")
    return raw_name


def plan_local_nbytes(start: int, raw_name: bytes, nbytes: int) -> int:
    """Return the size of the local header at ``start``, which ends at ``MEMBER_ALIGNMENT``."""
    least = LOCAL.size + len(raw_name) + len(_zip64(nbytes))
    return least + plan_padding(start + least)


def plan_padding(stop: int) -> int:
    """Return the size of a field that fills the gap at ``stop`` up to ``MEMBER_ALIGNMENT``."""
    # At offset 0 a header of 34 bytes is padded by 30. A gap of 1 to 5 bytes is too small for the
    # field that fills it, and becomes 64 bytes larger.
    padding = -stop % MEMBER_ALIGNMENT
    return padding + (MEMBER_ALIGNMENT if 0 < padding < _PADDING_NBYTES else 0)


def build_local(header_nbytes: int, raw_name: bytes, crc: int, nbytes: int) -> bytes:
    """Return the local header, of ``plan_local_nbytes``, of a member that is not compressed."""
    wide = _zip64(nbytes)
    extra = wide + _padding(header_nbytes - LOCAL.size - len(raw_name) - len(wide))
    return (
        LOCAL.pack(
            LOCAL_MAGIC,
            _VERSION_64 if wide else _VERSION,
            _flags(raw_name),
            STORED,
            0,
            _DATE,
            crc,
            ONES_32 if wide else nbytes,
            ONES_32 if wide else nbytes,
            len(raw_name),
            len(extra),
        )
        + raw_name
        + extra
    )


def build_central(start: int, raw_name: bytes, crc: int, nbytes: int, padding: int = 0) -> bytes:
    # Size, stored size and offset, if too large for 32 bits, in this order.
    wide = [number for number in (nbytes, nbytes, start) if number >= ONES_32]
    extra = struct.pack(f"<2H{len(wide)}Q", ZIP64_EXTRA, 8 * len(wide), *wide) if wide else b""
    extra += _padding(padding)
    version = _VERSION_64 if wide else _VERSION
    return (
        CENTRAL.pack(
            CENTRAL_MAGIC,
            _UNIX | version,
            version,
            _flags(raw_name),
            STORED,
            0,
            _DATE,
            crc,
            min(nbytes, ONES_32),
            min(nbytes, ONES_32),
            len(raw_name),
            len(extra),
            0,
            0,
            0,
            _ATTRIBUTES,
            min(start, ONES_32),
        )
        + raw_name
        + extra
    )


def build_end(start: int, nbytes: int, count: int) -> bytes:
    end = END.pack(
        END_MAGIC,
        0,
        0,
        min(count, ONES_16),
        min(count, ONES_16),
        min(nbytes, ONES_32),
        min(start, ONES_32),
        0,
    )
    if count < ONES_16 and nbytes < ONES_32 and start < ONES_32:
        return end
    record = END64.pack(
        END64_MAGIC,
        END64.size - 12,
        _UNIX | _VERSION_64,
        _VERSION_64,
        0,
        0,
        count,
        count,
        nbytes,
        start,
    )
    return record + LOCATOR.pack(LOCATOR_MAGIC, 0, start + nbytes, 1) + end


def _zip64(nbytes: int) -> bytes:
    """Return the extra field of a member too large for 32 bits; empty for any other."""
    return struct.pack("<2H2Q", ZIP64_EXTRA, 16, nbytes, nbytes) if nbytes >= ONES_32 else b""


def _padding(nbytes: int) -> bytes:
    field = struct.pack("<3H", _PADDING_EXTRA, max(nbytes - 4, 0), MEMBER_ALIGNMENT)
    return field.ljust(nbytes, b"\0") if nbytes else b""


def _flags(raw_name: bytes) -> int:
    return 0 if raw_name.isascii() else FLAG_UTF8
