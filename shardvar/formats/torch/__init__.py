"""torch's checkpoints, read without torch and without running what a pickle says.

names       file names, and what a person may type for a checkpoint
dtypes      the names of element types
archive     the zip archives of ``torch.save``
tensors     tensors and objects, from the nodes of a pickle
items       a stored tensor, plain or to be decoded, and a stored object
frames      the frames of the items of a distributed checkpoint
metadata    the index of a distributed checkpoint
index       its table of contents, for which items are read when they are asked for
dcp         opening a distributed checkpoint: the laws that its index shows
leaves      the keys of a saved value
state_dict  the contents of files of torch.save
saved       their format
packing     writing an archive of torch.save
pt_sink     writing a file of torch.save
source      the payloads
"""

from dataclasses import dataclass

from shardvar.errors import UnsupportedError
from shardvar.formats.protocol import Sink
from shardvar.formats.torch.dcp import open_dcp
from shardvar.formats.torch.names import METADATA, find_dcp
from shardvar.formats.torch.source import TorchSource
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.storage.protocol import Storage

CAPABILITIES = Capabilities(dtypes=frozenset(), slice_dtypes=frozenset(), folder_index=METADATA)
"""Nothing can be written yet."""


@dataclass(frozen=True, slots=True)
class TorchFormat:
    """torch.distributed.checkpoint: a folder with an index and files of items."""

    name: str = "torch"
    """The name for ``format=``."""
    capabilities: Capabilities = CAPABILITIES
    """The dtypes that torch can read back."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the index of the folder, if ``name`` may mean its checkpoint."""
        return find_dcp(storage.names(), name)

    def open(self, storage: Storage, name: str) -> TorchSource:
        """Open the checkpoint of the folder."""
        return open_dcp(storage, METADATA)

    def create(self, storage: Storage, name: str, assignment: Assignment, metadata: Metadata, generation: str) -> Sink:
        """Raise ``UnsupportedError``: the format is read only."""
        raise UnsupportedError("The format torch is read and not written.", "Choose the format safetensors.")

    def remove(self, storage: Storage, name: str) -> None:
        """Raise ``UnsupportedError``: the format is read only."""
        raise UnsupportedError("The format torch is read and not written.", "Remove the folder.")


FORMAT = TorchFormat()
