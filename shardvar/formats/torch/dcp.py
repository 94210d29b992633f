"""Open a distributed checkpoint: its table of contents, and the laws that it must keep.

``.metadata`` is read when the checkpoint is opened. It says which item holds each slice, but not
where in the item the elements lie. So an item's frame is read when its slice is asked for, by
``find``, ``scan`` or a look-up in ``faults``, and once only. Frames are read in the order of the
files, many small ones at a time.

Laws: files are named by bare names, and the items of a file neither overlap nor leave gaps. The end
of the last item is the size of the file: this is the one test that finds a file which was exchanged
for another, for items say nothing about the tensor that they belong to.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import Any, cast

import numpy as np

from shardvar.errors import (
    COPY_AGAIN,
    CheckpointError,
    InvalidCheckpoint,
    MissingFile,
    ShardvarError,
    StorageError,
    UnsupportedError,
    prefix_errors,
    replaced_error,
)
from shardvar.formats.files import ATTEMPTS, DataFiles, is_replaced
from shardvar.formats.protocol import Finding
from shardvar.formats.torch.items import Frames, TensorView, encoding_in
from shardvar.formats.torch.metadata import Items, parse_metadata
from shardvar.formats.torch.names import DATA_SUFFIX, METADATA, is_bare, rank_indexes
from shardvar.formats.torch.source import TorchSource
from shardvar.layout.dtypes import STRING, Ints, code
from shardvar.limits import MAX_METADATA_NBYTES
from shardvar.planning.index import NO_CHECKSUM, EntryTable, Metadata, ScannedFaults, unknown_key
from shardvar.planning.slices import SliceTable, TensorTable, pad, widen
from shardvar.storage.concurrency import do_all
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.collection import without_collection
from shardvar.wire.damage import SNIFF_NBYTES, WRITE_AGAIN, foreign_file, past_limit

_UNEVEN = (
    "If FSDP2 over tensor parallelism saved it, torch recorded the places that the placements "
    "say, which differ from the shards where extents do not divide: save each rank's state with "
    "torch.save, or pad the tensor."
)
"""The other cause of an item that is cut otherwise than the index says: docs/layouts.md, two
definitions of PyTorch."""


@dataclass(slots=True, eq=False)
class DcpIndex:
    """A checkpoint's table of contents; safe to use from several threads."""

    items: Items
    """The contents of ``.metadata``."""
    data: DataFiles
    """The data files."""
    slices: SliceTable
    """All slices; the sizes of objects are 0 until their items were read."""
    file: Ints
    """[m] the number of the file of each item."""
    broken: dict[str, ShardvarError]
    """Keys that cannot be read, as far as ``.metadata`` tells."""
    views: dict[int, TensorView] = field(default_factory=dict)
    """The tensors whose items were read, by row."""
    payloads: dict[int, bytes] = field(default_factory=dict)
    """The objects whose items were read, by row."""
    errors: dict[int, ShardvarError] = field(default_factory=dict)
    """The rows whose items cannot be read."""
    unguarded: set[int] = field(default_factory=set)
    """The rows whose items were read and have bytes without a checksum."""
    _rows: dict[str, int] = field(init=False, default_factory=dict)
    _bounds: tuple[Ints, Ints] | None = field(init=False, default=None)
    _lock: RLock = field(init=False, default_factory=RLock)

    @property
    def files(self) -> list[str]:
        """The names of the data files."""
        return [*self.data.names]

    @property
    def metadata(self) -> Metadata:
        """The metadata that shardvar wrote, and the paths of the keys."""
        return self.items.about

    @property
    def faults(self) -> "DcpFaults":
        """Keys that cannot be read, each with its error; computed on demand."""
        return DcpFaults(self)

    def find(self, key: str) -> EntryTable:
        """Return the entries of one key, or raise its error, such as ``UnknownKey``."""
        fault = self.fault_of(key)
        if fault is not None:
            raise fault
        with self._lock:
            if key not in self._position():
                raise unknown_key(key, self._position())
            tensor = self._position()[key]
        slices = self.slices.take(self._rows_of(tensor))
        table = SliceTable(
            slices.tensors.take(np.array([tensor])),
            np.zeros_like(slices.tensor),
            slices.offset,
            slices.shape,
            slices.nbytes,
        )
        return self._entries(self._rows_of(tensor), table)

    def scan(self) -> Iterator[EntryTable]:
        """Yield all entries of the keys that can be read, in one table."""
        faults = self.all_faults()
        tensors = self.slices.tensors
        good = np.array([key not in faults for key in tensors.keys], np.bool)
        kept = np.flatnonzero(good)
        rows = np.flatnonzero(good[self.slices.tensor])
        slices = self.slices.take(rows)
        position = np.cumsum(good) - 1
        table = SliceTable(
            tensors.take(kept), position[slices.tensor], slices.offset, slices.shape, slices.nbytes
        )
        yield self._entries(rows, table)

    def fault_of(self, key: str) -> ShardvarError | None:
        """Return the error of a key, or None; the items of the key are read."""
        if key in self.broken:
            return self.broken[key]
        if key not in self._position():
            return None
        rows = self._rows_of(self._position()[key])
        self._resolve(rows)
        return next((self.errors[row] for row in rows.tolist() if row in self.errors), None)

    def all_faults(self) -> dict[str, ShardvarError]:
        """Return every key that cannot be read with its error; all items are read."""
        # The items of keys that are refused already may lie anywhere, and none of them is read.
        good = np.array([key not in self.broken for key in self.slices.tensors.keys], np.bool)
        self._resolve(np.flatnonzero(good[self.slices.tensor]))
        faults = dict(self.broken)
        for row, error in sorted(self.errors.items()):
            faults.setdefault(self.slices.key(row), error)
        return faults

    def is_guarded(self, key: str) -> bool:
        """Return True unless an item of the key has bytes without a checksum."""
        # The items of a key that is refused may lie anywhere, and none of them is read.
        if key in self.broken or key not in self._position():
            return True
        rows = self._rows_of(self._position()[key])
        self._resolve(rows)
        return self.unguarded.isdisjoint(rows.tolist())

    def read_objects(self, keys: Collection[str], as_items: bool) -> dict[str, bytes]:
        """Return the encodings of the plain objects among keys, or the items of all; raise if the
        bytes of one are damaged."""
        found = {}
        for row in range(len(self.slices)):
            key = self.slices.key(row)
            if self.slices.dtype(row) == STRING and key in keys and key not in self.broken:
                try:
                    item = Frames(self.data).read_item(
                        int(self.file[row]), self.items.start[row], self.items.nbytes[row]
                    )
                    if as_items:
                        found[key] = item
                    elif self.fault_of(key) is None:  # it is plain
                        found[key] = encoding_in(item)
                except (CheckpointError, StorageError, UnsupportedError) as error:
                    raise self._placed(row, error) from None
        return found

    def _position(self) -> dict[str, int]:
        if not self._rows:
            self._rows.update(self.slices.tensors.rows())
        return self._rows

    def _rows_of(self, tensor: int) -> Ints:
        """Return the rows of one tensor."""
        with self._lock:
            if self._bounds is None:
                self._bounds = self.slices.by_tensor()
        order, bounds = self._bounds
        return order[bounds[tensor] : bounds[tensor + 1]]

    def _entries(self, rows: Ints, slices: SliceTable) -> EntryTable:
        """Return the entries of rows with read items; ``start`` of a non-plain one is its row."""
        start, plain, checksum = (
            rows.copy(),
            np.zeros(len(rows), np.bool),
            np.full(len(rows), NO_CHECKSUM),
        )
        nbytes = slices.nbytes.copy()
        for position, row in enumerate(rows.tolist()):
            view = self.views.get(row)
            if view is None:
                nbytes[position] = len(self.payloads[row])
            elif view.is_plain:
                start[position], plain[position], checksum[position] = (
                    view.start,
                    True,
                    view.checksum,
                )
        sized = SliceTable(slices.tensors, slices.tensor, slices.offset, slices.shape, nbytes)
        return EntryTable(sized, self.file[rows], start, checksum, plain)

    def _resolve(self, rows: Ints) -> None:
        """Read the items of rows that were not read yet."""
        with self._lock, without_collection():
            # Asked one by one: a union would be as large as the checkpoint, for each key.
            known = (self.views, self.payloads, self.errors)
            left = np.array(
                [row for row in rows.tolist() if not any(row in each for each in known)], np.int64
            )
            if not len(left):
                return
            starts = np.array([self.items.start[row] for row in left.tolist()], np.int64)
            # In the order of the files, so that one read brings many small items; in a bucket, many
            # files at a time.
            in_order = left[np.lexsort((starts, self.file[left]))]
            files = np.split(in_order, np.flatnonzero(np.diff(self.file[in_order])) + 1)
            templates: dict[Any, Any] = {}
            do_all(
                lambda rows: self._read_items(rows, Frames(self.data, templates)),
                files,
                self.data.traits,
            )

    def _read_items(self, rows: Ints, frames: Frames) -> None:
        """Read the items of rows that are in one file."""
        for row in rows.tolist():
            try:
                self._read_item(row, frames)
            except (CheckpointError, StorageError, UnsupportedError) as error:
                self.errors[row] = self._placed(row, error)

    def _read_item(self, row: int, frames: Frames) -> None:
        """Read the item of one row, and compare it with what ``.metadata`` says."""
        place = int(self.file[row]), self.items.start[row], self.items.nbytes[row]
        shape, dtype = self.items.shape[row], self.slices.dtype(row)
        if dtype == STRING:
            self.payloads[row], is_guarded = frames.read_object(*place)
            self.unguarded |= set() if is_guarded else {row}
            return
        view = frames.read_tensor(*place, (dtype, shape))
        if (view.tensor.dtype, view.tensor.shape) != (dtype, shape):
            found = f"{view.tensor.dtype}{list(view.tensor.shape)}"
            cause = (
                f"The item at offset {place[1]} holds {found}, but the index says "
                f"{dtype}{list(shape)}."
            )
            is_cut_otherwise = view.tensor.dtype == dtype and _differ_along_one_axis(
                view.tensor.shape, shape
            )
            raise InvalidCheckpoint(
                cause, f"{COPY_AGAIN} {_UNEVEN}" if is_cut_otherwise else COPY_AGAIN
            )
        if self.items.checksum[row] not in (NO_CHECKSUM, view.record.crc):
            cause = (
                f"The item at offset {place[1]} holds other elements than the index was written "
                "for."
            )
            raise InvalidCheckpoint(cause, COPY_AGAIN)
        self.views[row] = view
        if view.record.crc == NO_CHECKSUM or not view.spans_record:
            self.unguarded.add(row)

    def _placed(self, row: int, error: ShardvarError) -> ShardvarError:
        """Return an error that names the file and the key."""
        name, key = self.data.names[self.file[row]], self.slices.key(row)
        return error.at(repr(key), *([] if name in error.cause else [name])).in_file(name)


def _differ_along_one_axis(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Return True if two shapes have the same rank, and the same extent along all axes but one."""
    return len(a) == len(b) and sum(one != other for one, other in zip(a, b, strict=True)) == 1


@dataclass(frozen=True, slots=True, eq=False)
class DcpFaults(ScannedFaults):
    """The unreadable keys: a look-up reads the items of one key, iteration all."""

    index: DcpIndex
    """The index that has the keys."""

    def __getitem__(self, key: str) -> CheckpointError:
        fault = self.index.fault_of(key)
        if fault is None:
            raise KeyError(key)
        return cast(CheckpointError, fault)

    def all(self) -> Mapping[str, CheckpointError]:
        """All keys with their errors; all items are read."""
        return cast("Mapping[str, CheckpointError]", self.index.all_faults())


def open_dcp(storage: Storage, name: str) -> TorchSource:
    """Open the distributed checkpoint of a folder; its index is read again if another one replaced
    it meanwhile."""
    for _ in range(ATTEMPTS):
        file = _open_index(storage, name)
        try:
            with prefix_errors(file.name), without_collection():
                items = parse_metadata(_read_index(file))
                source = _source(storage, items)
            source.data.hold()
            if not is_replaced(storage, name, file):
                source.data.watch(partial(is_replaced, storage, name, file))
                return source
            source.close()
        finally:
            file.close()
    raise replaced_error(file.name)


def _open_index(storage: Storage, name: str) -> ReadableFile:
    try:
        return storage.open(name)
    except MissingFile as error:
        ranks = rank_indexes(storage.names())
        if ranks:
            cause = (
                f"{storage.path}: {ranks[0]} is the index of one rank, and nothing joins the ranks."
            )
            raise UnsupportedError(cause, "Save it without `use_collectives=False`.") from None
        remedy = (
            "The save was interrupted, or the copy lacks hidden files: copy the folder with `cp "
            "-r`."
        )
        raise MissingFile(error.cause, remedy) from None


def _read_index(file: ReadableFile) -> bytes:
    if file.size > MAX_METADATA_NBYTES:
        raise past_limit(f"The index has {file.size} bytes", "MAX_METADATA_NBYTES")
    data = file.read(0, file.size)
    if not data.startswith(b"\x80"):
        raise foreign_file(
            "the index of a distributed checkpoint",
            data[:SNIFF_NBYTES],
            file.size,
            "it does not begin as a pickle does",
        )
    return data


def _source(storage: Storage, items: Items) -> TorchSource:
    """Return the source, with the faults that the index shows."""
    faults = dict(items.faults)
    remarks = [
        Finding(METADATA, f"It has items of {key!r}, which it does not describe.", True)
        for key in items.strays
    ]
    # Files: only bare names, so that nothing outside of the folder is opened.
    names = sorted({place[0] for place in items.places if is_bare(place[0])})
    number = {name: position for position, name in enumerate(names)}
    for row, name in enumerate(items.file):
        if name not in number:
            key = items.keys[items.tensor[row]]
            cause = (
                f"{key!r}: {name[:200]!r} is not the name of a file in the folder of the "
                "checkpoint."
            )
            faults.setdefault(
                key, InvalidCheckpoint(cause, "Use a checkpoint whose files lie next to its index.")
            )
    # Items: tiling.
    sizes, overlapping, gaps = _tile(items, number)
    for row, place in enumerate(zip(items.file, items.start, strict=True)):
        if place in overlapping:
            key = items.keys[items.tensor[row]]
            faults.setdefault(
                key,
                InvalidCheckpoint(f"{key!r}: Its item shares bytes with another one.", WRITE_AGAIN),
            )
    remarks += [
        Finding(name, f"The {nbytes} bytes at offset {start} belong to no item.", True)
        for name, start, nbytes in gaps
    ]
    if items.rest_nbytes:
        remarks.append(
            Finding(
                METADATA,
                f"{items.rest_nbytes} bytes follow the pickle, which torch ignores.",
                False,
            )
        )
    data = DataFiles(storage, names, sizes)
    slices = _slices(items)
    file = np.array([number.get(name, 0) for name in items.file], np.int64)
    index = DcpIndex(items, data, slices, file, faults)
    look = lambda: [*remarks, *_strays(storage, names)]  # noqa: E731
    rest = look, index.read_objects, index.is_guarded
    return TorchSource(index, data, index.views, index.payloads, *rest, bare_index=METADATA)


def _strays(storage: Storage, names: Sequence[str]) -> Iterator[Finding]:
    """Data files that the index does not name, such as files of a larger job."""
    for name in storage.names():
        if name.endswith(DATA_SUFFIX) and name not in names:
            yield Finding(name, "The index has no item in this file.", False)


def _tile(
    items: Items, number: dict[str, int]
) -> tuple[Ints, set[tuple[str, int]], list[tuple[str, int, int]]]:
    """Return the size of each file, overlapping items (file, offset), and gaps."""
    places = [place for place in items.places if place[0] in number]
    names = [*number]
    file = np.array([number[place[0]] for place in places], np.int64)
    start, nbytes = (np.array([place[column] for place in places], np.int64) for column in (1, 2))
    order = np.lexsort((start, file))
    file, start, stop = file[order], start[order], (start + nbytes)[order]
    sizes = np.zeros(len(number), np.int64)
    np.maximum.at(sizes, file, stop)
    # Where each item should begin: at the end of the one before it, or at the beginning of its
    # file.
    follows = np.append(False, file[1:] == file[:-1])[: len(file)]
    due = np.where(follows, np.append(0, stop[:-1])[: len(file)], 0)
    overlapping = set()
    for row in np.flatnonzero(start < due).tolist():
        overlapping |= {(names[file[each]], int(start[each])) for each in (row - 1, row)}
    gaps = [
        (names[file[row]], int(due[row]), int(start[row] - due[row]))
        for row in np.flatnonzero(start > due).tolist()
    ]
    return sizes, overlapping, gaps


def _slices(items: Items) -> SliceTable:
    codes = np.array([code(dtype) for dtype in items.dtypes], np.int64)
    tensors = TensorTable(items.keys, codes, *pad(items.shapes, fill=1))
    rank, tensor = tensors.shapes.shape[1], np.array(items.tensor, np.int64)
    offset, shape = (
        widen(pad(column, fill)[1], rank, fill)
        for column, fill in ((items.offset, 0), (items.shape, 1))
    )
    # A tensor without elements is one slice, the whole of it. Its item has what one rank held of
    # it. One that reaches out of its tensor stays as it is, and is a fault.
    full = tensors.shapes[tensor]
    inside = ((offset >= 0) & (shape <= full - offset)).all(axis=1, keepdims=True)
    empty = (full == 0).any(axis=1, keepdims=True) & inside
    offset, shape = np.where(empty, 0, offset), np.where(empty, full, shape)
    return SliceTable.of(tensors, tensor, offset, shape, np.zeros(len(tensor), np.int64))
