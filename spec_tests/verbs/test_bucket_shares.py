"""Saves by several processes into one bucket, which share nothing else: whoever commits, one whole
checkpoint is there.

A bucket has no locks: the processes that commit the same run at the same time are kept apart by the
conditional put of the index alone.
"""

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    CheckpointError,
    CheckpointNotFound,
    LockHeld,
    MissingFile,
    ServerError,
    StorageError,
    UnsupportedError,
)
from shardvar.storage.requests import Head
from spec_tests.helpers.memory_bucket import (
    Dead,
    MemoryBucket,
    ended_at_each,
    in_bucket,
    raced_at_each,
)
from spec_tests.helpers.shared_saves import save_one

COUNT = 3
FORMS = {
    "shardvar": "ck",
    "tensorflow": "ck",
    "torch": "folder",
    "safetensors": "ck.safetensors",
}
WHOLE = {f"w{number}": np.arange(number, number + 60.0).reshape(12, 5) for number in range(3)}


def url_of(form: str) -> str:
    return f"s3://bucket/run/{FORMS[form]}"


def shares_in(form: str, seed: int) -> list[dict[str, Any]]:
    """What each of three processes holds: rows of a table, or whole tensors, and a replica."""
    cuts = [
        {"w0": sv.LocalShard(WHOLE["w0"][4 * i : 4 * i + 4] + seed, (4 * i, 0), (12, 5))}
        for i in range(COUNT)
    ]
    wholes = [{f"w{i}": WHOLE[f"w{i}"] + seed} for i in range(COUNT)]
    return [
        {**each, "bias": np.full(7, seed)} for each in (wholes if form == "safetensors" else cuts)
    ]


def saved_in(form: str, seed: int, *, is_there: bool = False) -> MemoryBucket:
    """A bucket with the shares of all processes, not committed; beside the checkpoint of seed 1."""
    bucket = saved_in(form, 1) if is_there else MemoryBucket()
    with in_bucket(bucket):
        if is_there:
            commit_in(form, 1)
        for process in range(COUNT):
            options = {"run": str(seed), "format": form, "force": True}
            save_one(url_of(form), shares_in(form, seed), process, **options)
    bucket.log.clear()
    return bucket


def commit_in(form: str, seed: int) -> Any:
    names: dict[str, Any] = {"num_processes": COUNT, "run": str(seed), "timeout": 0.1}
    return sv.commit_shards(url_of(form), format=form, **names)


def seed_in(form: str, bucket: MemoryBucket) -> int | None:
    """The seed of the tensors that a reader finds, whole; None for nothing."""
    with in_bucket(MemoryBucket(dict(bucket.files))):
        try:
            found = sv.load(url_of(form))
        except (CheckpointNotFound, MissingFile):
            return None
        assert sv.verify(url_of(form)).ok
    seed = int(found["bias"][0])
    expected = WHOLE if form == "safetensors" else {"w0": WHOLE["w0"]}
    assert found.keys() == {*expected, "bias"}
    assert all(np.array_equal(found[key], expected[key] + seed) for key in expected)
    return seed


@pytest.mark.parametrize("takes_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [Dead, StorageError])
@pytest.mark.parametrize("form", FORMS)
def test_a_commit_that_ends_at_any_request_can_be_made_again(
    form: str, error: Any, takes_effect: bool
) -> None:
    """Killed or refused, with and without effect: the old checkpoint or the new one is there, and
    then the new one, the claim removed.

    A set of safetensors is not replaced in one step: there, nothing may be left in between.
    """
    before, commit = saved_in(form, 2, is_there=True), partial(commit_in, form, 2)
    assert seed_in(form, before) == 1
    options = {"takes_effect": takes_effect, "error": error}
    for bucket in ended_at_each(before.files, commit, **options):
        possible = (1, 2, None) if form == "safetensors" else (1, 2)
        assert seed_in(form, bucket) in possible, bucket.log
        again = MemoryBucket(
            {key: value for key, value in bucket.files.items() if ".claim" not in key}
        )
        assert form != "shardvar" or len(again.files) == len(bucket.files)
        with in_bucket(again):
            try:
                commit()
            except StorageError:
                assert form == "safetensors" and seed_in(form, bucket) is None, bucket.log
            else:
                assert seed_in(form, again) == 2, bucket.log
    assert seed_in(form, bucket) == 2 and len(bucket.files) == COUNT + 1
    assert bucket.fail_at is not None and bucket.fail_at >= COUNT


@pytest.mark.parametrize(
    ("form", "is_there"), [*((form, False) for form in FORMS), ("shardvar", True)]
)
def test_of_two_processes_that_commit_the_same_run_one_checkpoint_comes(
    form: str, is_there: bool
) -> None:
    """One commits wholly before each request of the other in turn: no file is lost, and in the
    native format both find the run committed."""

    def other() -> None:
        try:
            commit_in(form, 2)
        except LockHeld as error:
            assert form != "shardvar" and "made by shardvar" in str(error)

    before, commit = saved_in(form, 2, is_there=is_there), partial(commit_in, form, 2)
    for bucket in raced_at_each(before.files, commit, other):
        assert seed_in(form, bucket) == 2, bucket.log
    assert bucket.at >= COUNT


class Silent(MemoryBucket):
    """A bucket that puts the index and never answers again."""

    def put_if(self, key: str, content: bytes, old: Head | None) -> Head:
        head = super().put_if(key, content, old)
        self.is_silent = key.endswith("/ck.svindex")
        return self.head(key) if self.is_silent else head

    def live(self) -> None:
        if getattr(self, "is_silent", False):
            raise ServerError("The server does not answer.", "Wait.")


def test_a_commit_of_which_the_outcome_is_not_known_is_said_to_be_that() -> None:
    """Whoever asks what is there now gets no answer either, and that error would say less."""
    bucket = Silent(saved_in("shardvar", 2).files)
    told = "the answer to the commit was lost, and whether the new checkpoint is"
    with in_bucket(bucket), pytest.raises(StorageError, match=told):
        commit_in("shardvar", 2)
    again = MemoryBucket(dict(bucket.files))
    with in_bucket(again):
        commit_in("shardvar", 2)
    assert seed_in("shardvar", again) == 2


def test_a_run_whose_checkpoint_was_replaced_meanwhile_loses() -> None:
    before = saved_in("shardvar", 2, is_there=True)
    third = {"w0": WHOLE["w0"] + 3, "bias": np.full(7, 3)}
    race = partial(sv.save, url_of("shardvar"), third, force=True)
    failed: list[bool] = []

    def commit() -> None:
        failed.append(True)
        with suppress(StorageError, CheckpointError):
            commit_in("shardvar", 2)
            failed[-1] = False

    for bucket in raced_at_each(before.files, commit, race):
        is_raced = bucket.race is None
        assert seed_in("shardvar", bucket) == (3 if is_raced else 2)
    assert not failed[-1]


def test_a_copy_of_another_size_is_not_committed() -> None:
    """A service that answers a copy as if it were done, and has stored nothing of it."""

    @dataclass(eq=False)
    class Careless(MemoryBucket):
        def copy(self, old: str, new: str, *, is_new: bool = False) -> None:
            self.files[new] = b""

    bucket = Careless(saved_in("tensorflow", 2).files)
    with in_bucket(bucket), pytest.raises(StorageError, match="has 0 bytes after a copy of"):
        commit_in("tensorflow", 2)
    assert seed_in("tensorflow", bucket) is None


def test_what_takes_no_writes_is_refused_before_anything_is_read() -> None:
    with pytest.raises(UnsupportedError, match="can be read, and not written"):
        sv.save_shards("memory://bucket/ck", {"w": [1.0]}, process=0, num_processes=1, run="1")
