"""The copies of saved steps that go to a second directory, in a thread of process 0."""

from collections.abc import Callable
from threading import Condition, Thread
from typing import Any

from shardvar.errors import log_warning
from shardvar.verbs.load import open_checkpoint


class Carrier:
    """One step is copied at a time, and then the newest of the steps that wait."""

    def __init__(self, source: Callable[[int], str], target: Callable[[int], str]) -> None:
        self._source, self._target = source, target
        self._changed = Condition()
        self._next: tuple[int, Any, Callable[[], None]] | None = None
        self._now: int | None = None
        self._error: BaseException | None = None

    @property
    def awaited(self) -> set[int | None]:
        """The steps that are copied, or wait for it: they stay where they are."""
        with self._changed:
            return {self._now, self._next[0] if self._next else None}

    def take(self, number: int, pending: Any, then: Callable[[], None]) -> None:
        """Copy a step once its save has ended, and call ``then``."""
        with self._changed:
            self._next = number, pending, then
            if self._now is None:
                self._now = number
                Thread(target=self._run, name="shardvar-carrier").start()

    def wait(self) -> None:
        """Wait for all copies; raise the error of the last one."""
        with self._changed:
            self._changed.wait_for(lambda: self._now is None)
            error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._next is None:
                    self._now = None
                    self._changed.notify_all()
                    return
                (number, pending, then), self._next = self._next, None
                self._now = number
            error: BaseException | None = None
            try:
                if pending is None or getattr(pending.result(), "error", None) is None:
                    self._copy(number)
                    then()
            except BaseException as failed:  # noqa: BLE001 - it is raised where the copies are awaited
                error = failed
                log_warning(f"{self._target(number)} was not written: {failed}")
            with self._changed:
                self._error = error

    def _copy(self, number: int) -> None:
        from shardvar.verbs.reshard import reshard  # only where steps have a second place

        source = self._source(number)
        with open_checkpoint(source) as reader:
            form = reader.format
        reshard(source, self._target(number), format=form, force=True)
