"""A rule means what ``einops`` does to the stacked sources, and its inverse goes the other way."""

import numpy as np
import pytest
from hypothesis import given

from shardvar.errors import MapError
from shardvar.maps.map import Map
from spec_tests.helpers.map_arrays import Example, assert_same, examples, map_arrays


@given(examples())
def test_a_rule_is_what_einops_does_to_the_stacked_sources_and_its_inverse_leads_back(
    example: Example,
) -> None:
    forth = Map(example.rule, sizes=example.sizes)
    assert_same(map_arrays(forth, example.sources), example.targets)
    assert_same(map_arrays(forth.inverse(), example.targets), example.sources)
    assert forth.inverse().inverse() == forth == eval(repr(forth))  # noqa: S307


def test_the_inverse_knows_the_extent_that_all_ranges_of_an_index_have() -> None:
    """Of an axis (g s d) with d = 4, the rules say together that s has r + 2 values."""
    q, k, v = (np.arange(n * 5.0).reshape(n, 5) + 1000 * n for n in (24, 12, 12))
    arrays = {"0.q": q, "0.k": k, "0.v": v}
    fuse = Map(
        [
            "{l}.q[(g s d) i] -> {l}.qkv[(g s d) i] @ s=0:r",
            "{i}.k[(g d) j] -> {i}.qkv[(g s d) j] @ s=r",
            "{l}.v[(g d) i] -> {l}.qkv[(g s d) i] @ s=r+1",
        ],
        sizes={"r": 2, "d": 4},
    )
    # An axis of another name is another axis, so nothing is known of s then.
    with pytest.raises(MapError, match="sizes of g, s are not known"):
        map_arrays(fuse.inverse(), map_arrays(fuse, arrays))
    rules = [rule.replace("{i}", "{m}").replace(" j]", " i]") for rule in fuse.rules]
    fuse = Map(rules, sizes={"r": 2, "d": 4})
    back = fuse.inverse()
    assert_same(map_arrays(back, map_arrays(fuse, arrays)), arrays)
    longer = back.extended(["norm -> scale"])
    norm = {"norm": np.ones(3)}
    made = map_arrays(longer, {**map_arrays(fuse, arrays), **norm})
    assert_same(made, {**arrays, "scale": norm["norm"]})


def test_an_open_range_gives_the_inverse_no_extent() -> None:
    pad = Map(["a[(g s)] -> w[(g s)] @ s=0:2", "b[(g s)] -> w[(g s)] @ s=2:"], sizes={"s": 5})
    arrays = {"a": np.arange(4.0), "b": np.arange(6.0)}
    made = map_arrays(pad, arrays)
    assert made["w"].tolist() == [0, 1, 0, 1, 2, 2, 3, 3, 4, 5]
    assert_same(map_arrays(pad.inverse(), made), arrays)
    unsized = Map(pad.rules)
    with pytest.raises(MapError, match="not known"):
        map_arrays(unsized.inverse(), made)
