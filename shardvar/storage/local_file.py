"""One file of the local disk, open for reading or for writing at any offset, by several threads at once.

The kernel may move fewer bytes than it was asked to (never more than 2 GiB at a time), so each transfer is a loop;
Python itself starts a call anew that a signal interrupted.

A descriptor that is closed while another thread reads through it may by then mean another file. So nobody closes one:
``close`` lets go of it, and it is closed when the last call that is under way lets go too.
"""

import fcntl
import mmap
import os
import stat
from contextlib import suppress
from dataclasses import dataclass

from shardvar.errors import ArgumentError, IncompleteCheckpoint, MalformedCheckpoint, StorageError
from shardvar.storage.refusals import reading, writing

_CHUNK = 1 << 30
"""Bytes of one system call: Linux moves at most 2 GiB - 4 KiB, macOS refuses to move 2 GiB."""

_EARLY_NBYTES = 1 << 20
"""The disk begins early with writes of at least these bytes; small ones are better left to be put together."""

_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a fifo", stat.S_IFSOCK: "a socket"}


class _Descriptor:
    """An open file of the operating system's, closed when nobody holds it."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


@dataclass(slots=True)
class LocalReadableFile:
    """A file open for reading. Maps stay valid after ``close``; a file that shrinks under its map ends the process."""

    name: str
    """The full path, for messages."""
    size: int
    """The number of bytes in the file when it was opened."""
    stamp: str
    """Size, time of change and inode: what tells this content from another under the same name."""
    _descriptor: _Descriptor | None
    """What the operating system reads from; None once closed."""

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes from ``start`` on; ``IncompleteCheckpoint`` where the file ends before."""
        if not buffer.nbytes:
            return
        octets = buffer.cast("B")
        self._check_range(start, len(octets))
        descriptor, done = self._open_descriptor(), 0
        with reading(self.name):
            while done < len(octets):
                piece = octets[done : done + _CHUNK]
                count = os.preadv(descriptor.number, [piece], start + done)
                if not count:
                    raise self._ends_before(start, len(octets))
                done += count

    def read(self, start: int, nbytes: int) -> bytes:
        """The bytes ``[start, start + nbytes)``; refused before anything is allocated where the file is shorter."""
        self._check_range(start, nbytes)
        descriptor, pieces, done = self._open_descriptor(), [], 0
        with reading(self.name):
            while done < nbytes:
                piece = os.pread(descriptor.number, min(nbytes - done, _CHUNK), start + done)
                if not piece:
                    raise self._ends_before(start, nbytes)
                pieces.append(piece)
                done += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def map(self) -> memoryview:
        """The whole file as a read-only memory map."""
        descriptor = self._open_descriptor()
        if not self.size:
            return memoryview(b"")
        with reading(self.name):
            if os.fstat(descriptor.number).st_size < self.size:
                raise self._ends_before(0, self.size)
            return memoryview(mmap.mmap(descriptor.number, self.size, prot=mmap.PROT_READ))

    def close(self) -> None:
        """Give the file back. Maps handed out stay valid, and calls under way come to their end."""
        self._descriptor = None

    def _open_descriptor(self) -> _Descriptor:
        if self._descriptor is None:
            raise ArgumentError(f"{self.name} was closed.", "Open the checkpoint again.")
        return self._descriptor

    def _check_range(self, start: int, nbytes: int) -> None:
        if start < 0 or nbytes < 0:
            raise ArgumentError(f"{self.name} has no {nbytes} bytes at offset {start}.", "Neither may be negative.")
        if start + nbytes > self.size:
            raise self._ends_before(start, nbytes)

    def _ends_before(self, start: int, nbytes: int) -> IncompleteCheckpoint:
        return IncompleteCheckpoint(
            f"{self.name} ends before the {nbytes} bytes at offset {start}: it has {self.size}.",
            "The file was cut short; copy it again from where it was written.",
        )


@dataclass(slots=True)
class LocalWritableFile:
    """A new file, open for writing."""

    name: str
    """The full path, for messages."""
    _descriptor: _Descriptor | None
    """What the operating system writes to; None once closed."""

    def write(self, start: int, buffer: memoryview | bytes) -> None:
        """Put ``buffer`` at ``[start, start + len(buffer))``; ``StorageError`` where the disk is full."""
        view = memoryview(buffer)
        if not view.nbytes:
            return
        octets, descriptor, done = view.cast("B"), self._open_descriptor(), 0
        with writing(self.name):
            while done < len(octets):
                count = os.pwrite(descriptor.number, octets[done : done + _CHUNK], start + done)
                if not count:
                    raise StorageError(f"{self.name} takes no more bytes at offset {start + done}.", "Check the disk.")
                done += count
        _begin_sync(descriptor.number, start, done)

    def close(self) -> None:
        """Force the bytes to the disk and give the file back; nothing happens the second time."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with writing(self.name):
                # A name may reach the disk before the bytes: of an index that is renamed, of the data files that it
                # names, of a file whose journal says that it is finished. A sync that failed is not tried again: the
                # next one may call bytes forced that the system has given up. Such a file is written anew.
                sync(descriptor.number)

    def _open_descriptor(self) -> _Descriptor:
        if self._descriptor is None:
            raise ArgumentError(f"{self.name} was closed.", "Write before you close.")
        return self._descriptor


def open_local(path: str) -> LocalReadableFile:
    """Open a file for reading; ``MalformedCheckpoint`` where it is no regular one."""
    with reading(path):
        # Opened without O_NONBLOCK, a fifo would wait for a writer forever.
        descriptor = _Descriptor(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        status = os.fstat(descriptor.number)
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a device")
        raise MalformedCheckpoint(f"{path} is {kind}, not a file.", "Name a file that holds a checkpoint.")
    stamp = f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"
    return LocalReadableFile(path, status.st_size, stamp, descriptor)


def create_local(path: str) -> LocalWritableFile:
    """Open a new file for writing; whoever has an old one of that name open or mapped keeps it.

    A new file is also written faster than an old one that is emptied, and a link in its place is not followed.
    """
    with writing(path):
        with suppress(FileNotFoundError):
            os.unlink(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return LocalWritableFile(path, _Descriptor(os.open(path, flags, 0o666)))


def _begin_sync(descriptor: int, start: int, nbytes: int) -> None:
    """Let the disk begin with bytes just written, so that the sync in the end finds little left to wait for.

    Linux writes out what it is told is not needed, without waiting; what is not written yet stays in memory.
    """
    if nbytes >= _EARLY_NBYTES and hasattr(os, "posix_fadvise"):
        with suppress(OSError):  # a hint; where it cannot be given, the sync does all
            os.posix_fadvise(descriptor, start, nbytes, os.POSIX_FADV_DONTNEED)


def sync(descriptor: int) -> None:
    """Force a file's bytes to the disk itself."""
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync stops at the disk's own cache
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)
