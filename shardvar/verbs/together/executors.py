"""Executors: work of a verb that is done by the workers of any ``concurrent.futures.Executor``.

    caller   tasks --submit--> workers --reports--> caller, which commits

Threads, processes, and the workers of a cluster (``distributed.Client.get_executor(pure=False)``)
are alike: a task is a value that can be pickled, with the path by which its worker opens the
checkpoint. So all workers must see the same files under the same paths. A worker refuses a task of
another release of shardvar, and one whose files have changed.

Tasks are idempotent: one that is done twice writes the same bytes. Inside a task there is one
thread, since the executor decides how many tasks run at a time. A worker that dies is a
``WorkerLost``; what others finished stays.

Payloads are checked by threads of this process, small neighbours in one read, or by the workers of
an executor. An error stays with its row, and the other rows are still read.
"""

import os
import platform
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from contextlib import contextmanager
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from shardvar._version import __version__
from shardvar.engine.arrays import MoveTable
from shardvar.engine.evidence import Evidence
from shardvar.engine.pieces import Reading, read_moves
from shardvar.engine.pool import Done, Progress, block_ranges, in_this_thread, new_buffer
from shardvar.engine.read import check_bool
from shardvar.errors import (
    READ_ERRORS,
    ArgumentTypeError,
    CheckpointError,
    CheckpointNotFound,
    CorruptCheckpoint,
    MissingFile,
    ReadError,
    StorageError,
    UnsupportedError,
    WorkerLost,
)
from shardvar.forks import new_lock
from shardvar.formats.files import open_below
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import STRING, Ints, code, odd_values
from shardvar.planning.index import EntryTable
from shardvar.records import entity, field, frozen, replace
from shardvar.verbs.locate import Location
from shardvar.wire import strings

if TYPE_CHECKING:
    from shardvar.engine.files import FileReport, FileRunner, FileTask
    from shardvar.engine.mapped import MapPart

_AHEAD = 1024
"""Tasks that are with the executor at a time: more than a cluster has workers."""

_TASK_NBYTES, _TASK_ROWS = 64 << 20, 1 << 16
"""The payloads of a task that only reads: about 50 ms of work, a few MB to send."""

_OPEN = 4
"""Sources that a worker keeps open: the most recently used ones."""

_LOOK_SECONDS = 1.0
"""Time between two looks at whether the tasks can still finish."""

_CANCEL_SECONDS = 10.0
"""Time for a cluster to take the cancellation of up to 1,024 tasks; some milliseconds each."""

_GOES_ON = "a reshard goes on with the files that were finished."

_SAME_FILES = "Let all workers see the same files under the same paths, and run it again."

_LOST = {"KilledWorker", "CommClosedError"}
"""Errors of distributed for a worker or scheduler that is gone, by name."""

_UNREADABLE = "Error during deserialization of the task graph"
"""The words of distributed's scheduler where it lacks a module that a task needs."""


@frozen
class Opening:
    """The way a worker opens the checkpoint that a task reads."""

    found: Location
    dequantize: bool | str = False
    """True, or a dtype, to read numbers in the place of quantised tensors."""
    others: tuple[Location, ...] = ()
    """The checkpoints that are joined to it, in order."""
    call: str = field(default_factory=lambda: os.urandom(8).hex())
    """A token of the call: a worker does not reuse the sources of an earlier one."""
    caller: int = field(default_factory=os.getpid)
    """The process that makes the call."""

    def open(self) -> Source:
        found = (self.found, *self.others)
        sources = [each.open(dequantize=self.dequantize) for each in found]
        if not self.others:
            return sources[0]
        from shardvar.verbs.joined_source import join_sources

        return join_sources([each.storage for each in found], sources)


def check_executor(executor: Any) -> None:
    if executor is not None and not callable(getattr(executor, "submit", None)):
        cause = f"A {type(executor).__name__} is not an executor."
        raise ArgumentTypeError(
            cause, "Give a concurrent.futures.Executor; of a dask client, its get_executor()."
        )


def run_tasks(
    executor: Executor, tasks: Iterable[tuple[Callable[..., Done], Sequence[Any]]]
) -> Iterator[Done]:
    """Results come as they are ready. If the caller stops, tasks not yet begun are cancelled."""
    todo, pending = iter(tasks), set[Future[Done]]()
    try:
        while True:
            for function, arguments in todo:
                # By position: executors of clusters take keyword arguments for themselves.
                pending.add(executor.submit(function, *arguments))
                if len(pending) == _AHEAD:
                    break
            if not pending:
                return
            finished = set[Future[Done]]()
            while not finished:
                finished, pending = wait(pending, _LOOK_SECONDS, FIRST_COMPLETED)
                if not finished and _is_cut_off(executor):
                    raise _cut_off()
            # Failed tasks last: finished ones are taken before an error ends the run, and need
            # not be done again.
            results = sorted(
                finished,
                key=lambda each: each.cancelled() or each.exception() is not None,
                reverse=True,
            )
            while results:
                yield results.pop().result()
    except Exception as error:
        raise _explained(error, executor) from error
    finally:
        # Tasks that are cut off answer no cancellation, and nothing waits for them.
        if not _is_cut_off(executor):
            _give_up(pending)


def _is_cut_off(executor: Executor) -> bool:
    """If distributed has lost its scheduler, only the client's status shows it."""
    client = vars(executor).get("_client")
    return getattr(client, "status", "running") != "running"


def _give_up(pending: Collection[Future[Any]]) -> None:
    """Cancel tasks that have not begun, for some time in a cluster, and wait for the others."""
    running: list[Future[Any]] = []

    def cancel() -> None:
        running.extend(future for future in pending if not future.cancel())

    thread = Thread(target=cancel, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # at the interpreter's exit, when no threads are started any more
        cancel()
    else:
        thread.join(_CANCEL_SECONDS)
    wait(running)


def _explained(error: Exception, executor: Executor) -> Exception:
    is_lost = isinstance(error, BrokenExecutor | CancelledError)
    if is_lost and _is_cut_off(executor):
        return _cut_off()
    if is_lost or type(error).__name__ in _LOST:
        cause = f"A worker ended before its task did ({type(error).__name__})."
        return WorkerLost(cause, f"Run it again: {_GOES_ON}")
    if isinstance(error, ModuleNotFoundError) or _UNREADABLE in str(error):
        from shardvar.storage.requests import first_line

        reason = first_line(error).partition(". ")[0]
        cause = f"A worker, or the scheduler, cannot read a task ({reason})."
        return UnsupportedError(cause, "Install shardvar everywhere, in the same release.")
    return error


def _cut_off() -> WorkerLost:
    cause = "The connection to the cluster's scheduler was lost, and its tasks with it."
    return WorkerLost(cause, f"Start the scheduler again, and then this: {_GOES_ON}")


_ending = set[int]()
"""This process, once it ends with its parent; a process that is forked from it is another."""


def end_with_parent() -> None:
    """End this process once its parent has ended, or it would wait for tasks for ever."""

    from multiprocessing import parent_process  # of a worker

    def outlive() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    if os.getpid() not in _ending:
        _ending.add(os.getpid())
        Thread(target=outlive, daemon=True).start()


_working = list[None]()
"""One item for each task that this process is at."""


def interrupt_task(_signal: int, _frame: object) -> None:
    """Handle SIGINT in a worker: it ends a task, and otherwise concerns only the caller."""
    if _working:
        raise KeyboardInterrupt


def check_version(version: str) -> None:
    if version != __version__:
        cause = f"A worker has shardvar {__version__}, and the task is from shardvar {version}."
        raise UnsupportedError(cause, "Install the same release everywhere.")


# --- The payloads that a task reads


@entity
class Payloads:
    """Some payloads of a checkpoint, as a worker finds them."""

    opening: Opening
    entries: EntryTable
    """The entries of the payloads, with their places in the files."""
    files: Mapping[int, tuple[str, str]]
    """The name and the stamp of each of their files: in others they would lie elsewhere."""
    parts: "tuple[MapPart, ...]" = ()
    """The maps that make them, the last one first: each of what the next one makes."""

    @classmethod
    def of(cls, opening: Opening, source: Source, entries: EntryTable) -> Self:
        """Return the payloads of some entries of a source, without the checksums of others."""
        from shardvar.engine.files import shrink_entries
        from shardvar.engine.mapped import map_parts  # of an executor

        entries = shrink_entries(entries, np.arange(len(entries)))
        files = {
            file: (source.index.files[file], _stamp(opening, source, file))
            for file in source.files_read(entries).tolist()
        }
        parts = map_parts(source, entries)
        return cls(opening, parts[0].entries if parts else entries, files, parts)

    @contextmanager
    def opened(self, version: str) -> Iterator[Source]:
        """Open the source in a worker, after comparing release and files; one thread."""
        from shardvar.storage.scratch import map_scratch

        check_version(version)
        from multiprocessing import parent_process  # of a worker

        # A worker ends with its caller, if that has started it; processes of clusters live on.
        parent = parent_process()
        if parent is not None and parent.pid == self.opening.caller:
            end_with_parent()
        _working.append(None)
        try:
            source = _open(self.opening)
            for file, (name, stamp) in self.files.items():
                is_named = list(source.index.files[file : file + 1]) == [name]
                if not is_named or _stamp(self.opening, source, file) != stamp:
                    cause = (
                        f"{name} of {self.opening.found.path} is another file here, on "
                        f"{platform.node()}, or was replaced."
                    )
                    raise CorruptCheckpoint(cause, _SAME_FILES)
            for part in reversed(self.parts):
                source = part.source(source, map_scratch)
            with in_this_thread():
                yield source
        except StorageError as error:  # maybe only this machine's, such as its credentials
            where = f"A worker on {platform.node()}, process {os.getpid()}"
            raise error.at(where) from error
        finally:
            _working.pop()


def portions(nbytes: Ints) -> Iterator[Ints]:
    """Yield rows for one task each: at most 64 MiB and 65,536 rows, or one larger row."""
    first, total = 0, 0
    for row, count in enumerate(nbytes.tolist()):
        if row > first and (total + count > _TASK_NBYTES or row - first == _TASK_ROWS):
            yield np.arange(first, row)
            first, total = row, 0
        total += count
    if first < len(nbytes):
        yield np.arange(first, len(nbytes))


def _stamp(opening: Opening, source: Source, number: int) -> str:
    """The stamp of a file; empty if it cannot be opened, which the reading task reports."""
    places = source.places
    storage, name = (
        places[number] if places else (opening.found.storage, source.index.files[number])
    )
    try:
        file = open_below(storage, name)
    except (CheckpointError, StorageError):
        return ""
    file.close()
    return file.stamp


# --- Resharding: one file a task


def runner_of(
    executor: Executor, opening: Opening, source: Source, progress: Progress
) -> "FileRunner":
    """Return the runner of a reshard's tasks on an executor; ``source`` is the caller's."""
    from shardvar.engine.cast import CastSource  # of a write
    from shardvar.engine.files import restore_rows, shrink_entries, shrink_task

    def arguments(number: int, task: "FileTask") -> tuple[Any, ...]:
        # The task without the parts that its file does not need.
        small, rows = shrink_task(task)
        entries, inner, is_cast = small.entries, source, isinstance(source, CastSource)
        if isinstance(source, CastSource):
            entries, inner = shrink_entries(source.stored, rows), source.inner
        return __version__, number, Payloads.of(opening, inner, entries), small, rows, is_cast

    def run(tasks: "Sequence[FileTask]") -> "Generator[tuple[FileTask, FileReport]]":
        if tasks:
            largest = max(int(task.plan.targets.nbytes.sum()) for task in tasks)
            tasks[0].storage.lend([task.name for task in tasks], largest)
        calls = ((run_file, arguments(number, task)) for number, task in enumerate(tasks))
        try:
            for number, rows, report in run_tasks(executor, calls):
                progress(report.nbytes)
                yield tasks[number], restore_rows(report, rows)
        except WorkerLost as error:
            if tasks[0].storage.traits is None:
                raise
            # Only the service knows the unfinished uploads of a process that was killed.
            cause = f"{error.cause} It may have left unfinished uploads in {tasks[0].storage.path}."
            remedy = (
                f"{error.remedy} A lifecycle rule of the bucket ends unfinished uploads, which it "
                "does not list."
            )
            raise WorkerLost(cause, remedy) from error

    return run


def run_file(
    version: str, number: int, payloads: Payloads, task: "FileTask", rows: Ints, is_cast: bool
) -> "tuple[int, Ints, FileReport]":
    """In a worker; with ``is_cast``, by entries before the cast. Return (number, rows, report)."""
    from shardvar.engine.cast import CastSource, renumber  # of a write
    from shardvar.engine.files import run_task

    with payloads.opened(version) as source, task.storage.borrowed(task.name) as storage:
        task = replace(task, storage=storage)
        if is_cast:
            source = CastSource.of(source, payloads.entries)
            task = replace(task, entries=renumber(task.entries))
        elif payloads.parts:
            task = replace(task, entries=payloads.entries)
        return number, rows, run_task(task, source)


# --- Sources that a worker holds open

_sources: OrderedDict[Opening, Source] = OrderedDict()
_sources_lock = new_lock()


def _open(opening: Opening) -> Source:
    """Open a checkpoint in a worker, or take the source of a task before."""
    with _sources_lock:
        source = _sources.get(opening)
        if source is None:
            try:
                source = _sources[opening] = opening.open()
            except (MissingFile, CheckpointNotFound) as error:
                cause = (
                    f"A worker on {platform.node()} does not see {opening.found.path} as the "
                    f"caller does: {error.cause}"
                )
                raise MissingFile(cause, _SAME_FILES) from error
        _sources.move_to_end(opening)
        while len(_sources) > _OPEN:
            _sources.popitem(last=False)  # not closed: another thread may read from it
        return source


Check = Callable[[EntryTable], dict[int, ReadError]]
"""Reads the payloads of entries, and returns the errors of damaged ones, by row."""


Odd = set[tuple[str, int]]
"""Keys, each with 1 if a NaN was seen, and with 2 if an infinity was."""


def check_payloads(
    source: Source,
    entries: EntryTable,
    progress: Progress = lambda _nbytes: None,
    odd: Odd | None = None,
) -> dict[int, ReadError]:
    """Read every payload; the error of each row that is damaged. ``odd`` gets values to report."""

    def watch(row: int, payload: memoryview) -> None:
        if odd is not None and (flags := odd_values(payload, entries.slices.dtype(row))):
            odd.add((entries.slices.key(row), flags))  # atomic, unlike an update of flags

    # Move: small neighbours together and large payloads in blocks, by threads; their bytes are
    # dropped.
    errors: dict[int, ReadError] = {}
    evidence = Evidence(source, entries, errors=errors, watch=watch if odd is not None else None)
    reading = Reading(evidence, progress)
    rows = np.arange(len(entries))
    zeros = np.zeros_like(rows)
    read_moves(reading, MoveTable(rows, zeros, rows, zeros, entries.slices.nbytes), None)
    evidence.check()
    # A payload without bytes may have stored bytes all the same.
    for row in np.flatnonzero(~entries.plain & (entries.slices.nbytes == 0)).tolist():
        evidence.read_whole(row)
    # Values, of payloads that are not damaged.
    for row in np.flatnonzero(
        np.isin(entries.slices.codes(), (code(STRING), code("bool")))
    ).tolist():
        if row in errors:
            continue
        # The bytes are read once more, so their checksum is compared once more.
        evidence, nbytes = Evidence(source, entries), int(entries.slices.nbytes[row])
        try:
            if entries.slices.dtype(row) == STRING:
                payload = new_buffer(nbytes)
                evidence.read(row, 0, payload)
                evidence.check()
                strings.decode(payload, entries.slices.region(row).shape)
                continue
            # Bools: a block at a time, for a tensor of any size.
            for start, stop in block_ranges(0, nbytes):
                block = new_buffer(stop - start)
                evidence.read(row, start, block)
                check_bool(np.frombuffer(block, np.bool), entries.slices.key(row), source, entries)
            evidence.check()
        except READ_ERRORS as error:
            errors[row] = error
    return errors


def payload_checker(
    executor: Executor | None,
    found: Location,
    source: Source,
    progress: Progress,
    odd: Odd | None,
) -> Check:
    if executor is None:
        return partial(check_payloads, source, progress=progress, odd=odd)
    opening, is_odd = Opening(found), odd is not None

    def check(entries: EntryTable) -> dict[int, ReadError]:
        calls = (
            (
                check_portion,
                (__version__, Payloads.of(opening, source, entries.take(rows)), rows, is_odd),
            )
            for rows in portions(entries.slices.nbytes)
        )
        errors: dict[int, ReadError] = {}
        for rows, damaged, seen in run_tasks(executor, calls):
            if odd is not None:
                odd.update(seen)
            errors |= {int(rows[row]): error for row, error in damaged.items()}
            progress(int(entries.slices.nbytes[rows].sum()))
        return errors

    return check


def check_portion(
    version: str, payloads: Payloads, rows: Ints, is_odd: bool
) -> tuple[Ints, dict[int, ReadError], Odd]:
    """In a worker; with ``is_odd``, also return the keys of odd values."""
    seen = Odd()
    with payloads.opened(version) as source:
        errors = check_payloads(source, payloads.entries, odd=seen if is_odd else None)
        return rows, errors, seen
