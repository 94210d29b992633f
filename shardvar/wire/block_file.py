r"""A file of guarded index blocks sorted by key; finding one key reads only a few of them: the
native index's container.

    file     := header block* metadata table footer
    header   := 89 "SVX" 0D 0A 1A 0A                      the kind of file; shows whether newlines
                                                          were converted
    table    := an index block with a row for each block of entries: first_key, nbytes, crc
    footer   := metadata nbytes u64 | table nbytes u64 | metadata CRC32C u32 | table CRC32C u32
              | version u32 | CRC32C of the 28 bytes before u32 | "SVX" 0D 0A 1A 0A 89        40 bytes, little-endian

The parts follow each other without gaps, so each byte of the file is compared with a checksum or a
constant. They are found from the end: the footer gives the sizes of metadata and table, the table
the sizes of the blocks. The footer's size, and the places of checksum, version and magic in it, are
the same in every version.

An *index block* is a flat msgpack map from names to integers, texts and byte strings. It has few
names; long columns are packed into byte strings, so that any language that has msgpack decodes them
at the speed of memory:

    numbers    a byte string of little-endian numbers of a fixed width
    strings    two byte strings: under ``name`` the strings one after the other, under
               ``name_nbytes`` their lengths as 32-bit numbers

Keys are byte strings in the order of their bytes. The entries of one key may continue over several
blocks, whose first keys are then equal.

A reader MUST check what ``open_block_file`` and ``BlockFile.block`` check. Nothing in a file is
believed: lengths are bounded by the block's own, arrays, extension types and repeated names are
refused, and each value's type is checked when it is used. Unknown names are ignored, so that a
later writer may add some.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import gt
from typing import Any, TypeVar

import msgpack
import numpy as np
from numpy.typing import NDArray

from shardvar.errors import ArgumentError, ShardvarError, UnsupportedError, prefix_errors
from shardvar.limits import MAX_BLOCK_NBYTES, MAX_NAMES, MAX_TABLE_NBYTES
from shardvar.records import entity, frozen
from shardvar.wire.crc import CRC32C
from shardvar.wire.damage import SNIFF_NBYTES, corrupt, foreign_file, invalid, malformed

INDEX_HEADER = b"\x89SVX\r\n\x1a\n"
INDEX_MAGIC = b"SVX\r\n\x1a\n\x89"
INDEX_VERSION = 1
NAMED_VERSION = 3
"""The version of an index whose metadata name each data file. There is no version 2: the published
vectors have one, to be refused."""
REFERRING_VERSION = 4
"""The version of an index whose metadata also give the checkpoint that wrote each data file."""
_FOOTER = struct.Struct("<QQIIII8s")
_GUARDED_NBYTES = 28  # the footer up to its own checksum: 8 + 8 + 4 + 4 + 4

_TAIL_NBYTES = 1 << 16
"""The bytes that are read from the end of the file at once: mostly footer, table and metadata."""

_Read = Callable[[int, int], bytes]  # (offset, nbytes) -> these bytes of the file

IndexValue = int | str | bytes | NDArray[Any]  # a value of an index block before it is encoded

_T = TypeVar("_T", int, str, bytes)


@frozen
class IndexBlock:
    values: Mapping[str, Any]

    def integer(self, name: str, limit: int) -> int:
        value = self._value(name, int)
        if not 0 <= value <= limit:
            raise invalid(f"{name!r} is {value}, which is not in [0, {limit}].")
        return value

    def text(self, name: str) -> str:
        return self._value(name, str)

    def octets(self, name: str) -> bytes:
        return self._value(name, bytes)

    def numbers(self, name: str, dtype: str, count: int | None = None) -> NDArray[Any]:
        """Return an array of little-endian numbers, exactly ``count`` of them unless it is None."""
        octets, itemsize = self.octets(name), np.dtype(dtype).itemsize
        if len(octets) % itemsize or (count is not None and len(octets) != count * itemsize):
            expected = "whole numbers" if count is None else f"{count} numbers"
            raise invalid(f"{name!r} has {len(octets)} bytes, not {expected} of {itemsize}.")
        return np.frombuffer(octets, dtype)

    def bounds(self, name: str, count: int | None = None) -> NDArray[np.int64]:
        """Return [count + 1] the offsets in ``octets(name)`` between which the strings lie."""
        nbytes = self.numbers(f"{name}_nbytes", "<u4", count)
        bounds = np.zeros(len(nbytes) + 1, np.int64)
        # Lengths of 32 bits: no sum of sizes that fit in a file overflows 64 bits.
        np.cumsum(nbytes, out=bounds[1:])
        if bounds[-1] != len(self.octets(name)):
            raise invalid(
                f"{name!r} has {len(self.octets(name))} bytes; its strings have {bounds[-1]}."
            )
        return bounds

    def strings(self, name: str, count: int | None = None) -> list[bytes]:
        octets, bounds = self.octets(name), self.bounds(name, count).tolist()
        return [octets[start:stop] for start, stop in pairwise(bounds)]

    def _value(self, name: str, kind: type[_T]) -> _T:
        value = self.values.get(name)
        if type(value) is not kind:  # isinstance would take True for an integer
            found = f"is of type {type(value).__name__}" if name in self.values else "is missing"
            raise invalid(f"{name!r} {found} where {kind.__name__} is expected.")
        return value


def pack_strings(name: str, strings: Sequence[bytes]) -> dict[str, IndexValue]:
    return {
        name: b"".join(strings),
        f"{name}_nbytes": np.fromiter(map(len, strings), "<u4", len(strings)),
    }


def encode_index_block(values: Mapping[str, IndexValue]) -> bytes:
    """Return the block of these values, in their order; arrays must be little-endian."""
    plain = {
        name: value.tobytes() if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }
    try:
        packed: bytes = msgpack.packb(plain, use_bin_type=True)
    except ShardvarError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise ArgumentError(
            f"The index cannot be encoded: {error}.", "Give texts that are valid Unicode."
        ) from error
    return packed


def decode_index_block(data: bytes) -> IndexBlock:
    """Return the block that the bytes hold; ``MalformedCheckpoint`` if they are not a flat map."""
    # The limits make msgpack refuse arrays and extension types outright, and a map of more names
    # before it is built.
    # Not ``damage.decoding``: every way of a tensor leads through here, and enters no more files.
    try:
        values = msgpack.unpackb(
            data, object_pairs_hook=_map_of, max_map_len=MAX_NAMES, max_array_len=0, max_ext_len=0
        )
    except ShardvarError:
        raise  # of the hook
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise malformed(
            f"The msgpack does not decode ({error or type(error).__name__})."
        ) from error
    if not isinstance(values, dict):
        raise malformed("The msgpack is not a map.")
    return IndexBlock(values)


def _map_of(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise invalid("A msgpack map has a name twice.")
    return values


@entity
class BlockFile:
    """An open file of index blocks, which are read on demand."""

    metadata: IndexBlock
    first_keys: Sequence[bytes]  # [b]
    start: NDArray[np.int64]  # [b] the first byte of each block, in bytes of the file
    nbytes: NDArray[np.int64]  # [b] the size of each block
    checksum: NDArray[np.uint32]  # [b] the CRC32C of each block
    read: _Read

    def __len__(self) -> int:
        return len(self.first_keys)

    def block(self, number: int) -> IndexBlock:
        """Return one block, checked and decoded; errors name it."""
        start, nbytes = int(self.start[number]), int(self.nbytes[number])
        data = self.read(start, nbytes)
        with prefix_errors(f"index block {number} at offset {start}"):
            if CRC32C.compute(data) != self.checksum[number]:
                raise corrupt(
                    f"its CRC32C is not {int(self.checksum[number]):08x}, as the table says."
                )
            return decode_index_block(data)

    def numbers(self, key: bytes) -> range:
        """Return the numbers of the blocks that may hold a key. With the first keys a, c, c, e, the
        key c may be in the blocks 0 (after a) to 2, the key d only in block 2."""
        return range(
            max(bisect_left(self.first_keys, key) - 1, 0), bisect_right(self.first_keys, key)
        )


def open_block_file(read: _Read, size: int) -> BlockFile:
    if read(0, min(size, len(INDEX_HEADER))) != INDEX_HEADER:
        first = read(0, min(size, SNIFF_NBYTES))
        raise foreign_file("an index of shardvar", first, size, "it does not begin as one does")
    if size < len(INDEX_HEADER) + _FOOTER.size:
        raise malformed(f"It was cut short: it ends at offset {size}, before its footer.")
    # One read of the tail mostly brings all three parts. Offsets are bytes of the file;
    # ``tail_start`` is the offset of the first byte of ``tail``.
    tail_start = max(0, size - _TAIL_NBYTES)
    tail = read(tail_start, size - tail_start)
    footer = tail[-_FOOTER.size :]
    metadata_nbytes, table_nbytes, metadata_crc, table_crc, version, crc, magic = _FOOTER.unpack(
        footer
    )
    # In this order: a file that was cut short has another magic, a damaged footer another checksum,
    # and only the version of an intact footer is believed.
    if magic != INDEX_MAGIC:
        raise malformed(
            "It does not end as an index of shardvar does: it was cut short or extended."
        )
    if CRC32C.compute(footer[:_GUARDED_NBYTES]) != crc:
        raise corrupt("The footer disagrees with its CRC32C.")
    if version not in (INDEX_VERSION, NAMED_VERSION, REFERRING_VERSION):
        raise UnsupportedError(
            f"The index has version {version}; this release reads {INDEX_VERSION}, "
            f"{NAMED_VERSION} and {REFERRING_VERSION}.",
            "Install a newer release.",
        )
    # The parts end where the next one begins, so their sizes give their places, from the end of the
    # file.
    table_start = size - _FOOTER.size - table_nbytes
    metadata_start = table_start - metadata_nbytes
    if metadata_start < len(INDEX_HEADER):
        raise malformed(
            f"Metadata of {metadata_nbytes} bytes and a table of {table_nbytes} are larger than "
            "the file."
        )

    def section(name: str, start: int, nbytes: int, limit: int, crc: int) -> IndexBlock:
        with prefix_errors(f"the {name} at offset {start}"):
            if nbytes > limit:
                raise invalid(f"it has {nbytes} bytes; at most {limit} are allowed.")
            known = start >= tail_start  # else it begins before the bytes that were read already
            data = tail[start - tail_start :][:nbytes] if known else read(start, nbytes)
            if CRC32C.compute(data) != crc:
                raise corrupt(f"its CRC32C is not {crc:08x}, as the footer says.")
            return decode_index_block(data)

    # The checksums of the footer guard these two, and the table has the checksums of the blocks.
    table = section("table", table_start, table_nbytes, MAX_TABLE_NBYTES, table_crc)
    metadata = section("metadata", metadata_start, metadata_nbytes, MAX_BLOCK_NBYTES, metadata_crc)
    with prefix_errors(f"the table at offset {table_start}"):
        return _read_table(table, metadata, metadata_start, read)


def encode_block_file(
    blocks: Iterable[tuple[bytes, bytes]], metadata: bytes, version: int = INDEX_VERSION
) -> list[bytes]:
    parts, keys, nbytes, checksums = [INDEX_HEADER], [], [], []
    for key, block in blocks:
        parts.append(block)
        keys.append(key)
        nbytes.append(len(block))
        checksums.append(CRC32C.compute(block))
    table = encode_index_block(
        {
            **pack_strings("first_key", keys),
            "nbytes": np.array(nbytes, "<u4"),
            "crc": np.array(checksums, "<u4"),
        }
    )
    crcs = CRC32C.compute(metadata), CRC32C.compute(table)
    footer = struct.pack("<QQIII", len(metadata), len(table), *crcs, version)
    return [*parts, metadata, table, footer, struct.pack("<I", CRC32C.compute(footer)), INDEX_MAGIC]


def _read_table(
    table: IndexBlock, metadata: IndexBlock, metadata_start: int, read: _Read
) -> BlockFile:
    nbytes = table.numbers("nbytes", "<u4").astype(np.int64)
    checksum = table.numbers("crc", "<u4", len(nbytes))
    first_keys = table.strings("first_key", len(nbytes))
    if any(map(gt, first_keys, first_keys[1:])):
        raise invalid("The blocks' first keys do not rise.")
    if int(nbytes.max(initial=0)) > MAX_BLOCK_NBYTES:
        raise invalid(
            f"An index block has {int(nbytes.max())} bytes; at most {MAX_BLOCK_NBYTES} are allowed."
        )
    # Blocks of 10, 20 and 5 bytes begin at 8, 18 and 38 after a header of 8 bytes, and end at 43,
    # where the metadata must begin: without this check, bytes between them would be covered by no
    # checksum.
    start = np.cumsum(nbytes) - nbytes + len(INDEX_HEADER)
    if len(INDEX_HEADER) + int(nbytes.sum()) != metadata_start:
        raise invalid(
            f"The index blocks do not end at offset {metadata_start}, where the metadata begins."
        )
    return BlockFile(metadata, first_keys, start, nbytes, checksum, read)
