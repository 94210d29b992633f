"""The copies of saved steps that go to a second directory, in a thread.

shared directory   process 0 copies a step as a whole
own disks          each process saves what its part of the step holds, as in any save by several
                   processes. Process 0 begins, and the others follow it
"""

import os
from collections.abc import Callable
from threading import Condition, Thread
from typing import Any

from shardvar.errors import log_warning
from shardvar.layout.dtypes import STRING, Array
from shardvar.layout.region import Region
from shardvar.planning.index import PART, Metadata, find_ties
from shardvar.verbs.lazy import lazy
from shardvar.verbs.load import open_checkpoint
from shardvar.verbs.reader import Reader
from shardvar.verbs.together.fence import late_error
from shardvar.verbs.together.run import Run, SaveOptions, WaitPace, find_run, pace_of
from shardvar.verbs.together.shares import LocalShard, save_with_objects


class Carrier:
    """One step is copied at a time, and then the newest of the steps that wait.

    With ``choose``, a process waits until that returns the next of them, or raises."""

    def __init__(
        self,
        target: Callable[[int], str],
        copy: Callable[[int], None],
        choose: Callable[[Callable[[], list[int]]], int] | None = None,
    ) -> None:
        self._target, self._copy, self._choose = target, copy, choose
        self._changed = Condition()
        self._next: dict[int, tuple[Any, Callable[[], None]]] = {}
        """The steps that wait, each with its save if that may be under way, and what follows the copy."""
        self._now: int | None = None
        self._is_running = False
        self._error: BaseException | None = None

    @property
    def awaited(self) -> set[int | None]:
        """The steps that are copied, or wait for it: they stay where they are."""
        with self._changed:
            return {self._now, *self._next}

    def take(self, number: int, pending: Any, then: Callable[[], None]) -> None:
        """Copy a step once its save has ended, and call ``then``."""
        with self._changed:
            if self._choose is None:
                self._next.clear()
            self._next[number] = pending, then
            if not self._is_running:
                self._is_running = True
                Thread(target=self._run, name="shardvar-carrier").start()

    def wait_for(self, number: int) -> None:
        """Wait until a step is no longer copied, and does not wait for it."""
        with self._changed:
            self._changed.wait_for(lambda: number not in (self._now, *self._next))

    def wait(self) -> None:
        """Wait for all copies; raise the error of the last one."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_running)
            error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        while waiting := self._waiting():
            number, error = waiting[-1], None
            try:
                if self._choose:
                    number = self._choose(self._waiting)
                with self._changed:
                    number = number if self._choose else max(self._next)
                    pending, then = self._next[number]
                    self._now = number
                    self._drop(number)
                if pending is None or getattr(pending.result(), "error", None) is None:
                    self._copy(number)
                    then()
            except BaseException as failed:  # noqa: BLE001 - it is raised where the copies are awaited
                error = failed
                log_warning(f"{self._target(number)} was not written: {failed}")
            with self._changed:
                self._error = error
                self._drop(number)

    def _waiting(self) -> list[int]:
        """The steps that wait; without any, the thread is at its end."""
        with self._changed:
            self._now = None
            if not self._next:
                self._is_running = False
            self._changed.notify_all()
            return sorted(self._next)

    def _drop(self, number: int) -> None:
        """Leave out a step and all before it."""
        self._next = {each: save for each, save in self._next.items() if each > number}


def copy_step(source: str, target: str) -> None:
    from shardvar.verbs.reshard import reshard  # only where steps have a second place

    with open_checkpoint(source) as reader:
        form = reader.format
    reshard(source, target, format=form, force=True)


def save_part(part: str, run: Run, process: int) -> None:
    """Save what a part holds as one of the processes of a run."""
    with open_checkpoint(part) as reader:
        about, entries = reader.metadata, reader.entries()
        objects = reader.source.objects([*reader], "") or {}
        ties = {**find_ties(entries), **about.ties}
        tensors: dict[str, list[LocalShard]] = {}
        for row in range(len(entries.slices)):
            key, region = entries.slices.key(row), entries.slices.region(row)
            if key not in objects and key not in ties:
                shape = entries.slices.tensors.shape(int(entries.slices.tensor[row]))
                values = _values(reader, key, entries.slices[row].dtype, region)
                tensors.setdefault(key, []).append(LocalShard(values, region.offset, shape))
        texts = {name: text for name, text in about.user.items() if name != PART}
        held = Metadata(user=texts, objects=objects, paths=about.paths, ties=ties)
        save_with_objects(run, process, tensors, held)


def run_of_copy(target: str, count: int, save: int, options: SaveOptions) -> Run:
    """Return the run of a save by its number."""
    name = os.path.basename(target)
    return find_run(target, name, count, "shardvar", str(save), options=options)


def called(waiting: Callable[[], list[int]], run_of: Callable[[int], Run]) -> int:
    """Return the newest of the waiting steps that process 0 has begun to save, once there is one."""
    pace: WaitPace | None = None
    while True:
        for number in reversed(waiting()):
            run = run_of(number)
            if run.call(run.fixed_token) in run.names():
                return number
        pace = pace or pace_of(run)
        if pace.is_over:
            raise late_error(run, [0], pace.timeout)
        pace.pause()


def _values(reader: Reader, key: str, dtype: str, region: Region) -> Any:
    """Return the stored values of a region, which are read some rows at a time."""
    if dtype == STRING or not region.rank:
        return reader.read(key, region, "full")

    def read(rows: slice) -> Array:
        offset = region.offset[0] + rows.start, *region.offset[1:]
        shape = rows.stop - rows.start, *region.shape[1:]
        return reader.read(key, Region(offset, shape), "full")

    return lazy(region.shape, dtype, read, by_rows=True)
