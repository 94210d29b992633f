"""A native checkpoint that is being written.

Places. Payloads follow each other in the order of the assignment, each at a multiple of
``PAYLOAD_ALIGNMENT``. In the index, tensors are in the order of their keys' bytes, and the entries
of a tensor in the order of their offsets. Both are computed on columns: sorted once, and cut into
blocks.

Commit. Data files have their final names from the start, because a name with a fresh generation in
it means nothing until an index names it. The commit is one rename, of the new index over the old
one. Files that the new index does not name are removed after it, by this writer or, if it dies
before, by the next.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    StorageError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import check_written, discard_files, put_in_place, remove_unnamed
from shardvar.formats.native.entries import RUN_NBYTES, Overview, decode_text, encode_text
from shardvar.formats.native.names import (
    aside_name,
    check_generation,
    data_names,
    is_name_end,
    leftovers,
    native_data_name,
    native_index_name,
)
from shardvar.formats.objects import texts_with_objects
from shardvar.formats.protocol import FileChecksums, Sink, WrittenFiles
from shardvar.layout.dtypes import ITEMSIZES, NAMES, Ints
from shardvar.limits import MAX_FILES
from shardvar.planning.capabilities import Capabilities, check_holds
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable
from shardvar.storage.protocol import Storage
from shardvar.wire.block_file import (
    INDEX_VERSION,
    NAMED_VERSION,
    IndexValue,
    encode_block_file,
    encode_index_block,
    open_block_file,
    pack_strings,
)
from shardvar.wire.crc import CRC32C, Checksum

MAX_SLICE_NBYTES = 1 << 41
"""The largest slice: its checksums take half of the largest block that readers accept."""

CAPABILITIES = Capabilities(
    dtypes=frozenset(NAMES),
    slice_dtypes=frozenset(
        name for name, itemsize in zip(NAMES, ITEMSIZES.tolist(), strict=True) if itemsize
    ),
    max_slice_rank=64,
    empty_slices=True,
    holds_objects=True,
    guards_metadata=True,
    holds_ties=True,
)
"""Everything; only strings and variants, whose elements have no fixed size, are never cut."""

PAYLOAD_ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register, so that a memory-mapped array of any dtype
is aligned."""

_BLOCK_NBYTES = 255 << 10
"""Packed columns of a block, unless a single entry has more; with the names of the columns it is
within 256 KiB."""

_ENTRY_NBYTES = 24  # file 4, start 8, nbytes 8, crc 4
_TENSOR_NBYTES = 10  # key_nbytes 4, dtype 1, rank 1, count 4

_OTHER = "x"
"""Appended to a generation whose name is taken."""


@dataclass(frozen=True, slots=True)
class NativeWriter:
    """The checksums of a data file; its payloads have no frame."""

    run_nbytes: int = RUN_NBYTES
    """Size of a run in bytes."""

    @property
    def crc(self) -> Checksum:
        """The kind of checksum of payloads and runs."""
        return CRC32C

    def checksum_whole(self, dtype: str, count: int, payload: memoryview) -> int:
        """Return the checksum of the payload's bytes, as for any other dtype."""
        return CRC32C.compute(payload)

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Sequence[tuple[int, bytes]]:
        """Return nothing: data files have payloads only."""
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class NativeSink(Sink):
    """A native checkpoint that is being written."""

    storage: Storage = field()
    """The directory for the files."""
    prefix: str
    """The prefix of the files."""
    assignment: Assignment
    """The slices, and the file of each."""
    keys: Sequence[bytes]
    """[n] the keys of the assignment's tensors, as they are stored."""
    overview: Overview
    """The metadata block."""
    start: Ints = field()
    """[m] the first byte of each payload, in bytes of its file."""
    names: Sequence[str]
    """[files] the final names of the data files."""
    asides: Sequence[str] = field()
    """[files] the names under which the data files are written: final unless shares are merged."""
    is_shared: bool = False
    """True where other processes have written the data files, so that they stay after an error."""
    writer: NativeWriter = NativeWriter()
    """The checksums of each file."""
    ties: Mapping[bytes, bytes] = field(default_factory=dict)
    """Further keys, as they are stored, each with the key whose entries it has."""

    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        """Write the index under a temporary name, rename it over the old one, and remove what it
        does not name."""
        # Plan: the index, whole, in memory.
        octets = encode_index(
            self.assignment, self.keys, self.start, self.overview, checksums, self.ties
        )
        aside = aside_name(self.prefix, self.overview.generation)
        data = list(zip(self.asides, self.names, strict=True))
        # Commit, then remove: before the rename, the old index still names the old files.
        put_in_place(
            self.storage,
            data,
            (aside, native_index_name(self.prefix)),
            octets,
            tidy=self._tidy,
            is_shared=self.is_shared,
        )

    def withdraw(self) -> None:
        """Remove the files, unless the index in place names them or cannot be read."""
        if not self.is_in_place():
            aside = aside_name(self.prefix, self.overview.generation)
            discard_files(self.storage, [*self.asides, aside])

    def is_in_place(self) -> bool:
        """Return True if the index in place names the files, or may do so, since the storage does
        not answer.

        In a bucket, which has no lock, another process may have committed the same since this write
        began.
        """
        try:
            return generation_of(self.storage.refreshed(), self.prefix) == self.overview.generation
        except StorageError:
            return True

    def _tidy(self) -> None:
        remove_unnamed(self.storage, lambda names: leftovers(names, self.prefix, self.names))


def encode_index(
    assignment: Assignment,
    keys: Sequence[bytes],
    start: Ints,
    overview: Overview,
    checksums: Sequence[FileChecksums],
    ties: Mapping[bytes, bytes] | None = None,
) -> bytes:
    """Return an index whole: of slices [m] that begin at ``start`` in the files of the overview;
    ``keys`` are the keys of the tensors, as they are stored."""
    rows = _sort_rows(assignment, keys, start, checksums)
    rows = _with_ties(rows, ties) if ties else rows
    version = NAMED_VERSION if overview.file_names else INDEX_VERSION
    return b"".join(encode_block_file(_encode_rows(rows), overview.encode(), version))


def create_native(
    storage: Storage, prefix: str, assignment: Assignment, metadata: Metadata, generation: str
) -> NativeSink:
    """Lay the slices out; ``UnsupportedError`` if the format cannot hold them."""
    for name in (generation, generation + _OTHER):
        check_generation(name)
    _check_assignment(assignment)
    keys = list(map(encode_text, assignment.slices.tensors.keys))
    start, sizes = plan_places(assignment)
    description = metadata.description or assignment.description
    ties = {encode_text(key): encode_text(first) for key, first in metadata.ties.items()}
    user = texts_with_objects(metadata) if metadata.objects else metadata.user
    metadata = Metadata(description, metadata.writer, user)
    # The files of the existing index may have the names of this generation, and then another one is
    # taken: writing these files again would break the old checkpoint before the new one is there.
    names, there = data_names(prefix, generation, assignment.num_files), set(storage.names())
    is_taken = native_index_name(prefix) in there and not there.isdisjoint(names)
    if is_taken and generation_of(storage, prefix) == generation:
        generation += _OTHER
        names = data_names(prefix, generation, assignment.num_files)
    storage.announce(names)
    about = Overview(metadata, generation, sizes)
    return NativeSink(storage, prefix, assignment, keys, about, start, names, names, ties=ties)


def adopt_native(
    storage: Storage, prefix: str, assignment: Assignment, metadata: Metadata, files: WrittenFiles
) -> NativeSink:
    """Return the sink of data files that are written already, numbered as the assignment says.

    Renaming is the same when it is repeated, so a commit that was killed between two files is
    finished by the next one.
    """
    generation = metadata.generation
    check_generation(generation)
    _check_assignment(assignment)
    keys = list(map(encode_text, assignment.slices.tensors.keys))
    # A file has the name that it was written under or, after a commit that was killed, the final
    # one. In a bucket the one that it was written under stays, since a rename there is a copy.
    ends = [name.removeprefix(native_data_name(prefix, "")) for name in files.names]
    are_final = bool(ends) and all(map(is_name_end, ends))
    names = files.names if are_final else data_names(prefix, generation, len(files.names))
    pairs = list(zip(files.names, names, strict=True))
    written = check_written(storage, pairs, files.nbytes)
    storage.announce(names)
    user = texts_with_objects(metadata)
    metadata = Metadata(metadata.description, metadata.writer, user, generation=generation)
    about = Overview(metadata, generation, files.nbytes, file_names=ends if are_final else ())
    return NativeSink(
        storage, prefix, assignment, keys, about, files.start, names, written, is_shared=True
    )


def _check_assignment(assignment: Assignment) -> None:
    """Raise ``UnsupportedError`` unless the format can hold the slices in these files."""
    slices = assignment.slices
    check_holds(slices, CAPABILITIES, "shardvar")
    if assignment.num_files > MAX_FILES:
        cause = f"{assignment.num_files} files are too many; at most {MAX_FILES} are allowed."
        raise UnsupportedError(cause, "Join some.")
    if slices.nbytes.max(initial=0) > MAX_SLICE_NBYTES:
        row = int(slices.nbytes.argmax())
        cause = (
            f"The slice {slices.region(row)} of {slices.key(row)!r} has {slices.nbytes[row]} bytes."
        )
        raise UnsupportedError(
            cause,
            f"At most {MAX_SLICE_NBYTES} bytes are allowed; cut the tensor into smaller slices.",
        )
    cut = (ITEMSIZES[slices.codes()] == 0) & ~slices.is_whole()
    if cut.any():
        cause = f"{slices.key(int(cut.argmax()))!r} is cut, but its payload cannot be divided."
        raise UnsupportedError(cause, "Write it whole.")


def generation_of(storage: Storage, prefix: str) -> str | None:
    """Return the generation of the index in place; None without a readable one."""
    try:
        file = storage.open(native_index_name(prefix))
        try:
            with prefix_errors(file.name):
                return Overview.decode(open_block_file(file.read, file.size).metadata).generation
        finally:
            file.close()
    except (CheckpointError, UnsupportedError):
        return None


def plan_places(assignment: Assignment) -> tuple[Ints, Ints]:
    """Return [m] the first byte of each payload in its file, and [files] the size of each file.

    Laws: within a file, places rise in the order of the assignment; payloads are disjoint; payloads
    that have bytes begin at multiples of ``PAYLOAD_ALIGNMENT``; a file ends with its last payload.
    """
    slices, count = assignment.slices, assignment.num_files
    # Lay all files out as one, file after file: ``ends`` are the ends of the padded payloads.
    # Payloads of 10, 70 and 5 bytes in the files 0, 0, 1 have room 64, 128, 64 and ends 64, 192,
    # 256. File 1 begins at base 192, so its payload begins at 256 - 64 - 192 = 0 in it; file 0 ends
    # with its last payload, at 64 + 70 = 134.
    order, bounds = assignment.by_file()
    file, nbytes = assignment.file[order], slices.nbytes[order]
    room = -(-nbytes // PAYLOAD_ALIGNMENT) * PAYLOAD_ALIGNMENT
    ends = np.cumsum(room)
    base = np.append(0, ends)[bounds[:-1]]
    start = ends - room - base[file]
    sizes = np.zeros(count, np.int64)
    filled = nbytes > 0
    np.maximum.at(sizes, file[filled], (start + nbytes)[filled])
    places = np.empty_like(start)
    # A last payload of 0 bytes must not lie beyond the end of the file.
    places[order] = np.minimum(start, sizes[file])
    return places, sizes


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The entries in the order of the index."""

    slices: SliceTable
    """The slices; their tensors are the ones that have any, in the order of their keys."""
    keys: Sequence[bytes]
    """[n] the keys as they are stored."""
    file: Ints
    """[m] the number of the data file."""
    start: Ints
    """[m] the first byte of the payload in that file."""
    checksum: Ints
    """[m] the CRC32C of the payload."""
    runs: list[bytes]
    """[m] the CRC32C of each run as 32-bit numbers; empty if the payload is one run."""


def _sort_rows(
    assignment: Assignment, keys: Sequence[bytes], start: Ints, checksums: Sequence[FileChecksums]
) -> _Rows:
    """Return the entries in the order of the index; ``keys`` are the keys of the assignment's
    tensors, as stored."""
    slices = assignment.slices
    # Checksums come file by file, and within a file in the order of the assignment: the order of a
    # stable sort by file.
    order = np.argsort(assignment.file, kind="stable")
    given = [(found.payload, found.runs) for found in checksums]
    none = np.zeros(0, np.int64), np.zeros(0, np.uint32)
    of_payloads, of_runs = map(np.concatenate, zip(none, *given, strict=True))
    payload = np.zeros(len(order), np.int64)
    payload[order] = of_payloads
    # Only a payload of several runs has checksums of runs in the index.
    counts = -(-slices.nbytes[order] // RUN_NBYTES)
    if len(of_runs) != counts.sum() and (counts > 1).any():
        raise ArgumentError(f"{len(of_runs)} checksums of runs were given for {counts.sum()} runs.")
    stored, first = of_runs.astype("<u4"), np.cumsum(counts) - counts
    runs = [b""] * len(order)
    for position in np.flatnonzero(counts > 1).tolist():
        mine = slice(first[position], first[position] + counts[position])
        runs[order[position]] = stored[mine].tobytes()
    # The tensors that have slices, in the order of their keys.
    used = np.unique(slices.tensor).tolist()
    tensors = np.array(sorted(used, key=keys.__getitem__), np.int64)
    rank_of = np.zeros(len(keys), np.int64)
    rank_of[tensors] = np.arange(len(tensors))
    tensor = rank_of[slices.tensor]
    # The last key of lexsort is the first criterion: by tensor, then by offset axis after axis,
    # then by shape, which orders empty slices that share an offset with another one.
    order = np.lexsort((*slices.shape.T[::-1], *slices.offset.T[::-1], tensor))
    columns = (slices.offset[order], slices.shape[order], slices.nbytes[order])
    return _Rows(
        SliceTable(slices.tensors.take(tensors), tensor[order], *columns),
        list(map(keys.__getitem__, tensors.tolist())),
        assignment.file[order],
        start[order],
        payload[order],
        list(map(runs.__getitem__, order.tolist())),
    )


def _with_ties(rows: _Rows, ties: Mapping[bytes, bytes]) -> _Rows:
    """Return the entries, and for each further key the entries of its tensor again."""
    number = {key: row for row, key in enumerate(rows.keys)}
    pairs = sorted([*number.items(), *((key, number[first]) for key, first in ties.items())])
    keys, origin = [key for key, _ in pairs], np.array([row for _, row in pairs], np.int64)
    # The entries of a tensor follow one another.
    slices, count = rows.slices, len(rows.keys)
    bounds = np.searchsorted(slices.tensor, np.arange(count + 1))
    taken = np.concatenate([np.arange(*bounds[row : row + 2]) for row in origin.tolist()])
    tensor = np.repeat(np.arange(len(keys)), np.diff(bounds)[origin])
    tensors = replace(slices.tensors.take(origin), keys=[decode_text(key) for key in keys])
    columns = slices.offset[taken], slices.shape[taken], slices.nbytes[taken]
    return _Rows(
        SliceTable(tensors, tensor, *columns),
        keys,
        rows.file[taken],
        rows.start[taken],
        rows.checksum[taken],
        [rows.runs[row] for row in taken.tolist()],
    )


def _encode_rows(rows: _Rows) -> Iterator[tuple[bytes, bytes]]:
    """The blocks of entries, each with its first key."""
    slices, tensors = rows.slices, rows.slices.tensors
    if not len(slices):
        return
    # ``ends`` are the packed sizes up to each entry, where a tensor is counted with its first
    # entry. A block takes entries until they would exceed its size, and at least one; if it begins
    # in the middle of a tensor, it lists that tensor again.
    is_first = np.append(True, slices.tensor[1:] != slices.tensor[:-1])
    nbytes = (
        _ENTRY_NBYTES
        + 16 * tensors.ranks[slices.tensor]
        + np.fromiter(map(len, rows.runs), np.int64)
    )
    own = _TENSOR_NBYTES + 8 * tensors.ranks + np.fromiter(map(len, rows.keys), np.int64)
    ends = np.cumsum(nbytes + np.where(is_first, own[slices.tensor], 0))
    first = 0
    while first < len(slices):
        done = int(ends[first - 1]) if first else 0
        again = 0 if is_first[first] else int(own[slices.tensor[first]])
        last = max(
            first + 1, int(np.searchsorted(ends, done - again + _BLOCK_NBYTES, side="right"))
        )
        yield rows.keys[slices.tensor[first]], _encode_block(rows, first, last)
        first = last


def _encode_block(rows: _Rows, first: int, last: int) -> bytes:
    """Return the entries ``[first, last)``, column by column (``formats.native.entries``)."""
    slices, tensors = rows.slices, rows.slices.tensors
    tensor = slices.tensor[first:last]
    some = slice(int(tensor[0]), int(tensor[-1]) + 1)
    codes, dtype = np.unique(tensors.codes[some], return_inverse=True)
    ranks = tensors.ranks[some]
    # Rows are padded to the highest rank in memory and not on disk: these masks select the numbers
    # of real axes.
    axes = np.arange(tensors.shapes.shape[1])
    is_axis = axes < ranks[:, None]
    is_axis_of_entry = axes < tensors.ranks[tensor][:, None]
    values: dict[str, IndexValue] = {
        **pack_strings("key", rows.keys[some]),
        **pack_strings("dtype_name", [NAMES[code].encode() for code in codes.tolist()]),
        "dtype": dtype.astype("u1"),
        "rank": ranks.astype("u1"),
        "shape": tensors.shapes[some][is_axis].astype("<u8"),
        "count": np.bincount(tensor - some.start).astype("<u4"),
        "offset": slices.offset[first:last][is_axis_of_entry].astype("<u8"),
        "extent": slices.shape[first:last][is_axis_of_entry].astype("<u8"),
        "file": rows.file[first:last].astype("<u4"),
        "start": rows.start[first:last].astype("<u8"),
        "nbytes": slices.nbytes[first:last].astype("<u8"),
        "crc": rows.checksum[first:last].astype("<u4"),
        "run_crc": b"".join(rows.runs[first:last]),
    }
    return encode_index_block(values)
