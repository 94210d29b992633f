"""A save by 1 to 512 processes into one bucket: requests, looks and time as their number grows, beside
a model of the planning of PyTorch's DCP.

    simulated   each process is a thread that runs the real code; its pauses and the latency of its requests pass in
                virtual time, which goes on when all threads wait. So the time is that of as many machines, if
                computing took none, and does not depend on this one
    real        processes of this machine, forked from one, save into a bucket in the memory of a server on loopback;
                they share its cores
    DCP         torch's own planner makes the plans of all processes. They are pickled, as ``gather_object`` and
                ``scatter_object_list`` do, and process 0 makes the global plan, which is timed. Their way through the
                network is computed from a stated speed and latency

A *look* is a listing by a process that waits for others. A listing is a request for each 1,000 keys.
"""

import heapq
import pickle
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.managers import BaseManager
from typing import Any
from unittest.mock import patch

import numpy as np

import shardvar as sv
from benchmarks.figures import Figure
from benchmarks.setting import Setting, skipped
from shardvar.storage.requests import FolderListing, Head
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket

COUNTS = 1, 8, 64, 512
"""The numbers of processes."""
LATENCY = 0.03
"""Seconds until a request is answered."""
PAGE = 1000
"""Keys of an answer to a listing."""
TENSORS = 100
"""Tensors of the state; each process has a row of each."""
NETWORK_NBYTES, NETWORK_SECONDS = 1e9, 50e-6
"""Stated: bytes a second into and out of the coordinator of DCP, and seconds of a message."""
URL = "s3://bucket/run/step-1"


class VirtualClock:
    """Time that goes on when every process sleeps, straight to the first that is due.

    A process is a thread, and only one runs at a time. What it does side by side (``Lanes``) is done
    one after the other, and takes the time of the longest lane.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, threading.Event]] = []
        self._number = 0
        self.own = threading.local()

    def monotonic(self) -> float:
        """The time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Wait; in a lane, only the lane gets longer."""
        if getattr(self.own, "lane", None) is not None:
            self.own.lane += seconds
            return
        event = threading.Event()
        self._number += 1
        heapq.heappush(self._due, (self.now + seconds, self._number, event))
        self._go_on()
        event.wait()

    def _go_on(self) -> None:
        if self._due:
            self.now, _, event = heapq.heappop(self._due)
            event.set()

    def run(self, functions: list[Callable[[], object]]) -> None:
        """Run processes until all have ended; raise the first error."""
        errors: list[BaseException] = []

        def work(function: Callable[[], object], begin: threading.Event) -> None:
            begin.wait()
            try:
                function()
            except BaseException as error:  # noqa: BLE001
                errors.append(error)
            self._go_on()

        threads = []
        for number, function in enumerate(functions):
            begin = threading.Event()
            heapq.heappush(self._due, (0.0, number - len(functions), begin))
            threads.append(threading.Thread(target=work, args=(function, begin)))
            threads[-1].start()
        self._go_on()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]


class Lanes(AbstractContextManager["Lanes"]):
    """``Threads`` in virtual time."""

    clock: VirtualClock

    def __init__(self, count: int) -> None:
        self._ends = [0.0] * count

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> "Future[Any]":
        """Do it now, in the lane that is free first."""
        own, future = self.clock.own, Future[Any]()
        outer, own.lane = getattr(own, "lane", None), 0.0
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)
        heapq.heapreplace(self._ends, self._ends[0] + own.lane)
        own.lane = outer
        return future

    def __exit__(self, *error: object) -> None:
        self.clock.sleep(max(self._ends))


class CountedBucket(MemoryBucket):
    """A bucket that counts the requests of each process, and answers late."""

    def __init__(self, clock: Any, latency: float = LATENCY) -> None:
        super().__init__()
        self.clock, self.latency = clock, latency
        self.requests: dict[object, Counter[str]] = {}

    def _ask(self, kind: str, count: int = 1) -> None:
        process = getattr(self.clock.own, "process", None)
        self.requests.setdefault(process, Counter())[kind] += count
        self.clock.sleep(self.latency * count)

    def head(self, key: str) -> Head:
        self._ask("HEAD")
        return super().head(key)

    def read(self, key: str, head: Head, start: int, nbytes: int) -> memoryview:
        self._ask("GET")
        content = self.files[key]
        return memoryview(content)[start : start + nbytes]

    def listing(self, key: str) -> FolderListing:
        found = super().listing(key)
        self._ask("list", max(1, -(-(len(found.files) + len(found.folders)) // PAGE)))
        return found

    def change(self, what: str, do: Callable[[], None]) -> None:
        self._ask(what.partition(" ")[0])
        super().change(what, do)


def share_of(process: int, count: int) -> dict[str, Any]:
    """Return a row of 4 floats of each tensor."""
    row = np.full((1, 4), process, np.float32)
    return {
        f"layer.{number}": sv.LocalShard(row, (process, 0), (count, 4)) for number in range(TENSORS)
    }


def save_one(process: int, count: int) -> None:
    """Save the share of a process, and wait for the commit."""
    names = {"process": process, "num_processes": count, "run": "step 1"}
    sv.save_shards(URL, share_of(process, count), **names, timeout=3600)


def simulate(count: int) -> tuple[float, dict[object, Counter[str]]]:
    """Return the virtual seconds of a save, and the requests of each process."""
    clock = VirtualClock()
    Lanes.clock = clock
    bucket = CountedBucket(clock)

    def save(process: int) -> None:
        clock.own.process = process
        save_one(process, count)

    with in_bucket(bucket):
        with in_virtual_time(clock):
            clock.run([partial(save, process) for process in range(count)])
        check(MemoryBucket(dict(bucket.files)), count)
    return clock.now, bucket.requests


@contextmanager
def in_virtual_time(clock: VirtualClock) -> Iterator[None]:
    """Within, saves by several processes pause, and wait for requests, by this clock."""
    rooms = "shardvar.verbs.together."
    with (
        patch(f"{rooms}run.time", clock),
        patch(f"{rooms}fence.time", clock, create=True),
        patch("shardvar.storage.concurrency.Threads", Lanes),
        patch("shardvar.engine.pool.Threads", Lanes),
    ):
        yield


def check(bucket: MemoryBucket, count: int) -> None:
    """Raise unless the bucket has the whole checkpoint, and nothing else."""
    with in_bucket(bucket):
        tensors = sv.load(URL)
    rows = np.repeat(np.arange(count, dtype=np.float32), 4).reshape(count, 4)
    if len(tensors) != TENSORS or not all(np.array_equal(each, rows) for each in tensors.values()):
        raise ValueError("These are not the tensors.")
    if left := [key for key in bucket.files if not key.startswith("run/step-1.svdata-")][1:]:
        raise ValueError(f"These files were left: {left}.")


# Processes of this machine


class _Held(MemoryBucket):
    """A bucket in the memory of a server."""

    def octets(self, key: str, head: Head, start: int, nbytes: int) -> bytes:
        """Return the bytes of a range, which can be sent."""
        return bytes(self.read(key, head, start, nbytes))

    def rows(self, key: str) -> list[tuple[str, int, str]]:
        """Return the files of a folder without folders: a listing takes long to send."""
        with self.lock:
            heads = [(path, self.facts(path)) for path in self.files if path.startswith(f"{key}/")]
        return [(path[len(key) + 1 :], head.nbytes, head.version) for path, head in heads]

    def content(self) -> dict[str, bytes]:
        """Return all files."""
        return self.files


class _Server(BaseManager):
    """A process that answers on loopback."""


_Server.register("bucket", _Held)


class _Remote(MemoryBucket):
    """A client of the bucket of a server, which counts its requests."""

    def __init__(self, server: Any) -> None:
        super().__init__()
        self.server, self.requests = server, Counter[str]()

    def head(self, key: str) -> Head:
        return self._ask("HEAD", self.server.head, key)

    def read(self, key: str, head: Head, start: int, nbytes: int) -> memoryview:
        return memoryview(self._ask("GET", self.server.octets, key, head, start, nbytes))

    def listing(self, key: str) -> FolderListing:
        rows = self._ask("list", self.server.rows, key)
        return FolderListing({name: Head(nbytes, tag, None) for name, nbytes, tag in rows}, [])

    def put(self, key: str, path: str) -> Head:
        return self._ask("put", self.server.put, key, path)

    def put_if(self, key: str, content: bytes, old: Head | None) -> Head:
        return self._ask("put_if", self.server.put_if, key, content, old)

    def delete(self, key: str) -> None:
        self._ask("delete", self.server.delete, key)

    def delete_all(self, keys: Sequence[str]) -> None:
        self._ask("delete", self.server.delete_all, keys)

    def _ask(self, kind: str, method: Callable[..., Any], *values: Any) -> Any:
        self.requests[kind] += 1
        return method(*values)


def _save_remote(process: int, count: int, server: Any, results: Any) -> None:
    remote = _Remote(server)
    try:
        with in_bucket(remote):
            save_one(process, count)
        results.put((process, remote.requests))
    except BaseException as error:  # noqa: BLE001
        results.put((process, f"{type(error).__name__}: {error}"))


def run_processes(count: int) -> tuple[float, dict[object, Counter[str]]]:
    """Return the seconds of a save by real processes, and the requests of each."""
    fork = get_context("fork")
    # Each thread of a process has a connection, and the server a file for each.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with _Server(address=("127.0.0.1", 0), ctx=fork) as manager:
        server, results = manager.bucket(), fork.SimpleQueue()
        start = time.perf_counter()
        processes = [
            fork.Process(target=_save_remote, args=(process, count, server, results))
            for process in range(count)
        ]
        for process in processes:
            process.start()
        found = dict(results.get() for _ in processes)
        seconds = time.perf_counter() - start
        for process in processes:
            process.join()
        if errors := [each for each in found.values() if isinstance(each, str)]:
            raise ValueError(errors[0])
        check(MemoryBucket(server.content()), count)
    return seconds, found


# The planning of DCP


def plan_dcp(count: int) -> tuple[int, int, float]:
    """Return the bytes that come to the coordinator, those that leave it, and the seconds of its processor."""
    import torch
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        MetadataIndex,
        TensorProperties,
    )
    from torch.distributed.checkpoint.planner import (
        SavePlan,
        TensorWriteData,
        WriteItem,
        WriteItemType,
    )
    from torch.distributed.checkpoint.storage import WriteResult

    def plan_of(process: int) -> bytes:
        begin, size = torch.Size([process, 0]), torch.Size([1, 4])
        properties = TensorProperties(dtype=torch.float32)
        data = TensorWriteData(
            ChunkStorageMetadata(begin, size), properties, torch.Size([count, 4])
        )
        indexes = [MetadataIndex(f"layer.{number}", begin) for number in range(TENSORS)]
        return pickle.dumps(
            SavePlan([WriteItem(index, WriteItemType.SHARD, tensor_data=data) for index in indexes])
        )

    def results_of(plan: Any) -> bytes:
        return pickle.dumps([WriteResult(item.index, 16, None) for item in plan.items])

    sent = [plan_of(process) for process in range(count)]
    start = time.process_time()
    planner = DefaultSavePlanner(flatten_state_dict=False)
    plans, _ = planner.create_global_plan([pickle.loads(plan) for plan in sent])  # noqa: S301
    answers = [pickle.dumps(plan) for plan in plans]
    seconds = time.process_time() - start
    written = [results_of(plan) for plan in plans]
    # The coordinator keeps its own.
    return sum(map(len, sent[1:] + written[1:])), sum(map(len, answers[1:])), seconds


# The figures


def measure(setting: Setting) -> Iterator[Figure]:
    """Requests, looks and times of each number of processes."""
    most = setting.sizes.joint_processes
    for count in (each for each in COUNTS if each <= most):
        yield from _figures("simulated", count, *simulate(count))
    yield from _figures("real", most, *run_processes(most))
    try:
        import torch as _torch  # noqa: F401
    except ImportError:
        yield skipped("joint save", "DCP", "torch is not installed")
        return
    for count in (each for each in COUNTS if each <= most):
        come, leave, seconds = plan_dcp(count)
        yield _figure("MB to the coordinator", "DCP", count, come / 1e6)
        yield _figure("MB from the coordinator", "DCP", count, leave / 1e6)
        yield _figure("planning by the coordinator", "DCP", count, seconds, "s")
        # A message of each process for its plan, the answer, its results, and their end.
        network = (come + leave) / NETWORK_NBYTES + 4 * (count - 1) * NETWORK_SECONDS
        yield _figure("until the end, without data", "DCP, modelled", count, seconds + network, "s")


def _figures(
    how: str, count: int, seconds: float, requests: dict[object, Counter[str]]
) -> Iterator[Figure]:
    others = [made for process, made in requests.items() if process]
    yield _figure("requests of all", how, count, sum(requests.values(), Counter()).total())
    yield _figure("requests of process 0", how, count, requests[0].total())
    if others:
        totals = [made.total() for made in others]
        yield _figure("requests of each other, mean", how, count, sum(totals) / len(totals))
        yield _figure("requests of each other, most", how, count, max(totals))
        # The first listing finds the target.
        looks = [made["list"] - 1 for made in others]
        yield _figure("looks of each other, mean", how, count, sum(looks) / len(looks))
    yield _figure("until the end", how, count, seconds, "s")


def _figure(what: str, how: str, count: int, value: float, unit: str = "") -> Figure:
    return Figure(f"joint save: {what}", how, "", value, unit, None, size=count)
