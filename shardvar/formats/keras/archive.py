"""The HDF5 file in an archive of Keras: a member that is not compressed, whose bytes lie in the
archive as they are.

The archive's checksum covers the whole member, not single arrays: it is compared before the first
array is read. The other members, among them the configuration that Keras builds a model of, are not
read.
"""

from typing import NamedTuple

from shardvar.errors import IncompleteCheckpoint, MalformedCheckpoint, OutOfBounds, UnsupportedError
from shardvar.formats.keras.names import HDF5_MAGIC, MEMBER
from shardvar.limits import MAX_DIRECTORY_NBYTES
from shardvar.storage.protocol import ReadableFile
from shardvar.wire.crc import CRC32
from shardvar.wire.damage import SNIFF_NBYTES, WRITE_AGAIN, foreign_file, invalid, past_limit
from shardvar.wire.zip import (
    LOCAL,
    LOCAL_MAGIC,
    STORED,
    TAIL_NBYTES,
    check_local,
    check_member,
    check_supported,
    find_directory,
    local_nbytes,
    parse_directory,
)

_BLOCK_NBYTES = 1 << 22


class Span(NamedTuple):
    """The bytes of a file that are an HDF5 file, and their checksum."""

    start: int
    """The first byte, in bytes of the file."""
    nbytes: int
    """Their number."""
    crc: int | None = None
    """Their CRC-32; None for a file that is all HDF5."""


def find_member(file: ReadableFile) -> Span:
    """Return the place of the HDF5 file in an archive."""
    first = file.read(0, min(SNIFF_NBYTES, file.size))
    if not first.startswith(LOCAL_MAGIC):
        raise foreign_file(
            "an archive of Keras", first, file.size, "it does not begin as a zip archive does"
        )
    tail_nbytes = min(TAIL_NBYTES, file.size)
    place = find_directory(file.read(file.size - tail_nbytes, tail_nbytes), file.size)
    if place.nbytes > MAX_DIRECTORY_NBYTES:
        raise past_limit(f"The central directory has {place.nbytes} bytes", "MAX_DIRECTORY_NBYTES")
    found = [
        each
        for each in parse_directory(file.read(place.start, place.nbytes), place.count)
        if each.name == MEMBER
    ]
    if not found:
        cause = f"The archive has no member {MEMBER!r}, which holds the arrays."
        raise IncompleteCheckpoint(cause, "Save the model again, with its weights.")
    if len(found) > 1:
        raise invalid(
            f"The archive has {len(found)} members {MEMBER!r}, and readers choose different ones."
        )
    (member,) = found
    check_member(member)
    header = member.start
    start = (
        header + local_nbytes(file.read(header, LOCAL.size))
        if header + LOCAL.size <= place.start
        else place.start
    )
    if start + member.stored_nbytes > place.start:
        cause = (
            f"{MEMBER!r} at offset {header} reaches out of the archive, whose members end at "
            f"{place.start}."
        )
        raise OutOfBounds(cause, WRITE_AGAIN)
    check_local(file.read(header, start - header), member)
    check_supported(member)
    if member.method != STORED:
        raise UnsupportedError(
            f"{MEMBER!r} is compressed.", "Unpack the archive and pack it again: `zip -0`."
        )
    return Span(start, member.nbytes, member.crc)


def is_right(file: ReadableFile, span: Span) -> bool:
    """Return True if the bytes of a member agree with its checksum."""
    crc = 0
    for start in range(span.start, span.start + span.nbytes, _BLOCK_NBYTES):
        crc = CRC32.compute(
            file.read(start, min(_BLOCK_NBYTES, span.start + span.nbytes - start)), crc
        )
    return crc == span.crc


def find_span(file: ReadableFile, is_archive: bool) -> Span:
    """Return the HDF5 bytes of a file: the member of an archive, or all of it."""
    span = find_member(file) if is_archive else Span(0, file.size)
    first = file.read(span.start, min(SNIFF_NBYTES, span.nbytes))
    # HDF5 allows other bytes in front, a multiple of 512; Keras writes none, and a file without the
    # magic is foreign.
    if not first.startswith(HDF5_MAGIC):
        if is_archive:
            raise MalformedCheckpoint(
                f"{MEMBER!r} is not an HDF5 file: it begins otherwise.", WRITE_AGAIN
            )
        raise foreign_file("an HDF5 file", first, span.nbytes, "it begins otherwise")
    return span
