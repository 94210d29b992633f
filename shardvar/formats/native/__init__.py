"""The native format: sharded checkpoints in which every byte is guarded and any part is found at
once.

docs/format.md describes a checkpoint on disk byte by byte. The modules:

    names       file names, and what a person may type for them
    index       the metadata block and blocks of entries <-> values in memory
    source      an open checkpoint: keys -> index blocks -> entries -> payloads
    references  files that several checkpoints need: found, kept, and removed by the last

Two checkpoints of the same input differ only in the name of the generation.

A checkpoint that is being written. Payloads follow each other in the order of the assignment, each
at a multiple of ``PAYLOAD_ALIGNMENT``; their places are computed on columns. Data files have their
final names from the start, because a name with a fresh generation in it means nothing until an
index names it. The commit is one rename, of the new index over the old one. Files that the new
index does not name are removed after it, by this writer or, if it dies before, by the next; files
that another checkpoint needs stay (``source``).
"""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from shardvar.errors import CheckpointError, StorageError, UnsupportedError
from shardvar.formats.files import check_written, discard_files, remove_unnamed
from shardvar.formats.native.index import (
    RUN_NBYTES,
    Overview,
    aside_name,
    check_generation,
    data_names,
    encode_index,
    encode_text,
    find_native,
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
from shardvar.formats.native.source import (
    NativeSource,
    check_in_place,
    find_needs,
    freed_of,
    names_in_place,
    names_of_others,
    open_native,
    read_overview,
    release,
    release_only,
    write_mark,
)
from shardvar.formats.protocol import FileChecksums, FileWriter, NewCheckpoint, SharedFormat
from shardvar.formats.sinks import CommitSteps, SetSink, take_away, telling_of_removal
from shardvar.layout.dtypes import ITEMSIZES, NAMES, Ints
from shardvar.limits import MAX_BLOCK_NBYTES, MAX_FILES
from shardvar.planning.index import Metadata, References
from shardvar.planning.slices import Assignment, Capabilities, check_holds
from shardvar.records import entity, frozen, replace
from shardvar.storage.concurrency import do_all
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
"""Bytes: a cache line, and the widest vector register."""

_OTHER = "x"
"""Appended to a generation whose name is taken."""


@frozen
class NativeWriter(FileWriter):
    """The checksums of a data file; its payloads have no frame."""

    run_nbytes = RUN_NBYTES


@entity(kw_only=True)
class NativeSink(SetSink):
    keys: Sequence[bytes]
    """[n] the keys of the assignment's tensors, as they are stored."""
    ties: Mapping[bytes, bytes]
    """Further keys, as they are stored, each with the key whose entries it has."""
    overview: Overview
    names: Sequence[str]
    """[files] the final names of the data files, under which they are written unless shares are
    merged."""
    token: str = ""
    """The end of the mark's name, after the generation."""

    @property
    def _mark(self) -> str:
        return mark_name(self.new.name, "needs", self.overview.generation + self.token)

    @property
    def named(self) -> list[str]:
        references = self.new.metadata.references
        return [*self.names, *(references.files if references else ())]

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Keep the files of the older checkpoint in place by a mark, which the commit removes."""
        if self.new.metadata.references is None:
            yield
            return
        mark = self._mark
        try:
            write_mark(self.new.storage, mark, self.new.metadata.references.files)
            check_in_place(self.new.storage, self.new.metadata.references)
            yield
        except BaseException:
            # Removals that saw the mark have left the files to this save.
            discard_files(self.new.storage, [mark])
            with suppress(CheckpointError, StorageError):
                discard_files(
                    self.new.storage,
                    release_only(self.new.storage, self.new.metadata.references.files),
                )
            raise

    def index(self, checksums: Sequence[FileChecksums], there: list[str]) -> CommitSteps:
        """First mark the files of this name that only other checkpoints need."""
        prefix, metadata = self.new.name, self.new.metadata
        octets = encode_index(
            self.new.assignment,
            self.keys,
            self.start,
            self.overview,
            checksums,
            self.ties,
            metadata.references.entries if metadata.references else None,
            self.new.files.digests if self.new.files else None,
        )
        freed = set[str]()
        if native_index_name(prefix) in there and has_neighbours(there, prefix):
            freed = {*names_of_others(self.new.storage, prefix)} - {*self.named}
        if freed:
            gone = mark_name(prefix, "gone", self.overview.generation)
            write_mark(self.new.storage, gone, freed)
        data = list(zip(self.asides, self.names, strict=True))
        last = self.index_aside, native_index_name(prefix)
        return CommitSteps(data, last, octets, lambda: self._tidy(freed))

    def withdraw(self) -> None:
        """Remove the files, unless the index in place names them or cannot be read."""
        if not self.is_in_place():
            SetSink.withdraw(self)  # super() is lost in classes with slots

    def is_in_place(self) -> bool:
        """Return True if the index names the files, or may: in a bucket others can commit too."""
        try:
            return (
                generation_of(self.new.storage.refreshed(), self.new.name)
                == self.overview.generation
            )
        except StorageError:
            return True

    def _tidy(self, freed: Collection[str]) -> None:
        with suppress(StorageError):
            there = self.new.storage.names()
            left: list[str] = leftovers(there, self.new.name, self.named)
            done: list[str] = []
            is_asked = bool(freed) or has_marks(there) or any(map(owner_of, left))
            # In a bucket, others may have written since the names were listed.
            if is_asked and (
                self.new.storage.traits is not None
                or has_neighbours([*there, *self.new.storage.folders()], self.new.name)
            ):
                left, done = release(self.new.storage, self.new.name, self.named, freed, self._mark)
            for names in filter(None, (left, done)):
                remove_unnamed(self.new.storage, {*names}.intersection)


def _free_generation(new: NewCheckpoint) -> tuple[str, list[str]]:
    """Return a generation whose names no needed file has, and the names of the data files."""
    # If files of the existing index have the names of this generation, another one is taken: writing
    # them again would break the old checkpoint before the new one is there.
    storage, prefix, generation = new.storage, new.name, new.generation
    names = data_names(prefix, generation, new.assignment.num_files)
    there = {*storage.names()}
    # A removal may take the files in its mark at any time.
    gone = set[str]()
    if ".svgone-" in "\0".join(there):
        gone = {name for mark, _ in marks(there, "gone") for name in freed_of(storage, mark)}
    there |= gone

    def are_needed() -> bool:
        """Return True if the checkpoint in place, or one that refers to it, has these files."""
        if not {*names}.isdisjoint(names_in_place(storage, prefix)):
            return True
        needs = find_needs(storage, prefix)
        return bool(needs.unread) or any(map(needs.users, names))

    while not there.isdisjoint(names) and (not gone.isdisjoint(names) or are_needed()):
        generation += _OTHER
        check_generation(generation)
        names = data_names(prefix, generation, new.assignment.num_files)
    return generation, names


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


def _check_assignment(assignment: Assignment, metadata: Metadata) -> None:
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
    try:
        return read_overview(storage, prefix).generation
    except (CheckpointError, UnsupportedError):
        return None


def plan_places(assignment: Assignment) -> tuple[Ints, Ints]:
    """Return [m] the first byte of each payload in its file, and [files] the size of each file.

    Laws: within a file, places rise in the order of the assignment; payloads are disjoint; payloads
    that have bytes begin at multiples of ``PAYLOAD_ALIGNMENT``; a file ends with its last payload.
    """
    nbytes, file = assignment.slices.nbytes, assignment.file
    start = assignment.starts(-(-nbytes // PAYLOAD_ALIGNMENT) * PAYLOAD_ALIGNMENT)
    sizes = np.zeros(assignment.num_files, np.int64)
    filled = nbytes > 0
    np.maximum.at(sizes, file[filled], (start + nbytes)[filled])
    # A last payload of 0 bytes must not lie beyond the end of the file.
    return np.minimum(start, sizes[file]), sizes


@frozen
class NativeFormat(SharedFormat):
    """The native format; its methods name a checkpoint by its prefix."""

    name: str = "shardvar"
    capabilities: Capabilities = CAPABILITIES

    def locate(self, storage: Storage, name: str) -> list[str]:
        return find_native(storage.names(), name)

    def open(self, storage: Storage, name: str) -> NativeSource:
        return open_native(storage, name)

    def lay_out(self, new: NewCheckpoint) -> NativeSink:
        """Lay the slices out; a commit of written files that was killed can be made again."""
        from shardvar.formats.objects import texts_with_objects  # of a write

        generation, metadata, files = new.generation, new.metadata, new.files
        for name in (generation, generation + _OTHER) if files is None else (generation,):
            check_generation(name)
        _check_assignment(new.assignment, metadata)
        keys = list(map(encode_text, new.assignment.slices.tensors.keys))
        ties = {encode_text(key): encode_text(first) for key, first in metadata.ties.items()}
        about = Metadata(
            metadata.description or new.assignment.description,
            metadata.writer,
            texts_with_objects(metadata) if metadata.objects else metadata.user,
            digests=metadata.digests,
        )
        names: Sequence[str]
        ends: Sequence[str] = ()
        if files is None:
            start, sizes = plan_places(new.assignment)
            generation, asides = _free_generation(new)
            names = asides
        else:
            start, sizes, about = files.start, files.nbytes, replace(about, generation=generation)
            # Renaming is the same when it is repeated, so the next commit finishes one that was killed
            # between two files. In a bucket a file stays under its first name: a rename is a copy.
            ends = [name.removeprefix(native_data_name(new.name, "")) for name in files.names]
            are_final = bool(ends) and all(map(is_name_end, ends))
            ends = ends if are_final else ()
            names = files.names if are_final else data_names(new.name, generation, len(files.names))
            asides = check_written(
                new.storage, list(zip(files.names, names, strict=True)), files.nbytes
            )
        new.storage.announce(names)
        overview = Overview(about, generation, sizes, file_names=ends)
        if metadata.references is not None:
            overview = _with_files(overview, new.name, names, metadata.references)
        return NativeSink(
            new=new,
            asides=asides,
            start=start,
            writer=NativeWriter(),
            index_aside=aside_name(new.name, generation),
            is_shared=files is not None,
            keys=keys,
            ties=ties,
            overview=overview,
            names=names,
            # In a bucket several processes may commit this at a time: each removes only its own mark.
            token=os.urandom(8).hex()
            if files is not None and metadata.references is not None
            else "",
        )

    def remove(self, storage: Storage, name: str) -> None:
        index, aside, done = native_index_name(name), aside_name(name, "removed"), list[str]()
        seen = storage.status(index)
        freed = {*names_of_others(storage, name)}
        freed.update(each for each in storage.names() if owner_of(each) == name)
        if seen and freed:
            write_mark(storage, mark_name(name, "gone", "removed"), freed)
        # Without a claim, another writer may have put its index in place since.
        if seen and storage.stamp(index) not in (None, seen.stamp):
            from shardvar.storage.requests import overtaken_error  # of a bucket

            raise overtaken_error(os.path.join(storage.path, index))
        storage.announce([index])

        def unnamed(_names: list[str]) -> list[str]:
            left, marks = release(storage, name, (), freed)
            done.extend(marks)
            storage.announce([*left, *marks])
            return left

        take_away(storage, [(index, aside)], unnamed, has_mark=True)
        with telling_of_removal(storage, [index]):
            do_all(storage.remove, done, storage.traits)

    def process_file(self, name: str, token: str, process: int, count: int) -> str:
        return native_data_name(name, f"{token}-{process:05}-of-{count:05}")

    def generation_of(self, storage: Storage, name: str) -> str:
        return generation_of(storage, name) or ""

    def adopts_objects(self) -> bool:
        return True


FORMAT = NativeFormat()
