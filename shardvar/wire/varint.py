"""Varints: unsigned 64-bit integers in base 128, the low digits first, bit 7 set on every byte but
the last.

300 is 2 * 128 + 44, and so the two bytes ``ac 02``: 0xac is the digit 44 with bit 7 set, 0x02 the
digit 2. A negative number of protobuf's ``int64`` is written as its two's complement, and so takes
ten bytes.

``encode_varints`` and ``decode_varints`` do the same for whole arrays, for the length tables of
string tensors.
"""

import numpy as np
from numpy.typing import NDArray

from shardvar.wire.damage import malformed

MAX_VARINT_NBYTES = 10
"""ceil(64 / 7): the longest varint of 64 bits."""

_ONE_BYTE = [bytes([value]) for value in range(0x80)]
"""Most varints that are written: tags, and lengths of names."""


def encode_varint(value: int) -> bytes:
    """Return the varint of ``value``, which is taken modulo 2**64 as protobuf does with negative
    numbers.

    >>> encode_varint(300).hex(" ")
    'ac 02'
    """
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    value &= 0xFFFFFFFFFFFFFFFF
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def decode_varint(data: bytes, start: int, stop: int | None = None) -> tuple[int, int]:
    """Return the varint at ``data[start]`` and the offset after it; it may not reach beyond
    ``stop``.

    >>> decode_varint(b"\\xac\\x02", 0)
    (300, 2)
    """
    stop = len(data) if stop is None else stop
    value = 0
    for position in range(start, min(start + MAX_VARINT_NBYTES, stop)):
        byte = data[position]
        value |= (byte & 0x7F) << 7 * (position - start)
        if byte < 0x80:
            if value >> 64:  # the tenth byte has room for 7 bits, and a 64-bit number uses one
                break
            return value, position + 1
    if stop - start < MAX_VARINT_NBYTES:
        raise malformed(f"The varint at offset {start} runs over the end of its {stop} bytes.")
    raise malformed(f"The varint at offset {start} is larger than 64 bits.")


def encode_varints(values: NDArray[np.uint64]) -> bytes:
    """Return the varints of an array of values, one after the other."""
    if not values.size or int(values.max()) < 0x80:
        return bytes(values.astype(np.uint8))
    shifts = np.arange(0, 7 * MAX_VARINT_NBYTES, 7, dtype=np.uint64)
    # One row a value, one column a digit. For 300, ``rest`` is [300, 2, 0, ...]: what is left from
    # each digit on. The digits are [44, 2, 0, ...]; the first gets bit 7 because more digits
    # follow. Digits are written as long as something is left from them on, which is two bytes here.
    rest = values.reshape(-1, 1) >> shifts
    digits = (rest & np.uint64(0x7F)).astype(np.uint8)
    digits[:, :-1] |= (rest[:, 1:] != 0).astype(np.uint8) << 7
    wanted = rest != 0
    wanted[:, 0] = True  # zero has one digit
    return bytes(digits[wanted])


def decode_varints(
    data: bytes | bytearray | memoryview, count: int
) -> tuple[NDArray[np.uint64], int]:
    """Return the ``count`` varints at the front of ``data`` and the offset after them.

    Each value takes a byte at least, so an array larger than ``data`` is never allocated for a
    false ``count``.

    >>> decode_varints(b"\\xac\\x02\\x05", 2)
    (array([300,   5], dtype=uint64), 3)
    """
    # The comments follow the example ``ac 02 05``, the varints of 300 and 5.
    octets = np.frombuffer(data, np.uint8)[: count * MAX_VARINT_NBYTES]

    # A byte below 0x80 ends a varint. stops = [2, 3], starts = [0, 2], widths = [2, 1].
    stops = np.flatnonzero(octets < 0x80)[:count] + 1
    if len(stops) < count:
        raise malformed(f"{count} varints were expected, and {len(data)} bytes hold {len(stops)}.")
    if not count:
        return np.zeros(0, np.uint64), 0
    starts = np.concatenate([[0], stops[:-1]])
    widths = stops - starts
    end = int(stops[-1])

    # 64 bits are nine digits of 7 bits and one bit more: a tenth byte above 1 would be shifted out
    # of the word.
    too_long = (widths > MAX_VARINT_NBYTES) | (
        (widths == MAX_VARINT_NBYTES) & (octets[stops - 1] > 1)
    )
    if too_long.any():
        raise malformed(
            f"The varint at offset {int(starts[too_long.argmax()])} is larger than 64 bits."
        )

    # A digit is shifted by 7 for each byte that comes before it in its own varint: shifts = [0, 7,
    # 0]. Then the digits [44, 2 << 7, 5] are added up from each start to the next: [44 + 256, 5].
    shifts = 7 * (np.arange(end) - np.repeat(starts, widths))
    digits = (octets[:end] & np.uint8(0x7F)).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(digits, starts), end
