"""Files that ``torch.save`` wrote, as a format: state dicts and other values, in one file or in a set."""

from dataclasses import dataclass

from shardvar.errors import UnsupportedError
from shardvar.formats.protocol import Sink
from shardvar.formats.torch.names import SET_INDEX_SUFFIX, find_saved
from shardvar.formats.torch.source import TorchSource
from shardvar.formats.torch.state_dict import open_file, open_set
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.storage.protocol import Storage

CAPABILITIES = Capabilities(dtypes=frozenset(), slice_dtypes=frozenset(), many_files=False)
"""Nothing can be written yet."""


@dataclass(frozen=True, slots=True)
class SavedFormat:
    """torch.save: a file, or a set of files with an index."""

    name: str = "pt"
    """The name for ``format=``."""
    capabilities: Capabilities = CAPABILITIES
    """The dtypes that torch can read back."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the files, and the indexes of sets, that ``name`` may mean."""
        return find_saved(storage, name)

    def open(self, storage: Storage, name: str) -> TorchSource:
        """Open a file, or the set of that index."""
        return open_set(storage, name) if name.endswith(SET_INDEX_SUFFIX) else open_file(storage, name)

    def create(self, storage: Storage, name: str, assignment: Assignment, metadata: Metadata, generation: str) -> Sink:
        """Raise ``UnsupportedError``: the format is read only."""
        raise UnsupportedError("The format pt is read and not written.", "Choose the format safetensors.")

    def remove(self, storage: Storage, name: str) -> None:
        """Raise ``UnsupportedError``: the format is read only."""
        raise UnsupportedError("The format pt is read and not written.", "Remove the file.")


FORMAT = SavedFormat()
