"""The places of stored tensors in files of ``torch.save``.

The pickle and the archive's directory tell everything about a tensor but the first byte of its
elements: that is behind a local header, whose length only the header tells. So a listing reads no
local header. It is read when its key is read: together with its neighbors, and in a bucket
with many requests at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from shardvar.errors import READ_ERRORS, ArgumentError, ShardvarError, StorageError
from shardvar.formats.deferred import Located
from shardvar.formats.enclosed import Enclosed
from shardvar.formats.files import DataFiles
from shardvar.formats.torch.archive import Archive, UnplacedRecord
from shardvar.formats.torch.items import (
    AnyRecord,
    StoredObject,
    TensorView,
    located,
    payload_in,
    reader_of,
)
from shardvar.formats.window import WINDOW_NBYTES, Window
from shardvar.layout.dtypes import Ints
from shardvar.planning.index import NO_CHECKSUM
from shardvar.storage.concurrency import do_all

_NEAR_NBYTES = WINDOW_NBYTES // 4
"""Local headers within so many bytes are read together."""
_GROUP_NBYTES = 1 << 22
"""The bytes of a file whose local headers one thread reads."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A slice of a tensor in a file, or an object."""

    file: int
    """The number of the file."""
    value: TensorView | StoredObject
    """The elements of the slice, or the object."""
    offset: tuple[int, ...] = ()
    """The first indices of the slice in the whole tensor."""
    shape: tuple[int, ...] = ()
    """The full shape of the tensor."""

    @classmethod
    def whole(cls, file: int, view: TensorView) -> "Stored":
        """Return a tensor that is stored whole."""
        shape = view.tensor.shape
        return cls(file, view, (0,) * len(shape), shape)


@dataclass(frozen=True, slots=True, eq=False)
class PlaceReader:
    """The slices of a checkpoint, and the local headers in front of their elements."""

    data: DataFiles
    """The files."""
    keys: Sequence[str]
    """[n] the keys."""
    rows: Sequence[tuple[int, Stored]]
    """[m] the number of the key of each slice, and the slice."""
    replicas: Mapping[str, Sequence[tuple[Stored, Stored]]]
    """The copies of slices, by key."""

    def locate(self, wanted: Ints) -> dict[int, Located | ShardvarError]:
        """Return the place of each wanted row; also look at the local headers of copies."""
        errors: dict[int, ShardvarError] = {}

        def read(group: Sequence[_Header]) -> None:
            file = self.data.open(group[0][0])
            # A window brings the headers of small records; that of a large one is read by itself.
            through = Window(file).read if len(group) > 1 else file.read
            for _, _, row, record in group:
                try:
                    record.place(through)
                except (*READ_ERRORS, StorageError) as error:
                    key = self.keys[self.rows[row][0]]
                    errors.setdefault(row, error.at(file.name, repr(key)))

        do_all(read, _groups(self._headers(wanted.tolist())), self.data.traits)
        return {
            row: errors[row] if row in errors else self._located(row) for row in wanted.tolist()
        }

    def enclosed(self) -> Enclosed:
        """Return the tensors that are read whole with their local headers: from the header to the
        next one, or to the directory."""
        columns: list[tuple[int, int, int, int, int]] = []
        ends: dict[int, Ints] = {}
        for row, (tensor, stored) in enumerate(self.rows):
            view, is_copied = stored.value, bool(self.replicas.get(self.keys[tensor]))
            if isinstance(view, TensorView) and not is_copied and view.is_plain:
                record = view.record
                if isinstance(record, UnplacedRecord) and view.spans_record:
                    if stored.file not in ends:
                        ends[stored.file] = _ends_of(record.archive)
                    number = int(np.searchsorted(ends[stored.file], record.header, "right"))
                    end = int(np.append(ends[stored.file], 0)[number])
                    columns.append((row, stored.file, record.header, end, view.nbytes))
        return Enclosed.of(self.data, np.array(columns, np.int64).reshape(-1, 5), self._unframe)

    def _unframe(self, row: int, octets: memoryview) -> memoryview:
        """Return the payload behind a local header, compared."""
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

    def _located(self, row: int) -> Located:
        value = self.rows[row][1].value
        if isinstance(value, TensorView):
            return located(value, value.nbytes, row)
        return Located(len(value.payload), row, NO_CHECKSUM, False)

    def _headers(self, wanted: Sequence[int]) -> list["_Header"]:
        """Return the local headers of some rows, in the order of the files."""
        headers = [
            (each.file, each.value.record.header, row, each.value.record)
            for row in wanted
            for each in (self.rows[row][1], *self._copies(row))
            if isinstance(each.value, TensorView) and isinstance(each.value.record, UnplacedRecord)
        ]
        return sorted(headers, key=itemgetter(0, 1, 2))

    def _copies(self, row: int) -> Iterator[Stored]:
        """Yield the copies of a tensor with the first of its rows."""
        tensor = self.rows[row][0]
        if row == 0 or self.rows[row - 1][0] != tensor:
            yield from (copy for _, copy in self.replicas.get(self.keys[tensor], ()))


def _ends_of(archive: Archive) -> Ints:
    """Return the bytes of the file at which local headers and the directory begin, sorted."""
    members = (each for found in archive.members.values() for each in found)
    starts = {archive.start + each.start for each in members}
    return np.array(sorted({*starts, archive.stop}), np.int64)


_Header = tuple[int, int, int, UnplacedRecord]
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
    """Return a number that tied tensors of a file have in common; -1 for an object, and for a
    tensor that is decoded."""
    if isinstance(value, TensorView) and value.is_plain:
        return begin_of(value.record) + value.tensor.offset * value.tensor.itemsize
    return -1


def begin_of(record: AnyRecord) -> int:
    """Return a byte of the file that only this storage has, or another number."""
    return record.header if isinstance(record, UnplacedRecord) else record.start
