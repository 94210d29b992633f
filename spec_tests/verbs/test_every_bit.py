"""Every bit of tiny checkpoints is flipped: ``verify`` finds it, or it harms nothing.

If the report is ``ok``, a load gives every tensor, and those that were compared have the values
that were saved. What is not verifiable has an outcome that says so. Each file of each checkpoint is
a test of its own.
"""

import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.engine.pool import run_in_order
from shardvar.errors import ShardvarError
from spec_tests.helpers.hypothesis_strategies import same
from spec_tests.helpers.paths import GOLDEN
from spec_tests.helpers.thoroughness import stride

TENSORS: dict[str, Any] = {"a": np.array([[1, -2], [3, 4]], np.int16)}
TEXT: dict[str, Any] = {"s": np.array([b"xy"], object), "t": np.array(True)}
DATES: dict[str, Any] = {"d": np.array(["2026-01-01"], "M8[D]")}


def native(path: Path) -> dict[str, Any]:
    sv.save(path / "m", TENSORS, partition=2)
    return TENSORS


def tensorflow(path: Path) -> dict[str, Any]:
    sv.save(path / "m", TENSORS | TEXT, format="tensorflow", partition={"a": 2})
    return TENSORS | TEXT


def npz(path: Path) -> dict[str, Any]:
    np.savez(path / "m.npz", **TENSORS)
    return TENSORS


def deflated(path: Path) -> dict[str, Any]:
    np.savez_compressed(path / "m.npz", **TENSORS)
    return TENSORS


def dates(path: Path) -> dict[str, Any]:
    np.savez(path / "m.npz", **DATES)
    return DATES


def deflated_dates(path: Path) -> dict[str, Any]:
    np.savez_compressed(path / "m.npz", **DATES)
    return DATES


def safetensors(path: Path) -> dict[str, Any]:
    sv.save(path / "m.safetensors", TENSORS)
    return TENSORS


def safetensors_set(path: Path) -> dict[str, Any]:
    tensors = TENSORS | {"b": np.array([5], np.int64)}
    sv.save(path / "m.safetensors", tensors, policy=sv.MaxShardSizePolicy(8))
    return tensors


def zarr(path: Path) -> dict[str, Any]:
    tensors = {"t": np.arange(5, dtype=np.int16)}
    partition = sv.PartitionSpec(splits=[[3, 2]])
    sv.save(path / "m", tensors, format="zarr", partition=partition)
    return tensors


CHECKPOINTS: dict[str, tuple[Callable[[Path], dict[str, Any]], str, str]] = {
    "native index": (native, "m", "*.svindex"),
    "native data": (native, "m", "*.svdata*"),
    "tensorflow index": (tensorflow, "m", "*.index"),
    "tensorflow data": (tensorflow, "m", "*.data*"),
    "npz stored": (npz, "m.npz", "*.npz"),
    "npz deflated": (deflated, "m.npz", "*.npz"),
    "npz of dates, stored": (dates, "m.npz", "*.npz"),
    "npz of dates, deflated": (deflated_dates, "m.npz", "*.npz"),
    "zarr chunk": (zarr, "m", "m/t/c/0"),
    "zarr chunk, the last": (zarr, "m", "m/t/c/1"),
    "safetensors": (safetensors, "m.safetensors", "*.safetensors"),
    "safetensors set, index": (safetensors_set, "m.safetensors.index.json", "*.json"),
    "safetensors set, file": (safetensors_set, "m.safetensors.index.json", "*-00001-*"),
}
"""How to save each, the path to open, and the file whose bits are flipped."""


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads take longer to start than such checkpoints to read."""
    monkeypatch.setattr(
        "shardvar.engine.pieces.run_all", lambda function, items, _: run_in_order(function, items)
    )


def flips(path: Path, start: int = 0, step: int = 1) -> Iterator[int]:
    """Every bit of the file from byte ``start`` on, or each ``step``-th one, flipped in turn; the
    file is whole again afterwards."""
    whole = path.read_bytes()
    for bit in range(8 * start, 8 * len(whole), step):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        yield bit
    path.write_bytes(whole)


def assert_harmless(path: Path, report: Any, expected: dict[str, Any], is_guarded: bool) -> None:
    """The report is ok: everything loads, and what was compared is what was saved."""
    loaded = sv.load(path)
    assert loaded.keys() == report.outcomes.keys()
    for key, outcome in report.outcomes.items():
        assert outcome in ("ok", "not verifiable")
        if outcome == "ok":
            assert (loaded[key].dtype, loaded[key].tolist()) == (
                expected[key].dtype,
                expected[key].tolist(),
            )
    if is_guarded:
        assert set(report.outcomes.values()) == {"ok"} and loaded.keys() == expected.keys()


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_every_bit_is_found_or_harmless(case: str, tmp_path: Path) -> None:
    """R-DAMAGE-1: nothing that is ok has other values; where there are checksums, no value changes
    unseen."""
    save, name, pattern = CHECKPOINTS[case]
    expected = save(tmp_path)
    (file,) = tmp_path.glob(pattern)
    is_readable = not case.startswith("npz of dates")
    assert sv.verify(tmp_path / name).ok == is_readable
    # ``wire/test_block_file.py`` flips each bit of a native index, where it is decoded. 9
    # has no factor in common with 8, so each bit of a byte has its turn here.
    for bit in flips(file, step=stride(9)):
        try:
            report = sv.verify(tmp_path / name)
        except ShardvarError:
            continue  # what verify cannot open is not called ok
        assert is_readable or not report.ok, bit
        if report.ok:
            assert_harmless(tmp_path / name, report, expected, "safetensors" not in case)
    assert sv.verify(tmp_path / name).ok == is_readable


GOLDENS = {
    "torch_dcp/rows9_ranks2/ckpt": ("", "__0_0.distcp"),
    "torch_pt/ranks_fsdp_tp": ("model_world_size_6", "*_rank_1.pt"),
    "torch_pt/ranks_hsdp": ("model_world_size_4", "*_rank_1.pt"),
    "torch_pt/ranks_fsdp1": ("model_world_size_2", "*_rank_1.pt"),
    "orbax/standard/ckpt": ("", "**/*[!A]"),
    "orbax/stale_process_files/ckpt": ("", "**/*[!A]"),
    "zarr/v3_crc32c/ckpt": ("", "**/c/**/[0-9]"),
    "zarr/v3_sharded/ckpt": ("", "**/c/**/[0-9]"),
    "keras/keras_file": ("", "*.keras"),
}
"""Checkpoints of other programs: the path to open in each, and the files some of whose bits are
flipped. No checksum covers a description."""


@pytest.mark.parametrize("case", GOLDENS)
def test_bits_of_other_programs_files_are_found_or_harmless(case: str, tmp_path: Path) -> None:
    """R-DAMAGE-1, too: what is ok has the values of the whole checkpoint, and the verdict "ok" is also
    said of its keys."""
    name, pattern = GOLDENS[case]
    shutil.copytree(GOLDEN / case, tmp_path / "m")
    path = tmp_path / "m" / name
    with sv.open_checkpoint(path) as reader:
        right = {key: reader.read(key) for key in reader if key not in reader.faults}
    files = sorted(file for file in (tmp_path / "m").glob(pattern) if file.is_file())
    assert files and sv.verify(path).damages == ()
    for file in files:
        nbits = 8 * file.stat().st_size
        for bit in flips(file, step=stride(max(9, nbits * len(files) // 60 | 1))):
            try:
                report = sv.verify(path)
                ok = [key for key in right if report.outcomes.get(key) == "ok"]
                loaded = sv.load(path, ok)
            except ShardvarError:
                continue
            assert report.verdict != "ok" or report.outcomes.keys() == right.keys(), bit
            for key, array in loaded.items():
                assert same(array, right[key]), (key, bit)


def test_every_bit_of_a_member_that_is_not_an_array_is_found_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    np.savez(path, **TENSORS)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("README", b"text")
    start = path.read_bytes().index(b"text")
    for bit in flips(path, path.read_bytes().index(b"PK\x03\x04", 4)):
        report = sv.verify(path)
        assert not (start <= bit // 8 < start + 4 and report.ok), bit
        if report.ok:
            np.testing.assert_array_equal(sv.load(path)["a"], TENSORS["a"])
