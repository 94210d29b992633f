"""``verify``: nothing that is damaged passes, nothing that is whole is called damaged, and no
damage hides another."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import CorruptCheckpoint, InvalidCheckpoint
from shardvar.formats.deferred import DeferredIndex
from shardvar.formats.native.source import NativeIndex
from shardvar.verbs.locate import find_checkpoints
from shardvar.verbs.problems import VerifyReport
from spec_tests.helpers import paths
from spec_tests.helpers.damage import flip
from spec_tests.helpers.hypothesis_strategies import tensor_dicts

GOLDEN = paths.GOLDEN

FORMATS = {
    "shardvar": "model",
    "tensorflow": "model",
    "safetensors": "model.safetensors",
    "npz": "model.npz",
}

UNREADABLE = {"v1_format_legacy"}
BREAK_A_LAW = {"slices_overlap": "OverlappingSlices", "slices_with_hole": "IncompleteCheckpoint"}


def cases(form: str, *beginnings: str, others: bool = False) -> list[str]:
    names = sorted(path.parent.name for path in (GOLDEN / form).glob("*/expected.json"))
    return [
        name for name in names if name.startswith(beginnings) != others and name not in UNREADABLE
    ]


def tensors() -> dict[str, Any]:
    return {
        "a/table": np.arange(26, dtype=np.float32).reshape(13, 2),
        "b": np.array([True, False, True]),
        "c": np.array(7, np.int64),
        "d": np.zeros((0, 3), np.float32),
    }


def kinds(report: VerifyReport) -> set[tuple[str, str | None]]:
    return {(damage.kind, damage.key) for damage in report.damages}


def data_files(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.iterdir()) if "data-" in path.name]


@pytest.mark.parametrize("case", cases("tensorflow", "bad", others=True))
def test_what_tensorflow_wrote_is_whole_unless_it_broke_a_law(case: str) -> None:
    there = find_checkpoints(GOLDEN / "tensorflow" / case / ("sm" if case == "saved_model" else ""))
    assert there
    for found in there:
        report = sv.verify(found.path)
        assert report.ok == (case not in BREAK_A_LAW)
        assert {kind for kind, _ in kinds(report)} <= {BREAK_A_LAW.get(case)}


@pytest.mark.parametrize("case", cases("tensorflow", "bad"))
def test_every_damage_to_a_tensorflow_checkpoint_is_found(case: str) -> None:
    """In the index too: what opening would raise is one damage of the report."""
    report = sv.verify(GOLDEN / "tensorflow" / case)
    assert not report.ok
    assert all(damage.message and damage.kind in dir(sv.errors) for damage in report.damages)
    if case in ("bad_index_magic", "badhand_keys_unsorted"):
        assert [damage.key for damage in report.damages] == [None]
        assert (report.num_tensors, report.read_nbytes) == (0, 0)


@given(tensor_dicts(strings=True), st.sampled_from(["shardvar", "tensorflow"]), st.integers(1, 4))
def test_what_is_saved_is_whole(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, Any], form: str, parts: int
) -> None:
    path = tmp_path_factory.mktemp("verify") / "model"
    try:
        written = sv.save(path, arrays, format=form, partition=parts)
    except sv.errors.UnsupportedError:
        return
    report = sv.verify(path)
    assert (report.ok, report.unguarded_nbytes) == (True, 0)
    notes = [each for each in report.notes if "no elements" not in each]
    assert not (arrays and notes)  # an empty bundle has a data file that nothing lies in
    counts = (report.num_tensors, report.num_slices, report.read_nbytes)
    assert counts == (written.num_tensors, written.num_slices, written.nbytes)


@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "safetensors", "npz"])
def test_a_file_that_was_cut_short_is_never_whole(form: str, tmp_path: Path) -> None:
    path = tmp_path / FORMATS[form]
    sv.save(path, tensors(), format=form)
    for file in sorted(
        each for each in tmp_path.iterdir() if each.is_file() and not each.name.startswith(".")
    ):
        data = file.read_bytes()
        for size in {0, 1, len(data) // 2, len(data) - 1}:
            file.write_bytes(data[:size])
            try:
                assert not sv.verify(path).ok, (file, size)
            except sv.errors.CheckpointNotFound:
                assert size < 64  # nothing is left that tells what the file once was
        file.write_bytes(data)
    assert sv.verify(path).ok


@pytest.mark.parametrize(
    ("form", "rows"),
    [("shardvar", 5), ("tensorflow", 5), ("shardvar", 40_000), ("shardvar", 1_200_000)],
)
def test_no_damage_hides_another(form: str, rows: int, tmp_path: Path) -> None:
    """Small tensors that are read in one go, and large ones that are read in blocks: each keeps its
    own verdict."""
    path = tmp_path / "model"
    tensors = {f"t{i}": np.full(rows, i, np.float64) for i in range(6)}
    sv.save(path, tensors, format=form, partition={"t1": 2})
    with sv.open_checkpoint(path) as reader:
        last = {
            key: int(reader.find(key).start[-1]) + 8 * (rows // 4) for key in ("t1", "t2", "t4")
        }
    for offset in last.values():
        flip(data_files(tmp_path)[0], offset)
    assert kinds(sv.verify(path)) == {("CorruptCheckpoint", key) for key in last}


def test_what_says_nothing_about_the_checkpoint_is_raised(tmp_path: Path) -> None:
    with pytest.raises(sv.errors.CheckpointNotFound):
        sv.verify(tmp_path / "nothing")
    sv.save(tmp_path / "a", {})
    sv.save(tmp_path / "a", {}, format="tensorflow", force=True)
    with pytest.raises(sv.errors.AmbiguousPath):
        sv.verify(tmp_path / "a")
    with pytest.raises(sv.errors.UnsupportedError):
        sv.verify(GOLDEN / "tensorflow" / "v1_format_legacy")


@pytest.mark.parametrize("form", FORMATS)
def test_all_bytes_are_told_to_whoever_watches(form: str, tmp_path: Path) -> None:
    path = tmp_path / FORMATS[form]
    sv.save(
        path,
        {"small": np.ones(10), "large": np.ones(700_000), "flag": np.ones(9, bool)},
        format=form,
    )
    told: list[int] = []
    report = sv.verify(path, progress=told.append)
    assert report.read_nbytes == 80 + 5_600_000 + 9 <= sum(told) <= report.read_nbytes + 4096


@pytest.mark.parametrize("form", ["tensorflow", "safetensors"])
def test_a_bool_that_is_none_is_told_with_its_file_and_a_remedy(form: str, tmp_path: Path) -> None:
    path, mask = tmp_path / FORMATS[form], np.ones(300, np.bool)
    sv.save(path, {"mask": mask, "w": np.arange(9.0)}, format=form)
    (data,) = (file for file in tmp_path.iterdir() if file.suffix != ".index")
    assert sv.verify(path).ok
    flip(data, data.read_bytes().index(mask.tobytes()) + 200, 6)
    assert {key for _, key in kinds(sv.verify(path))} == {"mask"}
    with sv.open_checkpoint(path) as reader:
        for index in (np.s_[150:250], ...):
            with pytest.raises((InvalidCheckpoint, CorruptCheckpoint)) as caught:
                reader["mask"][index]
            assert data.name in str(caught.value) and "mask" in caught.value.cause
            assert caught.value.remedy
        np.testing.assert_array_equal(reader["mask"][:200], mask[:200])
        np.testing.assert_array_equal(reader["w"][...], np.arange(9.0))


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"


@pytest.mark.parametrize(
    ("first", "what", "remedy"),
    [
        (LFS, "Git LFS pointer", "git lfs pull"),
        (b"<!DOCTYPE html><html><body>404" + b" " * 99, "web page", "download"),
        (b"\x1f\x8b\x08\x00" + bytes(99), "gzip", "gzip -d"),
        (b"", "empty", "Copy"),
    ],
)
@pytest.mark.parametrize("index", ["m.index", "m.safetensors.index.json"])
def test_an_index_that_is_something_else_is_called_what_it_is(
    index: str, first: bytes, what: str, remedy: str, tmp_path: Path
) -> None:
    for number in (1, 2):
        sv.save(tmp_path / f"m-0000{number}-of-00002.safetensors", {f"k{number}": np.ones(3)})
    (tmp_path / "m.data-00000-of-00001").write_bytes(bytes(12))
    (tmp_path / index).write_bytes(first)
    (damage,) = sv.verify(tmp_path / index).damages
    assert all(words in damage.message for words in (what, remedy, index))


@pytest.mark.parametrize("form", ["shardvar", "torch"])
def test_all_faults_are_those_of_each_key_and_cost_one_scan(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of 100,000 tensors that was cut has as many faults: each look-up would decode an
    index, or read items."""
    path = tmp_path / "m"
    sv.save(path, {f"w{number}": np.full(100, number) for number in range(8)}, format=form)
    (data,) = [*tmp_path.glob("m.svdata-*"), *tmp_path.glob("m/*.distcp")]
    os.truncate(data, data.stat().st_size // 2)
    with sv.open_checkpoint(path) as reader:
        faults = {key: reader.index.faults.get(key) for key in reader}
        each = {key: str(fault) for key, fault in faults.items() if fault is not None}
    assert len(each) == 4
    for index, name in ((NativeIndex, "find_or_none"), (DeferredIndex, "fault_of")):
        monkeypatch.setattr(index, name, lambda self, key: pytest.fail(f"{key} is looked up"))
    with sv.open_checkpoint(path) as reader:
        assert {key: str(error) for key, error in reader.faults.items()} == each
        assert sorted(map(str, reader.index.faults.values())) == sorted(each.values())
        assert list(reader.index.faults) == sorted(each)
    assert {damage.key for damage in sv.verify(path).damages if damage.key} <= each.keys()
