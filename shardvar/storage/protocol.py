"""What the rest of shardvar may ask of the place where a checkpoint's files live.

A ``Storage`` is one directory (or one bucket prefix); files in it are named by bare names, so that no index, however
hostile, can reach a file outside the checkpoint. Offsets and sizes are bytes of the file.
"""

from contextlib import AbstractContextManager
from typing import Protocol


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
        """What tells this content from another under the same name, as far as the storage knows (size, time)."""

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``start`` on; ``IncompleteCheckpoint`` where the file ends before."""

    def read(self, start: int, nbytes: int) -> bytes:
        """The bytes ``[start, start + nbytes)``; refused before anything is allocated where the file is shorter."""

    def map(self) -> memoryview:
        """The whole file as a read-only memory map."""

    def close(self) -> None:
        """Give the file back. Maps handed out stay valid."""


class WritableFile(Protocol):
    """A new file, written at any offset, by several threads at once."""

    @property
    def name(self) -> str:
        """The full path, for messages."""

    def write(self, start: int, buffer: memoryview | bytes) -> None:
        """Put ``buffer`` at ``[start, start + len(buffer))``; ``StorageError`` where the disk is full."""

    def close(self) -> None:
        """Force the bytes to the disk and give the file back."""


class Storage(Protocol):
    """One directory of files, each named by a bare name."""

    @property
    def path(self) -> str:
        """The directory's path, for messages."""

    def open(self, name: str) -> ReadableFile:
        """Open a file; ``MissingFile`` where it is not there, ``MalformedCheckpoint`` where it is no regular file."""

    def create(self, name: str) -> WritableFile:
        """Open a file for writing, emptied if it was there."""

    def names(self) -> list[str]:
        """The names of the files in the directory, sorted."""

    def rename(self, old: str, new: str) -> None:
        """Put ``old`` in the place of ``new``, in one step, and force that step to the disk."""

    def remove(self, name: str) -> None:
        """Delete a file; nothing happens where it is not there."""

    def lock(self, name: str) -> AbstractContextManager[None]:
        """Hold ``name`` for one writer; ``StorageError`` at once where another holds it. Dies with its process."""
