"""Many processes write one checkpoint: it is the one that a single save writes, or an error says
whose fault it is."""

import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointError,
    CheckpointNotFound,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InconsistentTensor,
    LayoutError,
    LockHeld,
    MissingFile,
    OverlappingSlices,
    ServerError,
    StorageError,
    TargetExists,
    UnsupportedError,
)
from shardvar.formats.table import all_formats, format_named
from shardvar.storage.local import LocalStorage
from shardvar.storage.posix import LocalReadableFile
from shardvar.storage.requests import Head
from spec_tests.helpers.damage import flip
from spec_tests.helpers.memory_bucket import (
    Dead,
    MemoryBucket,
    ended_at_each,
    in_bucket,
    raced_at_each,
)
from spec_tests.helpers.shared_saves import (
    Shares,
    demo_share,
    demo_tensors,
    divided,
    save_all,
    save_one,
    start_process,
)
from spec_tests.helpers.step_jobs import together
from spec_tests.helpers.thoroughness import stride


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
    assert all(re.fullmatch(FINISHED["shardvar"], name) for name in os.listdir(tmp_path))


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


# --- Each law of shares, on each format that can adopt their files

PATHS = {
    "shardvar": "ck",
    "tensorflow": "ck",
    "safetensors": "model.safetensors",
    "torch": "folder",
}
FINISHED = {
    "shardvar": r"ck\.svindex|ck\.svdata-[0-9a-f]{16}-\d{5}-of-\d{5}",
    "tensorflow": r"ck\.index|ck\.data-\d{5}-of-\d{5}",
    "safetensors": r"model\.safetensors(\.index\.json)?|model-\d{5,6}-of-\d{5,6}\.safetensors",
    "torch": r"\.metadata|__\d+_0-[0-9a-f]{16}x*\.distcp",
}
each_format = pytest.mark.parametrize("form", PATHS)


def tensors_of(seed: int) -> dict[str, Any]:
    """Tensors of which no two seeds have a value in common."""
    rng = np.random.default_rng(seed)
    return {f"layer{number}": rng.standard_normal((6, 4)) for number in range(4)} | {
        "bias": np.full(3, seed)
    }


def shares_of(form: str, seed: int, count: int) -> list[dict[str, Any]]:
    """The arrays of each process: rows of every layer, or in formats without regions whole layers;
    and all the bias."""
    tensors = tensors_of(seed)
    shares: list[dict[str, Any]] = []
    for process in range(count):
        if format_named(form).capabilities.slice_dtypes:
            start, stop = sv.div(6, count)[process]
            mine: dict[str, Any] = {
                key: sv.LocalShard(array[start:stop], (start, 0), (6, 4))
                for key, array in tensors.items()
                if key != "bias"
            }
        else:
            mine = {
                f"layer{number}": tensors[f"layer{number}"] for number in range(process, 4, count)
            }
        shares.append(mine | {"bias": tensors["bias"]})
    return shares


def place(tmp_path: Path, form: str) -> tuple[Path, Path]:
    """The path of a checkpoint, and the folder that its files are in."""
    path = tmp_path / "place" / PATHS[form]
    path.parent.mkdir(exist_ok=True)
    return path, path if form == "torch" else path.parent


def assert_equal(found: Mapping[str, Any], seed: int) -> None:
    tensors = tensors_of(seed)
    assert found.keys() == tensors.keys()
    assert all(np.array_equal(found[key], array) for key, array in tensors.items())


def assert_holds(folder: Path, form: str, seed: int) -> None:
    """The folder has the checkpoint of that seed, whole and verified, and nothing else."""
    assert_equal(sv.load(folder), seed)
    assert not sv.verify(folder).damages
    assert all(re.fullmatch(FINISHED[form], name) for name in os.listdir(folder)), folder


def test_these_are_all_formats_that_can_adopt_files() -> None:
    assert sorted(PATHS) == sorted(form.name for form in all_formats() if hasattr(form, "adopt"))


@each_format
def test_one_save_follows_another_and_leaves_nothing_of_it(form: str, tmp_path: Path) -> None:
    """The old checkpoint is there until the last share is. A job that was killed after the commit
    saves the same run again, with the same values or others, and may commit it twice. A copy has no
    generation, so that one which is copied over another is another one."""
    path, folder = place(tmp_path, form)
    sv.save(path, tensors_of(0), format=form)
    before = 0
    for run, seed, count in (
        ("a", 1, 3), ("b", 2, 3), ("c", 3, 2), ("d", 4, 1), ("e", 5, 2), ("e", 5, 2), ("e", 6, 2)
    ):  # fmt: skip
        for process in range(count):
            assert sv.load(folder)["bias"][0] == before
            options = {"run": run, "format": form, "force": True, "commit": process == count - 1}
            save_one(path, shares_of(form, seed, count), process, **options)
        has_index = form != "safetensors" or count > 1
        if has_index:
            sv.commit_shards(path, num_processes=count, run=run, format=form)
        assert_holds(folder, form, before := seed)
        assert len(os.listdir(folder)) == count + has_index
    sv.reshard(folder, tmp_path / "copy", format="torch")
    with sv.open_checkpoint(tmp_path / "copy") as reader:
        assert not reader.metadata.generation
        assert "shardvar.generation" not in reader.metadata.user


@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "torch"])
@settings(max_examples=24 // stride(2))
@given(data=st.data())
def test_any_division_over_processes_is_the_checkpoint_that_one_save_writes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, form: str
) -> None:
    tensors, shares = data.draw(divided())
    folder = tmp_path_factory.mktemp("shares")
    try:
        sv.save(folder / "one", tensors, format=form)
    except UnsupportedError:
        assert form != "shardvar"
        return  # a dtype or a key that the format cannot hold
    try:
        save_all(folder / "ck", shares, "1", format=form)
    except UnsupportedError as error:
        assert form != "shardvar" and ("region" in error.cause or "slice" in error.cause)
        return
    assert sv.digest(folder / "ck").tensors == sv.digest(folder / "one").tensors
    assert sv.verify(folder / "ck").ok


ROWS = [{"w": sv.LocalShard(np.ones((2, 4))[a:b], (a, 0), (2, 4))} for a, b in sv.div(2, 4)]


@each_format
@pytest.mark.parametrize(
    "shares", [[{}], [{}, {}], [{}, {"w": np.ones(3)}], [{"e": np.zeros((0, 4))}] * 2, ROWS]
)
def test_processes_may_hold_nothing(
    form: str, shares: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Also empty regions of a tensor, which some formats cannot store."""
    if shares is ROWS and form == "safetensors":
        return
    path, folder = place(tmp_path, form)
    save_all(path, shares, "1", format=form)
    found = sv.load(folder)
    assert found.keys() == {key for share in shares for key in share}
    assert all((array == 1).all() for array in found.values())
    assert not sv.verify(folder).damages


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_a_file_whose_replicas_are_dropped_has_no_bytes_that_belong_to_no_tensor(
    form: str, tmp_path: Path
) -> None:
    path, folder = place(tmp_path, form)
    whole = {"a": np.arange(5), "b": np.arange(7.0), "c": np.ones((2, 3), np.int8)}
    save_all(path, [{"b": whole["b"]}, whole, whole], "1", format=form)
    assert not sv.verify(folder).damages
    read = sv.load(folder)
    assert all(np.array_equal(read[key], array) for key, array in whole.items())
    data = [each for each in folder.iterdir() if not re.search("index|metadata", each.name)]
    assert len(data) == 2
    assert sum(each.stat().st_size for each in folder.iterdir()) < 12_000


UNFIT: list[tuple[list[dict[str, Any]], type[Exception], str]] = [
    ([{"w": np.zeros(3)}, {"w": np.ones(3)}], InconsistentTensor, r"'w' has other values in process 1 than in pro"),
    ([{"w": np.zeros(3)}, {"w": np.zeros(4)}], InconsistentTensor, r"float64\[3\] in process 0 and float64\[4\]"),
    ([{"w": np.zeros(3)}, {"w": np.zeros(3, "f4")}], InconsistentTensor, "and float32"),
]  # fmt: skip
UNFIT_REGIONS: list[tuple[list[dict[str, Any]], type[Exception], str]] = [
    ([{"w": rows(0, 2)}, {"w": rows(3, 4)}], IncompleteCheckpoint, r"'w' lacks \[2:3\]. .*processes 0 and 1"),
    ([{"w": rows(0, 3)}, {}, {"w": rows(2, 4)}], OverlappingSlices, r"overlap in \[2:3\]. .*processes 0 and 2"),
    ([{"w": rows(0, 2)}, {"w": rows(2, 4, of=5)}], InconsistentTensor, r"float32\[5\] in process 1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "shares", "error", "words"),
    [
        *((form, *case) for form in PATHS for case in UNFIT),
        *(("shardvar", *case) for case in UNFIT_REGIONS),
    ],
)
def test_shares_that_do_not_fit_are_refused_and_the_old_checkpoint_stays(
    form: str, shares: Shares, error: type[Exception], words: str, tmp_path: Path
) -> None:
    path, folder = place(tmp_path, form)
    save_all(path, shares_of(form, 1, 2), "1", format=form)
    with pytest.raises(error, match=words):
        save_all(path, shares, "2", format=form, force=True)
    # The shares that are left do not confuse a reader or another save.
    assert_equal(sv.load(folder), 1)
    save_all(path, shares_of(form, 3, 2), "3", format=form, force=True)
    assert_holds(folder, form, 3)


@each_format
def test_a_share_with_other_values_poisons_the_run(form: str, tmp_path: Path) -> None:
    path, _ = place(tmp_path, form)
    shares = shares_of(form, 1, 2)
    for process in (0, 1, 1):  # a process that was started again has the same values
        save_one(path, shares, process, format=form)
    for commit in (False, True):
        with pytest.raises(ArgumentError, match="Process 1 .*has saved already, and other values"):
            save_one(path, shares_of(form, 2, 2), 1, commit=commit, format=form)
        with pytest.raises(ArgumentError, match="Process 1 .*has saved already, and other values"):
            sv.commit_shards(path, run="1", num_processes=2, format=form)
    with pytest.raises(CheckpointNotFound):
        sv.load(path)


@each_format
def test_a_run_whose_checkpoint_was_replaced_meanwhile_loses(form: str, tmp_path: Path) -> None:
    path, folder = place(tmp_path, form)
    sv.save(path, tensors_of(1), format=form)
    options: dict[str, Any] = {"run": "2", "format": form, "force": True, "attempt": "a"}
    shares = shares_of(form, 2, 2)
    save_one(path, shares, 0, **options)
    aside = {name: (folder / name).read_bytes() for name in os.listdir(folder) if "svshare" in name}
    assert aside
    sv.save(path, tensors_of(3), format=form, force=True)
    assert not [name for name in os.listdir(folder) if "svshare" in name]
    for name, octets in aside.items():
        (folder / name).write_bytes(octets)
    with pytest.raises(
        StorageError, match="Process 0 of the run '2' began when another checkpoint was at"
    ):
        save_one(path, shares, 1, commit=True, **options)
    assert sv.load(folder)["bias"][0] == 3


@each_format
@pytest.mark.parametrize(
    ("end", "hurt", "error"),
    [
        ("data", Path.unlink, MissingFile),
        ("data", lambda file: file.write_bytes(b""), IncompleteCheckpoint),
        ("svindex", lambda file: flip(file, 100), CorruptCheckpoint),
    ],
)
def test_a_share_of_which_a_file_is_lost_cut_or_wrong_is_not_committed(
    form: str, end: str, hurt: Callable[[Path], Any], error: type[Exception], tmp_path: Path
) -> None:
    path, folder = place(tmp_path, form)
    for process in range(2):
        save_one(path, shares_of(form, 1, 2), process, format=form)
    hurt(next(folder.glob(f"*00001-of-00002.{end}")))
    with pytest.raises(error, match="00001-of-00002"):
        sv.commit_shards(path, num_processes=2, run="1", format=form)
    with pytest.raises(CheckpointNotFound):
        sv.load(folder)


def test_a_format_that_holds_no_regions_refuses_them_before_anything_is_written(
    tmp_path: Path,
) -> None:
    words = r"safetensors cannot hold the region \[0:2\] of 'w'. Give the whole"
    for count in (1, 2):
        assert not os.listdir(tmp_path)
        with pytest.raises(UnsupportedError, match=words):
            save_one(
                tmp_path / "ck", [{"w": rows(0, 2)}] * count, 0, format="safetensors", commit=True
            )
    # What tells the other process.
    there = os.listdir(tmp_path / "ck")
    assert {name.rpartition(".")[2] for name in there} == {"call", "end", "left"}


@each_format
@pytest.mark.parametrize("which", ["path", "folder"])
def test_a_save_that_was_not_committed_is_said_to_be_that(
    form: str, which: str, tmp_path: Path
) -> None:
    """The error of a path without a checkpoint names the processes whose shares are missing, or the
    commit. The index of a share is no checkpoint."""
    path, folder = place(tmp_path, form)
    for process, said in (
        (1, "lacks the shares of processes 0, 2. Save there again"),
        (2, "lacks the shares of process 0. Save there again"),
        (0, "was not committed. Commit it: sv.commit_shards"),
    ):
        save_one(path, shares_of(form, 1, 3), process, format=form)
        with pytest.raises(CheckpointNotFound, match="by 3 processes was not committed") as caught:
            sv.load(path if which == "path" else folder)
        assert said in str(caught.value)
        for index in folder.glob("*.svindex"):
            for name in (index, index.with_suffix("")):
                with pytest.raises((CheckpointNotFound, UnsupportedError)):
                    sv.load(name)
    sv.commit_shards(path, num_processes=3, run="1", format=form)
    assert_holds(folder, form, 1)


# --- In a bucket, which has no locks: the conditional put of the index alone keeps commits apart

COUNT = 3


def url_of(form: str) -> str:
    return f"s3://bucket/run/{PATHS[form]}"


def saved_in(form: str, seed: int, *, is_there: bool = False) -> MemoryBucket:
    """A bucket with the shares of all processes, not committed; beside the checkpoint of seed 1."""
    bucket = saved_in(form, 1) if is_there else MemoryBucket()
    with in_bucket(bucket):
        if is_there:
            commit_in(form, 1)
        for process in range(COUNT):
            options = {"run": str(seed), "format": form, "force": True}
            save_one(url_of(form), shares_of(form, seed, COUNT), process, **options)
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
        assert not sv.verify(url_of(form)).damages
    seed = int(found["bias"][0])
    assert_equal(found, seed)
    return seed


@pytest.mark.parametrize("takes_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [Dead, StorageError])
@each_format
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
    ("form", "is_there"), [*((form, False) for form in PATHS), ("shardvar", True)]
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


def test_a_run_whose_checkpoint_was_replaced_at_any_request_loses() -> None:
    before = saved_in("shardvar", 2, is_there=True)
    race = partial(sv.save, url_of("shardvar"), tensors_of(3), force=True)
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
