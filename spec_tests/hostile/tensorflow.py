"""Tensor bundles: sorted tables made by hand, so that each number in them may be any."""

import struct
from collections.abc import Iterable, Sequence

import crc32c

from spec_tests.hostile.case import Evidence


def varint(number: int) -> bytes:
    octets = bytearray()
    number &= (1 << 64) - 1
    while number >= 0x80:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*octets, number])


def proto(*fields: tuple[int, int | bytes]) -> bytes:
    """A message: integers as varints, bytes behind their lengths."""
    return b"".join(
        varint(number << 3) + varint(value)
        if isinstance(value, int)
        else varint(number << 3 | 2) + varint(len(value)) + value
        for number, value in fields
    )


def bundle_entry(
    shape: Sequence[int] = (4,),
    size: int = 16,
    *,
    dtype: int = 1,
    shard: int = 0,
    offset: int = 0,
    data: bytes = bytes(16),
    slices: Iterable[Sequence[tuple[int, int]]] = (),
) -> bytes:
    """The value of a tensor's entry; float32 unless ``dtype`` says otherwise."""
    dims = proto(*((2, proto((1, extent))) for extent in shape))
    extents = [
        proto(*((1, proto((1, start), (2, length))) for start, length in each)) for each in slices
    ]
    crc = varint(6 << 3 | 5) + struct.pack("<I", masked(data))
    return (
        proto((1, dtype), (2, dims), (3, shard), (4, offset), (5, size))
        + crc
        + proto(*((7, e) for e in extents))
    )


def masked(data: bytes) -> int:
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def block(entries: Iterable[tuple[bytes, bytes]], restarts: int = 1) -> bytes:
    body = b"".join(
        varint(0) + varint(len(key)) + varint(len(value)) + key + value for key, value in entries
    )
    return body + struct.pack("<II", 0, restarts)


def stored(content: bytes, kind: int = 0) -> bytes:
    """A block with its trailer."""
    return content + bytes([kind]) + struct.pack("<I", masked(content + bytes([kind])))


def handle(offset: int, nbytes: int) -> bytes:
    return varint(offset) + varint(nbytes)


def table(
    data: bytes,
    kind: int = 0,
    handles: Sequence[tuple[bytes, bytes]] | None = None,
    index: bytes | None = None,
) -> bytes:
    """A sorted table of one block, whose index block holds ``handles`` and whose footer the handle
    ``index``."""
    first = stored(data, kind)
    rows = [(b"\xff", handle(0, len(data)))] if handles is None else handles
    listed = block(rows)
    footer = handle(0, len(data)) + (handle(len(first), len(listed)) if index is None else index)
    return first + stored(listed) + footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


EVIDENCE = {"tensorflow": Evidence("tensorflow/sharded_var_3/sv", "tensorflow_")}
