"""An open checkpoint of torch, of either kind: where the bytes of a tensor lie in a file, or the text of an
object; for files of ``torch.save`` also their contents, in the order of their keys, and faults.

    plain       the elements lie in the file byte for byte, in C order: read in place, or mapped
    decoded     strides, lazy signs or another byte order: elements are picked from the mapped
                record, in C order
    an object   its Python literal, as a string tensor without axes

The CRC-32 of a record is compared when a tensor that spans the record was read to its last byte. A
view of a part of a record is read by itself; ``SavedSource`` compares the CRC of such records for
the verbs that ask.

A frame is what surrounds the elements of a tensor in a file. An item of a distributed checkpoint is
an archive with one tensor or one object. Small items are read whole, many at a time; of a large one,
both ends are read.

Tensors of one dtype and one shape have frames that differ in nothing but checksums. So the frame of
the first one is kept as a template. If the next item has the same bytes in front of its elements,
and the same directory apart from checksums, then everything that was checked about the first one
holds for it too, and only the CRC differs.

Of a file of ``torch.save``, the pickle and the archive's directory tell everything about a tensor but
the first byte of its elements: that is behind a local header, whose length only the header tells. So
a listing reads no local header. It is read when its key is read: together with its neighbors, and in
a bucket with many requests at a time (``PlaceReader``).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np

from shardvar.errors import (
    READ_ERRORS,
    ArgumentError,
    CheckpointError,
    CorruptCheckpoint,
    ShardvarError,
    StorageError,
    prefix_errors,
)
from shardvar.formats.deferred import ADDRESSES, DeferredIndex, Enclosed, Located
from shardvar.formats.files import (
    BLOCK_NBYTES,
    WINDOW_NBYTES,
    DataFiles,
    FileSource,
    Window,
    read_blocks,
)
from shardvar.formats.objects import payload_of
from shardvar.formats.protocol import Finding
from shardvar.formats.torch.archive import (
    Archive,
    LostRecord,
    OldFile,
    Read,
    Record,
    UnplacedRecord,
    open_archive,
)
from shardvar.formats.torch.values import (
    PickledArray,
    StoredTensor,
    TextRoom,
    is_tensor,
    plain_of,
    strides_in_c_order,
    tensor_of,
    unsupported,
)
from shardvar.layout.dtypes import STRING, Ints, Shape, numpy_dtype
from shardvar.limits import MAX_PICKLE_NBYTES, MAX_VIEW_EXPANSION
from shardvar.pictures.words import named
from shardvar.planning.index import NO_CHECKSUM, EntryTable, Index
from shardvar.planning.slices import SliceTable, TensorTable
from shardvar.records import entity, field, frozen, mutable, replace
from shardvar.storage.concurrency import do_all
from shardvar.storage.protocol import ReadableFile
from shardvar.wire.crc import CRC32
from shardvar.wire.damage import corrupt, invalid, past_limit
from shardvar.wire.plain import Node, encode_value
from shardvar.wire.zip import CENTRAL, CENTRAL_MAGIC


@entity
class HeldRecord:
    """The elements of an array of NumPy, which were compared with their pickle."""

    content: bytes
    crc: int = NO_CHECKSUM

    @property
    def nbytes(self) -> int:
        return len(self.content)

    @property
    def start(self) -> int:
        """A number that only they have, which is not a byte of the file."""
        return -1 - id(self.content)


AnyRecord = Record | UnplacedRecord | LostRecord | HeldRecord


@frozen
class TensorView:
    tensor: StoredTensor
    record: AnyRecord
    is_big_endian: bool

    @property
    def nbytes(self) -> int:
        return self.tensor.count * self.tensor.itemsize

    @property
    def start(self) -> int:
        return self.record.start + self.tensor.offset * self.tensor.itemsize

    @property
    def is_plain(self) -> bool:
        is_swapped = self.is_big_endian and self.tensor.itemsize > 1
        is_held = isinstance(self.record, HeldRecord)
        return self.tensor.is_contiguous and not is_swapped and not is_held

    @property
    def reach(self) -> tuple[int, int]:
        return self.tensor.reach

    @property
    def spans_record(self) -> bool:
        return self.tensor.offset == 0 and self.reach[1] == self.record.nbytes

    @property
    def checksum(self) -> int:
        """The CRC-32 of the payload; ``NO_CHECKSUM`` if the record has one of other bytes only."""
        return self.record.crc if self.is_plain and self.spans_record else NO_CHECKSUM

    def without_elements(self, shape: Shape) -> "TensorView":
        return replace(self, tensor=replace(self.tensor, offset=0, shape=shape, strides=shape))

    def reshaped(self, shape: Shape, start: int = 0) -> "TensorView":
        """Return elements of a contiguous tensor, from ``start`` on, in another shape."""
        offset = self.tensor.offset + start
        tensor = replace(self.tensor, offset=offset, shape=shape, strides=strides_in_c_order(shape))
        return replace(self, tensor=tensor)


def located(view: TensorView, nbytes: int, row: int) -> Located:
    """Return the place of a tensor as its entry has it; a decoded one is known by its row."""
    if not view.is_plain:
        return Located(nbytes, row, NO_CHECKSUM, False)
    return Located(nbytes, view.start, view.checksum, True)


def view_of(
    archive: Archive | OldFile, tensor: StoredTensor, is_big_endian: bool, *, is_placed: bool = True
) -> TensorView:
    if isinstance(tensor, PickledArray):
        return TensorView(tensor, HeldRecord(tensor.content), tensor.is_big_endian)
    if (fault := archive.lost(tensor.record)) is not None:
        return TensorView(tensor, LostRecord(tensor.storage_nbytes, fault), is_big_endian)
    if is_placed or isinstance(archive, OldFile):
        record: Record | UnplacedRecord = archive.record(tensor.record)
    else:
        record = archive.unplaced(tensor.record)
    if record.nbytes != tensor.storage_nbytes:
        raise invalid(
            f"The record {tensor.record!r} has {record.nbytes} bytes, but its storage "
            f"{tensor.storage_nbytes}."
        )
    archive.check_stored(tensor.record)
    if not record.nbytes and record.crc not in (NO_CHECKSUM, 0):
        raise corrupt(f"The record {tensor.record!r} is empty, and its CRC-32 is not 0.")
    return TensorView(tensor, record, is_big_endian)


@frozen
class StoredObject:
    payload: bytes  # Its literal, as a string tensor without axes
    encoding: bytes  # Its encoding (``wire.plain``)

    @classmethod
    def of(cls, value: Any) -> "StoredObject":
        return cls(payload_of(value), encode_value(value).encode("ascii"))


def encoding_in(item: bytes) -> bytes:
    archive = open_archive(lambda start, nbytes: item[start : start + nbytes], 0, len(item))
    root, size = archive.unpickled()
    return StoredObject.of(plain_of(root, TextRoom.of(size))).encoding


def read_view(view: TensorView, data: DataFiles, file: int, start: int, buffer: memoryview) -> None:
    """Fill ``buffer`` from a byte of a payload on; compare the CRC with its last byte."""
    tensor, record = view.tensor, view.record
    size = tensor.itemsize
    low, high = view.reach
    stored = (
        memoryview(record.content)[low:high]
        if isinstance(record, HeldRecord)
        else data.view(file, record.start + low, record.start + high)
    )
    # Elements 3 to 6 of the payload hold its bytes 13 to 26, if each has 4: the first byte is
    # dropped at the end.
    first, stop = start // size, -(-(start + len(buffer)) // size)
    if stop > first:
        strides = [stride * size for stride in tensor.strides]
        elements = np.ndarray(
            tensor.shape, f"V{size}", stored, tensor.offset * size - low, strides
        ).flat[first:stop]
        octets = np.frombuffer(elements.tobytes(), np.uint8)
        unit = size // 2 if tensor.dtype.startswith("complex") else size
        if view.is_big_endian and unit > 1:
            octets = octets.view(f"u{unit}").byteswap().view(np.uint8)
        if tensor.is_conjugate:
            octets = np.conjugate(octets.view(numpy_dtype(tensor.dtype))).view(np.uint8)
        if tensor.is_negative:
            octets = np.negative(octets.view(numpy_dtype(tensor.dtype))).view(np.uint8)
        buffer[:] = octets.data[start - first * size :][: len(buffer)]
    is_last = start + len(buffer) == view.nbytes
    if is_last and view.spans_record and record.crc not in (NO_CHECKSUM, CRC32.compute(stored)):
        raise _disagrees(record)


_HEAD_NBYTES = 1 << 12
"""Bytes of a large item that are read first: nearly always all pickle and headers."""
SMALL_NBYTES = 1 << 14  # Items up to this size are read whole
GROUP_NBYTES = 1 << 20  # Small items that lie within so many bytes are read together
_CRC_START, _CRC_STOP, _LOCAL_CRC_START = 16, 20, 14
"""The place of a CRC in an entry of a zip's directory, and in a local header."""

Kind = tuple[str, Shape]


@frozen
class _Template:
    """The frame of a tensor; offsets count from the beginning of the item."""

    view: TensorView
    head: bytes  # The bytes in front of the elements, up to their CRC if it is there
    fixed: tuple[tuple[int, int, bytes], ...]
    """Start, stop and content of the other ranges that are the same in all items."""
    crc_start: int  # The place of the CRC of the elements in the directory
    crc_again: int  # The place of the same CRC in front of the elements, or else ``crc_start``

    def view_in(self, item: bytes | memoryview, start: int) -> TensorView | None:
        """Return the tensor of an item that begins at ``start``, if its frame is the same."""
        if item[: len(self.head)] != self.head:
            return None
        if any(item[begin:stop] != octets for begin, stop, octets in self.fixed):
            return None
        crc_octets = item[self.crc_start : self.crc_start + 4]
        if item[self.crc_again : self.crc_again + 4] != crc_octets:
            return None
        crc, record = int.from_bytes(crc_octets, "little"), self.view.record
        placed = Record(start + record.start, record.nbytes, crc)
        return TensorView(self.view.tensor, placed, self.view.is_big_endian)


@mutable
class Frames:
    data: DataFiles
    templates: dict[tuple[int, Kind], _Template] = field(default_factory=dict)
    """The frames that were seen, by the size of the item and the kind of the tensor."""
    uses_templates: bool = True  # False reads every frame by itself, with the same result
    window_nbytes: int = GROUP_NBYTES
    held: memoryview | None = None  # The bytes of the only item, where they were read already
    _window: Window | None = None

    def read_tensor(self, file: int, start: int, nbytes: int, kind: Kind) -> TensorView:
        opened = self.data.open(file)
        is_small = nbytes <= SMALL_NBYTES or self.held is not None
        item: bytes | memoryview = self._whole(opened, start, nbytes) if is_small else b""
        template = self.templates.get((nbytes, kind)) if self.uses_templates else None
        view = template.view_in(item, start) if template and is_small else None
        if view is not None:
            return view
        archive = open_archive(self._reader(opened, start, item), start, nbytes)
        root, _ = archive.unpickled()
        if not is_tensor(root):
            if type(root) is Node:
                raise unsupported(root)
            raise invalid("The item holds an object, and the index says that it is a tensor.")
        view = view_of(archive, tensor_of(root), archive.is_big_endian())
        if view.nbytes > view.record.nbytes:
            # torch writes such a view as its elements. Here, an item of a few bytes could claim any
            # number of them.
            raise invalid(
                f"Its {view.nbytes} bytes are repeated from a storage of {view.record.nbytes}, "
                "which no item holds."
            )
        if is_small and (view.tensor.dtype, view.tensor.shape) == kind:
            template = _template_of(archive, view, bytes(item), start)
            if template is not None:
                self.templates[nbytes, kind] = template
        return view

    def read_object(self, file: int, start: int, nbytes: int) -> tuple[bytes, bool]:
        """Return the payload of an object, and True if it has a checksum."""
        opened = self.data.open(file)
        item = self._whole(opened, start, nbytes) if nbytes <= SMALL_NBYTES else b""
        archive = open_archive(self._reader(opened, start, item), start, nbytes)
        root, size = archive.unpickled()
        return payload_of(plain_of(root, TextRoom.of(size))), archive.has_checksums

    def read_item(self, file: int, start: int, nbytes: int) -> bytes:
        if nbytes > MAX_PICKLE_NBYTES:
            raise past_limit(f"The item of an object has {nbytes} bytes", "MAX_PICKLE_NBYTES")
        item = self.data.open(file).read(start, nbytes)
        archive = open_archive(lambda begin, count: item[begin : begin + count], 0, nbytes)
        for name in archive.members:
            archive.content(name, nbytes)
        return item

    def _whole(self, file: ReadableFile, start: int, nbytes: int) -> bytes | memoryview:
        if self.held is not None:
            return self.held
        if self._window is None or self._window.file is not file:
            self._window = Window(file, self.window_nbytes)
        return self._window.read(start, nbytes)

    def _reader(self, file: ReadableFile, start: int, item: bytes | memoryview) -> Read:
        head_nbytes = min(_HEAD_NBYTES, max(file.size - start, 0))
        return reader_of(file, start, item or file.read(start, head_nbytes))


def reader_of(file: ReadableFile, start: int, held: bytes | memoryview) -> Read:
    """Return a function that takes the bytes in ``held``, from ``start`` on, instead of reading."""

    def read(begin: int, nbytes: int) -> bytes:
        position = begin - start
        if position >= 0 and position + nbytes <= len(held):
            return bytes(held[position : position + nbytes])
        return file.read(begin, nbytes)

    return read


def payload_in(
    view: TensorView, data: DataFiles, file: int, start: int, held: memoryview
) -> memoryview:
    """Return a payload, compared, of whose file ``held`` has the bytes from ``start`` on."""
    record, begin = view.record, view.start - start
    if not view.is_plain or begin + view.nbytes > len(held):
        buffer = memoryview(bytearray(view.nbytes))
        read_view(view, data, file, 0, buffer)
        return buffer
    payload = held[begin : begin + view.nbytes]
    if view.spans_record and record.crc not in (NO_CHECKSUM, CRC32.compute(payload)):
        raise _disagrees(record)
    return payload


def _disagrees(record: AnyRecord) -> CorruptCheckpoint:
    return corrupt(
        f"The {record.nbytes} bytes at offset {record.start} disagree with their CRC-32."
    )


def _template_of(archive: Archive, view: TensorView, item: bytes, start: int) -> _Template | None:
    """Return the template of an item; None if it cannot stand for others."""
    if not archive.has_checksums:
        return None
    (member,) = archive.members[view.tensor.record]
    stop = view.record.start - start
    # In a local header, the CRC stands 14 bytes after its beginning; a stream's is 0.
    crc_again = member.start + _LOCAL_CRC_START
    is_again = crc_again + 4 <= stop and item[crc_again : crc_again + 4] != bytes(4)
    head = item[: crc_again if is_again else stop]
    directory = archive.stop - start
    for name in ("data.pkl", "byteorder"):
        if archive.has(name) and archive.record(name).start > view.record.start:
            return None
    # The CRCs of the elements, and of records that hold something random, differ from item to item.
    begins = [crc_again + 4, stop, directory] if is_again else [directory]
    crc_start = -1
    for name, members in archive.members.items():
        if name in ("data.pkl", "byteorder"):
            continue
        entry = item.find(members[0].raw_name, directory) - CENTRAL.size
        if (
            not item.startswith(CENTRAL_MAGIC, entry)
            or CENTRAL.unpack_from(item, entry)[7] != members[0].crc
        ):
            return None
        begins += [entry + _CRC_START, entry + _CRC_STOP]
        if members[0] is member:
            crc_start = entry + _CRC_START
    begins = sorted([*begins, len(item)])
    fixed = tuple((a, b, item[a:b]) for a, b in zip(begins[::2], begins[1::2], strict=True))
    moved = replace(view, record=Record(stop, view.record.nbytes, view.record.crc))
    return _Template(moved, head, fixed, crc_start, crc_again if is_again else crc_start)


_NEAR_NBYTES = WINDOW_NBYTES // 4  # Local headers within so many bytes are read together
_GROUP_NBYTES = 1 << 22  # The bytes of a file whose local headers one thread reads


@frozen
class Stored:
    """A slice of a tensor in a file, or an object."""

    file: int
    value: TensorView | StoredObject
    offset: tuple[int, ...] = ()  # The first indices of the slice in the whole tensor
    shape: Shape = ()

    @classmethod
    def whole(cls, file: int, view: TensorView) -> "Stored":
        shape = view.tensor.shape
        return cls(file, view, (0,) * len(shape), shape)


@entity
class PlaceReader:
    """The slices of a checkpoint, and the local headers in front of their elements."""

    data: DataFiles
    keys: Sequence[str]
    rows: Sequence[tuple[int, Stored]]  # [m] the number of the key of each slice, and the slice
    replicas: Mapping[str, Sequence[tuple[Stored, Stored]]]

    def locate(self, wanted: Ints) -> dict[int, Located | ShardvarError]:
        """Return the place of each wanted row; also look at the local headers of copies."""
        errors: dict[int, ShardvarError] = {}

        def read(group: Sequence[_Header]) -> None:
            file = self.data.open(group[0][0])
            # A window brings the headers of small records; a large one's is read by itself.
            through = Window(file).read if len(group) > 1 else file.read
            for _, _, row, record in group:
                try:
                    record.place(through)
                except (*READ_ERRORS, StorageError) as error:
                    key = self.keys[self.rows[row][0]]
                    place = [] if isinstance(record, LostRecord) else [file.name]
                    fault = error.at(*place, repr(key)).in_file(self.data.names[group[0][0]])
                    errors.setdefault(row, fault)

        do_all(read, _groups(self._headers(wanted.tolist())), self.data.traits)
        places: dict[int, Located | ShardvarError] = {}
        for row in wanted.tolist():
            value = self.rows[row][1].value
            if row in errors:
                places[row] = errors[row]
            elif isinstance(value, TensorView):
                places[row] = located(value, value.nbytes, row)
            else:
                places[row] = Located(len(value.payload), row, NO_CHECKSUM, False)
        return places

    def enclosed(self) -> Enclosed:
        """Return the tensors that are read whole with the bytes up to the next local header."""
        columns: list[tuple[int, int, int, int, int]] = []
        ends: dict[int, Ints] = {}
        for row, (tensor, stored) in enumerate(self.rows):
            view, is_copied = stored.value, bool(self.replicas.get(self.keys[tensor]))
            if isinstance(view, TensorView) and not is_copied and view.is_plain:
                record = view.record
                if isinstance(record, UnplacedRecord) and view.spans_record:
                    if stored.file not in ends:
                        archive = record.archive
                        members = chain.from_iterable(archive.members.values())
                        starts = {archive.start + member.start for member in members}
                        ends[stored.file] = np.array(sorted({*starts, archive.stop}), np.int64)
                    number = int(np.searchsorted(ends[stored.file], record.header, "right"))
                    end = int(np.append(ends[stored.file], 0)[number])
                    columns.append((row, stored.file, record.header, end, view.nbytes))
        return Enclosed.of(self.data, np.array(columns, np.int64).reshape(-1, 5), self._unframe)

    def _unframe(self, row: int, octets: memoryview) -> memoryview:
        tensor, stored = self.rows[row]
        file, view = self.data.open(stored.file), stored.value
        if not isinstance(view, TensorView) or not isinstance(view.record, UnplacedRecord):
            raise ArgumentError(f"The row {row} is not enclosed.")
        start = view.record.header
        try:
            view.record.place(reader_of(file, start, octets))
            return payload_in(view, self.data, stored.file, start, octets)
        except (*READ_ERRORS, StorageError) as error:
            raise error.at(file.name, repr(self.keys[tensor])) from None

    def _headers(self, wanted: Sequence[int]) -> list["_Header"]:
        headers = []
        for row in wanted:
            tensor, stored = self.rows[row]
            # The copies of a tensor come with the first of its rows.
            is_first = row == 0 or self.rows[row - 1][0] != tensor
            copies = self.replicas.get(self.keys[tensor], ()) if is_first else ()
            for held in (stored, *(copy for _, copy in copies)):
                if isinstance(held.value, TensorView):
                    record = held.value.record
                    if isinstance(record, UnplacedRecord | LostRecord):
                        headers.append((held.file, record.header, row, record))
        return sorted(headers, key=itemgetter(0, 1, 2))


_Header = tuple[int, int, int, UnplacedRecord | LostRecord]
"""A file, the first byte of a local header in it, the row whose it is, and the record."""


def _groups(headers: Sequence[_Header]) -> Iterator[Sequence[_Header]]:
    """Cut sorted headers where neighbours are not in one window, or where a group is long."""
    first = 0
    for number in range(1, len(headers) + 1):
        if (
            number == len(headers)
            or headers[number][0] != headers[number - 1][0]
            or headers[number][1] - headers[number - 1][1] > _NEAR_NBYTES
            or headers[number][1] - headers[first][1] > _GROUP_NBYTES
        ):
            yield headers[first:number]
            first = number


def tie_number(value: TensorView | StoredObject) -> int:
    """Return a number that tied tensors of a file have in common; -1 if there is none."""
    if isinstance(value, TensorView) and value.is_plain:
        return begin_of(value.record) + value.tensor.offset * value.tensor.itemsize
    return -1


def begin_of(record: AnyRecord) -> int:
    """Return a byte of the file that only this storage has, or another number."""
    return record.header if isinstance(record, UnplacedRecord | LostRecord) else record.start


@entity
class TorchSource(FileSource):
    """An open checkpoint; ``start`` of an entry that is not plain numbers a view or a payload."""

    index: Index = field()
    data: DataFiles = field()
    views: Mapping[int, TensorView]
    payloads: Mapping[int, bytes]

    crc = CRC32

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        file, begin = entries.place(row)
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


_FREE_NBYTES = 1 << 26  # Bytes that the tensors of any files may have, however small these are


@mutable
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


@entity
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
            for octets in read_blocks(file, record.start, record.start + record.nbytes):
                crc = CRC32.compute(octets, crc)
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
    dtypes = [
        held.value.tensor.dtype if isinstance(held.value, TensorView) else STRING for held in firsts
    ]
    shapes = [held.shape for held in firsts]
    tensors = TensorTable.of(zip(keys, dtypes, shapes, strict=True))
    columns = [
        (tensor, held.offset, held.value.tensor.shape, 0)
        if isinstance(held.value, TensorView)
        else (tensor, held.offset, (), len(held.value.payload))
        for tensor, held in rows
    ]
    tensor, offset, shape, nbytes = zip(*columns, strict=True) if columns else ((),) * 4
    numbers = np.array([tensor, nbytes], np.int64)
    return SliceTable.of(tensors, numbers[0], *tensors.padded(offset, shape), numbers[1])


def _agree(data: DataFiles, first: Stored, second: Stored) -> bool:
    one, two = first.value, second.value
    if isinstance(one, StoredObject) or isinstance(two, StoredObject):
        return one == two
    for start in range(0, one.nbytes, BLOCK_NBYTES):
        buffers = [bytearray(min(BLOCK_NBYTES, one.nbytes - start)) for _ in range(2)]
        try:
            read_view(one, data, first.file, start, memoryview(buffers[0]))
            read_view(two, data, second.file, start, memoryview(buffers[1]))
        except CheckpointError:
            return True  # one of them is damaged, which is another finding
        if buffers[0] != buffers[1]:
            return False
    return True
