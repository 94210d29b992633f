"""gguf, the files of llama.cpp: metadata, tokenizer and tensors, most of them quantised.

names       file names, and what a person may type for a checkpoint
contents    the tensors of all files, and what is wrong with them
source      the payloads: as they are stored, or dequantized
"""

from dataclasses import dataclass

from shardvar.formats.gguf.contents import read_gguf
from shardvar.formats.gguf.names import find_gguf
from shardvar.formats.gguf.source import GgufSource
from shardvar.formats.protocol import Format
from shardvar.planning.capabilities import Capabilities
from shardvar.storage.protocol import Storage

CAPABILITIES = Capabilities(dtypes=frozenset(), slice_dtypes=frozenset())
"""Nothing is written: a file is useful only with the metadata that its program needs."""


@dataclass(frozen=True, slots=True)
class GgufFormat(Format):
    """gguf: one file, or the parts of a split one."""

    name: str = "gguf"
    """The name for ``format=``."""
    capabilities: Capabilities = CAPABILITIES
    """Nothing: it is only read."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the files, and the first ones of split files, that ``name`` may mean."""
        return find_gguf(storage, name)

    def open(self, storage: Storage, name: str) -> GgufSource:
        """Open a file, or all parts of a split one; only their headers are read."""
        return GgufSource(read_gguf(storage, name))


FORMAT = GgufFormat()
