"""Workers of an executor that write into a bucket: each uploads its own files, and one process
commits."""

import pickle
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    CheckpointNotFound,
    CorruptCheckpoint,
    MissingFile,
    StorageError,
    TargetExists,
    WorkerLost,
)
from shardvar.planning.policies import BalancedPolicy
from spec_tests.helpers.executors import Inline
from spec_tests.helpers.memory_bucket import (
    Dead,
    MemoryBucket,
    Raced,
    ended_at_each,
    in_bucket,
    raced_at_each,
)
from spec_tests.helpers.orbax_files import settled

MODEL = {
    f"w{number}": np.arange(number, number + 3000, dtype="<f4").reshape(60, 50)
    for number in range(8)
}
SOURCE, TARGET = "s3://bucket/run/source", "s3://bucket/run/out"
POLICY: dict[str, Any] = {"policy": BalancedPolicy(5)}
OPTIONS: dict[str, Any] = {"partition": 2, **POLICY}


class Elsewhere(ThreadPoolExecutor):
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


FEW = dict(list(MODEL.items())[:3])
"""A model with as many kinds of requests, for tests that end a run at each of them."""


def bucket_of(tensors: dict[str, Any]) -> MemoryBucket:
    with in_bucket(made := MemoryBucket()):
        sv.save(SOURCE, tensors, partition=3)
    return made


@pytest.fixture
def few() -> MemoryBucket:
    """A bucket with a small checkpoint to read."""
    return bucket_of(FEW)


@pytest.fixture
def bucket() -> MemoryBucket:
    """A bucket with a checkpoint to read."""
    return bucket_of(MODEL)


def data_files(bucket: MemoryBucket) -> list[bytes]:
    """The content of the data files of the target."""
    return sorted(
        content for key, content in bucket.files.items() if key.startswith("run/out.svdata")
    )


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
        sv.save(TARGET, MODEL)
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
        sv.save(TARGET, MODEL)
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
        sv.reshard(SOURCE, TARGET, executor=Elsewhere(lost=4), **OPTIONS)
    assert "run/out.svindex" not in bucket.files
    other = MemoryBucket(dict(bucket.files))
    with in_bucket(other):
        report = sv.reshard(SOURCE, TARGET, executor=Elsewhere(), **OPTIONS)
        assert sv.diff(SOURCE, TARGET).equal and sv.verify(TARGET).ok
    assert 2 <= report.reused_files <= 3
    assert len(data_files(other)) == 5 and not any(key.endswith(".done") for key in other.files)


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
        sv.reshard(SOURCE, TARGET, executor=Elsewhere(), **OPTIONS)
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
            assert reshard(form, Elsewhere(), force=True).reused_files == 0
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
                report = reshard(form, Elsewhere() if number % 2 else None, force=True)
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
