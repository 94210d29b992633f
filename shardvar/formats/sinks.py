"""Sinks whose files have temporary names until the commit.

``FileSink`` withdraws what has a temporary name. ``OneFileSink`` is the whole sink of a format
whose checkpoint is one file.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardvar.errors import UnsupportedError
from shardvar.formats.files import discard_files, put_in_place, remove_unnamed, take_away
from shardvar.formats.protocol import FileChecksums, FileWriter, Sink
from shardvar.formats.unfinished import JOURNAL_ENDING
from shardvar.layout.dtypes import Ints
from shardvar.planning.slices import SliceTable
from shardvar.storage.protocol import Storage


class FileSink(Sink):
    """A checkpoint that is being written, in files with temporary names."""

    __slots__ = ()

    @property
    @abstractmethod
    def storage(self) -> Storage:
        """The directory for the files."""

    @property
    def temporary(self) -> Sequence[str]:
        """The temporary names of all files, the index included."""
        return self.asides

    def withdraw(self) -> None:
        """Remove the files that have temporary names; a commit leaves none."""
        discard_files(self.storage, self.temporary)


@dataclass(frozen=True, slots=True, eq=False)
class OneFileSink(FileSink):
    """A checkpoint of one file that is being written."""

    storage: Storage = field()
    """The directory for the file."""
    name: str
    """The final name of the file."""
    generation: str
    """The token in its temporary name."""
    start: Ints = field()
    """[m] the first byte of each payload, in bytes of the file."""
    writer: FileWriter = field()
    """The frame and the checksums of the file."""
    empty: Callable[[], bytes]
    """Returns the bytes of a file without payloads, which the engine does not write."""

    @property
    def asides(self) -> list[str]:
        """Its temporary name, as the only item."""
        return [f"{self.name}.{self.generation}.tmp"]

    def commit(self, checksums: Sequence[FileChecksums]) -> None:
        """Put the finished file in place."""
        content = None if checksums else self.empty()
        # The rename is the commit. What earlier writers left is removed only after it.
        put_in_place(self.storage, [], (self.asides[0], self.name), content, tidy=self._tidy)

    def _tidy(self) -> None:
        remove_unnamed(self.storage, lambda names: temporary_files(re.escape(self.name), names))


def remove_one_file(storage: Storage, name: str) -> None:
    """Remove a checkpoint of one file, and the temporary files of its writers."""
    removed = name, f"{name}.removed.tmp"
    take_away(storage, [removed], lambda names: temporary_files(re.escape(name), names))


def temporary_files(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the temporary files of names that match a pattern, and their journals.

    >>> temporary_files(r"a\\.npz", ["a.npz", "a.npz.1f.tmp", "a.npz.1f.tmp.done", "b.npz.1f.tmp"])
    ['a.npz.1f.tmp', 'a.npz.1f.tmp.done']
    """
    aside = re.compile(rf"(?:{pattern})\.[A-Za-z0-9]+\.tmp{JOURNAL_ENDING}", re.DOTALL)
    return list(filter(aside.fullmatch, names))


def check_uncut(slices: SliceTable, form: str) -> None:
    """Raise ``UnsupportedError`` if a format that holds whole tensors is given a part of one."""
    cut = np.flatnonzero(~slices.is_whole())
    if len(cut):
        region, key = slices.region(int(cut[0])), slices.key(int(cut[0]))
        cause = f"The format {form} cannot hold the slice {region} of {key!r}."
        raise UnsupportedError(cause, "Write the tensor whole.")
