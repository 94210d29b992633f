"""Threads that work through independent pieces of work, a bounded number at a time."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

Work = TypeVar("Work")
Done = TypeVar("Done")

WORKERS = max(2, min(4, os.cpu_count() or 2))
"""Enough to overlap checksums with reading and writing; every worker holds one buffer."""

_local = threading.local()


def run_all(function: Callable[[Work], Done], items: Iterable[Work]) -> list[Done]:
    """``function`` of every item, in order, by several threads; the first error stops what has not begun."""
    items = list(items)
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(WORKERS) as executor:
        futures: list[Future[Done]] = [executor.submit(function, item) for item in items]
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            future.cancel()
        # An error comes before the cancellations that it caused.
        for future in futures:
            if future.done() and not future.cancelled():
                future.result()
        return [future.result() for future in futures]


def thread_buffer(nbytes: int) -> memoryview:
    """A buffer of this thread's own, which its next call reuses; its content is whatever was there."""
    buffer: bytearray | None = getattr(_local, "buffer", None)
    if buffer is None or len(buffer) < nbytes:
        buffer = _local.buffer = bytearray(nbytes)
    return memoryview(buffer)[:nbytes]


def blocks(nbytes: int, block_nbytes: int) -> Iterator[tuple[int, int]]:
    """The ranges ``[start, stop)`` of at most ``block_nbytes`` that cut ``nbytes``."""
    for start in range(0, nbytes, block_nbytes):
        yield start, min(start + block_nbytes, nbytes)
