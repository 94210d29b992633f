"""Threads that work through independent pieces of work, a bounded number at a time."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Work = TypeVar("Work")
Done = TypeVar("Done")

WORKERS = max(2, min(4, os.cpu_count() or 2))
"""Enough to overlap checksums with reading and writing; every worker holds one buffer."""

_local = threading.local()


def run_all(function: Callable[[Work], Done], items: Iterable[Work]) -> list[Done]:
    """``function`` of every item, in order, by several threads, a bounded number ahead; the first error stops it."""
    done: list[Done] = []
    pending: deque[Future[Done]] = deque()
    with ThreadPoolExecutor(WORKERS) as executor:
        try:
            for item in items:
                try:
                    pending.append(executor.submit(function, item))
                except (
                    RuntimeError
                ):  # the interpreter ends and begins no threads: what it waits for goes on in this one
                    done.extend(pending.popleft().result() for _ in range(len(pending)))
                    done.append(function(item))
                if len(pending) > 4 * WORKERS:
                    done.append(pending.popleft().result())
            done.extend(future.result() for future in pending)
        finally:
            for future in pending:
                future.cancel()
    return done


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
