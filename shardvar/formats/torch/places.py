"""The places of stored tensors in files of ``torch.save``.

The pickle and the archive's directory tell everything about a tensor but the first byte of its
elements: that is behind a local header, whose length only the header tells. So a listing reads no
local header. It is read when its key is read: together with its neighbors, and in a bucket
with many requests at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from shardvar.errors import READ_ERRORS, ShardvarError, StorageError
from shardvar.formats.deferred import Located
from shardvar.formats.files import DataFiles
from shardvar.formats.torch.archive import Record, UnplacedRecord
from shardvar.formats.torch.items import StoredObject, TensorView, located
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


def begin_of(record: Record | UnplacedRecord) -> int:
    """Return a byte of the file that only this storage has."""
    return record.header if isinstance(record, UnplacedRecord) else record.start
