"""Writing the frame of a zip archive: headers of members that are stored as they are, the directory and its end.

Layout is decided before anything is known of the bytes but their sizes; the CRCs come later. A member's bytes begin at
a multiple of ``ALIGNMENT``, so that they can be mapped: an extra field of the kind that Android's zipalign uses fills
the space. Members have no date, so that the same bytes make the same archive.
"""

import struct

from shardvar.errors import UnsupportedError
from shardvar.wire.zip import (
    CENTRAL,
    CENTRAL_MAGIC,
    END,
    END64,
    END64_MAGIC,
    END_MAGIC,
    FLAG_UTF8,
    LOCAL,
    LOCAL_MAGIC,
    LOCATOR,
    LOCATOR_MAGIC,
    ONES_16,
    ONES_32,
    STORED,
    ZIP64_EXTRA,
)

ALIGNMENT = 64
"""Bytes: a cache line."""

_PADDING_EXTRA = 0xD935
_PADDING_NBYTES = 6
"""Kind and size of the field, and the alignment that it is there for."""
_DATE = 1 << 5 | 1
"""1 January 1980, the first day of zip."""
_VERSION, _VERSION_64 = 20, 45
_UNIX = 3 << 8
_ATTRIBUTES = 0o600 << 16
"""Whoever unpacks the archive may read what comes out."""


def encode_name(name: str) -> bytes:
    """A member's name as it is stored; ``UnsupportedError`` where zip cannot hold it."""
    try:
        raw_name = name.encode("utf-8")
    except UnicodeEncodeError:
        raise UnsupportedError(
            f"{name!r} cannot be encoded as a name in a zip archive.", "Rename the tensor."
        ) from None
    if len(raw_name) > ONES_16 or b"\0" in raw_name:
        cause = f"A zip archive cannot hold the name {name[:80]!r}: it has a NUL or more than {ONES_16} bytes."
        raise UnsupportedError(cause, "Rename the tensor.")
    return raw_name


def local_nbytes(start: int, raw_name: bytes, nbytes: int) -> int:
    """The size of the local header at ``start``, which the member's bytes follow at a multiple of ``ALIGNMENT``."""
    least = LOCAL.size + len(raw_name) + len(_zip64(nbytes))
    padding = -(start + least) % ALIGNMENT
    return least + padding + (ALIGNMENT if 0 < padding < _PADDING_NBYTES else 0)


def build_local(header_nbytes: int, raw_name: bytes, crc: int, nbytes: int) -> bytes:
    """The local header of that size."""
    wide = _zip64(nbytes)
    padding = header_nbytes - LOCAL.size - len(raw_name) - len(wide)
    extra = wide + (
        struct.pack("<3H", _PADDING_EXTRA, padding - 4, ALIGNMENT).ljust(padding, b"\0") if padding else b""
    )
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


def build_central(start: int, raw_name: bytes, crc: int, nbytes: int) -> bytes:
    """The directory's entry of the member whose local header is at ``start``."""
    wide = [number for number in (nbytes, nbytes, start) if number >= ONES_32]
    extra = struct.pack(f"<2H{len(wide)}Q", ZIP64_EXTRA, 8 * len(wide), *wide) if wide else b""
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
    """The end records of an archive whose directory of that size and count is at ``start``."""
    end = END.pack(
        END_MAGIC, 0, 0, min(count, ONES_16), min(count, ONES_16), min(nbytes, ONES_32), min(start, ONES_32), 0
    )
    if count < ONES_16 and nbytes < ONES_32 and start < ONES_32:
        return end
    record = END64.pack(
        END64_MAGIC, END64.size - 12, _UNIX | _VERSION_64, _VERSION_64, 0, 0, count, count, nbytes, start
    )
    return record + LOCATOR.pack(LOCATOR_MAGIC, 0, start + nbytes, 1) + end


def _zip64(nbytes: int) -> bytes:
    """The extra field of a member too large for 32 bits."""
    return struct.pack("<2H2Q", ZIP64_EXTRA, 16, nbytes, nbytes) if nbytes >= ONES_32 else b""


def _flags(raw_name: bytes) -> int:
    return 0 if raw_name.isascii() else FLAG_UTF8
