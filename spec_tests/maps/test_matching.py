"""Keys and patterns: which patterns match which keys, and which key or rule was probably meant."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import MapError
from shardvar.maps.language import parse_rule
from shardvar.maps.map import Map, fit_map
from shardvar.maps.matching import likeness, match_keys, nearest_key, nearest_rule
from shardvar.maps.proof import MOST_PROBLEMS
from spec_tests.helpers.map_arrays import map_arrays

PATTERNS = [
    "l.{n}.w",
    "l.{n}.{p:q1|k1}",
    "{p:1q|2q}.l{n}",
    "{x:*}.w",
    "{x:**}",
    "l.1.w",
    "a{n}b{m}",
    "{p:q1|k}{n}.w",
]
KEYS = st.text("l.1290qkwab/#", min_size=1, max_size=8)
NEAR = st.sampled_from(
    ["l.0.w", "l.12.q1", "l.2.k1", "1q.l07", "2q.l3", "#.w", "a1b22", "l#.w", "q12.w", "k7.w"]
)


@given(st.lists(KEYS | NEAR, unique=True, max_size=9))
def test_a_key_has_the_patterns_whose_expressions_it_matches(keys: list[str]) -> None:
    """Keys are grouped by their texts apart from digits, and no group hides a pattern."""
    patterns = [parse_rule(f"{text} -> nothing", 0).source.key for text in PATTERNS]
    found = {key: [row for row, _ in rows] for key, rows in match_keys(patterns, keys)}
    assert found == {
        key: [row for row, one in enumerate(patterns) if re.fullmatch(one.expression(), key)]
        for key in keys
    }


def test_the_nearest_key_is_looked_for_first_among_those_of_the_same_module() -> None:
    assert nearest_key("a.b.wx", ["z.b.wx", "a.b.wyy"]) == "a.b.wyy"
    assert nearest_key("a.b.wx", ["z.b.wx", "a.b.1234567"]) == "z.b.wx"
    assert nearest_key("wx", ["z.b.wx", "wxx"]) == "wxx"
    assert nearest_key("wx", []) == ""


def test_the_nearest_rule_is_spelled_most_like_the_key_apart_from_numbers() -> None:
    texts = ("l.{n}.weight", "l.7.bias", "{x:*}.other")
    rules = [parse_rule(f"{text} -> nothing", 0) for text in texts]
    assert likeness("l.12.weight", rules[0]) == likeness("l.34.bias", rules[1]) == 1.0
    assert [nearest_rule(f"l.12.{name}", rules, ()) for name in ("weigth", "bias")] == [0, 1]
    assert nearest_rule("l.12.weigth", rules, {1}) == 0


def test_each_of_many_keys_without_a_rule_is_a_problem() -> None:
    """The ones that are shown have a remedy."""
    tensors = dict.fromkeys(("a", *map("z{}q".format, range(40))), ("int8", (1,)))
    problems = fit_map(Map(["a -> b"]), tensors, (), {}, "nowhere").problems
    assert all("is matched by no rule" in each.cause for each in problems)
    assert [bool(each.remedy) for each in problems] == [n < MOST_PROBLEMS for n in range(40)]


def test_an_element_that_is_filled_often_names_three_of_the_rules() -> None:
    arrays = {key: np.zeros(2) for key in "abcd"}
    with pytest.raises(
        MapError, match=r"filled 4 times, by rule 1 .* and rule 2 .* 'c'\."
    ) as caught:
        map_arrays(Map([f"{key} -> w" for key in arrays]), arrays)
    assert "'d'" not in caught.value.cause
