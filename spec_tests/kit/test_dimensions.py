"""Each method of an adapter is asked for in each dimension that can hide a mistake, or has a reason."""

import numpy as np
import pytest

from shardvar.conformance.adapter import METHODS
from shardvar.conformance.rules import all_rules
from shardvar.conformance.session import Verdict, _check, _drawn, copied
from spec_tests.helpers.right_adapter import Right
from spec_tests.kit.dimensions import ABSENT, DIMENSIONS, Seen

CASES = 20
"""Cases a rule: fewer than the kit draws by itself."""


@pytest.fixture(scope="module")
def seen() -> set[tuple[str, str]]:
    """Return the methods and dimensions that the rules ask the right adapter for, which keeps them."""
    cells: set[tuple[str, str]] = set()
    for rule in all_rules():
        if rule.isolated:
            continue
        for case in _drawn(rule.cases, CASES):
            adapter = Seen(Right())
            # NumPy warns of sums of infinities, and a warning would be a refusal here.
            verdict = Verdict(rule.id)
            with np.errstate(all="ignore"):
                _check(rule, adapter, verdict, copied(case))
            assert verdict.unclaimed_cases == 0, rule.id
            cells |= adapter.cells
        # Arrays change between the calls of these rules.
        if rule.id.endswith("-memory"):
            cells |= {(method, "memory") for method in rule.needs}
    return cells


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_each_method_is_asked_for_or_has_a_reason(
    dimension: str, seen: set[tuple[str, str]]
) -> None:
    asked = {method for method, one in seen if one == dimension}
    absent = [
        method
        for rows in ABSENT.values()
        for dimensions, methods in rows
        if dimension in dimensions
        for method in methods
    ]
    assert sorted(METHODS - asked - set(absent)) == [], "neither a rule nor a reason"
    assert sorted(asked & set(absent)) == [], "a reason although a rule asks for it"
    assert len(absent) == len(set(absent)), "two reasons"


def test_the_table_names_methods_and_dimensions_that_exist() -> None:
    rows = [row for rows in ABSENT.values() for row in rows]
    assert {one for dimensions, _ in rows for one in dimensions} <= set(DIMENSIONS)
    assert {method for _, methods in rows for method in methods} <= METHODS
