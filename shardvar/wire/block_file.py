r"""A file of guarded blocks sorted by key, of which few are read to find one: the container of the native index.

    file     := header block* metadata table footer
    header   := 89 "SVX" 0D 0A 1A 0A                      tells the kind of file, and whether newlines were mangled
    table    := a block (``shardvar.wire.block_file``) with a row for each block of entries
    footer   := metadata nbytes u64 | table nbytes u64 | metadata CRC32C u32 | table CRC32C u32
              | version u32 | CRC32C of the 28 bytes before u32 | "SVX" 0D 0A 1A 0A 89        40 bytes, little-endian

The footer says where the table is, the table where each block is and what its first key and its CRC32C are. Everything
follows on everything without gaps, so each byte of the file is compared with a checksum or a constant. The footer's
size, and the places of checksum, version and magic in it, are the same in every version.

What a reader MUST do is what ``open_block_file`` and ``BlockFile.block`` do. Keys are byte strings in the order of
their bytes; a key may go on over several blocks, whose first keys are then equal.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import gt
from typing import Any, TypeVar

import msgpack
import numpy as np
from numpy.typing import NDArray

from shardvar.errors import ArgumentError, InvalidCheckpoint, MalformedCheckpoint, UnsupportedError, prefix_errors
from shardvar.wire.crc import CRC32C
from shardvar.wire.damage import corrupt, invalid, malformed

# Blocks of packed columns: a flat msgpack map from names to integers, texts and byte strings, most of them arrays.
#
# A block says little and holds much. It has a few names; what there are many of is packed into byte strings, so that it
# is decoded at the speed of memory in any language that has msgpack, and nothing nests:
#
#     numbers    a byte string of little-endian numbers of a fixed width
#     strings    two byte strings: under ``name`` the strings one after the other, under ``name_nbytes`` their lengths
#                as 32-bit numbers
#
# The decoder trusts nothing. Lengths are bounded by the block's own, arrays, extension types and doubled names are
# refused, and each value is checked for its type when it is taken out. Names that nobody asks for are ignored.


MAX_NAMES = 64
"""Names of a block. msgpack lets maps nest a thousand deep before anyone can object; this bounds what that costs."""

Value = int | str | bytes | NDArray[Any]
T = TypeVar("T", int, str, bytes)


@dataclass(frozen=True, slots=True)
class Block:
    """A decoded block, whose values are asked for by name and type."""

    values: Mapping[str, Any]
    """What the map held, of any type yet."""

    def integer(self, name: str, limit: int) -> int:
        """An integer in ``[0, limit]``."""
        value = self._value(name, int)
        if not 0 <= value <= limit:
            raise invalid(f"{name!r} is {value}, which is not in [0, {limit}].")
        return value

    def text(self, name: str) -> str:
        """A text."""
        return self._value(name, str)

    def octets(self, name: str) -> bytes:
        """A byte string."""
        return self._value(name, bytes)

    def numbers(self, name: str, dtype: str, count: int | None = None) -> NDArray[Any]:
        """An array of ``count`` little-endian numbers; of as many as there are where it is None."""
        octets, itemsize = self.octets(name), np.dtype(dtype).itemsize
        if len(octets) % itemsize or (count is not None and len(octets) != count * itemsize):
            expected = "whole numbers" if count is None else f"{count} numbers"
            raise invalid(f"{name!r} has {len(octets)} bytes, not {expected} of {itemsize}.")
        return np.frombuffer(octets, dtype)

    def bounds(self, name: str, count: int | None = None) -> NDArray[np.int64]:
        """[count + 1] where each of the strings packed under ``name`` begins, and the last one ends."""
        nbytes = self.numbers(f"{name}_nbytes", "<u4", count)
        bounds = np.zeros(len(nbytes) + 1, np.int64)
        np.cumsum(nbytes, out=bounds[1:])
        if bounds[-1] != len(self.octets(name)):
            raise invalid(f"{name!r} has {len(self.octets(name))} bytes; its strings have {bounds[-1]}.")
        return bounds

    def strings(self, name: str, count: int | None = None) -> list[bytes]:
        """The strings packed under ``name``."""
        octets, bounds = self.octets(name), self.bounds(name, count).tolist()
        return [octets[start:stop] for start, stop in pairwise(bounds)]

    def _value(self, name: str, kind: type[T]) -> T:
        value = self.values.get(name)
        if type(value) is not kind:  # True is an int, and none here
            found = f"is of type {type(value).__name__}" if name in self.values else "is missing"
            raise invalid(f"{name!r} {found} where {kind.__name__} is expected.")
        return value


def pack_strings(name: str, strings: Sequence[bytes]) -> dict[str, Value]:
    """The two values of a block that hold these strings."""
    return {name: b"".join(strings), f"{name}_nbytes": np.fromiter(map(len, strings), "<u4", len(strings))}


def encode_block(values: Mapping[str, Value]) -> bytes:
    """The block of these values, in their order; arrays must be little-endian."""
    plain = {name: value.tobytes() if isinstance(value, np.ndarray) else value for name, value in values.items()}
    try:
        packed: bytes = msgpack.packb(plain, use_bin_type=True)
    except (ValueError, TypeError, OverflowError) as error:
        raise ArgumentError(f"The index cannot be encoded: {error}.", "Give texts that are valid Unicode.") from error
    return packed


def decode_block(data: bytes) -> Block:
    """The block that the bytes hold; ``MalformedCheckpoint`` where they are no flat map."""
    try:
        values = msgpack.unpackb(data, object_pairs_hook=_map_of, max_map_len=MAX_NAMES, max_array_len=0, max_ext_len=0)
    except InvalidCheckpoint:
        raise  # it is a ValueError too
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise malformed(f"The msgpack does not decode ({error or type(error).__name__}).") from error
    if not isinstance(values, dict):
        raise malformed("The msgpack is no map.")
    return Block(values)


def _map_of(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise invalid("A msgpack map has a name twice.")
    return values


HEADER = b"\x89SVX\r\n\x1a\n"
MAGIC = b"SVX\r\n\x1a\n\x89"
VERSION = 1

_FOOTER = struct.Struct("<QQIIII8s")
_GUARDED_NBYTES = 28  # the footer up to its own checksum

MAX_BLOCK_NBYTES = 1 << 26
"""The largest block of entries, and the largest metadata, that a reader takes into memory."""

MAX_TABLE_NBYTES = 1 << 28
"""The largest table: at 50 bytes a block, of more than a terabyte of blocks."""

_TAIL_NBYTES = 1 << 16
"""What is read from the end of the file at once: the footer, and mostly the table and the metadata with it."""

Read = Callable[[int, int], bytes]
"""The bytes of the file from an offset on, as many as asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockFile:
    """An open file of blocks; blocks are read when asked for."""

    metadata: Block
    """The metadata."""
    first_keys: Sequence[bytes]
    """[b] the first key of each block."""
    start: NDArray[np.int64]
    """[b] where each block begins, in bytes of the file."""
    nbytes: NDArray[np.int64]
    """[b] the size of each."""
    checksum: NDArray[np.uint32]
    """[b] the CRC32C of each."""
    read: Read
    """Reads the file."""

    def __len__(self) -> int:
        return len(self.first_keys)

    def block(self, number: int) -> Block:
        """One block, checked and decoded; errors name it."""
        start, nbytes = int(self.start[number]), int(self.nbytes[number])
        data = self.read(start, nbytes)
        with prefix_errors(f"block {number} at offset {start}"):
            if CRC32C.compute(data) != self.checksum[number]:
                raise corrupt(f"its CRC32C is not {int(self.checksum[number]):08x}, as the table says.")
            return decode_block(data)

    def numbers(self, key: bytes) -> range:
        """The blocks that may hold a key: those that begin with it, and the one before them."""
        return range(max(bisect_left(self.first_keys, key) - 1, 0), bisect_right(self.first_keys, key))


def open_block_file(read: Read, size: int) -> BlockFile:
    """Read footer, metadata and table of a file of ``size`` bytes."""
    if size < len(HEADER) + _FOOTER.size or read(0, len(HEADER)) != HEADER:
        raise MalformedCheckpoint("It does not begin as an index of shardvar does.", "Name a file that is one.")
    tail_start = max(0, size - _TAIL_NBYTES)
    tail = read(tail_start, size - tail_start)
    metadata_nbytes, table_nbytes, metadata_crc, table_crc = _read_footer(tail[-_FOOTER.size :])
    table_start = size - _FOOTER.size - table_nbytes
    metadata_start = table_start - metadata_nbytes
    if metadata_start < len(HEADER):
        raise malformed(f"Metadata of {metadata_nbytes} bytes and a table of {table_nbytes} are larger than the file.")

    def section(name: str, start: int, nbytes: int, limit: int, crc: int) -> Block:
        with prefix_errors(f"the {name} at offset {start}"):
            if nbytes > limit:
                raise invalid(f"it has {nbytes} bytes; {limit} are the most.")
            known = start >= tail_start
            data = tail[start - tail_start :][:nbytes] if known else read(start, nbytes)
            if CRC32C.compute(data) != crc:
                raise corrupt(f"its CRC32C is not {crc:08x}, as the footer says.")
            return decode_block(data)

    table = section("table", table_start, table_nbytes, MAX_TABLE_NBYTES, table_crc)
    metadata = section("metadata", metadata_start, metadata_nbytes, MAX_BLOCK_NBYTES, metadata_crc)
    with prefix_errors(f"the table at offset {table_start}"):
        return _read_table(table, metadata, metadata_start, read)


def encode_block_file(blocks: Iterable[tuple[bytes, bytes]], metadata: bytes) -> list[bytes]:
    """The pieces of the file, to be written one after the other, of blocks, each with its first key, and metadata."""
    pieces, keys, nbytes, checksums = [HEADER], [], [], []
    for key, block in blocks:
        pieces.append(block)
        keys.append(key)
        nbytes.append(len(block))
        checksums.append(CRC32C.compute(block))
    table = encode_block(
        {
            **pack_strings("first_key", keys),
            "nbytes": np.array(nbytes, "<u4"),
            "crc": np.array(checksums, "<u4"),
        }
    )
    footer = struct.pack("<QQIII", len(metadata), len(table), CRC32C.compute(metadata), CRC32C.compute(table), VERSION)
    return [*pieces, metadata, table, footer, struct.pack("<I", CRC32C.compute(footer)), MAGIC]


def _read_footer(data: bytes) -> tuple[int, int, int, int]:
    metadata_nbytes, table_nbytes, metadata_crc, table_crc, version, crc, magic = _FOOTER.unpack(data)
    if magic != MAGIC:
        raise malformed("It does not end as an index of shardvar does: it was cut short, or added to.")
    if CRC32C.compute(data[:_GUARDED_NBYTES]) != crc:
        raise corrupt("The footer's CRC32C is not that of its bytes.")
    if version != VERSION:
        raise UnsupportedError(
            f"The index has version {version}; this release reads {VERSION}.", "Install a newer one."
        )
    return metadata_nbytes, table_nbytes, metadata_crc, table_crc


def _read_table(table: Block, metadata: Block, metadata_start: int, read: Read) -> BlockFile:
    nbytes = table.numbers("nbytes", "<u4").astype(np.int64)
    checksum = table.numbers("crc", "<u4", len(nbytes))
    first_keys = table.strings("first_key", len(nbytes))
    if any(map(gt, first_keys, first_keys[1:])):
        raise invalid("The blocks' first keys do not rise.")
    if int(nbytes.max(initial=0)) > MAX_BLOCK_NBYTES:
        raise invalid(f"A block has {int(nbytes.max())} bytes; {MAX_BLOCK_NBYTES} are the most.")
    start = np.cumsum(nbytes) - nbytes + len(HEADER)
    if len(HEADER) + int(nbytes.sum()) != metadata_start:
        raise invalid(f"The blocks do not end at offset {metadata_start}, where the metadata begins.")
    return BlockFile(metadata, first_keys, start, nbytes, checksum, read)
