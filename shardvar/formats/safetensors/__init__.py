"""safetensors, single files and sharded sets, read more carefully than the real library reads them.

names     file names, and what a person may type for a checkpoint
source    headers and the set's index: contents, what is wrong with them, and the payloads
sink      writing a checkpoint
"""

from dataclasses import dataclass

from shardvar.formats.safetensors.names import SET_INDEX_SUFFIX, find_safetensors, prefix_of
from shardvar.formats.safetensors.sink import SafetensorsSink, plan_safetensors, remove_safetensors
from shardvar.formats.safetensors.source import SafetensorsSource, read_set, read_single
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.storage.protocol import Storage
from shardvar.wire.safetensors_header import SAFETENSORS_DTYPES

CAPABILITIES = Capabilities(dtypes=SAFETENSORS_DTYPES, slice_dtypes=frozenset(), atomic_overwrite=False)
"""Whole tensors only; while a set is overwritten, there is for a moment neither the old set nor the new."""


@dataclass(frozen=True, slots=True)
class SafetensorsFormat:
    """safetensors: one file, or a set of files with an index."""

    name: str = "safetensors"
    """The name for ``format=``."""
    capabilities: Capabilities = CAPABILITIES
    """The dtypes that the real library can read back, whole."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the files, and the indexes of sets, that ``name`` may mean."""
        return find_safetensors(storage, name)

    def open(self, storage: Storage, name: str) -> SafetensorsSource:
        """Open a file, or the set of that index."""
        read = read_set if name.endswith(SET_INDEX_SUFFIX) else read_single
        return SafetensorsSource(read(storage, name))

    def create(
        self, storage: Storage, name: str, assignment: Assignment, metadata: Metadata, generation: str
    ) -> SafetensorsSink:
        """Lay out a file, or a set; the metadata go into each file's ``__metadata__``."""
        return plan_safetensors(storage, name, assignment, metadata, self.capabilities, generation)

    def remove(self, storage: Storage, name: str) -> None:
        """Remove the file and the set of that prefix; a writer leaves one of the two."""
        remove_safetensors(storage, prefix_of(name))


FORMAT = SafetensorsFormat()
