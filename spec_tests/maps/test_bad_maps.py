"""Maps that do not fit a checkpoint: each is refused with the rule, the key and the nearest thing,
before a value is read and before anything is written."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import MapError
from shardvar.maps.map import Map, fit_map


@dataclass(frozen=True)
class Bad:
    """A map that does not fit."""

    rules: list[str]
    tensors: Mapping[str, tuple[int, ...]]
    words: tuple[str, ...]
    """What the first problem says."""
    sizes: Mapping[str, int | str] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Of the tensors that are not float32."""


def layers(*numbers: int, shape: tuple[int, ...] = (4, 6)) -> dict[str, tuple[int, ...]]:
    return {f"l.{number}.w": shape for number in numbers}


def sized(*words: str, **sizes: int | str) -> Bad:
    """A map that is wrong by its sizes alone."""
    return Bad(["w[(n d)] -> w[n d]"], {"w": (10,)}, words, sizes)


SCALED = "w[(a p) (b q)] times s[a b] -> w[(a p) (b q)]"
PADDED = "e[v] -> w[v] @ v=0:vocab else {}"

BAD = {
    # Each source element is used once.
    "source that no rule matches": Bad(
        ["l.{l}.w -> x.{l}"],
        {"l.0.w": (2,), "l.0.bias": (2,)},
        ("'l.0.bias' is matched by no rule", "nearest is rule 1 'l.{l}.w", "'l.0.bias -> nothing'"),
    ),
    "glob": Bad(["m.* -> x.*"], {"m.a": (2,)}, ("'*' is a plain character: write {x:*}",)),
    "number that is a text": Bad(
        ["{l}.w -> x.{l}"],
        {"enc.w": (2,)},
        ("rule 1 '{l}.w -> x.{l}', where {l} is a number: write {l:*}",),
    ),
    "text with dots": Bad(
        ["{x:*}.w -> {x}.v"], {"a.b.w": (2,)}, ("without '.' and '/': write {x:**}. Add a rule",)
    ),
    "numbers that no rule takes": Bad(
        ["l.{l}.w @ l=0:1 -> x.{l}.w"],
        layers(0, 1),
        ("'l.1.w' is matched by no rule; rule 1", "matches its name and not its numbers"),
    ),
    "number with a zero in front": Bad(
        ["a -> b", "l.{l}.w -> x.{l}"], {"a": (2,), "l.00.w": (2,)}, ("'l.00.w' is matched by no",)
    ),
    "other capital letters": Bad(
        ["a -> b", "model.W -> y"],
        {"a": (2,), "model.w": (2,)},
        ("'model.w' is matched by no rule; the nearest is rule 2 'model.W -> y'",),
    ),
    "map of another model": Bad(
        ["model.layers.{l}.w -> x.{l}"],
        {"h.0.w": (2,), "h.1.w": (2,)},
        ("'h.0.w' is matched by no rule; the nearest is rule 1", "There is 1 more problem"),
    ),
    "map the wrong way": Bad(
        ["h.{l}.w -> x.{l}"],
        {"x.0": (2,)},
        ("No rule matches a key, and 'x.0' is one that the map makes", "--inverse"),
    ),
    "two rules that match a key": Bad(
        ["w -> a", "w -> b"],
        {"w": (2, 3)},
        (
            "'w': its element [0, 0] is used 2 times",
            "rule 1 'w -> a' and rule 2 'w -> b'",
            "'also'",
        ),
    ),
    "rows that no rule uses": Bad(
        ["w[v] @ v=0:4 -> a[v]", "w[v] @ v=5: -> b[v]"],
        {"w": (6,)},
        ("'w': its element [4] is used by no rule", "others are used by rule 1", "'-> nothing'"),
    ),
    # Each target element is filled once.
    "two sources with one name": Bad(
        ["a -> x", "b -> x"],
        {"a": (3,), "b": (3,)},
        ("'x': its element [0] is filled 2 times", "rule 1 'a -> x' from 'a'", "'b'", "'@'"),
    ),
    "rows without else": Bad(
        ["e[v h] -> w[v h] @ v=0:vocab"],
        {"e": (5, 2)},
        ("'w': its element [5, 0] is filled by no rule", "by rule 1 'e[v h]", "'else 0'"),
        {"vocab": 5, "v": 8},
    ),
    "number that no key has": Bad(
        ["l.{l}.w[o i] -> w[l o i]"],
        layers(0, 1, 3),
        ("'w': its element [2, 0, 0] is filled by no rule", "has l = 2 (the key 'l.2.w')"),
    ),
    "number that is very large": Bad(
        ["l.{l}.w[o i] -> w[l o i]"],
        layers(0, 999_999_999_999),
        ("has l = 1 (the key 'l.1.w')",),
    ),
    "targets that are very many": Bad(
        ["w[l o] -> l.{l}.w[o]"], {"w": (10**12, 0)}, ("'w' would become 1,000,000,000,000 ten",)
    ),
    "word that no key has": Bad(
        ["l.{s:q|k|v}.w[i] -> w[(s i)]"],
        {"l.q.w": (3,), "l.kk.w": (3,), "l.v.w": (3,)},
        ("has s = 1 (the key 'l.k.w')", "Did you mean 'l.kk.w', which no rule takes?"),
    ),
    # Extents.
    "size that does not divide": Bad(
        ["w[(n d) i] -> w[n d i]"],
        {"w": (10, 4)},
        ("Rule 1, 'w[(n d) i]", "'w' of [10, 4] has an axis (n d) of 10, which 4 does not divide"),
        {"n": 4},
    ),
    "sizes of another shape": Bad(
        ["w[(n d) i] -> w[n d i]"],
        {"w": (10, 4)},
        ("an axis (n d) of 10, not 12 (n = 4, d = 3)", "leave one of them out"),
        {"n": 4, "d": 3},
    ),
    "size of zero": sized("which 0 does not divide (n = 0)", n=0),
    "negative size": sized("The size n is -2", n=-2),
    "blocks of numbers without a size": Bad(
        ["l.{(b p)}.w -> x.{b}.{p}.w"], layers(0, 1), ("The number {(b p)}", "sizes of b, p")
    ),
    "number past the target's words": Bad(
        ["l.{l}.w -> {l:a|b}.w"], layers(0, 1, 2), ("'l.2.w' has l = 2, and l has the extent 2",)
    ),
    "copies past the target's words": Bad(
        ["also w[x] -> {r:a|b}.w[x]"],
        {"w": (3,)},
        ("'{r:a|b}.w[x]' has 2 values of r, and 'w' needs r = 2", "another range of r"),
        {"r": 3},
    ),
    "number past a factor's words": Bad(
        ["s.{l}[i] * {l:a|b}.w[i] -> x.{l}[i]"],
        {"s.0": (2,), "s.1": (2,), "s.2": (2,), "a.w": (2,), "b.w": (2,)},
        ("'{l:a|b}.w[i]' has 2 values of l, and 's.2' needs l = 2",),
    ),
    "number of a factor that has no word": Bad(
        ["{l:a|b}.w[i] * s.{l}[i] -> x.{l}[i]"],
        {"s.0": (2,), "s.1": (2,), "s.2": (2,), "a.w": (2,), "b.w": (2,)},
        ("'s.2' is matched by no rule; the nearest is rule 1",),
    ),
    "number below zero": Bad(
        ["l.{l}.w -> x.{l-1}.w"], layers(0, 1), ("'l.0.w' would get the number -1",)
    ),
    "ranges of two lengths": Bad(
        ["w[v] @ v=0:4 -> x[v] @ v=0:5"], {"w": (4,)}, ("'v' has 4 and 5 values on the two",)
    ),
    "range below zero": Bad(["w[v] @ v=-2: -> x[v]"], {"w": (9,)}, ("v=-2:", "count from 0")),
    "value past the end": Bad(
        ["w[(s d)] @ s=7 -> x[d]"], {"w": (10,)}, ("'w' of [10] has s = 2", "within 2"), {"d": 5}
    ),
    "range past the target that another rule makes": Bad(
        ["a[c] -> q[c]", "b[c] -> q[c] @ c=8:"],
        {"a": (8,), "b": (4,)},
        ("'q': rule 2 'b[c] -> q[c] @ c=8:' fills c=8:12", "is 8 by rule 1", "a range with '@'"),
    ),
    "factor of a number that no key has": Bad(
        ["e[n o] times s.{n}[o] -> e[n o]"],
        {"e": (3, 2), "s.0": (2,), "s.1": (2,)},
        ("'e' of [3, 2] has an axis n of 3, not 2",),
    ),
    "else without an extent": Bad(
        [PADDED.format(0)],
        {"e": (5,)},
        ("'w': the extent of v is not known, so 'else' of rule 1", "--size v=N"),
        {"vocab": 5},
    ),
    # Shapes.
    "more axes than a side has": Bad(
        ["w[i o] -> y[o i]"],
        {"w": (2, 4, 3)},
        ("'w' has the shape [2, 4, 3], of 3 axes, and 'w[i o]' has 2", "'...'"),
    ),
    "axis that is not one": Bad(
        ["w[a 1] -> w[a]"], {"w": (2, 3)}, ("'w' of [2, 3] has an axis 1 of 3, not 1",)
    ),
    "shapes that cannot be stacked": Bad(
        ["h.{l}.w[o i] -> w[l o i]"],
        {"h.0.w": (3, 3), "h.1.w": (4, 3)},
        ("'w': its axis 1 has 3 by rule 1", "from 'h.0.w', and 4 by", "from 'h.1.w'"),
    ),
    "rules of two ranks": Bad(
        ["a[i] -> x[(s i)] @ s=0", "b[i o] -> x[(s i) o] @ s=1"],
        {"a": (3,), "b": (3, 2)},
        ("'x': rule 1 'a[i]", "makes 1 axes, and rule 2 'b[i o]", "makes 2"),
    ),
    # Dtypes.
    "two dtypes in one target": Bad(
        ["a[i] -> x[(s i)] @ s=0", "b[i] -> x[(s i)] @ s=1"],
        {"a": (3,), "b": (3,)},
        ("'x': it is made of tensors of several dtypes", "'a' of float32 by rule 1", "--cast"),
        dtypes={"b": "float16"},
    ),
    "factor of integers": Bad(
        ["w[a] times s[a] -> x[a]"],
        {"w": (2,), "s": (2,)},
        ("'s' is used by no rule: 's' is of dtype int8, and rule 1",),
        dtypes={"s": "int8"},
    ),
    "else that is too large": Bad(
        [PADDED.format(300)],
        {"e": (5,)},
        ("'w': rule 1", "'else 300' does not fit the dtype uint8"),
        {"vocab": 5, "v": 8},
        {"e": "uint8"},
    ),
    "else that is a word": Bad(
        [PADDED.format("zero")],
        {"e": (5,)},
        ("'else zero' is not a number",),
        {"vocab": 5, "v": 8},
    ),
    "two numbers of else": Bad(
        ["a[i] -> x[(s i)] @ s=0 else 0", "b[i] -> x[(s i)] @ s=1 else 1"],
        {"a": (3,), "b": (3,)},
        ("'x': rule 1", "and rule 2", "fill it with different numbers", "Write one 'else'"),
        {"s": 3},
    ),
    # Factors and constants.
    "factor that is not there": Bad(
        ["l.{l}.w[a] times l.{l}.w_scale_inv[a] -> l.{l}.w[a]", "l.{l}.w_scale -> nothing"],
        {"l.0.w": (2,), "l.0.w_scale": (2,), "l.1.w": (2,), "l.1.w_scale": (2,)},
        (
            "'l.0.w' is used by no rule; rule 1",
            "would use it with 'l.0.w_scale_inv', which is not there; the nearest is 'l.0.w_scale'",
        ),
    ),
    "factor of another shape": Bad(
        [SCALED],
        {"w": (256, 128), "s": (3, 1)},
        ("Rule 1", "a is 2 in 'w' of [256, 128] and 3 in 's' of [3, 1]. One index has one extent"),
        {"p": 128, "q": 128},
    ),
    "constant without a size": Bad(
        ["w plus one -> x"],
        {"w": (2,)},
        (
            "'x': rule 1",
            "one has no brackets, so it is a size",
            "one[...]",
            "--size one=N",
        ),
    ),
    "sources of several dtypes": Bad(
        ["mean(n: {n}/w) -> w"],
        {"0/w": (2,), "1/w": (2,)},
        ("The sources differ in dtype: ", "Write 'as float32'"),
        dtypes={"1/w": "float16"},
    ),
    "integers that no rule takes": Bad(
        ["mean(n: {n}/{x:**}) -> {x}"],
        {"0/steps": (), "1/steps": ()},
        ("'0/steps' is used by no rule: '0/steps' is of dtype int64, and rule 1", "-> nothing"),
        dtypes={"0/steps": "int64", "1/steps": "int64"},
    ),
    "delta without a base": Bad(
        ["0/{x:**}.w[o i] + 1/m.{x}.B[o r] 1/m.{x}.A[r i] -> {x}.w[o i]", "rest 0/{x:**} -> {x}"],
        {"0/a.q.w": (4, 4), "1/m.q.A": (2, 4), "1/m.q.B": (4, 2)},
        (
            "'1/m.q.A' is used by no rule; rule 1",
            "would use it with '0/q.w', which is not there; the nearest is '0/a.q.w'",
            "Strip or add a prefix",
        ),
    ),
    "two rules for one sum": Bad(
        ["W[o i] + A[o i] -> W[o i]", "also W[o i] + B[o i] -> W[o i]"],
        {"W": (2, 2), "A": (2, 2), "B": (2, 2)},
        ("'W': its element [0, 0] is filled 2 times, by rule 1",),
    ),
    "source that lacks a tensor": Bad(
        ["mean(n: {n}/w) -> w"],
        {"0/w": (2,), "1/w": (2,), "3/w": (2,)},
        ("'0/w' is used by no rule; rule 1", "would use it with '2/w', which is not there"),
        {"n": 4},
    ),
    "power of a tensor": Bad(
        ["W[o] ** 9 -> W[o]"], {"W": (2,)}, ("This power of a tensor", "from -8 to 8, or 0.5")
    ),
    "list without an element": Bad(
        ["w * W[o] -> W[o]"], {"W": (2,)}, ("The size w is a list", "w(n)"), {"w": [1, 2]}
    ),
    "element that a list lacks": Bad(
        ["sum(n: w(n) * {n}/x) -> x"],
        {"0/x": (2,), "1/x": (2,), "2/x": (2,)},
        ("The size w has 2 numbers, and n is 2",),
        {"w": [1, 2]},
    ),
    "constant without a value": Bad(
        ["w times 1 / 0 -> x"], {"w": (2,)}, ("A constant has no value",)
    ),
    # Sizes.
    "size that is not given": Bad(
        ["w[v] @ v=0:words -> x[v]", "w[v] @ v=words: -> nothing"],
        {"w": (9,)},
        ("Rule 1", "The size words is not given", "sizes={'words': N}"),
    ),
    "size that is misspelt": Bad(
        ["w[v] @ v=0:vocabsize -> x[v]", "w[v] @ v=vocabsize: -> nothing"],
        {"w": (9,)},
        ("The size vocab_size is used by no rule", "Did you mean 'vocabsize'?"),
        {"vocab_size": 5},
    ),
    "size that nothing uses": sized(
        "The size heads is used by no rule", "leave it out", n=5, heads=3
    ),
    "sizes in a circle": sized(
        "sizes.n: The sizes n -> m -> n depend on each other", "as a number", n="m", m="n"
    ),
    "size of another that is not there": sized("sizes.n: The size heads is not", n="heads * 2"),
    "size with a remainder": sized(
        "sizes.n: The size 'h / 3' is not an integer: 10 / 3", n="h / 3", h=10
    ),
    "size that is a float": sized("The size '2.5' is not an int", n="2.5"),
    "size that is enormous": sized("is too large", n="9999999999 * 9999999999"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_map_that_does_not_fit_is_refused_before_a_value_is_read(
    kind: str, tmp_path: Path
) -> None:
    bad = BAD[kind]
    arrays = {
        key: np.ones(shape, bad.dtypes.get(key, "float32")) for key, shape in bad.tensors.items()
    }
    sv.save(tmp_path / "source", arrays)
    # A read of these values would find that their checksums are wrong.
    for path in tmp_path.glob("source*-of-*"):
        path.write_bytes(bytes(byte ^ 255 for byte in path.read_bytes()))
    before = sorted(tmp_path.iterdir())
    given = Map(bad.rules, sizes=bad.sizes)
    with pytest.raises(MapError) as caught:
        sv.reshard(tmp_path / "source", tmp_path / "target", map=given)
    for word in bad.words:
        assert word in str(caught.value)
    assert caught.value.remedy
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(MapError) as again:
        sv.load(tmp_path / "source", map=given)
    assert str(again.value) == str(caught.value)


def test_the_damage_would_be_found_by_a_reader(tmp_path: Path) -> None:
    sv.save(tmp_path / "source", {"w": np.ones(3, "float32")})
    (data,) = tmp_path.glob("source*-of-*")
    data.write_bytes(bytes(byte ^ 255 for byte in data.read_bytes()))
    with pytest.raises(sv.errors.CorruptCheckpoint):
        sv.load(tmp_path / "source")


def _problems(rules: list[str], tensors: Mapping[str, Any]) -> tuple[str, ...]:
    about = {key: ("float32", shape) for key, shape in tensors.items()}
    found = fit_map(Map(rules), about, (), {}, "nowhere")
    return tuple(each.cause for each in found.problems)


def test_one_problem_does_not_hide_another() -> None:
    found = _problems(
        ["a[i j] -> x[j i]", "b[(n d)] -> b[n d]", "c -> z", "d -> z"],
        {"a": (3,), "b": (4,), "c": (2,), "d": (2,)},
    )
    assert [each[:7].rstrip(",") for each in found] == ["Rule 1", "Rule 2", "'z': it"]


def test_a_misspelt_rule_is_named_itself_and_is_a_problem_of_its_own() -> None:
    at = "model.layers.{l}.self_attn."
    rules = [f"{at}{{s:k|v|o}}_proj.weight -> {{l}}.{{s:k|v|o}}", f"{at}q_porj.weight -> {{l}}.q"]
    keys = [f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkvo"]
    key, misspelt = _problems(["norm -> n", *rules], dict.fromkeys(keys, (2,)))
    assert "q_proj.weight' is matched by no rule; the nearest is rule 3" in key
    assert misspelt.startswith(
        f"Rule 3, {rules[1]!r}, matches no key, and is most like {keys[0]!r}"
    )


FILTERS = {
    "key of the target": (
        "a.0.*",
        "filter and exclude take keys of the source, and 'a.0.q' is one",
    ),
    "key of neither": ("b.*", "No tensor matches b.*."),
}


@pytest.mark.parametrize("kind", FILTERS)
def test_a_filter_says_whose_keys_it_takes(kind: str, tmp_path: Path) -> None:
    given, words = FILTERS[kind]
    sv.save(tmp_path / "m.npz", {"l.0.q": np.ones(2), "l.1.q": np.ones(2)})
    with pytest.raises(sv.errors.ShardvarError) as caught:
        sv.reshard(tmp_path / "m.npz", tmp_path / "n.npz", map=["l.{l}.q -> a.{l}.q"], filter=given)
    assert words in str(caught.value)


def test_a_missing_size_is_not_called_a_circle_by_the_next_rule() -> None:
    found = _problems(["a[v] @ v=0:n -> x[v]", "b[v] @ v=0:n -> y[v]"], {"a": (3,), "b": (3,)})
    assert [each.rpartition(": ")[2] for each in found] == ["The size n is not given."] * 2


@given(st.text("a0_./-'\"[](){}` ->*|:\u20ac", min_size=1, max_size=8) | st.just("also"))
def test_the_rule_that_leaves_a_key_out_is_one_for_any_key(key: str) -> None:
    facts = {key: ("float32", (2,))}
    (problem,) = fit_map(Map([]), facts, (), {}, "nowhere").problems
    rule = problem.remedy.partition("leave it out: '")[2].removesuffix("'.")
    assert not fit_map(Map([rule]), facts, (), {}, "nowhere").problems
