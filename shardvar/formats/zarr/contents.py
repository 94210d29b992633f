"""The arrays of a checkpoint as a table of contents, with everything compared that the files claim.

    an entry   one chunk, cut to the array's shape; plain if it lies in its file as in memory

Laws, of each array by itself, but for what may be absent (``Allowance``):

    a chunk that is absent   is damage, unless in the format the fill value stands for it;
                             zero is the fill value of version 2 without one
    a raw chunk              has the size of its elements
    a compressed chunk       is at least a 32768th of them: no codec does more
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from math import prod
from typing import Any, Self, cast

import numpy as np

from shardvar.errors import (
    COPY_AGAIN,
    READ_ERRORS,
    CheckpointError,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    ReadError,
    UnsupportedError,
)
from shardvar.forks import new_lock
from shardvar.formats.deferred import Enclosed, put_places
from shardvar.formats.files import DataFiles, read_blocks
from shardvar.formats.protocol import Finding
from shardvar.formats.zarr.database import DatabaseValues
from shardvar.formats.zarr.files import DATABASE, STRINGS, PathListing
from shardvar.layout.dtypes import STRING, Bools, Ints, numpy_dtype
from shardvar.limits import (
    MAX_ABSENT_FILES,
    MAX_CODEC_EXPANSION,
    MAX_FILL_NBYTES,
    MAX_PAYLOAD_EXPANSION,
)
from shardvar.planning.index import EntryTable, Metadata, TableIndex
from shardvar.planning.slices import SliceTable, TensorTable, widen
from shardvar.records import entity, field, frozen, mutable, replace
from shardvar.storage.concurrency import do_all
from shardvar.wire.crc import CRC32C
from shardvar.wire.damage import corrupt, distrusted, incomplete, past_limit
from shardvar.wire.zarr_metadata import ArrayMetadata, may_be_guarded, parse_array

# The table of contents of arrays whose chunks are followed by their checksums, as the codec crc32c
# writes them.
#
# Such a chunk is read in place, or mapped. Its checksum is at the end of its file, and read when its
# entry is asked for, by ``find`` or ``scan``. It covers the whole chunk:
#
#     | elements in the array | elements outside of it | checksum of both |
#
# If c is the checksum of the first part and p the checksum of the second, n bytes long, the stored
# one is c * x**(8*n) + p modulo the generator. So c is found by a multiplication with x**(-8*n),
# which is a power of x too: x**(2**31 - 1) is 1.

TRAILER_NBYTES = 4
"""The bytes of a checksum."""
_ORDER = (1 << 31) - 1
"""The smallest power of x that is 1 modulo CRC32C's generator, which is x + 1 times a primitive one
of degree 31."""


@entity
class ChunkIndex(TableIndex):
    """A table of contents that reads checksums on demand, from any thread."""

    is_framed: Bools = field(default_factory=lambda: np.zeros(0, np.bool))
    """[m] True for entries whose checksums are still to be read."""
    data: list[DataFiles] = field(default_factory=list)
    """The open files, as the only item, once there are any."""
    errors: dict[int, CheckpointError] = field(default_factory=dict)
    """The errors of checksums that could not be read, by entry."""
    _whole: list[bool] = field(default_factory=list)
    """One item if chunks are to be read whole."""
    _enclosed: list[Enclosed] = field(default_factory=list)
    _reading: Any = field(default_factory=new_lock)

    @property
    def enclosed(self) -> Enclosed:
        """The chunks that are read whole with their checksums, as they are when first asked for."""
        with self._reading:
            if not self._enclosed:
                rows = np.flatnonzero(self.is_framed)
                files, nbytes = self.entries.file[rows], self.entries.slices.nbytes[rows]
                sizes = self.data[0].nbytes
                stop = np.zeros_like(rows) if sizes is None else sizes[files]
                columns = rows, files, np.zeros_like(rows), stop, nbytes
                table = np.column_stack(columns)
                self._enclosed.append(Enclosed.of(self.data[0], table, self._unframe))
            return self._enclosed[0]

    def find(self, key: str) -> EntryTable:
        entries = TableIndex.find(self, key)
        if not self.is_framed.any():
            return entries
        order, bounds = self._grouped[0]
        row = self._rows[key]
        self._read(order[bounds[row] : bounds[row + 1]])
        return TableIndex.find(self, key)

    def scan(self) -> Iterator[EntryTable]:
        """Yield all entries in one table; of chunks to be read whole, no checksum is read."""
        every = np.arange(len(self.entries))
        if not self._whole:
            self._read(every)
            yield self.entries
            return
        enclosed = self.enclosed
        self._read(np.setdiff1d(every, enclosed.rows))
        is_new = self.is_framed[enclosed.rows]
        start = self.entries.start.copy()
        start[enclosed.rows[is_new]] = enclosed.address[is_new]
        yield replace(self.entries, start=start)

    def prefer_whole(self, is_whole: bool) -> None:
        """From now on give chunks that are read whole an address, or their place."""
        self._whole[:] = [True] * is_whole

    def placed(self, entries: EntryTable) -> EntryTable:
        """Return entries with places instead of addresses; their checksums are read."""
        at, rows = self.enclosed.find(entries)
        self._read(rows)
        return put_places(entries, at, self.entries.take(rows))

    def _unframe(self, row: int, octets: memoryview) -> memoryview:
        """Return the elements in the bytes of a file, after comparing them with their checksum."""
        stop = len(octets) - TRAILER_NBYTES
        if CRC32C.compute(octets[:stop]) != int.from_bytes(octets[stop:], "little"):
            file = self.files[int(self.entries.file[row])]
            raise corrupt(
                f"{file}: Its {stop} bytes, which hold {self.entries.slices.region(row)} of "
                f"{self.entries.slices.key(row)!r}, disagree with the checksum that follows them."
            ).in_file(file)
        return octets[: int(self.entries.slices.nbytes[row])]

    def _read(self, rows: Ints) -> None:
        with self._reading:
            framed = rows[self.is_framed[rows]].tolist()
            do_all(self._read_checksum, framed, self.data[0].traits if framed else None)

    def _read_checksum(self, row: int) -> None:
        nbytes, outside = int(self.entries.slices.nbytes[row]), 0
        try:
            file = self.data[0].open(int(self.entries.file[row]))
            stop = file.size - TRAILER_NBYTES
            for octets in read_blocks(file, nbytes, stop):
                outside = CRC32C.compute(octets, outside)
            stored = int.from_bytes(file.read(stop, TRAILER_NBYTES), "little")
            self.entries.checksum[row] = first_checksum(stored, outside, stop - nbytes)
        except CheckpointError as error:
            # It is an error of only that key, and raised when the entry is to be decoded.
            self.errors[row] = error
            self.entries.start[row], self.entries.plain[row] = row, False
        self.is_framed[row] = False


def first_checksum(both: int, second: int, second_nbytes: int) -> int:
    """Return the CRC32C of the first of two byte strings, from that of both and of the second."""
    return CRC32C.combine(both ^ second, 0, -second_nbytes % _ORDER)


DOCUMENTS = {2: ".zarray", 3: "zarr.json"}
"""The file that describes an array, by version."""
_OWN = {".zarray", ".zattrs", ".zgroup", ".zmetadata", "zarr.json"}


@frozen
class Description:
    key: str
    path: str
    """Its folder in the checkpoint."""
    version: int
    """The version of Zarr."""
    data: bytes
    """The bytes of its description; of a text, its payload."""

    @property
    def document(self) -> str:
        return self.path_of(DOCUMENTS[self.version])

    def path_of(self, name: str) -> str:
        return f"{self.path}/{name}".removeprefix("/")


@entity
class Chunks:
    description: Description
    metadata: ArrayMetadata
    offset: Ints
    """[m, rank] the first element of each chunk, in the coordinates of the array."""
    shape: Ints
    """[m, rank] the extents of each chunk, cut to the array."""
    names: Sequence[str]
    """[m] the name of each chunk, in the folder of the array."""
    is_present: Bools
    """[m] True for chunks that are stored."""

    def stored(self) -> list[str]:
        rows = np.flatnonzero(self.is_present).tolist()
        return [self.description.path_of(self.names[row]) for row in rows]

    @property
    def is_plain(self) -> Bools:
        """[m] True for chunks whose elements lie in their file as in memory."""
        # Elements that are cut off a chunk on the first axis lie behind the others; on other axes,
        # between them.
        whole = (self.shape == np.array(self.metadata.chunk_shape, np.int64))[:, 1:].all(axis=1)
        plain: Bools = whole & self.is_present & (self.metadata.is_raw | self.metadata.is_framed)
        return plain

    @property
    def is_absent(self) -> Bools:
        """[m] True for chunks that have elements and are not stored."""
        absent: Bools = ~self.is_present & (self.shape > 0).all(axis=1)
        return absent

    @property
    def is_guarded(self) -> bool:
        return self.metadata.is_guarded and not self.is_absent.any()


@mutable
class Allowance:
    """The absent elements that all arrays together may have: a short description can claim many."""

    files: int
    nbytes: int  # of absent chunks, which have the fill value

    @classmethod
    def of(cls, count: int, stored: int) -> Self:
        """Return the room of a checkpoint of ``count`` files with ``stored`` bytes in all."""
        # What grows with the files costs no more than reading them.
        return cls(
            MAX_ABSENT_FILES + MAX_PAYLOAD_EXPANSION * count,
            MAX_FILL_NBYTES + MAX_PAYLOAD_EXPANSION * stored,
        )

    def take(self, chunks: Chunks) -> None:
        """Take the absent chunks of one more array; raise if there is no room for them."""
        is_absent = chunks.is_absent
        itemsize = numpy_dtype(chunks.metadata.dtype).itemsize
        # Floats, which do not overflow.
        filled = int(chunks.shape[is_absent].prod(axis=1, dtype=np.float64).sum()) * itemsize
        if filled > self.nbytes:
            raise past_limit(
                f"With {filled} bytes more, the fill value stands for too many", "MAX_FILL_NBYTES"
            )
        self.files -= int(is_absent.sum())
        self.nbytes -= filled


_TEXT = ArrayMetadata(
    3, STRING, (), (), (), "", "", False, False, False, False, False, False, document={}
)
"""A text as an array whose chunk is in memory."""


@mutable
class ArrayContents:
    fills: bool = False
    """True if the fill value stands for absent chunks."""
    arrays: list[Chunks] = field(default_factory=list)
    """The arrays that can be read, by key."""
    faults: dict[str, ReadError] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    uncompared: set[str] = field(default_factory=set)
    """Of the faults, the keys that a checksum may cover."""
    by_key: dict[str, Chunks] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    """The payloads of keys that are text, and not arrays."""
    first: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    """[n + 1] the number of the first entry of each array."""
    is_absent: Bools = field(default_factory=lambda: np.zeros(0, np.bool))
    """[m] True for entries that are absent chunks, by number."""
    ranges: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    """[m, 2] the first byte and the size of the stored bytes of each entry in its file."""
    values: DatabaseValues | None = None
    """The database that has the chunks; None for files."""
    rows: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """[m] the row of each entry among these values; none without a database."""
    is_held: Bools = field(default_factory=lambda: np.zeros(0, np.bool))
    """[m] True for texts, and entries whose elements lie in a node of the database as in memory."""

    def add(self, arrays: Sequence[Description], listing: PathListing) -> None:
        stored = sum(listing.sizes.values())
        room = Allowance.of(len(listing.names), stored)
        for each in sorted(arrays, key=lambda one: one.key):
            try:
                metadata = parse_array(each.data, each.version)
                chunks = _chunks(each, metadata, listing.below(each.path), self.fills, room)
                if self.values is not None:
                    self.values.check(chunks.stored())
                _check_files(chunks, listing)
            except READ_ERRORS as error:
                self.faults[each.key] = error.at(each.document)
                if isinstance(error, UnsupportedError) and may_be_guarded(each.data):
                    self.uncompared.add(each.key)
                continue
            self.arrays.append(chunks)
            self.by_key[each.key] = chunks
            self.findings += _oddities(chunks, listing)

    def table(self, listing: PathListing, metadata: Metadata) -> tuple[ChunkIndex, Ints]:
        """Return the table of contents, and the size of each file."""
        place = np.zeros((1, 0), np.int64)
        self.arrays += [
            Chunks(
                Description(key, "", 3, text), _TEXT, place, place, [STRINGS], np.ones(1, np.bool)
            )
            for key, text in self.texts.items()
        ]
        self.first = np.cumsum([0, *(len(chunks.names) for chunks in self.arrays)])
        about = [(chunks.description, chunks.metadata) for chunks in self.arrays]
        tensors = TensorTable.of((each.key, array.dtype, array.shape) for each, array in about)
        tensor = np.repeat(np.arange(len(tensors)), np.diff(self.first))
        rank = tensors.shapes.shape[1]
        nowhere, neither = np.zeros((0, rank), np.int64), np.zeros(0, np.bool)
        offset = np.concatenate(
            [nowhere, *(widen(chunks.offset, rank, 0) for chunks in self.arrays)]
        )
        shape = np.concatenate([nowhere, *(widen(chunks.shape, rank, 1) for chunks in self.arrays)])
        self.is_absent = np.concatenate([neither, *(chunks.is_absent for chunks in self.arrays)])
        plain = np.concatenate([neither, *(chunks.is_plain for chunks in self.arrays)])
        names = [
            # An absent chunk's file is the description.
            chunks.description.path_of(name) if is_present else chunks.description.document
            for chunks in self.arrays
            for name, is_present in zip(chunks.names, chunks.is_present.tolist(), strict=True)
        ]
        paths, first = self._place(names)
        framed = np.array([array.is_framed for _, array in about], np.bool)[tensor]
        self.is_held = np.array([array is _TEXT for _, array in about], np.bool)[tensor]
        if self.values is not None:
            is_inline = np.append(self.values.file, 0)[self.rows] < 0
            # The checksum of a chunk is read at the end of its file, and a value has none.
            self.is_held |= plain & is_inline & ~framed
            plain &= ~is_inline & ~framed
        files = sorted({*paths})
        number = {name: position for position, name in enumerate(files)}
        file = np.array([number[path] for path in paths], np.int64)
        stored = np.array([listing.sizes.get(name, 0) for name in names], np.int64)
        self.ranges = np.column_stack((first, stored))
        # The number of an entry is its row in this table.
        start = np.where(plain, first, np.arange(len(tensor)))
        texts = np.array([len(each.data) for each, _ in about], np.int64)
        slices = SliceTable.of(tensors, tensor, offset, shape, texts[tensor])
        entries = EntryTable.without_checksums(slices, start, file, plain)
        sizes = np.array([listing.sizes.get(name, 0) for name in files], np.int64)
        faults = cast(dict[str, CheckpointError], self.faults)
        return ChunkIndex(entries, files, metadata, faults, is_framed=framed & plain), sizes

    def _place(self, names: Sequence[str]) -> tuple[Sequence[str], Ints]:
        """Return each entry's file and first byte there; texts are in no database."""
        values = self.values
        if values is None:
            return names, np.zeros(len(names), np.int64)
        self.rows = np.array([values.rows.get(name, -1) for name in names], np.int64)
        places = [*values.files, STRINGS]
        file = np.append(values.file, len(values.files))[self.rows]
        paths = [DATABASE if number < 0 else places[number] for number in file.tolist()]
        return paths, np.append(values.start, 0)[self.rows]

    def array_of(self, number: int) -> tuple[Chunks, int]:
        array = int(np.searchsorted(self.first, number, side="right")) - 1
        return self.arrays[array], number - int(self.first[array])

    def held(self, number: int) -> bytes | memoryview | None:
        """Return the payload of an entry that is in memory: text, or a plain chunk in a node."""
        if not self.is_held[number]:
            return None
        chunks, _ = self.array_of(number)
        return chunks.description.data if chunks.metadata is _TEXT else self.stored(number)

    def stored(self, number: int) -> memoryview | None:
        """Return the stored bytes of a chunk in a node of the database; None for others."""
        return None if self.values is None else self.values.held(int(self.rows[number]))

    def is_guarded(self, key: str) -> bool:
        """Return True if checksums cover every byte of a key, or may cover an unreadable one."""
        if key in self.faults:
            return key in self.uncompared
        return key in self.by_key and self.by_key[key].is_guarded


def _chunks(
    description: Description,
    metadata: ArrayMetadata,
    there: list[str],
    fills: bool,
    room: Allowance,
) -> Chunks:
    """Return the chunks of an array, of which ``there`` are stored, and ``room`` may be absent."""
    counts, names = prod(metadata.counts), {*there}.difference(_OWN)
    may_be_absent = (
        fills and (metadata.has_fill or metadata.version == 2) and not metadata.is_complete
    )
    # No list is made whose length is a claim.
    if counts > len(names) + (max(room.files, 0) if may_be_absent else 0):
        if may_be_absent:
            raise past_limit(
                f"{counts} chunks are claimed, and {len(names)} stored, so that in all arrays "
                "too many are absent",
                "MAX_ABSENT_FILES",
            )
        raise _absent(metadata, names, counts)
    expected = [*metadata.chunk_names()] if counts else []
    is_present = np.array([name in names for name in expected], np.bool)
    if not may_be_absent and not is_present.all():
        raise _absent(metadata, names, counts)
    rank = len(metadata.shape)
    step, extent = np.array(metadata.chunk_shape, np.int64), np.array(metadata.shape, np.int64)
    if counts:
        # Without axes there is one place, which NumPy's indices do not have.
        offset = (
            np.indices(metadata.counts, np.int64).reshape(rank, counts).T * step
            if rank
            else step.reshape(1, 0)
        )
        shape = np.minimum(step, extent - offset)
        chunks = Chunks(description, metadata, offset, shape, expected, is_present)
        room.take(chunks)
        return chunks
    # An array without elements has one slice, which is stored nowhere.
    empty = np.zeros((1, rank), np.int64)
    return Chunks(description, metadata, empty, extent.reshape(1, rank), [""], np.zeros(1, np.bool))


def _absent(metadata: ArrayMetadata, names: set[str], counts: int) -> IncompleteCheckpoint:
    first = next(islice((name for name in metadata.chunk_names() if name not in names), 1), "")
    lost = f"The chunk {first!r}, one of {counts}, is missing."
    return IncompleteCheckpoint(lost, "Copy the checkpoint again, with all its folders.")


def _check_files(chunks: Chunks, listing: PathListing) -> None:
    metadata = chunks.metadata
    nbytes = (
        prod(metadata.chunk_shape) * numpy_dtype(metadata.dtype).itemsize
        + metadata.is_framed * TRAILER_NBYTES
    )
    for name in chunks.stored():
        size = listing.sizes[name]
        if (metadata.is_raw or metadata.is_framed) and size != nbytes:
            error = IncompleteCheckpoint if size < nbytes else InvalidCheckpoint
            raise error(
                f"The chunk {name!r} has {size} bytes in the place of {nbytes}.", COPY_AGAIN
            )
        if nbytes > size * MAX_CODEC_EXPANSION:
            cause = f"The chunk {name!r} claims {nbytes} bytes, and has at most {size}."
            raise distrusted(f"{cause} No codec makes that much of them.")
        if size < metadata.min_nbytes:
            raise incomplete(
                f"The chunk {name!r} has {size} bytes, and its index {metadata.min_nbytes}."
            )


def _oddities(chunks: Chunks, listing: PathListing) -> Iterator[Finding]:
    path = chunks.description.path or "."
    absent = int((~chunks.is_present).sum())
    if absent and prod(chunks.metadata.shape):
        # Without a fill value zarr-python and TensorStore return zeros, and zarr-python omits
        # chunks of zeros.
        fill = (
            "the fill value stands"
            if chunks.metadata.has_fill
            else "there is no fill value, and zeros stand"
        )
        absence = f"{absent} of {len(chunks.names)} chunks are absent; {fill} for them."
        yield Finding(path, absence, False)
    others = {*listing.below(chunks.description.path)}.difference(chunks.names, _OWN)
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        yield Finding(path, f"{min(others)!r}{more} belong to no chunk of the array.", False)
