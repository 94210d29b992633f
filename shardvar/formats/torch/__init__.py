"""torch's checkpoints, read and written without torch, and read without running what a pickle says.

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
unpickled   one file of torch.save, opened
state_dict  a file, or a set with an index
placements  the regions of a tensor that a device of a mesh holds
shares      the part of a tensor that the file of one rank holds
ranks       the files of all ranks, as one checkpoint
contents    slices and objects of files of torch.save, as a source
saved       their format
packing     writing an archive of torch.save
pt_sink     writing a file of torch.save
item_frame  the frame of an item that is written
item_index  the index of a distributed checkpoint, as it is written
item_sink   writing a distributed checkpoint
source      the payloads
"""

from dataclasses import dataclass

from shardvar.formats.protocol import WrittenFiles
from shardvar.formats.torch.dcp import open_dcp
from shardvar.formats.torch.dtypes import DTYPES
from shardvar.formats.torch.item_sink import DcpSink, adopt_dcp, plan_dcp, remove_dcp
from shardvar.formats.torch.names import METADATA, find_dcp
from shardvar.formats.torch.source import TorchSource
from shardvar.limits import MAX_RANK
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.storage.protocol import Storage

CAPABILITIES = Capabilities(
    dtypes=frozenset(DTYPES.values()),
    slice_dtypes=frozenset(DTYPES.values()),
    max_slice_rank=MAX_RANK,
    is_exact=True,
    folder_index=METADATA,
)
"""Every dtype that torch and NumPy share; a slice without elements is not told from another one at
its offset."""


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

    def create(
        self,
        storage: Storage,
        name: str,
        assignment: Assignment,
        metadata: Metadata,
        generation: str,
    ) -> DcpSink:
        """Lay the slices out as the checkpoint of the folder."""
        return plan_dcp(storage, assignment, metadata, self.capabilities, generation)

    def adopt(
        self,
        storage: Storage,
        name: str,
        assignment: Assignment,
        metadata: Metadata,
        files: WrittenFiles,
    ) -> DcpSink:
        """Return the sink of files of items that are written already."""
        return adopt_dcp(storage, assignment, metadata, self.capabilities, files)

    def remove(self, storage: Storage, name: str) -> None:
        """Remove the checkpoint of the folder, and not the folder."""
        remove_dcp(storage)


FORMAT = TorchFormat()
