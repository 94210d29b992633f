"""Formats that are read by listing their tensors: a format that is only read is three values.

    FORMAT = ListedFormat(name, find, read)
    find     find(storage, name) -> the checkpoints that a person may mean: ``FileNames.find``, or
             ``find_files`` if no file is a part of another checkpoint
    read     read(storage, name) -> Listing: each tensor with its file and place, plain values,
             faults and findings; no element is read

``ListedSource`` makes of a listing the table of contents, the reads of parts, and the answers that
``verify`` and ``--dequantize`` ask for. A format whose checksums cover more than single tensors
gives a subclass of it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np

from shardvar.errors import CheckpointError, ShardvarError
from shardvar.formats.files import DataFiles, FileSource, read_beginning
from shardvar.formats.protocol import Finding, Format, Source, WrappedSource
from shardvar.formats.sets import is_foreign
from shardvar.layout.dtypes import ITEMSIZES, Bools, Ints, code
from shardvar.limits import MAX_NBYTES, MAX_OBJECTS_NBYTES
from shardvar.planning.index import (
    OBJECTS,
    EntryTable,
    Metadata,
    TableIndex,
    find_shared,
)
from shardvar.planning.slices import TensorTable
from shardvar.records import entity, field, frozen, mutable, replace
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import invalid, past_limit
from shardvar.wire.plain import build_objects, encode_value

ReadSpan = Callable[[int, int, memoryview], None]
"""Fills a buffer from a file of that number, from that byte on."""
Decode = Callable[[ReadSpan, "ListedTensor", int, memoryview], None]
"""Fills a buffer from a payload, from that byte of it on."""


class ListedTensor(NamedTuple):
    """A readable tensor, with the dtype and the shape of its payload."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    file: int  # the number of its file
    start: int  # in bytes of the file
    decode: Decode | None = None  # None if the payload lies in the file byte for byte
    is_in_order: bool = False  # True if it is best read from its beginning to its end
    size: int | None = None  # bytes of the payload, if dtype and shape do not tell them

    @property
    def itemsize(self) -> int:
        return int(ITEMSIZES[code(self.dtype)])

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.itemsize if self.size is None else self.size


@mutable
class Listing:
    data: DataFiles
    tensors: list[ListedTensor] = field(default_factory=list)
    entries: EntryTable | None = None
    """The entries, of a format that has them as columns, in place of ``tensors``; all are plain."""
    metadata: Metadata = field(default_factory=Metadata)
    """The metadata; if there are plain values, they are the user's."""
    objects: dict[str, str] = field(default_factory=dict)
    """The encodings of plain values by key (``wire.plain``)."""
    faults: dict[str, ShardvarError] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    encodings: Mapping[str, str] = field(default_factory=dict)
    """The types of blocks that are listed as bytes, by key."""
    numbers: Callable[[], "Listing"] | None = None
    """Returns the same with numbers in place of blocks."""
    _objects_nbytes: int = 0

    def add_object(self, key: str, value: Any) -> None:
        encoding = encode_value(value)
        self._objects_nbytes += len(encoding) + 6 * len(key) + 8
        if self._objects_nbytes > MAX_OBJECTS_NBYTES:
            raise past_limit("The plain values have more bytes", "MAX_OBJECTS_NBYTES")
        self.objects[key] = encoding

    def shared(
        self, file_nbytes: Ints, counts: Callable[[ListedTensor], bool] = lambda _tensor: True
    ) -> list[ListedTensor]:
        """Return the readable tensors that share too many bytes with others that count."""
        tensors = [each for each in self._readable() if counts(each)]
        return [tensors[row] for row in np.flatnonzero(find_shared(_entries(tensors), file_nbytes))]

    def index(self) -> TableIndex:
        """Return the table of contents; ``start`` of a non-plain entry numbers ``tensors``."""
        self.tensors = sorted(self._readable(), key=lambda each: each.key)
        entries = _entries(self.tensors) if self.entries is None else self.entries
        start = np.where(entries.plain, entries.start, np.arange(len(entries)))
        metadata = self.metadata
        if self.objects:
            metadata = replace(metadata, user={OBJECTS: build_objects(self.objects)})
        lost = {} if self.entries is None else self.data.lost(self.entries)
        faults = cast(Mapping[str, CheckpointError], lost | self.faults)
        names = [*self.data.names]
        return TableIndex(replace(entries, start=start), names, metadata, faults)

    def _readable(self) -> list[ListedTensor]:
        return [each for each in self.tensors if each.key not in self.faults]


def _entries(tensors: Sequence[ListedTensor]) -> EntryTable:
    slices = TensorTable.of((each.key, each.dtype, each.shape) for each in tensors).whole()
    own = np.array([-1 if each.size is None else each.size for each in tensors], np.int64)
    nbytes = np.where(own < 0, slices.nbytes, own)
    return EntryTable.without_checksums(
        replace(slices, nbytes=nbytes),
        np.where(nbytes > 0, np.array([each.start for each in tensors], np.int64), 0),
        np.array([each.file for each in tensors], np.int64),
        np.array([each.decode is None for each in tensors], np.bool),
    )


def check_size(shape: Sequence[int], itemsize: int) -> None:
    # Extents of 0 do not make a shape harmless: NumPy cannot hold (2**62, 2**62, 0).
    if prod(filter(None, shape)) * itemsize > MAX_NBYTES:
        raise invalid(f"Its shape {list(shape)} is too large to exist.")


@entity
class ListedSource(FileSource):
    listing: Listing
    index: TableIndex = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", self.listing.index())

    @property
    def data(self) -> DataFiles:
        return self.listing.data

    def in_order(self, entries: EntryTable, rows: Ints) -> Bools:
        answers = ~entries.plain[rows]
        numbers = entries.start[rows][answers].tolist()
        answers[answers] = [self.listing.tensors[number].is_in_order for number in numbers]
        return answers

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        begin = int(entries.start[row])
        decode = None if entries.plain[row] else self.listing.tensors[begin].decode
        if decode is None:
            self.read_span(int(entries.file[row]), begin + start, buffer)
        else:
            decode(self.read_span, self.listing.tensors[begin], start, buffer)

    def findings(self) -> Sequence[Finding]:
        return self.listing.findings

    def encodings(self) -> Mapping[str, str]:
        return self.listing.encodings

    def dequantized(self) -> Source:
        numbers = self.listing.numbers
        return DequantizedSource(self, ListedSource(numbers())) if numbers else self


@entity
class DequantizedSource(WrappedSource):
    """A checkpoint with the numbers of blocks in the place of the blocks."""

    inner: ListedSource = field()
    numbers: ListedSource

    @property
    def index(self) -> TableIndex:
        return self.numbers.index

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        self.numbers.read_into(entries, row, start, buffer)

    def encodings(self) -> Mapping[str, str]:
        return {}


def swapped(
    read: ReadSpan, tensor: ListedTensor, start: int, buffer: memoryview, size: int = 0
) -> None:
    """Fill a buffer from big-endian elements, or parts of elements, of ``size`` bytes."""
    read_swapped(read, tensor.file, tensor.start, start, buffer, size or tensor.itemsize)


def read_swapped(
    read: ReadSpan, file: int, begin: int, start: int, buffer: memoryview, size: int
) -> None:
    """Fill a buffer from reversed words, from byte ``start`` of a payload at ``begin`` of a file."""
    # Words 3 to 6 hold the bytes 13 to 26, if each has 4: the first byte is dropped.
    first, stop = start // size * size, -(-(start + len(buffer)) // size) * size
    stored = np.empty(stop - first, np.uint8)
    read(file, begin + first, stored.data)
    buffer[:] = stored.reshape(-1, size)[:, ::-1].tobytes()[start - first :][: len(buffer)]


@frozen
class FileNames:
    """The names of a checkpoint of one file, or of a set of parts, and the names that mean it."""

    suffix: str
    begins: Callable[[Storage, str], bool] = lambda _storage, _name: False
    """Returns True if a file of another name begins as one of the format."""
    index: str = ""
    """The ending of the index by which a set is called; empty if its first part is its name."""
    others: re.Pattern[str] | None = None
    """Matches names without the ending for which ``begins`` is asked."""

    def part(self, name: str) -> re.Match[str] | None:
        """Return the stem, the number and the count in the name of a part."""
        pattern = rf"(?P<stem>.+)-\d{{5}}-of-(?P<count>\d{{5}}){re.escape(self.suffix)}"
        return re.fullmatch(pattern, name, re.DOTALL)

    def whole(self, name: str, names: Sequence[str]) -> str:
        """Return the name of the checkpoint that a file belongs to."""
        part = self.part(name)
        if part is None:
            return name
        if not self.index:
            return f"{part['stem']}-00001-of-{part['count']}{self.suffix}"
        index = part["stem"] + self.index
        return index if index in names or int(part["count"]) > 1 else name

    def find(self, storage: Storage, name: str) -> list[str]:
        """Return the checkpoints that a name may mean, also a set without its index or first file."""
        names, ends = storage.names(), tuple(filter(None, (self.suffix, self.index)))
        if not name:
            wholes = {self.whole(each, names) for each in names if each.endswith(ends)}
            others = [each for each in names if self.others and self.others.fullmatch(each)]
            # They are alike, so one is looked at.
            return sorted(
                wholes | {*(others if others and self.begins(storage, others[0]) else ())}
            )
        if name in names and name.endswith(ends):
            whole = self.whole(name, names)
            if whole == name or not self.index:
                return [whole]
            return [whole if whole in names and not is_foreign(storage, whole) else name]
        if name in names:
            may = self.others is None or self.others.fullmatch(name)
            return [self.whole(name, names)] if may and self.begins(storage, name) else []
        stem = name.removesuffix(self.index).removesuffix(self.suffix)
        usual = {stem + self.suffix, *([stem + self.index] if self.index else ())}
        parts = [each for each in names if (part := self.part(each)) and part["stem"] == stem]
        wholes = {self.whole(each, names) for each in parts} | usual.intersection(names)
        return sorted(wholes | {name}.intersection(self.whole(each, names) for each in names))


def begins_with(magic: bytes) -> Callable[[Storage, str], bool]:
    return lambda storage, name: read_beginning(storage, name, len(magic)) == magic


@frozen
class ListedFormat(Format):
    """A format that is only read."""

    name: str
    find: Callable[[Storage, str], list[str]]
    read: Callable[[Storage, str], Listing]
    source: Callable[[Any], ListedSource] = ListedSource

    def locate(self, storage: Storage, name: str) -> list[str]:
        return self.find(storage, name)

    def open(self, storage: Storage, name: str) -> ListedSource:
        return self.source(self.read(storage, name))
