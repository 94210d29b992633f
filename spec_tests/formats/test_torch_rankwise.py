"""Checkpoints of PyTorch's package torch_checkpointing.

The golden files were written by torch_checkpointing 0.1.1 with torch 2.13 on gloo, and
``expected.npz`` has the whole tensors that were distributed: ``w2`` on two ranks, ``w2st`` the same
model as safetensors, and ``w4`` on a mesh of 2 x 2, with FSDP2 over tensor parallelism. The indexes
of version 1.0, and tensors with offsets, are built as the package's source reads them.
"""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    IncompleteCheckpoint,
    InconsistentTensor,
    InvalidCheckpoint,
    MalformedCheckpoint,
    ShardvarError,
    UnsupportedError,
)
from spec_tests.helpers.torch_files import assert_joined, copied, joined


def check_equal(folder: Path, case: str) -> None:
    found, expected = sv.load(folder), joined("torch_rankwise", case)
    for key in expected.files:
        assert_joined(found[key], expected[key])


def index_of(folder: Path) -> Any:
    """Return the index, which has only plain data."""
    return pickle.loads((folder / "metadata.pkl").read_bytes())


def put(folder: Path, index: Any) -> None:
    (folder / "metadata.pkl").write_bytes(pickle.dumps(index))


def test_items_without_an_entry_in_the_index_are_found_by_their_names(tmp_path: Path) -> None:
    folder = copied("torch_rankwise", "w2", tmp_path)
    with sv.open_checkpoint(folder) as reader:
        assert {"step", "optimizer.param_groups.0.lr"} <= {*reader}
    sv.reshard(folder / "metadata.pkl", tmp_path / "x.safetensors")
    assert sv.diff(folder, tmp_path / "x.safetensors").equal


def test_files_of_json_are_noted(tmp_path: Path) -> None:
    folder = copied("torch_rankwise", "w2st", tmp_path)
    index = index_of(folder)
    kind = {"type": "JsonSerialization"}
    layouts = {
        rank: {"file_path": f"config_{rank}.json", "serialization_format": kind}
        for rank in range(2)
    }
    index["metadata"]["config"] = {"nested_path_to_metadata": {}, "rank_to_layout_info": layouts}
    put(folder, index)
    check_equal(folder, "w2st")
    assert any("config_0.json" in note for note in sv.verify(folder).notes)


def test_an_index_of_version_1_says_the_same(tmp_path: Path) -> None:
    folder = copied("torch_rankwise", "w2", tmp_path)
    index = index_of(folder)
    flat = {
        f'["{item}",{path[1:]}': groups
        for item, about in index["metadata"].items()
        for path, groups in about["nested_path_to_metadata"].items()
    }
    files = {str(rank): dict.fromkeys(index["metadata"]) for rank in range(2)}
    put(folder, {"metadata": flat, "rank_to_layout_info_mappings": files, "world_size": 2})
    check_equal(folder, "w2")


def test_plain_tensors_have_the_regions_of_the_index(tmp_path: Path) -> None:
    """With offsets in the whole and in the file of the rank, in several regions."""
    folder = tmp_path / "x"
    whole = np.arange(24, dtype=np.float32).reshape(6, 4)
    regions: Any = [
        [((0, 0), (1, 0), (2, 4)), ((4, 0), (3, 0), (1, 4))],
        [((2, 0), (0, 0), (2, 4)), ((5, 0), (2, 0), (1, 4))],
    ]
    groups = []
    for rank, held in enumerate(regions):
        local = np.full((4, 4), -1, np.float32)
        for at, inner, size in held:
            local[inner[0] : inner[0] + size[0]] = whole[at[0] : at[0] + size[0]]
        sv.save(folder / f"m_{rank}.pt", {"w": local})
        offsets, inner, size = (list(map(list, each)) for each in zip(*held, strict=True))
        data = {"global_shape": [6, 4], "dtype": "torch.float32", "global_offsets": offsets,
                "local_offsets": inner, "local_sizes": size}  # fmt: skip
        groups.append(
            {"sharding_metadata": {"type": "default_tensor_v1", "data": data}, "ranks": (rank,)}
        )
    item = {"nested_path_to_metadata": {'["w"]': groups}, "rank_to_layout_info": {0: None, 1: None}}
    index = {"metadata": {"m": item}, "world_size": 2, "version": "2.0"}
    put(folder, index)
    np.testing.assert_array_equal(sv.load(folder)["m.w"], whole)
    groups[1]["sharding_metadata"]["data"]["local_offsets"] = [[0, 0], [4, 0]]
    put(folder, index)
    with pytest.raises(InvalidCheckpoint, match=r"m_1.pt.*m.w.*outside of the shape"):
        sv.load(folder)
    del groups[1]
    put(folder, index)
    with pytest.raises(ShardvarError, match="m.w"):
        sv.load(folder)


def test_a_cut_index_is_not_taken_for_a_checkpoint_of_one_rank(tmp_path: Path) -> None:
    folder = copied("torch_rankwise", "w2", tmp_path)
    data = (folder / "metadata.pkl").read_bytes()
    (folder / "metadata.pkl").write_bytes(data[: len(data) // 2])
    with pytest.raises(ShardvarError):
        sv.load(folder)


def test_copies_that_differ_are_found(tmp_path: Path) -> None:
    folder = copied("torch_rankwise", "w2", tmp_path)
    for rank in range(2):
        sv.save(folder / f"extra_{rank}.pt", {"plain": np.full((2, 2), rank, np.float32)})
    with pytest.raises(UnsupportedError, match="extra.plain.*ranks 0 and 1 hold different values"):
        sv.load(folder)


EMB = '["emb.weight"]'
MODEL = ("metadata", "model")
TABLE = (*MODEL, "nested_path_to_metadata")
GROUP = (*TABLE, EMB, 0)
SHARDING = (*GROUP, "sharding_metadata")
DATA = (*SHARDING, "data")
OUTSIDE = {"file_path": "../x.pt", "serialization_format": {"type": "TorchSerialization"}}
WRONG: list[tuple[tuple[Any, ...], Any, type[ShardvarError], str]] = [
    ((*MODEL, "rank_to_layout_info"), {0: None}, InvalidCheckpoint, "files of 1 ranks"),
    (("world_size",), 1 << 60, InvalidCheckpoint, "1152921504606846976 ranks wrote"),
    ((*MODEL, "rank_to_layout_info", 0), OUTSIDE, InvalidCheckpoint, "not in the folder"),
    ((*DATA, "global_shape"), [8, 4], InconsistentTensor, "emb.weight.*differently|says the shape"),
    ((*DATA, "dtype"), "torch.float32", InconsistentTensor, "model.emb.weight.*dtype"),
    ((*DATA, "placements", 0, "dim"), 1, InconsistentTensor, "model.emb.weight.*differently"),
    ((*DATA, "placements", 0, "dim"), 2, InvalidCheckpoint, "model.emb.weight.*the axis 2 of 2"),
    ((*GROUP, "ranks"), (0, 0), InvalidCheckpoint, "twice"),
    (("version",), "3.0", UnsupportedError, "version '3.0'"),
    ((*SHARDING, "type"), "Unheard", UnsupportedError, "model.emb.weight.*'Unheard'"),
    ((*TABLE, "emb.weight"), [], MalformedCheckpoint, "metadata.pkl"),
    ((*TABLE, '["lost"]'), EMB, IncompleteCheckpoint, "model_0.pt.*no part of 'model.lost'"),
]
"""Steps to a value of the index, another value or the key that has it, and the error."""


@pytest.mark.parametrize(("steps", "value", "error", "words"), WRONG)
def test_an_index_that_disagrees_with_the_files_is_refused(
    steps: tuple[Any, ...], value: Any, error: type[ShardvarError], words: str, tmp_path: Path
) -> None:
    folder = copied("torch_rankwise", "w2", tmp_path)
    index = inner = index_of(folder)
    for step in steps[:-1]:
        inner = inner[step]
    inner[steps[-1]] = inner[EMB] if value == EMB else value
    put(folder, index)
    with pytest.raises(error, match=words):
        sv.load(folder)
