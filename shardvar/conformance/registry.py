"""The rules of the kit: an id, the RFC's sentence, a level, what an adapter must have, and the law that is checked.

A rule is a function that is given an adapter (wrapped in ``Calls``) and one case, drawn by Hypothesis; it returns where
the case is as it should be and raises ``Broken`` otherwise. Its docstring is the law. Several rules may check one
sentence: the part of their ids after the number tells them apart.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from hypothesis import strategies as st

from shardvar.conformance.calls import Calls

LEVELS = {
    1: "partitioning",
    2: "variables and indexing",
    3: "lookup and updates",
    4: "initialization",
    5: "optimizers",
    6: "checkpoint save and elastic restore",
    7: "policies",
    8: "robustness against damaged checkpoints",
}
"""What each level is about; a level's rules stand in one module of ``rules``."""

_MODULES = "partitioning variables updates initialization optimizers checkpoints policies damage".split()
_RULES: dict[str, "Rule"] = {}
_ID = re.compile(r"(R-[A-Z]+-\d+)[a-z-]*")


@dataclass(frozen=True, slots=True)
class Rule:
    """One law that an implementation keeps or breaks."""

    id: str
    """The rule's id, and what tells it from others of the same sentence: ``R-SV-3-add``."""
    level: int
    """1 to 8."""
    rfc: str
    """The number of the RFC: ``000``."""
    sentence: str
    """The RFC's sentence, as it stands there."""
    law: str
    """What is checked, in one sentence."""
    needs: tuple[str, ...]
    """The methods that an adapter must have for the rule to be claimed."""
    cases: st.SearchStrategy[Any]
    """What it is checked for."""
    check: Callable[[Calls, Any], None]
    """Raises ``Broken`` where a case is not as it should be."""
    isolated: bool = False
    """Whether ``restore`` runs in a process of its own, which damage may kill."""

    @property
    def sentence_id(self) -> str:
        """The id without what tells it from others of the same sentence: ``R-SV-3``."""
        found = _ID.fullmatch(self.id)
        return found[1] if found else self.id


def rule(
    id: str, level: int, rfc: str, sentence: str, needs: str, cases: st.SearchStrategy[Any], isolated: bool = False
) -> Callable[[Callable[[Calls, Any], None]], Callable[[Calls, Any], None]]:
    """Register the function below as the check of a rule; ``needs`` are words."""

    def register(check: Callable[[Calls, Any], None]) -> Callable[[Calls, Any], None]:
        if id in _RULES or not _ID.fullmatch(id):
            raise ValueError(f"{id} is a rule already, or no id.")
        law = " ".join((check.__doc__ or "").split()).removesuffix(".")
        words = tuple(needs.split())
        _RULES[id] = Rule(id, level, rfc, sentence, law, words, cases, check, isolated)
        return check

    return register


def all_rules() -> list[Rule]:
    """Every rule, by level and in the order in which they are written."""
    for module in _MODULES:
        import_module(f"shardvar.conformance.rules.{module}")
    return sorted(_RULES.values(), key=lambda rule: rule.level)


def rules_of(levels: range) -> Iterator[Rule]:
    """The rules of some levels."""
    return (rule for rule in all_rules() if rule.level in levels)
