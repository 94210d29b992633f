"""Open a distributed checkpoint: its table of contents, and the laws that it must keep.

``.metadata`` is read when the checkpoint is opened, and is all that a listing needs. It says which
item holds each slice, but not where in the item the elements lie. So an item's frame is read when
its slice is asked for (``formats.deferred``), and once only. Frames are read in the order of the
files: many small ones at a time, and in a bucket all requests together.

Laws: files are named by bare names, and the items of a file neither overlap nor leave gaps. The end
of the last item is the size of the file: this is the one test that finds a file which was exchanged
for another, for items say nothing about the tensor that they belong to.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

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
from shardvar.formats.deferred import DeferredIndex, Located
from shardvar.formats.enclosed import Enclosed
from shardvar.formats.files import ATTEMPTS, DataFiles, is_replaced
from shardvar.formats.protocol import Finding
from shardvar.formats.sets import is_bare
from shardvar.formats.torch.items import (
    GROUP_NBYTES,
    SMALL_NBYTES,
    Frames,
    TensorView,
    encoding_in,
    located,
    payload_in,
)
from shardvar.formats.torch.metadata import Items, parse_metadata
from shardvar.formats.torch.names import DATA_SUFFIX, METADATA, rank_indexes
from shardvar.formats.torch.source import TorchSource
from shardvar.layout.dtypes import STRING, Ints, code
from shardvar.limits import MAX_METADATA_NBYTES
from shardvar.planning.index import NO_CHECKSUM
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
class DcpItems:
    """The items of a checkpoint, and what was read of them."""

    items: Items
    """The contents of ``.metadata``."""
    data: DataFiles
    """The data files."""
    slices: SliceTable
    """All slices; an object has the size of its item."""
    file: Ints
    """[m] the number of the file of each item."""
    views: dict[int, TensorView] = field(default_factory=dict)
    """The tensors whose items were read, by row."""
    payloads: dict[int, bytes] = field(default_factory=dict)
    """The objects whose items were read, by row."""
    unguarded: set[int] = field(default_factory=set)
    """The rows whose items were read and have bytes without a checksum."""
    _templates: dict[Any, Any] = field(default_factory=dict)

    def locate(self, rows: Ints) -> dict[int, Located | ShardvarError]:
        """Read the frames of some items, many requests at a time in a bucket."""
        found: dict[int, Located | ShardvarError] = {}

        def read(group: Ints) -> None:
            start, stop = self.extent(group[:1])[0], self.extent(group[-1:])[1]
            frames = Frames(self.data, self._templates, window_nbytes=int(stop[0] - start[0]))
            for row in group.tolist():
                try:
                    found[row] = self._read_item(row, frames)
                except (CheckpointError, StorageError, UnsupportedError) as error:
                    found[row] = self._placed(row, error)

        with without_collection():
            do_all(read, self._groups(rows), self.data.traits)
        return found

    def unframe(self, index: DeferredIndex, row: int, octets: memoryview) -> memoryview:
        """Return the payload in the bytes of an item, compared; the index learns its place."""
        file, start = int(self.file[row]), self.items.start[row]
        try:
            place = self._read_item(row, Frames(self.data, self._templates, held=octets))
            payload = payload_in(self.views[row], self.data, file, start, octets)
        except (CheckpointError, StorageError, UnsupportedError) as error:
            raise self._placed(row, error) from None
        index.learn(row, place)
        return payload

    def lost(self) -> dict[int, ShardvarError]:
        """Return the rows whose files are missing or of a wrong size; reads no file."""
        found: dict[int, ShardvarError] = {}
        for number in range(len(self.data.names)):
            fault = self.data.fault(number)
            if fault is not None:
                rows = np.flatnonzero(self.file == number).tolist()
                found |= {row: self._placed(row, fault.at()) for row in rows}
        return found

    def read_objects(
        self, index: DeferredIndex, keys: Collection[str], as_items: bool
    ) -> dict[str, bytes]:
        """Return the encodings of the plain objects among keys, or the items of all; raise if the
        bytes of one are damaged."""
        found = {}
        for row in range(len(self.slices)):
            key = self.slices.key(row)
            if self.slices.dtype(row) == STRING and key in keys and key not in index.broken:
                try:
                    item = Frames(self.data).read_item(
                        int(self.file[row]), self.items.start[row], self.items.nbytes[row]
                    )
                    if as_items:
                        found[key] = item
                    elif index.fault_of(key) is None:  # it is plain
                        found[key] = encoding_in(item)
                except (CheckpointError, StorageError, UnsupportedError) as error:
                    raise self._placed(row, error) from None
        return found

    def extent(self, rows: Ints) -> tuple[Ints, Ints]:
        """[k] the first byte of each item in its file, and [k] its end."""
        start = np.array([self.items.start[row] for row in rows.tolist()], np.int64)
        return start, start + np.array([self.items.nbytes[row] for row in rows.tolist()], np.int64)

    def _groups(self, rows: Ints) -> list[Ints]:
        """Cut rows, in the order of the files, into groups whose items are read at once.

        Only the ends of a large item are read, so it is a group by itself; small ones that lie
        within ``GROUP_NBYTES`` are one.
        """
        start, stop = self.extent(rows)
        order = np.lexsort((start, self.file[rows]))
        rows, start, stop = rows[order], start[order], stop[order]
        is_large = stop - start > SMALL_NBYTES
        apart = (np.diff(self.file[rows]) != 0) | is_large[1:] | is_large[:-1]
        first, groups = 0, []
        for end in [*(np.flatnonzero(apart) + 1).tolist(), len(rows)]:
            while first < end:
                within = np.searchsorted(stop[first:end], start[first] + GROUP_NBYTES, "right")
                last = max(first + int(within), first + 1)
                groups.append(rows[first:last])
                first = last
        return groups

    def _read_item(self, row: int, frames: Frames) -> Located:
        """Read the item of one row, and compare it with what ``.metadata`` says."""
        place = int(self.file[row]), self.items.start[row], self.items.nbytes[row]
        shape, dtype = self.items.shape[row], self.slices.dtype(row)
        if dtype == STRING:
            self.payloads[row], is_guarded = frames.read_object(*place)
            self.unguarded |= set() if is_guarded else {row}
            return Located(len(self.payloads[row]), row, NO_CHECKSUM, False)
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
        payload = located(view, int(self.slices.nbytes[row]), row)
        # A payload that has a checksum has the one of its whole record.
        if payload.checksum == NO_CHECKSUM and (
            view.record.crc == NO_CHECKSUM or not view.spans_record
        ):
            self.unguarded.add(row)
        return payload

    def _placed(self, row: int, error: ShardvarError) -> ShardvarError:
        """Return an error that names the file and the key."""
        name, key = self.data.names[self.file[row]], self.slices.key(row)
        return error.at(repr(key), *([] if name in error.cause else [name])).in_file(name)


def _differ_along_one_axis(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Return True if two shapes have the same rank, and the same extent along all axes but one."""
    return len(a) == len(b) and sum(one != other for one, other in zip(a, b, strict=True)) == 1


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
    held = DcpItems(items, data, slices, file)
    alone = np.full(len(slices), -1)
    index = DeferredIndex(
        slices, file, names, faults, held.locate, alone, True, held.lost, items.about
    )
    index.enclosed = _enclosed(held, index)
    look = lambda: [*remarks, *_strays(storage, names)]  # noqa: E731
    # The frames of a key that is refused may lie anywhere, and none of them is read.
    is_guarded = lambda key: held.unguarded.isdisjoint(index.rows_of(key).tolist())  # noqa: E731
    rest = look, partial(held.read_objects, index), is_guarded
    return TorchSource(index, data, held.views, held.payloads, *rest, bare_index=METADATA)


def _enclosed(held: DcpItems, index: DeferredIndex) -> Enclosed:
    """Return the tensors whose items are read whole; objects have other sizes than their items."""
    slices = held.slices
    good = np.array([key not in index.broken for key in slices.tensors.keys], np.bool)
    rows = np.flatnonzero(good[slices.tensor] & (slices.codes() != code(STRING)))
    columns = rows, held.file[rows], *held.extent(rows), slices.nbytes[rows]
    return Enclosed.of(held.data, np.column_stack(columns), partial(held.unframe, index))


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
    return SliceTable.of(tensors, tensor, offset, shape, np.array(items.nbytes, np.int64))
