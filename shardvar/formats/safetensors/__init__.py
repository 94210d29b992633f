"""safetensors, single files and sharded sets, read more carefully than the real library reads them.

names       which files a checkpoint has, and what a person may call it
contents    what headers and the set's index say, and what is wrong with it
source      reading payloads
sink        writing a checkpoint
checkpoint  the format itself
"""

from dataclasses import dataclass

from shardvar.formats.safetensors.names import INDEX_SUFFIX, find_checkpoints, prefix_of
from shardvar.formats.safetensors.sink import SafetensorsSink, plan_sink, remove_checkpoint
from shardvar.formats.safetensors.source import SafetensorsSource, read_set, read_single
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.storage.protocol import Storage
from shardvar.wire.safetensors_header import SAFETENSORS_DTYPES

__all__ = ["FORMAT", "SafetensorsFormat"]


# safetensors as one of shardvar's formats.


CAPABILITIES = Capabilities(dtypes=SAFETENSORS_DTYPES, slice_dtypes=frozenset(), atomic_overwrite=False)
"""Whole tensors alone; an overwritten set is for a moment neither the old one nor the new."""


@dataclass(frozen=True, slots=True)
class SafetensorsFormat:
    """safetensors: one file, or a set of files with an index."""

    name: str = "safetensors"
    """What ``format=`` takes."""
    capabilities: Capabilities = CAPABILITIES
    """What the real library can read back."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """The files, and the indexes of sets, that ``name`` may mean."""
        return find_checkpoints(storage, name)

    def open(self, storage: Storage, name: str) -> SafetensorsSource:
        """Open a file, or the set of that index."""
        read = read_set if name.endswith(INDEX_SUFFIX) else read_single
        return SafetensorsSource(read(storage, name))

    def create(
        self, storage: Storage, name: str, assignment: Assignment, metadata: Metadata, generation: str
    ) -> SafetensorsSink:
        """Lay out a file, or a set; the metadata go into each file's ``__metadata__``."""
        return plan_sink(storage, name, assignment, metadata, self.capabilities, generation)

    def remove(self, storage: Storage, name: str) -> None:
        """Take away the file and the set of that prefix, of which a writer leaves one."""
        remove_checkpoint(storage, prefix_of(name))


FORMAT = SafetensorsFormat()
