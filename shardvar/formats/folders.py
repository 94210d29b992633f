"""The commit of a checkpoint that is a folder: it is built next to its place, and put there in one
step (``storage.exchange``).

    prepare  finished files stand aside in the folder of the checkpoint
    build    a folder next to it gets descriptions, files and index, and is forced to the disk
    commit   the two folders are exchanged
    retire   the old one is removed, but for the files of the user's, which are in both
"""

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardvar.formats.files import State, add_state, discard_files
from shardvar.formats.protocol import FileWriter, NewCheckpoint, Sink
from shardvar.layout.dtypes import Ints
from shardvar.storage.exchange import FolderBeside


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FolderSink(Sink):
    """A folder that is being written; a format defines ``own``."""

    new: NewCheckpoint
    paths: Sequence[str]
    """[files] the place of each file; empty for files that are not needed, as of arrays without
    elements."""
    start: Ints = field()
    writer: FileWriter = field()
    documents: Mapping[str, bytes]
    """The small files, by path."""
    stem: str
    """The beginning of the temporary names."""

    @property
    def asides(self) -> list[str]:
        return folder_asides(self.stem, len(self.paths), self.new.generation)

    @property
    def forces_files(self) -> bool:
        """True on a disk: many small files are forced faster together than one by one."""
        return self.new.storage.local_path is not None

    @abstractmethod
    def own(self, folder: str) -> set[str]:
        """Return the files in a folder that belong to a checkpoint, or to its writers."""

    def conclude(self) -> Mapping[str, bytes]:
        """Return the small files that are made of finished files, by path."""
        return {}

    def ends(self) -> Mapping[str, bytes]:
        """Return the files that are written last, such as the index, by path."""
        return {}

    def moves(self) -> list[tuple[str, str]]:
        """Return the temporary name and the place of each file that is needed."""
        return [(aside, path) for aside, path in zip(self.asides, self.paths, strict=True) if path]

    def exchange(self, beside: FolderBeside) -> None:
        """Build the new folder next to its place, and exchange the two."""
        try:
            beside.make()
            for path, content in {**self.documents, **self.conclude()}.items():
                beside.write(path, content)
            for aside, path in self.moves():
                beside.take(aside, path)
            for path, content in self.ends().items():
                beside.write(path, content)
            beside.put_in_place(self.own)
        except BaseException as error:
            beside.discard(self.own)
            old = State.OLD if os.path.isdir(beside.place) else State.ASIDE
            add_state(error, State.NEW if beside.is_in_place() else old)
            raise

    def withdraw(self) -> None:
        discard_files(self.new.storage, self.asides)


def folder_asides(stem: str, count: int, generation: str) -> list[str]:
    return [f"{stem}-{number:05}.{generation}.tmp" for number in range(count)]
