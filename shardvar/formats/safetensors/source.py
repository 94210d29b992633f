"""Reading the payloads of a safetensors checkpoint.

Elements of 8 bits and more lie in the file as they are, without any checksum. Those of 4 bits lie two in a byte, the
first in the low half, and are spread to one a byte. How elements of 6 bits lie no writer has yet shown: they are listed
and refused.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, cast

import numpy as np

from shardvar.errors import (
    CheckpointError,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MissingFile,
    ShardvarError,
    StorageError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles
from shardvar.formats.protocol import Finding
from shardvar.formats.safetensors.names import SUFFIX, parts_of, prefix_of, split_part
from shardvar.layout.dtypes import MAX_RANK, code
from shardvar.planning.index import NO_CHECKSUM, EntryTable, Metadata, TableIndex
from shardvar.planning.slices import TensorTable, pad
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire import strict_json
from shardvar.wire.damage import SNIFF_NBYTES, WRITE_AGAIN, foreign_file, invalid, malformed
from shardvar.wire.safetensors_header import (
    BITS,
    MAX_HEADER_NBYTES,
    PREAMBLE_NBYTES,
    Header,
    header_nbytes,
    parse_header,
)

# What a safetensors checkpoint holds: read from the headers of its files and, for a set, from its index.
#
# A file is believed whole or not at all, since its header speaks for all its tensors. A set is read as far as it can
# be:
# the keys of a file that cannot be read, or that lies elsewhere than beside the index, are faults, and the others
# stand.
# The index decides which file holds a key. Where the files disagree with it, that is a finding: a tensor that stands in
# two files or that the index does not name, files that are there or are not, against what names and sizes say.
#
# While a set is overwritten its index is gone (``sink``). A reader that found the index before looks at it once more
# after the headers, so that it never takes some files from the old set and some from the new.


DESCRIPTION = "shardvar.description"
WRITER = "shardvar.writer"
"""Where in ``__metadata__`` that stands which has a field of its own in ``Metadata``."""

_INDEX_DEPTH = 32
_NAMED = 8
"""Keys that a message names; the others it counts."""


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """What a checkpoint holds."""

    index: TableIndex
    """The table of contents."""
    files: DataFiles
    """The files, opened."""
    findings: Sequence[Finding] = ()
    """What is odd about the set."""


@dataclass(slots=True, eq=False)
class _Rows:
    """Tensors that are there, column by column."""

    keys: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    shapes: list[Sequence[int]] = field(default_factory=list)
    file: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    nbytes: int = 0


def read_single(storage: Storage, name: str) -> Contents:
    """The contents of one file."""
    files = DataFiles(storage, [name])
    header = _read_header(files.open(0))
    rows = _Rows()
    faults: dict[str, ShardvarError] = {}
    _add_rows(rows, faults, header, 0, list(range(len(header.keys))))
    return Contents(_table(rows, [name], header.metadata, faults), files)


def read_set(storage: Storage, name: str) -> Contents:
    """The contents of a set, by the name of its index."""
    index, weight_map, index_metadata = _read_index(storage, name)
    names = sorted(set(weight_map.values()))
    files = DataFiles(storage, names)
    keys_of: dict[str, list[str]] = {file: [] for file in names}
    for key, file in weight_map.items():
        keys_of[file].append(key)
    rows, faults, headers = _Rows(), dict[str, ShardvarError](), dict[str, Header]()
    for number, file in enumerate(names):
        try:
            _check_name(storage, file)
            headers[file] = _read_header(files.open(number))
        except (CheckpointError, StorageError) as error:
            faults.update((key, type(error)(f"{key!r}: {error.cause}", error.remedy)) for key in keys_of[file])
            continue
        row_of = {key: row for row, key in enumerate(headers[file].keys)}
        missing = [key for key in keys_of[file] if key not in row_of]
        faults.update((key, _not_in_file(storage, key, file)) for key in missing)
        _add_rows(rows, faults, headers[file], number, [row_of[key] for key in keys_of[file] if key in row_of])
    if _stamp(storage, name) != index.stamp:
        cause = f"{storage.path}: {name} was replaced while the set was being opened."
        raise CorruptCheckpoint(cause, "Open it again when the writer is done.")
    index.close()
    metadata = {key: text for header in headers.values() for key, text in header.metadata.items()}
    findings = [*_disagreements(headers, weight_map), *_miscounts(storage, name, names)]
    if not faults:
        findings += _missized(name, index_metadata, rows.nbytes)
    metadata |= {k: v if type(v) is str else json.dumps(v) for k, v in index_metadata.items() if k != "total_size"}
    return Contents(_table(rows, names, metadata, faults), files, findings)


def _read_header(file: ReadableFile) -> Header:
    with prefix_errors(file.name):
        nbytes = header_nbytes(file.read(0, min(SNIFF_NBYTES, file.size)), file.size)
        with prefix_errors(f"header at offset {PREAMBLE_NBYTES}"):
            return parse_header(file.read(PREAMBLE_NBYTES, nbytes), file.size)


def _read_index(storage: Storage, name: str) -> tuple[ReadableFile, Mapping[str, str], Mapping[str, Any]]:
    """The index of a set, open so that no other gets its stamp; which file holds each key, and what else it says."""
    try:
        file = storage.open(name)
    except MissingFile as error:
        cause = f"{error.cause} It says which file of the set holds what."
        remedy = "Fetch it from where the set came from, or name one file of the set to read that one alone."
        raise MissingFile(cause, remedy) from None
    try:
        with prefix_errors(file.name):
            if file.size > MAX_HEADER_NBYTES:
                raise malformed(f"The index has {file.size} bytes; {MAX_HEADER_NBYTES} are the most that is read.")
            text = file.read(0, file.size)
            if not text.lstrip().startswith(b"{"):
                raise foreign_file("the index of a set", text[:SNIFF_NBYTES], file.size, "no JSON object begins it")
            index = strict_json.parse(text, _INDEX_DEPTH)
            weight_map = index.get("weight_map") if type(index) is dict else None
            if type(weight_map) is not dict or not set(map(type, weight_map.values())) <= {str}:
                raise invalid("The index has no weight_map from names of tensors to names of files.")
            metadata = index.get("metadata", {})
            if type(metadata) is not dict:
                raise invalid("The metadata of the index is no JSON object.")
            return file, {key: name.removeprefix("./") for key, name in weight_map.items()}, metadata
    except BaseException:
        file.close()
        raise


def _stamp(storage: Storage, name: str) -> str:
    file = storage.open(name)
    file.close()
    return file.stamp


def _check_name(storage: Storage, name: str) -> None:
    """Raise ``InvalidCheckpoint`` unless the file lies beside the index and is called as one of this format.

    The storage refuses what is no bare name here; this refuses what is none elsewhere.
    """
    if "\\" in name or "/" in name or not name.endswith(SUFFIX):
        cause = f"{storage.path}: the index names {name!r}, which is no safetensors file beside it."
        raise InvalidCheckpoint(cause, WRITE_AGAIN)


def _not_in_file(storage: Storage, key: str, file: str) -> IncompleteCheckpoint:
    cause = f"{key!r}: the index says that it is in {file!r} of {storage.path}, and it is not."
    return IncompleteCheckpoint(cause, "Fetch that file again from where the set came from.")


def _add_rows(
    rows: _Rows, faults: dict[str, ShardvarError], header: Header, number: int, wanted: Sequence[int]
) -> None:
    rows.nbytes += int(header.nbytes[wanted].sum())
    deep = {row for row in wanted if len(header.shapes[row]) > MAX_RANK}
    for row in deep:
        cause = f"{header.keys[row]!r} has {len(header.shapes[row])} axes; NumPy has at most {MAX_RANK}."
        faults[header.keys[row]] = UnsupportedError(cause, "Write it with another shape.")
    wanted = [row for row in wanted if row not in deep] if deep else wanted
    rows.keys += [header.keys[row] for row in wanted]
    rows.dtypes += [header.dtypes[row] for row in wanted]
    rows.shapes += [header.shapes[row] for row in wanted]
    rows.file += [number] * len(wanted)
    rows.start += header.start[wanted].tolist()


def _table(
    rows: _Rows, files: list[str], metadata: Mapping[str, str], faults: Mapping[str, ShardvarError]
) -> TableIndex:
    codes = np.array([code(dtype) for dtype in rows.dtypes], dtype=np.int64)
    slices = TensorTable(rows.keys, codes, *pad(rows.shapes, fill=1)).whole()
    plain = np.array([BITS[dtype] >= 8 for dtype in rows.dtypes], dtype=np.bool)
    order = np.array(sorted(range(len(rows.keys)), key=rows.keys.__getitem__), dtype=np.int64)
    entries = EntryTable(
        slices,
        np.array(rows.file, dtype=np.int64),
        np.array(rows.start, dtype=np.int64),
        np.full(len(slices), NO_CHECKSUM),
        plain,
    ).take(order)
    user = dict(metadata)
    said = Metadata(user.pop(DESCRIPTION, ""), user.pop(WRITER, ""), user)
    return TableIndex(entries, files, said, cast(Mapping[str, CheckpointError], faults))


def _disagreements(headers: Mapping[str, Header], weight_map: Mapping[str, str]) -> Iterator[Finding]:
    """Tensors that stand in other files than the index says."""
    for file, header in headers.items():
        elsewhere = [key for key in header.keys if weight_map.get(key, file) != file]
        if elsewhere:
            yield Finding(file, f"It holds {_some(elsewhere)}, which the index finds in another file.", True)
        unnamed = [key for key in header.keys if key not in weight_map]
        if unnamed:
            yield Finding(file, f"It holds {_some(unnamed)}, which the index does not name.", True)


def _miscounts(storage: Storage, name: str, files: Sequence[str]) -> Iterator[Finding]:
    """Files whose names speak of other files than there are."""
    prefix = prefix_of(name)
    parts = [part for file in files if (part := split_part(file))]
    for count in sorted({part[2] for part in parts}):
        numbers = {part[1] for part in parts if part[2] == count}
        if not (min(numbers) <= 1 and len(numbers) == count == max(numbers) - min(numbers) + 1):
            yield Finding(name, f"The names speak of {count} files and the index names {len(numbers)} of them.", True)
    others = [file for file in storage.names() if file.endswith(SUFFIX) and file not in files]
    strays = parts_of(prefix, others)
    for file in others:
        yield Finding(file, "It lies beside the set, and the index does not name it.", file in strays)


def _missized(name: str, index_metadata: Mapping[str, Any], nbytes: int) -> Iterator[Finding]:
    """A total that is not the sum; old writers made a floating-point number of it, and some leave it out."""
    total = index_metadata.get("total_size", nbytes)
    if type(total) not in (int, float) or total in (inf, -inf) or total != nbytes:
        yield Finding(name, f"Its total_size is {total!r}; the tensors that it names have {nbytes} bytes.", True)


def _some(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return ", ".join(map(repr, keys[:_NAMED])) + more


_HALF = 4
"""Bits of an element of which two share a byte."""


@dataclass(frozen=True, slots=True)
class SafetensorsSource:
    """An open safetensors checkpoint."""

    contents: Contents
    """What it holds."""

    @property
    def index(self) -> TableIndex:
        """The table of contents."""
        return self.contents.index

    @property
    def crc(self) -> None:
        """The format has no checksums."""
        return None

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry, from byte ``start`` of the payload on."""
        file, begin = int(entries.file[row]), int(entries.start[row])
        if entries.plain[row]:
            self.read_span(file, begin + start, buffer)
            return
        dtype = entries.slices.dtype(row)
        if BITS[dtype] != _HALF:
            raise UnsupportedError(
                f"{entries.slices.key(row)!r} has the dtype {dtype}, whose elements of {BITS[dtype]} bits are packed.",
                "How they are packed is not known; unpack them with the program that wrote the file.",
            )
        first, stop = start // 2, -(-(start + len(buffer)) // 2)
        packed = np.frombuffer(self.contents.files.open(file).read(begin + first, stop - first), np.uint8)
        elements = np.stack([packed & 0xF, packed >> _HALF], axis=-1).reshape(-1)
        np.frombuffer(buffer, np.uint8)[:] = elements[start - 2 * first :][: len(buffer)]

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from one data file, from byte ``start`` of the file on."""
        self.contents.files.open(file).read_into(start, buffer)

    def map(self, file: int) -> memoryview:
        """A data file as a read-only memory map."""
        return self.contents.files.open(file).map()

    def close(self) -> None:
        """Give the files back."""
        self.contents.files.close()

    def findings(self) -> Sequence[Finding]:
        """What is odd about the set."""
        return self.contents.findings
