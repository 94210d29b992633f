"""The native format: sharded checkpoints whose every byte is guarded and of which any part is found at once.

docs/format.md says byte by byte how a checkpoint lies on disk. Here,

    names       the files and what a person may type for them
    overview    the metadata block
    entries     blocks of entries -> columns in memory, hostile ones refused
    broken      what a single tensor may say wrongly
    index       keys -> blocks -> entries
    data_files  data files, open
    source      an open checkpoint
    layout      where payloads lie, and columns -> blocks of entries
    sink        writing and committing

Nothing but the name of the generation differs between two checkpoints of the same input.
"""

from dataclasses import dataclass

from shardvar.formats.files import take_away
from shardvar.formats.native.names import aside_name, find_prefixes, index_name, leftovers
from shardvar.formats.native.sink import CAPABILITIES, NativeSink, create_sink
from shardvar.formats.native.source import NativeSource, open_source
from shardvar.planning.capabilities import Capabilities
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.storage.protocol import Storage


@dataclass(frozen=True, slots=True)
class NativeFormat:
    """The native format; ``locate``, ``open`` and ``create`` speak of a checkpoint by its prefix."""

    name: str = "shardvar"
    """What ``format=`` takes."""

    @property
    def capabilities(self) -> Capabilities:
        """Everything that shardvar has."""
        return CAPABILITIES

    def locate(self, storage: Storage, name: str) -> list[str]:
        """The prefixes that ``name`` may mean."""
        return find_prefixes(storage.names(), name)

    def open(self, storage: Storage, name: str) -> NativeSource:
        """Open the checkpoint of that prefix; reads the end of its index."""
        return open_source(storage, name)

    def create(
        self, storage: Storage, name: str, assignment: Assignment, metadata: Metadata, generation: str
    ) -> NativeSink:
        """Lay the assigned slices out as a checkpoint of that prefix."""
        return create_sink(storage, name, assignment, metadata, generation)

    def remove(self, storage: Storage, name: str) -> None:
        """Take away the index, and then all generations of data files."""
        index = index_name(name), aside_name(name, "removed")
        take_away(storage, [index], lambda names: leftovers(names, name, ()))


FORMAT = NativeFormat()
