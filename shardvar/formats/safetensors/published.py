"""Writing files of safetensors that another program reads as a delta: its names, its texts and its
index, and nothing of shardvar's.

A delta is one file, or one file and an index, which is written last. The file of a delta that is
replaced keeps its name until then, and the new one has digits more, as for any set.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardvar.formats.files import put_in_place
from shardvar.formats.protocol import FileChecksums
from shardvar.formats.safetensors import SafetensorsFormat
from shardvar.formats.safetensors.names import part_name
from shardvar.formats.safetensors.sink import SafetensorsSink, plan_texts
from shardvar.planning.index import Metadata
from shardvar.planning.plan import Assignment
from shardvar.storage.protocol import Storage

_DIGITS = 5


@dataclass(frozen=True, slots=True)
class PublishedFormat(SafetensorsFormat):
    """Files of a delta of another program, which are only written."""

    texts: Mapping[str, str] = field(default_factory=dict)
    """The metadata of the file of tensors."""
    index: Callable[[str], bytes] | None = None
    """Return the content of the index, by the name of that file; None for a delta without one."""

    def create(
        self,
        storage: Storage,
        name: str,
        assignment: Assignment,
        metadata: Metadata,  # shardvar's, which these files do not have
        generation: str,
    ) -> SafetensorsSink:
        """Lay out the file, and the index if there is one."""
        planned = plan_texts(storage, name, assignment, self.texts, self.capabilities, generation)
        if self.index is None:
            return planned
        # These programs count files from 0.
        names = {*storage.names()}
        file = part_name(planned.prefix, 0, 1, _DIGITS)
        file = part_name(planned.prefix, 0, 1, _DIGITS + 1) if file in names else file
        values = {each: getattr(planned, each) for each in SafetensorsSink.__dataclass_fields__}
        return _IndexedSink(**values, file=file, content=self.index(file))


@dataclass(frozen=True, slots=True, eq=False)
class _IndexedSink(SafetensorsSink):
    """A file and its index."""

    file: str = ""
    """The final name of the file."""
    content: bytes = b""
    """The content of the index."""

    def commit(self, checksums: Sequence[FileChecksums]) -> None:  # none is stored
        """Put the file in place, then the index, and remove what an older delta had."""
        filled = np.unique(self.assignment.file).tolist()
        kept = [*([self.file] if filled else []), self.index]
        put_in_place(
            self.storage,
            [(self.asides[number], self.file) for number in filled],
            (self.index_aside, self.index),
            self.content,
            tidy=lambda: self._tidy(kept, owns_set=True),
        )
