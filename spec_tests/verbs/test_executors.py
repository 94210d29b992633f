"""Executors: whichever workers do the work, the result is that of one process, and a worker that
dies loses nothing."""

import copy
import os
import pickle
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext, suppress
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar._version import __version__
from shardvar.cli import main
from shardvar.engine import files as files_module
from shardvar.engine.files import FileTask, run_each, shrink_task
from shardvar.errors import (
    AccessDenied,
    ArgumentTypeError,
    CheckpointNotFound,
    CorruptCheckpoint,
    MissingFile,
    ServerError,
    ShardvarError,
    StorageError,
    TargetExists,
    UnsupportedError,
    WorkerLost,
)
from shardvar.planning.policies import BalancedPolicy
from shardvar.storage.local import LocalStorage
from shardvar.verbs.locate import find_checkpoint
from shardvar.verbs.together import executors
from shardvar.verbs.together.executors import Opening, Payloads, check_version, run_tasks
from spec_tests.helpers.damage import flip
from spec_tests.helpers.executors import Inline
from spec_tests.helpers.hypothesis_strategies import tensor_dicts
from spec_tests.helpers.memory_bucket import (
    Dead,
    MemoryBucket,
    Raced,
    ended_at_each,
    in_bucket,
    raced_at_each,
)
from spec_tests.helpers.orbax_files import settled
from spec_tests.helpers.sharding_callbacks import Negating
from spec_tests.helpers.system_calls import snapshot

MODEL: dict[str, Any] = {
    **{
        f"w{number}": np.random.default_rng(number).standard_normal((37, 5 + number))
        for number in range(6)
    },
    "flags": np.arange(70) % 3 == 0,
    "step": np.array(7),
}

NBYTES = sum(array.nbytes for array in MODEL.values())


@pytest.fixture(scope="module")
def workers() -> Iterator[Executor]:
    """Processes that were spawned, which share nothing with this one."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        yield executor


@pytest.fixture(scope="module")
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(3) as executor:
        yield executor


@pytest.fixture
def source(tmp_path: Path) -> Path:
    sv.save(tmp_path / "source", MODEL, partition=3)
    return tmp_path / "source"


RULES = [
    *(f"{key}[a b] -> 'm {key}'[b a]" for key in MODEL if key.startswith("w")),
    *(f"{key} -> 'm {key}'" for key in ("flags", "step")),
]
HOWS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "cast": {"cast": "float32"},
    "transposed, then cast": {"transpose": "w*", "cast": "float16"},
    "mapped, then transposed": {"map": RULES, "transpose": "*", "rename": {"m *": "*"}},
    "joined": {"concat": {"w0": 0}},
    "joined, then cast": {"concat": {"w0": 0}, "cast": {"w0": "float32"}},
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", ["workers", "threads"])
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "safetensors", "torch"])
def test_a_reshard_by_workers_writes_the_same_bytes(
    form: str, how: str, kind: str, source: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The workers get only the stored entries that their files need. A map is made by the workers,
    and sources that are joined have checksums of two kinds."""
    partition, options = None if form == "safetensors" else 2, HOWS[how]
    sources = [source]
    if "concat" in options:
        sources.append(tmp_path / "other")
        sv.save(sources[1], MODEL | {"w0": np.flip(MODEL["w0"])}, format="tensorflow", partition=2)
    done: dict[str, list[int]] = {"here": [], "there": []}
    for name, executor in (("here", None), ("there", request.getfixturevalue(kind))):
        (tmp_path / name).mkdir()
        report = sv.reshard(
            sources,
            tmp_path / name / "out",
            format=form,
            policy=BalancedPolicy(4),
            partition=partition,
            executor=executor,
            progress=done[name].append,
            **options,
        )
    place = "out" if form in ("torch", "safetensors") else "."
    assert snapshot(tmp_path / "here" / place) == snapshot(tmp_path / "there" / place)
    assert sum(done["there"]) == report.nbytes


@given(tensor_dicts(strings=True), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
def test_a_task_without_the_rows_of_others_writes_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    tensors: dict[str, Any],
    before: int,
    after: int,
    files: int,
) -> None:
    """Its checksums too, which are in the index."""
    place = tmp_path_factory.mktemp("tasks")
    sv.save(place / "ck", tensors, partition=before)
    options: dict[str, Any] = {"partition": after, "policy": BalancedPolicy(files)}
    for name, executor in (("here", None), ("there", Inline())):
        report = sv.reshard(place / "ck", place / name / "out", executor=executor, **options)
    assert executor is not None and len(executor.calls) == report.num_files
    assert snapshot(place / "here") == snapshot(place / "there")
    assert sv.diff(place / "ck", place / "there" / "out").equal


def test_the_tasks_of_a_plan_are_together_as_large_as_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {f"w{number}": np.zeros((200, 2)) for number in range(50)}
    sv.save(tmp_path / "ck", tensors, partition=200)
    sizes: list[tuple[int, int]] = []

    def measure(tasks: list[FileTask], source: Any, *rest: Any) -> Any:
        sizes.extend(
            (len(pickle.dumps(shrink_task(task)[0])), len(pickle.dumps(task))) for task in tasks
        )
        return run_each(tasks, source, *rest)

    monkeypatch.setattr("shardvar.engine.files.run_each", measure)
    sv.reshard(tmp_path / "ck", tmp_path / "out", policy=BalancedPolicy(25))
    assert len(sizes) == 25
    assert sum(small for small, _ in sizes) < 3 * max(whole for _, whole in sizes)


@pytest.mark.parametrize(
    "form", ["shardvar", "tensorflow", "safetensors", "torch", "npz", "pt", "zarr", "orbax"]
)
def test_a_worker_that_was_given_up_and_goes_on_does_no_harm_to_what_was_committed(
    form: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster has another worker do a task whose worker it has lost; that one may only have been
    cut off.

    The checkpoint is whole while it writes, once it has written and, where it is killed meanwhile,
    then too. The next write removes what it left.
    """
    target, whole = tmp_path / "out" / f"m.{form}", list[bool]()
    target.parent.mkdir()
    many = form in ("shardvar", "tensorflow", "safetensors", "torch")
    options: dict[str, Any] = {
        "format": form,
        "policy": BalancedPolicy(3) if many else None,
        "filter": ["w*", "step"],
    }

    sv.reshard(source, target, executor=(executor := Inline()), **options)
    before, write_batch = snapshot(target.parent), files_module._write_batch

    def look(*work: Any) -> Any:
        whole.append(sv.verify(target).ok)
        return write_batch(*work)

    monkeypatch.setattr(files_module, "_write_batch", look)
    for call in executor.calls:
        call()
    assert len(whole) >= len(executor.calls) and all(whole) and sv.verify(target).ok
    after = snapshot(target.parent)
    assert before == {name: after[name] for name in before}

    monkeypatch.setattr(files_module, "_write_batch", lambda *_: sys.exit())
    with monkeypatch.context() as killed:
        killed.setattr(
            LocalStorage, "remove", lambda *_: None
        )  # a process that is killed removes nothing
        for call in executor.calls:
            with pytest.raises(SystemExit):
                call()
    assert sv.verify(target).ok and snapshot(target.parent).keys() > before.keys()
    monkeypatch.setattr(files_module, "_write_batch", write_batch)
    sv.reshard(source, target, force=True, **options)
    assert len(snapshot(target.parent)) == len(before)


def test_a_worker_of_another_release_refuses() -> None:
    check_version(sv.__version__)
    with pytest.raises(
        UnsupportedError, match=r"A worker has shardvar .*, and the task is from shardvar 0\.0\.0"
    ):
        check_version("0.0.0")


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'shardvar'"),  # of a worker
        RuntimeError(
            "Error during deserialization of the task graph. This often\noccurs if ..."
        ),  # of a scheduler
    ],
)
def test_a_cluster_without_shardvar_is_said_to_be_that(error: Exception, source: Path) -> None:
    future: Future[Any] = Future()
    future.set_exception(error)
    words = "cannot read a task .*Install shardvar everywhere, in the same release"
    with pytest.raises(UnsupportedError, match=words):
        sv.verify(source, executor=SimpleNamespace(submit=lambda *_, **__: future))  # type: ignore[arg-type]


class Elsewhere(ThreadPoolExecutor):
    """Workers for which the checkpoint is gone: their machine has not mounted the file system, or
    another one at that path."""

    def __init__(self, folder: Path) -> None:
        super().__init__(1)
        self.folder = folder

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        for path in self.folder.glob("source*"):
            path.rename(self.folder / f"moved-{path.name}")
        return super().submit(function, *arguments)


REFUSED: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (lambda _: 4, {}, ArgumentTypeError, r"A int is not an executor\. Give a concurrent\.futures\.Executor"),
    (lambda _: Inline(), {"policy": Negating()}, UnsupportedError, "The policy changed values"),
    (Elsewhere, {}, MissingFile, r"A worker on .* does not see .*source as the caller does.*same paths"),
    (lambda _: Another(1), {}, CorruptCheckpoint, r"source\.svdata-.* is another file here, .*or was replaced"),
]  # fmt: skip
"""Executors for a folder, options, and what is said of both."""


class Another(ThreadPoolExecutor):
    """Workers for which the files are others than those of the plan."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        with mock.patch.object(executors, "_stamp", lambda *_: os.urandom(4).hex()):
            future = super().submit(function, *arguments)
            future.exception()
        return future


@pytest.mark.parametrize(("made", "options", "error", "words"), REFUSED)
def test_what_workers_cannot_do_is_refused_before_anything_is_written(
    made: Any,
    options: dict[str, Any],
    error: type[Exception],
    words: str,
    source: Path,
    tmp_path: Path,
) -> None:
    with pytest.raises(error, match=words):
        sv.reshard(source, tmp_path / "out", filter="w0", executor=made(tmp_path), **options)
    assert not list(tmp_path.glob("out*"))


def kinds_of_errors(root: type[ShardvarError] = ShardvarError) -> Iterator[type[ShardvarError]]:
    yield root
    for kind in root.__subclasses__():
        yield from kinds_of_errors(kind)


def by_new(error: ShardvarError) -> ShardvarError:
    """Take an error apart and put it together as tblib does, which Dask uses: by the constructor
    that it names, or, where it names none, by ``__new__``."""
    if type(error).__reduce__ in (OSError.__reduce__, BaseException.__reduce__):
        found = type(error).__new__(type(error))
        found.__dict__.update(error.__dict__)
        return found
    constructor, arguments, state = error.__reduce__()
    found = constructor(*arguments)
    found.__dict__.update(state)
    return found


@pytest.mark.parametrize("kind", sorted(set(kinds_of_errors()), key=lambda kind: kind.__name__))
def test_errors_arrive_with_their_class_and_words(kind: type[ShardvarError]) -> None:
    error = kind("'w' is 3.", "Give 4.").in_file("m.svdata")
    for found in (pickle.loads(pickle.dumps(error)), by_new(error), copy.copy(error)):
        assert type(found) is kind and str(found) == "'w' is 3. Give 4."
        assert (found.cause, found.remedy, found.file) == ("'w' is 3.", "Give 4.", "m.svdata")


class Cluster(Executor):
    """An executor as Dask's: its futures are cancelled by messages, and some stay unfinished where
    the scheduler is lost."""

    def __init__(self, *, is_heard: bool = True) -> None:
        self._client = self
        self.status = "running"
        self.is_heard = is_heard
        self.futures: list[Future[Any]] = []

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.futures.append(future)
        if len(self.futures) <= 2:
            future.set_result(function(*arguments))
        future.add_done_callback(self.cancelled)
        return future

    def cancelled(self, future: Future[Any]) -> None:
        if future.cancelled() and not self.is_heard:
            threading.Event().wait(600)


@pytest.mark.parametrize("is_told", [False, True], ids=["silence", "one is cancelled"])
def test_a_scheduler_that_is_gone_ends_the_call(
    is_told: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a lost connection Dask tells some futures, or none. No cancellation is sent after it."""
    monkeypatch.setattr(executors, "_LOOK_SECONDS", 0.01)
    executor = Cluster(is_heard=False)

    def lose(_nbytes: int) -> None:
        executor.status = "connecting"
        if is_told and not executor.futures[-1].done():
            executor.is_heard = True
            executor.futures[-1].cancel()
            executor.futures[-1].set_running_or_notify_cancel()
            executor.is_heard = False

    options: dict[str, Any] = {"policy": BalancedPolicy(4)}
    with pytest.raises(WorkerLost, match="connection to the cluster's scheduler was lost.*goes on"):
        sv.reshard(source, tmp_path / "out", executor=executor, progress=lose, **options)
    assert sv.reshard(source, tmp_path / "out", **options).reused_files == 2


@pytest.mark.parametrize(("kind", "at"), [("threads", 2), ("silent cluster", 1)])
def test_an_interrupt_cancels_what_has_not_begun_and_keeps_what_is_finished(
    kind: str, at: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "_CANCEL_SECONDS", 0.01)
    begun: list[int] = []

    def interrupt(nbytes: int) -> None:
        begun.append(nbytes)
        if len(begun) == at:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"policy": BalancedPolicy(6)}
    made = ThreadPoolExecutor(1) if kind == "threads" else Cluster(is_heard=False)
    with pytest.raises(KeyboardInterrupt):
        sv.reshard(source, tmp_path / "out", executor=made, progress=interrupt, **options)
    made.shutdown()
    report = sv.reshard(source, tmp_path / "out", **options)
    assert (kind == "threads") <= report.reused_files < 6
    assert sv.diff(source, tmp_path / "out").equal


def test_no_more_tasks_are_with_an_executor_than_a_bounded_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executors, "_AHEAD", 8)
    drawn = 0

    def tasks() -> Iterator[tuple[Callable[..., int], tuple[int]]]:
        nonlocal drawn
        for number in range(100):
            drawn += 1
            yield (lambda value: value), (number,)

    with ThreadPoolExecutor(1) as executor:
        for count, _ in enumerate(run_tasks(executor, tasks()), 1):
            assert drawn <= count + 8
    assert drawn == 100


# --- Verbs that only read


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tasks for few bytes."""
    monkeypatch.setattr(executors, "_TASK_NBYTES", 2000)
    monkeypatch.setattr(executors, "_TASK_ROWS", 3)


@pytest.mark.usefixtures("small_tasks")
@pytest.mark.parametrize("kind", ["workers", "threads"])
@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "safetensors", "npz", "torch", "pt"])
def test_workers_find_what_one_process_finds(
    form: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    executor = request.getfixturevalue(kind)
    ending = {"npz": ".npz", "pt": ".pt"}.get(form, "")
    policy = None if ending else BalancedPolicy(3)
    one, two = tmp_path / f"one{ending}", tmp_path / f"two{ending}"
    sv.save(one, MODEL, format=form, policy=policy)
    sv.save(two, {**MODEL, "w2": MODEL["w2"] + 1, "more": np.ones(3)}, format=form)
    data = max(
        (path for path in tmp_path.rglob("*") if path.is_file() and "one" in str(path)),
        key=os.path.getsize,
    )
    for is_damaged in (False, True):
        if is_damaged:
            flip(data)
        done: list[int] = []
        assert sv.verify(one, progress=done.append, executor=executor) == sv.verify(one)
        assert sv.digest(one, progress=done.append, executor=executor) == sv.digest(one)
        assert sv.diff(one, two, progress=done.append, executor=executor) == sv.diff(one, two)
        assert sum(done) >= 2 * NBYTES


# --- The command line


def test_the_commands_work_in_processes(
    source: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of them really; of the others, the tasks are with the executor that was started."""
    target = str(tmp_path / "out")
    options = ["--workers", "2"]
    assert main(["reshard", str(source), target, "--files", "4", *options]) == 0
    for words in (["verify", target], ["diff", str(source), target], ["digest", target]):
        executor = Inline()
        started = nullcontext(executor)
        monkeypatch.setattr("shardvar.cli.workers.started", lambda *_, started=started: started)
        assert main([*words, *options]) == 0 and executor.calls, words
    assert f"checkpoint {sv.digest(source).checkpoint}" in capsys.readouterr().out


COMMAND = """
import argparse
from shardvar.cli.output import executor_of
if __name__ == '__main__':
    with executor_of(argparse.Namespace(workers='2', dask=None)) as executor:
        print(len(list(executor.map(abs, range(8)))), flush=True)
        input()
"""
POOL = """
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import shardvar as sv
if __name__ == '__main__':
    with ProcessPoolExecutor(1, mp_context=get_context('spawn')) as executor:
        print(sv.verify(sys.argv[1], executor=executor).num_tensors, flush=True)
        input()
"""


@pytest.mark.parametrize("program", [COMMAND, POOL], ids=["of a command", "of the caller"])
def test_workers_end_with_a_program_that_is_killed(program: str, source: Path) -> None:
    """Its standard output, which the workers have too, ends: none of them waits for tasks that do
    not come. A verb has run in the pool of the caller."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", program, str(source)]
    with subprocess.Popen(command, text=True, stderr=subprocess.DEVNULL, **pipes) as started:
        assert started.stdout is not None and started.stdout.readline() == "8\n"
        started.kill()
        assert started.communicate(timeout=60) == ("", None)


INTERRUPTED = """
import argparse, os, signal
from shardvar.cli.output import executor_of
if __name__ == '__main__':
    signal.signal(signal.SIGINT, lambda *_: print('interrupted', flush=True))
    with executor_of(argparse.Namespace(workers='2', dask=None)) as executor:
        for number in range(3):
            future = executor.submit(abs, -number)
            os.killpg(0, signal.SIGINT)
            print(future.result(), flush=True)
        os.killpg(0, signal.SIGINT)
"""


def test_an_interrupt_does_not_end_workers_that_begin_or_wait_for_tasks() -> None:
    """Ctrl-C reaches all processes of a command."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=120,
        check=False,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == "interrupted\n0\ninterrupted\n1\ninterrupted\n2\ninterrupted\n"


def test_an_interrupt_ends_the_task_of_a_worker(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt that comes before a task or after it is the caller's alone."""

    def interrupt(*_: Any) -> None:
        executors.interrupt_task(signal.SIGINT, None)

    monkeypatch.setattr(executors, "_open", interrupt)
    with ThreadPoolExecutor(1) as executor, pytest.raises(KeyboardInterrupt):
        sv.verify(source, executor=executor)
    interrupt()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--workers", "0"], 2, "Invalid --workers '0': expected an integer from 1 to 999999999"),
        (["--workers", "many"], 2, "Invalid --workers 'many'"),
        (
            ["--workers", "2", "--dask", "tcp://localhost:1"],
            2,
            "--dask: not allowed with argument --workers",
        ),
        (
            ["--dask", "tcp://localhost:1;token=SECRET"],
            2,
            "has a user's name, a password, a query or parameters",
        ),
    ],
)
def test_wrong_workers_are_refused(
    options: list[str], code: int, words: str, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(source), *options]) == code
    said = capsys.readouterr().err
    assert words in said and "SECRET" not in said


def test_the_package_of_a_cluster_is_named_where_it_is_missing(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main(["verify", str(source), "--dask", "tcp://localhost:1"]) != 0
    assert "[dask]'" in capsys.readouterr().err  # from where shardvar came


def test_an_error_of_a_machine_names_the_worker(tmp_path: Path) -> None:
    """Such as refused credentials, or no way to the store: only that machine has them."""
    sv.save(tmp_path / "m", {"w": np.ones(9)})
    source = find_checkpoint(tmp_path / "m").open()
    payloads = Payloads.of(
        Opening(find_checkpoint(tmp_path / "m")), source, next(source.index.scan())
    )
    where = rf"A worker on {platform.node()}, process \d+: denied. Ask"
    for kind in (AccessDenied, ServerError, StorageError):
        with pytest.raises(kind, match=where) as caught, payloads.opened(__version__):
            raise kind("denied.", "Ask.")
        assert type(caught.value) is kind


# --- Into a bucket each worker uploads its own files, and one process commits

LARGE = {
    f"w{number}": np.arange(number, number + 3000, dtype="<f4").reshape(60, 50)
    for number in range(8)
}
SOURCE, TARGET = "s3://bucket/run/source", "s3://bucket/run/out"
OPTIONS: dict[str, Any] = {"partition": 2, "policy": BalancedPolicy(5)}


class Pickling(ThreadPoolExecutor):
    """Threads to which what they work with is pickled, as to processes; the task ``lost`` ends with
    its worker."""

    def __init__(self, lost: int | None = None) -> None:
        super().__init__(2)
        self.count, self.lost = 0, lost

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **_: Any) -> Future[Any]:
        self.count += 1
        if self.lost is not None and self.count >= self.lost:
            self.shutdown()  # the tasks before it are finished
            gone: Future[Any] = Future()
            gone.set_exception(BrokenProcessPool("It was killed."))
            return gone
        return super().submit(function, *pickle.loads(pickle.dumps(arguments)))


SMALL = dict(list(LARGE.items())[:3])
"""A model with as many kinds of requests, for tests that end a run at each of them."""


def bucket_of(tensors: dict[str, Any]) -> MemoryBucket:
    with in_bucket(made := MemoryBucket()):
        sv.save(SOURCE, tensors, partition=3)
    return made


@pytest.fixture
def few() -> MemoryBucket:
    """A bucket with a small checkpoint to read."""
    return bucket_of(SMALL)


@pytest.fixture
def bucket() -> MemoryBucket:
    """A bucket with a checkpoint to read."""
    return bucket_of(LARGE)


@pytest.mark.parametrize("requests", [1, 2, 6])
def test_what_a_killed_reshard_left_is_named_by_a_write_of_another_format(
    requests: int, bucket: MemoryBucket, caplog: pytest.LogCaptureFixture
) -> None:
    """Its claim and its files, until they are removed: the writer may be alive, so that another one
    leaves them."""
    bucket.fail_at, bucket.error = len(bucket.log) + requests, Dead
    with in_bucket(bucket), pytest.raises(Dead):
        sv.reshard(SOURCE, TARGET, format="tensorflow", executor=Inline(), **OPTIONS)
    again = MemoryBucket(dict(bucket.files))
    left = [key for key in again.files if key.startswith(("run/out.", "run/.out."))]
    with in_bucket(again):
        sv.save(TARGET, LARGE)
        more = {1: "", 2: " and 1 more file"}.get(len(left), f" and {len(left) - 1} more files")
        assert (
            f"{TARGET}: an earlier write was not finished, and has left .out.claim{more}."
            in caplog.text
        )
        assert "call sv.break_claim('s3://bucket/run/.out.claim')" in caplog.text
        assert set(left) <= again.files.keys() and len(left) == requests
        caplog.clear()
        for key in left:
            del again.files[key]
        sv.save(TARGET, LARGE)
    assert not caplog.text


def test_a_worker_that_dies_loses_at_most_the_file_that_was_finished_last(
    bucket: MemoryBucket,
) -> None:
    """A second run, from another machine, takes up what is in the bucket; the error names where
    uploads may be left."""
    with (
        in_bucket(bucket),
        pytest.raises(WorkerLost, match=LOST),
    ):
        sv.reshard(SOURCE, TARGET, executor=Pickling(lost=4), **OPTIONS)
    assert "run/out.svindex" not in bucket.files
    other = MemoryBucket(dict(bucket.files))
    with in_bucket(other):
        report = sv.reshard(SOURCE, TARGET, executor=Pickling(), **OPTIONS)
        assert sv.diff(SOURCE, TARGET).equal and sv.verify(TARGET).ok
    assert 2 <= report.reused_files <= 3
    assert len([key for key in other.files if key.startswith("run/out.svdata")]) == 5
    assert not any(key.endswith(".done") for key in other.files)


@pytest.mark.parametrize("trouble", ["refused", "answer lost", "damage"])
def test_an_upload_or_a_read_that_fails_in_a_worker_leaves_nothing(
    trouble: str, bucket: MemoryBucket
) -> None:
    if trouble == "damage":
        name = next(key for key in bucket.files if "svdata" in key)
        octets = bytearray(bucket.files[name])
        octets[100] ^= 1
        bucket.files[name] = bytes(octets)
    else:
        bucket.fail_at, bucket.takes_effect = len(bucket.log) + 2, trouble == "answer lost"
    before = dict(bucket.files)
    error, words = (CorruptCheckpoint, "") if trouble == "damage" else (StorageError, "not answer")
    with in_bucket(bucket), pytest.raises(error, match=words or None):
        sv.reshard(SOURCE, TARGET, executor=Pickling(), **OPTIONS)
    assert bucket.files == before


LOST = r"A worker ended .* \(BrokenProcessPool\).*uploads in s3://bucket/run\..*Run it again.*lifecycle"
THREE_FILES: dict[str, Any] = {"policy": BalancedPolicy(3)}
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "shardvar": ("out", {"partition": 2, **THREE_FILES}),
    "tensorflow": ("out", {"partition": 2, **THREE_FILES}),
    "torch": ("folder", {"partition": 2, **THREE_FILES}),
    "safetensors": ("out.safetensors", THREE_FILES),
    "safetensors in one file": ("out.safetensors", {}),
    "npz": ("out.npz", {}),
    "pt": ("out.pt", {}),
    "zarr": ("folder", {"filter": ["w[0-1]"]}),
    "orbax": ("folder", {"filter": ["w[0-1]"]}),
}
"""By format, the name of the target and the options; a few tensors where each slice takes
requests."""


def reshard(form: str, executor: Any = None, **options: Any) -> Any:
    name, own = FORMS[form]
    return sv.reshard(
        SOURCE,
        f"s3://bucket/run/{name}",
        format=form.partition(" ")[0],
        executor=executor,
        **own,
        **options,
    )


def is_whole(form: str) -> bool:
    name, own = FORMS[form]
    url = f"s3://bucket/run/{name}"
    return sv.diff(SOURCE, url, filter=own.get("filter")).equal and sv.verify(url).ok


@pytest.mark.parametrize("form", FORMS)
def test_workers_write_every_format_and_leave_nothing_else(
    form: str, bucket: MemoryBucket, caplog: pytest.LogCaptureFixture
) -> None:
    """The same files as without workers, byte for byte, also over another; the commit is the last
    request. No run warns of its own files."""
    alone = MemoryBucket(dict(bucket.files))
    with in_bucket(alone):
        reshard(form)
    for _ in range(2):
        bucket.log.clear()
        with in_bucket(bucket):
            assert reshard(form, Pickling(), force=True).reused_files == 0
            assert is_whole(form)
        puts = [
            entry for entry in bucket.log if entry.startswith("put_if") and ".claim" not in entry
        ]
        made = [entry for entry in bucket.log if entry.startswith(("put", "copy"))]
        if (
            form == "orbax"
        ):  # its mark follows; and what is said of a step whose manifest is replaced
            assert made.pop().endswith(("/commit_success.txt", "/_CHECKPOINT_METADATA"))
        assert len(puts) == 1 and puts[0] == made[-1]
        if form not in (
            "shardvar",
            "tensorflow",
            "torch",
            "safetensors",
        ):  # second names are others
            assert settled(bucket.files) == settled(alone.files)
        assert len(bucket.files) == len(alone.files) and not caplog.text


@pytest.mark.sample(3)
@pytest.mark.parametrize("takes_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("form", FORMS)
def test_a_caller_killed_at_any_request_is_taken_up(
    form: str, takes_effect: bool, few: MemoryBucket
) -> None:
    """No reader finds a checkpoint that is not whole; the next run, once the claim is removed,
    leaves nothing else."""
    reused, clean = 0, MemoryBucket(dict(few.files))
    with in_bucket(clean):
        reshard(form)
    options = {"takes_effect": takes_effect, "error": Dead}
    killed = ended_at_each(few.files, lambda: reshard(form, Inline()), **options)
    for number, tried in enumerate(killed):
        again = MemoryBucket(
            {key: value for key, value in tried.files.items() if ".claim" not in key}
        )
        with in_bucket(again):
            try:
                found = is_whole(form)
            except (CheckpointNotFound, MissingFile):
                found = False
            if not found:
                report = reshard(form, Pickling() if number % 2 else None, force=True)
                reused = max(reused, report.reused_files)
                assert is_whole(form), tried.log
                assert len(again.files) == len(clean.files), (tried.log, sorted(again.files))
    assert number > 3 and reused


@pytest.mark.sample(2)
@pytest.mark.parametrize("form", FORMS)
def test_of_two_equal_reshards_at_a_time_one_checkpoint_comes(form: str, few: MemoryBucket) -> None:
    """Another process does the same between two requests; whoever wins, the checkpoint is whole and
    no file is lost."""
    done: list[bool] = []

    def attempt() -> None:
        with suppress(StorageError, TargetExists):
            reshard(form, Inline())
            done.append(True)

    for raced in raced_at_each(few.files, attempt, attempt):
        with in_bucket(raced):
            assert done and is_whole(form), raced.log
        done.clear()


def test_a_file_that_is_gone_before_the_commit_is_said(bucket: MemoryBucket) -> None:
    """A rule of the bucket may remove what is old: the write ends with an error, and leaves
    nothing."""
    before = dict(bucket.files)
    raced = Raced(
        dict(before),
        at=7,
        race=lambda: [raced.files.pop(key) for key in [*raced.files] if ".tmp" in key],
    )
    with (
        in_bucket(raced),
        pytest.raises(StorageError, match="is gone, which was uploaded for this checkpoint"),
    ):
        reshard("tensorflow", Inline())
    assert raced.files == before
