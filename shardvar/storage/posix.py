"""Files of the local disk: open for reading, and open for writing.

Transfers. The kernel may move fewer bytes than it was asked to (never more than 2 GiB at a time),
so each transfer is a loop; Python itself repeats a call that a signal interrupted. Offsets are
bytes of the file, and several threads may use one file at the same time.

Closing. If one thread closes a descriptor while another reads through it, its number may by then
mean another file. So ``close`` only drops the reference, and the descriptor is closed when the last
call that uses it returns.

Changes. A file that is replaced by another one of its name stays as it was to who has it open. One
that is written in place does not: each read compares size and time of change with those at its
opening.

Errors. Every ``OSError`` becomes one of shardvar's errors here (``reading``, ``writing``). An absent
file is a ``MissingFile`` to a reader, whose checkpoint named it, and a ``StorageError`` to a writer,
whose directory is missing. All other refusals are the machine's.

Links. A search follows a symbolic link to a folder only if it stays inside the folder that is
searched (``inner_links``).

Entry points. The entry points of installed packages are found without ``importlib.metadata`` where
no package has them. ``importlib.metadata.entry_points`` loads the parser of mails and reads the
names of all packages: a third of the time of ``shardvar inspect``. Nearly no environment has a
package that adds a format, so the steps are:

1. Look for the name of the group in the ``entry_points.txt`` of each folder of ``sys.path``.
2. Ask ``importlib.metadata`` if it was found, or if packages may be in other places than such
   folders.

Both ways give the same answer; only an absent group may be answered by the first.
"""

import errno
import fcntl
import mmap
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

from shardvar.errors import (
    COPY_AGAIN,
    ArgumentError,
    IncompleteCheckpoint,
    MalformedCheckpoint,
    MissingFile,
    ShardvarError,
    StorageError,
    UnsupportedError,
    replaced_error,
)
from shardvar.records import mutable
from shardvar.storage.protocol import ReadableFile

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


_ABSENT = {errno.ENOENT, errno.ENOTDIR}
_CANNOT_SYNC = {errno.EINVAL, errno.EBADF, errno.ENOTSUP}
"""Answers of network file systems that cannot sync a directory, and need not."""
_NO_DEVICE = errno.ENXIO  # a socket, or a fifo without a reader

_DENIED = "permission is denied", "Change its permissions, or run as a user who has them."
_REFUSALS: dict[int, tuple[str, str]] = {
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: ("the file system is read-only", "Choose another place."),
    errno.ENOSPC: ("the disk is full", "Free some space and run it again."),
    errno.EDQUOT: ("the disk quota is used up", "Free some space and run it again."),
    errno.EFBIG: (
        "the file would be larger than allowed",
        "Raise `ulimit -f`, or write smaller files.",
    ),
    errno.EIO: (
        "the disk does not answer (input/output error)",
        "Check the disk, and copy the files to another one.",
    ),
    errno.EMFILE: ("too many files are open", "Raise `ulimit -n`."),
    errno.ENFILE: ("too many files are open on this machine", "Close some programs."),
    errno.ELOOP: (
        "it is a symbolic link that is not followed",
        "Remove the link, or name what it points to.",
    ),
    errno.ENAMETOOLONG: ("the path is too long", "Choose a shorter one."),
    errno.EEXIST: ("something else has this name", "Choose another name, or move it away."),
    errno.ENOTDIR: ("its directory is a file", "Choose another place, or move the file away."),
    errno.EISDIR: ("it is a directory", "Choose another name, or move the directory away."),
    errno.EBUSY: ("it is in use, as a mount point is", "Choose another place."),
    errno.EXDEV: ("it cannot be moved on its file system", "Choose another place."),
    errno.ENOTEMPTY: ("it is a directory", "Choose another name, or move the directory away."),
    errno.ENOLCK: ("the file system has no locks", "Choose a place on a local disk."),
    errno.ENOTSUP: ("the file system cannot do this", "Choose a place on a local disk."),
    errno.ENODEV: ("the file system has no memory maps", "Read without `mmap`."),
    errno.ENOMEM: ("there is not enough memory", "Read less at a time."),
}


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Convert an ``OSError`` that is raised inside, while ``path`` is read."""
    try:
        yield
    except ShardvarError:
        raise  # some of them are OSErrors
    except OSError as error:
        raise _refused_reading(path, error) from error


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Convert an ``OSError`` that is raised inside, while ``path`` is written."""
    try:
        yield
    except ShardvarError:
        raise  # some of them are OSErrors
    except OSError as error:
        if error.errno == errno.ENOENT:
            cause = f"{path} cannot be written: no such directory."
            raise StorageError(cause, "Make the directory first.") from error
        raise _refused(f"{path} cannot be written", error) from error


def _refused_reading(path: str, error: OSError) -> ShardvarError:
    if error.errno in _ABSENT:
        if os.path.islink(path):
            try:
                end = os.path.realpath(path)
            except OSError:  # as in /proc
                end = "a file that the system does not name"
            cause = f"{path} is missing: it is a symbolic link to {end}, which does not exist."
            return MissingFile(cause, "Fetch the file that the link leads to, or correct the link.")
        return MissingFile(f"{path} is missing.", COPY_AGAIN)
    if error.errno == errno.ELOOP:
        return MissingFile(
            f"{path} is missing: its symbolic links form a circle.",
            "Find the file that they led to.",
        )
    if error.errno == _NO_DEVICE:
        return MalformedCheckpoint(
            f"{path} is not a regular file.", "Name a file that holds a checkpoint."
        )
    return _refused(f"{path} cannot be read", error)


def _refused(what: str, error: OSError) -> StorageError:
    reason, remedy = _REFUSALS.get(
        error.errno or 0, (error.strerror or str(error), "Ask the administrator of this machine.")
    )
    return StorageError(f"{what}: {reason}.", remedy)


# --- Reading and writing

_CALL_NBYTES = 1 << 30
"""The most bytes of one system call: Linux moves 2 GiB - 4 KiB, macOS less than 2 GiB."""

_EARLY_NBYTES = 512 << 10
"""Writes of at least this size go to the disk at once; the system joins smaller ones."""

_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a fifo", stat.S_IFSOCK: "a socket"}


class _Descriptor:
    """A file descriptor, closed when the last reference to it is dropped."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class HeldDirectory:
    """A directory, also after it was moved."""

    __slots__ = ("_descriptor",)

    def __init__(self, path: str) -> None:
        with reading(path):
            self._descriptor = _Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def is_moved(self, path: str) -> bool:
        status = os.fstat(self._descriptor.number)
        try:
            return status.st_nlink > 0 and not os.path.samestat(status, os.stat(path))
        except FileNotFoundError:
            return True

    def names(self) -> list[str]:
        """Return the names of its files."""
        return os.listdir(self._descriptor.number)


@mutable
class LocalReadableFile:
    """A file open for reading. Maps survive ``close``; if the file shrinks, the process ends."""

    name: str  # the full path, for messages
    size: int  # the number of bytes in the file when it was opened
    stamp: str  # Size, time of change and inode: they differ if another file takes the name
    _descriptor: _Descriptor | None  # the descriptor; None once closed
    _map: memoryview | None = None  # the memory map, once there is one

    def read_into(self, start: int, buffer: memoryview) -> None:
        if not buffer.nbytes:
            return
        octets = buffer.cast("B")
        check_range(self, start, len(octets))
        descriptor, done = self._open_descriptor(), 0
        with reading(self.name):
            while done < len(octets):
                count = os.preadv(
                    descriptor.number, [octets[done : done + _CALL_NBYTES]], start + done
                )
                if not count:
                    break
                done += count
        self.check_unchanged()
        if done < len(octets):
            raise _ends_before(self, start, len(octets))

    def read(self, start: int, nbytes: int) -> bytes:
        check_range(self, start, nbytes)
        descriptor, parts, done = self._open_descriptor(), [], 0
        with reading(self.name):
            while done < nbytes:
                part = os.pread(descriptor.number, min(nbytes - done, _CALL_NBYTES), start + done)
                if not part:
                    break
                parts.append(part)
                done += len(part)
        self.check_unchanged()
        if done < nbytes:
            raise _ends_before(self, start, nbytes)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def map(self) -> memoryview:
        """Return the whole file as a read-only memory map, the same one each time."""
        descriptor = self._open_descriptor()
        # A map beyond the end of a file that has shrunk would end the process at the first access.
        self.check_unchanged()
        if self._map is None and self.size:
            with reading(self.name):
                self._map = memoryview(mmap.mmap(descriptor.number, self.size, prot=mmap.PROT_READ))
        return memoryview(b"") if self._map is None else self._map

    def close(self) -> None:
        """Close the file. Maps stay valid, and calls that have begun are completed."""
        self._descriptor = self._map = None

    def check_unchanged(self) -> None:
        """Raise ``CorruptCheckpoint`` if the file was written since it was opened."""
        descriptor = self._open_descriptor()
        with reading(self.name):
            is_changed = stamp_of(os.fstat(descriptor.number)) != self.stamp
        if is_changed:
            raise replaced_error(self.name)

    def _open_descriptor(self) -> _Descriptor:
        if self._descriptor is None:
            raise ArgumentError(f"{self.name} was closed.", "Open the checkpoint again.")
        return self._descriptor


def check_range(file: ReadableFile, start: int, nbytes: int) -> None:
    """Raise ``IncompleteCheckpoint`` if a file is too short for a range."""
    if start < 0 or nbytes < 0:
        cause = f"{file.name} cannot be read: invalid range of {nbytes} bytes at offset {start}."
        raise ArgumentError(cause, "Give an offset and a size of at least 0.")
    if start + nbytes > file.size:
        raise _ends_before(file, start, nbytes)


def _ends_before(file: ReadableFile, start: int, nbytes: int) -> IncompleteCheckpoint:
    return IncompleteCheckpoint(
        f"{file.name} ends before the {nbytes} bytes at offset {start}: it has {file.size}.",
        "The file was cut short; copy it again from where it was written.",
    )


@mutable
class LocalWritableFile:
    """A new file, open for writing."""

    name: str  # the full path, for messages
    _descriptor: _Descriptor | None  # the descriptor; None once closed
    is_forced: bool = True  # False for a temporary file, which closing does not force to the disk

    def write(self, start: int, buffer: memoryview | bytes) -> None:
        view = memoryview(buffer)
        if not view.nbytes:
            return
        if self._descriptor is None:
            raise ArgumentError(f"{self.name} was closed.", "Write before you close.")
        octets, descriptor, done = view.cast("B"), self._descriptor, 0
        with writing(self.name):
            while done < len(octets):
                count = os.pwrite(
                    descriptor.number, octets[done : done + _CALL_NBYTES], start + done
                )
                if not count:
                    raise StorageError(
                        f"{self.name} takes no more bytes at offset {start + done}.",
                        "Check the disk.",
                    )
                done += count
        # Start sending the bytes to the disk, so that the final sync has little left to wait for.
        # Linux begins to write pages out when it is advised that they are not needed, and returns
        # at once. Pages that are not written yet stay in memory.
        if done >= _EARLY_NBYTES and hasattr(os, "posix_fadvise"):
            with suppress(OSError):  # only a hint: without it, the sync writes all bytes
                os.posix_fadvise(descriptor.number, start, done, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and self.is_forced:
            with writing(self.name):
                # A name may reach the disk before the bytes of its file. This holds for an index
                # that is renamed, for the data files that it names, and for a file whose journal
                # names it as finished. So their bytes are forced before any of these names
                # exists. A sync that failed is not tried again, because the next one may report
                # success for bytes that the system has given up; the file is written again.
                sync(descriptor.number)


def open_local(path: str) -> LocalReadableFile:
    """Open a file for reading; ``MalformedCheckpoint`` if it is not a regular file."""
    with reading(path):
        # Opened without O_NONBLOCK, a fifo would wait for a writer forever.
        descriptor = _Descriptor(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        status = os.fstat(descriptor.number)
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a device")
        raise MalformedCheckpoint(
            f"{path} is {kind}, not a file.", "Name a file that holds a checkpoint."
        )
    return LocalReadableFile(path, status.st_size, stamp_of(status), descriptor)


_STORES = r"(?s)(.*/models--[^/]+)/blobs/[0-9a-f]{40,64}|(.*)/\.git/annex/objects/.*"
"""Files in stores; the groups are the folders that the stores belong to."""


def check_stays_inside(folder: str, name: str) -> None:
    """Raise ``UnsupportedError`` if a path in a folder leads out of it, and into no store."""
    path = folder
    for step in name.split("/"):
        path = os.path.join(path, step)
        if os.path.islink(path):
            break
    else:
        return
    target, inside = os.path.realpath(os.path.join(folder, name)), os.path.realpath(folder)
    if target.startswith(os.path.join(inside, "")) or re.fullmatch(_STORES, target):
        return
    # A cache by another name: its store is next to a folder above.
    store, above = os.path.split(os.path.dirname(target))
    if above == "blobs" and inside.startswith(f"{store}{os.sep}"):
        return
    place = os.path.join(folder, name)
    cause = f"{place} is behind a symbolic link that leads out of the checkpoint, to {target}."
    raise UnsupportedError(cause, "Copy the file to its place, if it belongs to the checkpoint.")


def stamp_of(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"


def create_local(path: str, *, is_forced: bool = True) -> LocalWritableFile:
    """Open a new file for writing; readers that have an old file of that name keep it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with writing(path):
        try:
            descriptor = os.open(path, flags, 0o666)
        except FileExistsError:  # seldom: most names are new
            with suppress(FileNotFoundError):
                os.unlink(path)
            descriptor = os.open(path, flags, 0o666)
        return LocalWritableFile(path, _Descriptor(descriptor), is_forced)


def sync(descriptor: int) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync returns when the bytes are in the disk's cache
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def sync_path(path: str) -> None:
    """Force a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)


def is_empty_folder(folder: str, *, if_missing: bool) -> bool:
    """Return True for a folder that has nothing, or hidden files; a link is something. ``if_missing`` is
    the answer for a folder that is not there."""
    try:
        return all(name.startswith(".") for name in os.listdir(folder))
    except FileNotFoundError:
        return if_missing
    except OSError:
        return False


def outer_links(folder: str) -> list[str]:
    """Return the links in a folder, except hidden ones, to folders outside of it or to nowhere."""
    inside = os.path.join(os.path.realpath(folder), "")
    links = [name for name, path in _links(folder) if not os.path.join(path, "").startswith(inside)]
    return sorted(links)


def inner_links(folder: str, root: str) -> list[tuple[str, str]]:
    """Return the links in a folder to folders inside ``root``, and the paths of these."""
    inside = os.path.join(os.path.realpath(root), "")
    return sorted((name, path) for name, path in _links(folder) if path.startswith(inside))


def _links(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the names of the links to folders in a folder, and the real paths of the folders."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if (
                entry.is_symlink()
                and not entry.name.startswith(".")
                and not os.path.isfile(entry.path)
            ):
                yield entry.name, os.path.realpath(entry.path)


_ENDINGS = (".dist-info", ".egg-info")
"""The endings of the folders in which installers describe packages."""


def entry_points_of(group: str) -> "list[EntryPoint]":
    # 1. Only folders are looked into: other places have finders, such as archives of packages. The
    # backport of importlib.metadata, which many packages import, looks into the same folders.
    may_have = any(
        hasattr(finder, "find_distributions")
        and finder is not PathFinder
        and type(finder).__module__ != "importlib_metadata"
        for finder in sys.meta_path
    )
    try:
        for place in sys.path:
            may_have = may_have or _knows_group(place or os.curdir, group.encode())
    except OSError:
        may_have = True
    if not may_have:
        return []
    # 2.
    from importlib.metadata import entry_points

    return list(entry_points(group=group))


_Stamp = tuple[int, int, int]
_answers: dict[tuple[str, bytes], tuple[_Stamp, bool]] = {}
"""The answer for each folder and group, and the folder as it was then: one call may ask thousands of
times. To install a package changes the time of its folder."""
_SETTLED_NS = 2_000_000_000
"""The age from which on the time of a folder tells whether it changes again: clocks of file systems
have ticks."""


def _knows_group(folder: str, group: bytes) -> bool:
    """Return ``_names_group``, once a folder as long as it stays as it is."""
    try:
        status = os.stat(folder)
    except FileNotFoundError:
        return False
    stamp = status.st_dev, status.st_ino, status.st_mtime_ns
    stamped, answer = _answers.get((folder, group), (None, False))
    if stamped != stamp:
        answer = _names_group(folder, group)
        if time.time_ns() - status.st_mtime_ns > _SETTLED_NS:
            _answers[folder, group] = stamp, answer
    return answer


def _names_group(folder: str, group: bytes) -> bool:
    """Return True if a package of a folder may have entry points of a group."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return False
    # An egg describes its package under another name.
    if folder.rstrip("/\\").lower().endswith(".egg"):
        return True
    for name in names:
        if name.lower().endswith(_ENDINGS):
            try:
                with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                    if group in file.read():
                        return True
            except (FileNotFoundError, NotADirectoryError):  # a package without entry points
                continue
    return False
