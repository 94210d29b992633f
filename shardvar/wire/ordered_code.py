"""Ordered code: numbers and strings as bytes that sort in the same order, none of them a prefix of
another.

    num(u)    := one byte n, then the n bytes of u, big-endian, without leading zeros
    string(s) := s with 00 -> 00 ff and ff -> ff 00, then 00 01
    signed(v) := n one bits, a zero bit, then v in 7n - 1 bits, big-endian, for the smallest such n   where v >= 0
                 the complement of signed(~v)                                                         where v < 0

The leading ones of ``signed`` give its length, and a longer number is a larger one, so that bytes
compare as numbers: 5 is ``85`` (one byte: 1, 0, then 000101), 64 is ``c0 40`` (two bytes: 110, then
13 bits), and -1 is ``7f``, the complement of signed(0), which is ``80``.

Tensor bundles write the keys of stored slices in this code. Each ``decode_*`` returns the value and
the offset after it, and accepts only what ``encode_*`` writes, so that a key has one meaning and a
meaning one key.
"""

import re

from shardvar.wire.damage import malformed

_TERMINATOR = b"\x00\x01"
_ESCAPES = {b"\x00": b"\x00\xff", b"\xff": b"\xff\x00"}

_SPECIAL = re.compile(rb"[\x00\xff]")
_ESCAPED = re.compile(rb"([\x00\xff])[\x00\xff]")
# Possessive: one pass over any bytes.
_STRING = re.compile(rb"((?:[^\x00\xff]++|\x00\xff|\xff\x00)*+)\x00\x01")


def encode_num(value: int) -> bytes:
    """Return an unsigned 64-bit integer in ordered code."""
    nbytes = (value.bit_length() + 7) // 8
    return bytes([nbytes]) + value.to_bytes(nbytes, "big")


def decode_num(data: bytes, start: int) -> tuple[int, int]:
    """Return the unsigned integer at ``start``, and the offset after it."""
    # 9 is one byte more than a number can have, and refused below.
    nbytes = data[start] if start < len(data) else 9
    stop = start + 1 + nbytes
    digits = data[start + 1 : stop]
    if nbytes > 8 or len(digits) < nbytes or digits[:1] == b"\x00":
        raise malformed(f"The bytes at offset {start} are not a number in ordered code.")
    return int.from_bytes(digits, "big"), stop


def encode_string(value: bytes) -> bytes:
    """Return a byte string in ordered code."""
    return _SPECIAL.sub(lambda match: _ESCAPES[match[0]], value) + _TERMINATOR


def decode_string(data: bytes, start: int) -> tuple[bytes, int]:
    """Return the byte string at ``start``, and the offset after it."""
    match = _STRING.match(data, start)
    if match is None:
        raise malformed(f"The bytes at offset {start} are not a string in ordered code.")
    return _ESCAPED.sub(rb"\1", match[1]), match.end()


def encode_signed(value: int) -> bytes:
    """Return a signed 64-bit integer in ordered code.

    >>> [encode_signed(value).hex(" ") for value in (5, 63, 64, -1, -65)]
    ['85', 'bf', 'c0 40', '7f', '3f bf']
    """
    magnitude = ~value if value < 0 else value
    # n bytes have 7n - 1 bits for the number: 63 has 6 bits and fits in one byte, 64 has 7 bits and
    # needs two.
    nbytes = magnitude.bit_length() // 7 + 1
    word = magnitude | _header(nbytes)
    return (word if value >= 0 else ~word & _all_ones(nbytes)).to_bytes(nbytes, "big")


def decode_signed(data: bytes, start: int) -> tuple[int, int]:
    """Return the signed integer at ``start``, and the offset after it."""
    # The first two bytes have all leading ones of the code: ten at most, since no number has more
    # bytes than ten.
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
    raise malformed(f"The bytes at offset {start} are not a signed number in ordered code.")


def _header(nbytes: int) -> int:
    """Return a word of ``nbytes`` bytes that begins with ``nbytes`` ones and is zero after them:
    0xc000 for 2."""
    return _all_ones(nbytes) ^ ((1 << 7 * nbytes) - 1)


def _all_ones(nbytes: int) -> int:
    return (1 << 8 * nbytes) - 1
