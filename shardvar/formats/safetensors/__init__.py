"""safetensors, single files and sharded sets, read more carefully than the real library reads them.

names     file names, and what a person may type for a checkpoint
source    headers and the set's index: contents, and their faults; shards, joined

Writing. Within a file, header and data have the order of the real library: larger elements first, then
by name. So payloads are aligned, although the format forbids gaps. A file has the texts that the
caller gives, the sentence of a policy that the caller chooses, and what digests, objects and joint
saves need. One file replaces another in one step,
and so does a set: its index is renamed last, and its files have names that no old file has
(``names.new_part_names``). Where a file replaces a set, or a set a file, both are there for a
moment, each whole.

A delta that another program reads has its names, its texts and its index, and nothing of shardvar's
(``PublishedFormat``): one file, or one file and an index, which is written last. The file of a
delta that is replaced keeps its name until then, and the new one has digits more, as for any set.
"""

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from shardvar.errors import UnsupportedError
from shardvar.formats.files import remove_unnamed
from shardvar.formats.listing import ListedSource
from shardvar.formats.protocol import FileChecksums, FileWriter, Format, NewCheckpoint, SharedFormat
from shardvar.formats.safetensors.source import (
    DESCRIPTION_KEY,
    FORMAT_KEY,
    FORMAT_VALUE,
    GENERATION_KEY,
    SAFETENSORS_SUFFIX,
    TOTALS,
    find_safetensors,
    index_name_of,
    new_part_names,
    part_name,
    part_names_of,
    prefix_of,
    read_safetensors,
    split_part_name,
    split_shard_name,
)
from shardvar.formats.sets import build_set_index
from shardvar.formats.sinks import (
    CommitSteps,
    SetSink,
    aside_names,
    check_uncut,
    take_away,
    temporary_files,
)
from shardvar.formats.unfinished import share_files, share_prefix
from shardvar.layout.dtypes import Ints
from shardvar.planning.index import OBJECTS
from shardvar.planning.slices import Capabilities, SliceTable, check_holds
from shardvar.records import entity, field, frozen
from shardvar.storage.concurrency import without_collection
from shardvar.storage.protocol import Storage
from shardvar.wire.digests import DIGESTS, encode_digests
from shardvar.wire.safetensors_header import DTYPES_IN_ORDER, SAFETENSORS_DTYPES, build_header


@frozen
class SafetensorsWriter(FileWriter):
    """The frame of a file: its header. The format has no checksums."""

    metadata: Mapping[str, str]
    """The ``__metadata__`` of every file."""

    crc = None

    def frame(
        self, slices: SliceTable, start: Ints, checksums: FileChecksums
    ) -> Sequence[tuple[int, bytes]]:
        return [(0, build_header(_rows(slices), self.metadata))]


@entity(kw_only=True)
class SafetensorsSink(SetSink):
    writer: SafetensorsWriter = field()
    prefix: str
    """The prefix of the files."""
    index_name: str
    """The name of the index that a set gets."""

    def index(self, checksums: Sequence[FileChecksums], there: list[str]) -> CommitSteps:
        """Return a file without numbers, or a set; files without tensors are not kept."""
        filled = np.unique(self.new.assignment.file).tolist()
        owns_set = _owns_set(self.index_name, there)
        if len(filled) < 2:
            final = self.prefix + SAFETENSORS_SUFFIX
            aside = self.asides[filled[0]] if filled else self.index_aside
            content = None if filled else build_header([], self.writer.metadata)
            return CommitSteps((), (aside, final), content, self.tidy([final], owns_set))
        finals = new_part_names(self.prefix, len(filled), there)
        renames = [
            (self.asides[number], final) for number, final in zip(filled, finals, strict=True)
        ]
        tidy = self.tidy([*finals, self.index_name], owns_set)
        last, slices = (self.index_aside, self.index_name), self.new.assignment.slices
        number = np.unique(self.new.assignment.file, return_inverse=True)[1]
        weight_map = {slices.key(row): finals[number[row]] for row in range(len(slices))}
        totals = int(slices.nbytes.sum()), int(slices.shape.prod(axis=1).sum())
        texts = {GENERATION_KEY: self.new.run} if self.new.run else {}
        digests = self.new.metadata.digests
        texts |= {DIGESTS: encode_digests(digests)} if digests else {}
        octets = build_set_index(weight_map, dict(zip(TOTALS, totals, strict=True)) | texts)
        return CommitSteps(renames, last, octets, tidy)

    def tidy(self, kept: Sequence[str], owns_set: bool) -> Callable[[], None]:
        def tidy() -> None:
            # Twice: the first pass may remove an old index, and only then are the files that it
            # named unnamed.
            for _ in range(2):
                remove_unnamed(
                    self.new.storage,
                    lambda there: _unnamed(self.prefix, self.index_name, there, kept, owns_set),
                )

        return tidy


def own_texts(new: NewCheckpoint) -> dict[str, str]:
    from shardvar.formats.objects import texts_with_objects  # of a write
    from shardvar.planning.policies.policy import USUAL_DESCRIPTIONS

    metadata, user = new.metadata, texts_with_objects(new.metadata)
    description = metadata.description or new.assignment.description
    # The index of a set has the digests.
    digests = {} if len(np.unique(new.assignment.file)) > 1 else metadata.digests
    own = {
        DESCRIPTION_KEY: "" if description in USUAL_DESCRIPTIONS else description,
        GENERATION_KEY: metadata.generation,
        DIGESTS: encode_digests(digests) if digests else "",
        OBJECTS: user.pop(OBJECTS, ""),
    }
    own = {key: text for key, text in own.items() if text}
    # Loaders of Hugging Face refuse a file that has texts, and not this one.
    return ({FORMAT_KEY: FORMAT_VALUE} if own else {}) | own | user


def safetensors_sink(new: NewCheckpoint, texts: Mapping[str, str], form: Format) -> SafetensorsSink:
    slices, file, writer = new.assignment.slices, new.assignment.file, SafetensorsWriter(texts)
    prefix, index = prefix_of(new.name), index_name_of(new.name)
    asides = aside_names(new, lambda number: f"{prefix}-{number + 1:05}{SAFETENSORS_SUFFIX}")
    check_holds(slices, form.capabilities, form.name)
    check_uncut(slices, form.name)
    start = np.zeros(len(slices), dtype=np.int64)
    # Payloads begin after the header, whose size is known once it was built from names, dtypes and
    # shapes.
    for number in range(new.assignment.num_files):
        rows = np.flatnonzero(file == number)
        own = slices.take(rows)
        start[rows] = (
            len(build_header(_rows(own), writer.metadata)) + np.cumsum(own.nbytes) - own.nbytes
        )
    return SafetensorsSink(
        new=new,
        asides=asides,
        start=start if new.files is None else new.files.start,
        writer=writer,
        index_aside=f"{index}.{new.generation}.tmp",
        prefix=prefix,
        index_name=index,
    )


def _rows(slices: SliceTable) -> list[tuple[str, str, tuple[int, ...]]]:
    tensors = slices.tensors
    return [(tensors.keys[row], *tensors.fact(row)) for row in slices.tensor.tolist()]


def _owns_set(index: str, names: Sequence[str]) -> bool:
    """Return True if the index exists or nearly did: else files may be a user's last copy."""
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


CAPABILITIES = Capabilities(
    dtypes=SAFETENSORS_DTYPES,
    slice_dtypes=frozenset(),
    atomic_overwrite=False,
    holds_objects=True,
    holds_digests=True,
    is_exact=True,
    file_order=DTYPES_IN_ORDER,
)
"""Whole tensors only; overwriting a set leaves, for a moment, neither old nor new."""


_DIGITS = 5


@frozen
class SafetensorsFormat(SharedFormat):
    """safetensors: one file, or a set of files with an index."""

    name: str = "safetensors"
    capabilities: Capabilities = CAPABILITIES

    locate = staticmethod(find_safetensors)

    def open(self, storage: Storage, name: str) -> ListedSource:
        with without_collection():
            return ListedSource(read_safetensors(storage, name))

    def lay_out(self, new: NewCheckpoint) -> SafetensorsSink:
        """Lay out a file, or a set; the metadata go into each file's ``__metadata__``."""
        _check_is_own(new.name)
        return safetensors_sink(new, own_texts(new), self)

    def remove(self, storage: Storage, name: str) -> None:
        """Remove the file and the set of that prefix; a writer leaves one of the two."""
        _check_is_own(name)
        prefix, index = prefix_of(name), index_name_of(name)
        single = prefix + SAFETENSORS_SUFFIX
        owns_set = _owns_set(index, storage.names())
        indexes = [
            (index, f"{index}.removed.tmp"),
            (single, f"{prefix}-00001{SAFETENSORS_SUFFIX}.removed.tmp"),
        ]
        take_away(storage, indexes, lambda names: _unnamed(prefix, index, names, (), owns_set))


def _check_is_own(name: str) -> None:
    """Raise ``UnsupportedError`` if a name is a shard's, which is read and not written."""
    if split_shard_name(name):
        cause = (
            f"{name} is named as a shard of PyTorch's distributed checkpoints, which shardvar "
            "reads and does not write."
        )
        raise UnsupportedError(cause, "Choose another name, such as model.safetensors.")


@frozen
class PublishedFormat(SafetensorsFormat):
    """Files of a delta of another program, which are only written."""

    texts: Mapping[str, str] = field(default_factory=dict)
    """The metadata of the file of tensors."""
    index: Callable[[str], bytes] | None = None
    """Returns the content of the index, by the name of that file; None for a delta without one."""

    def lay_out(self, new: NewCheckpoint) -> SafetensorsSink:
        planned = safetensors_sink(new, self.texts, self)
        if self.index is None:
            return planned
        # These programs count files from 0.
        names = {*new.storage.names()}
        file = part_name(planned.prefix, 0, 1, _DIGITS)
        file = part_name(planned.prefix, 0, 1, _DIGITS + 1) if file in names else file
        values = {each: getattr(planned, each) for each in SafetensorsSink.__dataclass_fields__}
        return _IndexedSink(**values, file=file, content=self.index(file))


@entity(kw_only=True)
class _IndexedSink(SafetensorsSink):
    file: str
    """The final name of the file."""
    content: bytes
    """The content of the index."""

    def index(self, checksums: Sequence[FileChecksums], there: list[str]) -> CommitSteps:
        """Return the file and the index; files of an older delta are removed."""
        renames = [
            (self.asides[number], self.file) for number in {*self.new.assignment.file.tolist()}
        ]
        kept = [*(final for _, final in renames), self.index_name]
        last = self.index_aside, self.index_name
        return CommitSteps(renames, last, self.content, self.tidy(kept, owns_set=True))


FORMAT = SafetensorsFormat()
