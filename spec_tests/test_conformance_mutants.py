"""The conformance kit finds what is wrong: each mutant breaks exactly its own rules, and the proof is a program."""

from typing import Any

import kit_mutants
import pytest

from shardvar.conformance.adapter import METHODS
from shardvar.conformance.registry import all_rules
from shardvar.conformance.report import program
from shardvar.conformance.verdict import BROKEN, judge

MUTANTS = sorted(kit_mutants.BREAKS)
FILES = {"save", "restore", "joined"}


def levels_of(mutant: type) -> set[int]:
    """The levels that a mutant may be seen at: a checkpoint knows nothing of variables, and they nothing of it."""
    return {6, 7, 8} if FILES & vars(mutant).keys() else {1, 2, 3, 4, 5}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_breaks_its_own_rules_and_no_others(name: str) -> None:
    mutant, must = getattr(kit_mutants, name), kit_mutants.BREAKS[name]
    assert (METHODS | FILES) & vars(mutant).keys()
    broken: dict[str, Any] = {}
    for rule in all_rules():
        if rule.level in levels_of(mutant):
            verdict = judge(rule, mutant(), max_examples=100 if rule.id in must else 8)
            if verdict.outcome == BROKEN:
                broken[rule.id] = verdict
    assert broken.keys() == must
    for verdict in broken.values():
        runs(program(verdict, f"kit_mutants:{name}"), verdict.counterexample.came)


def runs(text: str, came: str) -> None:
    """A counterexample is a program; where it is that a call raises, it raises."""
    lines = "\n".join(line[4:] for line in text.split("\n"))
    if came.startswith("It raised "):
        with pytest.raises(Exception) as raised:
            exec(lines, {})
        assert came.startswith(f"It raised {raised.type.__name__}:")
    else:
        try:
            exec(lines, {})
        except (ValueError, IndexError):
            assert "is refused" in came or "was refused" in came
