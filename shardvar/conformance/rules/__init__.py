"""The rules of the kit: an id, a sentence, a level, the methods that the rule needs, and the law to
check.

A rule has a check: a function of an adapter (wrapped in ``Calls``) and one case, drawn by
Hypothesis, which returns if the case keeps the rule and raises ``Broken`` otherwise. ``rules``
registers a table of rules whose checks stand elsewhere; ``rule`` registers one function, whose
docstring is the law.
Several rules may check one sentence; the part of their ids after the number tells them apart.

Cases are the ordinary ones unless a rule is about the odd ones: at least a row a shard, float32. An
implementation that stumbles over empty shards then breaks the rules of empty shards (``updates.LAWS``),
and not every rule.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from hypothesis import strategies as st

from shardvar.conformance.adapter import LEVEL_OF
from shardvar.conformance.calls import Calls
from shardvar.conformance.rules.sentences import SENTENCES
from shardvar.records import frozen

LEVELS = {
    1: "partitioning",
    2: "variables and indexing",
    3: "lookup and updates",
    4: "initialization",
    5: "optimizers",
    6: "checkpoint save and elastic restore",
    7: "policies",
    8: "robustness against damaged checkpoints",
    9: "meshes and placements",
    10: "training across layouts",
}
"""The subject of each level; the modules of ``rules`` give their levels."""

_MODULES = (
    "variables updates initialization optimizers checkpoints policies damage meshes "
    "carried computations"
).split()
_RULES: dict[str, "Rule"] = {}
# R- is the prefix of sentences of the RFCs, V- of sentences of the documentation.
_ID = re.compile(r"([RV]-[A-Z]+-\d+)[a-z-]*")
_SENTENCES = [
    (beginning, source, sentence)
    for source, sentences in SENTENCES.items()
    for beginnings, sentence in sentences.items()
    for beginning in beginnings.split()
]
Cases = st.SearchStrategy[Any] | Sequence[Any]
"""The cases of a rule: drawn by Hypothesis, or all of a list whose first ones are the simplest."""


@frozen
class Rule:
    id: str
    """The id of the sentence, with a suffix if it has several rules: ``R-SV-3-add``."""
    level: int
    """1 to 10."""
    rfc: str
    """The number of the RFC: ``000``; the path of a page of the documentation where the sentence is
    from there."""
    sentence: str
    """The sentence of the RFC or of the page, verbatim."""
    law: str
    needs: tuple[str, ...]
    """The methods that an adapter must have for the rule to be claimed."""
    cases: Cases
    check: Callable[[Calls, Any], None]
    """The check of one case; it raises ``Broken`` where the case breaks the rule."""
    isolated: bool = False
    """True if ``restore`` runs in another process, which a damaged checkpoint may kill."""

    @property
    def source(self) -> str:
        """The origin of the sentence: ``RFC 000`` or ``docs/layouts.md``."""
        return f"RFC {self.rfc}" if self.rfc.isdigit() else self.rfc

    @property
    def sentence_id(self) -> str:
        """The id of the sentence, without the suffix: ``R-SV-3``."""
        found = _ID.fullmatch(self.id)
        return found[1] if found else self.id


RuleCheck = Callable[[Calls, Any], None]
RuleRow = tuple[str, str, Cases, RuleCheck, str]
"""A rule of a table: its id, needs, cases, check and law."""


def rule(id: str, needs: str, cases: Cases, **more: Any) -> Callable[[RuleCheck], RuleCheck]:
    """Register the function as the check of a rule; ``needs`` lists methods."""

    def register(check: RuleCheck) -> RuleCheck:
        law = " ".join((check.__doc__ or "").split()).removesuffix(".")
        rules((id, needs, cases, check, law), **more)
        return check

    return register


def rules(*rows: RuleRow, level: int = 0, isolated: bool = False) -> None:
    """Register rules; without a level, it is the highest of the methods that they need."""
    for name, needs, cases, check, law in rows:
        if name in _RULES or not _ID.fullmatch(name):
            raise ValueError(f"{name} is already registered, or is not an id such as R-SV-3-add.")
        words = tuple(needs.split())
        levels = [LEVEL_OF[word] for word in words]
        _, source, sentence = max(entry for entry in _SENTENCES if name.startswith(entry[0]))
        _RULES[name] = Rule(
            name, level or max(levels), source, sentence, law, words, cases, check, isolated
        )


def refuses(method: str) -> RuleCheck:
    return lambda adapter, case: adapter.refuses(method, *case)


def all_rules() -> list[Rule]:
    """Return every rule, by level and in the order of the modules."""
    return sorted(_RULES.values(), key=lambda rule: rule.level)


def rules_of(levels: range) -> Iterator[Rule]:
    return (rule for rule in all_rules() if rule.level in levels)


# Here and not in ``all_rules``, where a module that was imported before the others would come first.
for _module in _MODULES:
    import_module(f"{__name__}.{_module}")
