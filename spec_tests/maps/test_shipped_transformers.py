"""The shipped maps between the files of transformers and its memory, without transformers.

``spec_tests/peers/test_transformers_maps_peer.py`` holds them against transformers itself.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from shardvar.maps.map import family_name, find_shipped, shipped_maps
from spec_tests.helpers.map_arrays import map_arrays
from spec_tests.helpers.shipped_maps import shipped, synthetic, with_numbers

FAMILIES = Path(__file__).parents[1] / "map_generators" / "families.json"
NAMES = [name for name in shipped_maps() if name.endswith("-hf-to-transformers")]


def test_each_family_is_there_that_the_generator_lists() -> None:
    """Several have one file; and a class whose keys mean something else has a map before it."""
    families = json.loads(FAMILIES.read_text(encoding="utf-8"))["maps"]
    found = [find_shipped(f"{family_name(family)}-hf-to-transformers") for family in families]
    assert {*found} <= {*NAMES} and len(found) > 100
    models = [model for name in NAMES for model in shipped(name).family.models]
    assert len(models) == len({*models}) > 500


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NAMES)
def test_a_map_and_its_inverse_give_the_same_bytes(name: str) -> None:
    given = with_numbers(shipped(name), {})
    assert given.about.endswith(".")
    files = synthetic(given)
    memory = map_arrays(given, files)
    assert sorted(x for a in memory.values() for x in a.flat) == list(
        range(sum(a.size for a in files.values()))
    )
    back = map_arrays(given.inverse(), memory)
    assert back.keys() == files.keys()
    for key, array in files.items():
        np.testing.assert_array_equal(back[key], array)


def test_mixtral_is_stacked_in_the_order_of_its_experts() -> None:
    rng = np.random.default_rng(3)
    layers = "model.layers"
    files = {
        f"{layers}.{layer}.block_sparse_moe.experts.{e}.{w}.weight": rng.normal(size=shape)
        for layer in range(2)
        for e in range(11)
        for w, shape in (("w1", (6, 5)), ("w2", (5, 6)), ("w3", (6, 5)))
    } | {f"{layers}.{layer}.block_sparse_moe.gate.weight": np.ones((11, 5)) for layer in range(2)}
    memory = map_arrays(shipped("mixtral-hf-to-transformers"), files)
    assert len(memory) == 6
    of = f"{layers}.1.block_sparse_moe.experts."
    np.testing.assert_array_equal(
        memory[f"{layers}.1.mlp.experts.gate_up_proj"],
        [
            np.concatenate([files[f"{of}{e}.w1.weight"], files[f"{of}{e}.w3.weight"]])
            for e in range(11)
        ],
    )
    np.testing.assert_array_equal(
        memory[f"{layers}.1.mlp.experts.down_proj"],
        [files[f"{of}{e}.w2.weight"] for e in range(11)],
    )
