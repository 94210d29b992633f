"""torch's checkpoints, read and written without torch, and read without running a pickle.

Begin with ``dcp``, which opens a distributed checkpoint, and ``state_dict``, which opens a file of
``torch.save``. In the order in which they build on each other:

    values      tensors and plain objects, from the nodes of a pickle; the names of element types
    archive     the archives of ``torch.save``, read and written, and their old form
    items       a stored tensor or object, and its place in a file
    source      the payloads of an open checkpoint
    dcp         opening a distributed checkpoint
    sink        writing a distributed checkpoint
    shares      the part of a tensor that the file of one rank holds
    state_dict  opening a file of ``torch.save``, or a set of them
    ranks       the files of all ranks, joined; the dialects of FSDP and of Meta's Llama
    rankwise    the dialect of torch_checkpointing
    deepspeed   the files of ZeRO, and Universal Checkpoints of DeepSpeed
    parameter_folders   writing a Universal Checkpoint
    saved       the format of files of ``torch.save``, its table of dialects, and writing a file
"""

from dataclasses import dataclass

from shardvar.formats.protocol import NewCheckpoint, SharedFormat
from shardvar.formats.torch.dcp import METADATA, find_dcp, open_dcp, parse_metadata
from shardvar.formats.torch.sink import DcpSink, dcp_sink, process_name, remove_dcp
from shardvar.formats.torch.source import TorchSource
from shardvar.formats.torch.values import DTYPES
from shardvar.limits import MAX_METADATA_NBYTES, MAX_RANK
from shardvar.planning.slices import Capabilities
from shardvar.storage.protocol import Storage

CAPABILITIES = Capabilities(
    dtypes=frozenset(DTYPES.values()),
    slice_dtypes=frozenset(DTYPES.values()),
    max_slice_rank=MAX_RANK,
    holds_objects=True,
    is_exact=True,
    folder_index=METADATA,
)
"""Every dtype that torch and NumPy share; a slice without elements is not told from another one at
its offset."""


@dataclass(frozen=True, slots=True)
class TorchFormat(SharedFormat):
    """torch.distributed.checkpoint: a folder with an index and files of items."""

    name: str = "torch"
    capabilities: Capabilities = CAPABILITIES  # The dtypes that torch can read back

    def locate(self, storage: Storage, name: str) -> list[str]:
        return find_dcp(storage.names(), name)

    def open(self, storage: Storage, name: str) -> TorchSource:
        return open_dcp(storage, METADATA)

    def lay_out(self, new: NewCheckpoint) -> DcpSink:
        return dcp_sink(new, self.capabilities)

    def process_file(self, name: str, token: str, process: int, count: int) -> str:
        return process_name(process, token)

    def adopts_objects(self) -> bool:
        """Return True: the commit writes them into a file for objects."""
        return True

    def generation_of(self, storage: Storage, name: str) -> str:
        file = storage.open(METADATA)
        try:
            if file.size > MAX_METADATA_NBYTES:
                return ""
            return parse_metadata(file.read(0, file.size)).about.generation
        finally:
            file.close()

    def remove(self, storage: Storage, name: str) -> None:
        remove_dcp(storage)


FORMAT = TorchFormat()
