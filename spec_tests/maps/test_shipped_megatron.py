"""The shipped maps between Hugging Face's files and Megatron-core's, against formulas in NumPy.

``spec_tests/peers/test_megatron_maps_peer.py`` compares their keys and shapes with Megatron-core.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from shardvar.errors import MapError
from shardvar.maps.map import Map, fit_map, shipped_maps
from spec_tests.helpers.map_arrays import assert_same, map_arrays
from spec_tests.helpers.megatron_checkpoints import (
    CONFIG,
    DENSE_FIRST,
    FAMILIES,
    SIZES,
    hugging_face,
    megatron,
)
from spec_tests.map_generators import megatron_maps


def read(name: str, **sizes: int) -> Map:
    given = Map.read(name)
    wanted = {**SIZES, **sizes}
    return given.extended(sizes={n: s for n, s in wanted.items() if n in given.sizes})


@pytest.mark.parametrize("layout", ["megatron", "megatron-layers"])
@pytest.mark.parametrize("family", FAMILIES)
def test_both_directions_are_what_the_formulas_say(family: str, layout: str) -> None:
    is_stacked = layout == "megatron"
    num_dense = 0 if is_stacked or family not in DENSE_FIRST else 1
    files = hugging_face(family, num_dense)
    stored = megatron(family, files, is_stacked)
    frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    made = map_arrays(read(f"{family}-hf-to-{layout}", k=num_dense), files | frequencies)
    assert_same(made, stored)
    states = {"optimizer.state.exp_avg.output_layer.weight": np.ones(3, np.float32)}
    assert_same(map_arrays(read(f"{family}-{layout}-to-hf"), stored | states), files)


def test_a_vocabulary_without_padding_is_copied_in_both_directions() -> None:
    files = hugging_face("llama")
    made = map_arrays(read("llama-hf-to-megatron", v=SIZES["vocab"]), files)
    assert made["output_layer.weight"].shape == files["lm_head.weight"].shape
    assert_same(map_arrays(read("llama-megatron-to-hf"), made), files)


def test_biases_of_queries_keys_and_values_follow_the_weights() -> None:
    files = hugging_face("llama")
    random = np.random.default_rng(2)
    for layer in range(3):
        for name in "qkv":
            of = f"model.layers.{layer}.self_attn.{name}_proj"
            rows = len(files[f"{of}.weight"])
            files[f"{of}.bias"] = random.normal(size=rows).astype(np.float32)
            files[f"{of}.weight"][:, 0] = files[f"{of}.bias"]
    made = map_arrays(read("llama-hf-to-megatron"), files)
    of = "decoder.layers.self_attention.linear_qkv"
    np.testing.assert_array_equal(made[f"{of}.bias"], made[f"{of}.weight"][:, :, 0])
    assert_same(map_arrays(read("llama-megatron-to-hf"), made), files)


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_come_from_config_json(family: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    files = hugging_face(family, num_dense=1 if family in DENSE_FIRST else 0)
    tensors = {key: ("float32", array.shape) for key, array in files.items()}
    found = fit_map(Map.read(f"{family}-hf-to-megatron-layers"), tensors, (), {}, str(tmp_path))
    assert found.problems == ()


def test_a_model_with_dense_layers_has_no_stacked_layers() -> None:
    """The map refuses it, and does not renumber the layers."""
    with pytest.raises(MapError, match=r"no key .* has l = 0"):
        map_arrays(read("deepseek-v3-hf-to-megatron"), hugging_face("deepseek-v3", num_dense=1))


def test_the_files_are_what_the_generator_writes() -> None:
    written = {path.stem: path.read_text("utf-8") for path in megatron_maps.MAPS.glob("*megatron*")}
    for name in FAMILIES:
        for is_stacked, other in ((True, "megatron"), (False, "megatron-layers")):
            for ends in (("hf", other), (other, "hf")):
                text = megatron_maps.text_of(name, is_stacked, ends[0] == "hf")
                assert written.pop(f"{name}-{ends[0]}-to-{ends[1]}") == text
    assert not [name for name in written if "-megatron" in name]
    assert len([name for name in shipped_maps() if "megatron" in name]) == 4 * len(FAMILIES)
