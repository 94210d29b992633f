"""Files that ``torch.save`` wrote before version 1.6, and later with
``_use_new_zipfile_serialization=False``.

    pickle      the number 0x1950a86a20f9469cfc6c
    pickle      1001, the version of the form
    pickle      {"protocol_version": 1001, "little_endian": bool, "type_sizes": {…}}
    pickle      the value, with a reference to each storage
    pickle      the keys of the storages, in the order of what follows
    storages    of each: int64, the number of its elements; and the elements

A reference is ("storage", class, key, location, number of elements, view), where ``view`` is None
unless the storage was a part of another one. The class of a whole module is also a reference. The
form has no checksums.
"""

from dataclasses import dataclass
from typing import Any

from shardvar.errors import (
    COPY_AGAIN,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
    UnsupportedError,
)
from shardvar.formats.torch.archive import Record
from shardvar.formats.torch.tensors import storage_of
from shardvar.limits import MAX_PICKLE_NBYTES
from shardvar.planning.index import NO_CHECKSUM
from shardvar.storage.protocol import ReadableFile
from shardvar.wire.damage import WRITE_AGAIN, malformed, past_limit
from shardvar.wire.inert import Node, Reference
from shardvar.wire.pickle import parse_pickle

_VERSION = 1001
_FIRST_NBYTES = 1 << 16
"""Bytes that are read first; of a large file the pickles usually have fewer."""


@dataclass(frozen=True, slots=True)
class OldFile:
    """The storages of a file, by the names that ``tensors`` gives them."""

    records: dict[str, Record]
    """The place of each storage."""
    root: Any
    """The value."""
    nbytes: int
    """The size of the pickles."""
    is_big_endian: bool
    """True if the elements are big-endian."""
    has_checksums: bool = False
    """False: the form has none."""

    def record(self, name: str) -> Record:
        """Return the place of a storage; ``InvalidCheckpoint`` if it is missing."""
        if name not in self.records:
            raise InvalidCheckpoint(f"The file has no storage {name!r}.", WRITE_AGAIN)
        return self.records[name]

    def check_stored(self, name: str) -> None:
        """Do nothing: no storage is compressed."""


def open_old(file: ReadableFile) -> OldFile:
    """Return the value of a file and its storages."""
    (_, version, system, root, keys), nbytes = _pickles(file)
    is_little = system.get("little_endian") if isinstance(system, dict) else None
    if version != _VERSION or type(is_little) is not bool:
        raise UnsupportedError(
            f"The file is of the form {version!r} of torch.save.", "Write it again with torch."
        )
    if type(keys) is not list or not {*map(type, keys)} <= {str} or len({*keys}) < len(keys):
        raise malformed("The keys of the storages are not a list of texts.")
    sizes = _sizes(root)
    records, start = dict[str, Record](), nbytes
    for key in keys:
        if key not in sizes:
            raise malformed(f"No value refers to the storage {key!r}.")
        width, count = sizes[key]
        stop = start + 8 + width * count
        if stop > file.size:
            cause = f"The storage {key!r} ends at offset {stop}, but the file at {file.size}."
            raise IncompleteCheckpoint(cause, COPY_AGAIN)
        stored = int.from_bytes(file.read(start, 8), "little" if is_little else "big")
        if stored != count:
            cause = f"The storage {key!r} has {stored} elements, but its reference {count}."
            raise InvalidCheckpoint(cause, WRITE_AGAIN)
        records[f"data/{key}"] = Record(start + 8, stop - start - 8, NO_CHECKSUM)
        start = stop
    if start < file.size:
        cause = f"The storages end at offset {start}, and {file.size - start} bytes follow."
        raise InvalidCheckpoint(cause, WRITE_AGAIN)
    return OldFile(records, root, nbytes, not is_little)


def _pickles(file: ReadableFile) -> tuple[list[Any], int]:
    """Return the values of the five pickles, and the offset of the byte after them."""
    # Their size is known from their ends only, so more is read until all are there. Each attempt
    # reads four times as much: together they take a third more than the last one.
    most = _FIRST_NBYTES
    while True:
        data = file.read(0, min(most, file.size))
        try:
            return _parsed(data)
        except MalformedCheckpoint:
            if len(data) == file.size:
                raise
            if most >= MAX_PICKLE_NBYTES:
                raise past_limit(f"The pickles have {most} bytes", "MAX_PICKLE_NBYTES") from None
        most = min(4 * most, MAX_PICKLE_NBYTES)


def _parsed(data: bytes) -> tuple[list[Any], int]:
    values, start = list[Any](), 0
    for _ in range(5):
        value, start = parse_pickle(data, is_typed=True, start=start)
        values.append(value)
    return values, start


def _sizes(root: Any) -> dict[str, tuple[int, int]]:
    """Return the bytes of an element and the number of elements of each storage that the value
    refers to."""
    sizes: dict[str, tuple[int, int]] = {}
    seen, left = set[int](), [root]
    while left:
        value = left.pop()
        if type(value) in (str, bytes, int, float, bool, type(None)) or id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) is Reference:
            fields = value.value
            if type(fields) is tuple and fields and fields[0] == "module":
                continue  # the class of a whole module, and its source text
            key, width, count = storage_of(value)
            if sizes.setdefault(key, (width, count)) != (width, count):
                raise malformed(f"Two references describe the storage {key!r} differently.")
        elif type(value) is Node:
            left += [value.name, value.args, value.state, value.items]
        elif isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value
    return sizes
