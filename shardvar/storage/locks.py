"""Locks of the local disk: one writer at a time.

The lock is ``flock`` on a separate file, so it ends with its process. Its holder deletes
the file before the lock is released. A writer that gets the lock therefore checks that its file is
still the one under that name; if not, another writer was faster, and it tries again. A killed
process leaves a file without a lock on it, which the next writer takes over.

The lock belongs to the open file, and a forked child inherits that. So the child closes its
descriptors of locks: otherwise a lock would last until the last child of its holder has ended.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from shardvar.errors import LockHeld
from shardvar.forks import unforked
from shardvar.storage.posix import writing

_ATTEMPTS = 1000
"""Attempts to lock the file; each fails if another writer comes and goes meanwhile."""


_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_lock_files: set[int] = set()
"""The descriptors of lock files that this process has open, locked or not."""


@contextmanager
def locked(path: str, what: str) -> Iterator[None]:
    """Hold the lock file ``path``; ``LockHeld``, with ``what``, at once if another writer does."""
    held: list[int] = []
    is_locked, process = False, os.getpid()
    try:
        with writing(what):  # what is to be written is known to the caller, and its lock is not
            _lock(path, what, held)
        is_locked = True
        yield
    finally:
        # And not in a child that was forked meanwhile, whose lock it is not.
        if os.getpid() == process:
            # Delete first, release then: a writer that has opened this file sees that it is gone
            # and opens the next.
            if is_locked:
                with suppress(OSError):  # a file that stays is taken over by the next writer
                    os.unlink(path)
            for descriptor in held:
                _close_lock(descriptor)
            if not is_locked:
                _remove_unused(path)


def _lock(path: str, what: str, held: list[int]) -> None:
    """Lock the file, and add the descriptor that holds the lock to ``held``."""
    for _ in range(_ATTEMPTS):
        with unforked:
            held.append(os.open(path, _LOCK_FLAGS, 0o666))
            _lock_files.update(held)
        try:
            fcntl.flock(held[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(held[0], path):
                return
        except BlockingIOError:
            _close_lock(held.pop())
            break
        _close_lock(held.pop())
    raise held_error(path, what)


def held_error(path: str, what: str) -> LockHeld:
    """Return the error for a lock file ``path`` that another writer of ``what`` holds."""
    return LockHeld(
        f"{what} is being written by another writer, which holds {path}.",
        "Wait until it is done, or stop it.",
    )


def _remove_unused(path: str) -> None:
    """Remove a lock file after an error in locking, unless another writer holds it."""
    with suppress(OSError), unforked:
        descriptor = os.open(path, _LOCK_FLAGS & ~os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                os.unlink(path)
        finally:
            os.close(descriptor)


def _close_lock(descriptor: int) -> None:
    with unforked:
        _lock_files.discard(descriptor)
        os.close(descriptor)


def _close_inherited() -> None:
    """Close what a forked child has of its parent's locks; the parent still holds them."""
    while _lock_files:
        os.close(_lock_files.pop())


os.register_at_fork(after_in_child=_close_inherited)


def _is_at(descriptor: int, path: str) -> bool:
    """Return True if the open file is the one under that path."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)
