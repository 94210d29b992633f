"""One file of the local disk, open for reading or for writing at any offset, by several threads at once.

The kernel may move fewer bytes than it was asked to (never more than 2 GiB at a time), so each transfer is a loop;
Python itself starts a call anew that a signal interrupted.

A descriptor that is closed while another thread reads through it may by then mean another file. So nobody closes one:
``close`` lets go of it, and it is closed when the last call that is under way lets go too.
"""

import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from shardvar.errors import (
    ArgumentError,
    IncompleteCheckpoint,
    LockHeld,
    MalformedCheckpoint,
    MissingFile,
    ShardvarError,
    StorageError,
)

# What the operating system's refusals mean: every ``OSError`` becomes one of shardvar's own at this boundary.
#
# Reading and writing differ in one thing: what is absent is a ``MissingFile`` to a reader, who was told by a checkpoint
# that it is there, and a ``StorageError`` to a writer, whose directory is not there. All else is the machine's fault.


_ABSENT = {errno.ENOENT, errno.ENOTDIR}
_NO_DEVICE = errno.ENXIO  # a socket, or a fifo that nobody reads

_REFUSALS: dict[int, tuple[str, str]] = {
    errno.EACCES: ("permission is denied", "Change its permissions, or run as a user who has them."),
    errno.EPERM: ("permission is denied", "Change its permissions, or run as a user who has them."),
    errno.EROFS: ("the file system is read-only", "Choose another place."),
    errno.ENOSPC: ("the disk is full", "Free some space and run it again; what was there before is untouched."),
    errno.EDQUOT: (
        "the disk quota is used up",
        "Free some space and run it again; what was there before is untouched.",
    ),
    errno.EFBIG: ("the file would be larger than allowed", "Raise `ulimit -f`, or write smaller files."),
    errno.EIO: ("the disk does not answer (input/output error)", "Check the disk, and copy the files to another one."),
    errno.EMFILE: ("too many files are open", "Raise `ulimit -n`."),
    errno.ENFILE: ("too many files are open on this machine", "Close some programs."),
    errno.ELOOP: ("it is a symbolic link that is not followed", "Remove the link, or name what it points to."),
    errno.ENAMETOOLONG: ("the path is too long", "Choose a shorter one."),
    errno.EEXIST: ("something else stands there", "Choose another name, or move it away."),
    errno.ENOTDIR: ("what should be its directory is a file", "Choose another place, or move the file away."),
    errno.EISDIR: ("it is a directory", "Choose another name, or move the directory away."),
    errno.ENOTEMPTY: ("it is a directory", "Choose another name, or move the directory away."),
    errno.ENOLCK: ("the file system has no locks", "Choose a place on a local disk."),
    errno.ENOTSUP: ("the file system cannot do this", "Choose a place on a local disk."),
    errno.ENODEV: ("the file system has no memory maps", "Read without `mmap`."),
    errno.ENOMEM: ("there is not enough memory", "Read less at a time."),
}


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Raise what an ``OSError`` inside means to somebody who reads ``path``."""
    try:
        yield
    except ShardvarError:
        raise  # some of them are OSErrors
    except OSError as error:
        raise _refused_reading(path, error) from error


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Raise what an ``OSError`` inside means to somebody who writes ``path``."""
    try:
        yield
    except ShardvarError:
        raise  # some of them are OSErrors
    except OSError as error:
        raise _refused_writing(path, error) from error


def _refused_reading(path: str, error: OSError) -> ShardvarError:
    if error.errno in _ABSENT:
        return MissingFile(f"{path} is not there.", "Find the file, or use another checkpoint.")
    if error.errno == errno.ELOOP:
        return MissingFile(f"{path} is not there: its symbolic links lead in a circle.", "Find the file it stood for.")
    if error.errno == _NO_DEVICE:
        return MalformedCheckpoint(f"{path} is not a regular file.", "Name a file that holds a checkpoint.")
    return _refused(f"{path} cannot be read", error)


def _refused_writing(path: str, error: OSError) -> ShardvarError:
    if error.errno == errno.ENOENT:
        return StorageError(f"{path} cannot be written: there is no such directory.", "Make the directory first.")
    return _refused(f"{path} cannot be written", error)


def _refused(what: str, error: OSError) -> StorageError:
    reason, remedy = _REFUSALS.get(error.errno or 0, (error.strerror or str(error), "Ask whoever runs this machine."))
    return StorageError(f"{what}: {reason}.", remedy)


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


# One writer at a time: an advisory lock that dies with its process and leaves no file behind.
#
# The lock is ``flock`` on a file of its own. Its holder deletes the file before letting go, so whoever gets the lock
# has
# to look whether the file is still the one under that name; if not, another writer came and went, and it is tried
# again.
# A process that is killed leaves the file without a lock on it, and the next writer takes it over.


_ATTEMPTS = 1000
"""Other writers that may come and go between opening the file and locking it before that is called an error."""


@contextmanager
def locked(path: str, what: str) -> Iterator[None]:
    """Hold the lock file ``path``; ``LockHeld``, naming ``what`` is guarded, at once where somebody else does."""
    with writing(path):
        descriptor = _lock(path, what)
    try:
        yield
    finally:
        # Under the lock: whoever opened this file before sees that it is gone, and opens the next one.
        with suppress(OSError):  # without the deletion, the next writer takes the file over
            os.unlink(path)
        os.close(descriptor)


def _lock(path: str, what: str) -> int:
    """The descriptor that holds the lock."""
    for _ in range(_ATTEMPTS):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            break
        except BaseException:  # an interrupt too: the lock would stay as long as the process
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise LockHeld(
        f"{what} is being written by somebody else, who holds {path}.", "Wait until they are done, or stop them."
    )


def _is_at(descriptor: int, path: str) -> bool:
    """True where the open file is the one under that path."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)
