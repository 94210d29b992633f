"""The index of a tensor bundle: the names that a person may type for one, the messages that are the
values of its table, and its entries.

    PREFIX.index                    the table of contents
    PREFIX.data-00002-of-00005      data file 2 of 5; numbers above 99999 are written with the
                                    digits they need

The count is part of every data file's name, and the index gives the right count. A prefix may
itself end in ``.index`` or look like a data file, so each interpretation of a name is compared with
the existing files.

The V1 format of old TensorFlow is one file at PREFIX itself (or PREFIX-00002-of-00005), recognised
by its last bytes.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from shardvar.errors import (
    CheckpointError,
    CheckpointNotFound,
    InconsistentTensor,
    InvalidCheckpoint,
    MalformedCheckpoint,
    MissingFile,
    OutOfBounds,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import look_into
from shardvar.formats.unfinished import unfinished_files
from shardvar.layout.dtypes import ITEMSIZES, Ints, code
from shardvar.limits import MAX_KEY_NBYTES, MAX_NBYTES, MAX_RANK
from shardvar.planning.slices import SliceTable, TensorTable, pad
from shardvar.records import field, frozen
from shardvar.storage.concurrency import as_answered
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.damage import (
    WRITE_AGAIN,
    check_key_nbytes,
    incomplete,
    invalid,
    malformed,
    past_limit,
)
from shardvar.wire.protobuf import (
    decode_fields,
    decode_varint,
    encode_bytes_field,
    encode_fixed32_field,
    encode_varint_field,
)
from shardvar.wire.sstable import (
    TABLE_MAGIC,
    decode_num,
    decode_signed,
    decode_string,
    encode_num,
    encode_signed,
    encode_string,
    open_table,
)

_INDEX_SUFFIX = ".index"
DATA_NAME = re.compile(r"(?P<prefix>.*)\.data-(?P<number>\d{5,})-of-(?P<count>\d{5,})", re.DOTALL)
_V1_PART = re.compile(r"(?P<prefix>.*)-\d{5}-of-\d{5}", re.DOTALL)


def bundle_index_name(prefix: str) -> str:
    return prefix + _INDEX_SUFFIX


def data_name(prefix: str, number: int, count: int) -> str:
    return f"{prefix}.data-{number:05}-of-{count:05}"


def data_files(prefix: str, names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the data files of the prefix in ``names``, of any count, each with that count."""
    for name in names:
        match = DATA_NAME.fullmatch(name)
        if match and match["prefix"] == prefix:
            yield name, int(match["count"])


def find_bundles(storage: Storage, name: str) -> list[str]:
    """Return the prefixes that ``name`` may mean; if empty, all in the directory."""
    names = storage.names()
    if not name:
        return _list_prefixes(storage, names)
    # In the order of certainty: an index, a data file, a prefix of either, and at last files whose
    # bytes are read.
    there = set(names)
    if name in there and name.endswith(_INDEX_SUFFIX):
        return [name.removesuffix(_INDEX_SUFFIX)]
    data = DATA_NAME.fullmatch(name)
    if name in there and data:
        return [data["prefix"]]
    if bundle_index_name(name) in there or any(data_files(name, names)):
        return [name]
    part = _V1_PART.fullmatch(name)
    old = part["prefix"] if part and name in there else name
    return [old] if v1_files(storage, old, names) else []


def v1_files(storage: Storage, prefix: str, names: Iterable[str]) -> list[str]:
    """Return the files of a V1 checkpoint of that prefix: sorted tables that are not an index."""
    parts = (
        name for name in names if (part := _V1_PART.fullmatch(name)) and part["prefix"] == prefix
    )
    return [name for name in (prefix, *parts) if name in names and _is_table(storage, name)]


def check_readable(prefix: str) -> None:
    """Raise ``UnsupportedError`` for a prefix that TensorFlow would write and cannot read."""
    if not prefix or "\\" in prefix or re.search(r"\[.*\]", prefix, re.DOTALL):
        raise UnsupportedError(
            f"TensorFlow would not find a checkpoint named {prefix!r}: it reads the name as a "
            "pattern.",
            "Choose a name without backslashes and brackets.",
        )


def _list_prefixes(storage: Storage, names: list[str]) -> list[str]:
    """Return the bundles of a directory, or else prefixes of data files, or V1 checkpoints."""
    # An ``.index`` without data files may be a file of another program, so its last bytes are read.
    # Bundles without any tensor have no data files and are also found by these bytes.
    data = {match["prefix"] for name in names if (match := DATA_NAME.fullmatch(name))}
    indexes = [name.removesuffix(_INDEX_SUFFIX) for name in names if name.endswith(_INDEX_SUFFIX)]
    bundles = [
        prefix
        for prefix in indexes
        if prefix in data or _is_table(storage, bundle_index_name(prefix))
    ]
    if bundles or data:
        return bundles or sorted(data)
    # One file of each set is looked at: other formats may have thousands, and in a bucket each is a
    # request.
    firsts: dict[str, str] = {}
    # An index under its temporary name ends as a table too.
    unfinished = unfinished_files(names, "")
    for name in sorted(
        name for name in set(names).difference(unfinished) if not name.endswith(_INDEX_SUFFIX)
    ):
        firsts.setdefault(match["prefix"] if (match := _V1_PART.fullmatch(name)) else name, name)
    looked = as_answered(
        lambda item: (item[0], _is_table(storage, item[1])), firsts.items(), storage.traits
    )
    return sorted(prefix for prefix, is_table in looked if is_table)


def _is_table(storage: Storage, name: str) -> bool:
    """Return True if a file can be read and ends as a sorted table does."""
    count = len(TABLE_MAGIC)
    last = look_into(
        storage, name, lambda file: file.read(max(file.size - count, 0), min(count, file.size)), b""
    )
    return last == TABLE_MAGIC


# The messages of a tensor bundle's index, which are the values of its table.
#
#     BundleHeaderProto   1 num_shards, 2 endianness (1: big), 3 version            under the key ""
#     VersionDef          1 producer, 2 min_consumer, 3 bad_consumers (repeated)
#     BundleEntryProto    1 dtype, 2 shape, 3 shard_id, 4 offset, 5 size, 6 crc32c (fixed32, masked),
#                         7 slices (repeated)
#     TensorShapeProto    2 dim (repeated: 1 size), 3 unknown_rank
#     TensorSliceProto    1 extent (repeated: 1 start, 2 length; without a length, or with -1, the
#                         whole axis)
#
# The header may have one more field, 1000, which TensorFlow passes over: the generation
# (``Metadata.generation``), up to 64 letters and digits.
#
# A shard here is a data file. ``decode_entry`` reads any entry. ``decode_bundle_entries`` reads many,
# and decodes by hand the form that TensorFlow gives to nearly all of them: dtype and shape first, for
# which a model has few distinct byte strings, then the numbers, then the checksum. Entries of any
# other form go to ``decode_entry``.

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


@frozen
class BundleHeader:
    num_shards: int
    """The count in the names of the data files."""
    is_big_endian: bool = False
    """The byte order of elements and of the words of strings."""
    generation: str = ""


class BundleEntry(NamedTuple):
    """The entry of one tensor or stored slice; a tuple, because an index may have very many."""

    dtype: int  # a key of ``ENUM_DTYPES``
    shape: tuple[int, ...]  # of the tensor, or of the stored slice
    shard: int  # the number of the data file
    offset: int
    size: int
    crc: int  # masked
    slices: tuple[Extents, ...] = ()
    """The slices in which the tensor is stored; empty for an entry that has a payload."""


NO_ENTRY = BundleEntry(0, (), 0, 0, 0, 0)
"""The placeholder for an entry that cannot be read."""


def decode_header(message: bytes) -> BundleHeader:
    """Return the header; ``InvalidCheckpoint`` if it asks for another reader."""
    num_shards = endianness = min_consumer = 0
    bad_consumers: list[int] = []
    generation = b""
    for item in decode_fields(message):
        match item.number:
            case 1:
                num_shards = item.int64()
            case 2:
                endianness = item.int64()
            case 3:
                for part in decode_fields(item.octets()):
                    min_consumer = part.int64() if part.number == 2 else min_consumer
                    bad_consumers += part.int64s() if part.number == 3 else []
            case number if number == _GENERATION:
                generation = item.octets()
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
    for item in decode_fields(message):
        match item.number:
            case 1:
                dtype = item.int64()
            case 2:
                # Protobuf joins the shapes of a repeated item.
                shape += _decode_shape(item.octets())
                if len(shape) > MAX_RANK:
                    raise past_limit(f"The shape has {len(shape)} axes", "MAX_RANK")
            case 3:
                shard = item.int64()
            case 4:
                offset = item.int64()
            case 5:
                size = item.int64()
            case 6:
                crc = item.uint()
            case 7:
                slices.append(_decode_extents(item.octets()))
    if dtype not in ENUM_DTYPES:
        raise invalid(f"The dtype has the number {dtype}, which does not belong to a stored dtype.")
    if any(extent < 0 for extent in shape):
        raise invalid(f"An array cannot have the shape {tuple(shape)}.")
    # An extent of 0 does not make the others harmless: NumPy refuses the shape (2**62, 2**62, 0).
    itemsize = max(int(ITEMSIZES[CODES[dtype]]), 1)
    if prod(max(extent, 1) for extent in shape) * itemsize > MAX_NBYTES:
        raise invalid(f"A tensor of the shape {tuple(shape)} is too large to exist.")
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
    """Return the entry if its fields are 1, 2, any of 3, 4 and 5, and 6, in that order.

    ``heads`` caches the meaning of fields 1 and 2, such as

        08 01           field 1, a varint of one byte: dtype 1
        12 04           field 2, of 4 bytes: the shape
        12 02 08 03     one dim, of size 3"""
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
    for item in decode_fields(message):
        if item.number == 2:
            sizes = [part.int64() for part in decode_fields(item.octets()) if part.number == 1]
            shape.append(sizes[-1] if sizes else 0)
        elif item.number == 3 and item.uint():
            raise invalid("The shape has an unknown rank.")
    return shape


def _decode_extents(message: bytes) -> Extents:
    extents = []
    for item in decode_fields(message):
        if item.number == 1:
            start, length = 0, WHOLE_AXIS
            for part in decode_fields(item.octets()):
                start = part.int64() if part.number == 1 else start
                length = part.int64() if part.number == 2 else length
            extents.append((start, length))
    return tuple(extents)


def encode_header(num_shards: int, generation: str = "") -> bytes:
    """Return the header that TensorFlow writes, and then a generation, if any."""
    header = encode_varint_field(1, num_shards) + encode_bytes_field(
        3, encode_varint_field(1, BUNDLE_VERSION)
    )
    return header + (encode_bytes_field(_GENERATION, generation.encode()) if generation else b"")


def encode_head(dtype: int, shape: Sequence[int]) -> bytes:
    dims = b"".join(encode_bytes_field(2, encode_varint_field(1, extent)) for extent in shape)
    return encode_varint_field(1, dtype) + encode_bytes_field(2, dims)


def encode_place(shard: int, offset: int, size: int, crc: int) -> bytes:
    numbers = map(encode_varint_field, (3, 4, 5), (shard, offset, size))
    return b"".join(numbers) + encode_fixed32_field(6, crc)


def encode_slices(slices: Sequence[Extents]) -> bytes:
    octets = b""
    for extents in slices:
        fields = b""
        for start, length in extents:
            # The length is a member of a ``oneof``, and so is written even if it is 0.
            numbers = encode_varint_field(1, start) + (
                encode_varint_field(2, length) or b"\x10\x00"
            )
            fields += encode_bytes_field(1, b"" if length == WHOLE_AXIS else numbers)
        octets += encode_bytes_field(7, fields)
    return octets


# The entries of an index file: tensors, and the slices of tensors.
#
# A tensor that is stored in slices has a *full entry* under its name, with the whole shape and the
# list of slices, and for each slice an entry under an encoded key:
#
#     slice key := num(0) string(name) num(rank) (signed(start) signed(length)) on every axis      (wire.sstable)
#
# where the length -1 means a whole axis. So slice keys begin with a zero byte. A tensor "w" of shape
# (4, 5) in two slices has three entries:
#
#     "w"                              shape (4, 5), slices ((0, 2), (0, -1)) and ((2, 2), (0, -1))
#     slice_key("w", (0, 2), (0, -1))  shape (2, 5), file, offset, size, checksum
#     slice_key("w", (2, 2), (0, -1))  shape (2, 5), file, offset, size, checksum
#
# Only the full entry decides which slices belong to a tensor; its own file, offset and checksum have
# no meaning.


HEADER_KEY = b""
_MAX_SLICE_KEY_NBYTES = 2 * MAX_KEY_NBYTES + 16 + MAX_RANK * 2 * 10
"""The key of a slice: the name, whose bytes may each be escaped, the rank, and two numbers of at
most ten bytes for each axis."""

_SlicePart = tuple[int, tuple[int, ...], tuple[int, ...]]
"""(row of the entry, offset, shape) of a stored slice."""
SliceParts = list[_SlicePart]


@frozen
class BundleContents:
    file: ReadableFile
    """The file, kept open so that the file system cannot give its identity to another file."""
    header: BundleHeader
    keys: list[bytes]  # of the entries, rising
    entries: list[BundleEntry]
    """[rows] the entries; ``NO_ENTRY`` for the rows in ``errors``."""
    errors: dict[int, CheckpointError]

    @property
    def place(self) -> str:
        return self.file.name


@frozen
class BundleTensors:
    rows: list[int] = field(default_factory=list)
    """The rows that are tensors."""
    parts: dict[int, SliceParts] = field(default_factory=dict)
    """The stored slices of tensors that are not stored whole, by the tensor's row."""
    faults: dict[str, CheckpointError] = field(default_factory=dict)


def read_bundle(storage: Storage, prefix: str) -> BundleContents:
    try:
        file = storage.open(bundle_index_name(prefix))
    except MissingFile as error:
        # A V1 checkpoint has no index, and a bundle may have lost its own.
        names, path = storage.names(), f"{storage.path}/{prefix}"
        if v1_files(storage, prefix, names):
            cause = f"{path} is a checkpoint of TensorFlow's V1 format, which is not supported."
            raise UnsupportedError(
                cause,
                "Load it with TensorFlow and save it again with tf.train.Checkpoint or write_version=V2.",
            ) from error
        if any(data_files(prefix, names)):
            cause = f"{path}{bundle_index_name('')} is missing, but its data files exist."
            raise MissingFile(
                cause,
                "The data files cannot be read without it: copy the index from where it was written.",
            ) from error
        raise CheckpointNotFound(f"No TensorFlow checkpoint at {path}.", error.remedy) from error
    with prefix_errors(file.name):
        blocks = list(open_table(file.read, file.size).blocks())
        keys = [key for block, _ in blocks for key in block]
        check_key_nbytes(max((len(key) for key in keys if key[:1] != b"\x00"), default=0))
        if max(map(len, keys), default=0) > _MAX_SLICE_KEY_NBYTES:
            raise past_limit(
                "A key of a slice names a tensor whose key is longer", "MAX_KEY_NBYTES"
            )
    values = [value for _, block in blocks for value in block]
    if keys[:1] != [HEADER_KEY]:
        raise invalid(f"{file.name}: The first entry is not the header, whose key is empty.")
    with prefix_errors(f"{file.name}: header"):
        header = decode_header(values[0])
    entries, errors = decode_bundle_entries(values[1:])
    return BundleContents(file, header, keys[1:], entries, errors)


def find_tensors(contents: BundleContents) -> BundleTensors:
    """Sort the entries into tensors and slices; an entry that is neither is a fault of its key."""
    found = BundleTensors()
    # Full entries first: they claim the entries of their slices. ``row_of`` is built only if there
    # are any.
    sliced = [
        row
        for row, entry in enumerate(contents.entries)
        if entry.slices and _sliced_name(contents.keys[row]) is None
    ]
    row_of = dict(zip(contents.keys, range(len(contents.keys)), strict=True)) if sliced else {}
    claimed: set[int] = set()
    for row in sliced:
        parts: SliceParts = []
        try:
            for part in _find_parts(contents, row, row_of):
                parts.append(part)
                claimed.add(part[0])
        except CheckpointError as error:
            _add_fault(found, contents, row, error)
            parts = []
        found.parts[row] = parts
    # Entries that cannot be read, unless they are slices: then the error is reported for their
    # tensor already.
    for row, reason in contents.errors.items():
        if row not in claimed:
            _add_fault(found, contents, row, reason)
    # The rest are whole tensors, full entries, and slices that no full entry lists.
    for row, key in enumerate(contents.keys):
        if row in claimed or row in contents.errors:
            continue
        name = _sliced_name(key)
        if name is None:
            found.rows.append(row)
        else:
            cause = f"A slice of it is stored under {key!r}, but not listed by an entry."
            _add_fault(found, contents, row, invalid(cause), name)
    return found


def slice_table(contents: BundleContents, found: BundleTensors) -> tuple[SliceTable, list[int]]:
    """Return the stored slices, tensor by tensor, and the row of each one's entry."""
    full = [contents.entries[row] for row in found.rows]
    keys = [decode_key(contents.keys[row]) for row in found.rows]
    codes = column_of(CODES[entry.dtype] for entry in full)
    tensors = TensorTable(keys, codes, *pad([entry.shape for entry in full], fill=1))
    parts = [
        (number, *part)
        for number, row in enumerate(found.rows)
        # A whole tensor has one slice, of the full shape at offset 0.
        for part in found.parts.get(row, [(row, (), full[number].shape)])
    ]
    tensor, rows, offset, shape = zip(*parts, strict=True) if parts else ((),) * 4
    nbytes = np.maximum(column_of(contents.entries[row].size for row in rows), 0)
    regions = tensors.padded(offset, shape)
    return SliceTable.of(tensors, np.array(tensor, np.int64), *regions, nbytes), [*rows]


def column_of(values: Iterator[int]) -> Ints:
    return np.fromiter(values, np.int64)


def decode_key(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def slice_key(name: bytes, extents: Extents) -> bytes:
    numbers = b"".join(_encode_signed(start) + _encode_signed(length) for start, length in extents)
    return encode_num(0) + encode_string(name) + encode_num(len(extents)) + numbers


_encode_signed = lru_cache(maxsize=1 << 14)(encode_signed)


def _find_parts(
    contents: BundleContents, row: int, row_of: dict[bytes, int]
) -> Iterator[_SlicePart]:
    """Yield the stored slices that a full entry lists, each then compared with its own entry."""
    full = contents.entries[row]
    shape = full.shape
    for extents in contents.entries[row].slices:
        # In TensorFlow's notation, as in "0,2:-": rows 0 and 1, all columns.
        text = ":".join(
            "-" if length == WHOLE_AXIS else f"{start},{length}" for start, length in extents
        )
        if len(extents) != len(shape):
            raise InconsistentTensor(
                f"The slice {text} has {len(extents)} axes, the tensor {len(shape)}.", WRITE_AGAIN
            )
        lengths = tuple(
            n if length == WHOLE_AXIS else length
            for (_, length), n in zip(extents, shape, strict=True)
        )
        offset = tuple(start for start, _ in extents)
        if any(
            start < 0 or length < 0 or start + length > n
            for start, length, n in zip(offset, lengths, shape, strict=True)
        ):
            raise OutOfBounds(f"The slice {text} reaches out of the shape {shape}.", WRITE_AGAIN)
        part = row_of.get(slice_key(contents.keys[row], extents))
        if part is None:
            raise incomplete(f"The slice {text} is listed but not stored.")
        yield part, offset, lengths
        if part in contents.errors:
            raise contents.errors[part]
        entry = contents.entries[part]
        if entry.dtype != full.dtype or entry.shape != lengths or entry.slices:
            raise InconsistentTensor(
                f"A slice of dtype number {full.dtype} and shape {lengths} is listed, but its entry "
                f"has {entry.dtype} and {entry.shape}.",
                WRITE_AGAIN,
            )


def _sliced_name(key: bytes) -> bytes | None:
    """Return the tensor that the slice ``key`` belongs to; None if ``key`` is a tensor."""
    if key[:1] != b"\x00":
        return None
    # Only bytes that decode completely are a slice key; any others are a strange but valid name.
    try:
        _, position = decode_num(key, 0)
        name, position = decode_string(key, position)
        rank, position = decode_num(key, position)
        for _ in range(2 * rank):
            _, position = decode_signed(key, position)
    except MalformedCheckpoint:
        return None
    return name if position == len(key) else None


def _add_fault(
    found: BundleTensors,
    contents: BundleContents,
    row: int,
    error: CheckpointError,
    name: bytes | None = None,
) -> None:
    """Note that a key cannot be read; its first error stays."""
    key = decode_key(contents.keys[row] if name is None else name)
    found.faults.setdefault(key, error.at(contents.place, repr(key)))
