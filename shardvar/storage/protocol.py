"""The interface of the place that holds a checkpoint's files.

A ``Storage`` is one directory (or one bucket prefix). Files in it have bare names, without
separators, so that even a hostile index cannot name a file outside the checkpoint. A new file
may also have a path: bare names joined by "/"; the last is the file's. Folders are there as long as
there are files in them: writing a file makes them, and removing the last file removes them. Offsets
and sizes are bytes of the file.

Whether a commit survives a crash depends on two promises of a storage: ``WritableFile.close``
returns once the bytes are on the disk, and ``rename`` replaces a name in one step and returns once
that step is on the disk.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol


class FileStatus(NamedTuple):
    """Size, age and identity of a file, as its folder tells them."""

    nbytes: int
    """The number of bytes."""
    changed: float | None
    """The time of the last change, in seconds since the Epoch; None if it is not known."""
    stamp: str
    """The ``ReadableFile.stamp`` of the file."""


class Traits(NamedTuple):
    """The cost of a request to a remote storage, by which the engine plans its reads."""

    small_nbytes: int
    """A read of so many bytes costs as much as its request: smaller ones are joined."""
    gap_nbytes: int
    """Bytes between two ranges for which a second request is not worth while, as long as there are
    not many gaps."""
    waste_nbytes: int
    """The most bytes that one read of many ranges may bring along in such gaps."""
    requests: int
    """Requests that may be under way at a time."""
    short_requests: int = 0
    """The same for requests of a few bytes, which only wait; 0 for no more than others."""
    in_flight_nbytes: int = 64 << 20
    """The bytes of all requests that are under way: at 100 MB/s, what comes in 0.7 s."""
    rehearsal: Any = None
    """The rehearsal of a dry run."""

    @property
    def is_rehearsed(self) -> bool:
        """True while requests are only counted, so that the bytes of payloads mean nothing."""
        return bool(self.rehearsal and self.rehearsal.is_on)


class ReadableFile(Protocol):
    """A file open for reading at any offset, by several threads at once."""

    @property
    def name(self) -> str:
        """The full path, for messages."""

    @property
    def size(self) -> int:
        """The number of bytes in the file."""

    @property
    def stamp(self) -> str:
        """A text that differs for another file of that name, as far as known (size, time)."""

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``start``; ``IncompleteCheckpoint`` at the end."""

    def read(self, start: int, nbytes: int) -> bytes:
        """Return the bytes ``[start, start + nbytes)``; a file that is too short is refused before
        any allocation."""

    def map(self) -> memoryview:
        """Return the whole file as a read-only memory map."""

    def close(self) -> None:
        """Close the file. Maps that were handed out stay valid."""


class WritableFile(Protocol):
    """A new file, written at any offset, by several threads at once."""

    @property
    def name(self) -> str:
        """The full path, for messages."""

    def write(self, start: int, buffer: memoryview | bytes) -> None:
        """Write ``buffer`` from ``start``; ``StorageError`` if the disk is full."""

    def close(self) -> None:
        """Force the bytes to the disk and close the file."""


class FileOpener(Protocol):
    """The part of a storage that a reader of known files needs."""

    @property
    def traits(self) -> Traits | None:
        """The cost of a request; None on a local disk; the engine assumes its costs."""

    def open(self, name: str) -> ReadableFile:
        """Open a file; ``MissingFile``, or ``MalformedCheckpoint`` if it is not a regular file."""


class Storage(FileOpener, Protocol):
    """One directory of files, each named by a bare name."""

    @property
    def path(self) -> str:
        """The directory's path, for messages."""

    @property
    def local_path(self) -> str | None:
        """The directory's path on the local disk; None if the files are not on a local disk."""

    def create(self, name: str) -> WritableFile:
        """Open a new file for writing, by its name or path; it replaces an old one."""

    def names(self) -> list[str]:
        """Return the names of the files in the directory, sorted."""

    def stamp(self, name: str) -> str | None:
        """Return the stamp that the file has at this moment; None if it is missing."""

    def refreshed(self) -> "Storage":
        """Return the same directory without memory: what others wrote is seen."""

    def folders(self) -> list[str]:
        """Return the names of the directories in the directory, sorted, without symbolic links."""

    def folder(self, name: str) -> "Storage":
        """Return a directory in the directory; it need not exist."""

    def status(self, name: str) -> FileStatus | None:
        """Return size and age of a file in the directory; None if it does not exist."""

    def tree(self) -> dict[str, FileStatus]:
        """Return the facts of all files below the directory, by sorted paths; linked folders are
        left out."""

    def create_once(self, name: str, content: bytes) -> bool:
        """Write a small file whole, unless the name is taken; of several callers at a time exactly
        one gets True. Contents must differ between callers; earlier writes are on the disk
        before."""

    def rename(self, old: str, new: str) -> None:
        """Rename in one step; force the steps before, and then it, to the disk. A bucket uploads or
        copies the file in this step, and commits only once in a write."""

    def move(self, old: str, new: str) -> None:
        """Rename ``old`` to the name or path ``new`` in one step, forced by the next ``sync``."""

    def announce(self, names: Iterable[str]) -> None:
        """Announce files under their final names; a bucket uploads each once it is finished."""

    def finish(self, name: str) -> None:
        """Mark a new file as closed and whole; a bucket uploads it if it was announced."""

    def lend(self, names: Iterable[str], nbytes: int = 0) -> None:
        """Announce files that others write by ``borrowed``, of about ``nbytes`` at most; only
        within ``lock``. ``LockHeld`` if a bucket has another writer of their final names."""

    def claim(self, *, removes: bool = False) -> None:
        """Keep out other writers of files that have the same names in each write, until ``lock`` is
        left; ``LockHeld``. With ``removes``, another removal may take the claim over."""

    def borrowed(self, name: str) -> AbstractContextManager["Storage"]:
        """Give the storage in which a lent file is written; it is in place at the end, without an
        error."""

    def sync(self, folder: str = "") -> None:
        """Force all changes of names to the disk, in the directory or one folder of it."""

    def remove(self, name: str) -> None:
        """Delete a file by its name or path; does nothing if it does not exist."""

    def discard(self, names: Iterable[str]) -> None:
        """Delete files that a commit has left, many in one request, as far as it is possible."""

    def lock(self, name: str) -> AbstractContextManager[None]:
        """Hold ``name`` for one writer; ``LockHeld`` at once if another holds it."""

    def make(self) -> None:
        """Make the directory, and those above it, if they do not exist."""

    def check_writable(self, name: str) -> None:
        """Raise what ``make`` and ``lock`` would raise, as far as known, without a change."""

    def check_names(self, names: Iterable[str]) -> None:
        """Raise if one of the names cannot be given to a new file."""

    def free_nbytes(self) -> int:
        """Return the bytes for which the directory has room."""
