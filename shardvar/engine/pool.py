"""Blocks of bytes, the memory that holds them, and the threads that work through them.

Payloads of any size are read and written a block at a time, by a bounded number of threads, a
bounded number of blocks ahead. So memory is a matter of ``WORKERS`` and ``BLOCK_NBYTES``, and not
of the checkpoint nor, beyond ``MOST_WORKERS``, of the machine.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from shardvar.forks import new_lock
from shardvar.storage.concurrency import Threads, usable_cores

if TYPE_CHECKING:
    from concurrent.futures import Future

Work = TypeVar("Work")
Done = TypeVar("Done")

Progress = Callable[[int], object]
"""A function that is called with the bytes moved since the last call, from any thread."""

BLOCK_NBYTES = 4 << 20
"""Bytes that are read or written at a time: enough to hide the cost of the call, and few enough for
the cache."""

SMALL_NBYTES = 64 << 10
"""A read or write costs about as much as these bytes, so smaller ones are done together. A multiple
of item sizes."""

PEAK_BLOCKS = 8
"""Blocks that a worker holds at most: a batch of seven that are written together, and the block that
it reads."""

BUFFERS_NBYTES = 48 * BLOCK_NBYTES
"""The most that all workers of a process hold, on any machine: 192 MiB, as a process is to stay
within 256."""

MOST_WORKERS = 12
"""Threads of one process at most: each has room for four blocks, which most work takes. More
processes, each working on a file, use more cores."""


def worker_count(cores: int) -> int:
    """Return the number of threads: at least two, so that work overlaps with the disk."""
    return max(2, min(MOST_WORKERS, cores))


WORKERS = worker_count(usable_cores())
"""The threads of this process for work on a local disk; a bucket may have more requests."""

_local = threading.local()


def block_ranges(start: int, stop: int, step: int | None = None) -> Iterator[tuple[int, int]]:
    """Ranges that cut the bytes ``[start, stop)`` at the multiples of ``step``, or of a block, from
    byte 0 on: so two readers of one payload cut it at the same places."""
    step = step or BLOCK_NBYTES
    # From the last multiple at or before ``start``: for start 3 and step 4 that is 0, and the range
    # is cut to [3, 4).
    for begin in range(start // step * step, stop, step):
        yield max(begin, start), min(begin + step, stop)


def run_all(
    function: Callable[[Work], Done], items: Iterable[Work], workers: int | None = None
) -> list[Done]:
    workers = WORKERS if workers is None else workers
    # Four a worker: enough that none waits, and few enough that a million blocks are not a million
    # futures.
    return list(map_ahead(function, items, workers, 4 * workers))


@contextmanager
def in_this_thread() -> Iterator[None]:
    """Within, ``run_all`` works in this thread: the executor has workers enough."""
    before, _local.is_alone = getattr(_local, "is_alone", False), True
    try:
        yield
    finally:
        _local.is_alone = before


def run_ahead(items: Iterator[Work]) -> Generator[Work]:
    """Yield the items; while the caller works with one, a thread gets the next one."""
    with Threads(1) as executor:
        end = object()
        future = executor.submit(next, items, end)
        while (item := future.result()) is not end:
            future = executor.submit(next, items, end)
            yield cast(Work, item)


def map_ahead(
    function: Callable[[Work], Done],
    items: Iterable[Work],
    workers: int | None = None,
    ahead: int | None = None,
) -> Generator[Done]:
    """Yield ``function`` of every item, in order, by threads at most ``ahead`` items ahead. An
    error comes in its place, and drops the items not begun. A caller that may stop early closes the
    iterator: otherwise the thread that collects it waits for itself."""
    if getattr(_local, "is_alone", False):
        yield from map(function, items)
        return
    workers = WORKERS if workers is None else workers
    pending: deque[Future[Done]] = deque()
    with Threads(workers) as executor:
        # After an error, items that no thread has begun are dropped. The executor waits for the
        # others, so no thread uses a buffer after this function has ended.
        for item in items:
            try:
                pending.append(executor.submit(function, item))
            except RuntimeError:
                # A save at the interpreter's exit: it starts no more threads, so the rest is done
                # in this one.
                while pending:
                    yield pending.popleft().result()
                yield function(item)
            if len(pending) > (workers if ahead is None else ahead):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def run_in_order(function: Callable[[Work], Done], items: Iterable[Work]) -> list[Done]:
    return [function(item) for item in items]


class Together:
    """Work in parts for all threads that need it: each takes the parts that no other one has."""

    def __init__(self, parts: Sequence[Callable[[], object]]) -> None:
        self._parts = parts
        self._locks = [new_lock() for _ in parts]
        self._is_done = [False] * len(parts)

    def finish(self) -> None:
        """Do the parts that no other thread has, and wait for the rest; each has its errors."""
        for waits in (False, True):
            for number, (part, lock) in enumerate(zip(self._parts, self._locks, strict=True)):
                if self._is_done[number] or not lock.acquire(waits):
                    continue
                try:
                    if not self._is_done[number]:
                        part()
                        self._is_done[number] = True
                finally:
                    lock.release()


def new_buffer(nbytes: int) -> memoryview:
    return memoryview(bytearray(nbytes))


def thread_buffer(nbytes: int, use: str = "unit") -> memoryview:
    """The buffer of this thread and use, with its old content, until the next call."""
    # One for each thread needs no lock, and is allocated once instead of for each block.
    buffer: bytearray | None = getattr(_local, use, None)
    if buffer is None or len(buffer) < nbytes:
        buffer = bytearray(nbytes)
        setattr(_local, use, buffer)
    return memoryview(buffer)[:nbytes]


WORDS: dict[int, np.dtype[Any]] = {
    1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8"), 16: np.dtype("<c16")
}  # fmt: skip
"""By size, the dtypes whose elements NumPy copies as words."""


def word_of(itemsize: int) -> np.dtype[Any]:
    """The dtype as which elements are moved: NumPy moves integers several times faster."""
    return WORDS.get(itemsize, np.dtype((np.void, itemsize)))


def bytes_of(array: npt.NDArray[Any]) -> memoryview:
    # NumPy views an array as bytes along its last axis, and a scalar array has none, hence the
    # reshape. No step copies.
    return array.reshape(-1).view(np.uint8).data
