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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import lt

import numpy as np

from shardvar.errors import at
from shardvar.wire.crc import CRC32C, mask
from shardvar.wire.damage import corrupt, invalid, malformed
from shardvar.wire.foreign import SNIFF_NBYTES, not_a
from shardvar.wire.snappy import decompress
from shardvar.wire.varint import decode_varint

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
        with at(f"block {number}"):
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
    with at(f"footer at offset {limit}"):
        _, _, position = decode_handle(footer, 0)
        offset, nbytes, _ = decode_handle(footer, position)
    with at("index block"):
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
        with at(f"block at offset {offset}"):
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
