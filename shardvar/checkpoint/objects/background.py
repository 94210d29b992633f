"""A save that goes on beside the program that began it.

The thread that writes is no daemon: the interpreter waits for it at its exit. What went wrong is raised where the save
is joined. Of a save that nobody joins it is logged: once its handle is gone, or when the interpreter exits.
"""

import logging
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial

from shardvar.checkpoint.reports import WriteReport
from shardvar.errors import StillSaving

_LOG = logging.getLogger("shardvar.checkpoint")


class PendingSave:
    """A save under way: ask whether it is ``done()``, or ``join()`` it for its report."""

    def __init__(self, path: str, future: "Future[WriteReport]") -> None:
        self._path = path
        self._future = future
        self._lose = weakref.finalize(self, future.add_done_callback, partial(_tell, path))

    @property
    def path(self) -> str:
        """The checkpoint that is being written; it is not there before the save is done."""
        return self._path

    def done(self) -> bool:
        """Whether it has come to an end, good or bad."""
        return self._future.done()

    def join(self, timeout: float | None = None) -> WriteReport:
        """Wait, so many seconds at most, and return what was written; raises what went wrong, as often as it is asked.

        ``StillSaving`` where the time was too short; the save goes on.
        """
        wait([self._future], timeout)
        if not self._future.done():
            raise StillSaving(f"{self._path} is still being written.", "Join it again, or give it more time.")
        self._lose.detach()
        return self._future.result()


def begin(path: str, work: Callable[[], WriteReport], release: Callable[[], None]) -> PendingSave:
    """Do the work in a thread of its own. ``release`` is called once it has ended, or where no thread can begin."""
    future: Future[WriteReport] = Future()
    thread = threading.Thread(target=_run, args=(work, release, future), name=f"save {path}", daemon=False)
    try:
        thread.start()
    except BaseException:
        release()
        raise
    return PendingSave(path, future)


def _run(work: Callable[[], WriteReport], release: Callable[[], None], future: "Future[WriteReport]") -> None:
    try:
        report = work()
    except BaseException as error:  # noqa: BLE001 - whatever it is, whoever joins gets it
        release()
        future.set_exception(error)
    else:
        release()
        future.set_result(report)


def _tell(path: str, future: "Future[WriteReport]") -> None:
    """Log what nobody can be told any more."""
    error = future.exception()
    if error is not None:
        _LOG.error("%s was not saved: %s", path, error, exc_info=error)
