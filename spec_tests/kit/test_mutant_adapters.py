"""The conformance kit sees every wrong adapter of the table, and finds nothing in the right one
behind them."""

from collections import Counter
from typing import Any

import pytest

from shardvar.conformance.adapter import METHODS
from shardvar.conformance.rules import all_rules
from shardvar.conformance.rules.cases import LAYOUTS
from shardvar.conformance.session import BROKEN, KEPT, judge, program
from spec_tests.helpers import wrong_adapters
from spec_tests.helpers.paths import DOCS
from spec_tests.helpers.right_adapter import Right
from spec_tests.helpers.thoroughness import is_due
from spec_tests.wrong.table import FAMILIES, AdapterMutant, mutants

RULES = {rule.id: rule for rule in all_rules()}
MUTANTS = mutants()
SAMPLE = [mutant for number, mutant in enumerate(MUTANTS) if is_due(number, 7)]
EXAMPLES = 60
"""The kit's own number of cases: what is seen here is seen by whoever runs the kit without
options."""


def test_there_are_ten_of_each_family_and_no_two_of_one_name() -> None:
    counts = Counter(mutant.family for mutant in MUTANTS)
    assert [family for family in FAMILIES if counts[family] < 10] == []
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 350


def test_the_page_counts_them() -> None:
    page = (DOCS / "conformance-kit.md").read_text(encoding="utf-8")
    counts = Counter(mutant.family for mutant in MUTANTS) | {"all": len(MUTANTS)}
    missing = [name for name, n in counts.items() if f"| {name} | {n} | {n} |" not in page]
    assert missing == []


def test_each_spoils_a_method_of_the_right_adapter_and_says_how() -> None:
    assert [mutant.name for mutant in MUTANTS if not hasattr(Right, mutant.method)] == []
    assert [
        mutant.name for mutant in MUTANTS if not (mutant.function.__doc__ or "").endswith(".")
    ] == []


ISOLATED = {rule.id for rule in RULES.values() if rule.isolated}


@pytest.mark.parametrize("name", sorted(ISOLATED | {mutant.rule for mutant in SAMPLE[::2]}))
def test_the_right_adapter_keeps_every_rule(name: str) -> None:
    """``test_dimensions`` asks it for all of them, with fewer examples."""
    verdict = judge(RULES[name], Right(), max_examples=8 if name in ISOLATED else EXAMPLES)
    assert verdict.outcome == KEPT, program(verdict, "right:Adapter")
    assert verdict.unclaimed_cases == 0


@pytest.mark.parametrize("mutant", SAMPLE, ids=lambda mutant: mutant.name)
def test_a_wrong_adapter_is_seen(mutant: AdapterMutant) -> None:
    verdict = judge(RULES[mutant.rule], mutant.make(), max_examples=EXAMPLES)
    assert verdict.outcome == BROKEN
    assert verdict.counterexample is not None and not verdict.counterexample.came.startswith(
        "It raised TypeError"
    )


WRONG = wrong_adapters.__name__
NAMES = sorted(wrong_adapters.BREAKS)
FILES = {"save", "restore", "joined"}
PRODUCTS = "-huge -numbers -byte-order -strides -memory -none -keys-long -owner-axes".split()
OTHER_CASES = (*(f"-{layout.suffix}" for layout in LAYOUTS), *PRODUCTS)


def levels_of(adapter: type) -> set[int]:
    """The levels that an adapter may be seen at: a checkpoint knows nothing of variables, and they
    nothing of it."""
    return {6, 7, 8} if FILES & vars(adapter).keys() else {1, 2, 3, 4, 5}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_adapter_breaks_its_own_rules_and_no_others(name: str) -> None:
    adapter, must = getattr(wrong_adapters, name), wrong_adapters.BREAKS[name]
    assert (METHODS | FILES) & vars(adapter).keys()
    broken: dict[str, Any] = {}
    for rule in all_rules():
        # What breaks an ordinary rule breaks it in other layouts and with other numbers too, which
        # says nothing more of the adapter.
        if rule.level in levels_of(adapter) and not rule.id.endswith(OTHER_CASES):
            verdict = judge(rule, adapter(), max_examples=100 if rule.id in must else 8)
            if verdict.outcome == BROKEN:
                broken[rule.id] = verdict
    assert broken.keys() == must
    for verdict in broken.values():
        runs(program(verdict, f"{WRONG}:{name}"), verdict.counterexample.came)


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
