"""Turns: one save or restore of a checkpoint at a time, and saves in the background.

A save in the background writes in another thread, which is not a daemon: the interpreter waits for
it at exit. An error is raised where the save is joined. If a save is never joined, its error is
logged, once its handle is gone or at exit.

A training loop has one turn for all of its checkpoints (``take_next``): the next save waits for the
one under way, or is an error, and raises the error of the last one unless the caller has seen it.
The values are copied before the thread starts, into memory that is kept (``Staging``).

A save calls code of the user: a policy, and ``state`` of objects. If that code saves or restores
the same checkpoint, it would wait for itself. The turn knows the thread that has it, and refuses.

``Staging`` is memory that is kept from one save to the next:

    places    one buffer, cut into a place for each value; it is allocated again only for values
              that do not fit it, or that leave most of it empty
    copy      values of the host into their places, the large ones by several threads

Memory that was used before is copied into several times faster than fresh memory, whose pages the
system must make first.
"""

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from shardvar.engine.pool import run_all
from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointError,
    InvalidCheckpoint,
    LockHeld,
    StillSaving,
    StorageError,
    log_warning,
)
from shardvar.forks import new_latch
from shardvar.layout.dtypes import Array
from shardvar.layout.region import read_integer
from shardvar.pictures.words import human_size, message
from shardvar.records import frozen, replace
from shardvar.verbs.reports import WriteReport

_ALIGNMENT = 64
"""The places begin at multiples of a line of the cache, which any dtype is aligned to."""
_MOST_EMPTY = 2
"""A buffer that is larger than so many times its values is given back."""
_PORTION_NBYTES = 8 << 20
"""The bytes that a thread copies at a time."""


def new_pages(nbytes: int) -> Array:
    return np.empty(nbytes, np.uint8)


class Staging:
    """``new_buffer`` returns bytes as an array of uint8, for example pinned for a device."""

    def __init__(self, new_buffer: Callable[[int], Array] = new_pages) -> None:
        self._new_buffer = new_buffer
        self.buffer = np.empty(0, np.uint8)

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes

    def places(self, nbytes: Sequence[int], most: int | None = None) -> list[Array]:
        """Return a place of uint8 for each value, valid until the next call."""
        starts = [0, *accumulate(-(-each // _ALIGNMENT) * _ALIGNMENT for each in nbytes)]
        need = starts[-1]
        if most is not None and need > (most := read_integer(most, "staging_nbytes")):
            raise ArgumentError(
                f"The values take {human_size(need)} in memory until they are saved, and staging_nbytes "
                f"is {human_size(most)}.",
                "Give more, or save without background.",
            )
        if not need <= self.nbytes <= max(need * _MOST_EMPTY, _PORTION_NBYTES):
            self.buffer = np.empty(0, np.uint8)  # before the next one is made
            self.buffer = self._new_buffer(need)
        buffer = self.buffer
        return [buffer[start : start + each] for start, each in zip(starts, nbytes, strict=False)]

    def copy(self, arrays: Sequence[Array], most: int | None = None) -> list[Array]:
        """Return copies of arrays, in C order, in the places of before."""
        places = self.places([each.nbytes for each in arrays], most)
        copies = [
            place.view(each.dtype).reshape(each.shape)
            for place, each in zip(places, arrays, strict=True)
        ]
        copy_arrays(copies, arrays)
        return copies

    def clear(self) -> None:
        self.buffer = np.empty(0, np.uint8)


def copy_arrays(targets: Sequence[Array], sources: Sequence[Array]) -> None:
    """Large arrays are copied by several threads: NumPy copies without Python's global lock."""
    large: list[tuple[Array, Array]] = []
    for target, source in zip(targets, sources, strict=True):
        if source.nbytes <= _PORTION_NBYTES or not source.ndim:
            np.copyto(target, source)
            continue
        rows = max(_PORTION_NBYTES * len(source) // source.nbytes, 1)
        portions = [slice(start, start + rows) for start in range(0, len(source), rows)]
        large += [(target[each], source[each]) for each in portions]
    if large:
        run_all(lambda pair: np.copyto(*pair), large)


_LOG = logging.getLogger("shardvar.checkpoint")
_ELSEWHERE = "Save and restore outside of policies, of state() and of restore_state()."

Held = TypeVar("Held")

BUSY = "wait", "raise"
"""The ways of a save while another one is under way."""


class Turn:
    """The right to save or restore one checkpoint, which one thread has at a time."""

    def __init__(self) -> None:
        # A latch: the thread that saves in the background ends the turn of its caller.
        self._lock = new_latch()
        self._process = os.getpid()
        self._thread: int | None = None
        self._path = ""
        self._last: PendingSave | None = None

    def take(self, *, waits: bool = True) -> None:
        """``LockHeld`` if this thread has the turn; ``StillSaving`` if another has, and not ``waits``."""
        if self._process != os.getpid():  # a fork, in which no thread has the turn
            self._process, self._thread, self._last = os.getpid(), None, None
        if self._thread == threading.get_ident():
            path = f" {self._path}" if self._path else ""
            raise LockHeld(
                f"The checkpoint{path} is being saved or restored by this very thread.", _ELSEWHERE
            )
        if not self._lock.acquire(blocking=waits):
            cause = f"{self._path or 'A checkpoint'} is still being saved."
            raise StillSaving(cause, "Join that save first, or give busy='wait'.")
        self.take_over()

    def take_next(self, busy: str) -> None:
        """Raise the error of the last save in the background, unless its handle was joined."""
        if busy not in BUSY:
            raise ArgumentError(f"busy={busy!r} is unknown.", "Give 'wait' or 'raise'.")
        self.take(waits=busy == "wait")
        last, self._last = self._last, None
        if last is not None and not last.is_joined:
            try:
                last.join()
            except BaseException:
                self.give_back()
                raise

    def keep(self, pending: "PendingSave") -> None:
        self._last = pending

    def take_over(self) -> None:
        self._thread = threading.get_ident()

    def name(self, path: str) -> None:
        """Keep the path of the checkpoint that is saved or restored, for errors."""
        self._path = path

    def give_back(self) -> None:
        self._thread, self._path = None, ""
        self._lock.release()

    @contextmanager
    def taken(self, path: str = "") -> Iterator[None]:
        self.take()
        try:
            self.name(path)
            yield
        finally:
            self.give_back()


class PendingSave:
    """A save in progress, as ``Checkpoint.save`` with ``background`` returns it.

    Parameters
    ----------
    path : str
        The checkpoint that is being written.
    future : concurrent.futures.Future
        The future of its report.
    thread : threading.Thread
        The thread that writes.
    """

    def __init__(self, path: str, future: "Future[WriteReport]", thread: threading.Thread) -> None:
        self._path = path
        self._future = future
        self._thread = thread
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, _watch, future, path, self._process)

    @property
    def path(self) -> str:
        """The checkpoint that is being written; it does not exist before the save is done."""
        return self._path

    @property
    def is_joined(self) -> bool:
        """True if ``join`` has returned or has raised the error of the save."""
        return not self._finalizer.alive

    def done(self) -> bool:
        """Return True if the save has ended, by success or by an error.

        Returns
        -------
        bool
            True if ``join`` would not wait.

        Raises
        ------
        StillSaving
            In a fork of the process that saves.
        """
        self._check_is_here()
        return self._future.done()

    def join(self, timeout: float | None = None) -> WriteReport:
        """Wait for the save, and return its report or raise its error, at each call.

        Parameters
        ----------
        timeout : float, optional
            The most seconds to wait; without a limit by default.

        Returns
        -------
        WriteReport
            The report of the checkpoint.

        Raises
        ------
        StillSaving
            If the time was too short, and the save goes on; if the thread that saves would wait for
            itself; and in a fork of the process that saves.
        """
        self._check_is_here()
        if not self._future.done() and self._thread.ident == threading.get_ident():
            raise StillSaving(
                f"{self._path} is being written by this thread, which calls join.", _ELSEWHERE
            )
        wait([self._future], timeout)
        if not self._future.done():
            raise StillSaving(
                f"{self._path} is still being written.", "Join it again, or give it more time."
            )
        self._finalizer.detach()  # the caller sees the error, so it need not be logged
        return self._future.result()

    def result(self, timeout: float | None = None) -> WriteReport:
        """Return the report as ``join`` does, under the name that futures have for it.

        Parameters
        ----------
        timeout : float, optional
            The seconds to wait; as long as it takes without one.
        """
        return self.join(timeout)

    def abandon(self) -> None:
        """Log no error: the caller has it."""
        self._finalizer.detach()

    def _check_is_here(self) -> None:
        """A forked process has no thread that saves, and hears nothing of its end."""
        if os.getpid() != self._process:
            raise StillSaving(
                f"{self._path} is being written by process {self._process}; this one is a fork "
                "of it.",
                "Join it there.",
            )


def start_save(
    path: str, work: Callable[[], WriteReport], turn: Turn, *, is_kept: bool = False
) -> PendingSave:
    """``take_next`` raises the error if ``is_kept``. The thread gives the turn back."""
    future: Future[WriteReport] = Future()

    def run() -> None:
        turn.take_over()
        # Give the turn back first: a thread that joined may save again at once, and must find the
        # checkpoint free.
        try:
            report = work()
        except BaseException as error:  # noqa: BLE001 - every error goes to the thread that joins
            turn.give_back()
            future.set_exception(error)
        else:
            turn.give_back()
            future.set_result(report)

    thread = threading.Thread(target=run, name=f"save {path}", daemon=False)
    pending = PendingSave(path, future, thread)
    if is_kept:
        turn.keep(pending)
    try:
        thread.start()
    except BaseException as error:
        turn.give_back()
        future.set_exception(error)
        pending.abandon()
        raise
    return pending


def check_background(background: Any, *others: str) -> None:
    if background not in (False, True, *others):
        which = " or ".join(map(repr, (True, *others)))
        raise ArgumentError(f"background={background!r} is unknown.", f"Give {which}, or False.")


@frozen
class Aftercare:
    """The choices of a caller for the end of a save."""

    on_error: str = "raise"
    """``"warn"`` to log a failure, and to go on."""
    on_saved: Callable[[WriteReport], object] | None = None
    """Called with the report, where the save ends."""

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "warn"):
            raise ArgumentError(
                f"on_error={self.on_error!r} is unknown.", "Give 'raise' or 'warn'."
            )
        if not (self.on_saved is None or callable(self.on_saved)):
            raise ArgumentTypeError(
                f"on_saved={self.on_saved!r} is not a function.", "Give one that takes the report."
            )

    def is_borne(self, error: BaseException) -> bool:
        """Return True for a failure of the machine, or of another process, with which the training goes on."""
        is_failure = isinstance(error, StorageError | CheckpointError)
        return self.on_error == "warn" and is_failure and not isinstance(error, InvalidCheckpoint)


def save_next(
    turn: Turn,
    path: str,
    held: Callable[[], Held],
    save: Callable[[Held], WriteReport],
    *,
    busy: str,
    background: bool | str,
    after: Aftercare,
) -> WriteReport | PendingSave:
    """In the background, ``held`` returns a copy of the values."""
    check_background(background, "process")
    began, blocked = perf_counter(), list[float]()

    def end(work: Callable[[], WriteReport]) -> WriteReport:
        try:
            report = work()
        except Exception as error:
            if not after.is_borne(error):
                raise
            log_warning(f"{path} was not saved: {error}")
            report = WriteReport(path, "", "", 0, 0, 0, (), 0, 0, 0, 0, error=error)
        seconds = perf_counter() - began
        blocked.append(seconds)
        report = replace(report, blocked_seconds=blocked[0], durable_seconds=seconds)
        if after.on_saved:
            after.on_saved(report)
        return report

    turn.take_next(busy)
    if not background:
        turn.give_back()
        return end(lambda: save(held()))
    try:
        turn.name(path)
        work = partial(save, held())
    except BaseException as error:
        if not after.is_borne(error):
            turn.give_back()
            raise
        work = partial(fail, error)
    blocked.append(perf_counter() - began)
    return start_save(path, partial(end, work), turn, is_kept=True)


def fail(error: BaseException, _held: object = None) -> WriteReport:
    raise error


def _watch(future: "Future[WriteReport]", path: str, process: int) -> None:
    """Log the failure of a save that was not joined, in the process that saves."""

    def log(future: "Future[WriteReport]") -> None:
        error = future.exception()
        if error is not None:
            _LOG.error("%s", message(f"{path} was not saved: {error}"), exc_info=error)

    if os.getpid() == process:
        future.add_done_callback(log)
