"""Workers of an executor that write into a bucket: each uploads its own files, and one process commits."""

import pickle
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import CorruptCheckpoint, StorageError, UnsupportedError, WorkerLost
from shardvar.planning.policies import BalancedPolicy
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket

MODEL = {f"w{number}": np.arange(number, number + 3000, dtype="<f4").reshape(60, 50) for number in range(8)}
SOURCE, TARGET = "s3://bucket/run/source", "s3://bucket/run/out"
OPTIONS: dict[str, Any] = {"partition": 2, "policy": BalancedPolicy(5)}


class Elsewhere(ThreadPoolExecutor):
    """Threads to which what they work with is pickled, as to processes; the task ``lost`` ends with its worker."""

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


@pytest.fixture
def bucket() -> MemoryBucket:
    """A bucket with a checkpoint to read."""
    made = MemoryBucket()
    with in_bucket(made):
        sv.save(SOURCE, MODEL, partition=3)
    return made


def data_files(bucket: MemoryBucket) -> list[bytes]:
    """The content of the data files of the target."""
    return sorted(content for key, content in bucket.files.items() if key.startswith("run/out.svdata"))


@pytest.mark.parametrize("executor", [Elsewhere, ThreadPoolExecutor])
def test_a_reshard_by_workers_uploads_the_same_files(executor: Any, bucket: MemoryBucket) -> None:
    """From URL to URL, several files at a time; verify, digest and diff of URLs are those of one process."""
    with in_bucket(bucket), executor() as workers:
        sv.reshard(SOURCE, TARGET, **OPTIONS)
        alone = data_files(bucket)
        report = sv.reshard(SOURCE, TARGET, force=True, executor=workers, **OPTIONS)
        assert report.num_files == 5 and report.reused_files == 0 and data_files(bucket) == alone
        assert sv.verify(TARGET, executor=workers) == sv.verify(TARGET)
        assert sv.digest(TARGET, executor=workers) == sv.digest(TARGET)
        assert sv.diff(SOURCE, TARGET, executor=workers).equal
    assert not any(key.endswith(".done") for key in bucket.files)


def test_a_worker_that_dies_loses_at_most_the_file_that_was_finished_last(bucket: MemoryBucket) -> None:
    """A second run, from another machine, takes up what is in the bucket."""
    with in_bucket(bucket), pytest.raises(WorkerLost, match="Run it again"):
        sv.reshard(SOURCE, TARGET, executor=Elsewhere(lost=4), **OPTIONS)
    assert "run/out.svindex" not in bucket.files
    other = MemoryBucket(dict(bucket.files))
    with in_bucket(other):
        report = sv.reshard(SOURCE, TARGET, executor=Elsewhere(), **OPTIONS)
        assert sv.diff(SOURCE, TARGET).equal and sv.verify(TARGET).ok
    assert 2 <= report.reused_files <= 3
    assert len(data_files(other)) == 5 and not any(key.endswith(".done") for key in other.files)


@pytest.mark.parametrize("takes_effect", [False, True], ids=["refused", "answer lost"])
def test_an_upload_that_fails_in_a_worker_leaves_nothing(takes_effect: bool, bucket: MemoryBucket) -> None:
    before = dict(bucket.files)
    bucket.log.clear()
    bucket.fail_at, bucket.takes_effect = 2, takes_effect
    with in_bucket(bucket), pytest.raises(StorageError, match="does not answer"):
        sv.reshard(SOURCE, TARGET, executor=Elsewhere(), **OPTIONS)
    assert bucket.files == before


def test_damage_that_a_worker_finds_leaves_nothing(bucket: MemoryBucket) -> None:
    name = next(key for key in bucket.files if "svdata" in key)
    octets = bytearray(bucket.files[name])
    octets[100] ^= 1
    bucket.files[name] = bytes(octets)
    before = dict(bucket.files)
    with in_bucket(bucket), pytest.raises(CorruptCheckpoint):
        sv.reshard(SOURCE, TARGET, executor=Elsewhere(), **OPTIONS)
    assert bucket.files == before


@pytest.mark.parametrize("form", ["tensorflow", "safetensors", "npz"])
def test_files_whose_names_are_claimed_are_written_by_one_process(form: str, bucket: MemoryBucket) -> None:
    """Another writer could give its files the same names; nothing is uploaded."""
    before = dict(bucket.files)
    with in_bucket(bucket), pytest.raises(UnsupportedError, match="its name is claimed.*Leave the executor out"):
        sv.reshard(SOURCE, TARGET, format=form, executor=Elsewhere())
    assert bucket.files == before


def test_an_interrupt_keeps_what_is_finished(bucket: MemoryBucket) -> None:
    begun: list[int] = []

    def interrupt(nbytes: int) -> None:
        begun.append(nbytes)
        if len(begun) == 3:
            raise KeyboardInterrupt

    with in_bucket(bucket), ThreadPoolExecutor(1) as executor:
        with pytest.raises(KeyboardInterrupt):
            sv.reshard(SOURCE, TARGET, executor=executor, progress=interrupt, **OPTIONS)
        assert "run/out.svindex" not in bucket.files
        report = sv.reshard(SOURCE, TARGET, **OPTIONS)
        assert 1 <= report.reused_files < 5 and sv.diff(SOURCE, TARGET).equal
