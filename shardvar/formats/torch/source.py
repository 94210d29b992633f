"""An open checkpoint of torch, of either kind: its payloads.

For files of ``torch.save`` also the contents: stored slices in the order of their keys, and faults.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from shardvar.errors import CheckpointError, CorruptCheckpoint, ShardvarError, prefix_errors
from shardvar.formats.deferred import ADDRESSES, DeferredIndex
from shardvar.formats.files import DataFiles, FileSource, open_below
from shardvar.formats.protocol import Finding
from shardvar.formats.torch.archive import LostRecord
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
from shardvar.layout.dtypes import STRING, code
from shardvar.limits import MAX_VIEW_EXPANSION
from shardvar.pictures.words import named
from shardvar.planning.index import NO_CHECKSUM, EntryTable, Index
from shardvar.planning.slices import SliceTable, TensorTable, pad, widen
from shardvar.records import dataclass, field, frozen_dataclass
from shardvar.storage.protocol import ReadableFile, Storage, Traits
from shardvar.wire.crc import CRC32, Checksum
from shardvar.wire.damage import corrupt, past_limit


@frozen_dataclass
class StorageChecks:
    """Checksums of storages whose parts are tensors, and that cover other bytes as well."""

    parts: frozenset[str] = frozenset()  # The keys of such tensors
    compare: Callable[[Collection[str], bool], Mapping[str, CorruptCheckpoint]] = (
        lambda _keys, _only_read: {}
    )
    """Compares checksums that no read of the keys does, and returns the keys that they show to be
    damaged; with True, only of storages whose every byte belongs to the keys."""


@frozen_dataclass(eq=False)
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
_FREE_NBYTES = 1 << 26  # Bytes that the tensors of any files may have, however small these are


@frozen_dataclass
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
    """Copies of slices: the slice that is read, and each copy of it."""
    faults: dict[str, ShardvarError] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unguarded: set[str] = field(default_factory=set)


def torch_source(data: DataFiles, contents: SavedContents) -> TorchSource:
    """Return the source; decoded slices and objects are known by the number of their row."""
    _check_views(contents)
    keys = sorted(contents.stored.keys() - contents.faults.keys())
    rows = [(tensor, held) for tensor, key in enumerate(keys) for held in contents.stored[key]]
    views, payloads, encodings = dict[int, TensorView](), dict[int, bytes](), dict[str, bytes]()
    for row, (tensor, held) in enumerate(rows):
        if isinstance(held.value, TensorView):
            views[row] = held.value
        else:
            payloads[row], encodings[keys[tensor]] = held.value.payload, held.value.encoding
    lost = {
        row: view.record.fault.at(repr(keys[tensor])).in_file(data.names[held.file])
        for row, (tensor, held) in enumerate(rows)
        if (view := views.get(row)) and isinstance(view.record, LostRecord)
    }
    places = PlaceReader(data, keys, rows, contents.replicas)
    index = DeferredIndex(
        _slices(keys, contents.stored, rows),
        np.array([held.file for _, held in rows], np.int64),
        [*data.names],
        contents.faults,
        places.locate,
        np.array([tie_number(held.value) for _, held in rows], np.int64),
        lost=lambda: lost,
    )
    index.enclosed = places.enclosed()
    read = [(key, held, False) for key in keys for held in contents.stored[key]]
    copies = [(key, copy, True) for key in keys for _, copy in contents.replicas.get(key, ())]
    storages: dict[_Place, list[_Extent]] = {}
    for key, held, is_copy in (*read, *copies):
        if isinstance(held.value, TensorView) and held.value.record.crc != NO_CHECKSUM:
            reach = (0, 0) if is_copy else held.value.reach
            place = held.file, held.value.record
            storages.setdefault(place, []).append(_Extent(key, *reach))
    parts = frozenset(
        extent.key
        for (_, record), extents in storages.items()
        for extent in extents
        if extent.stop and (extent.start, extent.stop) != (0, record.nbytes)
    )
    return TorchSource(
        index,
        data,
        views,
        payloads,
        look=partial(_look, data, contents, keys),
        # Files of torch.save have no items.
        carry=lambda wanted, _as_items: {k: e for k, e in encodings.items() if k in wanted},
        is_covered=lambda key: key not in contents.unguarded,
        storages=StorageChecks(parts, partial(_storage_errors, data, storages)),
    )


def _check_views(contents: SavedContents) -> None:
    """Make faults of tensors that are too large for their storages: they share or repeat bytes."""
    storages, wanted = dict[tuple[int, int], int](), dict[str, int]()
    for key, slices in contents.stored.items():
        for held in slices:
            if isinstance(held.value, TensorView):
                record = held.value.record
                storages[held.file, begin_of(record)] = record.nbytes
                wanted[key] = wanted.get(key, 0) + held.value.nbytes
    room = _FREE_NBYTES + MAX_VIEW_EXPANSION * sum(storages.values())
    for key, nbytes in sorted(wanted.items()):
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
    codes = [
        code(held.value.tensor.dtype if isinstance(held.value, TensorView) else STRING)
        for held in firsts
    ]
    shapes = [held.shape for held in firsts]
    tensors = TensorTable(keys, np.array(codes, np.int64), *pad(shapes, fill=1))
    columns = [
        (tensor, held.offset, held.value.tensor.shape, 0)
        if isinstance(held.value, TensorView)
        else (tensor, held.offset, (), len(held.value.payload))
        for tensor, held in rows
    ]
    tensor, offset, shape, nbytes = zip(*columns, strict=True) if columns else ((),) * 4
    rank = tensors.shapes.shape[1]
    offsets, extents = (
        widen(pad(column, fill)[1], rank, fill) for column, fill in ((offset, 0), (shape, 1))
    )
    numbers = np.array([tensor, nbytes], np.int64)
    return SliceTable.of(tensors, numbers[0], offsets, extents, numbers[1])


class _Extent(NamedTuple):
    key: str
    start: int  # The first byte of the record that it reaches over
    stop: int  # The end of its last one; 0 of a copy, which is not read


_Place = tuple[int, AnyRecord]


def _look(data: DataFiles, contents: SavedContents, keys: Iterable[str]) -> Iterator[Finding]:
    """Yield the findings, and copies that differ; only their own CRCs tell which is damaged."""
    yield from contents.findings
    for key in keys:
        for first, second in contents.replicas.get(key, ()):
            if not _agree(data, first, second):
                names = data.names[first.file], data.names[second.file]
                cause = (
                    f"{key!r}: {names[0]} and {names[1]} hold different values of the slice at "
                    f"{first.offset}."
                )
                yield Finding(names[1], cause, True)


def _is_loose(record: AnyRecord, extents: Sequence[_Extent], only_read: bool) -> bool:
    """Return True if no read of the tensors in a record compares its checksum."""
    if any((extent.start, extent.stop) == (0, record.nbytes) for extent in extents):
        return False
    reach = 0  # the end of the bytes that the tensors reach over without a gap
    for extent in sorted(extents, key=attrgetter("start")):
        if extent.start <= reach:
            reach = max(reach, extent.stop)
    return bool(extents) and not (only_read and reach < record.nbytes)


def _storage_errors(
    data: DataFiles,
    storages: Mapping[_Place, Sequence[_Extent]],
    keys: Collection[str],
    only_read: bool,
) -> dict[str, CorruptCheckpoint]:
    """Compare the records that no read compares; return the error of each key in one."""
    errors: dict[str, CorruptCheckpoint] = {}
    wanted = set(keys)
    for (number, record), extents in storages.items():
        held = [extent for extent in extents if extent.key in wanted]
        if not _is_loose(record, held, only_read):
            continue
        file, crc = data.open(number), 0
        for start in range(0, record.nbytes, _BLOCK_NBYTES):
            crc = CRC32.compute(
                file.read(record.start + start, min(_BLOCK_NBYTES, record.nbytes - start)), crc
            )
        if crc != record.crc:
            damaged = list(dict.fromkeys(extent.key for extent in held))
            cause = (
                f"{data.names[number]}: The {record.nbytes} bytes at offset {record.start}, which "
                f"hold {named(damaged)}, disagree with their CRC-32."
            )
            errors |= {key: corrupt(cause).in_file(data.names[number]) for key in damaged}
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
