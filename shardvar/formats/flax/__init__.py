"""flax, the msgpack files of Flax: ``flax.serialization.to_bytes``, and sets of such files.

names       file names, and what a person may type for a checkpoint
contents    the arrays and values of all files, and what is wrong with them
source      the payloads
"""

from dataclasses import dataclass

from shardvar.formats.flax.contents import read_flax, read_flax_set
from shardvar.formats.flax.names import find_flax, is_index
from shardvar.formats.flax.source import FlaxSource
from shardvar.formats.protocol import READ_ONLY, Format
from shardvar.planning.capabilities import Capabilities
from shardvar.storage.protocol import Storage


@dataclass(frozen=True, slots=True)
class FlaxFormat(Format):
    """flax: one file of msgpack, or a set of files with an index."""

    name: str = "flax"
    """The name for ``format=``."""
    capabilities: Capabilities = READ_ONLY
    """Nothing: it is only read."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the files, and the indexes of sets, that ``name`` may mean."""
        return find_flax(storage, name)

    def open(self, storage: Storage, name: str) -> FlaxSource:
        """Open a file, or all files of a set; elements are not read."""
        return FlaxSource((read_flax_set if is_index(name) else read_flax)(storage, name))


FORMAT = FlaxFormat()
