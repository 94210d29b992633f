"""A process that writes saves, so that the training does not wait for Python's global lock.

    memory    pages of a file without a name, which both processes map: the system frees them when the
              last of the two has ended, also if one was killed
    start     a new interpreter, which imports shardvar and nothing of the program: a fork would copy
              threads, devices and locks
    job       a function of shardvar and its arguments; arrays in the memory go by their places
    answers   records for the log and questions to the peers of a job, and then the result or the error

The writer is kept for the next save, and ends with the process that started it. In each job it has the
working directory and the environment of that process.
"""

import io
import json
import logging
import os
import pickle
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from multiprocessing.spawn import get_executable
from socket import socketpair
from sys import path as modules
from threading import Lock, Thread
from types import SimpleNamespace
from typing import Any, TypeVar
from weakref import finalize

import numpy as np

from shardvar.engine.arrays import ArraySource
from shardvar.errors import ArgumentError, ShardvarError, StorageError, WorkerLost
from shardvar.forks import new_lock
from shardvar.layout.dtypes import Array, DType, Shape
from shardvar.planning.index import Metadata
from shardvar.records import replace
from shardvar.storage.scratch import map_pages, shareable_pages
from shardvar.verbs.background import Staging
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.together.fence import Failed, fail_here, failed_here, telling
from shardvar.verbs.together.run import Peers, Run
from shardvar.verbs.together.shares import save_with_objects

_T = TypeVar("_T")

_LOOK_SECONDS = 0.1
"""Between two looks of a writer at its parent."""
_START = """import json, sys
*about, sys.path[:] = json.loads(sys.argv[1])
from shardvar.verbs.writer_process import write_for
write_for(*about)"""


class SharedStaging(Staging):
    """Memory that the writer also maps."""

    def __init__(self) -> None:
        super().__init__(self._new_pages)
        self._owner, self.descriptor = os.getpid(), -1
        self._close: Callable[[], object] = str

    def places(self, nbytes: Sequence[int], most: int | None = None) -> list[Array]:
        if self._owner != os.getpid():  # a fork, which does not own the memory
            self.clear()
            self._owner = os.getpid()
        return super().places(nbytes, most)

    def _new_pages(self, nbytes: int) -> Array:
        self._close()
        self.descriptor = shareable_pages(nbytes)
        self._close = finalize(self, os.close, self.descriptor)
        return np.frombuffer(map_pages(self.descriptor, nbytes), np.uint8)


class _JobPickler(pickle.Pickler):
    """Arrays in the memory are pickled as their places in it."""

    def __init__(self, content: io.BytesIO, memory: Array) -> None:
        super().__init__(content, pickle.HIGHEST_PROTOCOL)
        self._start, self._nbytes = memory.__array_interface__["data"][0], memory.nbytes

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray and value.size and value.flags.c_contiguous:
            start = value.__array_interface__["data"][0] - self._start
            if 0 <= start < self._nbytes:
                return _shared_array, (start, value.dtype, value.shape)
        return NotImplemented


_memory = np.empty(0, np.uint8)
"""In a writer, the memory of its job."""


def _shared_array(start: int, dtype: DType, shape: Shape) -> Array:
    return np.ndarray(shape, dtype, _memory, start)


class WriterProcess:
    """It is started by the first job, and again if it was killed."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._child: _Child | None = None

    def run(
        self, path: str, call: Callable[..., _T], memory: SharedStaging, peers: Any = None
    ) -> _T:
        """Return the result of a call in the writer, or raise its error; ``WorkerLost`` if it was killed.

        ``peers``, if there are any, are an argument of that name.
        """
        content = io.BytesIO()
        try:
            _JobPickler(content, memory.buffer).dump(call)
        except Exception as error:
            raise _unknown_there(error) from error
        level = logging.getLogger("shardvar").getEffectiveLevel()
        job = os.getcwd(), dict(os.environ), level, memory.nbytes, peers is not None
        descriptor = memory.descriptor if memory.nbytes else -1
        with self._lock:
            if self._child is None or not self._child.is_ready():
                self._child = _Child(path)
            try:
                kind, value = self._child.do(job, content, descriptor, peers)
            except (EOFError, ConnectionError):
                code, self._child = self._child.process.wait(), None
                how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
                cause = f"The process that wrote {path} was ended {how}."
                raise WorkerLost(cause, "Find out why, and save again.") from None
            except BaseException:  # such as of the peers: the writer waits for their answer
                self._child.process.kill()
                raise
        if kind == "error":
            raise value
        result: _T = value
        return result


class _Child:
    def __init__(self, path: str) -> None:
        ours, theirs = socketpair()
        with theirs:
            about = json.dumps([theirs.fileno(), os.getpid(), [*map(str, modules)]])
            try:
                self.process = subprocess.Popen(
                    [get_executable(), "-c", _START, about],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # an interrupt at the terminal ends no save
                )
            except OSError as error:
                cause = f"No process could be started to write {path}: {error}."
                raise WorkerLost(cause, "Save with background=True.") from error
        self._owner, self._connection = os.getpid(), Connection(ours.detach())
        finalize(self, _end, self._owner, self._connection, self.process)

    def is_ready(self) -> bool:
        """Return False if it was killed, and in a fork of the process that started it."""
        return self._owner == os.getpid() and self.process.poll() is None

    def do(self, job: Any, content: io.BytesIO, memory: int, peers: Any) -> tuple[str, Any]:
        connection = self._connection
        connection.send(job)
        if memory >= 0:
            send_handle(connection, memory, self.process.pid)
        connection.send_bytes(content.getbuffer())
        while True:
            kind, value = connection.recv()
            if kind == "record":
                logging.getLogger(value.name).handle(value)
            elif kind == "question":
                name, *arguments = value
                connection.send(getattr(peers, name)(*arguments))
            else:
                return kind, value


def _end(owner: int, connection: Connection, process: "subprocess.Popen[bytes]") -> None:
    if os.getpid() == owner:
        with suppress(OSError):
            connection.send(None)  # forks may hold the connection open
        process.wait()
    process.returncode = process.returncode or 0  # no fork waits for it
    connection.close()


WRITER_PROCESS = WriterProcess()


def save_by_writer(
    memory: SharedStaging,
    saved: Run,
    process: int,
    source: ArraySource,
    about: Metadata,
    keys: Iterable[str],
) -> WriteReport:
    """Do as ``save_with_objects`` in the writer. It asks this process for the peers."""
    run, given = replace(saved, peers=None), (process, source, about, frozenset(keys))
    call = partial(_save_in_writer, run, given, failed_here())
    try:
        report, failed = WRITER_PROCESS.run(saved.path, call, memory, saved.peers)
    except WorkerLost:
        with telling(saved.refreshed, process):
            raise
    fail_here(failed)
    if isinstance(report, BaseException):
        raise report
    return report


def _save_in_writer(
    saved: Run, given: tuple[Any, ...], failed: Failed, peers: Peers | None = None
) -> tuple[WriteReport | BaseException, Failed]:
    fail_here(failed)
    try:
        report = save_with_objects(replace(saved, peers=peers), *given)
    except ShardvarError as error:
        return error, failed_here()
    return report, failed_here()


# --- In the writer


def write_for(descriptor: int, parent: int) -> None:
    """Do the jobs of a process until it ends."""
    global _memory  # noqa: PLW0603 - arrays are unpickled without arguments
    connection, lock = Connection(descriptor), Lock()
    Thread(target=_end_with, args=(parent,), daemon=True).start()

    def tell(kind: str, value: Any) -> None:
        with lock:  # threads log
            connection.send((kind, value))

    def ask(*question: Any) -> Any:
        tell("question", question)
        return connection.recv()

    peers = SimpleNamespace(**{name: partial(ask, name) for name in ("tell", "told", "ended")})
    log, handler = logging.getLogger("shardvar"), QueueHandler(None)  # type: ignore[arg-type]
    handler.enqueue = partial(tell, "record")  # type: ignore[method-assign]
    log.addHandler(handler)
    log.propagate = False
    with suppress(EOFError, ConnectionError):  # the parent has ended
        while (job := connection.recv()) is not None:
            directory, environment, level, nbytes, has_peers = job
            memory = recv_handle(connection) if nbytes else -1
            content = connection.recv_bytes()
            log.setLevel(level)
            try:
                os.chdir(directory)
                os.environ.clear()
                os.environ.update(environment)
                if nbytes:
                    _memory = np.frombuffer(map_pages(memory, nbytes), np.uint8)
                    os.close(memory)
                try:
                    call = pickle.loads(content)  # noqa: S301 - of the parent
                except Exception as error:
                    raise _unknown_there(error) from error
                answer = "result", call(peers=peers) if has_peers else call()
            except BaseException as error:  # noqa: BLE001 - every error goes to the process that saves
                answer = "error", _portable(error)
            tell(*answer)
            _memory, call, answer = np.empty(0, np.uint8), None, ("", None)


def _unknown_there(error: Exception) -> ArgumentError:
    """Return the error for an argument of a class or a function that only the main program has."""
    cause = f"An argument cannot go to the process that writes: {error}".rstrip(".") + "."
    return ArgumentError(cause, "Leave it out, or save with background=True.")


def _portable(error: BaseException) -> BaseException:
    error.__traceback__ = None
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301
    except Exception:  # noqa: BLE001 - of the class of another library
        return StorageError(f"{type(error).__name__}: {error}".rstrip(".") + ".")
    return error


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)
