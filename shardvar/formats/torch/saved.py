"""Files of ``torch.save`` as a format: state dicts and other values, singly or in a set."""

from dataclasses import dataclass

from shardvar.formats.torch.dtypes import DTYPES
from shardvar.formats.torch.names import find_ranks, find_saved, set_of, world_size_of
from shardvar.formats.torch.pt_sink import SavedSink, plan_saved, remove_saved
from shardvar.formats.torch.ranks import open_ranks
from shardvar.formats.torch.source import TorchSource
from shardvar.formats.torch.state_dict import open_file, open_set
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.storage.protocol import Storage

CAPABILITIES = Capabilities(
    dtypes=frozenset(DTYPES.values()), slice_dtypes=frozenset(), many_files=False
)
"""Whole tensors of the dtypes that torch has, in one file."""


@dataclass(frozen=True, slots=True)
class SavedFormat:
    """torch.save: a file, or a set of files with an index, which is only read."""

    name: str = "pt"
    """The name for ``format=``."""
    capabilities: Capabilities = CAPABILITIES
    """The dtypes that torch can read back."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the files, and the indexes of sets, that ``name`` may mean."""
        return find_saved(storage, name)

    def open(self, storage: Storage, name: str) -> TorchSource:
        """Open a file, the set of that index, or the files of all ranks."""
        if world_size_of(name) is not None and find_ranks(storage.names(), name):
            return open_ranks(storage, name)
        return open_set(storage, name) if set_of(name) is not None else open_file(storage, name)

    def create(
        self,
        storage: Storage,
        name: str,
        assignment: Assignment,
        metadata: Metadata,
        generation: str,
    ) -> SavedSink:
        """Lay out a file. Of the metadata only objects are kept: a state dict has no more room."""
        return plan_saved(
            storage, name, assignment, metadata.objects, self.capabilities, generation
        )

    def remove(self, storage: Storage, name: str) -> None:
        """Remove the file."""
        remove_saved(storage, name)


FORMAT = SavedFormat()
