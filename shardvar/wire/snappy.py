"""Snappy, decoding only: the compression that a table's blocks may have and that tensor bundles are never written with.

    stream  := varint length of the output, element*
    element := literal: n bytes to put out                     tag bits 0-1: 0
             | copy: n bytes that were put out before          tag bits 0-1: 1, 2 or 3

A copy of n bytes may start fewer than n bytes back, and then repeats what it puts out itself.
"""

from shardvar.wire.damage import malformed
from shardvar.wire.varint import decode_varint

MAX_RATIO = 22
"""No element puts out more for its bytes than a 3-byte copy of 64; a claim beyond it is refused before any work."""


def decompress(data: bytes) -> bytes:
    """The bytes that were compressed to ``data``."""
    size, position = decode_varint(data, 0)
    if size > len(data) * MAX_RATIO:
        raise malformed(f"{len(data)} bytes of snappy claim to be {size}, which they cannot.")
    output = bytearray()
    while position < len(data):
        if data[position] & 3:
            nbytes, distance, position = _decode_copy(data, position)
            if not 0 < distance <= len(output):
                raise malformed(
                    f"A snappy copy before offset {position} reaches {distance} bytes back of {len(output)}."
                )
            start = len(output) - distance
            pattern = output[start : start + nbytes]
            output += (pattern * (nbytes // len(pattern) + 1))[:nbytes]
        else:
            nbytes, position = _decode_literal(data, position)
            output += data[position : position + nbytes]
            position += nbytes
        if position > len(data) or len(output) > size:
            raise malformed(f"The snappy element before offset {position} runs over the end of its {size} bytes.")
    if len(output) < size:
        raise malformed(f"{len(data)} bytes of snappy give {len(output)}, and claim to give {size}.")
    return bytes(output)


def _decode_literal(data: bytes, position: int) -> tuple[int, int]:
    """How many bytes a literal has, and where they start."""
    length = data[position] >> 2
    width = max(length - 59, 0)  # 60 to 63 say that the length follows, in one to four bytes
    start = position + 1 + width
    return (int.from_bytes(data[position + 1 : start], "little") if width else length) + 1, start


def _decode_copy(data: bytes, position: int) -> tuple[int, int, int]:
    """How many bytes a copy has, how far back they start, and the offset after the element."""
    tag = data[position]
    if tag & 3 == 1:
        low = int.from_bytes(data[position + 1 : position + 2], "little")
        return (tag >> 2 & 7) + 4, (tag >> 5) << 8 | low, position + 2
    stop = position + (3 if tag & 3 == 2 else 5)
    return (tag >> 2) + 1, int.from_bytes(data[position + 1 : stop], "little"), stop
