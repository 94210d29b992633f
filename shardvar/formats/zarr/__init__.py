"""Zarr groups, and checkpoints of Orbax, which consist of Zarr arrays; read without JAX, Orbax and zarr-python.

names      file names, and the checkpoints that a folder holds
files      the files of a tree of folders
ahead      decoding what will be asked for next
contents   the arrays as a table of contents, and what they may claim
decoder    TensorStore, which decodes chunks
source     the payloads
group      opening a group of Zarr
pytree     the index of a checkpoint of Orbax
orbax      its format

The codec of an array's description is ``wire.zarr_metadata``.
"""

from dataclasses import dataclass

from shardvar.errors import UnsupportedError
from shardvar.formats.protocol import Sink
from shardvar.formats.zarr.group import open_group
from shardvar.formats.zarr.names import find_group
from shardvar.formats.zarr.source import ZarrSource
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.storage.protocol import Storage

CAPABILITIES = Capabilities(dtypes=frozenset(), slice_dtypes=frozenset())
"""Nothing can be written yet."""


@dataclass(frozen=True, slots=True)
class ZarrFormat:
    """Zarr of version 2 or 3: a folder with a group, or with one array."""

    name: str = "zarr"
    """The name for ``format=``."""
    capabilities: Capabilities = CAPABILITIES
    """The limits of the format."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the description of the folder's group or array, if ``name`` may mean it."""
        return find_group(storage.names(), name)

    def open(self, storage: Storage, name: str) -> ZarrSource:
        """Open the group or the array of the folder."""
        return open_group(storage, name)

    def create(self, storage: Storage, name: str, assignment: Assignment, metadata: Metadata, generation: str) -> Sink:
        """Raise ``UnsupportedError``: the format is read only."""
        raise UnsupportedError("The format zarr is read and not written.", "Choose the format safetensors.")

    def remove(self, storage: Storage, name: str) -> None:
        """Raise ``UnsupportedError``: the format is read only."""
        raise UnsupportedError("The format zarr is read and not written.", "Remove the folder.")


FORMAT = ZarrFormat()
