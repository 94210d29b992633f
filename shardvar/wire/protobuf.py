"""The subset of protobuf's wire format that checkpoints use: messages of varints, fixed words and
byte strings.

    message := (tag value)*                 tag := varint of (field number << 3 | wire type)
    value   := varint                       wire type 0
             | 8 bytes, little-endian       wire type 1
             | varint length, bytes         wire type 2: strings, bytes, messages, packed numbers
             | 4 bytes, little-endian       wire type 5

Groups (wire types 3 and 4) nest without a length and are refused, so nothing here recurses. A
reader takes the fields that it knows, in any order, and skips the others; of a field that may occur
once, the last one counts. A writer of proto3 omits numbers that are 0, except inside repeated
fields, and puts fields in ascending order.

    08 96 01        field 1, wire type 0: the varint 150           (0x08 is 1 << 3 | 0)
    12 02 68 69     field 2, wire type 2: the two bytes "hi"       (0x12 is 2 << 3 | 2)

Varints are unsigned 64-bit integers in base 128, the low digits first, bit 7 set on every byte but
the last. 300 is 2 * 128 + 44, and so the two bytes ``ac 02``: 0xac is the digit 44 with bit 7 set,
0x02 the digit 2. A negative number of protobuf's ``int64`` is written as its two's complement, and
so takes ten bytes.

``encode_varints`` and ``decode_varints`` do the same for whole arrays, for the length tables of
string tensors.
"""

import struct
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from shardvar.errors import MalformedCheckpoint
from shardvar.limits import MAX_NBYTES
from shardvar.records import frozen
from shardvar.wire.damage import malformed

MAX_VARINT_NBYTES = 10  # ceil(64 / 7): the longest varint of 64 bits

_ONE_BYTE = [bytes([value]) for value in range(0x80)]
"""Most varints that are written: tags, and lengths of names."""


def encode_varint(value: int) -> bytes:
    """Return the varint of ``value`` modulo 2**64, as protobuf has negative numbers."""
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
    """Return the varint at ``data[start]``, which ends before ``stop``, and the offset after it."""
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
    if not values.size or int(values.max()) < 0x80:
        return bytes(values.astype(np.uint8))
    shifts = np.arange(0, 7 * MAX_VARINT_NBYTES, 7, dtype=np.uint64)
    # One row a value, one column a digit. For 300, ``rest`` is [300, 2, 0, ...]: the number from
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
    """Return the ``count`` varints at the front of ``data`` and the offset after them."""
    # Each value takes a byte at least, so a false ``count`` allocates no more than ``data`` has. The
    # comments follow the example ``ac 02 05``, the varints of 300 and 5.
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


_ReadAt = Callable[[int, int], bytes]  # Returns bytes of a file, by offset and count

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
WIDTHS = {FIXED64: 8, FIXED32: 4}


@frozen
class Field:
    """One field of a message, before it is converted to the type that its reader expects."""

    number: int  # the field's number in its message
    value: int | bytes  # an unsigned integer, or the bytes of wire type 2
    offset: int  # the field's first byte, counted from the beginning of its message

    def uint(self) -> int:
        if isinstance(self.value, int):
            return self.value
        raise malformed(
            f"Field {self.number} at offset {self.offset} holds bytes where a number belongs."
        )

    def int64(self) -> int:
        """Return the value as protobuf's ``int32``, ``int64`` or an enum."""
        value = self.uint()
        return value - (1 << 64) if value >> 63 else value

    def octets(self) -> bytes:
        if isinstance(self.value, int):
            raise malformed(
                f"Field {self.number} at offset {self.offset} holds a number where bytes belong."
            )
        return self.value

    def int64s(self) -> list[int]:
        """Return the values of a repeated integer, packed into one field or one in each field."""
        if isinstance(self.value, int):
            return [self.int64()]
        values, offset = [], 0
        while offset < len(self.value):
            value, offset = decode_varint(self.value, offset)
            values.append(value - (1 << 64) if value >> 63 else value)
        return values


def decode_fields(message: bytes) -> Iterator[Field]:
    offset = 0
    while offset < len(message):
        start = offset
        tag, offset = decode_varint(message, offset)
        number, wire_type = tag >> 3, tag & 7
        nbytes, offset = _decode_long(message, offset, len(message), number, wire_type)
        value: int | bytes = nbytes
        if wire_type != VARINT:
            # Compared before slicing: a slice beyond the end would silently be shorter than claimed.
            if nbytes > len(message) - offset:
                raise _past_end(number, nbytes, offset, len(message))
            value = message[offset : offset + nbytes]
            offset += nbytes
            # Fixed words become integers like varints, so that a reader need not know which of the
            # two a writer chose.
            value = value if wire_type == BYTES else int.from_bytes(value, "little")
        yield Field(number, value, start)


def decode_spans(message: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield the fields of ``message[start:stop]``, which are many and small, without a copy.

    A field of wire type 2 is (number, start, stop) of its bytes in ``message``; a varint is
    (number, value, -1). Fixed words are skipped.
    """
    # Tags and lengths of one byte, which nearly all are, are read without a call.
    while start < stop:
        # A tag of one byte has the numbers 1 to 15: 0x08 is the smallest valid tag, and 0x80 begins
        # a longer one.
        tag = message[start]
        if 0x08 <= tag < 0x80:
            start += 1
        else:
            tag, start = decode_varint(message, start, stop)
        number, wire_type = tag >> 3, tag & 7
        # 0x80 goes the long way, which raises at the end of the bytes.
        value = message[start] if start < stop else 0x80
        if value < 0x80 and wire_type in (VARINT, BYTES) and 0 < number < 1 << 29:
            start += 1
        else:
            value, start = _decode_long(message, start, stop, number, wire_type)
        if wire_type == VARINT:
            yield number, value, -1
        elif value > stop - start:
            raise _past_end(number, value, start, stop)
        else:
            if wire_type == BYTES:
                yield number, start, start + value
            start += value


_LONGEST_HEAD = 2 * MAX_VARINT_NBYTES  # bytes of a tag with a length, or with a varint


def walk_fields(
    read: _ReadAt, start: int, stop: int, end: int = MAX_NBYTES
) -> Iterator[tuple[int, int, int]]:
    """Yield fields as ``decode_spans`` does, of a file; only tags, lengths and varints are read. The last
    field may reach over the ``end`` of its file; its number is 0 if the file ends in its head."""
    room = min(stop, end)
    while start < room:
        head = read(start, min(_LONGEST_HEAD, room - start))
        try:
            tag, at = decode_varint(head, 0)
            number, wire_type = tag >> 3, tag & 7
            value, at = _decode_long(head, at, len(head), number, wire_type)
        except MalformedCheckpoint:
            is_open = head[-1] >= 0x80 or min(head[:-1], default=0x80) >= 0x80  # after its tag
            if end < stop and len(head) < _LONGEST_HEAD and is_open:
                yield 0, start, end + 1
                return
            raise
        begin = start + at
        if wire_type == VARINT:
            yield number, value, -1
            start = begin
            continue
        if value > stop - begin:
            raise _past_end(number, value, begin, stop)
        start = begin + value
        if wire_type == BYTES:
            yield number, begin, start


def _past_end(number: int, nbytes: int, start: int, stop: int) -> Exception:
    return malformed(
        f"Field {number} claims {nbytes} bytes at offset {start}, where its message has "
        f"{stop - start} left."
    )


def _decode_long(
    message: bytes, start: int, stop: int, number: int, wire_type: int
) -> tuple[int, int]:
    """Return the value of a varint, or the length of any other field, and the offset after that."""
    # Protobuf's field numbers have 29 bits: a larger one is not of a message.
    if not 0 < number < 1 << 29:
        raise malformed(f"The field before offset {start} has the invalid number {number}.")
    if wire_type in WIDTHS:
        return WIDTHS[wire_type], start
    if wire_type in (VARINT, BYTES):
        return decode_varint(message, start, stop)
    raise malformed(
        f"Field {number} before offset {start} has wire type {wire_type}, which checkpoints do "
        "not use."
    )


def encode_varint_field(number: int, value: int) -> bytes:
    """Return an integer field; empty if the value is 0, as for ``encode_fixed32_field``."""
    return encode_varint(number << 3 | VARINT) + encode_varint(value) if value else b""


def encode_fixed32_field(number: int, value: int) -> bytes:
    return encode_varint(number << 3 | FIXED32) + struct.pack("<I", value) if value else b""


def encode_bytes_field(number: int, value: bytes) -> bytes:
    """Return a field of bytes or a message, which is present even if it is empty."""
    return encode_varint(number << 3 | BYTES) + encode_varint(len(value)) + value


def encode_text_field(number: int, text: str) -> bytes:
    return encode_bytes_field(number, text.encode("utf-8", "surrogateescape"))


def encode_message_field(number: int, *fields: bytes) -> bytes:
    return encode_bytes_field(number, b"".join(fields))


def encode_map_field(number: int, key: str, *fields: bytes) -> bytes:
    """Return one entry of a map from texts to messages."""
    return encode_message_field(number, encode_text_field(1, key), encode_message_field(2, *fields))
