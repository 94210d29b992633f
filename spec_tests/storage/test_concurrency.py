"""Requests under way together: as many as the storage bears, in bounded memory, and none left
behind by an error."""

import itertools
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import StorageError
from shardvar.planning.policies import BalancedPolicy
from shardvar.storage import objects, settings
from shardvar.storage.concurrency import Room, as_answered, check_wanted, do_all
from shardvar.storage.remote import TRAITS
from spec_tests.helpers.memory_bucket import Gate, MemoryBucket, in_bucket

COUNT = 40
"""Files of each checkpoint."""
TOGETHER = 32
"""Requests that are seen under way at once, at least."""
TENSORS = {f"t{number:02}": np.full(8, number, "<f4") for number in range(COUNT)}
POLICY = BalancedPolicy(COUNT)
FORMATS = {
    "shardvar": ("model", POLICY),
    "tensorflow": ("model", POLICY),
    "safetensors": ("model.safetensors", POLICY),
    "torch": ("folder", POLICY),
    "zarr": ("folder", None),
    "orbax": ("folder", None),
}


def save(name: str, form: str, **options: Any) -> str:
    url = f"s3://bucket/{name}/{FORMATS[form][0]}"
    sv.save(url, TENSORS, format=form, policy=FORMATS[form][1], **options)
    return url


DATA = re.compile(r"svdata|\.data-|-of-|distcp|/t\d\d/")
"""In the requests for data files, and for the objects of an array."""


def puts(what: str) -> bool:
    return what.startswith("put ") and DATA.search(what) is not None


def test_on_a_disk_items_are_done_one_after_the_other_in_this_thread() -> None:
    """Each before the next is taken: a crash leaves what the plain loop leaves."""
    done: list[tuple[str, int, int]] = []

    def items() -> Iterator[int]:
        for number in range(3):
            done.append(("taken", number, threading.get_ident()))
            yield number

    do_all(lambda number: done.append(("done", number, threading.get_ident())), items(), None)
    here = threading.get_ident()
    assert done == [(word, number, here) for number in range(3) for word in ("taken", "done")]


def test_every_item_is_answered_once() -> None:
    assert sorted(as_answered(lambda number: number * 2, range(1000), TRAITS)) == list(
        range(0, 2000, 2)
    )
    assert list(as_answered(str, [], TRAITS)) == []


def test_no_more_requests_are_under_way_than_the_storage_bears() -> None:
    """Counted inside; and the items that are taken hold no more bytes than the bound and the last
    of them."""
    lock, held, most = threading.Lock(), dict[int, int](), [0, 0]

    def nbytes(number: int) -> int:
        return (number % 7) << 22

    def items() -> Iterator[int]:
        for number in range(300):
            with lock:
                assert sum(held.values()) <= TRAITS.in_flight_nbytes
                held[number] = nbytes(number)
            yield number

    def request(number: int) -> None:
        with lock:
            most[0] += 1
            most[1] = max(most)
        with lock:
            most[0] -= 1
            del held[number]

    list(as_answered(request, items(), TRAITS, nbytes))
    assert most[1] <= TRAITS.requests


def test_after_an_error_nothing_is_under_way_and_nothing_begins() -> None:
    """The error is that of the item. Requests beside it have ended when it is raised, and what
    makes the items too."""
    begun, ended, closed = list[int](), list[int](), list[bool]()
    is_failing = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield from range(10_000)
        finally:
            closed.append(True)

    def request(number: int) -> None:
        begun.append(number)
        if number == 5:
            is_failing.set()
            raise StorageError("The server does not answer.", "Wait.")
        assert is_failing.wait(60)
        ended.append(number)

    with pytest.raises(StorageError, match="does not answer"):
        do_all(request, items(), TRAITS)
    count = len(begun)
    assert sorted([*ended, 5]) == sorted(begun) and count < 10_000 and closed == [True]


@pytest.mark.parametrize("is_upload", [False, True])
def test_what_takes_many_requests_ends_between_two_of_them_after_an_error(is_upload: bool) -> None:
    """An item of a million requests, in threads, or an upload in parts: it is given up when another
    item has failed."""
    is_begun, asked = threading.Event(), list[int]()

    def ask(_: int) -> bytes:
        asked.append(1)
        is_begun.set()
        if not is_upload:
            check_wanted()
        time.sleep(0.001)  # the other item fails meanwhile
        return b"part"

    def request(number: int) -> None:
        if number == 0 and is_upload:
            list(objects._wanted(map(ask, range(10_000))))
        elif number == 0:
            do_all(ask, itertools.repeat(0), TRAITS)
        assert is_begun.wait(60)
        raise StorageError("The server does not answer.", "Wait.")

    with pytest.raises(StorageError, match="does not answer"):
        do_all(request, range(2), TRAITS)
    assert not is_upload or len(asked) < 10_000
    check_wanted()  # this thread is in no such work


def test_a_caller_that_stops_ends_what_is_under_way() -> None:
    answers = as_answered(lambda number: number, iter(range(1000)), TRAITS)
    assert next(answers) >= 0
    answers.close()  # type: ignore[attr-defined]
    assert not any(thread.name.startswith("ThreadPool") for thread in threading.enumerate())


def test_what_holds_a_room_is_never_more_than_it() -> None:
    """Threads that ask for more than is free wait until another has left."""
    room, lock, now = Room(100), threading.Lock(), [0]

    def enter(nbytes: int) -> None:
        with room.hold(nbytes):
            with lock:
                now[0] += nbytes
                assert now[0] <= 100
            with lock:
                now[0] -= nbytes

    with ThreadPoolExecutor(16) as executor:
        list(executor.map(enter, [10, 60, 100, 0, 35] * 100))
    assert room.free_nbytes == 100


@pytest.mark.parametrize("form", FORMATS)
def test_the_files_of_a_save_go_up_together(form: str) -> None:
    """No file is refused its answer for ever, but none gets one until so many are under way."""
    bucket = MemoryBucket(gate=Gate(TOGETHER, puts))
    with in_bucket(bucket):
        url = save("run", form)
        assert all(np.array_equal(value, TENSORS[key]) for key, value in sv.load(url).items())


class Read(MemoryBucket):
    """A bucket that answers no read of a file of data before many are under way, and counts what
    else it is asked."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reading = Gate(
            TOGETHER,
            lambda key: re.search(r"-of-|distcp|/t\d\d/(zarr.json|.zarray)$", key) is not None,
        )
        self.others: list[str] = []

    def head(self, key: str) -> Any:
        self.others.append(key)
        return super().head(key)

    def read(self, key: str, head: Any, start: int, nbytes: int) -> memoryview:
        self.reading(key)
        return memoryview(self.files[key])[start : start + nbytes]


@pytest.mark.parametrize("form", ["safetensors", "torch", "zarr", "orbax"])
def test_the_files_of_a_checkpoint_are_opened_together(form: str) -> None:
    """Headers and descriptions, and without a request for the facts of each, which listings
    tell."""
    bucket = MemoryBucket()
    with in_bucket(bucket):
        url = save("run", form)
    bucket = Read(dict(bucket.files))
    with in_bucket(bucket), sv.open_checkpoint(url) as reader:
        assert len(reader.keys()) == COUNT and not any(DATA.search(key) for key in bucket.others)


def test_one_file_of_many_is_looked_at_for_what_it_may_be() -> None:
    """A folder is asked for bundles of TensorFlow's first version, whose names are any: a set is
    one of these."""
    asked: list[str] = []

    class Asked(MemoryBucket):
        def read(self, key: str, head: Any, start: int, nbytes: int) -> memoryview:
            asked.append(key)
            return super().read(key, head, start, nbytes)

    bucket = Asked()
    with in_bucket(bucket):
        save("run", "shardvar")
        assert sv.newest_checkpoint("s3://bucket/run/").endswith("/model")
    assert len([key for key in asked if DATA.search(key)]) <= 2


@pytest.mark.parametrize("form", FORMATS)
def test_the_files_of_a_replaced_checkpoint_are_removed_together(form: str) -> None:
    bucket = MemoryBucket()
    with in_bucket(bucket):
        url = save("run", form)
        bucket.gate = Gate(
            TOGETHER, lambda what: what.startswith("delete") and DATA.search(what) is not None
        )
        sv.save(url, {"x": np.zeros(3)}, format=form, force=True)
        assert [*sv.load(url)] == ["x"]


@pytest.mark.parametrize("is_remote", [False, True], ids=["from a disk", "from the bucket"])
def test_the_files_of_a_reshard_go_up_together_and_so_do_their_journals(
    is_remote: bool, tmp_path: Path
) -> None:
    bucket = MemoryBucket()
    with in_bucket(bucket):
        source = save("source", "shardvar") if is_remote else str(tmp_path / "model")
        if not is_remote:
            sv.save(source, TENSORS)
        # Files of a remote source are written by threads, each with room for the block that it
        # reads.
        bucket.gate = Gate(TOGETHER, lambda what: what.startswith("put ") and ".done" in what)
        sv.reshard(source, "s3://bucket/out/model", policy=POLICY)
        assert sv.diff(source, "s3://bucket/out/model").equal
    assert not any(".done" in key for key in bucket.files)


@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "torch"])
def test_the_shares_of_many_processes_are_committed_together(form: str) -> None:
    """The process that commits copies the files of all, within the bucket."""
    bucket = MemoryBucket()
    options: dict[str, Any] = {"num_processes": COUNT, "run": "1", "format": form}
    with in_bucket(bucket):
        url = f"s3://bucket/run/{FORMATS[form][0]}"
        for process in range(COUNT):
            rows = sv.LocalShard(np.full((1, 4), process), (process, 0), (COUNT, 4))
            sv.save_shards(url, {"w": rows}, process=process, commit=False, **options)
        bucket.gate = Gate(TOGETHER, lambda what: what.startswith("copy"))
        sv.commit_shards(url, **options)
        assert sv.load(url)["w"][:, 0].tolist() == list(range(COUNT))


def test_uploads_hold_no_more_memory_than_reports_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of 30 bytes beside a bound of 100: three at a time, whatever the number of threads."""
    options = SimpleNamespace(
        upload_nbytes=30, in_flight_nbytes=100, requests=64, short_requests=64, part_nbytes=8 << 20
    )
    monkeypatch.setattr(settings, "_current", [options])
    lock, now, most = threading.Lock(), [0], [0]

    class Watched(MemoryBucket):
        def put(self, key: str, path: str) -> Any:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            try:
                return super().put(key, path)
            finally:
                with lock:
                    now[0] -= 1

    bucket = Watched(gate=Gate(3, puts))
    with in_bucket(bucket):
        save("run", "safetensors")
    assert most == [3]


@pytest.mark.parametrize("form", sorted(FORMATS.keys() - {"orbax"}))
def test_an_error_amid_many_uploads_leaves_no_file(form: str) -> None:
    """Whatever went up beside the file that was refused is removed; the error is the one of that
    file. A database of Orbax has few files, and its own tests refuse each request."""
    asked: list[str] = []

    def refuse(what: str) -> None:
        if puts(what):
            asked.append(what)
            if asked.index(what) == 20:
                raise StorageError(f"{what} is refused.", "Wait.")

    bucket = MemoryBucket()
    with in_bucket(bucket):
        save("other", form)
        before = dict(bucket.files)
        bucket.gate = refuse
        with pytest.raises(StorageError, match="put .* is refused"):
            save("run", form)
    assert bucket.files == before and len(asked) > 20
