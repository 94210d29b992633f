"""The payload of a string tensor, as a tensor bundle lays it out; every format of shardvar uses it.

    payload := varint length for each element, in C order
             | masked CRC32C of the lengths, each as a uint32 (a uint64 where larger), 4 bytes
             | the elements' bytes, one after the other

The strings "ab" and "" are ``02 00 | CRC | 61 62``, where the CRC covers the words ``02 00 00 00  00 00 00 00``.

The words are little-endian, in the payload and in what their checksum covers. In a big-endian
bundle both are big-endian; ``from_big_endian`` converts its payloads. A bundle's checksum of such a
payload does not cover its bytes as they are: it covers the lengths as words, and then the bytes
after the lengths (``bundle_checksum``).

A variant tensor is opaque: ``varint length | bytes | masked running CRC32C`` for each element. This
module computes its checksum, so that it can be copied, and nothing else.
"""

import struct
from math import prod

import numpy as np
from numpy.typing import NDArray

from shardvar.errors import ArgumentError
from shardvar.wire.crc import CRC32C, Readable, mask
from shardvar.wire.damage import corrupt, decoding, invalid, malformed
from shardvar.wire.protobuf import decode_varint, decode_varints, encode_varints

WORD_NBYTES = 4
"""Size of the checksum of the lengths, and of the checksum of each element of a variant."""


def encode(strings: NDArray[np.object_]) -> bytes:
    elements = strings.ravel().tolist()
    for element in elements:
        if not isinstance(element, bytes):
            cause = f"A string tensor holds {element!r}, of type {type(element).__name__}."
            raise ArgumentError(cause, "Give an object array of bytes.")
    lengths = np.fromiter(map(len, elements), np.uint64, len(elements))
    word = struct.pack("<I", mask(_lengths_checksum(lengths)))
    return encode_varints(lengths) + word + b"".join(elements)


def decode(payload: Readable, shape: tuple[int, ...]) -> NDArray[np.object_]:
    """Return the array of ``bytes`` of that shape; the checksum of the lengths is compared."""
    lengths, start = _read_lengths(payload, prod(shape))
    _check_lengths(payload, lengths, start, "<")
    # [n] the end of each element, in bytes of the payload; it begins its length before that.
    stops = (np.cumsum(lengths, dtype=np.uint64) + np.uint64(start + WORD_NBYTES)).tolist()
    octets = bytes(payload)
    strings = np.empty(len(stops), object)
    strings[:] = [
        octets[stop - length : stop] for stop, length in zip(stops, lengths.tolist(), strict=True)
    ]
    cause = f"No array can have the shape {shape}"
    with decoding(lambda error: invalid(f"{cause} ({error})."), ValueError):
        return strings.reshape(shape)


def bundle_checksum(payload: Readable, count: int, byteorder: str = "<") -> int:
    """Return the CRC32C, unmasked, that a tensor bundle has of a payload of strings."""
    lengths, start = _read_lengths(payload, count)
    return CRC32C.compute(memoryview(payload)[start:], _lengths_checksum(lengths, byteorder))


def variant_checksum(payload: Readable, count: int) -> int:
    """Return the CRC32C, unmasked, that a tensor bundle has of a payload of variants."""
    octets, crc, position = bytes(payload), 0, 0
    if count > len(octets):
        raise malformed(f"{count} variants cannot be in {len(octets)} bytes.")
    for _ in range(count):
        nbytes, start = decode_varint(octets, position)
        position = start + nbytes + WORD_NBYTES
        if position > len(octets):
            raise malformed(
                f"The variant of {nbytes} bytes at offset {start} runs over the end of its payload."
            )
        # The running checksum covers each length as a 64-bit word, then the element and its stored
        # checksum.
        crc = CRC32C.compute(
            memoryview(octets)[start:position], CRC32C.compute(struct.pack("<Q", nbytes), crc)
        )
    if position != len(octets):
        raise malformed(
            f"{count} variants end at offset {position} of a payload of {len(octets)} bytes."
        )
    return crc


def from_big_endian(payload: Readable, count: int) -> bytes:
    """Convert a big-endian bundle's string payload of ``count`` elements to a little-endian one."""
    lengths, start = _read_lengths(payload, count)
    _check_lengths(payload, lengths, start, ">")
    word = struct.pack("<I", mask(_lengths_checksum(lengths)))
    return bytes(payload[:start]) + word + bytes(payload[start + WORD_NBYTES :])


def _read_lengths(payload: Readable, count: int) -> tuple[NDArray[np.uint64], int]:
    """Return the elements' lengths and the offset of their checksum in the payload."""
    # Some writers store no checksum for an empty payload.
    if not count and not len(payload):
        return np.zeros(0, np.uint64), 0
    # Every length takes a byte at least, so a false count is refused before anything of its size is
    # allocated.
    if count > len(payload) - WORD_NBYTES:
        raise malformed(f"{count} strings cannot be in {len(payload)} bytes.")
    lengths, start = decode_varints(payload, count)
    if start + WORD_NBYTES > len(payload):
        raise malformed(
            f"{count} string lengths end at offset {start}, and their checksum is missing."
        )
    return lengths, start


def _check_lengths(
    payload: Readable, lengths: NDArray[np.uint64], start: int, byteorder: str
) -> None:
    """Raise if the lengths disagree with their checksum, or with the bytes that follow it."""
    if not len(payload):
        return
    word = bytes(payload[start : start + WORD_NBYTES])
    expected = struct.pack(byteorder + "I", mask(_lengths_checksum(lengths, byteorder)))
    if word != expected:
        raise corrupt(
            f"The string lengths have the checksum {expected.hex()}, but {word.hex()} is stored "
            f"at offset {start}."
        )
    # The largest is compared before the sum: a sum of 64-bit lengths could overflow to the right
    # number.
    rest = len(payload) - start - WORD_NBYTES
    if int(lengths.max(initial=0)) > rest or int(lengths.sum()) != rest:
        raise malformed(
            f"The string lengths do not add up to the {rest} bytes that follow offset {start}."
        )


def _lengths_checksum(lengths: NDArray[np.uint64], byteorder: str = "<") -> int:
    """Return the CRC32C of the lengths as words: 4 bytes each, 8 if a length needs them."""
    if not lengths.size or int(lengths.max()) < 1 << 32:
        return CRC32C.compute(lengths.astype(byteorder + "u4").tobytes())
    words = (
        struct.pack(byteorder + ("Q" if length >> 32 else "I"), length)
        for length in lengths.tolist()
    )
    return CRC32C.compute(b"".join(words))
