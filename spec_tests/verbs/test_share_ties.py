"""Tied tensors that several processes save: the bytes are stored once, and each key has them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import ArgumentError, CheckpointNotFound, InvalidCheckpoint
from shardvar.planning.index import Metadata, find_ties
from shardvar.verbs.together.run import SaveOptions, find_run
from shardvar.verbs.together.shares import save_with_objects
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket

TABLE = np.arange(12.0).reshape(4, 3)
TIES = {"head": "w", "other": "w", "tail": "columns"}


def save(
    path: Any, held: list[tuple[dict[str, Any], dict[str, str]]], run: str = "1", **objects: bytes
) -> Any:
    """Save the tensors and the ties of each process; the last process commits."""
    for process, (tensors, ties) in enumerate(held):
        about = Metadata(ties=ties, objects=objects if process == 0 else {})
        is_last = process == len(held) - 1
        options = SaveOptions(commit=is_last, timeout=5, digest=True, is_state=True)
        saved = find_run(path, run, len(held), "shardvar", options=options)
        report = save_with_objects(saved, process, tensors, about)
    return report


def part(process: int, count: int, **more: Any) -> dict[str, Any]:
    """Return rows, and arrays that all processes hold."""
    start, stop = sv.div(4, count)[process]
    return {
        "w": sv.LocalShard(TABLE[start:stop], (start, 0), (4, 3)),
        "columns": TABLE,
        "bias": np.ones(5),
        **more,
    }


@pytest.mark.parametrize("place", ["disk", "bucket"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_tied_tensors_are_stored_once(count: int, place: str, tmp_path: Path) -> None:
    """With digests for each key; a second save replaces them."""
    path = f"{'s3://bucket/run' if place == 'bucket' else tmp_path}/ck"
    with in_bucket(MemoryBucket()):
        for run in ("1", "2"):
            save(path, [(part(process, count), TIES) for process in range(count)], run)
            read = sv.load(path)
            assert read.keys() == {"w", "bias", "columns", *TIES}
            assert all(np.array_equal(read[key], read[first]) for key, first in TIES.items())
            assert np.array_equal(read["w"], TABLE)
            assert sv.verify(path).ok
            with sv.open_checkpoint(path) as reader:
                found = find_ties(reader.entries())
                groups = {frozenset((key, first)) for key, first in found.items()}
                assert len(found) == len(TIES) and groups <= {
                    frozenset(pair)
                    for pair in (
                        ("w", "head"),
                        ("w", "other"),
                        ("head", "other"),
                        ("columns", "tail"),
                    )
                }
                assert dict(reader.digests) == sv.digest(path).tensors


def test_a_process_without_elements_of_a_tied_tensor_need_not_know_that(tmp_path: Path) -> None:
    nothing = sv.LocalShard(np.ones((0, 3)), (4, 0), (4, 3))
    save(tmp_path / "ck", [({"w": TABLE}, {"head": "w"}), ({"w": nothing, "head": nothing}, {})])
    read = sv.load(tmp_path / "ck")
    assert np.array_equal(read["head"], TABLE) and read.keys() == {"w", "head"}


@pytest.mark.parametrize(
    "second",
    [
        (part(1, 2, head=sv.LocalShard(TABLE[2:], (2, 0), (4, 3))), {}),
        (part(1, 2), {}),
        (part(1, 2), {"head": "bias"}),
    ],
)
def test_processes_that_disagree_on_a_tie_commit_nothing(second: Any, tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"'head' and '(w|bias)' are one tensor in process [01], and"
    ):
        save(tmp_path / "ck", [(part(0, 2), {"head": "w"}), second])
    with pytest.raises(CheckpointNotFound):
        sv.load(tmp_path / "ck")


def test_a_tied_tensor_is_no_object(tmp_path: Path) -> None:
    held = [({"w": TABLE}, {"head": "w"})] * 2
    with pytest.raises(ArgumentError, match="'head' is a tensor in one process and an object in"):
        save(tmp_path / "ck", held, head=b"1")


@pytest.mark.parametrize("ties", [{"head": "lost"}, {"head": "other", "other": "w"}])
def test_a_tie_to_what_is_no_tensor_is_refused(ties: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match="'head' is tied to '(lost|other)', which no proc"):
        save(tmp_path / "ck", [({"w": TABLE}, ties)])
