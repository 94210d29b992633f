"""A rule means what ``einops`` does to the stacked sources, and its inverse goes the other way."""

import numpy as np
from hypothesis import given

from shardvar.maps.map import Map
from spec_tests.helpers.map_arrays import Arrays, Example, examples, map_arrays


def _same(found: Arrays, wanted: Arrays) -> bool:
    return found.keys() == wanted.keys() and all(
        found[key].dtype == wanted[key].dtype
        and found[key].shape == wanted[key].shape
        and found[key].tobytes() == wanted[key].tobytes()
        for key in wanted
    )


@given(examples())
def test_a_rule_is_what_einops_does_to_the_stacked_sources(example: Example) -> None:
    assert _same(
        map_arrays(Map(example.rule, sizes=example.sizes), example.sources), example.targets
    )


@given(examples())
def test_a_map_and_its_inverse_give_the_same_keys_shapes_and_bytes(example: Example) -> None:
    forth = Map(example.rule, sizes=example.sizes)
    assert _same(map_arrays(forth.inverse(), map_arrays(forth, example.sources)), example.sources)
    assert forth.inverse().inverse() == forth


def test_three_rules_fill_one_tensor() -> None:
    rules = [
        "q[(g s d) i] -> qkv[(g s d) i] @ s=0:r",
        "k[(g d) i] -> qkv[(g s d) i] @ s=r",
        "v[(g d) i] -> qkv[(g s d) i] @ s=r+1",
    ]
    fuse = Map(rules, sizes={"r": 2, "d": 4})
    q, k, v = (np.arange(n * 5.0).reshape(n, 5) + 1000 * n for n in (24, 12, 12))
    made = map_arrays(fuse, {"q": q, "k": k, "v": v})["qkv"]
    groups = [x.reshape(3, -1, 5) for x in (q, k, v)]
    assert np.array_equal(made, np.concatenate(groups, axis=1).reshape(48, 5))
    back = map_arrays(Map(fuse.inverse().rules, sizes={"r": 2, "d": 4, "g": 3}), {"qkv": made})
    assert _same(back, {"q": q, "k": k, "v": v})
