"""``shardvar.torch.save`` and ``load`` of real jobs with bad input: each process that is alive gets one clear error,
the old checkpoint is whole, and the next save is clean."""

from pathlib import Path

import pytest

import shardvar as sv
from spec_tests.helpers.torch_bad_states import run_jobs

pytest.importorskip("torch", reason="PyTorch is not installed")

ONE = {  # what the last process says, and what the others say
    "object": ("UnsupportedError: 'odd': It is an object of the class", "process 2: 'odd': It is"),
    "partial": (
        "UnsupportedError: 'rows': It is a partial DTensor",
        "process 2: 'rows': It is a p",
    ),
    "meta": ("ArgumentError: 'bias' is on the device meta, and has no", "process 2: 'bias' is on"),
    "mesh": (
        "UnsupportedError: 'rows': This process holds [2, 4] of [11",
        "process 2: 'rows': This",
    ),
    "full": ("StorageError: ", "the file would be larger than allowed"),
    "no room": ("StorageError: ", "IncompleteCheckpoint: Process 2 of 3 did not save within 3 s."),
}
ALL = {
    "shape": "InconsistentTensor: 'bias' is float32[3] in process 0 and float32[4] in process 2.",
    "dtype": "InconsistentTensor: 'bias' is float32[3] in process 0 and float64[3] in process 2.",
    "kind": "ArgumentError: 'bias' is a tensor in one process and an object in another.",
    "value": "ArgumentError: ",
    "ties differ": "ArgumentError: 'table' and 'head' are one tensor in process 0, and not in pr",
    "tied": "saved",
    "keys": "lacks 'more'; the state lacks 'step'.",
    "ended": "ArgumentError: 'rows': It is a DTensor on 3 processes, and torch.distributed is not",
    "never begun": "ArgumentError: This is one of 3 processes (WORLD_SIZE), and torch.distributed",
}


def test_a_bad_state_is_one_error_of_all_processes_and_the_old_checkpoint_stays(
    tmp_path: Path,
) -> None:
    ((*others, last),) = run_jobs(tmp_path, 3, "it:states").values()
    for name, (own, told) in ONE.items():
        assert own in last[name] and all(told in each[name] for each in others), name
    for name, told in ALL.items():
        assert all(told in each[name] for each in (*others, last)), name
    for each in (*others, last):
        steps = {name: found for name, found in each.items() if name.startswith("after ")}
        assert (
            steps == {name: 3 if name == "after next" else 1 for name in steps} and len(steps) > 9
        )
        assert each["not strict"] == "LoadReport(missing=('more',), unexpected=('step',))"
    tied = sv.load(tmp_path / "it" / "ck")
    assert (tied["head"] == tied["table"]).all() and tied["head"][399, 99] == 39_999
    assert sum(each.stat().st_size for each in tmp_path.glob("it/ck.svdata*")) < 170_000
    assert sv.verify(tmp_path / "it" / "ck").ok and len([*tmp_path.glob("it/ck*")]) == 4


KILLED = {  # what the others say, and the step that they load then
    "kill-before-2": ("IncompleteCheckpoint: Process 2 of 3 has ended before the commit.", 1),
    "kill-in-2": ("IncompleteCheckpoint: Process 2 of 3 has ended before the commit.", 1),
    "kill-after-0": ("IncompleteCheckpoint: Process 0 of 3 has ended before the commit.", 1),
    "kill-after-2": ("saved", 2),
    "kill-decided-0": ("saved", 2),
}


def test_a_process_that_is_killed_leaves_a_whole_checkpoint_and_one_outcome(tmp_path: Path) -> None:
    """Then each job starts again, on fewer processes, and its first save is the run that was killed."""
    found = run_jobs(tmp_path, 3, *(f"{job}:{job}" for job in KILLED))
    for (job, (told, step)), said in zip(KILLED.items(), found.values(), strict=True):
        victim = said.pop(int(job[-1]))
        assert victim == {"first": "saved"}
        assert all(told in each["second"] and each["after"] == step for each in said), job
        assert sv.verify(tmp_path / job / "ck").ok
    for said in run_jobs(tmp_path, 2, *(f"{job}:rival-0" for job in KILLED)).values():
        assert {told for each in said for told in each.values()} == {"saved"}
    for job in KILLED:
        assert sv.load(tmp_path / job / "ck")["bias"].tolist() == [9.0] * 3
        assert len([*tmp_path.glob(f"{job}/ck*")]) == 3


def test_two_jobs_that_save_to_one_path_get_errors_and_the_checkpoint_is_of_one(
    tmp_path: Path,
) -> None:
    """With equal names of runs, and with others."""
    outcomes = run_jobs(tmp_path, 2, "it:rival-1", "it:rival-2")
    found = {told for said in outcomes.values() for each in said for told in each.values()}
    assert "saved" in found
    errors = ("StorageError: ", "ArgumentError: ", "IncompleteCheckpoint: ", "LockHeld: ")
    assert all(each.startswith(("saved", *errors)) for each in found), found
    assert sv.verify(tmp_path / "it" / "ck").ok
    saved = sv.load(tmp_path / "it" / "ck")
    assert (saved["rows"] // 100 == saved["bias"][0]).all()
    for said in run_jobs(tmp_path, 2, "it:rival-3").values():
        assert {told for each in said for told in each.values()} == {"saved"}
    assert len([*tmp_path.glob("it/ck*")]) == 3
