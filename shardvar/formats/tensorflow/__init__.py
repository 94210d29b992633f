"""TensorFlow's V2 checkpoints, called tensor bundles, read and written without TensorFlow.

contents    file names, and what a person may type for a checkpoint; the index: its messages, and
            its entries, which are tensors and slices

Here are an open bundle, its table of contents with the laws checked, and writing.

Contents. The entries become columns, and laws are checked on columns: sizes follow from dtype and
shape, payloads lie within existing files, slices tile. A key that breaks a law is listed with its
fault, and all others can be read. Data files are opened at once for their sizes, so that memory is
never allocated for a false claim, and they stay open.

Payloads. Little-endian elements are plain, and so are the bytes of strings and variants; but a
bundle's checksum of these does not cover their bytes as they are, so this source compares it, as
soon as the last byte was read. Elements of a big-endian bundle are reversed while they are read,
and their checksum is compared in the same way, over the bytes of the file.

Replaced files. The names of data files recur every other time that a checkpoint is overwritten. So
the files are opened first, and then the index must still be the same; otherwise both
are read again. An open file keeps its bytes when the checkpoint is overwritten, and a file that is
opened later must be the same (``DataFiles``).
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from shardvar.errors import (
    CheckpointError,
    MalformedCheckpoint,
    OutOfBounds,
    UnsupportedError,
    prefix_errors,
    replaced_error,
)
from shardvar.formats.files import ATTEMPTS, DataFiles, FileSource, is_replaced
from shardvar.formats.listing import read_swapped
from shardvar.formats.protocol import (
    FileChecksums,
    FileWriter,
    Finding,
    NewCheckpoint,
    SharedFormat,
)
from shardvar.formats.sinks import CommitSteps, SetSink, aside_names, take_away, temporary_files
from shardvar.formats.tensorflow.contents import (
    ENUMS,
    HEADER_KEY,
    BundleHeader,
    bundle_index_name,
    check_readable,
    column_of,
    data_files,
    data_name,
    encode_head,
    encode_header,
    encode_place,
    encode_slices,
    find_bundles,
    find_tensors,
    read_bundle,
    slice_key,
    slice_table,
)
from shardvar.formats.unfinished import share_files, share_prefix
from shardvar.layout.dtypes import ITEMSIZES, NAMES, STRING, VARIANT, Ints, code, numpy_dtype
from shardvar.layout.region import Region
from shardvar.planning.index import (
    NO_CHECKSUM,
    OBJECTS,
    EntryTable,
    Metadata,
    TableIndex,
    find_faults,
    find_shared,
)
from shardvar.planning.slices import Capabilities, SliceTable, check_holds
from shardvar.records import entity, field, frozen, replace
from shardvar.storage.concurrency import without_collection
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire import strings
from shardvar.wire.crc import CRC32C, mask, unmask
from shardvar.wire.damage import (
    WRITE_AGAIN,
    badly_written,
    corrupt,
    decoding,
    incomplete,
    invalid,
    past_limit,
)
from shardvar.wire.sstable import encode_table

# String tensors that a bundle has in slices, as one payload each; and payloads that are made as a
# whole.
#
# TensorFlow saves the shards of a string variable as slices, and cannot join them. The place of an
# element in a payload of strings follows from the lengths of all elements before it, so the engine
# moves such a payload whole, and the slices of a tensor are one entry here:
#
#     payload of a slice     lengths | checksum of the lengths | bytes
#     payload of the entry   the same, of all elements in the C order of the tensor
#
# The lengths and bytes come from the slices, and there is one checksum of 4 bytes: slices of 9 and 12
# bytes are a payload of 5 + 8 + 4 = 17.

_Place = tuple[int, int, int]
"""The file, start and size of an entry."""
Joined = dict[_Place, Ints]
"""The rows of the slices of a tensor, by the place of its entry: a caller may have renamed keys."""


_MOST_KEPT = 8


@frozen
class MadePayloads:
    """Payloads that are made whole and read by blocks; each is kept until its last byte is read."""

    kept: dict[_Place, bytes] = field(default_factory=dict)

    def read(
        self, place: _Place, start: int, buffer: memoryview, make: Callable[[], bytes]
    ) -> None:
        payload = self.kept.pop(place, None) or make()
        stop = start + len(buffer)
        buffer[:] = memoryview(payload)[start:stop]
        if stop < len(payload):
            while len(self.kept) >= _MOST_KEPT:
                self.kept.pop(next(iter(self.kept)), None)
            self.kept[place] = payload


def join_strings(
    stored: EntryTable, faults: dict[str, CheckpointError], taken: Collection[_Place], index: str
) -> tuple[EntryTable, Joined]:
    """Return the entries, with one for the slices of each string tensor, at the first one's place.

    Keys in ``faults`` stay as they are, since their slices may not tile. A key is added whose entry
    would have the place of another one: it is in ``taken``, or was given to another tensor.
    """
    slices = stored.slices
    order, bounds = slices.by_tensor()
    is_string = slices.tensors.codes == code(STRING)
    chosen = [
        tensor
        for tensor in np.flatnonzero(is_string & (np.diff(bounds) > 1)).tolist()
        if slices.tensors.keys[tensor] not in faults
    ]
    if not chosen:
        return stored, {}
    joined: Joined = {}
    nbytes, offset, shape = slices.nbytes.copy(), slices.offset.copy(), slices.shape.copy()
    is_kept = np.ones(len(stored), np.bool)
    for tensor in chosen:
        rows = order[bounds[tensor] : bounds[tensor + 1]]
        first = int(rows[0])
        # A slice without elements may have no checksum either.
        size = (
            int(np.maximum(slices.nbytes[rows] - strings.WORD_NBYTES, 0).sum())
            + strings.WORD_NBYTES
        )
        place = *stored.place(first), size
        if place in joined or (place in taken and size != nbytes[first]):
            error = invalid("Another tensor begins with the same bytes.")
            faults[slices.tensors.keys[tensor]] = error.at(index, repr(slices.tensors.keys[tensor]))
            continue
        joined[place] = rows
        nbytes[first], offset[first], shape[first] = size, 0, slices.tensors.shapes[tensor]
        is_kept[rows[1:]] = False
    table = SliceTable(slices.tensors, slices.tensor, offset, shape, nbytes)
    return replace(stored, slices=table).take(np.flatnonzero(is_kept)), joined


def join_payloads(
    parts: Iterable[tuple[Region, bytes]], shape: tuple[int, ...], nbytes: int
) -> bytes:
    """Return the payload of a string tensor from the payloads of its slices, which tile it."""
    cause = f"No array can have the shape {shape}"
    with decoding(lambda error: invalid(f"{cause} ({error})."), ValueError):
        whole = np.empty(shape, object)
    for region, payload in parts:
        whole[region.slices] = strings.decode(payload, region.shape)
    payload = strings.encode(whole)
    # A length may be written in more bytes than it needs.
    if len(payload) != nbytes:
        raise badly_written(f"Its slices are {len(payload)} bytes when joined, and not {nbytes}.")
    return payload


_VARIANT = code(VARIANT)


def _read_index(storage: Storage, prefix: str) -> "BundleSource":
    # Columns: one row a stored slice, in the order of the tensors.
    contents = read_bundle(storage, prefix)
    tensors = find_tensors(contents)
    slices, rows = slice_table(contents, tensors)
    columns = [contents.entries[row] for row in rows]
    shard = column_of(entry.shard for entry in columns)
    start = column_of(entry.offset for entry in columns)
    stored = column_of(entry.size for entry in columns)
    crc: Ints = unmask(column_of(entry.crc for entry in columns).astype(np.uint32)).astype(np.int64)
    numbers, file = np.unique(shard, return_inverse=True)
    files = [data_name(prefix, number, contents.header.num_shards) for number in numbers.tolist()]
    itemsize = ITEMSIZES[slices.codes()]
    plain = (itemsize == 1) | (itemsize > 1) & (not contents.header.is_big_endian)
    entries = EntryTable(slices, file, start, np.where(plain, crc, NO_CHECKSUM), plain)

    # Laws: of each entry, of each entry with its file, and of all slices of a tensor. The first
    # fault of a key counts.
    faults = _FaultFinder(tensors.faults, entries, contents.place)
    _check_numbers(faults, stored, shard, contents.header)
    data = DataFiles(storage, files)
    sizes, unreadable = np.full(len(files), -1, np.int64), dict[int, CheckpointError]()
    for number in range(len(files)):
        try:
            sizes[number] = data.open(number).size
        except CheckpointError as fault:
            unreadable[number] = fault
    _check_places(faults, files, sizes, unreadable)
    for key, error in find_faults(slices).items():
        faults.errors.setdefault(key, error.at(contents.place))
    faults.add(
        find_shared(entries, sizes),
        lambda row: past_limit(
            f"Its bytes at offset {start[row]} also belong to other tensors, and the payloads of "
            "the file are many times its size",
            "MAX_PAYLOAD_EXPANSION",
        ),
    )

    guards = _find_guards(faults, crc)
    header = contents.header
    listed, joined = join_strings(entries, faults.errors, guards, contents.place)
    table = TableIndex(listed, files, Metadata(generation=header.generation), faults.errors)
    is_big = header.is_big_endian
    return BundleSource(
        storage, prefix, table, contents.file, data, guards, is_big, sizes, entries, joined
    )


def _find_guards(faults: "_FaultFinder", crc: Ints) -> dict[tuple[int, int, int], int]:
    """Return the checksums of payloads that are not plain, by place, since keys may be renamed."""
    entries = faults.entries
    others = np.flatnonzero(~entries.plain)
    columns = (entries.file, entries.start, entries.slices.nbytes, crc)
    guards: dict[tuple[int, int, int], int] = {}
    differs = np.zeros(len(entries), np.bool)
    for row, file, start, nbytes, value in zip(
        others.tolist(), *(column[others].tolist() for column in columns), strict=True
    ):
        differs[row] = guards.setdefault((file, start, nbytes), value) != value and nbytes > 0
    cause = "Another tensor has the same bytes and a different checksum."
    faults.add(differs, lambda _row: invalid(cause))
    return guards


@entity
class _FaultFinder:
    """The keys that cannot be read, collected law by law."""

    errors: dict[str, CheckpointError]
    entries: EntryTable
    place: str
    """The path of the index file."""

    def add(self, rows: npt.NDArray[np.bool], reason: Callable[[int], CheckpointError]) -> None:
        """Note the error for the key of each marked row that has none yet."""
        for row in np.flatnonzero(rows).tolist():
            key = self.entries.slices.key(row)
            if key not in self.errors:
                error = reason(row)
                self.errors[key] = error.at(self.place, repr(key))


def _check_numbers(faults: _FaultFinder, stored: Ints, shard: Ints, header: BundleHeader) -> None:
    """Note payloads whose size contradicts dtype and shape, or outside the numbered files."""
    slices = faults.entries.slices
    codes = slices.codes()
    # A string takes a byte for its length at least, and all of them 4 bytes for a checksum. The
    # number of elements is a float, which cannot overflow: the shape of a string tensor is not
    # bounded by its size.
    count = np.prod(slices.shape, axis=1, dtype=np.float64)
    least = np.where(count == 0, 0, count + 4)
    whole = ITEMSIZES[codes] == 0
    faults.add(
        np.where(whole, stored < least, stored != slices.nbytes),
        lambda row: invalid(
            f"{int(stored[row])} bytes are stored, but the shape {slices.region(row).shape} needs "
            f"{'at least ' if whole[row] else ''}{int(least[row] if whole[row] else slices.nbytes[row])}."
        ),
    )
    faults.add(
        (codes == _VARIANT) & header.is_big_endian,
        lambda _row: invalid("Variants of a big-endian checkpoint cannot be copied."),
    )
    faults.add(
        (shard < 0) | (shard >= header.num_shards),
        lambda row: invalid(f"It is in data file {int(shard[row])} of {header.num_shards}."),
    )
    faults.add(
        faults.entries.start < 0,
        lambda row: OutOfBounds(
            f"It begins at offset {int(faults.entries.start[row])} of its file.", WRITE_AGAIN
        ),
    )


def _check_places(
    faults: _FaultFinder, files: list[str], sizes: Ints, unreadable: dict[int, CheckpointError]
) -> None:
    """Note payloads beyond their file: of a file that was cut short, or of a wrong index."""
    # In a file of 100 bytes that was cut short, the first payload with missing bytes begins at or
    # before 100, because payloads have no gaps between them. If it begins after 100, the index is
    # wrong.
    entries = faults.entries
    size = sizes[entries.file]
    faults.add(
        np.isin(entries.file, list(unreadable)), lambda row: unreadable[int(entries.file[row])]
    )
    beyond = (entries.start >= 0) & (size >= 0) & (entries.slices.nbytes > size - entries.start)
    # By file: the first byte of the first payload with missing bytes, and the end of the last one.
    first = np.full(len(files), np.iinfo(np.int64).max)
    np.minimum.at(first, entries.file[beyond], entries.start[beyond])
    stop = np.zeros(len(files), np.int64)
    np.maximum.at(stop, entries.file[beyond], entries.start[beyond] + entries.slices.nbytes[beyond])

    def reason(row: int) -> CheckpointError:
        number, start = entries.place(row)
        if first[number] <= size[row]:
            return incomplete(
                f"{files[number]} has {size[row]} bytes, but the index says at least "
                f"{stop[number]}."
            ).in_file(files[number])
        cause = (
            f"{files[number]} has {size[row]} bytes, too few for {entries.slices.nbytes[row]} at "
            f"offset {start}."
        )
        return OutOfBounds(cause, WRITE_AGAIN)

    faults.add(beyond, reason)


_UNITS = {"qint16": 2, "quint16": 2, "qint32": 4}
"""Bytes of an element, for dtypes that NumPy does not have."""


@entity
class BundleSource(FileSource):
    storage: Storage
    prefix: str
    index: TableIndex = field()
    file: ReadableFile
    """The index file, open."""
    data: DataFiles = field()
    guards: dict[tuple[int, int, int], int]
    """(file, start, nbytes) -> checksum, of the payloads that are not plain."""
    is_big_endian: bool
    sizes: Ints
    """[files] the size of each data file that entries name; -1 if it cannot be opened."""
    stored: EntryTable
    """The stored slices; the table of contents has a string tensor's slices as one."""
    joined: Joined
    """The rows of ``stored`` that are one entry of the table of contents."""
    made: MadePayloads = field(default_factory=MadePayloads)

    crc = CRC32C
    bare_index = ""  # each block of the index has a checksum

    def read_into(self, entries: EntryTable, row: int, start: int, buffer: memoryview) -> None:
        file, begin = entries.place(row)
        nbytes = int(entries.slices.nbytes[row])
        dtype = entries.slices.dtype(row)
        is_stored = entries is self.stored
        slices = None if is_stored else self.joined.get((file, begin, nbytes))
        if slices is not None and dtype == STRING:
            self.made.read(
                (file, begin, nbytes), start, buffer, lambda: self._join(slices.tolist(), nbytes)
            )
            return
        with prefix_errors(f"{entries.slices.key(row)!r}"):
            # Read: ``begin`` counts in the file, ``start`` in the payload.
            if entries.plain[row] or not self.is_big_endian:
                self.read_span(file, begin + start, buffer)
            elif dtype == STRING:
                stored = partial(self.data.open(file).read, begin, nbytes)
                made = lambda: strings.from_big_endian(stored(), _count(entries, row))  # noqa: E731
                self.made.read((file, begin, nbytes), start, buffer, made)
            else:
                # Words that are reversed together: an element, or half of a complex one.
                kind = None if dtype in _UNITS else numpy_dtype(dtype)
                unit = _UNITS[dtype] if kind is None else kind.itemsize // (1 + (kind.kind == "c"))
                read_swapped(self.read_span, file, begin, start, buffer, unit)
            # Check: with the last byte of a payload that is not plain. The bytes of the file are
            # looked at again for that unless the buffer has them all.
            if not entries.plain[row] and start + len(buffer) == nbytes:
                is_payload = len(buffer) == nbytes and not self.is_big_endian
                checked = buffer if is_payload else self.data.view(file, begin, begin + nbytes)
                self._check(entries, row, checked)

    def close(self) -> None:
        self.made.kept.clear()
        self.data.close()
        self.file.close()

    def findings(self) -> Sequence[Finding]:
        """Return data files outside the index, and bytes after the last payload of a file."""
        stop, stored = np.zeros(len(self.sizes), np.int64), self.stored
        np.maximum.at(stop, stored.file, stored.start + stored.slices.nbytes)
        findings = [
            Finding(
                name, f"The last {size - end} of its {size} bytes do not belong to a tensor.", False
            )
            for name, size, end in zip(
                self.index.files, self.sizes.tolist(), stop.tolist(), strict=True
            )
            if size > end
        ]
        for name, _ in data_files(self.prefix, self.storage.names()):
            if name not in self.index.files:
                cause = "The index has no tensor in this data file."
                findings.append(Finding(name, cause, False))
        return findings

    def _join(self, rows: Sequence[int], nbytes: int) -> bytes:
        stored = self.stored

        def read(row: int) -> tuple[Region, bytes]:
            payload = bytearray(int(stored.slices.nbytes[row]))
            self.read_into(stored, row, 0, memoryview(payload))
            return stored.slices.region(row), bytes(payload)

        shape = stored.slices.tensors.shape(int(stored.slices.tensor[rows[0]]))
        parts = [read(row) for row in rows]
        with prefix_errors(f"{stored.slices.key(rows[0])!r}"):
            return join_payloads(parts, shape, nbytes)

    def _check(self, entries: EntryTable, row: int, stored: memoryview) -> None:
        if not len(stored):
            return
        file, start = entries.place(row)
        expected = self.guards[file, start, len(stored)]
        dtype, count = entries.slices.dtype(row), _count(entries, row)
        try:
            checksum = _checksum(dtype, count, stored, ">" if self.is_big_endian else "<")
            found = "" if checksum == expected else f"the checksum {checksum:08x}"
        except MalformedCheckpoint:  # strings that cannot be decoded
            found = "no checksum"
        if found:
            raise corrupt(
                f"{self.data.open(file).name}: the {len(stored)} bytes at offset {start} have "
                f"{found}, but the index gives {expected:08x}."
            )


def _checksum(dtype: str, count: int, payload: memoryview, byteorder: str = "<") -> int:
    if dtype == STRING and len(payload):
        return strings.bundle_checksum(payload, count, byteorder)
    if dtype == VARIANT:
        return strings.variant_checksum(payload, count)
    return CRC32C.compute(payload)


def _count(entries: EntryTable, row: int) -> int:
    return entries.slices.region(row).size


SLICE_DTYPES = frozenset(
    "float32 float64 int8 int16 int32 int64 uint8 bool complex64 complex128 bfloat16 qint8 quint8 "
    "qint32 "
    "int4 uint4".split()
)
"""The dtypes whose slices TensorFlow joins when it reads them (HANDLE_COPY in tensor_bundle.cc)."""

CAPABILITIES = Capabilities(
    dtypes=frozenset(ENUMS),
    slice_dtypes=SLICE_DTYPES,
    max_slice_rank=8,  # kTensorSliceMaxRank: TensorFlow aborts when it reads more axes
    holds_objects=True,
    guards_metadata=True,
    holds_texts=False,
    objects_in_tensor=True,
)


# Writing a tensor bundle that TensorFlow restores.
#
# Payloads follow each other in the order of the assignment, without gaps, as TensorFlow writes them.
# For the same entries, the index has the same bytes as TensorFlow's.
#
# The names of data files are fixed apart from the count in them, and the index gives the right count.
# So a checkpoint is overwritten with a count that is not in use: the new files lie next to the old
# ones until the new index is renamed over the old index. In that one step the new checkpoint replaces
# the old one.


@frozen
class BundleWriter(FileWriter):
    """The checksums of a data file; its payloads have no frame."""

    def checksum_whole(self, dtype: str, count: int, payload: memoryview) -> int:
        return _checksum(dtype, count, payload)


@entity(kw_only=True)
class BundleSink(SetSink):
    keys: list[bytes]  # [n] the tensors' names as they are stored

    def index(self, checksums: Sequence[FileChecksums], there: list[str]) -> CommitSteps:
        prefix, crc = self.new.name, self.by_row(checksums)
        num_files = self.new.assignment.num_files + bool(self.objects)
        # The count in the names of the data files: their number, or the next that is unused.
        count, has_index = max(num_files, 1), bundle_index_name(prefix) in there
        taken = {count for _, count in data_files(prefix, there)} if has_index else set()
        while count in taken:
            count += 1
        finals = [data_name(prefix, number, count) for number in range(num_files)]
        asides = [*self.asides, *(self.objects or ())[:1]]
        entries = [*self._entries(crc)]
        if self.objects:
            payload = self.objects[1]
            checksum = mask(strings.bundle_checksum(payload, 1))
            place = encode_place(self.new.assignment.num_files, 0, len(payload), checksum)
            entries.append((OBJECTS.encode(), encode_head(ENUMS[STRING], ()) + place))
        index = encode_table([(HEADER_KEY, encode_header(count, self.new.run)), *sorted(entries)])
        tidy = self.sweep(lambda names: unnamed_files(prefix, names, finals))
        renames = list(zip(asides, finals, strict=True))
        return CommitSteps(renames, (self.index_aside, bundle_index_name(prefix)), index, tidy)

    def _entries(self, crc: Ints) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values of the index, not yet sorted."""
        slices = self.new.assignment.slices
        tensors = slices.tensors
        # The rows of tensor t are rows[bounds[t] : bounds[t + 1]].
        order, ends = slices.by_tensor()
        bounds = ends.tolist()
        whole = slices.is_whole().tolist()
        dtypes = [ENUMS[tensors.dtype(row)] for row in range(len(tensors))]
        # Few combinations of dtype and shape occur in a model, so their encoding is cached.
        heads: dict[tuple[int, tuple[int, ...]], bytes] = {}
        columns = (self.new.assignment.file, self.start, slices.nbytes, mask(crc.astype(np.uint32)))
        places = [
            encode_place(*place)
            for place in zip(*(column.tolist() for column in columns), strict=True)
        ]
        rows = order.tolist()
        for tensor, key in enumerate(self.keys):
            mine = rows[bounds[tensor] : bounds[tensor + 1]]
            shape = tensors.shape(tensor)
            if (dtypes[tensor], shape) not in heads:
                heads[dtypes[tensor], shape] = encode_head(dtypes[tensor], shape)
            head = heads[dtypes[tensor], shape]
            if len(mine) == 1 and whole[mine[0]]:
                yield key, head + places[mine[0]]
            elif mine:
                yield from self._sliced(key, dtypes[tensor], head, mine, places)

    def _sliced(
        self, key: bytes, dtype: int, head: bytes, rows: list[int], places: list[bytes]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the full entry of a tensor, and the entries of its slices (``contents``)."""
        slices = self.new.assignment.slices
        rank = int(slices.tensors.ranks[slices.tensor[rows[0]]])
        shapes = slices.shape[rows, :rank].tolist()
        starts = slices.offset[rows, :rank].tolist()
        extents = [
            tuple(zip(start, shape, strict=True))
            for start, shape in zip(starts, shapes, strict=True)
        ]
        # The full entry has the file of its first slice, as TensorFlow's merge leaves it; readers
        # ignore it.
        place = encode_place(int(self.new.assignment.file[rows[0]]), 0, 0, 0)
        yield key, head + place + encode_slices(extents)
        for row, shape, extent in zip(rows, shapes, extents, strict=True):
            yield slice_key(key, extent), encode_head(dtype, shape) + places[row]


def _encode_key(key: str) -> bytes:
    # An empty name is the header's, and names with a zero byte first are slices'.
    try:
        encoded = key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise UnsupportedError(
            f"{key!r} cannot be encoded as a name.", "Rename the tensor."
        ) from error
    if encoded[:1] in (b"", b"\x00"):
        raise UnsupportedError(f"{key!r} is a name that TensorFlow reserves.", "Rename the tensor.")
    return encoded


def unnamed_files(prefix: str, names: Sequence[str], finals: Sequence[str]) -> list[str]:
    """Return data files outside the index, and dead writers' temporary files."""
    old = {name for name, _ in data_files(prefix, names)}.difference(finals)
    asides = temporary_files(re.escape(prefix) + r"\.(?:data-\d{5,}|index)", names)
    return [*old, *asides, *share_files(names, share_prefix(prefix, "tensorflow"))]


@frozen
class TensorFlowFormat(SharedFormat):
    """TensorFlow's V2 format; its methods name a checkpoint by its prefix."""

    name: str = "tensorflow"
    capabilities: Capabilities = CAPABILITIES

    # Also the prefixes of V1, which ``open`` refuses.
    locate = staticmethod(find_bundles)

    def open(self, storage: Storage, name: str) -> BundleSource:
        for _ in range(ATTEMPTS):
            with without_collection():
                source = _read_index(storage, name)
            if not is_replaced(storage, bundle_index_name(name), source.file):
                return source
            source.close()
        raise replaced_error(source.file.name)

    def lay_out(self, new: NewCheckpoint) -> BundleSink:
        prefix, slices = new.name, new.assignment.slices
        asides = aside_names(new, lambda number: f"{prefix}.data-{number:05}")
        check_readable(prefix)
        check_holds(slices, self.capabilities, self.name)
        held = np.array([name in self.capabilities.slice_dtypes for name in NAMES])
        refused = ~held[slices.codes()] | (
            slices.tensors.ranks[slices.tensor] > self.capabilities.max_slice_rank
        )
        refused |= (slices.shape == 0).any(axis=1)
        for row in np.flatnonzero(refused & ~slices.is_whole()).tolist():
            raise UnsupportedError(
                f"TensorFlow cannot read the slice {slices.region(row)} of {slices.key(row)!r} "
                f"({slices.dtype(row)}) back.",
                "Write the tensor whole.",
            )
        from shardvar.formats.objects import document_of  # of a write

        text, aside = (
            document_of(new.metadata, slices.tensors.keys),
            f"{prefix}.index.{new.generation}",
        )
        # The payload of a text as a string tensor without axes.
        payload = strings.encode(np.array(text.encode("ascii"), object)) if text else b""
        return BundleSink(
            new=new,
            asides=asides,
            start=new.assignment.starts(slices.nbytes) if new.files is None else new.files.start,
            writer=BundleWriter(),
            index_aside=f"{aside}.tmp",
            objects=(f"{aside}o.tmp", payload) if payload else None,
            keys=[_encode_key(key) for key in slices.tensors.keys],
        )

    def adopts_objects(self) -> bool:
        """Return True: the commit writes them into another file."""
        return True

    def remove(self, storage: Storage, name: str) -> None:
        index = bundle_index_name(name)
        take_away(
            storage, [(index, f"{index}.removed.tmp")], lambda names: unnamed_files(name, names, ())
        )


FORMAT = TensorFlowFormat()
