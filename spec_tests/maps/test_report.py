"""The report of a map: its table of rules, and the problems, which are counted after some."""

from pathlib import Path

import numpy as np

import shardvar as sv
from shardvar.maps.report import MapReport, RuleReport

RULES = [
    "{s:gate|up}.w[o i] -> gate_up.w[(s o) i]",
    "norm.w[h] plus 1 -> scale[h]",
    "inv_freq -> nothing",
]


def report(path: Path, rules: list[str]) -> MapReport:
    tensors = {"gate.w": (4, 6), "up.w": (4, 6), "norm.w": (3,), "inv_freq": (2,)}
    sv.save(path, {key: np.ones(shape, np.float32) for key, shape in tensors.items()})
    with sv.open_checkpoint(path) as reader:
        return sv.Map(rules).check(reader)


def test_each_rule_has_a_row_and_says_whether_it_rounds(tmp_path: Path) -> None:
    found = report(tmp_path / "a.safetensors", RULES)
    assert found.rules == (
        RuleReport(RULES[0], 2, "[4, 6]", "[8, 6]", "moved", 1, ""),
        RuleReport(RULES[1], 1, "[3]", "[3]", "computed", 1, ""),
        RuleReport(RULES[2], 1, "[2]", "nothing", "moved", 0, "nothing"),
    )
    assert found.ok and not found.is_exact and (found.num_sources, found.num_targets) == (4, 2)
    table = str(found)
    assert all(rule in table for rule in RULES) and table.count("(computed)") == 1


def test_what_is_lost_is_a_problem_and_the_table_does_not_say_that_all_is_used(
    tmp_path: Path,
) -> None:
    found = report(tmp_path / "a.safetensors", RULES[:1])
    assert not found.ok and len(found.problems) == 2
    assert "'norm.w' is matched by no rule" in str(found) and "is used once" not in str(found)


def test_the_summary_names_each_rule_that_is_an_exception(tmp_path: Path) -> None:
    rules = [*RULES, "also norm.w -> norm.w", "also {s:gate|up}.w -> more.{s:a|b} else 0", "x -> y"]
    rules += ["also norm.w -> wide.w as float64"]
    used, rounded, computed, moved, idle = report(tmp_path / "a.safetensors", rules).summary()
    assert used == (
        "every source is used once, or left out by name (rule 3), or used again by 'also' "
        "(rules 4, 5, 7); every tensor made is filled once"
    )
    assert rounded == "rounded: rule 7, the numbers in another dtype"
    assert computed == "computed: rule 2, in float64, then rounded once"
    assert moved == "moved: all other rules, bits as they are"
    assert idle == "no key matches rule 6"


def test_a_map_that_moves_bits_says_so(tmp_path: Path) -> None:
    rules = ["{s:gate|up}.w -> {s:a|b}", "norm.w[h] -> n[h] @ h=0:3 else 0", "inv_freq -> f"]
    tensors = {"gate.w": (4, 6), "up.w": (4, 6), "norm.w": (3,), "inv_freq": (2,)}
    path = sv.save(tmp_path / "b", {key: np.ones(shape) for key, shape in tensors.items()})
    with sv.open_checkpoint(path) as reader:
        found = sv.Map(rules, sizes={"h": 5}).check(reader)
    assert found.is_exact and found.summary() == [
        "every source is used once; every tensor made is filled once, or by 'else' (rule 2)",
        "exact: bits are moved, and nothing is computed",
    ]


def test_a_table_says_how_many_sources_each_target_has(tmp_path: Path) -> None:
    keys = [f"l.{layer}.{name}" for layer in range(3) for name in ("gate", "up")]
    path = sv.save(tmp_path / "c", {key: np.ones((2, 2)) for key in keys})
    with sv.open_checkpoint(path) as reader:
        found = sv.Map("l.{l}.{s:gate|up}[o i] -> l.{l}.both[(s o) i]").check(reader)
    assert found.rows() == [("1", found.rules[0].rule, "3 x 2", "[2, 2]", "[4, 2]")]
    assert found.to_json()["rules"][0]["num_targets"] == 3
