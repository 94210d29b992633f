"""docs/conformance.md is what docs/conformance.json says, and the table is what the reports say."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardvar.conformance.rules import all_rules
from shardvar.conformance.session import read_expected
from spec_tests.conformance.implementations import BREACHES, DATA, IMPLEMENTATIONS, PAGE
from spec_tests.conformance.page import combined, outcomes, page, scripts_of

NUMPY, SHARDVAR = (one for one in IMPLEMENTATIONS if one.name in ("numpy", "shardvar"))


def rule(outcome: str, **more: Any) -> dict[str, Any]:
    """A rule of a report."""
    return {
        "id": "R-DIV-1", "sentence_id": "R-DIV-1", "level": 1, "rfc": "000", "source": "RFC 000",
        "sentence": "Divide.", "law": "It divides",
        "outcome": outcome, "reason": "", "cases": 3, "unclaimed_cases": 0, "unclaimed": [], "counterexample": None,
        "program": None,
    } | more  # fmt: skip


def report(*rules: dict[str, Any]) -> dict[str, Any]:
    return {"levels": {"1": "partitioning"}, "shardvar": "0", "rules": list(rules)}


def test_the_page_is_made_of_the_data() -> None:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == page(data, BREACHES), "Run make conformance."


EXAMPLE = {"came": "It gave 1.", "must": "It must give 2."}
SOMETIMES = "[**broken in some runs**](#numpy-r-div-1)"


@pytest.mark.parametrize(
    ("outcome", "example", "verdict", "cell"),
    [
        ("expected failure", EXAMPLE, "broken", "[**broken**](#numpy-r-div-1)"),
        ("broken in some runs", None, "broken in some runs", SOMETIMES),
        ("broken in some runs", EXAMPLE, "broken in some runs", SOMETIMES),
        ("not claimed", None, "not claimed", "-"),
    ],
)
def test_a_verdict_is_shown_with_its_reason_and_a_breach_with_its_program(
    tmp_path: Path, outcome: str, example: Any, verdict: str, cell: str
) -> None:
    """What is broken in some runs is the same in all; what is not claimed is not kept."""
    given = rule(
        outcome, reason="by design", counterexample=example, program=example and "    1 / 0"
    )
    kept = rule("kept", unclaimed_cases=2)
    data = combined({"numpy": report(given), "shardvar": report(kept)}, [NUMPY, SHARDVAR])
    assert outcomes(data) == {("numpy", "R-DIV-1"): verdict, ("shardvar", "R-DIV-1"): "kept"}
    text, told = page(data, tmp_path), data["rules"][0]["verdicts"]["numpy"]
    assert f"| R-DIV-1 | It divides | {cell} | kept\\* |" in text
    assert ("    1 / 0" in text) == (verdict == "broken")
    if outcome == "not claimed":
        assert told["unclaimed"] == ["by design"]
    else:
        assert "by design" in text
    if outcome == "broken in some runs":
        assert told == {"outcome": outcome, "reason": "by design"}


def test_a_large_array_that_came_is_cut_short_and_a_call_with_one_is_not(tmp_path: Path) -> None:
    large = "7, " * 4000
    found = {"came": f"It gave {large}", "must": "It must give 2."}
    program = f"    adapter.assign({large})\n    # It gave {large}\n    # It must give 2."
    broken = rule("expected failure", reason="by design", counterexample=found, program=program)
    data = combined({"numpy": report(broken), "shardvar": report(rule("kept"))}, [NUMPY, SHARDVAR])
    verdict = data["rules"][0]["verdicts"]["numpy"]
    assert len(verdict["came"]) < 1100 and verdict["came"].endswith(" …")
    call, came, must = verdict["program"].split("\n")
    assert (
        call == f"    adapter.assign({large})"
        and len(came) < 1100
        and must == "    # It must give 2."
    )


def test_a_script_belongs_to_the_rules_that_its_docstring_names(tmp_path: Path) -> None:
    (tmp_path / "numpy_wrong.py").write_text(
        '"""R-DIV-1, R-INIT-5-again: both."""\n', encoding="utf-8"
    )
    assert set(scripts_of(tmp_path)) == {("numpy", "R-DIV-1"), ("numpy", "R-INIT-5-again")}


def test_every_script_is_of_an_implementation_and_of_a_rule_that_it_is_expected_to_break() -> None:
    known = {rule.id for rule in all_rules()}
    expected = {one.name: one.expected for one in IMPLEMENTATIONS if one.expected.is_file()}
    declared = {
        (name, rule)
        for name, path in expected.items()
        for rule in read_expected(path.read_text("utf-8"), known)
    }
    assert set(scripts_of(BREACHES)) <= declared
