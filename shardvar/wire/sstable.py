"""LevelDB's sorted table: keys and values in table blocks, and an index of them. A tensor bundle's
index is one.

    table   := (table block, trailer)*, metaindex and trailer, table index and trailer, footer
    block   := entry*, restart uint32 each, number of restarts uint32
    entry   := varint shared | varint unshared | varint value length | key[shared:] | value
    trailer := type (0 plain, 1 snappy) | masked CRC32C of the block as stored and the type
    handle  := varint offset of a block | varint size without the trailer
    footer  := metaindex handle | table index handle | zeros up to 40 bytes | MAGIC

Words are little-endian; offsets count from the beginning of the file, restarts from the beginning
of their block. A key is written without the beginning that it shares with the last, except at the *restarts*,
where it is whole: after "layer/bias", the key "layer/kernel" is shared 6, unshared 6, and the bytes
"kernel". Keys rise strictly, as unsigned bytes, over the whole table. The table index has one entry
for each table block: a *separator*, which is a key not below the block's last one and below the
next block's first one, and the block's handle as the value.

Reading. Whole blocks are decoded, for which no restarts are needed; they are checked, because other
readers search by them. The metaindex is empty and never read. The decoded keys are at most
``MAX_KEY_EXPANSION`` times as large as the blocks, and blocks do not share bytes.

Writing. The bytes are the same as TensorFlow's for a tensor bundle's index: a block is closed once
it has ``TABLE_BLOCK_NBYTES`` bytes, its restarts included, or before an entry of twice that size.
Every 16th key of a table block is whole, in the table index every key. Nothing is compressed.

Ordered code. Numbers and strings as bytes that sort in the same order, none of them a prefix of
another:

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
import struct
from collections.abc import Callable, Iterable, Iterator
from operator import lt

import numpy as np

from shardvar.errors import prefix_errors
from shardvar.limits import MAX_KEY_EXPANSION, MAX_SNAPPY_RATIO
from shardvar.records import field, frozen, mutable
from shardvar.wire.crc import CRC32C, mask
from shardvar.wire.damage import SNIFF_NBYTES, corrupt, foreign_file, invalid, malformed, past_limit
from shardvar.wire.protobuf import decode_varint, encode_varint

_TERMINATOR = b"\x00\x01"
_ESCAPES = {b"\x00": b"\x00\xff", b"\xff": b"\xff\x00"}

_SPECIAL = re.compile(rb"[\x00\xff]")
_ESCAPED = re.compile(rb"([\x00\xff])[\x00\xff]")
# Possessive: one pass over any bytes.
_STRING = re.compile(rb"((?:[^\x00\xff]++|\x00\xff|\xff\x00)*+)\x00\x01")


def encode_num(value: int) -> bytes:
    nbytes = (value.bit_length() + 7) // 8
    return bytes([nbytes]) + value.to_bytes(nbytes, "big")


def decode_num(data: bytes, start: int) -> tuple[int, int]:
    # 9 is one byte more than a number can have, and refused below.
    nbytes = data[start] if start < len(data) else 9
    stop = start + 1 + nbytes
    digits = data[start + 1 : stop]
    if nbytes > 8 or len(digits) < nbytes or digits[:1] == b"\x00":
        raise malformed(f"The bytes at offset {start} are not a number in ordered code.")
    return int.from_bytes(digits, "big"), stop


def encode_string(value: bytes) -> bytes:
    return _SPECIAL.sub(lambda match: _ESCAPES[match[0]], value) + _TERMINATOR


def decode_string(data: bytes, start: int) -> tuple[bytes, int]:
    match = _STRING.match(data, start)
    if match is None:
        raise malformed(f"The bytes at offset {start} are not a string in ordered code.")
    return _ESCAPED.sub(rb"\1", match[1]), match.end()


def encode_signed(value: int) -> bytes:
    magnitude = ~value if value < 0 else value
    # n bytes have 7n - 1 bits for the number: 63 has 6 bits and fits in one byte, 64 has 7 bits and
    # needs two.
    nbytes = magnitude.bit_length() // 7 + 1
    word = magnitude | _header(nbytes)
    return (word if value >= 0 else ~word & _all_ones(nbytes)).to_bytes(nbytes, "big")


def decode_signed(data: bytes, start: int) -> tuple[int, int]:
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
    """Return a word of ``nbytes`` bytes with ``nbytes`` ones in front: 0xc000 for 2."""
    return _all_ones(nbytes) ^ ((1 << 7 * nbytes) - 1)


def _all_ones(nbytes: int) -> int:
    return (1 << 8 * nbytes) - 1


_Read = Callable[[int, int], bytes]  # (offset, nbytes) -> these bytes of the table's file

TABLE_MAGIC = bytes.fromhex("57fb808b247547db")
FOOTER_NBYTES = 48  # Two handles of at most 20 bytes and the magic
TRAILER_NBYTES = 5
PLAIN, SNAPPY = 0, 1

TABLE_BLOCK_NBYTES = 262144  # TensorFlow's ``table::Options::block_size``
RESTART_INTERVAL = 16


@frozen
class SortedTable:
    """A table whose index was read; its table blocks are read on demand."""

    read: _Read
    limit: int  # the offset of the footer, which no block may reach
    separators: list[bytes]  # of each table block
    handles: list[bytes]  # of each table block, still encoded

    def blocks(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield the keys and the values of each block; ``InvalidCheckpoint`` if keys do not rise."""
        floor, end = None, 0
        for number, separator in enumerate(self.separators):
            # Without this, a block could hold the next one as a value, which holds the next one:
            # together they are far larger than the file.
            offset, nbytes, _ = decode_handle(self.handles[number], 0)
            if offset < end:
                raise invalid(
                    f"Table block {number} begins at offset {offset}, and the one before it ends "
                    f"at {end}."
                )
            end = offset + nbytes + TRAILER_NBYTES
            keys, values = self._read(number)
            if keys and ((floor is not None and keys[0] <= floor) or keys[-1] > separator):
                raise invalid(
                    f"The keys of table block {number} are not between its separators in the "
                    "table index."
                )
            floor = separator
            yield keys, values

    def _read(self, number: int) -> tuple[list[bytes], list[bytes]]:
        offset, nbytes, _ = decode_handle(self.handles[number], 0)
        with prefix_errors(f"table block {number}"):
            return _read_entries(self.read, offset, nbytes, self.limit)


def _read_entries(
    read: _Read, offset: int, nbytes: int, limit: int
) -> tuple[list[bytes], list[bytes]]:
    return decode_table_block(read_table_block(read, offset, nbytes, limit), offset)


def open_table(read: _Read, size: int) -> SortedTable:
    """Return the table in a file of ``size`` bytes, with its footer and index read and checked."""
    if size < FOOTER_NBYTES:
        first = read(0, min(SNIFF_NBYTES, size))
        raise foreign_file(
            "a sorted table", first, size, f"it has {size} bytes, and a footer has {FOOTER_NBYTES}"
        )
    limit = size - FOOTER_NBYTES
    footer = read(limit, FOOTER_NBYTES)
    if not footer.endswith(TABLE_MAGIC):
        why = f"it has {footer[-8:].hex()} at offset {size - 8} instead of {TABLE_MAGIC.hex()}"
        raise foreign_file("a sorted table", read(0, min(SNIFF_NBYTES, size)), size, why)
    with prefix_errors(f"footer at offset {limit}"):
        _, _, position = decode_handle(footer, 0)
        offset, nbytes, _ = decode_handle(footer, position)
    with prefix_errors("table index"):
        separators, handles = _read_entries(read, offset, nbytes, limit)
    return SortedTable(read, limit, separators, handles)


def decode_handle(data: bytes, position: int) -> tuple[int, int, int]:
    offset, position = decode_varint(data, position)
    nbytes, position = decode_varint(data, position)
    return offset, nbytes, position


def read_table_block(read: _Read, offset: int, nbytes: int, limit: int) -> bytes:
    """Return the block at that place of the file, its checksum compared, decompressed."""
    if offset + nbytes + TRAILER_NBYTES > limit:
        raise malformed(
            f"A block of {nbytes} bytes at offset {offset} would reach into the footer at {limit}."
        )
    stored = read(offset, nbytes + TRAILER_NBYTES)
    expected, actual = (
        int.from_bytes(stored[-4:], "little"),
        mask(CRC32C.compute(memoryview(stored)[:-4])),
    )
    if actual != expected:
        raise corrupt(
            f"The {nbytes} bytes at offset {offset} have the checksum {actual:08x}, but "
            f"{expected:08x} is stored."
        )
    compression = stored[nbytes]
    if compression == PLAIN:
        return stored[:nbytes]
    if compression == SNAPPY:
        with prefix_errors(f"block at offset {offset}"):
            return decompress_snappy(stored[:nbytes])
    raise malformed(
        f"The block at offset {offset} has the unknown type {compression}; 0 is plain and 1 is "
        "snappy."
    )


def decode_table_block(block: bytes, offset: int) -> tuple[list[bytes], list[bytes]]:
    """Return the keys, which rise strictly, and the values; ``offset`` is for errors."""
    stop = _check_restarts(block, offset)
    keys: list[bytes] = []
    values: list[bytes] = []
    key, position = b"", 0
    room = MAX_KEY_EXPANSION * len(block)  # bytes that the keys may still have
    while position < stop:
        # Almost every length fits in one byte, and then no bit 7 is set in the three. Three bytes
        # can be read at any position before ``stop``, because a restart and the number of restarts,
        # 8 bytes, follow the last entry.
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
                f"The entry at offset {position} of the block at offset {offset} uses bytes that "
                "do not exist."
            )
        # Compared before the key is made: a key of a few bytes may repeat all of the last one.
        room -= shared + unshared
        if room < 0:
            what = (
                f"The keys up to offset {position} of the block at offset {offset} are "
                f"{MAX_KEY_EXPANSION} times as "
            )
            raise past_limit(what + f"large as its {len(block)} bytes", "MAX_KEY_EXPANSION")
        key = key[:shared] + block[start:middle]
        keys.append(key)
        values.append(block[middle:end])
        position = end
    if not all(map(lt, keys, keys[1:])):
        first = next(i for i in range(1, len(keys)) if keys[i] <= keys[i - 1])
        raise invalid(
            f"Key {keys[first]!r} follows {keys[first - 1]!r} in the block at offset {offset}, "
            "but keys must rise."
        )
    return keys, values


def _check_restarts(block: bytes, offset: int) -> int:
    """Return the offset in ``block`` where its entries end.
    Restarts must rise strictly from 0 and be offsets of whole keys (first varint 0)."""
    # A block ends with its restarts, 4 bytes each, and their count: 100 bytes with 3 restarts have
    # entries up to byte 100 - 4 - 12 = 84.
    count = struct.unpack_from("<I", block, len(block) - 4)[0] if len(block) >= 4 else 0
    stop = len(block) - 4 - 4 * count
    if not count or stop < 0:
        raise malformed(
            f"The block of {len(block)} bytes at offset {offset} claims {count} restarts."
        )
    restarts = np.frombuffer(block, "<u4", count, stop).astype(np.int64)
    rising = (
        restarts[0] == 0 and bool((np.diff(restarts) > 0).all()) and (restarts[-1] < max(stop, 1))
    )
    if not rising or np.frombuffer(block, np.uint8, stop)[restarts[restarts < stop]].any():
        raise malformed(
            f"A restart of the block at offset {offset} is not the offset of a whole key."
        )
    return stop


# --- Writing

_SMALL_VARINTS = [encode_varint(value) for value in range(1 << 14)]
"""The varints of the lengths that most keys and values have."""


@mutable
class _BlockBuilder:
    """A block that is being written."""

    interval: int  # the number of keys from one whole key to the next
    entries: bytearray = field(default_factory=bytearray)
    restarts: list[int] = field(default_factory=lambda: [0])
    """The offsets of the whole keys, in bytes of ``entries``."""
    count: int = 0  # of keys since the last restart, including its own
    last: bytes = b""  # the key that was added last

    def add(self, key: bytes, value: bytes) -> None:
        """Append an entry; the caller adds keys in rising order."""
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
        """Return the size of the block if it were closed now."""
        return len(self.entries) + 4 * len(self.restarts) + 4

    def close(self) -> bytes:
        return bytes(self.entries) + struct.pack(
            f"<{len(self.restarts) + 1}I", *self.restarts, len(self.restarts)
        )


@mutable
class _TableBuilder:
    """The file so far, and the index of its table blocks."""

    parts: list[bytes] = field(default_factory=list)
    nbytes: int = 0  # of the parts
    index: _BlockBuilder = field(default_factory=lambda: _BlockBuilder(1))

    def append(self, block: _BlockBuilder) -> bytes:
        """Add a block with its trailer and return its handle."""
        body = block.close() + bytes([PLAIN])
        handle = _varint(self.nbytes) + _varint(len(body) - 1)
        self.parts += [body, struct.pack("<I", mask(CRC32C.compute(body)))]
        self.nbytes += len(body) + 4
        return handle


def encode_table(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    table, block, pending, last = _TableBuilder(), _BlockBuilder(RESTART_INTERVAL), b"", b""
    # The separator of a block lies between its last key and the first key of the next one, so a
    # closed block's handle is kept as ``pending`` until the next key is known.
    for key, value in entries:
        if block.entries and len(key) + len(value) >= 2 * TABLE_BLOCK_NBYTES:
            last, pending, block = block.last, table.append(block), _BlockBuilder(RESTART_INTERVAL)
        if pending:
            # A short key that is not below the block's last key and is below this one.
            shared, separator = _shared_nbytes(last, key), last
            if shared < min(len(last), len(key)) and last[shared] + 1 < key[shared]:
                separator = last[:shared] + bytes([last[shared] + 1])
            table.index.add(separator, pending)
            pending = b""
        block.add(key, value)
        if block.nbytes() >= TABLE_BLOCK_NBYTES:
            last, pending, block = block.last, table.append(block), _BlockBuilder(RESTART_INTERVAL)
    if block.entries:
        last, pending = block.last, table.append(block)
    # The end of the file: the metaindex, which is empty, the table index, and the handles of both.
    metaindex = table.append(_BlockBuilder(1))
    if pending:
        # A short key that is not below the last one: cut after the first byte that can be raised.
        rest = last.lstrip(b"\xff")
        raised = last[: -len(rest)] + bytes([rest[0] + 1]) if rest else last
        table.index.add(raised, pending)
    handles = metaindex + table.append(table.index)
    return (
        b"".join(table.parts)
        + handles.ljust(FOOTER_NBYTES - len(TABLE_MAGIC), b"\x00")
        + TABLE_MAGIC
    )


def _varint(value: int) -> bytes:
    return _SMALL_VARINTS[value] if value < len(_SMALL_VARINTS) else encode_varint(value)


def _shared_nbytes(first: bytes, second: bytes) -> int:
    # As big numbers, "abX" and "abY" differ in the last byte only: their difference has at most 8
    # bits, which is one of three bytes. This takes one pass in C instead of a loop over the bytes.
    nbytes = min(len(first), len(second))
    difference = int.from_bytes(first[:nbytes], "big") ^ int.from_bytes(second[:nbytes], "big")
    return nbytes - (difference.bit_length() + 7) // 8


# --- Snappy, decoding only: the compression that a block may have. Tensor bundles are never written
# with it.
#
#     stream  := varint length of the output, element*
#     element := literal: n bytes of the stream                  tag bits 0-1: 0
#              | copy: n bytes of the output so far              tag bits 0-1: 1, 2 or 3
#
# A copy of n bytes may start fewer than n bytes back and then repeats its own output: after "ab", a
# copy of 5 bytes from 2 bytes back appends "ababa".


def decompress_snappy(data: bytes) -> bytes:
    size, position = decode_varint(data, 0)
    if size > len(data) * MAX_SNAPPY_RATIO:
        raise malformed(
            f"{len(data)} bytes of snappy claim to become {size}, more than is possible."
        )
    output = bytearray()
    while position < len(data):
        tag = data[position]
        if tag & 3:
            # Tag 1 has three bits of the size (less 4), three high bits of the distance, and a byte
            # of its low bits: the bytes ``0d 02`` are tag 1, size 3 + 4, distance 2. Tags 2 and 3
            # have six bits of the size (less 1) and then the distance in two or four bytes.
            start = position + 1
            position = start + (1, 2, 4)[(tag & 3) - 1]
            nbytes, distance = (tag >> 2) + 1, int.from_bytes(data[start:position], "little")
            if tag & 3 == 1:
                nbytes, distance = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | distance
            if not 0 < distance <= len(output):
                raise malformed(
                    f"A snappy copy before offset {position} reaches {distance} bytes back of "
                    f"{len(output)}."
                )
            # The copied bytes are a pattern of at most ``distance`` bytes, repeated: enough whole
            # patterns, then cut.
            start = len(output) - distance
            pattern = output[start : start + nbytes]
            output += (pattern * (nbytes // len(pattern) + 1))[:nbytes]
        else:
            # Lengths 60 to 63 mean that the length follows in one to four bytes.
            nbytes, start = (tag >> 2) + 1, position + 1
            position = start + max(nbytes - 60, 0)
            if position > start:
                nbytes = int.from_bytes(data[start:position], "little") + 1
            output += data[position : position + nbytes]
            position += nbytes
        if position > len(data) or len(output) > size:
            raise malformed(
                f"The snappy element before offset {position} runs over the end of its {size} "
                "bytes."
            )
    if len(output) < size:
        raise malformed(
            f"{len(data)} bytes of snappy become {len(output)}, but claim to become {size}."
        )
    return bytes(output)
