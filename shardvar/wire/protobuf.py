"""The subset of protobuf's wire format that checkpoints use: messages of varints, fixed words and byte strings.

    message := (tag value)*                 tag := varint of (field number << 3 | wire type)
    value   := varint                       wire type 0
             | 8 bytes, little-endian       wire type 1
             | varint length, bytes         wire type 2: strings, bytes, messages, packed numbers
             | 4 bytes, little-endian       wire type 5

Groups (wire types 3 and 4) nest without a length and are refused; nothing here recurses. A reader takes the fields that
it knows and passes over the others, whatever their order; of a field that may stand once, the last one counts. A writer
of proto3 omits numbers that are 0, except inside what is repeated, and puts fields in ascending order.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from shardvar.wire.damage import malformed
from shardvar.wire.varint import decode_varint, encode_varint

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
WIDTHS = {FIXED64: 8, FIXED32: 4}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message, not yet taken for the type that its reader knows it to have."""

    number: int
    """The field's number in its message."""
    wire_type: int
    """How the value is written, one of the four above."""
    value: int | bytes
    """An unsigned integer, or the bytes of wire type 2."""
    offset: int
    """Where the field starts, in its message."""

    def uint(self) -> int:
        """The value as an unsigned integer."""
        if isinstance(self.value, int):
            return self.value
        raise malformed(f"Field {self.number} at offset {self.offset} holds bytes where a number belongs.")

    def int64(self) -> int:
        """The value as protobuf's ``int32``, ``int64`` or an enum: two's complement of 64 bits."""
        value = self.uint()
        return value - (1 << 64) if value >> 63 else value

    def octets(self) -> bytes:
        """The value as bytes, which may be a message."""
        if isinstance(self.value, int):
            raise malformed(f"Field {self.number} at offset {self.offset} holds a number where bytes belong.")
        return self.value

    def int64s(self) -> list[int]:
        """The values of a repeated integer, be they packed or one field each."""
        if isinstance(self.value, int):
            return [self.int64()]
        values, offset = [], 0
        while offset < len(self.value):
            value, offset = decode_varint(self.value, offset)
            values.append(value - (1 << 64) if value >> 63 else value)
        return values


def decode_fields(message: bytes) -> Iterator[Field]:
    """Each field of a message in the order in which it is stored."""
    offset = 0
    while offset < len(message):
        start = offset
        tag, offset = decode_varint(message, offset)
        number, wire_type = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise malformed(f"The field at offset {start} has the number {number}, which no message has.")
        value: int | bytes
        if wire_type == VARINT:
            value, offset = decode_varint(message, offset)
        elif wire_type in (FIXED32, FIXED64, BYTES):
            value, offset = _decode_bytes(message, offset, wire_type, number)
            value = value if wire_type == BYTES else int.from_bytes(value, "little")
        else:
            raise malformed(
                f"Field {number} at offset {start} has wire type {wire_type}, which messages here do not use."
            )
        yield Field(number, wire_type, value, start)


def decode_spans(message: bytes, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """``decode_fields`` of the message in ``[start, stop)``, for messages of many small fields: only what has no width.

    (number, start, stop) of the bytes of wire type 2, within ``message``; (number, value, -1) of a varint. Fixed words
    are passed over.
    """
    while start < stop:
        tag = message[start]
        if 0x08 <= tag < 0x80:
            start += 1
        else:
            tag, start = decode_varint(message, start, stop)
        number, wire_type = tag >> 3, tag & 7
        value = message[start] if start < stop else 0x80
        if value < 0x80 and wire_type in (VARINT, BYTES) and 0 < number < 1 << 29:
            start += 1
        else:
            value, start = _decode_long(message, start, stop, number, wire_type)
        if wire_type == VARINT:
            yield number, value, -1
        elif value > stop - start:
            raise malformed(
                f"Field {number} claims {value} bytes at offset {start}, where its message has {stop - start} left."
            )
        else:
            if wire_type == BYTES:
                yield number, start, start + value
            start += value


def _decode_long(message: bytes, start: int, stop: int, number: int, wire_type: int) -> tuple[int, int]:
    """What follows any tag: the value of a varint or the number of bytes of all else, and the offset after it."""
    if not 0 < number < 1 << 29:
        raise malformed(f"The field before offset {start} has the number {number}, which no message has.")
    if wire_type in WIDTHS:
        return WIDTHS[wire_type], start
    if wire_type in (VARINT, BYTES):
        return decode_varint(message, start, stop)
    raise malformed(f"Field {number} before offset {start} has wire type {wire_type}, which messages here do not use.")


def _decode_bytes(message: bytes, offset: int, wire_type: int, number: int) -> tuple[bytes, int]:
    """The bytes of a field that has a width or a length, and the offset after them."""
    if wire_type == BYTES:
        nbytes, offset = decode_varint(message, offset)
    else:
        nbytes = WIDTHS[wire_type]
    if nbytes > len(message) - offset:
        rest = len(message) - offset
        raise malformed(f"Field {number} claims {nbytes} bytes at offset {offset}, where its message has {rest} left.")
    return message[offset : offset + nbytes], offset + nbytes


def encode_varint_field(number: int, value: int) -> bytes:
    """An integer field; nothing where it is 0."""
    return encode_varint(number << 3 | VARINT) + encode_varint(value) if value else b""


def encode_fixed32_field(number: int, value: int) -> bytes:
    """A ``fixed32`` field; nothing where it is 0."""
    return encode_varint(number << 3 | FIXED32) + struct.pack("<I", value) if value else b""


def encode_bytes_field(number: int, value: bytes) -> bytes:
    """A field of bytes or a message, which is present even where it is empty."""
    return encode_varint(number << 3 | BYTES) + encode_varint(len(value)) + value
