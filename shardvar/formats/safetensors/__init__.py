"""safetensors, single files and sharded sets, read more carefully than the real library reads them.

names     file names, and what a person may type for a checkpoint
source    headers and the set's index: contents, and their faults; shards, joined
sink      writing a checkpoint

A delta that another program reads has its names, its texts and its index, and nothing of shardvar's
(``PublishedFormat``): one file, or one file and an index, which is written last. The file of a
delta that is replaced keeps its name until then, and the new one has digits more, as for any set.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shardvar.errors import UnsupportedError
from shardvar.formats.listing import ListedSource
from shardvar.formats.protocol import FileChecksums, NewCheckpoint, SharedFormat
from shardvar.formats.safetensors.names import find_safetensors, part_name, split_shard_name
from shardvar.formats.safetensors.sink import (
    SafetensorsSink,
    own_texts,
    remove_safetensors,
    safetensors_sink,
)
from shardvar.formats.safetensors.source import read_safetensors
from shardvar.formats.sinks import CommitSteps
from shardvar.planning.slices import Capabilities
from shardvar.storage.protocol import Storage
from shardvar.wire.safetensors_header import SAFETENSORS_DTYPES

CAPABILITIES = Capabilities(
    dtypes=SAFETENSORS_DTYPES,
    slice_dtypes=frozenset(),
    atomic_overwrite=False,
    holds_objects=True,
    holds_digests=True,
    is_exact=True,
)
"""Whole tensors only; overwriting a set leaves, for a moment, neither old nor new."""


_DIGITS = 5


@dataclass(frozen=True, slots=True)
class SafetensorsFormat(SharedFormat):
    """safetensors: one file, or a set of files with an index."""

    name: str = "safetensors"
    capabilities: Capabilities = CAPABILITIES

    def locate(self, storage: Storage, name: str) -> list[str]:
        return find_safetensors(storage, name)

    def open(self, storage: Storage, name: str) -> ListedSource:
        return ListedSource(read_safetensors(storage, name))

    def lay_out(self, new: NewCheckpoint) -> SafetensorsSink:
        """Lay out a file, or a set; the metadata go into each file's ``__metadata__``."""
        _check_is_own(new.name)
        return safetensors_sink(new, own_texts(new), self)

    def remove(self, storage: Storage, name: str) -> None:
        """Remove the file and the set of that prefix; a writer leaves one of the two."""
        _check_is_own(name)
        remove_safetensors(storage, name)


def _check_is_own(name: str) -> None:
    """Raise ``UnsupportedError`` if a name is a shard's, which is read and not written."""
    if split_shard_name(name):
        cause = (
            f"{name} is named as a shard of PyTorch's distributed checkpoints, which shardvar "
            "reads and does not write."
        )
        raise UnsupportedError(cause, "Choose another name, such as model.safetensors.")


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
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
