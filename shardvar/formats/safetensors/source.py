"""An open safetensors checkpoint: the contents, from the headers of its files and a set's index,
and the payloads.

Contents. A file is believed whole or not at all, because its header describes all its tensors. A
set is read as far as possible: the keys of a file that cannot be read, or that is not next to the
index, are faults, and the others can be read. The index decides which file has a key. Disagreements
between the files and the index are findings: a tensor in two files, a tensor or a file that the
index does not name, names and sizes that do not fit.

While a set is overwritten, its index is missing (``sink``). A reader that found the index before
looks at it again after reading the headers, so that it never takes some files from the old set and
some from the new.

Payloads. All are plain, without any checksum. Elements of 4 and 6 bits are packed, and have dtypes
that say so. The first of two elements of 4 bits is in the low half of its byte. No writer has shown
yet how elements of 6 bits are packed: such tensors are copied, and their values refused.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from shardvar.formats.files import ATTEMPTS, DataFiles, FileSource, check_same
from shardvar.formats.protocol import Finding
from shardvar.formats.safetensors.names import (
    SAFETENSORS_SUFFIX,
    part_names_of,
    prefix_of,
    split_part_name,
)
from shardvar.formats.safetensors.offsets import LAYOUT_KEYS, partial_tensors
from shardvar.formats.sets import fetch_again
from shardvar.layout.dtypes import code
from shardvar.limits import MAX_RANK
from shardvar.pictures.words import named
from shardvar.planning.index import NO_CHECKSUM, EntryTable, Metadata, TableIndex
from shardvar.planning.slices import TensorTable, pad
from shardvar.storage.concurrency import as_answered
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.damage import SNIFF_NBYTES, WRITE_AGAIN
from shardvar.wire.digests import DIGESTS, take_digests
from shardvar.wire.safetensors_header import (
    PREAMBLE_NBYTES,
    Header,
    header_nbytes,
    parse_header,
)
from shardvar.wire.set_index import SetIndex, read_set_index

DESCRIPTION_KEY = "shardvar.description"
WRITER_KEY = "shardvar.writer"
GENERATION_KEY = "shardvar.generation"
"""The keys in ``__metadata__`` of three fields of ``Metadata``; the last one is also in the
metadata of an index."""
FORMAT_KEY, FORMAT_VALUE = "format", "pt"
"""The text in ``__metadata__`` without which ``from_pretrained`` of Hugging Face refuses a file."""
TOTALS = ("total_size", "total_parameters")
"""The keys in the metadata of an index that count the tensors."""


@dataclass(frozen=True, slots=True, eq=False)
class SafetensorsContents:
    """The contents of a file or a set."""

    index: TableIndex
    """The table of contents."""
    files: DataFiles
    """The files, open."""
    findings: Sequence[Finding] = ()
    """Oddities of the set."""


@dataclass(slots=True, eq=False)
class _Rows:
    """The tensors that can be read, column by column."""

    keys: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    shapes: list[Sequence[int]] = field(default_factory=list)
    file: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    nbytes: int = 0


def read_single(storage: Storage, name: str) -> SafetensorsContents:
    """Return the contents of one file."""
    files = DataFiles(storage, [name], named=name)
    header = read_header(files.open(0))
    rows = _Rows()
    faults: dict[str, ShardvarError] = {}
    _add_rows(rows, faults, header, 0, header.keys)
    return SafetensorsContents(_table(rows, [name], header.metadata, faults), files)


def read_set(storage: Storage, name: str) -> SafetensorsContents:
    """Return the contents of a set, by the name of its index; a set that is replaced meanwhile is
    read again."""
    for _ in range(ATTEMPTS):
        contents = _read_set(storage, name)
        if contents is not None:
            return contents
        if storage.traits is not None:  # what a bucket has listed is old
            storage = storage.refreshed()
    cause = f"{storage.path}: {name} was replaced while the set was being opened."
    raise CorruptCheckpoint(cause, "Open it again when the writer is done.")


def _read_set(storage: Storage, name: str) -> SafetensorsContents | None:
    """Return the contents of a set; None if it was replaced meanwhile."""
    # The index: which file has each key.
    index, content = _read_index(storage, name)
    weight_map, index_metadata = content.weight_map, content.metadata
    names = sorted(set(weight_map.values()))
    files = DataFiles(storage, names, index=name)
    keys_of: dict[str, list[str]] = {file: [] for file in names}
    for key, file in weight_map.items():
        keys_of[file].append(key)

    # The headers: a file that cannot be read, or lacks a key, is a fault of its keys only.
    rows, faults, headers = _Rows(), dict[str, ShardvarError](), dict[str, Header]()
    answers = dict(
        as_answered(
            lambda number: (number, _answer(storage, files, number)),
            range(len(names)),
            storage.traits,
        )
    )
    for number, file in enumerate(names):
        answer = answers[number]
        if not isinstance(answer, Header):
            faults.update((key, answer.at(repr(key))) for key in keys_of[file])
            continue
        headers[file] = answer
        present = set(answer.keys)
        _add_rows(rows, faults, answer, number, [key for key in keys_of[file] if key in present])
    absent = _absences(headers, weight_map)
    faults |= absent

    # The index again: if it is another one now, the headers may come from two sets. It was kept
    # open until here, so that the file system cannot give its identity to another file. The files
    # again: another writer may write them in any order.
    try:
        check_same(storage, name, index.stamp)
        files.check_in_place()
    except CorruptCheckpoint:
        index.close()
        files.close()
        return None
    index.close()

    # What is odd: sizes are compared only if all tensors are there.
    # The digests of a set are in its index: a file that was written by itself has only its own.
    metadata = {
        key: text
        for header in headers.values()
        for key, text in header.metadata.items()
        if key != DIGESTS
    }
    findings = [*_disagreements(headers, weight_map, absent), *_miscounts(storage, name, names)]
    if not faults:
        findings += _missized(name, index_metadata, rows.nbytes)
    metadata |= {
        k: v if type(v) is str else json.dumps(v)
        for k, v in index_metadata.items()
        if k not in TOTALS
    }
    return SafetensorsContents(_table(rows, names, metadata, faults), files, findings)


def read_header(file: ReadableFile) -> Header:
    """Return the content of the header of a file."""
    with prefix_errors(file.name):
        nbytes = header_nbytes(file.read(0, min(SNIFF_NBYTES, file.size)), file.size)
        with prefix_errors(f"header at offset {PREAMBLE_NBYTES}"):
            return parse_header(file.read(PREAMBLE_NBYTES, nbytes), file.size)


def _answer(
    storage: Storage, files: DataFiles, number: int
) -> Header | CheckpointError | StorageError:
    """Return the header of a file of a set, or the error that it has."""
    try:
        _check_name(storage.path, files.names[number])
        return read_header(files.open(number))
    except MissingFile as error:  # it has the name, unless all files are missing
        return error
    except (CheckpointError, StorageError) as error:
        return error.in_file(files.names[number])


def _read_index(storage: Storage, name: str) -> tuple[ReadableFile, SetIndex]:
    """Return the index of a set: the open file, and its content."""
    try:
        file = storage.open(name)
    except MissingFile as error:
        cause = f"{error.cause} It lists the file of each key of the set."
        remedy = (
            "Fetch it from the source of the set, or name one file of the set to read only that."
        )
        raise MissingFile(cause, remedy) from None
    try:
        with prefix_errors(file.name):
            return file, read_set_index(file.read, file.size)
    except BaseException:
        file.close()
        raise


def _check_name(folder: str, name: str) -> None:
    """Raise ``InvalidCheckpoint`` unless the name is a safetensors file next to the index.

    The storage refuses names that are not bare on this system; this refuses names that are not safe
    on another system.
    """
    if "\\" in name or "/" in name or not name.endswith(SAFETENSORS_SUFFIX):
        cause = f"{folder}: the index names {name!r}, which is not a safetensors file next to it."
        raise InvalidCheckpoint(cause, WRITE_AGAIN)


def _absences(
    headers: Mapping[str, Header], weight_map: Mapping[str, str]
) -> dict[str, CheckpointError]:
    """Return the errors of keys that are not in the files where the index has them, but perhaps in
    other ones."""
    present = {file: set(header.keys) for file, header in headers.items()}
    holders = {key: file for file, keys in present.items() for key in keys}
    errors: dict[str, CheckpointError] = {}
    for key, file in weight_map.items():
        if key in present.get(file, {key}):
            continue
        cause = f"{key!r}: {file} does not hold it, although the index says so"
        remedy = fetch_again(file)
        if key in holders:
            cause += f"; {holders[key]} holds it"
            first, second = sorted((file, holders[key]))  # one sentence for both directions
            remedy = (
                f"If {first} and {second} have each other's names, rename them; else fetch both "
                "again."
            )
        errors[key] = IncompleteCheckpoint(f"{cause}.", remedy)
    return errors


def _add_rows(
    rows: _Rows, faults: dict[str, ShardvarError], header: Header, number: int, keys: Sequence[str]
) -> None:
    """Add tensors of one file, and the errors of unreadable ones."""
    row_of = {key: row for row, key in enumerate(header.keys)}
    wanted = [row_of[key] for key in keys]
    partial = partial_tensors(header)
    faults.update((key, partial[key]) for key in keys if key in partial)
    rows.nbytes += int(header.nbytes[wanted].sum())
    deep = {row for row in wanted if len(header.shapes[row]) > MAX_RANK}
    for row in deep:
        cause = (
            f"{header.keys[row]!r} has {len(header.shapes[row])} axes; NumPy allows at most "
            f"{MAX_RANK}."
        )
        faults[header.keys[row]] = UnsupportedError(cause, "Write it with fewer axes.")
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
    order = np.array(sorted(range(len(rows.keys)), key=rows.keys.__getitem__), dtype=np.int64)
    entries = EntryTable(
        slices,
        np.array(rows.file, dtype=np.int64),
        np.array(rows.start, dtype=np.int64),
        np.full(len(slices), NO_CHECKSUM),
        np.ones(len(slices), dtype=np.bool),
    ).take(order)
    found = cast(Mapping[str, CheckpointError], faults)
    return TableIndex(entries, files, metadata_of_texts(metadata), found)


def metadata_of_texts(texts: Mapping[str, str]) -> Metadata:
    """Return the metadata that the texts of a file are."""
    user = {key: text for key, text in texts.items() if key not in LAYOUT_KEYS}
    if user.get(FORMAT_KEY) == FORMAT_VALUE and DESCRIPTION_KEY in user:
        del user[FORMAT_KEY]  # the writer's, and not the user's
    generation = user.pop(GENERATION_KEY, "")
    digests: Mapping[str, str] = take_digests(user) if DIGESTS in user else {}
    return Metadata(
        user.pop(DESCRIPTION_KEY, ""),
        user.pop(WRITER_KEY, ""),
        user,
        generation=generation,
        digests=digests,
    )


def _disagreements(
    headers: Mapping[str, Header], weight_map: Mapping[str, str], absent: Collection[str]
) -> Iterator[Finding]:
    """Tensors that are in other files than the index says; those ``absent`` from their own files
    are faults already."""
    for file, header in headers.items():
        elsewhere = [
            key for key in header.keys if weight_map.get(key, file) != file and key not in absent
        ]
        if elsewhere:
            others = named(sorted({weight_map[key] for key in elsewhere}))
            yield Finding(
                file, f"It holds {named(elsewhere)}, which the index lists in {others}.", True
            )
        unnamed = [key for key in header.keys if key not in weight_map]
        if unnamed:
            yield Finding(file, f"It holds {named(unnamed)}, which the index does not name.", True)


def _miscounts(storage: Storage, name: str, files: Sequence[str]) -> Iterator[Finding]:
    """Files whose names imply another number of files than the index, and files next to the set."""
    prefix = prefix_of(name)
    parts = [part for file in files if (part := split_part_name(file))]
    # Complete are 3 files numbered 1 to 3, and also 0 to 2: some writers begin at 0.
    for count in sorted({part[2] for part in parts}):
        numbers = {part[1] for part in parts if part[2] == count}
        if not (min(numbers) <= 1 and len(numbers) == count == max(numbers) - min(numbers) + 1):
            yield Finding(
                name,
                f"The names imply {count} files, but the index names {len(numbers)} of them.",
                True,
            )
    others = [
        file for file in storage.names() if file.endswith(SAFETENSORS_SUFFIX) and file not in files
    ]
    # A file with another number of digits is of a set that was replaced (``names.new_part_names``).
    lengths = {len(file) for file in files}
    strays = [file for file in part_names_of(prefix, others) if len(file) in lengths]
    for file in others:
        yield Finding(
            file, "It lies next to the set, and the index does not name it.", file in strays
        )


def _missized(name: str, index_metadata: Mapping[str, Any], nbytes: int) -> Iterator[Finding]:
    """A total that is not the sum. Old writers stored it as a float, and some omit it."""
    total = index_metadata.get("total_size", nbytes)
    if type(total) not in (int, float) or total in (inf, -inf) or total != nbytes:
        yield Finding(
            name, f"Its total_size is {total!r}, but its tensors have {nbytes} bytes.", True
        )


@dataclass(frozen=True, slots=True)
class SafetensorsSource(FileSource):
    """An open safetensors checkpoint."""

    contents: SafetensorsContents
    """The contents of the file or the set."""

    @property
    def index(self) -> TableIndex:
        """The table of contents."""
        return self.contents.index

    @property
    def data(self) -> DataFiles:
        """The files."""
        return self.contents.files

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry, from byte ``start`` of the payload on."""
        file, begin = int(entries.file[row]), int(entries.start[row])
        self.read_span(file, begin + start, buffer)

    def findings(self) -> Sequence[Finding]:
        """Return the oddities of the set."""
        return self.contents.findings
