"""keras, the files of Keras 3 and of Keras 2: arrays in HDF5, which h5py reads (extra ``keras``).

names       file names, and what a person may type for a checkpoint
hdf5        one HDF5 file; the one module that imports h5py
walk        the arrays in it, with their faults
lists       the lists of names by which a file of Keras 2 notices what it lost
attributes  texts that belong to groups and arrays
archive     the HDF5 file in a ``.keras`` archive
contents    the arrays of all files
source      the payloads
"""

from dataclasses import dataclass

from shardvar.formats.keras.contents import read_keras
from shardvar.formats.keras.names import find_keras
from shardvar.formats.keras.source import KerasSource
from shardvar.formats.protocol import Format
from shardvar.planning.capabilities import Capabilities
from shardvar.storage.protocol import Storage

CAPABILITIES = Capabilities(dtypes=frozenset(), slice_dtypes=frozenset())
"""Nothing is written: Keras restores a file only into the model whose layers it names."""


@dataclass(frozen=True, slots=True)
class KerasFormat(Format):
    """keras: one HDF5 file, by itself or in an archive, or a set with an index."""

    name: str = "keras"
    """The name for ``format=``."""
    capabilities: Capabilities = CAPABILITIES
    """Nothing: it is only read."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the files, and the indexes of sets, that ``name`` may mean."""
        return find_keras(storage, name)

    def open(self, storage: Storage, name: str) -> KerasSource:
        """Open a file, an archive, or a set by its index. The model's configuration is not
        built."""
        return KerasSource(read_keras(storage, name))


FORMAT = KerasFormat()
