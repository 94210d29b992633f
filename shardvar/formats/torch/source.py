"""An open checkpoint of torch, of either kind: its payloads.

For files of ``torch.save`` also the contents: stored slices in the order of their keys, and faults.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from shardvar.errors import CheckpointError, CorruptCheckpoint, ShardvarError, prefix_errors
from shardvar.formats.deferred import ADDRESSES, DeferredIndex
from shardvar.formats.files import DataFiles, FileSource, open_below
from shardvar.formats.protocol import Finding
from shardvar.formats.torch.items import (
    AnyRecord,
    PlaceReader,
    Stored,
    StoredObject,
    TensorView,
    begin_of,
    read_view,
    tie_number,
)
from shardvar.layout.dtypes import STRING, Ints, code
from shardvar.limits import MAX_VIEW_EXPANSION
from shardvar.pictures.words import named
from shardvar.planning.index import NO_CHECKSUM, EntryTable, Index
from shardvar.planning.slices import SliceTable, TensorTable, pad, widen
from shardvar.storage.protocol import ReadableFile, Storage, Traits
from shardvar.wire.crc import CRC32, Checksum
from shardvar.wire.damage import corrupt, past_limit


@dataclass(frozen=True, slots=True)
class StorageChecks:
    """Checksums of storages whose parts are tensors, and that cover other bytes as well."""

    parts: frozenset[str] = frozenset()
    """The keys of such tensors."""
    compare: Callable[[Collection[str], bool], Mapping[str, CorruptCheckpoint]] = (
        lambda _keys, _only_read: {}
    )
    """Compares checksums that no read of the keys does, and returns the keys that they show to be
    damaged; with True, only of storages whose every byte belongs to the keys."""


@dataclass(frozen=True, slots=True, eq=False)
class TorchSource(FileSource):
    """An open checkpoint; ``start`` of an entry that is not plain numbers a view or a payload."""

    index: Index = field()
    data: DataFiles = field()
    views: Mapping[int, TensorView]
    payloads: Mapping[int, bytes]
    look: Callable[[], Iterable[Finding]]
    carry: Callable[[Collection[str], bool], Mapping[str, bytes]]
    """Returns encodings of plain objects; with True, items of all objects of a distributed
    checkpoint."""
    is_covered: Callable[[str], bool]
    storages: StorageChecks = StorageChecks()
    bare_index: str = field(default="")
    """The index of a distributed checkpoint; the pickle of torch.save is covered by a checksum."""

    @property
    def crc(self) -> Checksum:
        return CRC32

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        file, begin = int(entries.file[row]), int(entries.start[row])
        if entries.plain[row]:
            self.read_span(file, begin + start, buffer)
        elif begin in self.payloads:
            buffer[:] = self.payloads[begin][start : start + len(buffer)]
        else:
            with prefix_errors(f"{self.data.names[file]}: {entries.slices.key(row)!r}"):
                read_view(self.views[begin], self.data, file, start, buffer)

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        enclosed = self.index.enclosed if isinstance(self.index, DeferredIndex) else None
        if start >= ADDRESSES and enclosed is not None:
            enclosed.read_span(file, start, buffer)
        else:
            FileSource.read_span(self, file, start, buffer)

    def findings(self) -> Sequence[Finding]:
        return [*self.look()]

    def is_guarded(self, key: str) -> bool:
        return self.is_covered(key)

    def storage_errors(
        self, keys: Collection[str], only_read: bool = False
    ) -> Mapping[str, CorruptCheckpoint]:
        return self.storages.compare(keys, only_read)

    def is_part(self, key: str) -> bool:
        return key in self.storages.parts

    def objects(self, keys: Collection[str], form: str) -> Mapping[str, bytes]:
        return self.carry(keys, form == "torch")


_BLOCK_NBYTES = 1 << 22
_FREE_NBYTES = 1 << 26
"""Bytes that the tensors of any files may have, however small these are."""


@dataclass(frozen=True, slots=True)
class FilesBelow:
    """The files in and below a folder, by their paths."""

    root: Storage

    @property
    def traits(self) -> Traits | None:
        return self.root.traits

    def open(self, name: str) -> ReadableFile:
        return open_below(self.root, name)


@dataclass(slots=True, eq=False)
class SavedContents:
    stored: dict[str, list[Stored]] = field(default_factory=dict)
    replicas: dict[str, list[tuple[Stored, Stored]]] = field(default_factory=dict)
    """Copies of slices: what is read, and each copy of it."""
    faults: dict[str, ShardvarError] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unguarded: set[str] = field(default_factory=set)


def torch_source(data: DataFiles, contents: SavedContents) -> TorchSource:
    """Return the source; decoded slices and objects are known by the number of their row."""
    _check_views(contents)
    keys = sorted(contents.stored.keys() - contents.faults.keys())
    rows = [(tensor, each) for tensor, key in enumerate(keys) for each in contents.stored[key]]
    views = {
        row: each.value for row, (_, each) in enumerate(rows) if isinstance(each.value, TensorView)
    }
    objects = {
        row: each.value
        for row, (_, each) in enumerate(rows)
        if isinstance(each.value, StoredObject)
    }
    payloads = {row: each.payload for row, each in objects.items()}
    places = PlaceReader(data, keys, rows, contents.replicas)
    index = DeferredIndex(
        _slices(keys, contents.stored, rows),
        np.array([each.file for _, each in rows], np.int64),
        [*data.names],
        contents.faults,
        places.locate,
        np.array([tie_number(each.value) for _, each in rows], np.int64),
    )
    index.enclosed = places.enclosed()
    encodings = {keys[rows[row][0]]: each.encoding for row, each in objects.items()}
    storages = _storages(keys, contents)
    parts = frozenset(
        extent.key
        for (_, record), held in storages.items()
        for extent in held
        if extent.stop and (extent.start, extent.stop) != (0, record.nbytes)
    )
    return TorchSource(
        index,
        data,
        views,
        payloads,
        look=_looker(data, contents, keys),
        # Files of torch.save have no items.
        carry=lambda wanted, _as_items: {k: e for k, e in encodings.items() if k in wanted},
        is_covered=lambda key: key not in contents.unguarded,
        storages=StorageChecks(parts, partial(_storage_errors, data, storages)),
    )


def _check_views(contents: SavedContents) -> None:
    """Make faults of tensors that are too large for their storages: they share or repeat bytes."""
    views = {
        key: [(each.file, each.value) for each in held if isinstance(each.value, TensorView)]
        for key, held in contents.stored.items()
    }
    storages = {
        (file, begin_of(view.record)): view.record.nbytes
        for held in views.values()
        for file, view in held
    }
    room = _FREE_NBYTES + MAX_VIEW_EXPANSION * sum(storages.values())
    for key in sorted(views):
        nbytes = sum(view.nbytes for _, view in views[key])
        if nbytes > room:
            cause = (
                f"{key!r}: With its {nbytes} bytes, the tensors have too many for their storages"
            )
            contents.faults.setdefault(key, past_limit(cause, "MAX_VIEW_EXPANSION"))
        else:
            room -= nbytes


def _slices(
    keys: list[str], stored: Mapping[str, Sequence[Stored]], rows: Sequence[tuple[int, Stored]]
) -> SliceTable:
    firsts = [stored[key][0] for key in keys]
    dtypes = [
        each.value.tensor.dtype if isinstance(each.value, TensorView) else STRING for each in firsts
    ]
    codes = np.array([code(dtype) for dtype in dtypes], np.int64)
    tensors = TensorTable(keys, codes, *pad([each.shape for each in firsts], fill=1))
    shapes = [
        each.value.tensor.shape if isinstance(each.value, TensorView) else () for _, each in rows
    ]
    offset = _matrix([each.offset for _, each in rows], 0, tensors)
    nbytes = [
        len(each.value.payload) if isinstance(each.value, StoredObject) else 0 for _, each in rows
    ]
    tensor = np.array([row for row, _ in rows], np.int64)
    return SliceTable.of(
        tensors, tensor, offset, _matrix(shapes, 1, tensors), np.array(nbytes, np.int64)
    )


def _matrix(rows: Sequence[tuple[int, ...]], fill: int, tensors: TensorTable) -> Ints:
    return widen(pad(rows, fill)[1], tensors.shapes.shape[1], fill)


class _Extent(NamedTuple):
    """A tensor in a record."""

    key: str
    start: int
    """The first byte of the record that it reaches over."""
    stop: int
    """The end of its last one; 0 of a copy, which is not read."""


_Place = tuple[int, AnyRecord]


def _looker(
    data: DataFiles, contents: SavedContents, keys: Collection[str]
) -> Callable[[], Iterable[Finding]]:
    # Copies are compared with what is read, and nothing but their own CRC says which of the two is
    # damaged.
    copies = [(key, pair) for key in keys for pair in contents.replicas.get(key, ())]

    def look() -> Iterator[Finding]:
        yield from contents.findings
        for key, (first, second) in copies:
            if not _agree(data, first, second):
                names = data.names[first.file], data.names[second.file]
                cause = (
                    f"{key!r}: {names[0]} and {names[1]} hold different values of the slice at "
                    f"{first.offset}."
                )
                yield Finding(names[1], cause, True)

    return look


def _storages(keys: Sequence[str], contents: SavedContents) -> dict[_Place, list[_Extent]]:
    read = [(key, each, False) for key in keys for each in contents.stored[key]]
    copies = [(key, copy, True) for key in keys for _, copy in contents.replicas.get(key, ())]
    storages: dict[_Place, list[_Extent]] = {}
    for key, each, is_copy in (*read, *copies):
        if isinstance(each.value, TensorView) and each.value.record.crc != NO_CHECKSUM:
            start, stop = (0, 0) if is_copy else each.value.reach
            storages.setdefault((each.file, each.value.record), []).append(
                _Extent(key, start, stop)
            )
    return storages


def _loose(
    storages: Mapping[_Place, Sequence[_Extent]], keys: Collection[str], only_read: bool = False
) -> dict[_Place, list[str]]:
    """Return records whose checksum no read of the keys compares; none of the keys spans one."""
    loose = {}
    for (file, record), held in storages.items():
        mine = [each for each in held if each.key in keys]
        is_spanned = any((each.start, each.stop) == (0, record.nbytes) for each in mine)
        if mine and not is_spanned and not (only_read and _reach(mine) < record.nbytes):
            loose[file, record] = [each.key for each in mine]
    return loose


def _reach(held: Iterable[_Extent]) -> int:
    """Return the end of the bytes that tensors reach over from the first byte on, without a gap."""
    reach = 0
    for each in sorted(held, key=lambda each: each.start):
        if each.start > reach:
            break
        reach = max(reach, each.stop)
    return reach


def _storage_errors(
    data: DataFiles,
    storages: Mapping[_Place, Sequence[_Extent]],
    keys: Collection[str],
    only_read: bool,
) -> dict[str, CorruptCheckpoint]:
    """Compare the records that no read compares; return the error of each key in one."""
    errors: dict[str, CorruptCheckpoint] = {}
    for (number, record), held in _loose(storages, set(keys), only_read).items():
        file, crc = data.open(number), 0
        for start in range(0, record.nbytes, _BLOCK_NBYTES):
            crc = CRC32.compute(
                file.read(record.start + start, min(_BLOCK_NBYTES, record.nbytes - start)), crc
            )
        if crc != record.crc:
            which = (
                f"The {record.nbytes} bytes at offset {record.start}, which hold "
                f"{named([*dict.fromkeys(held)])},"
            )
            cause = f"{data.names[number]}: {which} disagree with their CRC-32."
            errors |= {key: corrupt(cause).in_file(data.names[number]) for key in held}
    return errors


def _agree(data: DataFiles, first: Stored, second: Stored) -> bool:
    one, two = first.value, second.value
    if isinstance(one, StoredObject) or isinstance(two, StoredObject):
        return one == two
    for start in range(0, one.nbytes, _BLOCK_NBYTES):
        buffers = [bytearray(min(_BLOCK_NBYTES, one.nbytes - start)) for _ in range(2)]
        try:
            read_view(one, data, first.file, start, memoryview(buffers[0]))
            read_view(two, data, second.file, start, memoryview(buffers[1]))
        except CheckpointError:
            return True  # one of them is damaged, which is another finding
        if buffers[0] != buffers[1]:
            return False
    return True
