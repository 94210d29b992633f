"""Files of ranks and of states that are one checkpoint: joined as their own programs join them, and
each file needed. ``test_torch_zero`` and its like say what wrote the golden folders."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import MissingFile, ShardvarError, UnsupportedError
from spec_tests.helpers.paths import GOLDEN
from spec_tests.helpers.torch_files import assert_joined, copied, joined

CASES = [
    *(("torch_zero", case) for case in ("z1fp32w3", "z2bf16w2", "z3bf16w2")),
    *(("torch_rankwise", case) for case in ("w2", "w2st", "w4")),
    *(("torch_llama", case) for case in ("llama2", "llama3", "llama4")),
    *(("torch_universal", case) for case in ("z1fp32w3", "z3bf16w2")),
]
FILES = {
    "torch_zero": "*.pt",
    "torch_rankwise": "**/model*",
    "torch_llama": "consolidated*",
    "torch_universal": "**/*.pt",
}
"""The files of ranks and of states."""
HAVE_MORE = {"torch_rankwise", "torch_universal"}
"""Programs whose files have more than the tensors that they join."""
each_case = pytest.mark.parametrize(("kind", "case"), CASES)


def places(kind: str, case: str) -> list[Path]:
    root = GOLDEN / kind / case
    return [file.relative_to(root) for file in sorted(root.glob(FILES[kind]))]


@each_case
def test_files_are_joined_as_their_program_joins_them(kind: str, case: str, tmp_path: Path) -> None:
    """Whole and in parts; Universal Checkpoints are what ``ds_to_universal`` made of ZeRO's files."""
    folder = copied(kind, case, tmp_path)
    expected: Any = joined("torch_zero" if kind == "torch_universal" else kind, case)
    found = sv.load(folder)
    assert {*expected.files} <= found.keys()
    assert kind in HAVE_MORE or found.keys() == {*expected.files}
    assert sv.verify(folder).ok
    with sv.open_checkpoint(folder) as reader:
        assert kind not in HAVE_MORE or reader.path == str(folder)
        for key in expected.files:
            assert_joined(found[key], expected[key])
            part = np.s_[1:5, 1:3] if expected[key].ndim == 2 else np.s_[...]
            assert_joined(np.asarray(reader[key][part]), expected[key][part])


@pytest.mark.parametrize(("kind", "case"), [e for e in CASES if e[0] != "torch_universal"])
def test_each_file_that_is_missing_is_named(kind: str, case: str, tmp_path: Path) -> None:
    """Never fewer elements, and never zeros, also if the last file is lost. In a Universal
    Checkpoint it is a fault of one parameter, as ``test_torch_universal`` says."""
    for place in places(kind, case):
        folder = copied(kind, case, tmp_path / str(place).replace("/", "-"))
        (folder / place).unlink()
        with pytest.raises(MissingFile, match=str(place)):
            sv.load(folder)


@each_case
def test_a_cut_file_is_an_error_that_names_it(kind: str, case: str, tmp_path: Path) -> None:
    for place in [*places(kind, case), *([Path("params.json")] if kind == "torch_llama" else [])]:
        folder = copied(kind, case, tmp_path / str(place).replace("/", "-"))
        data = (folder / place).read_bytes()
        (folder / place).write_bytes(data[: len(data) // 2])
        with pytest.raises(ShardvarError, match=place.name):
            sv.load(folder)


@pytest.mark.parametrize(
    ("kind", "case", "file", "words"),
    [
        ("torch_rankwise", "w2", "model_1.pt", "index, metadata.pkl"),
        ("torch_llama", "llama3", "consolidated.01.pth", "Give their folder"),
    ],
)
def test_a_rank_by_itself_is_not_converted_and_says_what_the_whole_is(
    kind: str, case: str, file: str, words: str, tmp_path: Path
) -> None:
    folder = copied(kind, case, tmp_path)
    with pytest.raises(UnsupportedError, match=words):
        sv.reshard(folder / file, tmp_path / "x.safetensors")
