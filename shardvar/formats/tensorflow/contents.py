"""The entries of an index file: tensors, and the slices of tensors.

A tensor that is stored in slices has a *full entry* under its name, with the whole shape and the
list of slices, and for each slice an entry under an encoded key:

    slice key := num(0) string(name) num(rank) (signed(start) signed(length)) on every axis      (wire.ordered_code)

where the length -1 means a whole axis. So slice keys begin with a zero byte. A tensor "w" of shape
(4, 5) in two slices has three entries:

    "w"                              shape (4, 5), slices ((0, 2), (0, -1)) and ((2, 2), (0, -1))
    slice_key("w", (0, 2), (0, -1))  shape (2, 5), file, offset, size, checksum
    slice_key("w", (2, 2), (0, -1))  shape (2, 5), file, offset, size, checksum

Only the full entry decides which slices belong to a tensor; its own file, offset and checksum have
no meaning.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from shardvar.errors import (
    COPY_AGAIN,
    CheckpointError,
    CheckpointNotFound,
    IncompleteCheckpoint,
    InconsistentTensor,
    InvalidCheckpoint,
    MalformedCheckpoint,
    MissingFile,
    OutOfBounds,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.tensorflow.names import bundle_index_name, data_files, v1_files
from shardvar.formats.tensorflow.protos import (
    CODES,
    WHOLE_AXIS,
    BundleEntry,
    BundleHeader,
    Extents,
    decode_bundle_entries,
    decode_header,
)
from shardvar.layout.dtypes import Ints
from shardvar.limits import MAX_KEY_NBYTES, MAX_RANK
from shardvar.planning.slices import SliceTable, TensorTable, pad, widen
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.damage import WRITE_AGAIN, check_key_nbytes, invalid, past_limit
from shardvar.wire.ordered_code import (
    decode_num,
    decode_signed,
    decode_string,
    encode_num,
    encode_signed,
    encode_string,
)
from shardvar.wire.sstable import open_table

HEADER_KEY = b""
_MAX_SLICE_KEY_NBYTES = 2 * MAX_KEY_NBYTES + 16 + MAX_RANK * 2 * 10
"""The key of a slice: the name, whose bytes may each be escaped, the rank, and two numbers of at
most ten bytes for each axis."""

_SlicePart = tuple[int, tuple[int, ...], tuple[int, ...]]
"""(row of the entry, offset, shape) of a stored slice."""

SliceParts = list[_SlicePart]
"""The stored slices of a tensor."""


@dataclass(frozen=True, slots=True)
class BundleContents:
    """An index file, decoded."""

    file: ReadableFile
    """The file, kept open so that the file system cannot give its identity to another file."""
    header: BundleHeader
    """The header."""
    keys: list[bytes]
    """[rows] the key of each entry, rising."""
    entries: list[BundleEntry]
    """[rows] the entries; ``NO_ENTRY`` for the rows in ``errors``."""
    errors: dict[int, CheckpointError]
    """The rows that cannot be read, each with its error."""

    @property
    def place(self) -> str:
        """The path of the file, for messages."""
        return self.file.name


@dataclass(frozen=True, slots=True)
class BundleTensors:
    """The rows of an index file, sorted into tensors and slices."""

    rows: list[int] = field(default_factory=list)
    """The rows that are tensors."""
    parts: dict[int, SliceParts] = field(default_factory=dict)
    """The stored slices of those tensors that are not stored whole, by the tensor's row."""
    faults: dict[str, CheckpointError] = field(default_factory=dict)
    """The keys that cannot be read, each with its error."""


def read_bundle(storage: Storage, prefix: str) -> BundleContents:
    """Return the index of the bundle of that prefix."""
    try:
        file = storage.open(bundle_index_name(prefix))
    except MissingFile as error:
        raise _absent(storage, prefix, error) from error
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


def _absent(storage: Storage, prefix: str, error: MissingFile) -> Exception:
    """Return the error for a missing index of that prefix, by the prefix's other files."""
    names = storage.names()
    path = f"{storage.path}/{prefix}"
    # A V1 checkpoint has no index, and a bundle may have lost its own.
    if v1_files(storage, prefix, names):
        remedy = (
            "Load it with TensorFlow and save it again with tf.train.Checkpoint or "
            "write_version=V2."
        )
        return UnsupportedError(
            f"{path} is a checkpoint of TensorFlow's V1 format, which is not supported.", remedy
        )
    if any(data_files(prefix, names)):
        remedy = (
            "The data files cannot be read without it: copy the index from where it was written."
        )
        return MissingFile(
            f"{path}{bundle_index_name('')} is missing, but its data files exist.", remedy
        )
    return CheckpointNotFound(f"No TensorFlow checkpoint at {path}.", error.remedy)


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
                _check_part(contents, row, part)
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
            _add_fault(found, contents, row, InvalidCheckpoint(cause, WRITE_AGAIN), name)
    return found


def slice_table(contents: BundleContents, found: BundleTensors) -> tuple[SliceTable, list[int]]:
    """Return the stored slices, tensor by tensor, and the row of each one's entry."""
    full = [contents.entries[row] for row in found.rows]
    ranks, shapes = pad([entry.shape for entry in full], fill=1)
    codes = column_of(CODES[entry.dtype] for entry in full)
    tensors = TensorTable(
        [decode_key(contents.keys[row]) for row in found.rows], codes, ranks, shapes
    )
    # A whole tensor has one slice, of the full shape at offset 0; the rows of tensors in slices are
    # overwritten below.
    count = column_of(len(found.parts[row]) if row in found.parts else 1 for row in found.rows)
    tensor = np.repeat(np.arange(len(full)), count)
    offset, shape = np.zeros_like(shapes)[tensor], shapes[tensor]
    rows = np.repeat(np.array(found.rows, np.int64), count)
    first = np.cumsum(count) - count
    for number in np.flatnonzero(np.isin(found.rows, list(found.parts))).tolist():
        parts = found.parts[found.rows[number]]
        here = slice(int(first[number]), int(first[number]) + len(parts))
        rows[here] = [part for part, _, _ in parts]
        if parts:
            offset[here] = widen(
                np.array([start for _, start, _ in parts], np.int64), offset.shape[1], 0
            )
            shape[here] = widen(
                np.array([extents for _, _, extents in parts], np.int64), shape.shape[1], 1
            )
    selected = rows.tolist()
    nbytes = np.maximum(column_of(contents.entries[row].size for row in selected), 0)
    return SliceTable.of(tensors, tensor, offset, shape, nbytes), selected


def column_of(values: Iterator[int]) -> Ints:
    """Return integers as an array."""
    return np.fromiter(values, np.int64)


def decode_key(key: bytes) -> str:
    """Return a stored name as a text; bytes that are not UTF-8 become surrogate escapes."""
    return key.decode("utf-8", "surrogateescape")


def slice_key(name: bytes, extents: Extents) -> bytes:
    """Return the key of a stored slice.

    >>> slice_key(b"w", ((0, -1), (2, 5))).hex(" ")
    '00 77 00 01 01 02 80 7f 82 85'
    """
    numbers = b"".join(_encode_signed(start) + _encode_signed(length) for start, length in extents)
    return encode_num(0) + encode_string(name) + encode_num(len(extents)) + numbers


_encode_signed = lru_cache(maxsize=1 << 14)(encode_signed)


def _find_parts(
    contents: BundleContents, row: int, row_of: dict[bytes, int]
) -> Iterator[_SlicePart]:
    """The stored slices that a full entry lists, each checked to lie within the tensor."""
    shape = contents.entries[row].shape
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
            raise IncompleteCheckpoint(f"The slice {text} is listed but not stored.", COPY_AGAIN)
        yield part, offset, lengths


def _check_part(contents: BundleContents, row: int, part: _SlicePart) -> None:
    """Raise if the entry of a slice disagrees with the full entry that lists it."""
    number, _, shape = part
    if number in contents.errors:
        raise contents.errors[number]
    full, entry = contents.entries[row], contents.entries[number]
    if entry.dtype != full.dtype or entry.shape != shape or entry.slices:
        raise InconsistentTensor(
            f"A slice of dtype number {full.dtype} and shape {shape} is listed, but its entry has "
            f"{entry.dtype} and {entry.shape}.",
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
