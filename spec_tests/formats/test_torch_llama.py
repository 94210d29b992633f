"""Meta's files of Llama, joined as Meta's own loader joins them.

The golden files are state dicts of the models of llama-models (commit a9c89c47) on two ranks of
fairscale 0.4.13, with torch 2.13 on gloo. ``expected.npz`` is what its ``reshard_mp`` makes of them.
``llama2`` has fairscale's ``ParallelEmbedding``, as Llama 2 has. ``llama4`` has the names of its
published files, which the model's loading hooks take.
"""

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import (
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MissingFile,
    ShardvarError,
    UnsupportedError,
)
from spec_tests.helpers.torch_files import copied, joined

CASES = ("llama2", "llama3", "llama4")
PARAMS = {"dim": 8, "n_heads": 4, "n_kv_heads": 2}
WIDTH = 8


@pytest.mark.parametrize("case", CASES)
def test_without_the_number_of_heads_keys_and_values_are_refused_and_the_rest_is_read(
    case: str, tmp_path: Path
) -> None:
    """Nothing else tells whether two ranks have the same heads or different ones."""
    folder, expected = copied("torch_llama", case, tmp_path), joined("torch_llama", case)
    (folder / "params.json").unlink()
    with sv.open_checkpoint(folder) as reader:
        assert {*reader} == {*expected.files}
        for key in expected.files:
            if re.search(r"attention\.w(k|v|qkv)\.weight", key):
                with pytest.raises(UnsupportedError, match="params.json"):
                    reader.read(key)
            else:
                np.testing.assert_array_equal(reader.read(key).view(np.uint16), expected[key])


def test_a_file_that_is_left_over_is_named(tmp_path: Path) -> None:
    folder = copied("torch_llama", "llama3", tmp_path)
    shutil.copy(folder / "consolidated.00.pth", folder / "consolidated.02.pth")
    with pytest.raises(InvalidCheckpoint, match="consolidated.02.pth is left over"):
        sv.load(folder)


def save_ranks(folder: Path, ranks: list[dict[str, Any]], params: Any = None) -> Path:
    """Write files of ranks, and ``params.json``."""
    folder.mkdir(parents=True)
    for rank, tensors in enumerate(ranks):
        sv.save(folder / f"consolidated.{rank:02}.pth", tensors)
    if params is not None:
        (folder / "params.json").write_text(json.dumps(params))
    return folder


def cut(name: str, axis: int | None, whole: np.ndarray, world: int) -> list[dict[str, Any]]:
    parts = [whole] * world if axis is None else np.split(whole, world, axis)
    return [{name: part, "norm.weight": np.ones(WIDTH, np.float32)} for part in parts]


V = "vision_model.vision_encoder."
T = f"{V}transformer.resblocks.0."
AXES: dict[str, int | None] = {
    f"{V}conv1._linear.weight": 0, f"{V}class_embedding": None, f"{V}ln_post.weight": None,
    f"{V}gated_positional_embedding": None, f"{V}pre_tile_pos_embed.embedding": None,
    f"{T}attn.wq.weight": 0, f"{T}attn.wk.weight": 0, f"{T}attn.wv.weight": 0, f"{T}attn.wo.weight": 1,
    f"{T}attn.wo.bias": None, f"{T}mlp.c_fc.weight": 0, f"{T}mlp.c_fc.bias": 0, f"{T}mlp.c_proj.weight": 1,
    f"{T}mlp.c_proj.bias": None, f"{T}ln_1.weight": None, f"{V}global_transformer.resblocks.0.gate_attn": None,
    "vision_model.vision_projection.weight": 0, "text_model.output.weight": 0,
    "text_model.layers.0.attention.wq.weight": 0, "text_model.layers.0.attention.wo.weight": 1,
    "text_model.layers.0.feed_forward.w1.weight": 0, "text_model.layers.0.feed_forward.w2.weight": 1,
    "text_model.cross_attention_layers.0.attention.wk.weight": 0,
    "text_model.cross_attention_layers.0.attention.q_norm.weight": None,
    "text_model.cross_attention_layers.0.gate_ffwd": None,
    "text_model.cross_attention_layers.0.feed_forward.w3.weight": 0,
    "vision_embeddings.vision_adapter.mlp.c_fc.weight": 0, "vision_embeddings.vision_adapter.mlp.c_proj.weight": 1,
    "vision_projection.weight": 0, "layers.0.feed_forward.mlp.fc1.weight": 0,
    "layers.0.feed_forward.mlp.fc2.weight": 1, "layers.0.feed_forward.mlp.fc3.weight": 0, "output.bias": 0,
    "layers.0.feed_forward.global_gate_stats_3E": None, "layers.0.feed_forward.router_DE": None, "rope.freqs": None,
    "layers.0.feed_forward.shared_expert.w1.weight": 0, "layers.0.feed_forward.shared_expert.w2.weight": 1,
}  # fmt: skip
"""The axis along which ``reshard_mp`` of llama-models joins each name; None for copies."""


@pytest.mark.parametrize("world", [2, 4])
def test_each_layer_is_joined_along_its_axis(world: int, tmp_path: Path) -> None:
    table = np.arange(WIDTH * WIDTH, dtype=np.float32).reshape(WIDTH, WIDTH)
    whole = {name: table + number for number, name in enumerate(AXES)}
    ranks: list[dict[str, Any]] = [{} for _ in range(world)]
    for name, axis in AXES.items():
        for rank, part in zip(ranks, cut(name, axis, whole[name], world), strict=True):
            rank |= part
    found = sv.load(save_ranks(tmp_path / "x", ranks))
    for name, array in whole.items():
        np.testing.assert_array_equal(found[name], array, name)


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]), st.booleans())
def test_keys_and_values_of_few_heads_are_copied_to_neighbours(
    heads: int, world: int, is_stacked: bool
) -> None:
    """Law: the joined tensor has each head once, and copies that differ are found."""
    head, folder = 2, Path(tempfile.mkdtemp()) / "x"
    params = {"dim": 16, "n_heads": 8, "n_kv_heads": heads}
    keys = np.arange(heads * head * 16, dtype=np.float32).reshape(-1, 16)
    queries = -np.arange(256, dtype=np.float32).reshape(16, 16)
    ranks: list[dict[str, Any]] = []
    for rank in range(world):
        mine = np.split(keys, min(heads, world))[rank // max(world // heads, 1)]
        query, out = np.split(queries, world)[rank], np.split(queries, world, 1)[rank]
        stacked = {"wqkv": np.concatenate([query, mine, mine])}
        parts = stacked if is_stacked else {"wq": query, "wk": mine, "wv": mine}
        ranks.append({f"layers.0.attention.{n}.weight": a for n, a in {**parts, "wo": out}.items()})
    found = sv.load(save_ranks(folder, ranks, params))
    joined = {"wqkv": np.concatenate([queries, keys, keys])}
    expected = joined if is_stacked else {"wq": queries, "wk": keys, "wv": keys}
    for name, array in {**expected, "wo": queries}.items():
        np.testing.assert_array_equal(found[f"layers.0.attention.{name}.weight"], array)
    if world > heads:
        name = f"layers.0.attention.{'wqkv' if is_stacked else 'wk'}.weight"
        ranks[1][name] = ranks[1][name].copy()
        ranks[1][name][-1] += 1
        folder = save_ranks(folder.with_name("y"), ranks, params)
        assert any("different values" in str(each) for each in sv.verify(folder).damages)
        if not is_stacked:  # no checksum covers a part of a storage
            with pytest.raises(InvalidCheckpoint, match="different values"):
                sv.load(folder, [name])


def test_a_tensor_that_one_rank_lacks_is_incomplete_by_name(tmp_path: Path) -> None:
    ranks = cut("output.weight", 0, np.eye(WIDTH, dtype=np.float32), 2)
    del ranks[1]["output.weight"]
    ranks[0]["rope.freqs"] = np.ones(2, np.float32)
    folder = save_ranks(tmp_path / "x", ranks)
    with pytest.raises(IncompleteCheckpoint, match="output.weight.*consolidated.01.pth"):
        sv.load(folder)
    report = sv.verify(folder)
    assert any("rope.freqs" in str(each) for each in report.damages)


@pytest.mark.parametrize(
    ("name", "shapes", "words"),
    [
        ("output.weight", [(2, 8), (3, 8)], "Rank 0 has float32"),
        ("tok_embeddings.weight", [(2, 3), (2, 3)], "width of the model 8"),
        ("layers.0.attention.wqkv.weight", [(3, 8), (3, 8)], "queries, keys and values"),
        ("layers.0.feed_forward.mlp.fc1_weight", [(3, 8), (3, 8)], "3 rows are not"),
        ("layers.0.feed_forward.experts.moe_w_out_eF_D", [(3, 8), (3, 8)], "unknown tensors"),
    ],
)
def test_shapes_that_no_rule_explains_are_refused_by_name(
    name: str, shapes: list[tuple[int, ...]], words: str, tmp_path: Path
) -> None:
    norm = {"norm.weight": np.ones(WIDTH, np.float32)}
    folder = save_ranks(tmp_path / "x", [{name: np.ones(s, np.float32), **norm} for s in shapes])
    with pytest.raises(ShardvarError, match=words) as caught:
        sv.load(folder)
    assert name in str(caught.value)
    assert sv.load(folder, ["norm.weight"])


def test_one_file_with_params_is_the_model_and_any_other_one_is_a_file(tmp_path: Path) -> None:
    whole = {"layers.0.attention.wo.weight": np.eye(8, dtype=np.float32)}
    folder = save_ranks(tmp_path / "x", [whole], PARAMS)
    assert sv.load(folder).keys() == whole.keys()
    half = {"layers.0.attention.wo.weight": np.ones((8, 4), np.float32)}
    folder = save_ranks(tmp_path / "y", [half], PARAMS)
    with pytest.raises(MissingFile, match="consolidated.01.pth.*2 ranks"):
        sv.load(folder)
    (folder / "params.json").unlink()
    assert sv.load(folder)["layers.0.attention.wo.weight"].shape == (8, 4)


@pytest.mark.parametrize("value", [0, -2, "8", 1 << 70, True, 1.5])
def test_sizes_that_are_none_are_refused(value: Any, tmp_path: Path) -> None:
    ranks = cut("output.weight", 0, np.eye(WIDTH, dtype=np.float32), 2)
    folder = save_ranks(tmp_path / "x", ranks, {"dim": value})
    with pytest.raises(InvalidCheckpoint, match="'dim'"):
        sv.load(folder)


def test_the_joined_model_is_converted_with_the_map_of_one_rank(tmp_path: Path) -> None:
    folder = copied("torch_llama", "llama3", tmp_path)
    parts = [folder / f"consolidated.0{rank}.pth" for rank in range(2)]
    given = sv.Map.read("llama-meta-to-hf").extended((), {"head": 4})
    for source, target in ((folder, "joined.npz"), (parts, "ranks.npz")):
        sv.reshard(source, tmp_path / target, map=given, cast="float32")
    assert sv.diff(tmp_path / "joined.npz", tmp_path / "ranks.npz").equal
