"""Incremental saves in a bucket: no lock keeps a save and a removal apart, and nothing is lost."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import CheckpointError, CheckpointNotFound, StorageError
from spec_tests.helpers.incremental_stage import are_equal, save_together, tensors
from spec_tests.helpers.memory_bucket import (
    Dead,
    MemoryBucket,
    ended_at_each,
    in_bucket,
    raced_at_each,
)
from spec_tests.helpers.thoroughness import EXHAUSTIVE

RUN = "s3://bucket/run"
NAMES = ("a", "b", "c", "d", "e")
MODEL = {"a": tensors(0, 1, 2), "b": tensors(0, 1, 3), "c": tensors(0, 2, 3)}


def save_three() -> None:
    """Three checkpoints, of which each refers to the one before."""
    sv.save(f"{RUN}/a", MODEL["a"], policy=sv.BalancedPolicy(3))
    sv.save(f"{RUN}/b", MODEL["b"], base=f"{RUN}/a")
    sv.save(f"{RUN}/c", MODEL["c"], base=f"{RUN}/b")


EVENTS: dict[str, Callable[[], object]] = {
    "save": lambda: sv.save(f"{RUN}/d", tensors(0, 2, 5), base=f"{RUN}/c"),
    "overwrite": lambda: sv.save(f"{RUN}/c", tensors(4, 5)),
    "overwrite the owner": lambda: sv.save(f"{RUN}/a", tensors(4, 5)),
    "save together": lambda: save_together(f"{RUN}/e", f"{RUN}/c"),
    "remove": lambda: sv.remove(f"{RUN}/c"),
    "remove the owner": lambda: sv.remove(f"{RUN}/a"),
}


def assert_whole(files: dict[str, bytes]) -> None:
    """Every checkpoint can be read and verified."""
    with in_bucket(MemoryBucket(dict(files))):
        indexes = [key for key in files if key.endswith(".svindex") and ".svshare-" not in key]
        names = {key.split("/")[1][:-8] for key in indexes}
        for name in names:
            assert sv.verify(f"{RUN}/{name}").ok, name
        assert "b" not in names or are_equal(sv.load(f"{RUN}/b"), MODEL["b"])


def assert_nothing_stays(files: dict[str, bytes]) -> None:
    """After all is saved again and removed, nothing is left."""
    bucket = MemoryBucket(dict(files))
    with in_bucket(bucket):
        for key in files:
            if key.endswith(".claim"):
                sv.break_claim(f"s3://bucket/{key}")
        for name in NAMES:
            try:
                sv.remove(f"{RUN}/{name}")
            except CheckpointNotFound:
                sv.save(f"{RUN}/{name}", tensors(0))
                sv.remove(f"{RUN}/{name}")
    assert bucket.files == {}


def test_a_save_of_what_is_unchanged_uploads_an_index_and_a_mark() -> None:
    bucket = MemoryBucket()
    large = {f"w{number}": np.full(1 << 20, number, np.float32) for number in range(4)}
    with in_bucket(bucket):
        sv.save(f"{RUN}/1", large)
        sv.save(f"{RUN}/2", large, base=f"{RUN}/1")
        bucket.log.clear()
        bucket.ranges.clear()
        before = dict(bucket.files)
        sv.save(f"{RUN}/3", large, base=f"{RUN}/2")
        assert [each.split(" ")[0] for each in bucket.log] == ["put", "put_if", "delete"]
        new = {key: octets for key, octets in bucket.files.items() if key not in before}
        assert [key.rpartition("/")[2] for key in new] == ["3.svindex"]
        assert sum(map(len, new.values())) < 10_000
        assert sum(nbytes for _, nbytes in bucket.ranges) < 100_000
        assert are_equal(sv.load(f"{RUN}/3"), large)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("takes_effect", [False, True])
def test_a_writer_that_dies_at_any_request_loses_nothing(event: str, takes_effect: bool) -> None:
    with in_bucket(start := MemoryBucket()):
        save_three()
    options = {"takes_effect": takes_effect, "error": Dead}
    for bucket in ended_at_each(start.files, EVENTS[event], **options):
        assert_whole(bucket.files)
        if bucket.is_dead:
            assert_nothing_stays(bucket.files)
    assert len(bucket.log) > 1


@pytest.mark.sample(5)
@pytest.mark.parametrize("inner", EVENTS)
@pytest.mark.parametrize("outer", EVENTS)
def test_two_at_a_time_lose_nothing(outer: str, inner: str) -> None:
    """One runs whole before any changing request of the other, or before any that reads."""
    with in_bucket(start := MemoryBucket()):
        save_three()
    done: list[str] = []

    def attempt(event: str) -> None:
        with suppress(CheckpointError, StorageError):
            EVENTS[event]()
            done.append(event)

    acts = partial(attempt, outer), partial(attempt, inner)
    buckets = raced_at_each(start.files, *acts, step=1 if EXHAUSTIVE else 2, lists=True)
    for bucket in buckets:
        assert done
        done.clear()
        assert_whole(bucket.files)
    assert bucket.at > 1
