"""The messages of a tensor bundle's index: what a value of the table says.

    BundleHeaderProto   1 num_shards, 2 endianness (1: big), 3 version            under the key ""
    VersionDef          1 producer, 2 min_consumer, 3 bad_consumers (repeated)
    BundleEntryProto    1 dtype, 2 shape, 3 shard_id, 4 offset, 5 size, 6 crc32c (fixed32, masked), 7 slices (repeated)
    TensorShapeProto    2 dim (repeated: 1 size), 3 unknown_rank
    TensorSliceProto    1 extent (repeated: 1 start, 2 length; without a length, or with -1, the whole axis)

A shard here is a data file. ``decode_entry`` reads any entry; ``decode_entries`` reads many, and takes the shape that
TensorFlow gives to nearly all of them by hand: dtype and shape in front, which few distinct byte strings say for all
tensors of a model, then the numbers, then the checksum. Whatever is not of that shape goes to ``decode_entry``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from shardvar.errors import CheckpointError, InvalidCheckpoint
from shardvar.layout.dtypes import ITEMSIZES, MAX_NBYTES, MAX_RANK, code
from shardvar.wire.damage import invalid, malformed
from shardvar.wire.protobuf import decode_fields, encode_bytes_field, encode_fixed32_field, encode_varint_field
from shardvar.wire.varint import decode_varint

DTYPES: dict[int, str] = dict(
    enumerate(
        "float32 float64 int32 uint8 int16 int8 string complex64 int64 bool qint8 quint8 qint32 bfloat16 qint16 "
        "quint16 uint16 complex128 float16 resource variant uint32 uint64 float8_e5m2 float8_e4m3fn float8_e4m3fnuz "
        "float8_e4m3b11fnuz float8_e5m2fnuz int4 uint4 int2 uint2 float4_e2m1fn".split(),
        start=1,
    )
)
del DTYPES[20]  # a resource is a handle of a running process and never stored
ENUMS = {name: number for number, name in DTYPES.items()}
CODES = {number: code(name) for number, name in DTYPES.items()}

VERSION = 1
"""The version of the format that is read and written (TF_CHECKPOINT_VERSION)."""
WHOLE_AXIS = -1

Extents = tuple[tuple[int, int], ...]
"""(start, length) of a slice on every axis; the length may be ``WHOLE_AXIS``."""


@dataclass(frozen=True, slots=True)
class BundleHeader:
    """What an index says of the whole checkpoint."""

    num_shards: int
    """The count in the names of the data files."""
    is_big_endian: bool = False
    """The byte order of elements and of the words of strings."""


class BundleEntry(NamedTuple):
    """What an index says of one tensor or stored slice: a tuple, so that columns of many come by transposition."""

    dtype: int
    """TensorFlow's number of the dtype, one of ``DTYPES``."""
    shape: tuple[int, ...]
    """The shape: of the tensor, or of the stored slice."""
    shard: int
    """The number of the data file."""
    offset: int
    """The first byte of the payload in that file."""
    size: int
    """The bytes of the payload."""
    crc: int
    """The masked checksum."""
    slices: tuple[Extents, ...] = ()
    """The slices in which the tensor is stored; without any it is stored whole, here."""


NO_ENTRY = BundleEntry(0, (), 0, 0, 0, 0)
"""Stands in the columns for an entry that cannot be read."""


def decode_header(message: bytes) -> BundleHeader:
    """The header; ``InvalidCheckpoint`` where it asks for another reader."""
    num_shards = endianness = min_consumer = 0
    bad_consumers: list[int] = []
    for field in decode_fields(message):
        match field.number:
            case 1:
                num_shards = field.int64()
            case 2:
                endianness = field.int64()
            case 3:
                for part in decode_fields(field.octets()):
                    min_consumer = part.int64() if part.number == 2 else min_consumer
                    bad_consumers += part.int64s() if part.number == 3 else []
    if min_consumer > VERSION or VERSION in bad_consumers:
        wish = f"version {min_consumer} or later" if min_consumer > VERSION else f"any version but {VERSION}"
        remedy = "Read it with the TensorFlow that wrote it, and save it with an older one."
        raise InvalidCheckpoint(f"The header asks for a reader of {wish}; this one is of version {VERSION}.", remedy)
    if endianness not in (0, 1) or num_shards < 0:
        raise invalid(f"The header claims the byte order {endianness} and {num_shards} data files.")
    return BundleHeader(num_shards, endianness == 1)


def decode_entry(message: bytes) -> BundleEntry:
    """The entry; ``InvalidCheckpoint`` where its dtype or its shape is none."""
    shape: tuple[int, ...] = ()
    dtype = shard = offset = size = crc = 0
    slices = []
    for field in decode_fields(message):
        match field.number:
            case 1:
                dtype = field.int64()
            case 2:
                shape += _decode_shape(field.octets())
            case 3:
                shard = field.int64()
            case 4:
                offset = field.int64()
            case 5:
                size = field.int64()
            case 6:
                crc = field.uint()
            case 7:
                slices.append(_decode_extents(field.octets()))
    _check_tensor(dtype, shape)
    if crc >> 32:
        raise malformed(f"The checksum {crc:#x} has more than 32 bits.")
    return BundleEntry(dtype, shape, shard, offset, size, crc, tuple(slices))


def decode_entries(messages: Sequence[bytes]) -> tuple[list[BundleEntry], dict[int, CheckpointError]]:
    """All entries in order, and for those that cannot be read (``NO_ENTRY`` in the list) the reason."""
    heads: dict[bytes, tuple[int, tuple[int, ...]]] = {}
    entries: list[BundleEntry] = []
    faults: dict[int, CheckpointError] = {}
    for row, message in enumerate(messages):
        try:
            entry = _decode_common(message, heads)
        except CheckpointError:
            entry = None  # decode_entry says what is wrong with it
        try:
            entries.append(entry or decode_entry(message))
        except CheckpointError as error:
            entries.append(NO_ENTRY)
            faults[row] = error
    return entries, faults


def _decode_common(message: bytes, heads: dict[bytes, tuple[int, tuple[int, ...]]]) -> BundleEntry | None:
    """The entry if its fields are 1, 2, any of 3, 4 and 5, and 6, in that order; None where they are not.

    ``heads`` remembers what fields 1 and 2 said. Field 1 takes two bytes; the length of field 2 is the fourth byte.
    """
    if len(message) < 9 or message[0] != 0x08 or message[1] > 0x7F or message[2] != 0x12 or message[3] > 0x7F:
        return None
    position = 4 + message[3]
    head = message[:position]
    if head not in heads:
        if position > len(message):
            return None
        entry = decode_entry(head)
        heads[head] = entry.dtype, entry.shape
    dtype, shape = heads[head]
    shard, position = _decode_optional(message, position, b"\x18")
    offset, position = _decode_optional(message, position, b"\x20")
    size, position = _decode_optional(message, position, b"\x28")
    if message[position : position + 1] != b"\x35" or position + 5 != len(message) or (shard | offset | size) >> 63:
        return None
    return BundleEntry(dtype, shape, shard, offset, size, int.from_bytes(message[position + 1 :], "little"))


def _decode_optional(message: bytes, position: int, tag: bytes) -> tuple[int, int]:
    """The varint behind the tag and the offset after it; 0 where the tag does not stand there."""
    return decode_varint(message, position + 1) if message[position : position + 1] == tag else (0, position)


def _decode_shape(message: bytes) -> tuple[int, ...]:
    shape = []
    for field in decode_fields(message):
        if field.number == 2:
            sizes = [part.int64() for part in decode_fields(field.octets()) if part.number == 1]
            shape.append(sizes[-1] if sizes else 0)
        elif field.number == 3 and field.uint():
            raise invalid("The shape is of unknown rank.")
    return tuple(shape)


def _decode_extents(message: bytes) -> Extents:
    extents = []
    for field in decode_fields(message):
        if field.number == 1:
            start, length = 0, WHOLE_AXIS
            for part in decode_fields(field.octets()):
                start = part.int64() if part.number == 1 else start
                length = part.int64() if part.number == 2 else length
            extents.append((start, length))
    return tuple(extents)


def _check_tensor(dtype: int, shape: tuple[int, ...]) -> None:
    """Raise unless a tensor of that dtype and shape can be."""
    if dtype not in DTYPES:
        raise invalid(f"The dtype has the number {dtype}, which no stored tensor has.")
    if len(shape) > MAX_RANK or any(extent < 0 for extent in shape):
        raise invalid(f"The shape {shape[: MAX_RANK + 1]} is none that an array can have.")
    # Extents of 0 do not excuse the others: NumPy refuses such shapes, too.
    if prod(max(extent, 1) for extent in shape) * max(int(ITEMSIZES[CODES[dtype]]), 1) > MAX_NBYTES:
        raise invalid(f"A tensor of the shape {shape} is too large to exist.")


def encode_header(num_shards: int) -> bytes:
    """The header that TensorFlow writes: the count and the producer's version."""
    return encode_varint_field(1, num_shards) + encode_bytes_field(3, encode_varint_field(1, VERSION))


def encode_head(dtype: int, shape: Sequence[int]) -> bytes:
    """The fields of an entry that say what the tensor is."""
    dims = b"".join(encode_bytes_field(2, encode_varint_field(1, extent)) for extent in shape)
    return encode_varint_field(1, dtype) + encode_bytes_field(2, dims)


def encode_place(shard: int, offset: int, size: int, crc: int) -> bytes:
    """The fields of an entry that say where the payload lies."""
    numbers = encode_varint_field(3, shard) + encode_varint_field(4, offset) + encode_varint_field(5, size)
    return numbers + encode_fixed32_field(6, crc)


def encode_slices(slices: Sequence[Extents]) -> bytes:
    """The fields of an entry that say in which slices the tensor is stored."""
    return b"".join(encode_bytes_field(7, b"".join(map(_encode_extent, extents))) for extents in slices)


def encode_entry(entry: BundleEntry) -> bytes:
    """The whole entry, fields ascending."""
    place = encode_place(entry.shard, entry.offset, entry.size, entry.crc)
    return encode_head(entry.dtype, entry.shape) + place + encode_slices(entry.slices)


def _encode_extent(extent: tuple[int, int]) -> bytes:
    start, length = extent
    if length == WHOLE_AXIS:
        return encode_bytes_field(1, b"")
    # The length is one of a choice of fields and therefore present even where it is 0.
    return encode_bytes_field(1, encode_varint_field(1, start) + (encode_varint_field(2, length) or b"\x10\x00"))
