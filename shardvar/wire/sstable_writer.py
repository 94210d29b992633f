"""Writing a sorted table (``sstable``), byte for byte as TensorFlow writes the index of a tensor bundle.

A block is closed once it is ``BLOCK_NBYTES`` long, counted with its restarts, or before an entry of twice that. Every
16th key of a block is whole; in the index block every one. Nothing is compressed.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from shardvar.wire.crc import CRC32C, mask
from shardvar.wire.sstable import FOOTER_NBYTES, MAGIC, PLAIN
from shardvar.wire.varint import encode_varint

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
