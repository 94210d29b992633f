"""Files of DeepSpeed's ZeRO, joined as ``zero_to_fp32`` joins them; and the index of OLMo-core.

The golden files were written by DeepSpeed 0.19.8 with torch 2.13 on gloo, and ``expected.npz`` is
what its ``zero_to_fp32`` makes of them: stage 1 with 3 ranks, and stages 2 and 3 with 2 ranks in
bfloat16, with two groups, shared and frozen parameters, and buffers.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import InvalidCheckpoint, MissingFile, ShardvarError, UnsupportedError
from spec_tests.helpers.format_protocol import GOLDEN
from spec_tests.helpers.torch_files import copied, write_saved


def test_a_file_by_itself_is_still_a_file(tmp_path: Path) -> None:
    folder = copied("torch_zero", "z2bf16w2", tmp_path)
    with sv.open_checkpoint(folder / "mp_rank_00_model_states.pt") as reader:
        assert reader["module.lin.bias"].dtype == "bfloat16"
    with sv.open_checkpoint(folder / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt") as reader:
        assert reader["lin.bias"].dtype == "float32"


def test_files_of_other_ranks_are_refused(tmp_path: Path) -> None:
    folder = copied("torch_zero", "z2bf16w2", tmp_path)
    name = "bf16_zero_pp_rank_{}_mp_rank_{}_optim_states.pt"
    first = folder / name.format(0, "00")
    shutil.copy(first, folder / name.format(2, "00"))
    with pytest.raises(InvalidCheckpoint, match="left over"):
        sv.load(folder)
    (folder / name.format(2, "00")).unlink()
    shutil.copy(first, folder / name.format(0, "01"))
    with pytest.raises(UnsupportedError, match="tensor-parallel"):
        sv.load(folder)


def test_a_changed_byte_of_a_vector_is_found_by_verify(tmp_path: Path) -> None:
    folder = copied("torch_zero", "z3bf16w2", tmp_path)
    file = folder / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    value = sv.load(folder)["emb.weight"].reshape(-1)[-1].tobytes()
    data = file.read_bytes()
    file.write_bytes(data.replace(value, bytes(4), 1))
    assert data.count(value) and not sv.verify(folder).ok


STATE = "optimizer_state_dict"


def write_rank(folder: Path, shape: object, counts: list[int], world: int, stage: int) -> Path:
    """Write a model of one parameter, and ranks whose vectors have so many elements."""
    folder.mkdir()
    model = (
        "mp_rank_00_model_states.pt" if stage < 3 else "zero_pp_rank_{}_mp_rank_00_model_states.pt"
    )
    group = ("single_partition_of_fp32_groups", "fp32_flat_groups")[stage == 3]
    for rank, count in enumerate(counts):
        about = {"buffer_names": [], "param_shapes/0/w": shape, "shared_params": {}}
        write_saved(folder / model.format(rank), about, {})
        about = {f"{STATE}/zero_stage": stage, f"{STATE}/partition_count": world}
        vector = {f"{STATE}/{group}/0": np.arange(count, dtype=np.float32) + 100 * rank}
        write_saved(folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", about, vector)
    return folder


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4), (2, 3, 4), (7, 1, 2)])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_any_shape_on_any_number_of_ranks(
    stage: int, shape: tuple[int, ...], world: int, tmp_path: Path
) -> None:
    """The oracle puts the vectors in a row, as the function of DeepSpeed does."""
    total = int(np.prod(shape))
    each = -(-total // world) if stage == 3 else -(-total // (2 * world)) * 2
    folder = write_rank(tmp_path / "z", shape, [each] * world, world, stage)
    row = np.concatenate([np.arange(each) + 100 * rank for rank in range(world)])
    found = sv.load(folder)["w"]
    np.testing.assert_array_equal(found, row[:total].reshape(shape).astype(np.float32))


@pytest.mark.parametrize(
    ("shape", "counts", "world", "stage", "error"),
    [
        ((3, 4), [2, 2], 2, 2, ShardvarError),
        ((3, 4), [2, 2], 2, 3, ShardvarError),
        ((3, 4), [40, 40], 2, 2, InvalidCheckpoint),
        ((3, 4), [7, 7], 2, 3, InvalidCheckpoint),
        ((3, 4), [6, 5], 2, 3, ShardvarError),
        ((2**40, 2**40), [6, 6], 2, 3, InvalidCheckpoint),
        ((2**62, 0), [6, 6], 2, 2, InvalidCheckpoint),
        ((-3, -4), [6, 6], 2, 2, ShardvarError),
        ("abc", [6, 6], 2, 2, ShardvarError),
        ((1,) * 70, [6, 6], 2, 2, InvalidCheckpoint),
        ((3, 4), [6, 6], 3, 2, MissingFile),
        ((3, 4), [6, 6], 10**9, 2, MissingFile),
        ((3, 4), [6, 6], 0, 2, UnsupportedError),
        ((3, 4), [6, 6], 2, 7, UnsupportedError),
    ],
)
def test_vectors_that_do_not_fit_the_model_are_refused(
    shape: object,
    counts: list[int],
    world: int,
    stage: int,
    error: type[ShardvarError],
    tmp_path: Path,
) -> None:
    folder = write_rank(tmp_path / "z", shape, counts, world, stage)
    with pytest.raises(error):
        sv.load(folder)


def test_the_index_of_olmo_core_is_read() -> None:
    """OLMo-core 3.0 pickles a class of its own for the places of items; here nothing imports it.

    The golden folder is of torch 2.13, with that class in the place of the one of torch.
    """
    folder = GOLDEN / "torch_olmo"
    found = sv.load(folder, keys=["model.w", "model.b"])
    np.testing.assert_array_equal(found["model.w"], np.arange(12, dtype=np.float32).reshape(3, 4))
    assert found["model.b"].dtype.name == "bfloat16"
