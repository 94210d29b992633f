"""The data files of an open checkpoint, few of them open at a time, and whether a writer replaced it meanwhile."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Lock

from shardvar.errors import (
    ArgumentError,
    CheckpointError,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MissingFile,
    StorageError,
)
from shardvar.layout.dtypes import Ints
from shardvar.storage.protocol import ReadableFile, Storage
from shardvar.wire.damage import COPY_AGAIN

OPEN_FILES = 64
"""Files that are held open at a time, of which a process may have 256 on some systems."""

ATTEMPTS = 16
"""Times that a checkpoint is opened, where each time a writer replaces it meanwhile, before that is called an error."""


def is_replaced(storage: Storage, name: str, file: ReadableFile) -> bool:
    """Whether another file than ``file``, which is open, has that name now; one that is gone is not replaced."""
    try:
        other = storage.open(name)
    except MissingFile:
        return False
    try:
        return other.stamp != file.stamp
    finally:
        other.close()


def replaced(name: str) -> CorruptCheckpoint:
    """What a reader is told who came between the files of two checkpoints."""
    return CorruptCheckpoint(f"{name} was replaced while the checkpoint was being read.", "Open the checkpoint again.")


@dataclass(frozen=True, slots=True, eq=False)
class DataFiles:
    """The data files of an open checkpoint, by number; safe to use from several threads.

    At most ``OPEN_FILES`` of them are held open, those that were asked for last. One that makes room is let go of and
    not closed, because a thread may be reading from it: it is closed when its last reader lets go too.
    """

    storage: Storage
    """The directory that holds them."""
    names: Sequence[str]
    """[files] their bare names."""
    nbytes: Ints | None = None
    """[files] the size that the index gives each of them; None where the format's index gives none."""
    _open: OrderedDict[int, ReadableFile] = field(init=False, default_factory=OrderedDict)
    _stamps: dict[int, str] = field(init=False, default_factory=dict)
    _maps: dict[int, memoryview] = field(init=False, default_factory=dict)
    _faults: dict[int, CheckpointError | None] = field(init=False, default_factory=dict)
    _closed: Event = field(init=False, default_factory=Event)
    _lock: Lock = field(init=False, default_factory=Lock)

    def open(self, number: int) -> ReadableFile:
        """Return a file, open; ``CorruptCheckpoint`` if another has taken its place since it was opened first."""
        with self._lock:
            if self._closed.is_set():
                raise ArgumentError("The checkpoint was closed.", "Open it again.")
            file = self._open.get(number)
            if file is None:
                file = self._open[number] = self._open_anew(number)
                if len(self._open) > OPEN_FILES:
                    self._open.popitem(last=False)
            self._open.move_to_end(number)
            return file

    def map(self, number: int) -> memoryview:
        """Return a file as a read-only memory map, the same one each time."""
        file = self.open(number)
        with self._lock:
            if number not in self._maps:
                self._maps[number] = file.map()
            return self._maps[number]

    def fault(self, number: int) -> CheckpointError | None:
        """Return what is wrong with a file, or None if nothing is; the file is looked at once.

        A refusal by the machine (no permission, for example) is not a fault of the checkpoint: it is raised when the
        file is read.
        """
        if number not in self._faults:
            self._faults[number] = None
            try:
                self.open(number)
            except CheckpointError as error:
                self._faults[number] = error
            except StorageError:
                pass
        return self._faults[number]

    def hold(self) -> bool:
        """Open as many of the files as are held open at a time; return False if one of them is missing.

        An open file keeps its bytes when a new commit removes its name. So a reader that holds all files of a
        checkpoint keeps that checkpoint.
        """
        held = range(min(len(self.names), OPEN_FILES))
        return not any(isinstance(self.fault(number), MissingFile) for number in held)

    def close(self) -> None:
        """Give all files back. Maps that were handed out stay valid."""
        with self._lock:
            self._closed.set()
            for file in self._open.values():
                file.close()
            self._open.clear()
            self._maps.clear()

    def _open_anew(self, number: int) -> ReadableFile:
        """Open a file and compare it with what is known of it."""
        file = self.storage.open(self.names[number])
        if self._stamps.setdefault(number, file.stamp) != file.stamp:
            file.close()
            raise replaced(file.name)
        if self.nbytes is not None and file.size != self.nbytes[number]:
            # A file of another size is not the file that was written, so no byte of it is read.
            file.close()
            error = IncompleteCheckpoint if file.size < self.nbytes[number] else InvalidCheckpoint
            raise error(f"{file.name} has {file.size} bytes, and the index says {self.nbytes[number]}.", COPY_AGAIN)
        return file


# The steps that make a checkpoint of finished files visible, or take one away, the same for every format.
#
# The index, or the only file, is renamed last: that is the step in which the new checkpoint takes the place of the old
# one. An error or an interrupt before it leaves nothing of the new checkpoint, one in it or after it removes nothing
# that
# may be in place. A process that is killed leaves what there is at that moment, and the next commit removes it.
#
# Taking away goes the other way round: what makes the files a checkpoint goes first.


def put_in_place(
    storage: Storage,
    renames: Sequence[tuple[str, str]],
    last: tuple[str, str],
    content: bytes | None = None,
    retired: Sequence[str] = (),
) -> None:
    """Rename data files, then the ``last`` file, from the names under which they were written to their own.

    ``content`` is what the last file is to hold where it is not written yet. A data file whose two names are the same
    stays where it is. ``retired`` are files of the old checkpoint that go before any data file is renamed, for formats
    whose new files take the places of old ones.
    """
    aside, final = last
    try:
        if content is not None:
            write_file(storage, aside, content)
        for name in retired:
            storage.remove(name)
        for old, new in renames:
            if old != new:
                storage.rename(old, new)
    except BaseException:
        _withdraw(storage, renames, aside)
        raise
    try:
        storage.rename(aside, final)
    except BaseException:
        # The rename may have been made and only forcing it to the disk have failed: then the new checkpoint is there.
        if aside in storage.names():
            _withdraw(storage, renames, aside)
        raise


def _withdraw(storage: Storage, renames: Sequence[tuple[str, str]], aside: str) -> None:
    """Remove the new files, each of which is under one of its two names."""
    with suppress(StorageError):
        there = set(storage.names())
        remove_files(storage, (aside, *(old if old in there else new for old, new in renames)))


def write_file(storage: Storage, name: str, content: bytes) -> None:
    """Write a small file whole."""
    file = storage.create(name)
    try:
        file.write(0, content)
    finally:
        file.close()


def remove_files(storage: Storage, names: Iterable[str]) -> None:
    """Remove files as far as the disk lets: what stays harms nobody, and the next commit removes it.

    An error here would hide the one that led here, or make a checkpoint that is in place look as if it were not.
    """
    for name in names:
        with suppress(StorageError):
            storage.remove(name)


def remove_unnamed(storage: Storage, unnamed: Callable[[list[str]], Iterable[str]]) -> None:
    """Once a checkpoint is in place, remove those files of the directory that it has left without a name."""
    with suppress(StorageError):
        remove_files(storage, unnamed(storage.names()))


def take_away(
    storage: Storage, indexes: Sequence[tuple[str, str]], unnamed: Callable[[list[str]], Iterable[str]]
) -> None:
    """Remove a checkpoint: its index (or its only file) in one step, and then whatever that leaves without a name.

    ``indexes`` are names with those that they have aside. A rename is forced to the disk and a removal is not: were the
    index removed, it could be there again after a crash, and files that it names could not.
    """
    there = storage.names()
    for name, aside in indexes:
        if name in there:
            storage.rename(name, aside)
    for name in unnamed(storage.names()):
        storage.remove(name)
