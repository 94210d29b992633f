"""Rules, sizes and map files that cannot be read: each is refused with the place and a remedy."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardvar.errors import ArgumentTypeError, MapError
from shardvar.maps.expressions import parse_expression
from shardvar.maps.map import Map, fit_map, shipped_maps
from spec_tests.helpers.shipped_maps import shipped

RULES = {
    # The parts of a rule.
    "no arrow": ("w x", "character 4", "' -> ' is missing", "Write 'KEY[axes] -> KEY[axes]'"),
    "arrow without spaces": ("w->x", "' -> ' is missing", "a space on both sides"),
    "no source": ("-> x", "character 1", "Expected a key, found '-> x'"),
    "no target": ("w ->", "character 5", "Expected a key, found the end of the rule"),
    "empty": ("  ", "Rule 1, ''", "Expected a key"),
    "two targets": ("w -> x -> y", "character 8", "found '-> y'", "A rule has one target"),
    "words after the target": ("w -> x y", "character 8", "found 'y'"),
    "very long": ("w" * 10_001, "has 10,001 characters", "At most 10,000"),
    # Keys.
    "brace not closed": ("w.{l -> x.{l}", "character 3", "'{' is not closed", "Write '}'"),
    "brace not opened": ("w.l} -> x", "character 4", "A key has '}'", "in quotes"),
    "function": ("a -> -exp(n)", "character 10", "A key has '('", "in quotes"),
    "function of a size": ("log(b) -> a", "b has no brackets, so it is a size", "b[...]"),
    "quote not closed": ("'w x -> y", "character 1", "A quote is not closed", "Write '"),
    "part without a name": ("{:a|b}.w -> x", "character 1", "{:a|b} has no name", "{name:a|b}"),
    "part without words": ("w.{s:} -> x", "character 3", "{s:} has no words", "{name:*}"),
    "word twice": ("{s:a|a}.w[o] -> x[s o]", "{s:a|a} has a word twice", "each word once"),
    "part that is a number": ("w.{3} -> x", "{3} is not a part of a key", "Write {l}"),
    "part with two indices": ("w.{b p} -> x", "{b p} is not a part of a key", "{(b p)}"),
    "shift that is not one": ("w.{l+} -> x.{l}", "a number or a name is missing"),
    "adjacent numbers": ("{a}{b}.w -> x.{a}.{b}", "follow each other", "text between them"),
    "two open texts": ("{a:**}.{b:**} -> {b}.{a}", "has two parts '**'"),
    # Axes.
    "bracket not closed": ("w[a b -> x[a b]", "character 2", "'[' is not closed", "Write ']'"),
    "bracket not opened": ("w a b] -> x[a b]", "character 6", "A key has ']'"),
    "group not closed": ("w[(a b] -> x[a b]", "character 3", "'(' is not closed", "Write ')'"),
    "group not opened": ("w[a b)] -> x[a b]", "character 6", "A ')' has no '('"),
    "empty group": ("w[() b] -> y[b]", "character 4", "A group is empty", "Write names in it"),
    "axes with commas": ("w[a, b] -> y[b a]", "character 3", "'a,' is not the name of an axis"),
    "axis that is a number": ("w[2 b] -> y[b 2]", "'2' is not the name", "sizes go to sizes"),
    "dots in a group": ("w[(... b)] -> y[... b]", "'...' is in a group", "outside of brackets"),
    "dots twice": ("w[... ...] -> y[...]", "character 7", "'...' is there twice"),
    "dots on one side": ("w[... i] -> y[i]", "'w[... i]' has '...' and 'y[i]' does not"),
    "too many axes": (
        f"w[{' '.join(f'a{n}' for n in range(33))}] -> x",
        "has 33 indices",
        "At most 32",
    ),
    # Indices.
    "index of the source only": ("w[o i] -> x[o]", "'i' of 'w[o i]' is missing", "@ i=0"),
    "index of the target only": ("w[o] -> x[o i]", "'i' of 'x[o i]' is missing", "@ i=0"),
    "axes on one side": ("w[i o] -> y", "The index 'i' of 'w[i o]' is missing"),
    "index twice in axes": ("w[o o] -> x[o]", "has the index 'o' twice", "each index stands once"),
    "index in key and axes": ("w.{o}[o i] -> x[o i]", "has the index 'o' twice"),
    "text as an index": ("{x:*}.w[i] -> w[x i]", "{x} of '{x:*}.w' is any text", "{x:a|b}"),
    "text of the source only": ("{x:*}.w -> w", "The text {x} of '{x:*}.w' is missing"),
    "index fixed on one side": ("w[s d] @ s=1 -> x[s d]", "'s' of 'x[s d]' is fixed by '@'"),
    # Ranges.
    "range without a name": ("w[v] @ 0:3 -> x[v]", "found '0:3 -> x[v]'", "'@ v=0:5'"),
    "range without a value": ("w[v] @ v -> x[v]", "character 8", "found 'v -> x[v]'", "'@ v=3'"),
    "range of another index": ("w[v] @ u=2 -> x[v]", "'u', which is not an index of 'w'", "are v"),
    "range twice": ("w[v] @ v=1:2, v=3 -> x[v]", "'@' has 'v' twice", "one range"),
    "expression that ends": ("w[v] @ v=2*: -> x[v]", "a number or a name is missing before ':'"),
    "expression not closed": ("w[v] @ v=0:(a -> x[v]", "')' is missing at its end"),
    # Words of other languages.
    "range among the axes": ("w[0:4 i] -> v[o i]", "'0:4' is not the name", "KEY[o i] @ o=0:4"),
    "two ranges without a comma": ("w[a b] @ a=0 @ b=1 -> v", "found '@ b=1", "by commas"),
    "minus": ("w minus 1 -> v", "found 'minus 1", "Write ' - '"),
    "divided": ("w divided by 2 -> v", "found 'divided", "or ' / '"),
    "none": ("w -> none", "'none' would be the name of a tensor", "'-> nothing'", "Quote"),
    "Nothing": ("w -> Nothing", "'Nothing' would be the name of a tensor"),
    "two names of one index": (
        "{s:a|b}[i] -> x[(t i)]",
        "The index 's' is only in '{s:a|b}[i]', and 't' only in 'x[(t i)]'",
        "one name",
    ),
    # Words of the language.
    "else without a number": ("e[v] -> w[v] @ v=0:2 else", "'else' has no number", "'else 0'"),
    "also with nothing": ("also w -> nothing", "'nothing' takes no arithmetic and no 'also'"),
    "times with nothing": ("w times 2 -> nothing", "'nothing' takes no arithmetic"),
    # Rules that compute.
    "index of one tensor": (
        "W[o i] + B[o r] -> W[o i]",
        "r is in one tensor, 'B[o r]'",
        "'sum(r: ...)'",
    ),
    "index of two terms": ("W[o i] + B[o i] -> W[o]", "i is in", "'sum(i: ...)'"),
    "index that is repeated": (
        "W[o i] * 2 -> W[o i j]",
        "No tensor has 'j'",
        "'also', and a size of j",
    ),
    "index that is moved away": ("k[(g s d) i] -> k[(g d) i]", "'s' of", "'mean(s: ...)'", "@ s=0"),
    "index that is moved to": (
        "W[o i] -> W[o i j]",
        "'j' of 'W[o i j]' is missing",
        "write 'also'",
    ),
    "sign without spaces": ("W[o i]+B[o i] -> W", "'+' has no space around it", "' + '"),
    "sizes that are tensors": ("W + s -> W", "W has no brackets, so it is a size", "W[...]"),
    "two factors after a division": (
        "s * W[o i] / a b[o] -> W[o i]",
        "Two factors follow '/'",
        "'/ (a * b)'",
    ),
    "bracket of a function": ("exp(n", "found the end of the rule", "'(' is not closed"),
    "key with brackets": ("model.norm(1).w -> n", "A key has '('", "in quotes"),
    "unknown function": (
        "softmax(W[o i]) -> W[o i]",
        "at character 1:",
        "no function softmax",
        "There are exp, log, sqrt",
    ),
    "misspelt function": ("sqr(W[o i]) -> W[o i]", "no function sqr", "Did you mean sqrt?"),
    "no target of a product": ("W[o i] * 2", "' -> ' is missing"),
    "target that computes": ("W[o i] -> W[o i] * 2", "found '* 2'", "arithmetic left of '->'"),
    "dtype of the source": (
        "W[o i] as bfloat16 -> W[o i]",
        "found 'as bfloat16",
        "after the target",
    ),
    "unknown dtype": (
        "W[o i] -> W[o i] as bf16",
        "no floating-point dtype bf16",
        "Did you mean bfloat16?",
    ),
    "dtype of integers": (
        "W[o i] -> W[o i] as int8",
        "no floating-point dtype int8",
        "such as float32",
    ),
    "two indices that are one": (
        "W[o i] + s * B[o r] A[q i] -> W[o i]",
        "r is in one tensor, 'B[o r]', q is in one tensor, 'A[q i]'",
        "Did you mean one index? Name it alike.",
    ),
    "sources that are not summed": (
        "w(n) * {n}/x -> x",
        "n is a number of sources",
        "'sum(n: ...)'",
    ),
    "rule without a dtype": (
        "theta -> f[d]",
        "no tensor, so no dtype",
        "'as float32'",
        "d in sizes",
    ),
    "value that is not used": ("a -> $t", "its target is used by no rule", "without '$'"),
    "value that no rule computes": ("$t[i] * 2 -> a[i]", "'$t[i]' is computed by no rule"),
    "value with words": ("also a[i] -> $t[i]", "A '$' takes no 'also'"),
    "sum of nothing": ("sum(j: x[i]) -> y[i]", "Nothing in sum(j: ...) has j"),
    "sum over an index of the target": ("sum(i: x[i]) -> y[i]", "i is summed over, and is also"),
    "function with two arguments": ("exp(x[i], 2) -> y[i]", "exp has 2 arguments", "Give one"),
    "sum without an index": ("sum(x[i]) -> y", "Expected an index", "sum(j: x[i j])"),
    "text of another tensor": ("{x:*}.w[i] * a.{y:*}[i] -> {x}.{y}[i]", "lacks the text {y}"),
    "condition": ("w -> v if config:x", "'if' has no condition", "'if config:NAME = value'"),
    "very large constant": ("w[i] * 1e999999 -> v[i]", "is too large"),
}


def test_brackets_are_read_to_a_depth_of_twenty() -> None:
    Map(["(" * 20 + "w[i]" + ")" * 20 + " * 2 -> w[i]"])
    with pytest.raises(MapError, match="is nested too deep"):
        Map(["(" * 21 + "w[i]" + ")" * 21 + " * 2 -> w[i]"])


@pytest.mark.parametrize("kind", RULES)
def test_a_rule_that_breaks_the_grammar_is_refused(kind: str) -> None:
    rule, *words = RULES[kind]
    # The rule is named by its number in the map, and by its text unless it is very long.
    for rules, number in (([rule], 1), (["fine -> good", rule], 2)):
        with pytest.raises(MapError) as caught:
            Map(rules)
        named = str(caught.value).replace(f"Rule {number},", "Rule 1,")
        assert named.startswith(f"Rule 1, {rule.strip()[:40]!r}"[:-1])
        for word in words:
            assert word in named
        assert caught.value.remedy


ARGUMENTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "rule that is a number": ({"rules": ["a -> b", 3]}, ("Rule 2 is 3", "not a text")),
    "exact with plus": (
        {"rules": ["a -> b", "n plus 1 -> n"], "exact": True},
        ("Rule 2, 'n plus 1 -> n'", "computes, and the map is exact", "Remove the rule"),
    ),
    "exact with times": ({"rules": ["n times 2 -> n"], "exact": True}, ("Rule 1", "is exact")),
    "size with a space": ({"sizes": {"n d": 2}}, ("'n d' is not the name of a size",)),
    "size that is true": ({"sizes": {"n": True}}, ("The size n is True, not a number",)),
    "size that is infinite": ({"sizes": {"n": 1e999}}, ("n is inf, not a number", "config:NAME")),
    "size that is an empty list": ({"sizes": {"n": []}}, ("The size n is [], not a number",)),
    "values that need each other": (
        {"rules": ["$u[i] * 2 -> $t[i]", "$t[i] * 2 -> $u[i]"]},
        ("Rule 1", "depend on each other"),
    ),
    "size that ends": ({"sizes": {"n": "2 +"}}, ("The size n: '2 +' is not an expression",)),
    "size with more behind": ({"sizes": {"n": "2 x"}}, ("'x' does not belong to it",)),
    "very large number": ({"sizes": {"n": "9" * 19}}, ("is too large",)),
    "very deep": ({"sizes": {"n": "(" * 99}}, ("is nested too deep",)),
}


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_an_argument_of_a_map_is_refused(kind: str) -> None:
    given, words = ARGUMENTS[kind]
    with pytest.raises((MapError, ArgumentTypeError)) as caught:
        Map(**{"rules": ["w[n] -> x[n]"], **given})
    for word in words:
        assert word in str(caught.value)


INVERSES = {
    "also": "also e -> w",
    "else": "e[v] -> w[v] @ v=0:n else 0",
    "nothing": "e -> nothing",
    "arithmetic": "e plus 1 -> w",
}


@pytest.mark.parametrize("obstacle", INVERSES)
def test_an_inverse_says_which_rule_stands_in_the_way(obstacle: str) -> None:
    with pytest.raises(MapError) as caught:
        Map(["a -> b", INVERSES[obstacle]]).inverse()
    assert f"Rule 2, {INVERSES[obstacle]!r}, has no inverse" in str(caught.value)
    assert f"because of {obstacle!r}" in str(caught.value)
    assert "by hand" in caught.value.remedy


def test_an_inverse_lists_all_rules_that_stand_in_the_way() -> None:
    with pytest.raises(MapError) as caught:
        Map([*INVERSES.values(), "a -> b"]).inverse()
    assert "3 more rules have none" in str(caught.value)
    assert len(caught.value.problems) == len(INVERSES)


FILES = {
    "misspelt key": ("rule = ['a -> b']", "has the key 'rule'", "Did you mean 'rules'?"),
    "other key": ("rules = []\nauthor = 'x'", "the key 'author'", "A map has rules"),
    "no rules": ("about = 'x'", "has no 'rules'", "rules = ['KEY -> KEY', ...]"),
    "rules that are a text": ("rules = 'a -> b'", "'a -> b' as 'rules', not a list of texts"),
    "rule that is a number": ("rules = ['a -> b', 3]", "Rule 2 is 3, not a text"),
    "exact that is a number": ("rules = []\nexact = 1", "1 as 'exact', not true or false"),
    "about that is a list": ("rules = []\nabout = []", "[] as 'about', not a text"),
    "sizes that are a number": ("rules = []\nsizes = 3", "3 as 'sizes', not a table"),
    "size that is a date": ("rules = []\n[sizes]\nn = 2026-01-01", "The size n is", "not a number"),
    "syntax of TOML": ("rules = ['a -> b'", "is not TOML", "Mend it"),
    "bad rule": ("rules = ['a -> b', 'a b']", "Rule 2, 'a b', at character 4"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_map_file_is_refused_with_its_path(kind: str, tmp_path: Path) -> None:
    text, *words = FILES[kind]
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises((MapError, ArgumentTypeError)) as caught:
        Map.read(path)
    assert str(caught.value).startswith(str(path))
    for word in words:
        assert word in str(caught.value)


def test_a_map_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(MapError, match="is not TOML"):
        Map.read(path)


def test_a_name_that_is_not_shipped_is_answered_with_the_nearest_ones() -> None:
    with pytest.raises(MapError) as caught:
        Map.read("llama-hf-megatron")
    assert "There is no map 'llama-hf-megatron'" in str(caught.value)
    assert "Did you mean 'llama-hf-to-megatron'" in str(caught.value)
    with pytest.raises(MapError, match="`shardvar maps` lists"):
        Map.read("zzzz")
    with pytest.raises(MapError, match="cannot be read"):
        Map.read("./no/such.toml")


CONFIGS = {
    "absent": (None, "There is no config.json next to", "Copy the model's there"),
    "other name": ({"num_attention_heads": 5}, "no 'num_heads'", "'num_attention_heads'?"),
    "text": ({"num_heads": "5"}, "'5' as 'num_heads', not a number", "--size NAME=N"),
    "fraction": ({"num_heads": 5.5}, "'config:num_heads' is not an integer: 5.5"),
    "numbers": ({"num_heads": [5, 5]}, "num_heads is a list"),
    "truth": ({"num_heads": True}, "True as 'num_heads', not a number"),
    "list": ([5], "has no 'num_heads'"),
    "not JSON": ("{oops", "cannot be read: The JSON is wrong", "Mend it"),
    "nested": ("[" * 200_000, "nests values deeper than 64"),
    "name twice": ('{"num_heads": 5, "num_heads": 2}', "'num_heads' occurs twice"),
    "digits": ('{"num_heads": ' + "9" * 5000 + "}", "a number of thousands of digits"),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_size_of_config_json_is_refused_with_its_name(kind: str, tmp_path: Path) -> None:
    config, *words = CONFIGS[kind]
    if config is not None:
        text = config if isinstance(config, str) else json.dumps(config)
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
    given = Map(["w[(n d)] -> w[n d]"], sizes={"n": "config:num_heads"})
    with pytest.raises(MapError) as caught:
        fit_map(given, {"w": ("float32", (10,))}, (), {}, str(tmp_path / "model.safetensors"))
    assert str(caught.value).startswith("sizes.n: ")
    for word in words:
        assert word in str(caught.value)


def test_no_shipped_map_has_a_size_that_nothing_uses() -> None:
    for name in shipped_maps():
        given = shipped(name)
        used = {each for rule in given.parsed for each in rule.names()}
        for size in given.sizes.values():
            used |= set(parse_expression(size).names()) if isinstance(size, str) else set()
        assert given.sizes.keys() <= used, name
