"""The messages of a tensor bundle's index, which are the values of its table.

    BundleHeaderProto   1 num_shards, 2 endianness (1: big), 3 version            under the key ""
    VersionDef          1 producer, 2 min_consumer, 3 bad_consumers (repeated)
    BundleEntryProto    1 dtype, 2 shape, 3 shard_id, 4 offset, 5 size, 6 crc32c (fixed32, masked),
                        7 slices (repeated)
    TensorShapeProto    2 dim (repeated: 1 size), 3 unknown_rank
    TensorSliceProto    1 extent (repeated: 1 start, 2 length; without a length, or with -1, the
                        whole axis)

The header may have one more field, 1000, which TensorFlow passes over: the generation
(``Metadata.generation``), up to 64 letters and digits.

A shard here is a data file. ``decode_entry`` reads any entry. ``decode_bundle_entries`` reads many,
and decodes by hand the form that TensorFlow gives to nearly all of them: dtype and shape first, for
which a model has few distinct byte strings, then the numbers, then the checksum. Entries of any
other form go to ``decode_entry``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from shardvar.errors import CheckpointError, InvalidCheckpoint
from shardvar.layout.dtypes import ITEMSIZES, code
from shardvar.limits import MAX_NBYTES, MAX_RANK
from shardvar.wire.damage import invalid, malformed, past_limit
from shardvar.wire.protobuf import (
    decode_fields,
    encode_bytes_field,
    encode_fixed32_field,
    encode_varint_field,
)
from shardvar.wire.varint import decode_varint

ENUM_DTYPES: dict[int, str] = dict(
    enumerate(
        "float32 float64 int32 uint8 int16 int8 string complex64 int64 bool qint8 quint8 qint32 "
        "bfloat16 qint16 quint16 uint16 complex128 float16 resource variant uint32 uint64 "
        "float8_e5m2 float8_e4m3fn float8_e4m3fnuz "
        "float8_e4m3b11fnuz float8_e5m2fnuz int4 uint4 int2 uint2 float4_e2m1fn".split(),
        start=1,
    )
)
del ENUM_DTYPES[20]  # a resource is a handle of a running process and never stored
ENUMS = {name: number for number, name in ENUM_DTYPES.items()}
CODES = {number: code(name) for number, name in ENUM_DTYPES.items()}

BUNDLE_VERSION = 1
"""The version of the format that is read and written (TF_CHECKPOINT_VERSION)."""
WHOLE_AXIS = -1

_GENERATION = 1000
"""The field of the generation, far from the numbers that TensorFlow may come to use."""
_MAX_GENERATION_NBYTES = 64

Extents = tuple[tuple[int, int], ...]
"""(start, length) of a slice on every axis; the length may be ``WHOLE_AXIS``."""


@dataclass(frozen=True, slots=True)
class BundleHeader:
    """The header of an index, for the whole checkpoint."""

    num_shards: int
    """The count in the names of the data files."""
    is_big_endian: bool = False
    """The byte order of elements and of the words of strings."""
    generation: str = ""
    """The generation that the writer stored; empty for none."""


class BundleEntry(NamedTuple):
    """The entry of one tensor or stored slice; a tuple, because an index may have very many."""

    dtype: int
    """TensorFlow's number for the dtype, a key of ``ENUM_DTYPES``."""
    shape: tuple[int, ...]
    """The shape: of the tensor, or of the stored slice."""
    shard: int
    """The number of the data file."""
    offset: int
    """The first byte of the payload in that file."""
    size: int
    """The size of the payload in bytes."""
    crc: int
    """The masked checksum."""
    slices: tuple[Extents, ...] = ()
    """The slices in which the tensor is stored; empty for an entry that has a payload."""


NO_ENTRY = BundleEntry(0, (), 0, 0, 0, 0)
"""The placeholder for an entry that cannot be read."""


def decode_header(message: bytes) -> BundleHeader:
    """Return the header; ``InvalidCheckpoint`` if it asks for another reader."""
    num_shards = endianness = min_consumer = 0
    bad_consumers: list[int] = []
    generation = b""
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
            case number if number == _GENERATION:
                generation = field.octets()
    if min_consumer > BUNDLE_VERSION or BUNDLE_VERSION in bad_consumers:
        wish = (
            f"version {min_consumer} or later"
            if min_consumer > BUNDLE_VERSION
            else f"any version but {BUNDLE_VERSION}"
        )
        remedy = "Read it with the TensorFlow that wrote it, and save it with an older one."
        raise InvalidCheckpoint(
            f"The header asks for a reader of {wish}; this one is of version {BUNDLE_VERSION}.",
            remedy,
        )
    if endianness not in (0, 1) or num_shards < 0:
        raise invalid(f"The header claims the byte order {endianness} and {num_shards} data files.")
    is_known = generation.isalnum() and len(generation) <= _MAX_GENERATION_NBYTES
    return BundleHeader(num_shards, endianness == 1, generation.decode("ascii") if is_known else "")


def decode_entry(message: bytes) -> BundleEntry:
    """Return the entry; ``InvalidCheckpoint`` if its dtype or its shape is impossible."""
    shape: list[int] = []
    dtype = shard = offset = size = crc = 0
    slices = []
    for field in decode_fields(message):
        match field.number:
            case 1:
                dtype = field.int64()
            case 2:
                # Protobuf joins the shapes of a repeated field.
                shape += _decode_shape(field.octets())
                if len(shape) > MAX_RANK:
                    raise past_limit(f"The shape has {len(shape)} axes", "MAX_RANK")
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
    _check_tensor(dtype, tuple(shape))
    if crc >> 32:
        raise malformed(f"The checksum {crc:#x} has more than 32 bits.")
    return BundleEntry(dtype, tuple(shape), shard, offset, size, crc, tuple(slices))


def decode_bundle_entries(
    messages: Sequence[bytes],
) -> tuple[list[BundleEntry], dict[int, CheckpointError]]:
    """Return all entries in order, ``NO_ENTRY`` for unreadable ones, and errors by row."""
    # The fast path returns None for any other form, and ``decode_entry`` decides; both give the
    # same entries.
    heads: dict[bytes, tuple[int, tuple[int, ...]]] = {}
    entries: list[BundleEntry] = []
    faults: dict[int, CheckpointError] = {}
    for row, message in enumerate(messages):
        try:
            entry = _decode_common(message, heads)
        except CheckpointError:
            entry = None  # decode_entry raises the right error
        try:
            entries.append(entry or decode_entry(message))
        except CheckpointError as error:
            entries.append(NO_ENTRY)
            faults[row] = error
    return entries, faults


def _decode_common(
    message: bytes, heads: dict[bytes, tuple[int, tuple[int, ...]]]
) -> BundleEntry | None:
    """Return the entry if its fields are 1, 2, any of 3, 4 and 5, and 6, in that order; None
    otherwise.

    ``heads`` caches the meaning of fields 1 and 2, the *head*. For a float32 tensor of shape (3,)
    the head is

        08 01           field 1, a varint of one byte: dtype 1
        12 04           field 2, of 4 bytes (so the head has 4 + 4 bytes): the shape
        12 02 08 03     one dim, of size 3
    """
    if (
        len(message) < 9
        or message[0] != 0x08
        or message[1] > 0x7F
        or message[2] != 0x12
        or message[3] > 0x7F
    ):
        return None
    position = 4 + message[3]
    head = message[:position]
    if head not in heads:
        if position > len(message):
            return None
        entry = decode_entry(head)
        heads[head] = entry.dtype, entry.shape
    dtype, shape = heads[head]
    # The tags of the fields 3, 4 and 5 are 18, 20 and 28; the tag of field 6, of 4 bytes, is 35: it
    # must end the message. Numbers with bit 63 set are negative, and left to decode_entry.
    shard, position = _decode_optional(message, position, b"\x18")
    offset, position = _decode_optional(message, position, b"\x20")
    size, position = _decode_optional(message, position, b"\x28")
    if (
        message[position : position + 1] != b"\x35"
        or position + 5 != len(message)
        or (shard | offset | size) >> 63
    ):
        return None
    return BundleEntry(
        dtype, shape, shard, offset, size, int.from_bytes(message[position + 1 :], "little")
    )


def _decode_optional(message: bytes, position: int, tag: bytes) -> tuple[int, int]:
    """Return the varint after the tag and the offset after it; 0 if the field is omitted."""
    return (
        decode_varint(message, position + 1)
        if message[position : position + 1] == tag
        else (0, position)
    )


def _decode_shape(message: bytes) -> list[int]:
    shape = []
    for field in decode_fields(message):
        if field.number == 2:
            sizes = [part.int64() for part in decode_fields(field.octets()) if part.number == 1]
            shape.append(sizes[-1] if sizes else 0)
        elif field.number == 3 and field.uint():
            raise invalid("The shape has an unknown rank.")
    return shape


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
    """Raise if a tensor of that dtype and shape is impossible."""
    if dtype not in ENUM_DTYPES:
        raise invalid(f"The dtype has the number {dtype}, which does not belong to a stored dtype.")
    if any(extent < 0 for extent in shape):
        raise invalid(f"An array cannot have the shape {shape}.")
    # An extent of 0 does not make the others harmless: NumPy refuses the shape (2**62, 2**62, 0).
    if prod(max(extent, 1) for extent in shape) * max(int(ITEMSIZES[CODES[dtype]]), 1) > MAX_NBYTES:
        raise invalid(f"A tensor of the shape {shape} is too large to exist.")


def encode_header(num_shards: int, generation: str = "") -> bytes:
    """Return the header that TensorFlow writes: the count and the producer's version; then a
    generation, if any."""
    header = encode_varint_field(1, num_shards) + encode_bytes_field(
        3, encode_varint_field(1, BUNDLE_VERSION)
    )
    return header + (encode_bytes_field(_GENERATION, generation.encode()) if generation else b"")


def encode_head(dtype: int, shape: Sequence[int]) -> bytes:
    """Return the fields of an entry for dtype and shape."""
    dims = b"".join(encode_bytes_field(2, encode_varint_field(1, extent)) for extent in shape)
    return encode_varint_field(1, dtype) + encode_bytes_field(2, dims)


def encode_place(shard: int, offset: int, size: int, crc: int) -> bytes:
    """Return the fields of an entry for the place of the payload, and its checksum."""
    numbers = (
        encode_varint_field(3, shard)
        + encode_varint_field(4, offset)
        + encode_varint_field(5, size)
    )
    return numbers + encode_fixed32_field(6, crc)


def encode_slices(slices: Sequence[Extents]) -> bytes:
    """Return the fields of an entry for the slices in which the tensor is stored."""
    return b"".join(
        encode_bytes_field(7, b"".join(map(_encode_extent, extents))) for extents in slices
    )


def _encode_extent(extent: tuple[int, int]) -> bytes:
    start, length = extent
    if length == WHOLE_AXIS:
        return encode_bytes_field(1, b"")
    # The length is a member of a ``oneof``, and so is written even if it is 0.
    return encode_bytes_field(
        1, encode_varint_field(1, start) + (encode_varint_field(2, length) or b"\x10\x00")
    )
