"""Ordered code: numbers and strings as bytes that sort as they do, and of which none is a prefix of another.

    num(u)    := one byte n, then the n bytes of u, big-endian, without leading zeros
    string(s) := s with 00 -> 00 ff and ff -> ff 00, then 00 01
    signed(v) := n one bits, a zero bit, then v in 7n - 1 bits, big-endian, for the smallest such n   where v >= 0
                 the complement of signed(~v)                                                         where v < 0

Tensor bundles write the keys of stored slices so. Each ``decode_*`` gives the value and the offset after it, and
accepts only what ``encode_*`` writes, so that a key has one meaning and a meaning one key.
"""

import re

from shardvar.wire.damage import malformed

TERMINATOR = b"\x00\x01"
ESCAPES = {b"\x00": b"\x00\xff", b"\xff": b"\xff\x00"}

SPECIAL = re.compile(rb"[\x00\xff]")
ESCAPED = re.compile(rb"([\x00\xff])[\x00\xff]")
STRING = re.compile(rb"((?:[^\x00\xff]++|\x00\xff|\xff\x00)*+)\x00\x01")  # possessive: one pass, whatever the bytes


def encode_num(value: int) -> bytes:
    """An unsigned 64-bit integer."""
    nbytes = (value.bit_length() + 7) // 8
    return bytes([nbytes]) + value.to_bytes(nbytes, "big")


def decode_num(data: bytes, start: int) -> tuple[int, int]:
    """The unsigned integer at ``start``."""
    nbytes = data[start] if start < len(data) else 9
    stop = start + 1 + nbytes
    digits = data[start + 1 : stop]
    if nbytes > 8 or len(digits) < nbytes or digits[:1] == b"\x00":
        raise malformed(f"No number of ordered code stands at offset {start}.")
    return int.from_bytes(digits, "big"), stop


def encode_string(value: bytes) -> bytes:
    """A byte string."""
    return SPECIAL.sub(lambda match: ESCAPES[match[0]], value) + TERMINATOR


def decode_string(data: bytes, start: int) -> tuple[bytes, int]:
    """The byte string at ``start``."""
    match = STRING.match(data, start)
    if match is None:
        raise malformed(f"No string of ordered code stands at offset {start}.")
    return ESCAPED.sub(rb"\1", match[1]), match.end()


def encode_signed(value: int) -> bytes:
    """A signed 64-bit integer."""
    magnitude = ~value if value < 0 else value
    nbytes = magnitude.bit_length() // 7 + 1
    word = magnitude | _header(nbytes)
    return (word if value >= 0 else ~word & _all_ones(nbytes)).to_bytes(nbytes, "big")


def decode_signed(data: bytes, start: int) -> tuple[int, int]:
    """The signed integer at ``start``."""
    head = int.from_bytes(data[start : start + 2].ljust(2, b"\x00"), "big")
    negative = not head >> 15
    ones = head ^ 0xFFFF if negative else head
    nbytes = 16 - (ones ^ 0xFFFF).bit_length()  # as many bytes as there are leading ones
    stop = start + nbytes
    if start < len(data) and nbytes <= 10 and stop <= len(data):
        word = int.from_bytes(data[start:stop], "big")
        magnitude = (~word & _all_ones(nbytes) if negative else word) ^ _header(nbytes)
        value = ~magnitude if negative else magnitude
        if magnitude < 1 << 63 and encode_signed(value) == data[start:stop]:
            return value, stop
    raise malformed(f"No signed number of ordered code stands at offset {start}.")


def _header(nbytes: int) -> int:
    """``nbytes`` ones and a zero at the top of a word of ``nbytes`` bytes."""
    return _all_ones(nbytes) ^ ((1 << 7 * nbytes) - 1)


def _all_ones(nbytes: int) -> int:
    return (1 << 8 * nbytes) - 1
