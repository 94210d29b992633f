"""Varints: unsigned 64-bit integers in base 128, the low digits first, bit 7 set on every byte but the last.

A negative number of protobuf's ``int64`` is written as its two's complement, hence in ten bytes. ``decode_varints`` and
``encode_varints`` are the same code over whole arrays, for the length tables of string tensors.
"""

import numpy as np
from numpy.typing import NDArray

from shardvar.wire.damage import malformed

MAX_NBYTES = 10
"""ceil(64 / 7): the longest varint of 64 bits."""
_ONE_BYTE = [bytes([value]) for value in range(0x80)]
"""Most varints that are written: tags, and lengths of names."""


def encode_varint(value: int) -> bytes:
    """The varint of ``value``, which is taken modulo 2**64 as protobuf does with negative numbers."""
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
    """The varint at ``data[start]`` and the offset after it; it may not reach beyond ``stop``."""
    stop = len(data) if stop is None else stop
    value = 0
    for position in range(start, min(start + MAX_NBYTES, stop)):
        byte = data[position]
        value |= (byte & 0x7F) << 7 * (position - start)
        if byte < 0x80:
            if value >> 64:
                break
            return value, position + 1
    if stop - start < MAX_NBYTES:
        raise malformed(f"The varint at offset {start} runs over the end of its {stop} bytes.")
    raise malformed(f"The varint at offset {start} is larger than 64 bits.")


def encode_varints(values: NDArray[np.uint64]) -> bytes:
    """The varints of an array of values, one after the other."""
    if not values.size or int(values.max()) < 0x80:
        return bytes(values.astype(np.uint8))
    shifts = np.arange(0, 7 * MAX_NBYTES, 7, dtype=np.uint64)
    rest = values.reshape(-1, 1) >> shifts  # [values, digits]: what is left from this digit on
    digits = (rest & np.uint64(0x7F)).astype(np.uint8)
    digits[:, :-1] |= (rest[:, 1:] != 0).astype(np.uint8) << 7
    wanted = rest != 0
    wanted[:, 0] = True  # zero is one digit, not none
    return bytes(digits[wanted])


def decode_varints(data: bytes | bytearray | memoryview, count: int) -> tuple[NDArray[np.uint64], int]:
    """The ``count`` varints at the front of ``data`` and the offset after them.

    Nothing is allocated for values that cannot be there, each of which takes a byte at least.
    """
    octets = np.frombuffer(data, np.uint8)[: count * MAX_NBYTES]
    stops = np.flatnonzero(octets < 0x80)[:count] + 1
    if len(stops) < count:
        raise malformed(f"{count} varints were expected, and {len(data)} bytes hold {len(stops)}.")
    if not count:
        return np.zeros(0, np.uint64), 0
    starts = np.concatenate([[0], stops[:-1]])
    widths = stops - starts
    end = int(stops[-1])
    too_long = (widths > MAX_NBYTES) | ((widths == MAX_NBYTES) & (octets[stops - 1] > 1))
    if too_long.any():
        raise malformed(f"The varint at offset {int(starts[too_long.argmax()])} is larger than 64 bits.")
    shifts = 7 * (np.arange(end) - np.repeat(starts, widths))
    digits = (octets[:end] & np.uint8(0x7F)).astype(np.uint64) << shifts.astype(np.uint64)
    return np.add.reduceat(digits, starts), end
