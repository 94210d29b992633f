"""Preview: would the machine refuse to write into a directory? Answered without a change.

A writer makes the directory, takes the lock and creates files, and each of these may be refused.
These checks raise what would be raised then, as far as it can be known: the disk may still fill up,
or another writer come first.
"""

import errno
import fcntl
import os

from shardvar.storage.locks import held_error
from shardvar.storage.posix import writing


def check_directory(path: str) -> None:
    """Raise ``StorageError`` if files cannot be created in a directory, or if it does not exist and
    cannot be made."""
    there = path
    with writing(path):
        while not _exists(there):
            there = os.path.dirname(there)
    with writing(there):
        if not os.path.isdir(there):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        # The effective user is the one that writes; not every system can ask for it.
        effective = os.access in os.supports_effective_ids
        if not os.access(there, os.W_OK | os.X_OK, effective_ids=effective):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def check_unlocked(path: str, what: str) -> None:
    """Raise ``LockHeld``, with ``what`` is guarded, if a writer holds the lock ``path``."""
    with writing(path):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return
        try:
            # Shared, and released at once: two previews do not see each other.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # By name: a child that is forked now has the descriptor too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        except BlockingIOError:
            raise held_error(path, what) from None
        finally:
            os.close(descriptor)


def _exists(path: str) -> bool:
    """Return True if something has that path; an ``OSError`` other than its absence is raised."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
