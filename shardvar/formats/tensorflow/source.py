"""Reading the payloads of a tensor bundle.

Little-endian elements lie in the data file as they are, and so do strings and variants; but the checksum of those is
not that of their bytes, so this source checks them by itself, as soon as their last byte was read. The elements of a
big-endian bundle are turned round, piece by piece, and checked in the same way, over the bytes of the file.

Data files have the same names again every other time that a checkpoint is overwritten. So they are opened at once, and
then the index must still be the one that was read; otherwise both are read anew. Files that are open stay what they
are, whoever overwrites the checkpoint; one that is opened later must be the file that it was.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardvar.errors import (
    CheckpointError,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
    OutOfBounds,
    prefix_errors,
)
from shardvar.formats.files import ATTEMPTS, DataFiles, is_replaced, replaced
from shardvar.formats.protocol import Finding
from shardvar.formats.tensorflow.contents import Contents, Tensors, decode_key, find_tensors, read_contents
from shardvar.formats.tensorflow.names import data_files, data_name, index_name
from shardvar.formats.tensorflow.protos import CODES
from shardvar.layout.dtypes import ITEMSIZES, STRING, VARIANT, Ints, code, numpy_dtype
from shardvar.planning.faults import find_faults
from shardvar.planning.index import NO_CHECKSUM, EntryTable, TableIndex
from shardvar.planning.slices import SliceTable, TensorTable, pad, widen
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire import strings
from shardvar.wire.crc import CRC32C, Checksum, unmask
from shardvar.wire.damage import COPY_AGAIN, WRITE_AGAIN

# The table of contents that shardvar has of every checkpoint, made from a tensor bundle's index.
#
# The entries become columns, and the laws are checked on columns: sizes that follow from dtype and shape, places within
# files that are there, slices that tile. A key that breaks one is listed with its fault, all others can be read. Data
# files are opened here, to see how long they are, so that nothing is ever allocated for a claim; and they stay open.


_STRING, _VARIANT = code(STRING), code(VARIANT)

Rows = npt.NDArray[np.bool]


@dataclass(frozen=True, slots=True, eq=False)
class BundleIndex:
    """A bundle's table of contents, and what only its source needs to know."""

    table: TableIndex
    """The table of contents."""
    file: ReadableFile
    """The index file, open."""
    data: DataFiles
    """The data files that entries name, opened."""
    guards: dict[tuple[int, int, int], int]
    """(file, start, nbytes) -> checksum, of the payloads that the source checks by itself."""
    is_big_endian: bool
    """The byte order of the files."""
    num_shards: int
    """The count in the names of the data files."""
    sizes: Ints
    """[files] bytes of the data files that entries name; -1 where a file cannot be opened."""


def read_index(storage: Storage, prefix: str) -> BundleIndex:
    """Read the index of a bundle, and how long its data files are."""
    contents = read_contents(storage, prefix)
    tensors = find_tensors(contents)
    slices, rows = _slice_table(contents, tensors)
    columns = [contents.entries[row] for row in rows]
    shard = _column(entry.shard for entry in columns)
    start = _column(entry.offset for entry in columns)
    stored = _column(entry.size for entry in columns)
    crc: Ints = unmask(_column(entry.crc for entry in columns).astype(np.uint32)).astype(np.int64)
    numbers, file = np.unique(shard, return_inverse=True)
    files = [data_name(prefix, number, contents.header.num_shards) for number in numbers.tolist()]
    itemsize = ITEMSIZES[slices.codes()]
    plain = (itemsize == 1) | (itemsize > 1) & (not contents.header.is_big_endian)
    entries = EntryTable(slices, file, start, np.where(plain, crc, NO_CHECKSUM), plain)

    faults = _Faults(tensors.faults, entries, contents.place)
    _check_sizes(faults, stored, contents.header.is_big_endian)
    _check_numbers(faults, shard, contents.header.num_shards)
    data = DataFiles(storage, files)
    sizes, unreadable = _measure(data)
    _check_places(faults, files, sizes, unreadable)
    for key, error in find_faults(slices).items():
        faults.errors.setdefault(key, type(error)(f"{contents.place}: {error.cause}", error.remedy))

    guards = _find_guards(faults, crc)
    table = TableIndex(entries, files, faults=faults.errors)
    header = contents.header
    return BundleIndex(table, contents.file, data, guards, header.is_big_endian, header.num_shards, sizes)


def _find_guards(faults: "_Faults", crc: Ints) -> dict[tuple[int, int, int], int]:
    """The checksums of payloads that are not plain, by their place: keys may be renamed, places stay."""
    entries = faults.entries
    others = np.flatnonzero(~entries.plain)
    columns = (entries.file, entries.start, entries.slices.nbytes, crc)
    guards: dict[tuple[int, int, int], int] = {}
    differs = np.zeros(len(entries), np.bool)
    for row, file, start, nbytes, value in zip(
        others.tolist(), *(column[others].tolist() for column in columns), strict=True
    ):
        differs[row] = guards.setdefault((file, start, nbytes), value) != value and nbytes > 0
    cause = "Another tensor has the same bytes and another checksum of them."
    faults.add(differs, lambda row: InvalidCheckpoint(cause, WRITE_AGAIN))
    return guards


def _slice_table(contents: Contents, found: Tensors) -> tuple[SliceTable, list[int]]:
    """The stored slices, tensor by tensor, and the row of each one's entry."""
    full = [contents.entries[row] for row in found.rows]
    ranks, shapes = pad([entry.shape for entry in full], fill=1)
    codes = _column(CODES[entry.dtype] for entry in full)
    tensors = TensorTable([decode_key(contents.keys[row]) for row in found.rows], codes, ranks, shapes)
    count = _column(len(found.parts[row]) if row in found.parts else 1 for row in found.rows)
    tensor = np.repeat(np.arange(len(full)), count)
    offset, shape = np.zeros_like(shapes)[tensor], shapes[tensor]
    rows = np.repeat(np.array(found.rows, np.int64), count)
    first = np.cumsum(count) - count
    for number in np.flatnonzero(np.isin(found.rows, list(found.parts))).tolist():
        parts = found.parts[found.rows[number]]
        here = slice(int(first[number]), int(first[number]) + len(parts))
        rows[here] = [part for part, _, _ in parts]
        if parts:
            offset[here] = widen(np.array([start for _, start, _ in parts], np.int64), offset.shape[1], 0)
            shape[here] = widen(np.array([extents for _, _, extents in parts], np.int64), shape.shape[1], 1)
    selected = rows.tolist()
    nbytes = np.maximum(_column(contents.entries[row].size for row in selected), 0)
    return SliceTable.of(tensors, tensor, offset, shape, nbytes), selected


def _column(values: Iterator[int]) -> Ints:
    return np.fromiter(values, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Faults:
    """The keys that cannot be read, while they are being found."""

    errors: dict[str, CheckpointError]
    """The first reason for each."""
    entries: EntryTable
    """The entries that are looked at."""
    place: str
    """The path of the index file."""

    def add(self, rows: Rows, reason: Callable[[int], CheckpointError]) -> None:
        """Note the reason for the key of each row that is marked."""
        for row in np.flatnonzero(rows).tolist():
            key = self.entries.slices.key(row)
            if key not in self.errors:
                error = reason(row)
                self.errors[key] = type(error)(f"{self.place}: {key!r}: {error.cause}", error.remedy)


def _check_sizes(faults: _Faults, stored: Ints, is_big_endian: bool) -> None:
    """A payload has the bytes that dtype and shape say; a string or a variant at least the least that it can."""
    slices = faults.entries.slices
    codes = slices.codes()
    count = np.prod(slices.shape, axis=1, dtype=np.float64)  # floats: a string's shape may say anything
    least = np.where(count == 0, 0, count + 4)
    whole = ITEMSIZES[codes] == 0
    faults.add(
        np.where(whole, stored < least, stored != slices.nbytes),
        lambda row: InvalidCheckpoint(
            f"{int(stored[row])} bytes are stored, where the shape {slices.region(row).shape} needs "
            f"{'at least ' if whole[row] else ''}{int(least[row] if whole[row] else slices.nbytes[row])}.",
            WRITE_AGAIN,
        ),
    )
    faults.add(
        (codes == _VARIANT) & is_big_endian,
        lambda row: InvalidCheckpoint("Variants of a big-endian checkpoint cannot be carried.", WRITE_AGAIN),
    )


def _check_numbers(faults: _Faults, shard: Ints, num_shards: int) -> None:
    """A payload lies in one of the data files, and not before its first byte."""
    faults.add(
        (shard < 0) | (shard >= num_shards),
        lambda row: InvalidCheckpoint(f"It lies in data file {int(shard[row])} of {num_shards}.", WRITE_AGAIN),
    )
    faults.add(
        faults.entries.start < 0,
        lambda row: OutOfBounds(f"It begins at offset {int(faults.entries.start[row])} of its file.", WRITE_AGAIN),
    )


def _measure(files: DataFiles) -> tuple[Ints, dict[int, CheckpointError]]:
    """The sizes of the data files, and for those that cannot be opened the reason (and -1)."""
    sizes = np.full(len(files.names), -1, np.int64)
    unreadable: dict[int, CheckpointError] = {}
    for number in range(len(files.names)):
        try:
            sizes[number] = files.open(number).size
        except CheckpointError as error:
            unreadable[number] = error
    return sizes, unreadable


def _check_places(faults: _Faults, files: list[str], sizes: Ints, unreadable: dict[int, CheckpointError]) -> None:
    """A payload ends within its file.

    Payloads that lack bytes because their file was cut short begin where it ends now, or before. Where the first of
    them begins further on, the index points into the void.
    """
    entries = faults.entries
    size = sizes[entries.file]
    faults.add(np.isin(entries.file, list(unreadable)), lambda row: unreadable[int(entries.file[row])])
    beyond = (entries.start >= 0) & (size >= 0) & (entries.slices.nbytes > size - entries.start)
    first = np.full(len(files), np.iinfo(np.int64).max)
    np.minimum.at(first, entries.file[beyond], entries.start[beyond])

    def reason(row: int) -> CheckpointError:
        number, start = int(entries.file[row]), int(entries.start[row])
        cause = f"{files[number]} has {size[row]} bytes, and {entries.slices.nbytes[row]} are to lie at offset {start}."
        was_cut = first[number] <= size[row]
        return IncompleteCheckpoint(cause, COPY_AGAIN) if was_cut else OutOfBounds(cause, WRITE_AGAIN)

    faults.add(beyond, reason)


_UNITS = {"qint16": 2, "quint16": 2, "qint32": 4}
"""Bytes of an element that NumPy has no type for."""


@dataclass(frozen=True, slots=True)
class BundleSource:
    """An open tensor bundle."""

    storage: Storage
    """Where the files are."""
    prefix: str
    """The checkpoint's name."""
    contents: BundleIndex
    """Its index."""

    @property
    def index(self) -> TableIndex:
        """The table of contents."""
        return self.contents.table

    @property
    def crc(self) -> Checksum:
        """The kind of checksum that guards plain entries."""
        return CRC32C

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from the payload of one entry, from byte ``start`` of the payload on."""
        file, begin = int(entries.file[row]), int(entries.start[row])
        nbytes = int(entries.slices.nbytes[row])
        dtype = entries.slices.dtype(row)
        with prefix_errors(f"{entries.slices.key(row)!r}"):
            if entries.plain[row] or not self.contents.is_big_endian:
                self.read_span(file, begin + start, buffer)
            elif dtype == STRING:
                stored = self._files.open(file).read(begin, nbytes)
                buffer[:] = strings.from_big_endian(stored, _count(entries, row))[start : start + len(buffer)]
            else:
                self._read_swapped(file, begin, start, buffer, _unit(dtype))
            if not entries.plain[row] and start + len(buffer) == nbytes:
                is_payload = len(buffer) == nbytes and not self.contents.is_big_endian
                self._check(entries, row, buffer if is_payload else self.map(file)[begin : begin + nbytes])

    def read_span(self, file: int, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from one data file, from byte ``start`` of the file on."""
        self._files.open(file).read_into(start, buffer)

    def map(self, file: int) -> memoryview:
        """A data file as a read-only memory map."""
        return self._files.open(file).map()

    def close(self) -> None:
        """Give the files back."""
        self._files.close()
        self.contents.file.close()

    def findings(self) -> Sequence[Finding]:
        """Data files that the index does not name, and bytes after the last payload of those that it does."""
        index = self.contents
        entries = index.table.entries
        stop = np.zeros(len(index.sizes), np.int64)
        np.maximum.at(stop, entries.file, entries.start + entries.slices.nbytes)
        findings = [
            Finding(name, f"The last {size - end} of its {size} bytes belong to no tensor.", False)
            for name, size, end in zip(index.table.files, index.sizes.tolist(), stop.tolist(), strict=True)
            if size > end
        ]
        strays = (name for name, _ in data_files(self.prefix, self.storage.names()) if name not in index.table.files)
        return [*findings, *(Finding(name, "No tensor of the index lies in this data file.", False) for name in strays)]

    @property
    def _files(self) -> DataFiles:
        return self.contents.data

    def _read_swapped(self, file: int, begin: int, start: int, buffer: memoryview, unit: int) -> None:
        """Fill ``buffer`` with words turned round; whole words are read, of which it may want a part."""
        first, stop = start // unit * unit, -(-(start + len(buffer)) // unit) * unit
        stored = self._files.open(file).read(begin + first, stop - first)
        words = np.frombuffer(stored, f">u{unit}").astype(f"<u{unit}").tobytes()
        buffer[:] = words[start - first : start - first + len(buffer)]

    def _check(self, entries: EntryTable, row: int, stored: memoryview) -> None:
        """Raise ``CorruptCheckpoint`` where the bytes of the file do not have the checksum of their entry."""
        if not len(stored):
            return
        file, start = int(entries.file[row]), int(entries.start[row])
        expected, actual = self.contents.guards[file, start, len(stored)], self._checksum(entries, row, stored)
        if actual != expected:
            found = "no checksum" if actual is None else f"the checksum {actual:08x}"
            raise CorruptCheckpoint(
                f"{self._files.open(file).name}: the {len(stored)} bytes at offset {start} have {found}, and the index "
                f"gives {expected:08x}.",
                COPY_AGAIN,
            )

    def _checksum(self, entries: EntryTable, row: int, stored: memoryview) -> int | None:
        """The checksum of an entry's bytes in the file; None where they are such that they can have none."""
        dtype = entries.slices.dtype(row)
        try:
            if dtype == STRING:
                byteorder = ">" if self.contents.is_big_endian else "<"
                return strings.bundle_checksum(stored, _count(entries, row), byteorder)
            if dtype == VARIANT:
                return strings.variant_checksum(stored, _count(entries, row))
        except MalformedCheckpoint:
            return None
        return CRC32C.compute(stored)


def open_source(storage: Storage, prefix: str) -> BundleSource:
    """Open a bundle; its index is read again where another took its place before the data files were open."""
    for _ in range(ATTEMPTS):
        source = BundleSource(storage, prefix, read_index(storage, prefix))
        if not is_replaced(storage, index_name(prefix), source.contents.file):
            return source
        source.close()
    raise replaced(source.contents.file.name)


def _count(entries: EntryTable, row: int) -> int:
    """The number of elements of an entry."""
    return entries.slices.region(row).size


def _unit(dtype: str) -> int:
    """The bytes that a change of byte order turns round as one: an element, or half of a complex one."""
    if dtype in _UNITS:
        return _UNITS[dtype]
    element = numpy_dtype(dtype)
    return element.itemsize // 2 if element.kind == "c" else element.itemsize
