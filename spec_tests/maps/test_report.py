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
        RuleReport(RULES[0], 2, "[4, 6]", "[8, 6]", True),
        RuleReport(RULES[1], 1, "[3]", "[3]", False),
        RuleReport(RULES[2], 1, "[2]", "nothing", True),
    )
    assert found.ok and not found.is_exact and (found.num_sources, found.num_targets) == (4, 2)
    table = str(found)
    assert all(rule in table for rule in RULES) and table.count("(rounded)") == 1


def test_what_is_lost_is_a_problem_and_the_table_does_not_say_that_all_is_used(
    tmp_path: Path,
) -> None:
    found = report(tmp_path / "a.safetensors", RULES[:1])
    assert not found.ok and len(found.problems) == 2
    assert "'norm.w' is matched by no rule" in str(found) and "is used once" not in str(found)
