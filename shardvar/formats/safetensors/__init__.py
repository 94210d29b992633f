"""safetensors, single files and sharded sets, read more carefully than the real library reads them.

names     file names, and what a person may type for a checkpoint
source    headers and the set's index: contents, and what is wrong with them; shards, joined
sink      writing a checkpoint
"""

from dataclasses import dataclass

from shardvar.errors import UnsupportedError
from shardvar.formats.listing import ListedSource
from shardvar.formats.protocol import NewCheckpoint, SharedFormat
from shardvar.formats.safetensors.names import find_safetensors, split_shard_name
from shardvar.formats.safetensors.sink import (
    SafetensorsSink,
    own_texts,
    remove_safetensors,
    safetensors_sink,
)
from shardvar.formats.safetensors.source import read_safetensors
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


@dataclass(frozen=True, slots=True)
class SafetensorsFormat(SharedFormat):
    """safetensors: one file, or a set of files with an index."""

    name: str = "safetensors"
    """The name for ``format=``."""
    capabilities: Capabilities = CAPABILITIES
    """The dtypes that the real library can read back, whole."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the files, indexes of sets, and first files of shards that ``name`` may mean."""
        return find_safetensors(storage, name)

    def open(self, storage: Storage, name: str) -> ListedSource:
        """Open a file, the set of that index, or all shards that have such a name."""
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


FORMAT = SafetensorsFormat()
