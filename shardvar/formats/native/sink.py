"""A native checkpoint that is being written.

Places. Payloads follow each other in the order of the assignment, each at a multiple of
``PAYLOAD_ALIGNMENT``. They are computed on columns.

Commit. Data files have their final names from the start, because a name with a fresh generation in
it means nothing until an index names it. The commit is one rename, of the new index over the old
one. Files that the new index does not name are removed after it, by this writer or, if it dies
before, by the next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardvar.errors import (
    CheckpointError,
    StorageError,
    UnsupportedError,
    prefix_errors,
)
from shardvar.formats.files import check_written, discard_files, put_in_place, remove_unnamed
from shardvar.formats.native.index_rows import encode_index
from shardvar.formats.native.names import (
    aside_name,
    check_generation,
    data_names,
    is_name_end,
    leftovers,
    native_data_name,
    native_index_name,
)
from shardvar.formats.native.overview import RUN_NBYTES, Overview, encode_text
from shardvar.formats.objects import texts_with_objects
from shardvar.formats.protocol import FileChecksums, Sink, WrittenFiles
from shardvar.layout.dtypes import ITEMSIZES, NAMES, Ints
from shardvar.limits import MAX_BLOCK_NBYTES, MAX_FILES
from shardvar.planning.capabilities import Capabilities, check_holds
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable
from shardvar.storage.protocol import Storage
from shardvar.wire.block_file import (
    open_block_file,
)
from shardvar.wire.crc import CRC32C, Checksum
from shardvar.wire.digests import check_digests_fit

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
    holds_digests=True,
)
"""Everything; only strings and variants, whose elements have no fixed size, are never cut."""

PAYLOAD_ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register, so that a memory-mapped array of any dtype
is aligned."""

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


def create_native(
    storage: Storage, prefix: str, assignment: Assignment, metadata: Metadata, generation: str
) -> NativeSink:
    """Lay the slices out; ``UnsupportedError`` if the format cannot hold them."""
    for name in (generation, generation + _OTHER):
        check_generation(name)
    _check_assignment(assignment, metadata)
    keys = list(map(encode_text, assignment.slices.tensors.keys))
    start, sizes = plan_places(assignment)
    description = metadata.description or assignment.description
    ties = {encode_text(key): encode_text(first) for key, first in metadata.ties.items()}
    user = texts_with_objects(metadata) if metadata.objects else metadata.user
    metadata = Metadata(description, metadata.writer, user, digests=metadata.digests)
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
    _check_assignment(assignment, metadata)
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
    metadata = replace(metadata, user=user, paths={}, objects={}, ties={})
    about = Overview(metadata, generation, files.nbytes, file_names=ends if are_final else ())
    return NativeSink(
        storage, prefix, assignment, keys, about, files.start, names, written, is_shared=True
    )


def _check_assignment(assignment: Assignment, metadata: Metadata) -> None:
    """Raise ``UnsupportedError`` unless the format can hold the slices in these files."""
    slices = assignment.slices
    if metadata.digests:
        check_digests_fit(metadata.digests, MAX_BLOCK_NBYTES // 2)
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
