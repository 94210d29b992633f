"""Numbered checkpoints in a bucket: saved, restored, kept and removed as on a disk, whatever
request fails."""

import os
from pathlib import Path
from typing import Any

import pytest

import shardvar as sv
from shardvar.errors import StorageError
from spec_tests.helpers.memory_bucket import Dead, MemoryBucket, Raced, in_bucket

FOLDER = "s3://bucket/run"


def objects(value: float = 0.0) -> tuple[sv.Variable, sv.Checkpoint]:
    variable = sv.Variable([value])
    return variable, sv.Checkpoint(w=variable)


def manager(checkpoint: sv.Checkpoint, folder: str = FOLDER) -> sv.CheckpointManager:
    return sv.CheckpointManager(checkpoint, folder, max_to_keep=2)


def restored(bucket: MemoryBucket) -> tuple[float, int]:
    """The value and the number of the newest checkpoint, as a process finds them that begins
    now."""
    variable, checkpoint = objects(-1.0)
    with in_bucket(MemoryBucket(dict(bucket.files))):
        found = manager(checkpoint).restore_or_initialize()
        assert found is not None and sv.verify(found).ok
    return float(variable.numpy()[0]), int(found.rpartition("-")[2])


def after(count: int) -> MemoryBucket:
    """A bucket after so many saves, of the values 1, 2 and so on."""
    bucket, (variable, checkpoint) = MemoryBucket(), objects()
    with in_bucket(bucket):
        series = manager(checkpoint)
        for value in range(1, count + 1):
            variable.assign([float(value)])
            series.save()
    bucket.log.clear()
    return bucket


def stems(names: Any) -> list[str]:
    """Names without the generations of data files, which are random."""
    return sorted(name.partition(".svdata-")[0] for name in names)


def test_a_manager_of_a_url_keeps_what_a_manager_of_a_folder_keeps(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    with in_bucket(bucket):
        for folder in (FOLDER, os.fspath(tmp_path)):
            variable, checkpoint = objects()
            series = manager(checkpoint, folder)
            for value in range(4):
                variable.assign([float(value)])
                series.save()
            assert [path.rpartition("/")[2] for path in series.checkpoints] == ["ckpt-3", "ckpt-4"]
            assert series.latest_checkpoint == f"{folder}/ckpt-4" == sv.latest_checkpoint(folder)
    assert stems(key.removeprefix("run/") for key in bucket.files) == stems(os.listdir(tmp_path))
    assert restored(bucket) == (3.0, 4)


@pytest.mark.sample(3)
@pytest.mark.parametrize("takes_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [Dead, StorageError])
def test_a_save_that_ends_at_any_request_leaves_a_newest_checkpoint(
    error: Any, takes_effect: bool
) -> None:
    """The one before or the new one, whole; the next save removes what was left, claims of killed
    writers excepted."""
    before, number, ended = after(2), 0, False
    while not ended:
        variable, checkpoint = objects()
        bucket = MemoryBucket(dict(before.files))
        with in_bucket(bucket):
            series = manager(checkpoint)
            series.restore_or_initialize()
            variable.assign([3.0])
            bucket.fail_at, bucket.takes_effect, bucket.error = number, takes_effect, error
            try:
                series.save()
                ended = len(bucket.log) <= number
            except (Dead, StorageError):
                pass
        assert restored(bucket) in ((2.0, 2), (3.0, 3)), bucket.log
        again = MemoryBucket(
            {key: value for key, value in bucket.files.items() if ".claim" not in key}
        )
        variable, checkpoint = objects()
        with in_bucket(again):
            series = manager(checkpoint)
            series.restore_or_initialize()
            variable.assign([9.0])
            series.save()
            kept = [path.rpartition("/")[2] for path in series.checkpoints]
        assert restored(again)[0] == 9.0
        expected = [f"run/{name}{ending}" for name in kept for ending in ("", ".svindex")]
        assert stems(again.files) == sorted([*expected, "run/checkpoint"]), bucket.log
        number += 1
    assert number > 4


def test_of_two_managers_of_one_folder_none_forgets_what_the_other_saved() -> None:
    """One saves wholly before each request of the other in turn, which then fails, or had saved
    before."""
    before, number, ended = after(2), 0, False
    while not ended:

        def other() -> None:
            variable, checkpoint = objects()
            series = manager(checkpoint)
            series.restore_or_initialize()
            variable.assign([9.0])
            series.save()

        variable, checkpoint = objects()
        bucket = Raced(dict(before.files), at=number)
        with in_bucket(bucket):
            series = manager(checkpoint)
            series.restore_or_initialize()
            variable.assign([3.0])
            bucket.race = other
            try:
                series.save()
            except sv.errors.ShardvarError:
                assert bucket.race is None
        ended = bucket.race is not None
        assert restored(bucket)[0] == (3.0 if ended else 9.0), bucket.log
        number += 1
    assert number > 4


def test_a_state_file_that_leads_out_of_the_bucket_is_refused() -> None:
    bucket = after(1)
    for path in ("/etc/model", "../other/model", "s3://other/model"):
        bucket.files["run/checkpoint"] = f'model_checkpoint_path: "{path}"'.encode()
        with in_bucket(bucket), pytest.raises(sv.errors.ShardvarError):
            sv.latest_checkpoint(FOLDER)
