"""One writer at a time: an advisory lock that dies with its process and leaves no file behind.

The lock is ``flock`` on a file of its own. Its holder deletes the file before letting go, so whoever gets the lock has
to look whether the file is still the one under that name; if not, another writer came and went, and it is tried again.
A process that is killed leaves the file without a lock on it, and the next writer takes it over.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from shardvar.errors import LockHeld
from shardvar.storage.refusals import writing

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
