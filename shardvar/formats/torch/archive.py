"""The archives of ``torch.save``: a whole file, or one item of a file of a distributed checkpoint.

    FOLDER/data.pkl                     the pickle: what is stored, with a reference to each storage
    FOLDER/byteorder                    "little" or "big"; older files lack it and are little-endian
    FOLDER/data/0, FOLDER/data/1, …     the storages
    FOLDER/version                      "3", and further records that say nothing about tensors

FOLDER is ``archive`` or the stem of the file's name. Records are stored without compression, and
the bytes of each begin at a multiple of 64 from the beginning of the archive. Their local headers
have no sizes and no CRC, because they are written as streams; the zip's directory has them.

torch never compares the CRC-32 of a record. Here the CRC of a record is compared whenever all its
bytes are read. Where a program told torch not to compute them, all of them are 0, and none is
compared.

A fault of the directory is a fault of the archive, and a fault of a record one of the tensors that
are in it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from shardvar.errors import InvalidCheckpoint, MalformedCheckpoint, OutOfBounds, UnsupportedError
from shardvar.limits import MAX_DIRECTORY_NBYTES, MAX_PICKLE_NBYTES
from shardvar.planning.index import NO_CHECKSUM
from shardvar.wire.crc import CRC32
from shardvar.wire.damage import DISTRUST, WRITE_AGAIN, corrupt, malformed, past_limit
from shardvar.wire.zip import (
    LOCAL,
    STORED,
    TAIL_NBYTES,
    Member,
    check_local,
    check_member,
    check_supported,
    find_directory,
    local_nbytes,
    parse_directory,
)

PICKLE = "data.pkl"
_SMALL_TAIL_NBYTES = 4096
"""The bytes at an archive's end that are read first: the directory of one tensor takes some 700."""
_MAX_TEXT_NBYTES = 1 << 10

Read = Callable[[int, int], bytes]
"""A function that returns the bytes [start, start + nbytes) of a file."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of an archive."""

    start: int
    """Its first byte, in bytes of the file."""
    nbytes: int
    """Its size."""
    crc: int
    """The CRC-32 of its bytes by the archive's directory; ``NO_CHECKSUM`` if it has none."""


@dataclass(frozen=True, slots=True)
class Archive:
    """The directory of an archive."""

    read: Read
    """Reads the file that holds the archive."""
    start: int
    """The first byte of the archive, in bytes of the file."""
    stop: int
    """The first byte of its directory, in bytes of the file: records end before it."""
    members: dict[str, list[Member]]
    """The records by name, without the folder; a name that occurs twice has two."""
    has_checksums: bool
    """False if every CRC is 0, as after ``torch.serialization.set_crc32_options(False)``."""

    def has(self, name: str) -> bool:
        """Return True if there is a record of that name."""
        return name in self.members

    def record(self, name: str) -> Record:
        """Return the place of a record; raise if it is missing, occurs twice, is compressed or lies
        out of bounds."""
        found = self.members.get(name, [])
        if not found:
            raise InvalidCheckpoint(f"The archive has no record {name!r}.", WRITE_AGAIN)
        if len(found) > 1:
            cause = (
                f"The archive has {len(found)} records {name!r}, and readers choose different ones."
            )
            raise InvalidCheckpoint(cause, DISTRUST)
        (member,) = found
        check_member(member)
        # The local header lies before the directory, and so do the bytes behind it.
        header, room = self.start + member.start, self.stop - LOCAL.size
        start = (
            header + local_nbytes(self.read(header, LOCAL.size))
            if header <= room
            else self.stop + 1
        )
        if start + member.stored_nbytes > self.stop:
            cause = (
                f"The record {name!r} at offset {header} reaches out of its archive, which ends at "
                f"{self.stop}."
            )
            raise OutOfBounds(cause, WRITE_AGAIN)
        check_local(self.read(header, start - header), member)
        check_supported(member)
        return Record(start, member.nbytes, member.crc if self.has_checksums else NO_CHECKSUM)

    def check_stored(self, name: str) -> None:
        """Raise ``UnsupportedError`` if a record is compressed, as tools for zip archives do and
        torch never does."""
        if self.members[name][0].method != STORED:
            cause = f"The record {name!r} is compressed."
            raise UnsupportedError(
                cause, "Unpack the archive and pack it again without compression: `zip -0`."
            )

    def content(self, name: str, most: int = _MAX_TEXT_NBYTES) -> bytes:
        """Return the bytes of a small record, with its CRC compared."""
        record = self.record(name)
        self.check_stored(name)
        if record.nbytes > most:
            raise malformed(f"The record {name!r} has {record.nbytes} bytes, more than {most}.")
        content = self.read(record.start, record.nbytes)
        if record.crc not in (NO_CHECKSUM, CRC32.compute(content)):
            raise corrupt(
                f"The record {name!r} at offset {record.start} disagrees with its CRC-32."
            )
        return content

    def pickle(self) -> bytes:
        """Return the pickle."""
        if self.has(PICKLE) and self.members[PICKLE][0].nbytes > MAX_PICKLE_NBYTES:
            raise past_limit(
                f"The pickle has {self.members[PICKLE][0].nbytes} bytes", "MAX_PICKLE_NBYTES"
            )
        return self.content(PICKLE, MAX_PICKLE_NBYTES)

    def is_big_endian(self) -> bool:
        """Return True if the elements of the storages are big-endian."""
        order = self.content("byteorder") if self.has("byteorder") else b"little"
        if order not in (b"little", b"big"):
            raise malformed(f"The byte order is {order[:16]!r}.")
        return order == b"big"


def open_archive(read: Read, start: int, nbytes: int) -> Archive:
    """Return the directory of the archive in the bytes [start, start + nbytes) of a file."""
    # The first attempt reads a little, which is enough unless a comment or a long directory follows
    # the records.
    for most in (_SMALL_TAIL_NBYTES, TAIL_NBYTES):
        tail_nbytes = min(most, nbytes)
        tail = read(start + nbytes - tail_nbytes, tail_nbytes)
        is_last = most == TAIL_NBYTES or tail_nbytes == nbytes
        try:
            place = find_directory(tail, nbytes)
            break
        except MalformedCheckpoint:
            if is_last:
                raise
    if place.nbytes > MAX_DIRECTORY_NBYTES:
        raise past_limit(f"The central directory has {place.nbytes} bytes", "MAX_DIRECTORY_NBYTES")
    in_tail = place.start - (nbytes - tail_nbytes)
    directory = (
        tail[in_tail : in_tail + place.nbytes]
        if in_tail >= 0
        else read(start + place.start, place.nbytes)
    )
    members: dict[str, list[Member]] = {}
    has_checksums = False
    for member in parse_directory(directory, place.count):
        members.setdefault(member.name.partition("/")[2], []).append(member)
        has_checksums |= member.crc != 0
    return Archive(read, start, start + place.start, members, has_checksums)
