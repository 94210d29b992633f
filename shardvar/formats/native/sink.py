"""A native checkpoint that is being written.

Data files carry their final names from the start, for a name with a fresh generation in it means nothing to anybody
until an index names it. The commit is one rename: of the new index over the old one. What the new index does not name
is removed afterwards, by this writer or, should it die here, by the next.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardvar.errors import ArgumentError, CheckpointError, UnsupportedError, prefix_errors
from shardvar.formats.files import put_in_place, remove_unnamed
from shardvar.formats.native.entries import RUN_NBYTES, Overview, encode_text
from shardvar.formats.native.names import MAX_FILES, aside_name, check_generation, data_names, index_name, leftovers
from shardvar.formats.protocol import FileChecksums
from shardvar.layout.dtypes import ITEMSIZES, NAMES, Ints
from shardvar.planning.capabilities import Capabilities, check_holds
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable
from shardvar.storage.protocol import Storage
from shardvar.wire.block_file import IndexValue, encode_block_file, encode_index_block, open_block_file, pack_strings
from shardvar.wire.crc import CRC32C, Checksum

MAX_KEY_NBYTES = (1 << 16) - 1
"""The longest key: so that a block with it stays a block."""

MAX_SLICE_NBYTES = 1 << 41
"""The largest slice: the checksums of its runs take half of the largest block that readers accept."""

CAPABILITIES = Capabilities(
    dtypes=frozenset(NAMES),
    slice_dtypes=frozenset(name for name, itemsize in zip(NAMES, ITEMSIZES.tolist(), strict=True) if itemsize),
    max_slice_rank=64,
    empty_slices=True,
)
"""Everything; only what tells its own size, strings and variants, is never cut."""


_OTHER = "x"
"""Added to a generation whose name is taken."""


@dataclass(frozen=True, slots=True)
class NativeWriter:
    """How a data file is guarded; nothing frames it."""

    run_nbytes: int = RUN_NBYTES
    """The bytes of a run."""

    @property
    def crc(self) -> Checksum:
        """The checksum of payloads and runs."""
        return CRC32C

    def checksum_whole(self, dtype: str, count: int, payload: memoryview) -> int:
        """That of any other payload."""
        return CRC32C.compute(payload)

    def frame(self, slices: SliceTable, start: Ints, checksums: FileChecksums) -> Sequence[tuple[int, bytes]]:
        """Nothing stands around the payloads."""
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class NativeSink:
    """A checkpoint that is being written."""

    storage: Storage
    """Where the files go."""
    prefix: str
    """The checkpoint's name."""
    assignment: Assignment
    """What goes where."""
    keys: Sequence[bytes]
    """The keys of the assignment's tensors, as they are stored."""
    overview: Overview
    """What the index says as a whole."""
    start: Ints
    """[m] where each payload begins in its file."""
    writer: NativeWriter = NativeWriter()
    """How each file is guarded."""

    @property
    def asides(self) -> list[str]:
        """The data files' names, which are final."""
        return data_names(self.prefix, self.overview.generation, self.assignment.num_files)

    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        """Write the index aside, rename it over the old one, and remove what it does not name."""
        rows = sort_rows(self.assignment, self.keys, self.start, checksums)
        octets = b"".join(encode_block_file(encode_rows(rows), self.overview.encode()))
        aside = aside_name(self.prefix, self.overview.generation)
        data = [(name, name) for name in self.asides]
        put_in_place(self.storage, data, (aside, index_name(self.prefix)), octets)
        remove_unnamed(self.storage, lambda names: leftovers(names, self.prefix, self.asides))


def create_sink(
    storage: Storage, prefix: str, assignment: Assignment, metadata: Metadata, generation: str
) -> NativeSink:
    """Lay the slices out; ``UnsupportedError`` where the format cannot hold them."""
    for name in (generation, generation + _OTHER):
        check_generation(name)
    _check_holds(assignment)
    keys = [encode_text(key) for key in assignment.slices.tensors.keys]
    longest = max(map(len, keys), default=0)
    if longest > MAX_KEY_NBYTES:
        raise UnsupportedError(f"A key has {longest} bytes; {MAX_KEY_NBYTES} are the most.", "Choose a shorter one.")
    start, sizes = plan_places(assignment)
    description = metadata.description or assignment.description
    metadata = Metadata(description, metadata.writer, metadata.user)
    fresh = _fresh(storage, prefix, generation)
    return NativeSink(storage, prefix, assignment, keys, Overview(metadata, fresh, sizes), start)


def _check_holds(assignment: Assignment) -> None:
    slices = assignment.slices
    check_holds(slices, CAPABILITIES, "shardvar")
    if assignment.num_files > MAX_FILES:
        raise UnsupportedError(f"{assignment.num_files} files are too many; {MAX_FILES} are the most.", "Join some.")
    if slices.nbytes.max(initial=0) > MAX_SLICE_NBYTES:
        row = int(slices.nbytes.argmax())
        cause = f"The slice {slices.region(row)} of {slices.key(row)!r} has {slices.nbytes[row]} bytes."
        raise UnsupportedError(cause, f"A slice has {MAX_SLICE_NBYTES} at most; cut the tensor into more slices.")
    cut = (ITEMSIZES[slices.codes()] == 0) & ~slices.is_whole()
    if cut.any():
        raise UnsupportedError(f"{slices.key(int(cut.argmax()))!r} is cut, and its payload has no parts.", "Join it.")


def _fresh(storage: Storage, prefix: str, generation: str) -> str:
    """The generation, or one beside it where the index that is there has files of that name.

    Writing these anew would break the old checkpoint before the new one is there.
    """
    try:
        file = storage.open(index_name(prefix))
        try:
            with prefix_errors(file.name):
                old = Overview.decode(open_block_file(file.read, file.size).metadata).generation
        finally:
            file.close()
    except (CheckpointError, UnsupportedError):
        return generation  # there is none, or none that could be broken
    return generation + _OTHER if old == generation else generation


# Where payloads lie in the data files, and the index that says so: pure columns, sorted once, cut into blocks.
#
# Payloads follow each other in the order of the assignment, each at a multiple of ``ALIGNMENT``. In the index, tensors
# stand in the order of their keys' bytes and the entries of a tensor in the order of their offsets.


ALIGNMENT = 64
"""A cache line, and the widest vector register: what a memory-mapped array of any dtype may ask for."""

BLOCK_NBYTES = 255 << 10
"""Packed columns of a block, unless one entry alone has more; with the names of the columns it is within 256 KiB."""

_ENTRY_NBYTES = 24  # file 4, start 8, nbytes 8, crc 4
_TENSOR_NBYTES = 10  # key_nbytes 4, dtype 1, rank 1, count 4


def plan_places(assignment: Assignment) -> tuple[Ints, Ints]:
    """[m] where in its file each payload begins, and [files] the size of each file.

    Laws: within a file, places rise in the order of the assignment; payloads are disjoint; those that have bytes begin
    at multiples of ``ALIGNMENT``; a file ends with its last payload.
    """
    slices, count = assignment.slices, assignment.num_files
    order = np.argsort(assignment.file, kind="stable")
    file, nbytes = assignment.file[order], slices.nbytes[order]
    room = -(-nbytes // ALIGNMENT) * ALIGNMENT
    ends = np.cumsum(room)
    base = np.append(0, ends)[np.searchsorted(file, np.arange(count))]
    start = ends - room - base[file]
    sizes = np.zeros(count, np.int64)
    filled = nbytes > 0
    np.maximum.at(sizes, file[filled], (start + nbytes)[filled])
    places = np.empty_like(start)
    places[order] = np.minimum(start, sizes[file])  # payloads of no bytes may come last, and reach no further
    return places, sizes


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The entries in the order of the index."""

    slices: SliceTable
    """The slices; their tensors are the ones that have any, in order of their keys."""
    keys: Sequence[bytes]
    """[n] the keys as they are stored."""
    file: Ints
    """[m] the number of the data file."""
    start: Ints
    """[m] where the payload begins in it."""
    checksum: Ints
    """[m] the CRC32C of the payload."""
    runs: list[bytes]
    """[m] the CRC32C of each run as 32-bit numbers; empty where there is only one."""


def sort_rows(assignment: Assignment, keys: Sequence[bytes], start: Ints, checksums: Sequence[FileChecksums]) -> Rows:
    """The entries in the order of the index; ``keys`` are those of the assignment's tensors, as they are stored."""
    slices = assignment.slices
    payload, runs = _by_row(assignment, checksums)
    used = np.unique(slices.tensor).tolist()
    tensors = np.array(sorted(used, key=keys.__getitem__), np.int64)
    rank_of = np.zeros(len(keys), np.int64)
    rank_of[tensors] = np.arange(len(tensors))
    tensor = rank_of[slices.tensor]
    order = np.lexsort((*slices.shape.T[::-1], *slices.offset.T[::-1], tensor))
    columns = (slices.offset[order], slices.shape[order], slices.nbytes[order])
    return Rows(
        SliceTable(slices.tensors.take(tensors), tensor[order], *columns),
        [keys[row] for row in tensors.tolist()],
        assignment.file[order],
        start[order],
        payload[order],
        [runs[row] for row in order.tolist()],
    )


def encode_rows(rows: Rows) -> Iterator[tuple[bytes, bytes]]:
    """The blocks of entries, each with its first key."""
    slices, tensors = rows.slices, rows.slices.tensors
    if not len(slices):
        return
    is_first = np.append(True, slices.tensor[1:] != slices.tensor[:-1])
    nbytes = _ENTRY_NBYTES + 16 * tensors.ranks[slices.tensor] + np.fromiter(map(len, rows.runs), np.int64)
    own = _TENSOR_NBYTES + 8 * tensors.ranks + np.fromiter(map(len, rows.keys), np.int64)
    ends = np.cumsum(nbytes + np.where(is_first, own[slices.tensor], 0))
    first = 0
    while first < len(slices):
        done = int(ends[first - 1]) if first else 0
        again = 0 if is_first[first] else int(own[slices.tensor[first]])  # a tensor that goes on is listed anew
        last = max(first + 1, int(np.searchsorted(ends, done - again + BLOCK_NBYTES, side="right")))
        yield rows.keys[slices.tensor[first]], _encode_block(rows, first, last)
        first = last


def _encode_block(rows: Rows, first: int, last: int) -> bytes:
    """The entries ``[first, last)``, column by column (``shardvar.formats.native.entries``)."""
    slices, tensors = rows.slices, rows.slices.tensors
    tensor = slices.tensor[first:last]
    some = slice(int(tensor[0]), int(tensor[-1]) + 1)
    codes, dtype = np.unique(tensors.codes[some], return_inverse=True)
    ranks = tensors.ranks[some]
    axes = np.arange(tensors.shapes.shape[1])
    is_axis, is_axis_of_entry = (axes < column[:, None] for column in (ranks, tensors.ranks[tensor]))
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


def _by_row(assignment: Assignment, checksums: Sequence[FileChecksums]) -> tuple[Ints, list[bytes]]:
    """[m] each payload's checksum, and its runs' where there are several, from those of the files."""
    order = np.argsort(assignment.file, kind="stable")
    payload = np.zeros(len(order), np.int64)
    payload[order] = np.concatenate([np.zeros(0, np.int64), *(found.payload for found in checksums)])
    stored = np.concatenate([np.zeros(0, np.uint32), *(found.runs for found in checksums)]).astype("<u4")
    counts = -(-assignment.slices.nbytes[order] // RUN_NBYTES)
    if len(stored) != counts.sum() and (counts > 1).any():
        raise ArgumentError(f"{len(stored)} checksums of runs were given for {counts.sum()} runs.")
    first = np.cumsum(counts) - counts
    runs = [b""] * len(order)
    for position in np.flatnonzero(counts > 1).tolist():
        runs[order[position]] = stored[first[position] : first[position] + counts[position]].tobytes()
    return payload, runs
