"""npz, NumPy's zip of arrays, read more carefully than NumPy reads it.

contents    what the archive's directory and the arrays' headers say, and what is wrong with it
streams     arrays that do not lie in the file as they are in memory
source      reading payloads
sink        writing an archive
archive     the format itself
"""

from dataclasses import dataclass

from shardvar.errors import CheckpointError, StorageError
from shardvar.formats.npz.contents import SUFFIX, read_contents
from shardvar.formats.npz.sink import NpzSink, plan_sink, remove_archive
from shardvar.formats.npz.source import NpzSource
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.storage.protocol import Storage
from shardvar.wire.npy import NPY_DTYPES
from shardvar.wire.zip import LOCAL, local_nbytes

__all__ = ["FORMAT", "NpzFormat"]


# npz as one of shardvar's formats.


FILE_SUFFIX = ".npz"

CAPABILITIES = Capabilities(dtypes=NPY_DTYPES, slice_dtypes=frozenset(), many_files=False)
"""Whole tensors of NumPy's own dtypes: of others NumPy forgets which they were."""


@dataclass(frozen=True, slots=True)
class NpzFormat:
    """npz: one zip archive of arrays."""

    name: str = "npz"
    """What ``format=`` takes."""
    capabilities: Capabilities = CAPABILITIES
    """What NumPy can read back."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """The archives that ``name`` may mean."""
        names = storage.names()
        if not name:
            return [found for found in names if found.endswith(FILE_SUFFIX)]
        if name in names and (name.endswith(FILE_SUFFIX) or _has_array(storage, name)):
            return [name]
        return [name + FILE_SUFFIX] if name + FILE_SUFFIX in names else []

    def open(self, storage: Storage, name: str) -> NpzSource:
        """Open an archive."""
        return NpzSource(read_contents(storage, name))

    def create(
        self, storage: Storage, name: str, assignment: Assignment, metadata: Metadata, generation: str
    ) -> NpzSink:
        """Lay out an archive. NumPy's has no place for the metadata."""
        return plan_sink(storage, _file_name(name), assignment, self.capabilities, generation)

    def remove(self, storage: Storage, name: str) -> None:
        """Take away the archive."""
        remove_archive(storage, _file_name(name))


def _file_name(name: str) -> str:
    """The name of the archive that a target's name means."""
    return name if name.endswith(FILE_SUFFIX) else name + FILE_SUFFIX


def _has_array(storage: Storage, name: str) -> bool:
    """Whether a file of another name begins as a zip archive does whose first member is an array."""
    try:
        file = storage.open(name)
        local = file.read(0, local_nbytes(file.read(0, LOCAL.size)))
    except (CheckpointError, StorageError):
        return False
    return local[LOCAL.size :][: int.from_bytes(local[26:28], "little")].endswith(SUFFIX.encode())


FORMAT = NpzFormat()
