"""A native checkpoint that is being written.

Places. Payloads follow each other in the order of the assignment, each at a multiple of
``PAYLOAD_ALIGNMENT``. They are computed on columns.

Commit. Data files have their final names from the start, because a name with a fresh generation in
it means nothing until an index names it. The commit is one rename, of the new index over the old
one. Files that the new index does not name are removed after it, by this writer or, if it dies
before, by the next; files that another checkpoint needs stay (``references``).
"""

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from shardvar.errors import (
    CheckpointError,
    StorageError,
    UnsupportedError,
)
from shardvar.formats.files import check_written, discard_files, put_in_place, remove_unnamed
from shardvar.formats.native.index_rows import encode_index
from shardvar.formats.native.names import (
    aside_name,
    check_generation,
    data_names,
    has_marks,
    has_neighbours,
    is_name_end,
    leftovers,
    mark_name,
    marks,
    native_data_name,
    native_index_name,
    owner_of,
)
from shardvar.formats.native.overview import RUN_NBYTES, Overview, encode_text
from shardvar.formats.native.references import (
    check_in_place,
    find_needs,
    freed_of,
    names_in_place,
    names_of_others,
    read_overview,
    release,
    release_only,
    write_mark,
)
from shardvar.formats.objects import texts_with_objects
from shardvar.formats.protocol import FileChecksums, FileWriter, Sink, WrittenFiles
from shardvar.layout.dtypes import ITEMSIZES, NAMES, Ints
from shardvar.limits import MAX_BLOCK_NBYTES, MAX_FILES
from shardvar.planning.capabilities import Capabilities, check_holds
from shardvar.planning.index import Metadata, References
from shardvar.planning.plan import Assignment
from shardvar.storage.protocol import Storage
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
    holds_references=True,
)
"""Everything; only strings and variants, whose elements have no fixed size, are never cut."""

PAYLOAD_ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register, so that a memory-mapped array of any dtype
is aligned."""

_OTHER = "x"
"""Appended to a generation whose name is taken."""


@dataclass(frozen=True, slots=True)
class NativeWriter(FileWriter):
    """The checksums of a data file; its payloads have no frame."""

    @property
    def run_nbytes(self) -> int:
        """Size of a run in bytes."""
        return RUN_NBYTES


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
    references: References | None = None
    """The slices whose bytes lie in files of an older checkpoint."""
    digests: NDArray[np.uint8] | None = None
    """[m] the digests of the payloads, as in ``EntryTable``."""
    token: str = ""
    """The end of the mark's name, after the generation."""

    @property
    def _mark(self) -> str:
        """The mark of the files that the save needs."""
        return mark_name(self.prefix, "needs", self.overview.generation + self.token)

    @property
    def named(self) -> list[str]:
        """All data files that the index names."""
        return [*self.names, *(self.references.files if self.references else ())]

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Keep the files of the older checkpoint from being removed until the commit, which removes
        the mark."""
        if self.references is None:
            yield
            return
        mark = self._mark
        try:
            write_mark(self.storage, mark, self.references.files)
            check_in_place(self.storage, self.references)
            yield
        except BaseException:
            # Removals that saw the mark have left the files to this save.
            discard_files(self.storage, [mark])
            with suppress(CheckpointError, StorageError):
                discard_files(self.storage, release_only(self.storage, self.references.files))
            raise

    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        """Write the index under a temporary name, rename it over the old one, and remove what it
        does not name."""
        # Plan: the index, whole, in memory.
        referred = self.references.entries if self.references else None
        octets = encode_index(
            self.assignment,
            self.keys,
            self.start,
            self.overview,
            checksums,
            self.ties,
            referred,
            self.digests,
        )
        freed = set[str]()
        there = self.storage.names()
        if native_index_name(self.prefix) in there and has_neighbours(there, self.prefix):
            freed = {*names_of_others(self.storage, self.prefix)} - {*self.named}
        if freed:
            gone = mark_name(self.prefix, "gone", self.overview.generation)
            write_mark(self.storage, gone, freed)
        aside = aside_name(self.prefix, self.overview.generation)
        data = list(zip(self.asides, self.names, strict=True))
        # Commit, then remove: before the rename, the old index still names the old files.
        put_in_place(
            self.storage,
            data,
            (aside, native_index_name(self.prefix)),
            octets,
            tidy=lambda: self._tidy(freed),
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

    def _tidy(self, freed: Collection[str]) -> None:
        with suppress(StorageError):
            there = self.storage.names()
            left: list[str] = leftovers(there, self.prefix, self.named)
            done: list[str] = []
            is_asked = bool(freed) or has_marks(there) or any(map(owner_of, left))
            # In a bucket, others may have written since the names were listed.
            if is_asked and (
                self.storage.traits is not None
                or has_neighbours([*there, *self.storage.folders()], self.prefix)
            ):
                left, done = release(self.storage, self.prefix, self.named, freed, self._mark)
            for names in filter(None, (left, done)):
                remove_unnamed(self.storage, {*names}.intersection)


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
    references = metadata.references
    metadata = Metadata(description, metadata.writer, user, digests=metadata.digests)
    # The files of the existing index may have the names of this generation, and then another one is
    # taken: writing these files again would break the old checkpoint before the new one is there.
    names, there = data_names(prefix, generation, assignment.num_files), set(storage.names())
    # A removal may take the files in its mark at any time.
    gone = set[str]()
    if ".svgone-" in "\0".join(there):
        gone = {each for mark, _ in marks(there, "gone") for each in freed_of(storage, mark)}
    there |= gone
    while not there.isdisjoint(names) and (
        not gone.isdisjoint(names) or _are_needed(storage, prefix, names)
    ):
        generation += _OTHER
        check_generation(generation)
        names = data_names(prefix, generation, assignment.num_files)
    storage.announce(names)
    about = Overview(metadata, generation, sizes)
    if references is not None:
        about = _with_files(about, prefix, names, references)
    return NativeSink(
        storage,
        prefix,
        assignment,
        keys,
        about,
        start,
        names,
        names,
        ties=ties,
        references=references,
    )


def _are_needed(storage: Storage, prefix: str, names: Collection[str]) -> bool:
    """Return True if data files of these names belong to the checkpoint in place, or to another
    one that refers to them."""
    if not {*names}.isdisjoint(names_in_place(storage, prefix)):
        return True
    needs = find_needs(storage, prefix)
    return bool(needs.unread) or any(map(needs.users, names))


def _with_files(
    overview: Overview, prefix: str, names: Sequence[str], references: References
) -> Overview:
    """Return the metadata with the names of all files, of other checkpoints last."""
    every = [*names, *references.files]
    owners = [owner_of(name) or "" for name in every]
    return replace(
        overview,
        file_nbytes=np.concatenate([overview.file_nbytes, references.nbytes]),
        file_names=[
            name.removeprefix(native_data_name(owner, ""))
            for name, owner in zip(every, owners, strict=True)
        ],
        file_owners=["" if owner == prefix else owner for owner in owners],
    )


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
    user, references = texts_with_objects(metadata), metadata.references
    ties = {encode_text(key): encode_text(first) for key, first in metadata.ties.items()}
    metadata = replace(metadata, user=user, paths={}, objects={}, ties={}, references=None)
    about = Overview(metadata, generation, files.nbytes, file_names=ends if are_final else ())
    if references is not None:
        about = _with_files(about, prefix, names, references)
    return NativeSink(
        storage,
        prefix,
        assignment,
        keys,
        about,
        files.start,
        names,
        written,
        ties=ties,
        is_shared=True,
        references=references,
        digests=files.digests,
        # In a bucket several processes may commit this at a time: each removes only its own mark.
        token="" if references is None else secrets.token_hex(8),
    )


def _check_assignment(assignment: Assignment, metadata: Metadata) -> None:
    """Raise ``UnsupportedError`` unless the format can hold the slices in these files."""
    slices = assignment.slices
    if metadata.digests:
        check_digests_fit(metadata.digests, MAX_BLOCK_NBYTES // 2)
    check_holds(slices, CAPABILITIES, "shardvar")
    references = metadata.references
    num_files = assignment.num_files + (len(references.files) if references else 0)
    if num_files > MAX_FILES:
        cause = f"{num_files} files are too many; at most {MAX_FILES} are allowed."
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
        return read_overview(storage, prefix).generation
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
