"""The contents of files that ``torch.save`` wrote: one file, or a set with an index.

    model.pt, model.pth, model.bin, model.ckpt    an archive with one pickle
    pytorch_model.bin.index.json                  {"weight_map": {key: file}}, of a set of such archives

A fault of a tensor is a fault of its key and leaves the others readable. Other things that go by these names are
recognised by their first bytes or by the records of the archive, and refused with a remedy.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from shardvar.errors import (
    CheckpointError,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    ShardvarError,
    StorageError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import DataFiles
from shardvar.formats.protocol import Finding
from shardvar.formats.torch.archive import PICKLE, Archive, Record, open_archive
from shardvar.formats.torch.items import View, payload_of, view_of
from shardvar.formats.torch.leaves import leaves_of
from shardvar.formats.torch.names import LEGACY_MAGIC, is_bare
from shardvar.formats.torch.source import TorchSource
from shardvar.formats.torch.tensors import is_tensor, tensor_of, unsupported
from shardvar.formats.window import Window
from shardvar.layout.dtypes import STRING, code
from shardvar.planning.index import NO_CHECKSUM, EntryTable, TableIndex
from shardvar.planning.slices import SliceTable, TensorTable, pad
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.crc import CRC32
from shardvar.wire.damage import (
    DISTRUST,
    SNIFF_NBYTES,
    foreign_archive,
    foreign_file,
    is_known_archive,
    malformed,
)
from shardvar.wire.pickle import parse_pickle
from shardvar.wire.set_index import read_set_index

ZIP_MAGIC = b"PK\x03\x04"

_SAVE_AGAIN = "Write it again: `torch.save(torch.load(path, weights_only=True), path)`."
_SAVE_STATE = "Save its state dict: `torch.save(torch.jit.load(path).state_dict(), other_path)`."
_BLOCK_NBYTES = 1 << 22
_NAMED = 8


@dataclass(slots=True, eq=False)
class _Contents:
    """The tensors and objects that can be read, of all files."""

    views: dict[str, tuple[int, View]] = field(default_factory=dict)
    """File and place of each tensor."""
    payloads: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """File and payload of each object."""
    faults: dict[str, ShardvarError] = field(default_factory=dict)
    """The keys that cannot be read, with the reason."""


def open_file(storage: Storage, name: str) -> TorchSource:
    """Open one file."""
    data = DataFiles(storage, [name])
    contents = _Contents()
    file = data.open(0)
    with prefix_errors(file.name):
        _add(contents, 0, file, None)
    return _source(data, contents, [])


def open_set(storage: Storage, name: str) -> TorchSource:
    """Open a set, by the name of its index."""
    weight_map = _read_index(storage, name)
    names = sorted(set(weight_map.values()))
    data = DataFiles(storage, names)
    contents, findings = _Contents(), list[Finding]()
    for number, file in enumerate(names):
        keys = {key for key, each in weight_map.items() if each == file}
        try:
            if not is_bare(file):
                cause = f"{storage.path}: the index names {file[:200]!r}, which is not a file beside it."
                raise InvalidCheckpoint(cause, DISTRUST)
            opened = data.open(number)
            with prefix_errors(opened.name):
                found = _add(contents, number, opened, keys)
        except (CheckpointError, StorageError, UnsupportedError) as error:
            contents.faults.update((key, type(error)(f"{key!r}: {error.cause}", error.remedy)) for key in keys)
            continue
        for key in keys - found:
            cause = f"{key!r}: the index says that it is in {file!r} of {storage.path}, but it is not."
            contents.faults[key] = IncompleteCheckpoint(cause, "Fetch that file again from the source of the set.")
        others = sorted(found - keys)
        if others:
            more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
            named = ", ".join(map(repr, others[:_NAMED])) + more
            findings.append(Finding(file, f"It holds {named}, which the index does not name there.", True))
    return _source(data, contents, findings)


def _read_index(storage: Storage, name: str) -> Mapping[str, str]:
    """Return the file of each key of a set."""
    file = storage.open(name)
    try:
        with prefix_errors(file.name):
            return read_set_index(file.read, file.size).weight_map
    finally:
        file.close()


def _add(contents: _Contents, number: int, file: ReadableFile, wanted: set[str] | None) -> set[str]:
    """Add the leaves of one file, those that are wanted or all of them; return the keys of all."""
    archive = _archive(file)
    data = archive.pickle()
    root, _ = parse_pickle(data)
    leaves, clashes = leaves_of(root, len(data))
    if not is_tensor(root) and type(root) not in (dict, list, tuple) and "" in leaves:
        raise unsupported(root)
    is_big_endian = archive.is_big_endian()
    for key, value in leaves.items():
        if wanted is not None and key not in wanted:
            continue
        try:
            if key in clashes:
                raise InvalidCheckpoint("Two values of the file have this key.", "Rename one of them.")
            if is_tensor(value):
                contents.views[key] = number, view_of(archive, tensor_of(value), is_big_endian)
            else:
                contents.payloads[key] = number, payload_of(value)
        except (CheckpointError, UnsupportedError) as error:
            contents.faults[key] = type(error)(f"{file.name}: {key!r}: {error.cause}", error.remedy)
    return set(leaves)


def _archive(file: ReadableFile) -> Archive:
    """Return the directory of a file, or raise what the file is instead."""
    first = file.read(0, min(SNIFF_NBYTES, file.size))
    if first.startswith(LEGACY_MAGIC):
        cause = "The file has the form that torch wrote before its version 1.6, a sequence of pickles."
        raise UnsupportedError(cause, _SAVE_AGAIN)
    if not first.startswith(ZIP_MAGIC):
        if file.size > 512 and file.read(257, 5) == b"ustar":
            cause = "The file is a tar archive, as torch wrote before its version 0.1.10."
            raise UnsupportedError(cause, _SAVE_AGAIN)
        raise foreign_file("a file of torch.save", first, file.size, "it does not begin as a zip archive does")
    archive = open_archive(Window(file).read, 0, file.size)
    if archive.has("constants.pkl") or any(name.startswith("code/") for name in archive.members):
        raise UnsupportedError("The file is a TorchScript archive, which holds a program.", _SAVE_STATE)
    if not archive.has(PICKLE) and is_known_archive(archive.members):
        raise foreign_archive("a file of torch.save", archive.members)
    if not archive.has(PICKLE):
        raise malformed(f"The file is a zip archive without a record {PICKLE!r}, which torch.save did not write.")
    return archive


def _source(data: DataFiles, contents: _Contents, findings: Sequence[Finding]) -> TorchSource:
    """Return the source; keys in order, and numbers of views and payloads as the entries have them."""
    for key in contents.faults:
        contents.views.pop(key, None)
        contents.payloads.pop(key, None)
    keys = sorted([*contents.views, *contents.payloads])
    rows = range(len(keys))
    views = {row: contents.views[keys[row]][1] for row in rows if keys[row] in contents.views}
    payloads = {row: contents.payloads[keys[row]][1] for row in rows if row not in views}
    file = np.array([(contents.views.get(key) or contents.payloads[key])[0] for key in keys], np.int64)
    codes = np.array([code(views[row].tensor.dtype if row in views else STRING) for row in rows], np.int64)
    shapes = [views[row].tensor.shape if row in views else () for row in rows]
    tensors = TensorTable(keys, codes, *pad(shapes, fill=1))
    nbytes = np.array([len(payloads.get(row, b"")) for row in rows], np.int64)
    slices = SliceTable.of(tensors, np.arange(len(keys)), np.zeros_like(tensors.shapes), tensors.shapes, nbytes)
    plain = np.array([row in views and views[row].is_plain for row in rows], np.bool)
    start = np.array([views[row].start if row in views and views[row].is_plain else row for row in rows], np.int64)
    checksum = np.array([views[row].checksum if row in views else NO_CHECKSUM for row in rows], np.int64)
    entries = EntryTable(slices, file, start, checksum, plain)
    index = TableIndex(entries, [*data.names], faults=cast(Mapping[str, CheckpointError], contents.faults))
    loose = _loose(contents)
    return TorchSource(index, data, views, payloads, lambda: [*findings, *_check_loose(data, loose)])


def _loose(contents: _Contents) -> dict[tuple[int, Record], list[str]]:
    """Return the records that no tensor spans, with the keys of the tensors that are parts of them."""
    spanned = {(number, view.record) for number, view in contents.views.values() if view.spans_record}
    loose: dict[tuple[int, Record], list[str]] = {}
    for key, (number, view) in contents.views.items():
        if (number, view.record) not in spanned:
            loose.setdefault((number, view.record), []).append(key)
    return loose


def _check_loose(data: DataFiles, loose: Mapping[tuple[int, Record], Sequence[str]]) -> Iterator[Finding]:
    """Compare the CRC-32 of records that no tensor spans: reading their tensors compares none."""
    for (number, record), keys in loose.items():
        file, crc = data.open(number), 0
        for start in range(0, record.nbytes, _BLOCK_NBYTES):
            crc = CRC32.compute(file.read(record.start + start, min(_BLOCK_NBYTES, record.nbytes - start)), crc)
        if crc != record.crc:
            named = ", ".join(map(repr, keys[:_NAMED]))
            cause = (
                f"The {record.nbytes} bytes at offset {record.start}, which hold {named}, disagree with their CRC-32."
            )
            yield Finding(data.names[number], cause, True)
