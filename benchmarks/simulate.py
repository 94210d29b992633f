"""The time of a reshard by 1 to 1,000 workers, of 1 TB to 1 PB: predicted from measured costs and a
stated store.

    measured here   seconds of a task, of a byte in it, of handing a task to an executor and taking its report, and of
                    all else that the caller does: opening, planning, committing
    counted         the requests to a bucket of a task, of the caller for each task, and of the commit
                    (``bucket_requests``); a law compares them with the requests that arrive at a server
    stated          the store: how long a request waits, what one worker moves, what all of them move
                    together, how many requests it takes in a second, how fast it copies; lost workers

A task is one output file. A worker takes the next one when it has finished one, and the caller
hands them out one after the other. So task ``i`` of ``n`` begins when it is handed out, and when
task ``i - workers`` has ended:

    begin[i] = max(call + i * dispatch, begin[i - workers] + task)

In a bucket the caller also makes two requests for each finished file: of several small files at a
time, of files of 64 MiB or more one after the other. So no number of workers finishes more than one
of these in the time of two requests. Before the commit it copies the files that have temporary names, 64 at a time.

The prediction is checked against reshards that are made here: in processes, which share the cores
of this machine; in threads that wait for a store, which is simulated by a pause before each read of
a data file; and in 1, 2 and 4 processes on an emulator of S3 on this machine, whose answers are
delayed. All else is extrapolated: more workers, the speeds of a store, its limit of requests, copies
of large files, lost workers.
"""

import os
from collections import Counter
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
from benchmarks.bucket_requests import WRITES, Job
from benchmarks.figures import Figure
from benchmarks.setting import Setting, skipped
from benchmarks.sizes import GIB, MIB
from shardvar.planning.policies import BalancedPolicy
from shardvar.storage.local import split_place
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
    """Seconds that a request to a bucket waits for its answer; in other stores, that a task
    waits."""
    worker: float = _UNLIMITED
    """Bytes a second that one worker moves."""
    total: float = _UNLIMITED
    """Bytes a second that all workers move together."""
    is_bucket: bool = False
    """True if it is a bucket, whose requests are counted."""
    reads: float = _UNLIMITED
    """Requests a second that read, before it answers that it is too busy."""
    writes: float = _UNLIMITED
    """The same for requests that write."""
    copy: float = _UNLIMITED
    """Bytes a second of one copy within the bucket."""


STORES = {
    "a bucket": Store(0.03, 1e9, 100e9, is_bucket=True, reads=5500, writes=3500, copy=200e6),
    "a parallel file system": Store(latency=0.01, worker=2e9, total=50e9),
    "one file server": Store(latency=0.005, worker=1e9, total=2e9),
}
"""Stated, and not measured: magnitudes of such stores. S3 documents its rates for each prefix. Give
the ones of yours to ``predict``."""

NOTICED_SECONDS = 30.0
"""Until a cluster of Dask notices that a worker is gone: the time-out of its connections."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The time of a reshard, and what keeps more workers from making it shorter."""

    seconds: float
    """The time."""
    limit: str
    """``workers`` if more of them would help; else ``store``, ``requests`` (the bucket takes no
    more of them in a second), ``caller`` (it hands tasks out, or takes their reports, too slowly),
    ``commit`` (the caller copies files) or ``files`` (there are no more tasks than workers)."""


def predict(
    nbytes: int,
    file_nbytes: int,
    workers: int,
    costs: Costs,
    store: Store,
    *,
    is_renamed: bool = False,
    lost: int = 0,
) -> Prediction:
    """Return the time in which workers write ``nbytes`` in files of ``file_nbytes``.

    With ``is_renamed`` files have temporary names until the commit. Each of the ``lost`` workers
    costs its task again, after its loss was noticed.
    """
    count = -(-nbytes // file_nbytes)
    active = min(workers, count)
    share = store.total / active
    job = Job(count, file_nbytes, is_renamed)
    rounds, opening, report, before, after = (
        (
            job.rounds_of_file(),
            job.rounds_of_opening() * store.latency,
            job.rounds_of_report * store.latency,
            job.rounds_before() * store.latency,
            job.rounds_after() * store.latency
            + job.rounds_of_copies() * (store.latency + file_nbytes / store.copy),
        )
        if store.is_bucket
        else (1, 0.0, 0.0, 0.0, 0.0)
    )
    task = (
        costs.task
        + rounds * store.latency
        + costs.byte * file_nbytes
        + 2 * file_nbytes / min(store.worker, share)
    )
    # The recurrence of the module: in each step of ``workers`` tasks the larger of two terms
    # counts, and both are linear in the number of steps, so that one of the two ends is the
    # largest.
    steps, rest = divmod(count - 1, workers)
    busy = rest * costs.dispatch + steps * task
    handing = (count - 1) * max(costs.dispatch, report / job.reports_at_a_time())
    made = job.requests(active) if store.is_bucket else Counter[str]()
    writes = sum(made[kind] for kind in WRITES)
    requests = max(writes / store.writes, (made.total() - writes) / store.reads) - task
    work = max(busy, handing, requests) + opening + task + report
    limit = (
        "commit"
        if after > work
        else "requests"
        if requests > max(busy, handing)
        else "caller"
        if handing > busy
        else "store"
        if share < store.worker
        else "workers"
    )
    seconds = costs.call + before + work + after + lost * (NOTICED_SECONDS + opening + task)
    return Prediction(seconds, "files" if count <= workers and limit != "commit" else limit)


def most_useful(
    nbytes: int, file_nbytes: int, costs: Costs, store: Store, *, is_renamed: bool = False
) -> tuple[int, str]:
    """Return the least number of workers of 1, 2, 4, ... whose double is not 1.5 times as fast, and
    why."""
    workers = 1
    while True:
        now, double = (
            predict(nbytes, file_nbytes, each, costs, store, is_renamed=is_renamed)
            for each in (workers, 2 * workers)
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
    yield from check_emulator(costs)
    stores = [(name, store, False) for name, store in STORES.items()]
    stores.insert(1, ("a bucket, with copies", STORES["a bucket"], True))
    for name, store, is_renamed in stores:
        for nbytes, size in ((TB, "1 TB"), (1000 * TB, "1 PB")):
            for workers in (1, 10, 100, 1000):
                found = predict(nbytes, GIB, workers, costs, store, is_renamed=is_renamed)
                subject = f"predicted: {size} in files of 1 GiB, {workers} workers, {name}"
                yield Figure(subject, "", "", found.seconds, "s", None, f"limit: {found.limit}")
            best, why = most_useful(nbytes, GIB, costs, store, is_renamed=is_renamed)
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
    for workers in (1, 2, 4):
        write_source(room, large, 8)
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as executor:
            run = partial(reshard, room, 8, executor)
            for _ in range(3):  # until all workers have started, and have imported what they need
                run()
            took = median(timed(run) for _ in range(5))
            slower = slowdown(executor, workers)
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


def slowdown(executor: Executor, workers: int) -> float:
    """Return how much slower a worker is while all work: they share cores, also with other
    programs."""
    times = [
        median(timed(lambda: [*executor.map(spin, range(count))]) for _ in range(5))  # noqa: B023
        for count in (1, workers)
    ]
    return max(1.0, times[1] / times[0])


def spin(number: int) -> int:
    """Work for some 50 ms."""
    return sum(range(number, 3_000_000))


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
        executor = client.get_executor(pure=False)
        run = partial(reshard, room, 8, executor)
        for _ in range(3):
            run()
        took = median(timed(run) for _ in range(5))
        slower = slowdown(executor, 2)
    slowed = replace(costs, task=costs.task * slower, byte=costs.byte * slower)
    yield _check(subject, predict(8 * large, large, 2, slowed, Store()).seconds, took)


def check_emulator(costs: Costs) -> Iterator[Figure]:
    """The same for processes on an emulator of S3 on this machine, behind a proxy that delays each
    answer.

    The emulator is one process of Python, as the proxy is: they move bytes for one worker at a
    time. What they and this machine take for a request, and for a byte, is measured first.
    """
    latency = 0.1
    subject = "in processes on an emulator of S3 that answers in 100 ms"
    try:
        import moto as _moto  # noqa: F401
        import obstore as _obstore  # noqa: F401
    except ImportError as error:
        yield skipped(
            f"predicted / measured: {subject}", "the run", f"{error.name} is not installed"
        )
        return
    from spec_tests.helpers.bucket_proxy import proxy_before
    from spec_tests.helpers.bucket_servers import moto

    access = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}
    with moto() as port, proxy_before(port) as proxy:
        address = {"AWS_ENDPOINT_URL": proxy.url, "AWS_ALLOW_HTTP": "true"}
        with patch.dict(os.environ, {**access, **address}):
            for count, nbytes in ((16, MIB), (4, 24 * MIB)):
                source = f"s3://bucket/source-{nbytes}/model"
                write_source(source, nbytes, count)
                service, speed = _measure_emulator(source, nbytes)
                store = Store(latency + service, speed, speed, is_bucket=True)
                proxy.gate = lambda _asked: sleep(latency)
                for workers in (1, 2, 4):
                    took = _took_in_bucket(source, count, workers, "")
                    expected = predict(count * nbytes, nbytes, workers, costs, store).seconds
                    yield _check(
                        f"{count} files of {nbytes // MIB} MiB in {workers} {subject[3:]}",
                        expected,
                        took,
                    )
                if nbytes == MIB:
                    took = _took_in_bucket(source, count, 2, ".safetensors.index.json")
                    amount = (count * nbytes, nbytes, 2, costs, store)
                    expected = predict(*amount, is_renamed=True).seconds
                    yield _check(
                        f"{count} files of 1 MiB with copies, in 2 {subject[3:]}", expected, took
                    )
                proxy.gate = lambda _asked: None


def _measure_emulator(source: str, nbytes: int) -> tuple[float, float]:
    """Return the seconds of a small request, and the bytes a second of reading and writing."""
    storage = split_place(source)[0]
    service = median(timed(partial(storage.stamp, "model.svindex")) for _ in range(9))
    name = next(each for each in storage.names() if ".svdata-" in each)
    file = storage.open(name)
    read = median(timed(partial(file.read, 0, nbytes)) for _ in range(3))
    values = {"w": np.zeros(nbytes, np.uint8)}
    write = median(timed(partial(sv.save, f"{source}-probe", values)) for _ in range(3))
    # The save makes some small requests, which are no part of the bytes.
    few = median(timed(partial(sv.save, f"{source}-few", {"w": values["w"][:1]})) for _ in range(3))
    return service, 2 * nbytes / max(read - service + write - few, 1e-3)


def _took_in_bucket(source: str, count: int, workers: int, ending: str) -> float:
    """Return the seconds of a reshard in a bucket by processes that have started."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as executor:
        times = []
        for number in range(3):
            target = f"{source}-{workers}-{number}{ending}"
            run = partial(
                sv.reshard, source, target, policy=BalancedPolicy(count), executor=executor
            )
            times.append(timed(run))
    return median(times[1:])


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


def write_source(room: Path | str, nbytes: int, count: int) -> None:
    """Write a checkpoint of files of one tensor each, in a room or at a URL."""
    values = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    sv.save(
        room if isinstance(room, str) else room / "source",
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
