"""The conformance kit finds what is wrong: a wrong adapter breaks exactly its own rules, and the
proof is a program."""

from typing import Any

import pytest

from shardvar.conformance.adapter import METHODS
from shardvar.conformance.rules import all_rules
from shardvar.conformance.rules.cases import LAYOUTS
from shardvar.conformance.session import BROKEN, judge, program
from spec_tests.helpers import wrong_adapters

WRONG = wrong_adapters.__name__
NAMES = sorted(wrong_adapters.BREAKS)
FILES = {"save", "restore", "joined"}
PRODUCTS = ("-huge", "-numbers", "-byte-order", "-memory", "-none", "-keys-long")
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
