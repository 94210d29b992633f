"""Requests under way together: the latency of a store is waited for once, and not once a file.

    items --a thread each--> function, which makes requests --> results, as the answers come

Work that makes requests asks ``as_answered`` for its results. On a disk, which has no ``Traits``, items are done one
after the other, in order. Of a remote storage as many are under way as its traits say, with a bounded number of bytes.
Nothing is under way any more when the results end, whichever way they end. An error is raised after the requests
beside it have their answers, so that cleaning up finds all that was written.

The order of items says nothing about the order of requests. What must be stored before something else begins is
another call.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition
from typing import TypeVar

from shardvar.forks import new_lock
from shardvar.storage.protocol import Traits

Item = TypeVar("Item")
Result = TypeVar("Result")

IN_FLIGHT_NBYTES = 64 << 20
"""The bytes that requests to a remote storage have under way: at 100 MB/s, what comes in 0.7 s."""


def as_answered(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    traits: Traits | None,
    nbytes: Callable[[Item], int] = lambda _: 0,
) -> Iterator[Result]:
    """Yield ``function`` of every item: in order on a disk, else as the answers come, ``traits.requests`` at a time.

    No item is taken while those before it hold more than ``IN_FLIGHT_NBYTES``, each of them ``nbytes``. The first error
    ends it; items that no thread has begun then are dropped.
    """
    if traits is None:
        yield from map(function, items)
        return
    pending: dict[Future[Result], int] = {}
    with ThreadPoolExecutor(traits.requests) as executor:
        try:
            for item in items:
                try:
                    pending[executor.submit(function, item)] = nbytes(item)
                except RuntimeError:
                    if pending:
                        raise
                    yield function(item)  # at the interpreter's exit, when no threads are started any more
                while len(pending) >= traits.requests or sum(pending.values()) > IN_FLIGHT_NBYTES:
                    yield from _answers(pending)
            while pending:
                yield from _answers(pending)
        finally:
            if isinstance(items, Generator):
                items.close()  # what makes the items may have work under way, too
            for future in pending:
                future.cancel()


def do_all(function: Callable[[Item], object], items: Iterable[Item], traits: Traits | None) -> None:
    """Call ``function`` of every item: in order on a disk, else with many requests under way."""
    for _ in as_answered(function, items, traits):
        pass


def _answers(pending: dict[Future[Result], int]) -> Iterator[Result]:
    """Wait for one result at least, and yield and forget those that are there, errors last."""
    done = wait(pending, return_when=FIRST_COMPLETED).done
    for future in sorted(done, key=lambda future: future.exception() is not None):
        del pending[future]
        yield future.result()


@dataclass(slots=True)
class Room:
    """Memory for what is under way; threads wait until there is room for theirs."""

    free_nbytes: int
    """The bytes that are free."""
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
