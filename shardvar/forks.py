"""Forks: what a child process finds of the work that its parent's other threads had in hand.

A fork copies the memory, and only the thread that forks. The locks of the others stay
locked in the child for ever, and their writes stay half done. Data loaders fork, so
shardvar keeps this contract:

    locks       A lock from here that another thread held at the fork is free in the child.
    sections    A fork waits until no other thread is inside ``unforked``: a child sees the work
                there whole, or not at all. No fork waits for longer than ``_PATIENCE_SECONDS``.
    processes   What belongs only to a thread of the parent, such as a save in the background,
                compares ``os.getpid()`` with the process that began it, and says so in its error.

The child may do everything but go on with what its parent had begun: a callback of a save that
forks must not return in the child.

To guard something new: make its lock by ``new_lock``. What a child must see whole or not at all
goes into ``unforked``; it must be short, and wait for no thread that may fork.
"""

import os
from threading import Lock, RLock, get_ident
from time import monotonic, sleep
from typing import Any
from weakref import WeakSet

_PATIENCE_SECONDS = 5.0
"""The longest wait of a fork: longer than any section takes, so that only an error in one is cut
off by it."""

_PAUSE_SECONDS = 0.0005
"""Between two looks at the other threads; a fork itself takes about as long."""

_locks: "WeakSet[Any]" = WeakSet()
"""The locks to free in a child."""

_inside: dict[int, int] = {}
"""The threads that are inside sections, each with the number of these."""

_forking: set[int] = set()
"""The threads that are about to fork."""


def new_lock() -> RLock:
    """Return a reentrant lock that a forked child finds free or holds itself."""
    lock = RLock()
    _locks.add(lock)
    return lock


def new_latch() -> Lock:
    """Return a lock that any thread may release, free in a forked child."""
    latch = Lock()
    _locks.add(latch)
    return latch


class _Section:
    """A part of a program during which no other thread forks."""

    __slots__ = ()

    def __enter__(self) -> None:
        me = get_ident()
        # A thread enters first and looks then, and a fork announces itself first and looks then.
        # In either order, one of the two sees the other.
        _inside[me] = _inside.get(me, 0) + 1
        while _forking and me not in _forking and _inside[me] == 1:
            del _inside[me]
            sleep(_PAUSE_SECONDS)
            _inside[me] = 1

    def __exit__(self, *error: object) -> None:
        me = get_ident()
        count = _inside.pop(me, 1)
        if count > 1:
            _inside[me] = count - 1


unforked = _Section()
"""``with unforked:``: a fork by another thread waits for the end of the block, or the block for the
end of the fork."""


def _before() -> None:
    """Keep other threads out of sections, and wait until all that are inside have left."""
    me = get_ident()
    _forking.add(me)
    deadline = monotonic() + _PATIENCE_SECONDS
    while any(thread != me for thread in tuple(_inside)) and monotonic() < deadline:
        sleep(_PAUSE_SECONDS)


def _in_parent() -> None:
    _forking.discard(get_ident())


def _in_child() -> None:
    """Forget the threads that are gone, and release their locks."""
    me = get_ident()
    _forking.clear()
    for thread in set(_inside) - {me}:
        del _inside[thread]
    for lock in list(_locks):
        # The thread that forked lives on in the child, and releases its own locks. A latch
        # has no owner.
        if not getattr(lock, "_is_owned", bool)():
            lock._at_fork_reinit()  # as the standard library frees its own locks


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
