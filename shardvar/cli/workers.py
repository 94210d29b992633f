"""Workers are processes of this machine (``--workers N``) or of a Dask cluster. They are not threads,
since work on many small tensors is Python's. They are spawned, so that they hold nothing of this
process, and they end with it, also when it is killed.
"""

import logging
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

from shardvar.cli.usage import parse_count
from shardvar.errors import ArgumentError, StorageError
from shardvar.verbs.together.executors import end_with_parent, interrupt_task

P = ParamSpec("P")
T = TypeVar("T")

_SECONDS = 30  # for a scheduler to answer
_CLOSE_SECONDS = 5  # for a client, which tries longer to reach a scheduler that is gone


@contextmanager
def started(
    workers: str | None, address: str | None, note: Callable[[str], None]
) -> Iterator[Executor | None]:
    """Start the workers of ``--workers`` or ``--dask``, and end them; None for a single one."""
    count = 1 if workers is None else parse_count(workers, "--workers")
    if address is not None:
        with _cluster(address, note) as executor:
            yield executor
    elif count == 1:
        yield None
    else:
        with _Processes(count, mp_context=get_context("spawn"), initializer=_begin) as executor:
            yield executor


class _Processes(ProcessPoolExecutor):
    """Processes that Ctrl-C does not end while they begin or wait for tasks."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a task; a process that begins for it inherits that interrupts are blocked."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """Begin a process, which was started with interrupts blocked."""
    end_with_parent()
    signal.signal(signal.SIGINT, interrupt_task)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def _cluster(address: str, note: Callable[[str], None]) -> Iterator[Executor]:
    """The workers of a cluster, by its scheduler's address; ``StorageError`` without answer."""
    if any(mark in address for mark in "@?;&"):
        cause = (
            "The address of the Dask scheduler has a user's name, a password, a query or "
            "parameters in it."
        )
        raise ArgumentError(
            cause, "Give --dask tcp://HOST:PORT. Certificates come from Dask's configuration."
        )
    from shardvar.extras import missing_extra
    from shardvar.storage.requests import first_line

    try:
        import distributed
    except ImportError:
        cause = "--dask needs distributed, which is not installed."
        raise missing_extra(cause, "dask") from None
    with _quiet(_CHATTY):  # after the import, which sets their levels
        try:
            client = distributed.Client(address, timeout=_SECONDS)
        except Exception as error:
            # Each transport raises errors of its library: a TypeError where TLS has no
            # certificates, for example.
            cause = f"The Dask scheduler at {address!r} cannot be reached: {first_line(error)}."
            raise StorageError(
                cause, "Start one with `dask scheduler`, and give the address that it prints."
            ) from error
        try:
            if not client.scheduler_info()["workers"]:
                # Not an error: some clusters start workers once there are tasks, and a queue may
                # keep these waiting.
                note(
                    f"note: the Dask cluster at {address} has no workers; waiting for one to "
                    "join. Ctrl-C ends it."
                )
            # Not pure: of two equal calls, Dask would run one, and take the other's result from
            # memory.
            yield client.get_executor(pure=False)
        finally:
            client.close(timeout=_CLOSE_SECONDS)


_CHATTY = ("distributed.client", "tornado.application", "asyncio")
"""Loggers that print pages of traces when a scheduler is lost, next to the command's error."""


@contextmanager
def _quiet(names: Iterable[str]) -> Iterator[None]:
    before = [(logger := logging.getLogger(name), logger.level) for name in names]
    try:
        for logger, _ in before:
            logger.setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for logger, level in before:
            logger.setLevel(level)
