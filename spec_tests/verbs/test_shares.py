"""Many processes write one checkpoint: it is the one that a single save writes, or an error says
whose fault it is."""

import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    IncompleteCheckpoint,
    InconsistentTensor,
    LayoutError,
    LockHeld,
    OverlappingSlices,
    StorageError,
    TargetExists,
    UnsupportedError,
)
from shardvar.storage.local import LocalStorage
from shardvar.storage.posix import LocalReadableFile
from spec_tests.helpers.shared_saves import (
    demo_share,
    demo_tensors,
    save_all,
    save_one,
    start_process,
)
from spec_tests.helpers.step_jobs import together

FINISHED = re.compile(r"ck\.svindex|ck\.svdata-[0-9a-f]{16}-\d{5}-of-\d{5}")


def rows(start: int, stop: int, of: int = 4) -> sv.LocalShard:
    return sv.LocalShard(np.arange(start, stop, dtype=np.float32), (start,), (of,))


@pytest.mark.smoke
def test_processes_that_only_share_a_directory_save_one_checkpoint_and_then_another(
    tmp_path: Path,
) -> None:
    for run in ("1", "2"):
        started = [start_process(tmp_path / "ck", run, process, 3) for process in (2, 0, 1)]
        printed = [process.communicate(timeout=120)[0] for process in started]
        assert printed == [f"{run}\n"] * 3
        read = sv.load(tmp_path / "ck")
        assert all(
            np.array_equal(read[key], array) for key, array in demo_tensors(int(run)).items()
        )
    assert all(FINISHED.fullmatch(name) for name in os.listdir(tmp_path))


@pytest.mark.parametrize(
    ("form", "run_nbytes"), [("shardvar", 256 << 10), ("tensorflow", 1), ("torch", 1)]
)
def test_each_of_other_processes_reads_the_bytes_of_its_rows_once(
    form: str, run_nbytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved by three processes and restored by five: in the native format up to the ends of runs,
    else exactly."""
    table, path = np.random.default_rng(1).standard_normal((1000, 500)), tmp_path / "ck"
    shares = [
        {"w": sv.LocalShard(table[start:stop], (start, 0), table.shape)}
        for start, stop in sv.div(1000, 3)
    ]
    save_all(path, shares, "1", format=form)
    read_into, reads = LocalReadableFile.read_into, list[tuple[str, int, int]]()

    def note(file: LocalReadableFile, start: int, buffer: memoryview) -> None:
        reads.append((file.name, start, len(buffer)))
        read_into(file, start, buffer)

    monkeypatch.setattr(LocalReadableFile, "read_into", note)
    for start, stop in sv.div(1000, 5):
        reads.clear()
        with sv.open_checkpoint(path) as reader:
            rows = reader.read("w", sv.Region((start, 0), (stop - start, 500)))
        assert np.array_equal(rows, table[start:stop])
        # The rows lie in one share or in two, each with a run at either end that others need too.
        assert (
            rows.nbytes <= sum(nbytes for *_, nbytes in reads) <= rows.nbytes + 4 * (run_nbytes - 1)
        )
        ends = {name: 0 for name, *_ in reads}
        for name, first, nbytes in sorted(reads):
            assert first >= ends[name], "a byte is read once"
            ends[name] = first + nbytes


@pytest.mark.parametrize("later", [0, 1])
def test_a_process_may_make_the_folder_after_another_has_begun(later: int, tmp_path: Path) -> None:
    """Process 0 decides if the checkpoint lies in it, and the path leads to it."""
    folder = tmp_path / "step-1"

    def save(process: int) -> None:
        if process == later:
            time.sleep(0.3)
            folder.mkdir()
        save_one(folder, [{"w": rows(0, 2)}, {"w": rows(2, 4)}], process, commit=True, timeout=60)

    assert together(2, save) == [None, None]
    assert sv.load(folder)["w"].shape[0] == 4
    assert [*tmp_path.glob("*.svindex")] == [folder.with_suffix(".svindex")] * later


def test_processes_that_did_not_save_are_named(tmp_path: Path) -> None:
    shares = [demo_share(1, process, 5) for process in range(5)]
    for process in (0, 3):
        save_one(tmp_path / "ck", shares, process)
    with pytest.raises(
        IncompleteCheckpoint, match=r"Processes 1, 2 and 4 of 5 did not save within 0.1 s"
    ):
        sv.commit_shards(tmp_path / "ck", num_processes=5, run="1", timeout=0.1)


def test_processes_that_disagree_on_their_number_are_refused_before_they_write(
    tmp_path: Path,
) -> None:
    two, three = ([demo_share(1, process, n) for process in range(n)] for n in (2, 3))
    save_one(tmp_path / "ck", two, 0)
    before = os.listdir(tmp_path)
    with pytest.raises(
        ArgumentError, match=r"Process 0 of the run '1' of .*ck is one of 2, not 3\."
    ):
        save_one(tmp_path / "ck", three, 1)
    (mark,) = set(os.listdir(tmp_path)) - set(before)
    assert mark.endswith(".end")
    # The run is poisoned, also for the one that came first.
    with pytest.raises(ArgumentError, match="is one of 2, not 3"):
        save_one(tmp_path / "ck", two, 1)


def test_a_run_whose_share_another_writer_removes_while_it_is_written_loses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is that of a checkpoint that was replaced, and not that of the file that is
    gone."""
    path, rename = tmp_path / "ck", LocalStorage.rename

    def replace_first(storage: LocalStorage, old: str, new: str) -> None:
        monkeypatch.setattr(LocalStorage, "rename", rename)
        sv.save(path, demo_tensors(3))
        rename(storage, old, new)

    monkeypatch.setattr(LocalStorage, "rename", replace_first)
    with pytest.raises(
        StorageError,
        match="ck was replaced while the run '2' saved it. Save again in all processes",
    ):
        sv.save_shards(path, demo_share(2, 0, 2), process=0, num_processes=2, run="2")
    assert sv.verify(path).ok and not [name for name in os.listdir(tmp_path) if "svshare" in name]


def test_a_run_that_is_committed_can_be_saved_again(tmp_path: Path) -> None:
    """A job that was killed after the commit saves the same run again, with the same values or
    others."""
    for seed in (1, 1, 2):
        shares = [demo_share(seed, process, 2) for process in range(2)]
        save_all(tmp_path / "ck", shares, "1")
        assert sv.load(tmp_path / "ck")["step"] == seed
        sv.commit_shards(tmp_path / "ck", num_processes=2, run="1")
        assert all(FINISHED.fullmatch(name) for name in os.listdir(tmp_path))
        assert len(os.listdir(tmp_path)) == 3


def test_a_writer_that_holds_the_checkpoint_is_waited_for(tmp_path: Path) -> None:
    shares = [demo_share(1, process, 2) for process in range(2)]
    with (
        LocalStorage(str(tmp_path)).lock("ck"),
        pytest.raises(
            LockHeld,
            match=r"ck is held by another writer, so the run '1' cannot commit. Let it finish",
        ),
    ):
        save_all(tmp_path / "ck", shares, "1", timeout=0.1)
    # All processes get the error, whenever they ask.
    with pytest.raises(LockHeld, match="is held by another writer"):
        sv.commit_shards(tmp_path / "ck", num_processes=2, run="1")
    save_all(tmp_path / "ck", shares, "2")


def test_metadata_of_all_processes_are_kept_and_may_not_differ(tmp_path: Path) -> None:
    path, shares = tmp_path / "ck", [demo_share(1, process, 2) for process in range(2)]
    save_one(path, shares, 0, metadata={"step": "7"})
    save_one(path, shares, 1, metadata={"step": "7", "loss": "0.5"}, commit=True)
    with sv.open_checkpoint(path) as reader:
        assert reader.metadata.user == {"step": "7", "loss": "0.5"}
        assert reader.metadata.description == "One file for each process."
    save_one(path, shares, 0, run="2", metadata={"step": "8"})
    with pytest.raises(
        ArgumentError, match="The metadata 'step' are '8' in process 0 and '9' in process 1"
    ):
        save_one(path, shares, 1, run="2", metadata={"step": "9"}, commit=True)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"process": 2}, ArgumentError, "process=2 is not one of 2 processes. Give 0 to 1."),
        ({"process": -1}, ArgumentError, "process=-1 is not one of 2"),
        ({"process": "0"}, ArgumentError, "Invalid process number"),
        ({"process": True}, ArgumentTypeError, "Invalid process number True. Give an integer."),
        ({"num_processes": True}, ArgumentTypeError, "Invalid number of processes True"),
        ({"timeout": "9"}, ArgumentTypeError, "timeout is '9'. Give a number of seconds."),
        ({"timeout": None}, ArgumentTypeError, "timeout is None"),
        ({"timeout": float("nan")}, ArgumentTypeError, "timeout is nan"),
        ({"num_processes": 0}, ArgumentError, "num_processes=0 is not"),
        ({"num_processes": 100_000}, ArgumentError, "num_processes=100000 is not"),
        ({"replicas": "last"}, ArgumentError, "replicas='last' is not a way"),
        ({"run": ""}, ArgumentError, "The name of the run is empty"),
        ({"run": 7}, ArgumentError, "names of runs are strings"),
        ({"format": "npz"}, UnsupportedError, "npz cannot be written by several processes.*sv.reshard"),
        ({"tensors": [1]}, ArgumentError, "mapping from keys to arrays or local shards"),
        ({"tensors": {"w": [rows(0, 2), 1]}}, ArgumentError, "'w' has a int among its local shards"),
        ({"tensors": {"w": [rows(0, 2), rows(2, 4, 5)]}}, InconsistentTensor, r"'w' are float32\[4\] and float32\[5\]"),
        ({"tensors": {"w": [rows(0, 3), rows(2, 4)]}}, OverlappingSlices, r"overlap in \[2:3\]. .*held by process 1"),
        ({"tensors": {"w": sv.LocalShard(np.array([b"a"], object), [0], [2])}}, UnsupportedError, "be divided"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_before_anything_is_written(
    arguments: dict[str, Any], error: type[Exception], words: str, tmp_path: Path
) -> None:
    given = {"tensors": {}, "process": 1, "num_processes": 2, "run": "1", "timeout": 0.1}
    given |= arguments
    with pytest.raises(error, match=words):
        sv.save_shards(tmp_path / "ck", **given)
    assert not os.listdir(tmp_path)


def test_a_checkpoint_of_another_format_is_not_hidden_by_one_of_shares(tmp_path: Path) -> None:
    sv.save(tmp_path / "ck", demo_tensors(1), format="tensorflow")
    options: dict[str, Any] = {"process": 0, "num_processes": 1, "run": "1"}
    with pytest.raises(TargetExists, match="exists in the format tensorflow"):
        sv.save_shards(tmp_path / "ck", demo_share(1, 0, 1), **options)
    sv.save_shards(tmp_path / "ck", demo_share(1, 0, 1), **options, force=True)


def test_a_local_shard_lies_within_its_tensor() -> None:
    assert str(sv.LocalShard(np.zeros((2, 3)), [1, 0], [3, 3]).region) == "[1:3, 0:3]"
    assert sv.LocalShard(7, (), ()).region.size == 1
    for offset, full_shape in [((2, 0), (3, 3)), ((0,), (3, 3)), ((0, 0), (3,)), ((-1, 0), (3, 3))]:
        with pytest.raises(LayoutError):
            sv.LocalShard(np.zeros((2, 3)), offset, full_shape)
