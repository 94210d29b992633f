"""Which implementations keep a rule, as the conformance kit found and ``make conformance`` wrote to
docs/conformance.json."""

import json
from collections import Counter
from functools import cache
from typing import Any

from shardvar.conformance.rules import all_rules
from spec_tests.helpers import paths

DATA = paths.DOCS / "conformance.json"


@cache
def checks() -> dict[str, tuple[str, ...]]:
    """For each rule of the RFCs that the kit checks, the ids of its checks."""
    found: dict[str, tuple[str, ...]] = {}
    for rule in (each for each in all_rules() if each.rfc.isdigit()):
        found[rule.sentence_id] = (*found.get(rule.sentence_id, ()), rule.id)
    return found


@cache
def verdicts() -> dict[str, Any]:
    """Return the findings of the run on all implementations; empty before the first run."""
    found: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8")) if DATA.is_file() else {}
    return found


def kept_by(rule: str) -> str:
    """Return, as text, the implementations that keep a rule, break it, or do not claim it; each
    once. A dash stands for a rule that the kit does not check."""
    if rule not in checks():
        return "-"
    found = verdicts()
    rows = [row["verdicts"] for row in found.get("rules", ()) if row["sentence_id"] == rule]
    if not rows:
        return "not run"
    by_outcome: dict[str, list[str]] = {}
    for one in found["implementations"]:
        outcome = joined([row[one["name"]]["outcome"] for row in rows])
        by_outcome.setdefault(outcome, []).append(one["title"])
    return "; ".join(
        f"{outcome}: {', '.join(titles)}" for outcome, titles in sorted(by_outcome.items())
    )


def joined(outcomes: list[str]) -> str:
    """What the outcomes of a rule's checks say of the rule: one that is broken, be it in some runs
    only, breaks it; what is not claimed is none.

    >>> joined(["kept", "not claimed"]), joined(["kept", "broken", "broken in some runs"]), joined(["not claimed"])
    ('kept', 'broken (2 of 3)', 'not claimed')
    """
    count = Counter(outcomes)
    if broken := count["broken"] + count["broken in some runs"]:
        return f"broken ({broken} of {len(outcomes)})" if len(outcomes) > 1 else "broken"
    return "kept" if count["kept"] else "not claimed"
