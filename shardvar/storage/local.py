"""A directory of the local disk, and the way from what a person typed to a directory and a bare name.

A name is bare: without separators, and neither ``.`` nor ``..``, so that no index leads out of the directory. Links are
followed in reading (caches of downloaded checkpoints are made of them) and never in writing.
"""

import errno
import os
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass

from shardvar.errors import ArgumentError, ArgumentTypeError, InvalidCheckpoint, ShardvarError, StorageError
from shardvar.storage.local_file import (
    LocalReadableFile,
    LocalWritableFile,
    create_local,
    locked,
    open_local,
    reading,
    sync,
    writing,
)

_NAME_NBYTES = 255
"""The longest name that the usual file systems take."""

_CANNOT_SYNC = {errno.EINVAL, errno.EBADF, errno.ENOTSUP}
"""What network file systems answer that have no way to sync a directory, and no need for one."""


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """One directory; it need not exist until something is created in it."""

    path: str
    """The directory's path."""

    def open(self, name: str) -> LocalReadableFile:
        """Open a file; ``MissingFile`` where it is not there, ``MalformedCheckpoint`` where it is no regular file."""
        return open_local(self._join(name, InvalidCheckpoint))

    def create(self, name: str) -> LocalWritableFile:
        """Open a new file for writing; it takes the place of one of that name."""
        return create_local(self._join(name))

    def names(self) -> list[str]:
        """The names of the files in the directory, sorted; none where there is no such directory."""
        with reading(self.path):
            try:
                with os.scandir(self.path) as entries:
                    return sorted(entry.name for entry in entries if not _is_directory(entry))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def rename(self, old: str, new: str) -> None:
        """Put ``old`` in the place of ``new``, in one step, and force that step to the disk."""
        source, target = self._join(old), self._join(new)
        with writing(target):
            # Names reach the disk in any order, but across a sync of their directory. Before, because the file may be
            # an index: the data files that it names must be there whenever it is, and an older index whose data files
            # it replaces must be gone. After, because the files of the checkpoint that is replaced are removed next,
            # and because whoever called is told that the new one is in place.
            _sync_directory(self.path)
            os.replace(source, target)
            _sync_directory(self.path)

    def remove(self, name: str) -> None:
        """Delete a file; nothing happens where it is not there."""
        path = self._join(name)
        with writing(path), suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)

    def lock(self, name: str) -> AbstractContextManager[None]:
        """Hold ``name`` for one writer; ``StorageError`` at once where another holds it. Dies with its process."""
        return locked(self._join(f".{name}.lock"), self._join(name))

    def make(self) -> None:
        """Make the directory, and those above it, where they are not there yet."""
        missing = []
        path = self.path
        while path and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for path in reversed(missing):
            with writing(path):
                os.makedirs(path, exist_ok=True)  # another writer may have been faster
                # Whatever is forced to the disk in a directory is lost with it if its own name is not there.
                _sync_directory(os.path.dirname(path) or os.curdir)

    def free_nbytes(self) -> int:
        """The bytes that may still be written to the disk of the directory, or of the one where it would be made."""
        path = self.path
        while not os.path.isdir(path) and path != os.path.dirname(path):
            path = os.path.dirname(path)
        with writing(path):
            disk = os.statvfs(path or os.curdir)
        return disk.f_bavail * disk.f_frsize

    def _join(self, name: str, error: type[ShardvarError] = ArgumentError) -> str:
        """The path of a file; ``error`` where the name is not bare."""
        complaint = _complaint(name)
        if complaint:
            raise error(
                f"{name!r} is no name of a file in {self.path}: {complaint}.", "A name stands for itself alone."
            )
        return os.path.join(self.path, name)


def split(path: str | os.PathLike[str]) -> tuple[LocalStorage, str]:
    """The directory and the bare name that a path means; the name is empty where the path is a directory.

    The directory is absolute, so that it means the same in another process. Nothing is created, ``~`` is not expanded.
    """
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise ArgumentTypeError(f"{path!r} is no path.", "Give the path of a checkpoint.") from None
    if not text or "\0" in text:
        raise ArgumentError(f"{text!r} is no path.", "Give the path of a checkpoint.")
    try:
        full = os.path.join(os.getcwd(), text)
    except OSError as error:
        raise StorageError("The working directory is gone.", "Change to another directory.") from error
    # Blank steps and "." go; ".." stays, for it leads elsewhere from behind a link.
    steps = [step for step in full.split(os.sep) if step not in ("", os.curdir)]
    if os.path.isdir(full) or full.endswith((os.sep, os.sep + os.curdir, os.sep + os.pardir)):
        return LocalStorage(os.sep + os.sep.join(steps)), ""
    complaint = _complaint(steps[-1])
    if complaint:
        raise ArgumentError(f"{steps[-1]!r} is no name of a checkpoint: {complaint}.", "Choose another one.")
    return LocalStorage(os.sep + os.sep.join(steps[:-1])), steps[-1]


def _complaint(name: str) -> str:
    """What keeps a name from being one; empty where nothing does."""
    if name in ("", os.curdir, os.pardir):
        return "it names no file"
    if any(character in name for character in ("\0", os.sep, os.altsep) if character):
        return "it has a separator or a NUL in it"
    try:
        nbytes = len(os.fsencode(name))
    except UnicodeEncodeError:
        return "it cannot be encoded"
    return f"it has {nbytes} bytes, and {_NAME_NBYTES} are the most" if nbytes > _NAME_NBYTES else ""


def _is_directory(entry: "os.DirEntry[str]") -> bool:
    """Whether an entry is a directory or leads to one; a link that leads nowhere is not, and says so when opened."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)
