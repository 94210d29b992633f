"""Writing zip archives: headers, central directory and end records, with aligned members.

The frame is described in ``shardvar.wire.zip``. Sizes and offsets are planned before the bytes are
known, and the CRCs come last.
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
