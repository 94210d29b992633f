"""The word of ``verify`` follows from what checksums cover: "ok" is said of keys, dtypes, shapes and
values.

Files are flipped bit by bit, and the checkpoint is held to what was saved. ``EXHAUSTIVE=1`` flips
one bit of every byte; otherwise of some.
"""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.cli.verify import code_of_report
from shardvar.errors import ShardvarError
from spec_tests.helpers.command_line import Run, run

__all__ = ["run"]

TENSORS = {
    "alpha/w": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.array(7, np.int64),
    "c": np.zeros((0, 2), np.float16),
    "e": np.arange(5).astype(np.int16),
}
WORDS = {
    "shardvar": "ok",
    "tensorflow": "ok",
    "npz": "ok",
    "pt": "ok",
    "torch": "values match",
    "zarr": "values match",
    "orbax": "ok",
    "safetensors": "complete",
}
GOLDEN = Path(__file__).parents[1] / "golden"
EVERY = 1 if os.environ.get("EXHAUSTIVE") else 43


def save(folder: Path, form: str) -> Path:
    ending = {"npz": ".npz", "pt": ".pt", "safetensors": ".safetensors"}.get(form, "")
    sv.save(folder / f"m{ending}", TENSORS, format=form)
    return folder / f"m{ending}"


def contents(path: Path) -> dict[str, Any]:
    return {key: (each.dtype, each.shape, each.tolist()) for key, each in sv.load(path).items()}


@pytest.mark.parametrize("form", WORDS)
def test_the_word_of_a_sound_checkpoint_says_what_was_covered(
    form: str, tmp_path: Path, run: Run
) -> None:
    path = save(tmp_path, form)
    report = sv.verify(path)
    word = WORDS[form]
    outcome = "not verifiable" if word == "complete" else word
    assert report.ok and report.verdict == word and set(report.outcomes.values()) == {outcome}
    assert report.to_json()["verdict"] == word and code_of_report(report) == 0
    shown = run("verify", path).out
    assert shown.startswith(f"{word}: ")
    if word == "values match":
        assert "no checksum covers keys, dtypes and shapes" in shown
    strict = run("verify", path, "--strict")
    assert strict.code == (word != "ok") and ("digest" in strict.err) == (word != "ok")
    # The digests of a manifest cover all of it.
    assert run("digest", path, "--write").code == 0
    assert sv.verify(path).verdict == "ok" and run("verify", path, "--strict").code == 0


@pytest.mark.parametrize("form", WORDS)
def test_nothing_that_is_ok_has_another_key_dtype_shape_or_value(form: str, tmp_path: Path) -> None:
    assert changed_bits(tmp_path, save(tmp_path, form)) > 0


@pytest.mark.parametrize("case", ["orbax/standard/ckpt", "keras/keras_file"])
def test_nothing_that_is_ok_is_another_in_files_of_real_libraries(
    case: str, tmp_path: Path
) -> None:
    shutil.copytree(GOLDEN / case, tmp_path / "ck")
    assert sv.verify(tmp_path / "ck").verdict == "ok"
    assert changed_bits(tmp_path / "ck", tmp_path / "ck", 20 * EVERY) > 0


def changed_bits(folder: Path, path: Path, every: int = EVERY) -> int:
    """Change one bit after another, hold that "ok" means the same contents, and count the bits."""
    right, draw, count = contents(path), random.Random(7), 0
    for file in sorted(each for each in folder.rglob("*") if each.is_file()):
        whole = file.read_bytes()
        for position in range(draw.randrange(every), len(whole), every):
            changed, count = bytearray(whole), count + 1
            changed[position] ^= 1 << draw.randrange(8)
            file.write_bytes(changed)
            try:
                report = sv.verify(path)
            except ShardvarError:
                continue
            if report.verdict == "ok":
                assert contents(path) == right, (file.name, position)
        file.write_bytes(whole)
    return count


def test_a_key_of_an_index_without_a_checksum_is_not_called_ok(tmp_path: Path) -> None:
    """One bit of .metadata makes another key, which nothing can tell from the right one."""
    sv.save(tmp_path / "ck", {"alpha": np.ones(3)}, format="torch")
    index = tmp_path / "ck" / ".metadata"
    index.write_bytes(index.read_bytes().replace(b"alpha", b"alphc"))
    report = sv.verify(tmp_path / "ck")
    assert report.ok and report.outcomes == {"alphc": "values match"}
    assert report.bare_index == ".metadata"


def test_a_checkpoint_without_tensors_is_not_called_ok_by_a_format_without_checksums(
    tmp_path: Path, run: Run
) -> None:
    head = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)
    (tmp_path / "m.gguf").write_bytes(head)
    assert sv.verify(tmp_path / "m.gguf").verdict == "complete"
    assert run("verify", tmp_path / "m.gguf").out.startswith("complete: ")
    sv.save(tmp_path / "e.safetensors", {})
    assert sv.verify(tmp_path / "e.safetensors").verdict == "complete"
