"""Writing a safetensors checkpoint: one file, or a set with its index where the policy asks for
several.

Within a file, header and data keep the order of the assignment. The data begin at a multiple of 64
bytes and follow each other without gaps, because the format forbids gaps. So payloads are aligned
as long as larger elements come first.

One file replaces another in one step, and so does a set: its index is renamed last, and its files
have names that no old file has (``names.new_part_names``). Where a file replaces a set, or a set a
file, both are there for a moment, each whole.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardvar.formats.files import (
    check_written,
    put_in_place,
    remove_unnamed,
)
from shardvar.formats.objects import texts_with_objects
from shardvar.formats.protocol import FileChecksums, FileWriter, WrittenFiles
from shardvar.formats.safetensors.names import (
    SAFETENSORS_SUFFIX,
    index_name_of,
    new_part_names,
    part_names_of,
    prefix_of,
    split_part_name,
)
from shardvar.formats.safetensors.source import (
    DESCRIPTION_KEY,
    FORMAT_KEY,
    FORMAT_VALUE,
    GENERATION_KEY,
    TOTALS,
    WRITER_KEY,
)
from shardvar.formats.sinks import FileSink, check_uncut, take_away, temporary_files
from shardvar.formats.unfinished import share_files, share_prefix
from shardvar.layout.dtypes import Ints
from shardvar.planning.capabilities import Capabilities, check_holds
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.planning.slices import SliceTable
from shardvar.storage.protocol import Storage
from shardvar.wire.digests import DIGESTS, encode_digests
from shardvar.wire.safetensors_header import build_header
from shardvar.wire.set_index import build_set_index


@dataclass(frozen=True, slots=True)
class SafetensorsWriter(FileWriter):
    """The frame of a file: its header. The format has no checksums."""

    metadata: Mapping[str, str]
    """The ``__metadata__`` of every file."""

    @property
    def crc(self) -> None:
        """None: payloads have no checksums."""

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Sequence[tuple[int, bytes]]:
        """Return the header, at offset 0."""
        return [(0, build_header(_rows(slices), self.metadata))]


@dataclass(frozen=True, slots=True, eq=False)
class SafetensorsSink(FileSink):
    """A safetensors checkpoint that is being written."""

    storage: Storage = field()
    """The directory for the files."""
    prefix: str
    """The prefix of the files."""
    index: str
    """The name of the index that a set gets."""
    assignment: Assignment
    """The tensors, and the file of each."""
    asides: Sequence[str] = field()
    """The temporary name of each file."""
    index_aside: str
    """The temporary name of the index."""
    start: Ints = field()
    """[m] the first byte of each payload, in bytes of its file."""
    writer: SafetensorsWriter = field()
    """The frame of each file."""
    generation: str = ""
    """The generation that the index of a set keeps."""
    digests: str = ""
    """The text of the digests that the index of a set keeps."""

    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        """Put the finished files in place, the index last, and remove what it does not name."""
        # Plan: only files that have tensors are kept; one file is named without numbers, several
        # are a set.
        filled = np.unique(self.assignment.file).tolist()
        names = self.storage.names()
        owns_set = _owns_set(self.index, names)
        if len(filled) > 1:
            finals = new_part_names(self.prefix, len(filled), names)
            kept = [*finals, self.index]
            self._commit_set(
                [self.asides[number] for number in filled],
                finals,
                lambda: self._tidy(kept, owns_set),
            )
        else:
            final = self.prefix + SAFETENSORS_SUFFIX
            self._commit_single(
                self.asides[filled[0]] if filled else None,
                final,
                lambda: self._tidy([final], owns_set),
            )

    @property
    def temporary(self) -> Sequence[str]:
        """The temporary names of all files, the index included."""
        return [*self.asides, self.index_aside]

    def _tidy(self, kept: Sequence[str], owns_set: bool) -> None:
        # Twice: the first pass may remove an old index, and only then are the files that it named
        # unnamed.
        for _ in range(2):
            remove_unnamed(
                self.storage, lambda names: _unnamed(self.prefix, self.index, names, kept, owns_set)
            )

    def _commit_single(self, aside: str | None, final: str, tidy: Callable[[], None]) -> None:
        content = build_header([], self.writer.metadata) if aside is None else None
        put_in_place(self.storage, [], (aside or self.index_aside, final), content, tidy=tidy)

    def _commit_set(self, asides: list[str], finals: list[str], tidy: Callable[[], None]) -> None:
        slices, number = (
            self.assignment.slices,
            np.unique(self.assignment.file, return_inverse=True)[1],
        )
        weight_map = {slices.key(row): finals[number[row]] for row in range(len(slices))}
        totals = int(slices.nbytes.sum()), int(slices.shape.prod(axis=1).sum())
        kept = {GENERATION_KEY: self.generation} if self.generation else {}
        kept |= {DIGESTS: self.digests} if self.digests else {}
        content = build_set_index(weight_map, dict(zip(TOTALS, totals, strict=True)) | kept)
        put_in_place(
            self.storage,
            list(zip(asides, finals, strict=True)),
            (self.index_aside, self.index),
            content,
            tidy,
        )


def plan_safetensors(
    storage: Storage,
    name: str,
    assignment: Assignment,
    metadata: Metadata,
    capabilities: Capabilities,
    generation: str,
) -> SafetensorsSink:
    """Lay the assigned tensors out; ``UnsupportedError`` if the format cannot hold them."""
    description, user = metadata.description or assignment.description, texts_with_objects(metadata)
    own = {
        DESCRIPTION_KEY: description,
        WRITER_KEY: metadata.writer,
        GENERATION_KEY: metadata.generation,
    }
    texts = {FORMAT_KEY: FORMAT_VALUE, **own, **user}
    digests = encode_digests(metadata.digests) if metadata.digests else ""
    is_set = len(np.unique(assignment.file)) > 1
    if digests and not is_set:
        texts[DIGESTS] = digests
    kept = {key: text for key, text in texts.items() if text or key in user}
    sink = plan_texts(storage, name, assignment, kept, capabilities, generation)
    return replace(sink, digests=digests if is_set else "")


def plan_texts(
    storage: Storage,
    name: str,
    assignment: Assignment,
    texts: Mapping[str, str],
    capabilities: Capabilities,
    generation: str,
) -> SafetensorsSink:
    """Lay the assigned tensors out in files with these metadata."""
    slices, writer = assignment.slices, SafetensorsWriter(texts)
    check_holds(slices, capabilities, "safetensors")
    check_uncut(slices, "safetensors")
    prefix, index = prefix_of(name), index_name_of(name)
    asides = [
        f"{prefix}-{number + 1:05}{SAFETENSORS_SUFFIX}.{generation}.tmp"
        for number in range(assignment.num_files)
    ]
    start = np.zeros(len(slices), dtype=np.int64)
    # Payloads begin after the header, whose size is known once it was built from names, dtypes and
    # shapes.
    for number in range(assignment.num_files):
        rows = np.flatnonzero(assignment.file == number)
        mine = slices.take(rows)
        start[rows] = (
            len(build_header(_rows(mine), writer.metadata)) + np.cumsum(mine.nbytes) - mine.nbytes
        )
    return SafetensorsSink(
        storage, prefix, index, assignment, asides, f"{index}.{generation}.tmp", start, writer
    )


def adopt_safetensors(
    storage: Storage,
    name: str,
    assignment: Assignment,
    metadata: Metadata,
    capabilities: Capabilities,
    files: WrittenFiles,
) -> SafetensorsSink:
    """Return the sink of files that are written already, numbered as the assignment says."""
    written = check_written(storage, [[each] for each in files.names], files.nbytes)
    planned = plan_safetensors(
        storage, name, assignment, metadata, capabilities, metadata.generation
    )
    return replace(planned, asides=written, start=files.start, generation=metadata.generation)


def remove_safetensors(storage: Storage, name: str) -> None:
    """Remove the file of that prefix, and the set if it has, or was to get, an index."""
    prefix, index = prefix_of(name), index_name_of(name)
    single = prefix + SAFETENSORS_SUFFIX
    owns_set = _owns_set(index, storage.names())
    indexes = [
        (index, f"{index}.removed.tmp"),
        (single, f"{prefix}-00001{SAFETENSORS_SUFFIX}.removed.tmp"),
    ]
    take_away(storage, indexes, lambda names: _unnamed(prefix, index, names, (), owns_set))


def _rows(slices: SliceTable) -> list[tuple[str, str, tuple[int, ...]]]:
    tensors = slices.tensors
    return [
        (tensors.keys[row], tensors.dtype(row), tensors.shape(row))
        for row in slices.tensor.tolist()
    ]


def _owns_set(index: str, names: Sequence[str]) -> bool:
    """Return True if the files of the set of that index belong to this checkpoint: the index
    exists, or nearly did.

    Without any index they may be a user's last copy, and are not this writer's to remove.
    """
    return index in names or bool(temporary_files(re.escape(index), names))


def _unnamed(
    prefix: str, index: str, names: Sequence[str], kept: Sequence[str], owns_set: bool
) -> list[str]:
    """Return files of this prefix outside its checkpoint, and dead writers' temporary ones."""
    # Files of a set go once their index is gone or replaced. If it could not be removed, they are
    # still a checkpoint. Without an index, only files of a set with as many files are replaced.
    parts = part_names_of(prefix, names) if index in kept or index not in names else []
    if not owns_set:
        counts = {part[2] for name in kept if (part := split_part_name(name))}
        parts = [name for name in parts if (part := split_part_name(name)) and part[2] in counts]
    old = [
        name
        for name in (prefix + SAFETENSORS_SUFFIX, index, *parts)
        if name in names and name not in kept
    ]
    asides = rf"{re.escape(prefix)}-\d{{5,}}\.safetensors|{re.escape(index)}"
    shares = share_files(names, share_prefix(prefix, "safetensors"))
    return [*old, *temporary_files(asides, names), *shares]
