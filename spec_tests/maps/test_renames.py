"""Rules that only rename: all keys of a rule at once give what one key after the other gives."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from shardvar.maps import fitting
from shardvar.maps.fitting import Fit
from shardvar.maps.map import Map, fit_map
from shardvar.maps.plan import Target

SIDES = [
    ("h.{l}.{s:q|k}", "x.{l}.{s:a|b}.w"),
    ("h.{l}.{s:q|k}[...]", "x.{s:a|b}.{l + 1}[...]"),
    ("h.{l + 1}.q", "x%.{l}"),
    ("h.{l}.q[o i]", "y.{l - 1}[o i]"),
    ("h.{l}.k[(a b) ...]", "'100%'.{l}[(a b) ...]"),
    ("h.{l}.q @ l=1:3", "x.{l}.a.w @ l=2:4"),
    ("h.{l}.{s:q|k} @ l=0", "first.{s:a|b}"),
    ("h.{l}.q", "x.{l}.a.w @ l=1:2"),
    ("h.{(b p)}.q", "x.{b}.{p}"),
    ("h.{l}.{x:*}", "z.{x}.{l}"),
    ("{x:**}", "all.{x}"),
    ("h.0.{s:q|k}", "w.{s:q|k|v}"),
    ("h.{l}.{s:q|k}", "e.{s:q|k}.{l} else 0"),
    ("h.{l}.k[o i]", "t.{l}[i o]"),
    ("h.{l}.k", "nothing"),
]
"""Sides of rules; some renames fit no key, or make names that others make as well."""

FITTING = [
    ["h.{l}.{s:q|k} -> x.{l}.{s:a|b}.w"],
    ["h.{l}.{s:q|k}[o ...] -> x.{s:a|b}.{l + 3}[o ...]"],
    ["h.{l}.{x:*} -> 100%.{x}.{l}"],
    ["{x:**} -> {x}", "also h.0.q -> y"],
    ["h.{l}.q -> x.{l}", "h.{l}.k -> y.{l}[...]"],
    ["h.{l}.q -> x.{l}", "h.{l}.k[a ...] -> y[l a ...]"],
    ["h.{l}.{s:q|k} @ l=:2 -> x.{l}.{s:a|b}", "h.{l}.{s:q|k} @ l=2: -> y.{l}.{s:q|k}"],
    ["h.{l}.{s:q|k} @ l=0 -> x.{s:k|q}", "h.{l}.{s:q|k} @ l=1: -> y.{l + 1}.{s:q|k}"],
    ["h.{l}.{s:q|k} @ l=:1 -> h.{l}.{s:k|q} @ l=3:4", "h.{l}.{x:*} @ l=1: -> {x}.{l}"],
    ["h.{(b p)}.{s:q|k} -> x.{b}.{p}.{s:q|k}"],
    ["{x:**} -> {x}", "h.{l}.q -> z.{l}"],
    ["h.{l}.q -> x.{l}", "h.{l}.k -> x.{l}"],
    ["h.{l}.q -> x.{l}", "h.{l}.k[a ...] -> x.{l}[... a]"],
]
"""Rules that take each key of all layers once, if no size is wrong; the last three are at odds."""

RULES = st.sampled_from(FITTING) | st.lists(
    st.builds(
        lambda sides, also: also * (sides[1] != "nothing") + " -> ".join(sides),
        st.sampled_from(SIDES),
        st.sampled_from(["", "", "also "]),
    ),
    min_size=1,
    max_size=3,
)
KEY = st.builds("h.{}.{}".format, st.integers(0, 4), st.sampled_from("qkv"))
KEYS = st.integers(0, 4).map(lambda n: [f"h.{each}.{word}" for each in range(n) for word in "qk"])
FEW = st.just(list[str]()) | st.lists(KEY, unique=True, max_size=2)
NAMES = st.sampled_from(["l", "o", "a", "p"])


@given(RULES, KEYS | st.lists(KEY, unique=True, max_size=6), FEW, st.data())
def test_names_of_all_keys_are_the_names_of_each(
    rules: list[str], keys: list[str], objects: list[str], data: st.DataObject
) -> None:
    """The targets, the problems and the numbers of matches; also of objects, which have no shape."""
    used = {name for rule in Map(rules).parsed for name in rule.names()}
    sizes = data.draw(st.just({}) | st.dictionaries(NAMES, st.integers(0, 4), max_size=1))
    given_map = Map(rules, sizes={name: size for name, size in sizes.items() if name in used})
    shapes = data.draw(st.sampled_from([[(2, 3)], [(6,)], [(0, 2), (4,)], [(1, 1, 4)]]))
    tensors = {key: ("int8", data.draw(st.sampled_from(shapes))) for key in keys}
    others = [key for key in objects if key not in tensors]

    def fit() -> Fit:
        return fit_map(given_map, tensors, others, {}, "nowhere")

    def targets(found: Fit) -> list[Target]:
        return sorted(found.plan.every_target(), key=lambda target: target.key)

    fast = fit()
    with patch.object(fitting, "is_rename", lambda _rule: False):
        plain = fit()
    assert sorted(map(repr, fast.problems)) == sorted(map(repr, plain.problems))
    if not plain.problems:
        assert targets(fast) == targets(plain) and fast.matches == plain.matches
        assert (fast.renamed, fast.plan.left_out) == (plain.renamed, plain.plan.left_out)
    assert not plain.plan.names
