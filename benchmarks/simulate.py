"""The time of a reshard by 1 to 1,000 workers, of 1 TB to 1 PB: predicted from measured costs and a
stated store.

    measured here   seconds of a task, of a byte in it, of handing a task to an executor and taking its report, and of
                    all else that the caller does: opening, planning, committing
    stated          the store: how long a request waits, what one worker moves, what all of them move together

A task is one output file. A worker takes the next one when it has finished one, and the caller
hands them out one after the other. So task ``i`` of ``n`` begins when it is handed out, and when
task ``i - workers`` has ended:

    begin[i] = max(call + i * dispatch, begin[i - workers] + task)

The prediction is checked against reshards that are made here: in processes, which share the cores
of this machine, and in threads that wait for a store, which is simulated by a pause before each
read of a data file.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from unittest.mock import patch

import numpy as np

import shardvar as sv
from benchmarks.figures import Figure
from benchmarks.setting import Setting, skipped
from benchmarks.sizes import GIB, MIB
from shardvar.planning.policies import BalancedPolicy
from shardvar.storage.cores import usable_cores
from shardvar.storage.posix import LocalReadableFile

TB = 10**12
_UNLIMITED = 1e18


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs measured on this machine, in seconds."""

    task: float
    """A task in a worker, whatever its size: opening, closing, syncing."""
    byte: float
    """A byte of a task in a worker, the memory file system included."""
    dispatch: float
    """A task in the caller: handing it out, and taking its report."""
    call: float
    """The rest of what the caller does; for a million slices, ``python -m benchmarks plan``
    measures it."""


@dataclass(frozen=True, slots=True)
class Store:
    """The place that is read and written, with its network; each byte is moved twice, once in and
    once out."""

    latency: float = 0.0
    """Seconds that a task waits for answers, one after the other."""
    worker: float = _UNLIMITED
    """Bytes a second that one worker moves."""
    total: float = _UNLIMITED
    """Bytes a second that all workers move together."""


STORES = {
    "a bucket": Store(latency=0.1, worker=1e9, total=100e9),
    "a parallel file system": Store(latency=0.01, worker=2e9, total=50e9),
    "one file server": Store(latency=0.005, worker=1e9, total=2e9),
}
"""Stated, and not measured: magnitudes of such stores. Give those of yours to ``predict``."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The time of a reshard, and what keeps more workers from making it shorter."""

    seconds: float
    """The time."""
    limit: str
    """``workers`` if more of them would help; else ``store``, ``caller`` (it hands tasks out too
    slowly) or ``files`` (there are no more tasks than workers)."""


def predict(nbytes: int, file_nbytes: int, workers: int, costs: Costs, store: Store) -> Prediction:
    """Return the time in which workers write ``nbytes`` in files of ``file_nbytes``."""
    count = -(-nbytes // file_nbytes)
    active = min(workers, count)
    share = store.total / active
    task = (
        costs.task
        + store.latency
        + costs.byte * file_nbytes
        + 2 * file_nbytes / min(store.worker, share)
    )
    # The recurrence of the module: in each step of ``workers`` tasks the larger of two terms
    # counts, and both are linear in the number of steps, so that one of the two ends is the
    # largest.
    steps, rest = divmod(count - 1, workers)
    busy, handing = rest * costs.dispatch + steps * task, (count - 1) * costs.dispatch
    limit = "caller" if handing > busy else "store" if share < store.worker else "workers"
    return Prediction(
        costs.call + max(busy, handing) + task, "files" if count <= workers else limit
    )


def most_useful(nbytes: int, file_nbytes: int, costs: Costs, store: Store) -> tuple[int, str]:
    """Return the least number of workers of 1, 2, 4, ... whose double is not 1.5 times as fast, and
    why."""
    workers = 1
    while True:
        now, double = (
            predict(nbytes, file_nbytes, each, costs, store) for each in (workers, 2 * workers)
        )
        if now.seconds < 1.5 * double.seconds:
            return workers, double.limit
        workers *= 2


def measure(setting: Setting) -> Iterator[Figure]:
    """The measured costs, the checks, and the predictions."""
    room = setting.quiet.room("simulate")
    large, small = setting.sizes.reshard_nbytes // 32, MIB // 4
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as one:
        costs = measure_costs(room, one, small, large)
        yield Figure("simulate: a task", "", setting.quiet.name, costs.task * 1e3, "ms", None)
        yield Figure(
            "simulate: 1 GiB of a task", "", setting.quiet.name, costs.byte * GIB, "s", None
        )
        yield Figure(
            "simulate: handing out a task", "", setting.quiet.name, costs.dispatch * 1e3, "ms", None
        )
        yield Figure(
            "simulate: the rest of the call", "", setting.quiet.name, costs.call * 1e3, "ms", None
        )
    yield from _checks(room, costs, small, large)
    for name, store in STORES.items():
        for nbytes, size in ((TB, "1 TB"), (1000 * TB, "1 PB")):
            for workers in (1, 10, 100, 1000):
                found = predict(nbytes, GIB, workers, costs, store)
                subject = f"predicted: {size} in files of 1 GiB, {workers} workers, {name}"
                yield Figure(subject, "", "", found.seconds, "s", None, f"limit: {found.limit}")
            best, why = most_useful(nbytes, GIB, costs, store)
            yield Figure(
                f"most useful workers: {size}, {name}", "", "", best, "", None, f"then: {why}"
            )
    setting.quiet.room("simulate")


def measure_costs(room: Path, executor: Executor, small: int, large: int) -> Costs:
    """Measure reshards of a few files of two sizes, and of many files."""
    few, many = 4, 64
    times = {}
    for nbytes, count in ((small, few), (large, few), (small, many)):
        write_source(room, nbytes, count)
        run = partial(reshard, room, count, executor)
        run()  # the first one starts the worker
        times[nbytes, count] = median(timed(run) for _ in range(5))
    a_task = (times[small, many] - times[small, few]) / (many - few)
    byte = max(0.0, (times[large, few] - times[small, few]) / (few * (large - small)))
    # With one worker, the caller hands the next task out while the worker is busy; alone, it is
    # measured without work.
    dispatch = (
        timed(lambda: [each.result() for each in [executor.submit(int) for _ in range(500)]]) / 500
    )
    call = max(0.0, times[small, few] - few * a_task)
    return Costs(max(a_task - byte * small, 0.0), byte, dispatch, call)


def _checks(room: Path, costs: Costs, small: int, large: int) -> Iterator[Figure]:
    """Ratios of predicted to measured times: processes that share the cores, and threads that wait
    for a store."""
    cores = usable_cores()
    for workers in (1, 2, 4):
        write_source(room, large, 8)
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as executor:
            run = partial(reshard, room, 8, executor)
            for _ in range(3):  # until all workers have started, and have imported what they need
                run()
            took = median(timed(run) for _ in range(5))
        slower = max(1, workers / cores)
        slowed = replace(costs, task=costs.task * slower, byte=costs.byte * slower)
        expected = predict(8 * large, large, workers, slowed, Store()).seconds
        yield _check(f"8 files in {workers} processes", expected, took)
    yield from _check_cluster(room, costs, large)
    write_source(room, small, 64)
    latency = 0.05
    for workers in (1, 4, 16):
        with slow_store(latency), ThreadPoolExecutor(workers) as executor:
            took = timed(partial(reshard, room, 64, executor))
        # Threads share one Python: what a task costs without waiting is done by one of them at a
        # time.
        shared = replace(costs, dispatch=costs.task)
        expected = predict(64 * small, small, workers, shared, Store(latency=latency)).seconds
        yield _check(
            f"64 files in {workers} threads, a store that answers in 50 ms", expected, took
        )


def _check_cluster(room: Path, costs: Costs, large: int) -> Iterator[Figure]:
    """The same for the processes of a cluster of Dask on this machine, which hands tasks out
    through a scheduler."""
    subject = "8 files on a LocalCluster of 2 processes"
    try:
        import distributed
    except ImportError:
        yield skipped(f"predicted / measured: {subject}", "the run", "distributed is not installed")
        return
    write_source(room, large, 8)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        run = partial(reshard, room, 8, client.get_executor(pure=False))
        for _ in range(3):
            run()
        took = median(timed(run) for _ in range(5))
    slower = max(1, 2 / usable_cores())
    slowed = replace(costs, task=costs.task * slower, byte=costs.byte * slower)
    yield _check(subject, predict(8 * large, large, 2, slowed, Store()).seconds, took)


def _check(what: str, expected: float, took: float) -> Figure:
    note = f"{expected:.3f} s / {took:.3f} s"
    return Figure(f"predicted / measured: {what}", "the run", "", expected / took, "x", None, note)


@contextmanager
def slow_store(latency: float) -> Iterator[None]:
    """Within, each read of a data file waits for so many seconds."""
    real = LocalReadableFile.read_into

    def read_into(file: LocalReadableFile, start: int, buffer: memoryview) -> None:
        if ".svdata-" in file.name:
            sleep(latency)
        real(file, start, buffer)

    with patch.object(LocalReadableFile, "read_into", read_into):
        yield


def write_source(room: Path, nbytes: int, count: int) -> None:
    """Write a checkpoint of files of one tensor each."""
    values = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    sv.save(
        room / "source",
        {f"w{number:03}": values for number in range(count)},
        policy=BalancedPolicy(count),
    )


def reshard(room: Path, count: int, executor: Executor) -> None:
    """Write as many files as there are, new ones."""
    for old in room.glob("target*"):
        old.unlink()
    sv.reshard(room / "source", room / "target", policy=BalancedPolicy(count), executor=executor)


def timed(call: Callable[[], object]) -> float:
    """The seconds of a call."""
    start = perf_counter()
    call()
    return perf_counter() - start
