"""LevelDB's sorted table: keys and values in blocks, and an index of the blocks. A tensor bundle's index is one.

    table   := (block trailer)*, metaindex block and trailer, index block and trailer, footer
    block   := entry*, restart uint32 each, number of restarts uint32
    entry   := varint shared | varint unshared | varint value length | key[shared:] | value
    trailer := type (0 plain, 1 snappy) | masked CRC32C of the block as stored and the type
    handle  := varint offset of a block | varint size without the trailer
    footer  := metaindex handle | index handle | zeros up to 40 bytes | MAGIC

Words are little-endian. A key is written as what it adds to the key before it, except at the *restarts*, where it is
whole. Keys rise strictly, as unsigned bytes, over the whole table. The index block has one entry for each block: a key
that is not below the block's last one and is below the next block's first one, and the block's handle as the value.

This reader decodes whole blocks and needs no restarts, but checks them, as other readers search by them. The metaindex
is empty and never looked at.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import lt

import numpy as np

from shardvar.errors import prefix_errors
from shardvar.wire.crc import CRC32C, mask
from shardvar.wire.damage import SNIFF_NBYTES, corrupt, invalid, malformed, not_a
from shardvar.wire.varint import decode_varint, encode_varint

Read = Callable[[int, int], bytes]
"""The bytes of the table's file from an offset on, as many as the second argument says."""

MAGIC = bytes.fromhex("57fb808b247547db")
FOOTER_NBYTES = 48
"""Two handles of at most 20 bytes and the magic."""
TRAILER_NBYTES = 5
PLAIN, SNAPPY = 0, 1


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose index block was read; its other blocks are read when they are asked for."""

    read: Read
    """Reads the table's file."""
    limit: int
    """Where the footer starts: no block reaches over it."""
    separators: list[bytes]
    """For each block, a key not below its last one and below the first one of the next block."""
    handles: list[bytes]
    """For each block, where it lies, still encoded."""

    def blocks(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """The keys and the values of each block in turn; ``InvalidCheckpoint`` where keys do not rise."""
        floor = None
        for number, separator in enumerate(self.separators):
            keys, values = self._read(number)
            if keys and ((floor is not None and keys[0] <= floor) or keys[-1] > separator):
                raise invalid(f"The keys of block {number} are not between those that the index block gives it.")
            floor = separator
            yield keys, values

    def find(self, key: bytes) -> bytes | None:
        """The value of a key, or None; one block is read."""
        number = bisect_left(self.separators, key)
        if number == len(self.separators):
            return None
        keys, values = self._read(number)
        position = bisect_left(keys, key)
        return values[position] if keys[position : position + 1] == [key] else None

    def _read(self, number: int) -> tuple[list[bytes], list[bytes]]:
        offset, nbytes, _ = decode_handle(self.handles[number], 0)
        with prefix_errors(f"block {number}"):
            return decode_block(read_block(self.read, offset, nbytes, self.limit), offset)


def open_table(read: Read, size: int) -> Table:
    """The table in a file of ``size`` bytes, its footer and index block read and checked."""
    if size < FOOTER_NBYTES:
        first = read(0, min(SNIFF_NBYTES, size))
        raise not_a("a sorted table", first, size, f"its {size} bytes are fewer than the {FOOTER_NBYTES} of a footer")
    limit = size - FOOTER_NBYTES
    footer = read(limit, FOOTER_NBYTES)
    if not footer.endswith(MAGIC):
        why = f"{footer[-8:].hex()} stands at offset {size - 8}, where {MAGIC.hex()} belongs"
        raise not_a("a sorted table", read(0, min(SNIFF_NBYTES, size)), size, why)
    with prefix_errors(f"footer at offset {limit}"):
        _, _, position = decode_handle(footer, 0)
        offset, nbytes, _ = decode_handle(footer, position)
    with prefix_errors("index block"):
        separators, handles = decode_block(read_block(read, offset, nbytes, limit), offset)
    return Table(read, limit, separators, handles)


def decode_handle(data: bytes, position: int) -> tuple[int, int, int]:
    """Where a block lies and how many bytes it has, and the offset after the handle."""
    offset, position = decode_varint(data, position)
    nbytes, position = decode_varint(data, position)
    return offset, nbytes, position


def read_block(read: Read, offset: int, nbytes: int, limit: int) -> bytes:
    """The block at that place of the file, its checksum checked, decompressed."""
    if offset + nbytes + TRAILER_NBYTES > limit:
        raise malformed(f"A block of {nbytes} bytes at offset {offset} would reach over the footer at {limit}.")
    stored = read(offset, nbytes + TRAILER_NBYTES)
    expected, actual = int.from_bytes(stored[-4:], "little"), mask(CRC32C.compute(memoryview(stored)[:-4]))
    if actual != expected:
        raise corrupt(
            f"The {nbytes} bytes at offset {offset} have the checksum {actual:08x}, and {expected:08x} is stored."
        )
    compression = stored[nbytes]
    if compression == PLAIN:
        return stored[:nbytes]
    if compression == SNAPPY:
        with prefix_errors(f"block at offset {offset}"):
            return decompress(stored[:nbytes])
    raise malformed(f"The block at offset {offset} has the type {compression}; 0 (plain) and 1 (snappy) are known.")


def decode_block(block: bytes, offset: int) -> tuple[list[bytes], list[bytes]]:
    """The keys and the values of a block, which started at ``offset`` of its file; keys rise strictly."""
    stop = _check_restarts(block, offset)
    keys: list[bytes] = []
    values: list[bytes] = []
    key, position = b"", 0
    while position < stop:
        # Almost every length fits in a byte. The three bytes are there: restarts follow the last entry.
        shared, unshared, nbytes = block[position], block[position + 1], block[position + 2]
        start = position + 3
        if (shared | unshared | nbytes) > 0x7F:
            shared, start = decode_varint(block, position, stop)
            unshared, start = decode_varint(block, start, stop)
            nbytes, start = decode_varint(block, start, stop)
        middle = start + unshared
        end = middle + nbytes
        if end > stop or shared > len(key):
            raise malformed(
                f"The entry at offset {position} of the block at offset {offset} reaches out of what there is."
            )
        key = key[:shared] + block[start:middle]
        keys.append(key)
        values.append(block[middle:end])
        position = end
    if not all(map(lt, keys, keys[1:])):
        first = next(i for i in range(1, len(keys)) if keys[i] <= keys[i - 1])
        raise invalid(
            f"Key {keys[first]!r} follows {keys[first - 1]!r} in the block at offset {offset}: keys must rise."
        )
    return keys, values


def _check_restarts(block: bytes, offset: int) -> int:
    """Where the entries of a block stop; its restarts must rise from 0 and stand where keys are whole."""
    count = struct.unpack_from("<I", block, len(block) - 4)[0] if len(block) >= 4 else 0
    stop = len(block) - 4 - 4 * count
    if not count or stop < 0:
        raise malformed(f"The block of {len(block)} bytes at offset {offset} claims {count} restarts.")
    restarts = np.frombuffer(block, "<u4", count, stop).astype(np.int64)
    rising = restarts[0] == 0 and bool((np.diff(restarts) > 0).all()) and (restarts[-1] < max(stop, 1))
    if not rising or np.frombuffer(block, np.uint8, stop)[restarts[restarts < stop]].any():
        raise malformed(f"A restart of the block at offset {offset} is not where a whole key stands.")
    return stop


# Writing a sorted table (``sstable``), byte for byte as TensorFlow writes the index of a tensor bundle.
#
# A block is closed once it is ``BLOCK_NBYTES`` long, counted with its restarts, or before an entry of twice that. Every
# 16th key of a block is whole; in the index block every one. Nothing is compressed.


BLOCK_NBYTES = 262144
"""TensorFlow's ``table::Options::block_size``."""
RESTART_INTERVAL = 16
SMALL_VARINTS = [encode_varint(value) for value in range(1 << 14)]
"""The varints of the lengths that keys and values mostly have."""


@dataclass(slots=True)
class _Block:
    """A block that is being filled."""

    interval: int
    """How many keys there are from one whole key to the next."""
    entries: bytearray = field(default_factory=bytearray)
    """The entries so far."""
    restarts: list[int] = field(default_factory=lambda: [0])
    """Where the whole keys stand, in the entries."""
    count: int = 0
    """How many keys have come since the last restart, that one included."""
    last: bytes = b""
    """The key that was added last."""

    def add(self, key: bytes, value: bytes) -> None:
        """Append an entry; keys must come in rising order."""
        if self.count == self.interval:
            self.restarts.append(len(self.entries))
            self.count = 0
        shared = _shared_nbytes(self.last, key) if self.count else 0
        unshared = key[shared:]
        self.entries += _varint(shared) + _varint(len(unshared)) + _varint(len(value))
        self.entries += unshared
        self.entries += value
        self.count += 1
        self.last = key

    def nbytes(self) -> int:
        """How long the block would be if it were closed now."""
        return len(self.entries) + 4 * len(self.restarts) + 4

    def close(self) -> bytes:
        """The block as it is stored, without its trailer."""
        return bytes(self.entries) + struct.pack(f"<{len(self.restarts) + 1}I", *self.restarts, len(self.restarts))


@dataclass(slots=True)
class _File:
    """The file so far, and the index of its blocks."""

    pieces: list[bytes] = field(default_factory=list)
    """Its bytes, in order."""
    nbytes: int = 0
    """How many they are."""
    index: _Block = field(default_factory=lambda: _Block(1))
    """The index block."""

    def append(self, block: _Block) -> bytes:
        """Store a block with its trailer; its handle is returned."""
        body = block.close() + bytes([PLAIN])
        handle = _varint(self.nbytes) + _varint(len(body) - 1)
        self.pieces += [body, struct.pack("<I", mask(CRC32C.compute(body)))]
        self.nbytes += len(body) + 4
        return handle


def encode_table(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The table of these keys and values, which must come in strictly rising order of keys."""
    file, block, pending = _File(), _Block(RESTART_INTERVAL), b""
    last = b""  # the last key of the block whose handle is pending: its separator needs the next block's first key
    for key, value in entries:
        if block.entries and len(key) + len(value) >= 2 * BLOCK_NBYTES:
            last, pending, block = block.last, file.append(block), _Block(RESTART_INTERVAL)
        if pending:
            file.index.add(_separator(last, key), pending)
            pending = b""
        block.add(key, value)
        if block.nbytes() >= BLOCK_NBYTES:
            last, pending, block = block.last, file.append(block), _Block(RESTART_INTERVAL)
    if block.entries:
        last, pending = block.last, file.append(block)
    metaindex = file.append(_Block(1))
    if pending:
        file.index.add(_successor(last), pending)
    handles = metaindex + file.append(file.index)
    return b"".join(file.pieces) + handles.ljust(FOOTER_NBYTES - len(MAGIC), b"\x00") + MAGIC


def _varint(value: int) -> bytes:
    return SMALL_VARINTS[value] if value < len(SMALL_VARINTS) else encode_varint(value)


def _shared_nbytes(first: bytes, second: bytes) -> int:
    """The length of the longest common prefix, read off the highest bit in which two big numbers differ."""
    nbytes = min(len(first), len(second))
    difference = int.from_bytes(first[:nbytes], "big") ^ int.from_bytes(second[:nbytes], "big")
    return nbytes - (difference.bit_length() + 7) // 8


def _separator(last: bytes, following: bytes) -> bytes:
    """A short key that is not below ``last`` and is below ``following``."""
    shared = _shared_nbytes(last, following)
    if shared < len(last) and shared < len(following) and last[shared] + 1 < following[shared]:
        return last[:shared] + bytes([last[shared] + 1])
    return last


def _successor(last: bytes) -> bytes:
    """A short key that is not below ``last``: cut after the first byte that can be raised."""
    rest = last.lstrip(b"\xff")
    if not rest:
        return last
    shared = len(last) - len(rest)
    return last[:shared] + bytes([rest[0] + 1])


# Snappy, decoding only: the compression that a table's blocks may have and that tensor bundles are never written with.
#
#     stream  := varint length of the output, element*
#     element := literal: n bytes to put out                     tag bits 0-1: 0
#              | copy: n bytes that were put out before          tag bits 0-1: 1, 2 or 3
#
# A copy of n bytes may start fewer than n bytes back, and then repeats what it puts out itself.


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
