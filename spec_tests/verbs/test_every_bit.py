"""Every bit of tiny checkpoints is flipped: ``verify`` finds it, or it harms nothing.

If the report is ``ok``, a load gives every tensor, and those that were compared have the values
that were saved. What is not verifiable has an outcome that says so. Each file of each checkpoint is
a test of its own.
"""

import shutil
import zipfile
from collections.abc import Iterator
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


MORE = TENSORS | {"b": np.array([5], np.int64)}
ROWS: dict[str, Any] = {"t": np.arange(5, dtype=np.int16)}
NATIVE = "m", TENSORS, {"partition": 2}
TENSORFLOW = "m", TENSORS | TEXT, {"format": "tensorflow", "partition": {"a": 2}}
ZARR = "m", ROWS, {"format": "zarr", "partition": sv.PartitionSpec(splits=[[3, 2]])}
SET = "m.safetensors", MORE, {"policy": sv.MaxShardSizePolicy(8)}
CHECKPOINTS: dict[str, tuple[tuple[str, dict[str, Any], Any], str]] = {
    "native index": (NATIVE, "*.svindex"),
    "native data": (NATIVE, "*.svdata*"),
    "tensorflow index": (TENSORFLOW, "*.index"),
    "tensorflow data": (TENSORFLOW, "*.data*"),
    "npz stored": (("m.npz", TENSORS, np.savez), "*.npz"),
    "npz deflated": (("m.npz", TENSORS, np.savez_compressed), "*.npz"),
    "npz of dates, stored": (("m.npz", DATES, np.savez), "*.npz"),
    "npz of dates, deflated": (("m.npz", DATES, np.savez_compressed), "*.npz"),
    "zarr chunk": (ZARR, "m/t/c/0"),
    "zarr chunk, the last": (ZARR, "m/t/c/1"),
    "safetensors": (("m.safetensors", TENSORS, {}), "*.safetensors"),
    "safetensors set, index": (SET, "*.json"),
    "safetensors set, file": (SET, "*-00001-*"),
}
"""The name, the tensors and the options or the function of a save, and the file whose bits are flipped."""


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
    (name, expected, save), pattern = CHECKPOINTS[case]
    path = tmp_path / name
    sv.save(path, expected, **save) if isinstance(save, dict) else save(path, **expected)
    (file,) = tmp_path.glob(pattern)
    path = path if path.exists() or name == "m" else tmp_path / f"{name}.index.json"
    is_readable = not case.startswith("npz of dates")
    assert sv.verify(path).ok == is_readable
    # ``wire/test_block_file.py`` flips each bit of a native index, where it is decoded. 9
    # has no factor in common with 8, so each bit of a byte has its turn here.
    for bit in flips(file, step=stride(9)):
        try:
            report = sv.verify(path)
        except ShardvarError:
            continue  # what verify cannot open is not called ok
        assert is_readable or not report.ok, bit
        if report.ok:
            assert_harmless(path, report, expected, "safetensors" not in case)
    assert sv.verify(path).ok == is_readable


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
    for bit in flips(path, path.read_bytes().index(b"PK\x03\x04", 4), stride(3)):
        report = sv.verify(path)
        assert not (start <= bit // 8 < start + 4 and report.ok), bit
        if report.ok:
            np.testing.assert_array_equal(sv.load(path)["a"], TENSORS["a"])
