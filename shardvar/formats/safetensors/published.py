"""Writing files of safetensors that another program reads as a delta: its names, its texts and its
index, and nothing of shardvar's.

A delta is one file, or one file and an index, which is written last. The file of a delta that is
replaced keeps its name until then, and the new one has digits more, as for any set.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from shardvar.formats.protocol import FileChecksums, NewCheckpoint
from shardvar.formats.safetensors import SafetensorsFormat
from shardvar.formats.safetensors.names import part_name
from shardvar.formats.safetensors.sink import SafetensorsSink, safetensors_sink
from shardvar.formats.sinks import CommitSteps

_DIGITS = 5


@dataclass(frozen=True, slots=True)
class PublishedFormat(SafetensorsFormat):
    """Files of a delta of another program, which are only written."""

    texts: Mapping[str, str] = field(default_factory=dict)
    """The metadata of the file of tensors."""
    index: Callable[[str], bytes] | None = None
    """Return the content of the index, by the name of that file; None for a delta without one."""

    def lay_out(self, new: NewCheckpoint) -> SafetensorsSink:
        """Lay out the file without shardvar's metadata, and the index if there is one."""
        planned = safetensors_sink(new, self.texts, self)
        if self.index is None:
            return planned
        # These programs count files from 0.
        names = {*new.storage.names()}
        file = part_name(planned.prefix, 0, 1, _DIGITS)
        file = part_name(planned.prefix, 0, 1, _DIGITS + 1) if file in names else file
        values = {each: getattr(planned, each) for each in SafetensorsSink.__dataclass_fields__}
        return _IndexedSink(**values, file=file, content=self.index(file))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _IndexedSink(SafetensorsSink):
    """A file and its index."""

    file: str
    """The final name of the file."""
    content: bytes
    """The content of the index."""

    def index(self, checksums: Sequence[FileChecksums], there: list[str]) -> CommitSteps:
        """Return the file and the index; what an older delta had is removed."""
        renames = [
            (self.asides[number], self.file) for number in {*self.new.assignment.file.tolist()}
        ]
        kept = [*(final for _, final in renames), self.index_name]
        last = self.index_aside, self.index_name
        return CommitSteps(renames, last, self.content, self.tidy(kept, owns_set=True))
