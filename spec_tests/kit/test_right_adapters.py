"""The conformance kit finds nothing in implementations that are right, each in another way."""

import pytest

from shardvar.conformance.rules import Rule, all_rules
from shardvar.conformance.session import BROKEN, judge, program
from spec_tests.helpers.right_kinds import KINDS
from spec_tests.helpers.thoroughness import EXHAUSTIVE, is_due

RULES = [rule for rule in all_rules() if not rule.isolated]
CASES = [(kind, rule) for kind in KINDS for rule in RULES]
SAMPLE = [case for number, case in enumerate(CASES) if is_due(number, 16)]


@pytest.mark.parametrize(
    ("kind", "rule"), SAMPLE, ids=[f"{kind.__name__}-{rule.id}" for kind, rule in SAMPLE]
)
def test_a_right_implementation_breaks_no_rule(kind: type, rule: Rule) -> None:
    verdict = judge(rule, kind(), max_examples=60 if EXHAUSTIVE else 8)
    assert verdict.outcome != BROKEN, program(verdict, f"right_kinds:{kind.__name__}")


def test_each_kind_claims_many_rules() -> None:
    """What is not claimed is neither kept nor broken, and would prove nothing."""
    claimed = {
        kind.__name__: sum(all(hasattr(kind, name) for name in rule.needs) for rule in RULES)
        for kind in KINDS
    }
    assert len(claimed) == 8 and min(claimed.values()) >= 60
