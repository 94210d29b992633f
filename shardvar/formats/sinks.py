"""Sinks whose files have temporary names until the commit.

``FileSink`` withdraws what has a temporary name. ``OneFileSink`` is the whole sink of a format
whose checkpoint is one file. ``take_away`` removes a checkpoint in the reverse order of a commit: the
file that makes the others a checkpoint goes first.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from shardvar.errors import StorageError, UnsupportedError
from shardvar.formats.files import discard_files, put_in_place, remove_unnamed, write_file
from shardvar.formats.outcomes import State, add_state
from shardvar.formats.protocol import FileChecksums, FileWriter, Sink
from shardvar.formats.unfinished import JOURNAL_ENDING
from shardvar.layout.dtypes import Ints
from shardvar.planning.slices import SliceTable
from shardvar.storage.concurrency import do_all
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


def take_away(
    storage: Storage,
    indexes: Sequence[tuple[str, str]],
    unnamed: Callable[[list[str]], Iterable[str]],
    *,
    has_mark: bool = False,
) -> None:
    """Remove a checkpoint: its index (or its only file) in one step, and then all files that this
    leaves unnamed.

    ``indexes`` are names, each with a temporary one. A format whose names of files differ between
    writers, and which ``has_mark`` of what it removes, needs no claim.
    """
    # Commit: a rename is forced to the disk, a removal is not. If the index were removed, it could
    # be back after a power cut, and the files that it names could be gone. A bucket forgets no
    # removal; a mark is there in the place of the renamed index.
    is_disk = storage.local_path is not None
    if not is_disk and not has_mark:
        storage.claim(removes=True)
    there = {*storage.names()}
    try:
        for name, aside in indexes:
            if name in there and is_disk:
                storage.rename(name, aside)
            elif name in there:
                if not has_mark and [*unnamed(sorted(there - {name}))]:
                    storage.announce([aside])
                    write_file(storage, aside, b"")
                    storage.finish(aside)
                storage.remove(name)
        # Remove: the renamed indexes are among the unnamed files. After a crash here, the next commit or
        # removal removes the rest. What tells it of this one goes last.
        left, asides = [*unnamed(storage.names())], [aside for _, aside in indexes]
        do_all(storage.remove, [name for name in left if name not in asides], storage.traits)
        do_all(storage.remove, [name for name in left if name in asides], storage.traits)
    except StorageError as error:
        with suppress(StorageError):
            if {name for name, _ in indexes if name in there}.isdisjoint(storage.names()):
                add_state(error, State.REMOVED)
        raise


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
