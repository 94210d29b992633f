"""Universal Checkpoints of DeepSpeed.

The golden files are what ``ds_to_universal`` of DeepSpeed 0.19.8 made of the golden files of ZeRO
(``test_torch_zero``), whose ``expected.npz`` is what ``zero_to_fp32`` makes of the same files.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import IncompleteCheckpoint, MissingFile, ShardvarError, UnsupportedError
from spec_tests.helpers.format_protocol import GOLDEN
from spec_tests.helpers.memory_bucket import count_requests, in_bucket, in_memory
from spec_tests.helpers.torch_files import copied, write_saved

UNIVERSAL = GOLDEN / "torch_universal"
CASES = ("z1fp32w3", "z3bf16w2")


@pytest.mark.parametrize("case", CASES)
def test_states_of_the_optimizer_are_the_files_of_their_parameters(
    case: str, tmp_path: Path
) -> None:
    """In the shape of their parameters, also where stage 3 has written vectors."""
    folder = copied("torch_universal", case, tmp_path)
    found = sv.load(folder)
    shapes = {key: array.shape for key, array in found.items()}
    for file in (folder / "zero").glob("*/*.pt"):
        name, state = file.parent.name, file.stem
        alone = sv.load(file)
        values = alone[next(key for key in ("param", "") if key in alone)]
        key = name if state == "fp32" else f"optimizer.state.{name}.{state}"
        np.testing.assert_array_equal(found.pop(key).ravel(), values.ravel())
        if state.startswith("exp_avg"):
            assert shapes[key] == shapes[name]
    assert {"optimizer.step", "optimizer.state.emb.weight.step"} & shapes.keys()
    with sv.open_checkpoint(folder) as reader:
        assert "optimizer.param_groups.0.lr" in reader


@pytest.mark.parametrize("case", CASES)
def test_a_parameter_that_is_missing_is_incomplete_by_name(case: str, tmp_path: Path) -> None:
    folder = copied("torch_universal", case, tmp_path)
    (folder / "zero" / "emb.weight" / "fp32.pt").unlink()
    shutil.rmtree(folder / "zero" / "lin.bias")
    with pytest.raises(IncompleteCheckpoint, match=r"zero/\S+/fp32.pt is missing"):
        sv.load(folder)
    for key in ("emb.weight", "lin.bias"):
        with pytest.raises(IncompleteCheckpoint, match=f"zero/{key}/fp32.pt is missing"):
            sv.load(folder, [key])
    assert sv.load(folder, ["lin.weight", "optimizer.state.emb.weight.exp_avg"])
    for file in folder.glob("*model_states.pt"):
        file.unlink()
    with pytest.raises(MissingFile, match="mp_rank_00_model_states.pt is missing"):
        sv.load(folder)


def test_a_vector_of_another_length_is_refused_by_name(tmp_path: Path) -> None:
    folder = copied("torch_universal", "z3bf16w2", tmp_path)
    file = folder / "zero" / "lin.weight" / "exp_avg.pt"
    shutil.copy(folder / "zero" / "lin.bias" / "exp_avg.pt", file)
    with pytest.raises(ShardvarError, match=r"lin.weight.exp_avg': It has the shape"):
        sv.load(folder)
    write_saved(file, {"x": 1}, {})
    with pytest.raises(ShardvarError, match=r"exp_avg.pt.*neither a tensor nor a 'param'"):
        sv.load(folder)


def test_a_part_of_the_folder_says_where_the_whole_is(tmp_path: Path) -> None:
    folder = copied("torch_universal", "z1fp32w3", tmp_path)
    for part in (folder / "zero", folder / "zero" / "emb.weight"):
        with pytest.raises(UnsupportedError, match="folder above"):
            sv.load(part)
    assert sv.load(folder / "zero" / "emb.weight" / "fp32.pt")
    (folder.parent / "latest_universal").write_text(folder.name)
    assert sv.newest_checkpoint(folder.parent) == str(folder)


def test_a_listing_takes_two_requests_a_file(tmp_path: Path) -> None:
    """Only the file of a state has its dtype. They are read at the same time."""
    copied("torch_universal", "z1fp32w3", tmp_path)
    bucket = in_memory(tmp_path)
    with in_bucket(bucket):
        made = count_requests(bucket, lambda: shapes_of("s3://bucket/run/z1fp32w3/"))
    assert made <= 8 + 2 * len(bucket.files), (made, len(bucket.files))


def shapes_of(path: str) -> list[tuple[int, ...]]:
    with sv.open_checkpoint(path) as reader:
        return [reader[key].shape for key in reader]


@pytest.mark.parametrize("case", CASES)
def test_a_state_that_is_written_again_has_its_new_values(case: str, tmp_path: Path) -> None:
    """As a file with the tensor ``param``, also in a folder of stage 3, which has vectors. The
    output layer shares the embedding, and DeepSpeed loads only the file of the embedding."""
    folder = copied("torch_universal", case, tmp_path)
    before = sv.load(folder)
    values = np.arange(before["emb.weight"].size, dtype=np.float32).reshape(
        before["emb.weight"].shape
    )
    for state in ("fp32", "exp_avg"):
        sv.save(folder / "zero" / "emb.weight" / f"{state}.pt", {"param": values}, force=True)
    after = sv.load(folder)
    changed = {"emb.weight", "out.weight", "optimizer.state.emb.weight.exp_avg"}
    for key in before:
        expected = values if key in changed else before[key]
        if key in changed or not key.startswith("optimizer.param_groups"):
            np.testing.assert_array_equal(after[key], expected)
    assert after.keys() == before.keys()
