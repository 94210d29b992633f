"""Requests under way together: the latency of a store is waited for once, and not once a file.

    items --a thread each--> function, which makes requests --> results, as the answers come

Work that makes requests asks ``as_answered`` for its results. On a disk, which has no ``Traits``,
items are done one after the other, in order. Of a remote storage as many are under way as its
traits allow, with a bounded number of bytes. Nothing is under way any more when the results end,
whichever way they end. An error is raised after the concurrent requests have their answers, so that
cleaning up finds all that was written.

The order of items says nothing about the order of requests. What must be stored before something
else begins is another call.

An interrupt (KeyboardInterrupt) is raised only in the main thread, anywhere. A request that it
abandons may still arrive, after the files were cleaned up or another save was made. So no request
that changes something is made by the main thread (``uninterrupted``), and threads are outwaited,
however many interrupts come (``Threads``). What takes many requests asks between them if it is
still wanted (``check_wanted``), so that the wait is that for one request.

Cores. This process may use the cores that its affinity leaves it, and no more than its control
groups pay for. A container on a machine of 64 cores may be bound to some of them (affinity), or be
given the time of some of them (a quota of its control group, on Linux). More threads than that wait
for each other.

    version 2   /sys/fs/cgroup/GROUP/cpu.max holds "QUOTA PERIOD", or "max PERIOD" for none; the
                least of a group and of those above it counts
    version 1   /sys/fs/cgroup/cpu/GROUP/cpu.cfs_quota_us and cpu.cfs_period_us, -1 for none

A container often sees its own group as the root. Files that are missing, or hold something else,
limit nothing.
"""

import gc
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from threading import Condition
from typing import TYPE_CHECKING, Any, TypeVar

from shardvar.forks import new_lock
from shardvar.records import field, mutable
from shardvar.storage.protocol import Traits

if TYPE_CHECKING:
    from concurrent.futures import Future

Item = TypeVar("Item")
Result = TypeVar("Result")

retries: list[float] = [0, 0.0]
"""The requests that this process has made again, and the seconds of the pauses before them."""

_PAUSE_SECONDS = 0.005  # Between two looks at threads that are outwaited: a request takes longer

_local = threading.local()
"""``executors``: those whose work this thread does, each within its predecessor; ``is_exact``:
within ``exactly``; ``is_blind``: within ``blindly``."""


class Threads(AbstractContextManager["Threads"]):
    """Threads that end with the ``with`` block; ``check_wanted`` raises in their functions then."""

    def __init__(self, count: int) -> None:
        from concurrent.futures import ThreadPoolExecutor  # work on a disk often needs no thread

        self._pool = ThreadPoolExecutor(count)
        self.is_left = False
        self._busy: set[int] = set()
        self._above: tuple[Threads, ...] = getattr(_local, "executors", ())
        self._is_blind = is_blind()

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> "Future[Any]":
        """Do as any executor does; ``CancelledError`` is the error of what began too late."""
        return self._pool.submit(self._run, function, arguments)

    def _run(self, function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
        me = threading.get_ident()
        self._busy.add(me)  # first: who leaves the block sets ``is_left`` first, and looks then
        try:
            _local.executors, _local.is_blind = (*self._above, self), self._is_blind
            check_wanted()
            return function(*arguments)
        finally:
            self._busy.discard(me)

    def __exit__(self, *error: Any) -> None:
        self.is_left, interrupt = True, None
        # Not by ``join``: of a thread that is joined, CPython up to 3.12 reports after an interrupt
        # that it has ended.
        while self._busy:
            try:
                time.sleep(_PAUSE_SECONDS)
            except KeyboardInterrupt as another:
                interrupt = another
        self._pool.shutdown()
        if interrupt is not None:
            raise interrupt


def check_wanted() -> None:
    """Raise ``CancelledError`` in a thread of ``Threads`` whose block was left."""
    if any(executor.is_left for executor in getattr(_local, "executors", ())):
        from concurrent.futures import CancelledError

        raise CancelledError


def uninterrupted(function: Callable[[], Result]) -> Result:
    """Return ``function()``; an interrupt is raised after it."""
    if threading.current_thread() is not threading.main_thread():
        return function()
    with Threads(1) as executor:
        try:
            future: Future[Result] = executor.submit(function)
        except RuntimeError:
            return function()  # at the interpreter's exit, when no threads are started any more
        return future.result()


@contextmanager
def _within(name: str) -> Iterator[None]:
    before = _is_within(name)
    setattr(_local, name, True)
    try:
        yield
    finally:
        setattr(_local, name, before)


def _is_within(name: str) -> bool:
    return bool(getattr(_local, name, False))


exactly, is_exact = partial(_within, "is_exact"), partial(_is_within, "is_exact")
"""Within, the reads of this thread bring no bytes that lie next to theirs: all are planned."""
blindly, is_blind = partial(_within, "is_blind"), partial(_is_within, "is_blind")
"""Within, the reads of this thread and of its threads are only counted, in a rehearsal."""


def as_answered(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    traits: Traits | None,
    nbytes: Callable[[Item], int] = lambda _: 0,
) -> Generator[Result]:
    """Yield ``function`` of every item: in order on a disk, else as the answers come. No item is
    taken while those before it hold more bytes than the traits allow. The first error ends it."""
    if traits is None:
        yield from map(function, items)
        return
    pending: dict[Future[Result], int] = {}
    with Threads(traits.requests) as executor:
        try:
            for item in items:
                try:
                    pending[executor.submit(function, item)] = nbytes(item)
                except RuntimeError:
                    if pending:
                        raise
                    # At the interpreter's exit, when no threads are started any more.
                    yield function(item)
                while (
                    len(pending) >= traits.requests
                    or sum(pending.values()) > traits.in_flight_nbytes
                ):
                    yield from _answers(pending)
            while pending:
                yield from _answers(pending)
        finally:
            if isinstance(items, Generator):
                items.close()  # what makes the items may have work under way, too


def do_all(
    function: Callable[[Item], object],
    items: Iterable[Item],
    traits: Traits | None,
    nbytes: Callable[[Item], int] = lambda _: 0,
) -> None:
    """Call ``function`` of every item: in order on a disk, else with many requests under way."""
    if traits is None:
        for item in items:
            function(item)
        return
    # Closed here: an interrupt between two answers leaves the generator to its traceback, and its
    # threads at work.
    with closing(as_answered(function, items, traits, nbytes)) as answers:
        for _ in answers:
            pass


def _answers(pending: "dict[Future[Result], int]") -> Iterator[Result]:
    """Wait for one result at least, and yield and forget the available ones, errors last."""
    from concurrent.futures import FIRST_COMPLETED, wait

    done = wait(pending, return_when=FIRST_COMPLETED).done
    for future in sorted(done, key=lambda future: future.exception() is not None):
        del pending[future]
        yield future.result()


@mutable
class Room:
    """Memory for work under way; threads wait until there is room for theirs."""

    free_nbytes: int  # the bytes that are free
    _changed: Condition = field(default_factory=lambda: Condition(new_lock()))

    @contextmanager
    def hold(self, nbytes: int) -> Iterator[None]:
        """Have so many bytes within, which must not be more than the whole room."""
        with self._changed:
            self._changed.wait_for(lambda: self.free_nbytes >= nbytes)
            self.free_nbytes -= nbytes
        try:
            yield
        finally:
            with self._changed:
                self.free_nbytes += nbytes
                self._changed.notify_all()


_MOST_LEVELS = 32  # Groups above one that are looked at: deeper trees than any scheduler makes


def usable_cores(root: str = "/") -> int:
    """Return the number of cores, at least 1. ``root`` holds ``proc`` and ``sys``."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    # The quotas of this process's groups and their parents, with periods, in microseconds.
    for line in _read(root, "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        files = []
        if number == "0" and not controllers:
            files = [("", "cpu.max")]
        elif "cpu" in controllers.split(","):
            files = [("cpu", f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        parts = [part for part in group.split("/") if part not in ("", ".", "..")][:_MOST_LEVELS]
        for count in range(len(parts) + 1):
            folder = "/".join(parts[:count])
            texts = [_read(root, "sys/fs/cgroup", kind, folder, name) for kind, name in files]
            words = " ".join(texts).split()
            if len(words) == 2 and all(word.isdecimal() and int(word) for word in words):
                # 1.5 cores mean two threads, one of them often waiting, and not a single one.
                cores = min(cores, -(-int(words[0]) // int(words[1])))
    return cores


def _read(*path: str) -> str:
    try:
        with open(os.path.join(*path), encoding="ascii", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause the search for cyclic garbage while many objects are made that are all kept."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
