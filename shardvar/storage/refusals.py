"""What the operating system's refusals mean: every ``OSError`` becomes one of shardvar's own at this boundary.

Reading and writing differ in one thing: what is absent is a ``MissingFile`` to a reader, who was told by a checkpoint
that it is there, and a ``StorageError`` to a writer, whose directory is not there. All else is the machine's fault.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from shardvar.errors import MalformedCheckpoint, MissingFile, ShardvarError, StorageError

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
