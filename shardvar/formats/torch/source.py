"""An open checkpoint of torch, of either kind: its payloads.

For files of ``torch.save`` also the contents: stored slices in the order of their keys, and faults.
"""

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from shardvar.errors import CheckpointError, CorruptCheckpoint, ShardvarError, prefix_errors
from shardvar.formats.deferred import ADDRESSES, DeferredIndex
from shardvar.formats.files import DataFiles, FileSource
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
from shardvar.wire.crc import CRC32
from shardvar.wire.damage import corrupt, past_limit


@frozen_dataclass(eq=False)
class TorchSource(FileSource):
    """An open checkpoint; ``start`` of an entry that is not plain numbers a view or a payload."""

    index: Index = field()
    data: DataFiles = field()
    views: Mapping[int, TensorView]
    payloads: Mapping[int, bytes]

    crc = CRC32

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


_BLOCK_NBYTES = 1 << 22
_FREE_NBYTES = 1 << 26  # Bytes that the tensors of any files may have, however small these are


@dataclass(slots=True, eq=False)
class SavedContents:
    stored: dict[str, list[Stored]] = field(default_factory=dict)
    replicas: dict[str, list[tuple[Stored, Stored]]] = field(default_factory=dict)
    """Copies of slices: the slice that is read, and each copy of it."""
    faults: dict[str, ShardvarError] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unguarded: set[str] = field(default_factory=set)


class _Extent(NamedTuple):
    key: str
    start: int  # The first byte of the record that it reaches over
    stop: int  # The end of its last one; 0 of a copy, which is not read


_Place = tuple[int, AnyRecord]


@frozen_dataclass(eq=False)
class SavedSource(TorchSource):
    """Open files of ``torch.save``."""

    contents: SavedContents
    held_objects: Mapping[str, bytes]  # the encodings of objects, by key
    storages: Mapping[_Place, Sequence[_Extent]]
    """The storages with a checksum, and the tensors in each."""
    parts: frozenset[str]
    """The keys of tensors whose storage has other bytes as well, which its checksum covers."""

    bare_index = ""  # a checksum covers the pickle

    def findings(self) -> Sequence[Finding]:
        """Return the findings, and copies that differ; only their own CRCs tell which is damaged."""
        contents, findings = self.contents, [*self.contents.findings]
        for key in sorted(contents.stored.keys() - contents.faults.keys()):
            for first, second in contents.replicas.get(key, ()):
                if not _agree(self.data, first, second):
                    names = self.data.names[first.file], self.data.names[second.file]
                    cause = (
                        f"{key!r}: {names[0]} and {names[1]} hold different values of the slice at "
                        f"{first.offset}."
                    )
                    findings.append(Finding(names[1], cause, True))
        return findings

    def is_guarded(self, key: str) -> bool:
        return key not in self.contents.unguarded

    def storage_errors(
        self, keys: Collection[str], only_read: bool = False
    ) -> Mapping[str, CorruptCheckpoint]:
        """Compare the records that no read compares; return the error of each key in one."""
        errors: dict[str, CorruptCheckpoint] = {}
        wanted = set(keys)
        for (number, record), extents in self.storages.items():
            held = [extent for extent in extents if extent.key in wanted]
            if not _is_loose(record, held, only_read):
                continue
            file, crc = self.data.open(number), 0
            for start in range(0, record.nbytes, _BLOCK_NBYTES):
                crc = CRC32.compute(
                    file.read(record.start + start, min(_BLOCK_NBYTES, record.nbytes - start)), crc
                )
            if crc != record.crc:
                name = self.data.names[number]
                damaged = list(dict.fromkeys(extent.key for extent in held))
                cause = (
                    f"{name}: The {record.nbytes} bytes at offset {record.start}, which hold "
                    f"{named(damaged)}, disagree with their CRC-32."
                )
                errors |= {key: corrupt(cause).in_file(name) for key in damaged}
        return errors

    def is_part(self, key: str) -> bool:
        return key in self.parts

    def objects(self, keys: Collection[str], form: str) -> Mapping[str, bytes]:
        return {key: each for key, each in self.held_objects.items() if key in keys}


def _is_loose(record: AnyRecord, extents: Sequence[_Extent], only_read: bool) -> bool:
    """Return True if no read of the tensors in a record compares its checksum."""
    if any((extent.start, extent.stop) == (0, record.nbytes) for extent in extents):
        return False
    reach = 0  # the end of the bytes that the tensors reach over without a gap
    for extent in sorted(extents, key=attrgetter("start")):
        if extent.start <= reach:
            reach = max(reach, extent.stop)
    return bool(extents) and not (only_read and reach < record.nbytes)


def torch_source(data: DataFiles, contents: SavedContents) -> SavedSource:
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
    return SavedSource(index, data, views, payloads, contents, encodings, storages, parts)


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
