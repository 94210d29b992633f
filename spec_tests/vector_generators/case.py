"""Vectors and groups of vectors, and their form in JSON."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spec_tests.vector_generators.rules import RULES

SCHEMA = 1
"""The version of the files; a change of meaning raises it."""


@dataclass(frozen=True)
class Acceptable:
    """Another answer that an implementation may give, and why."""

    why: str
    """The implementation that gives it, or the reason why it is as good."""
    expected: Any = None
    """The answer, where it is one."""
    error: str | None = None
    """The class of the error, where it is one."""

    def to_json(self) -> dict[str, Any]:
        """As it stands in a case."""
        return {**_outcome(self.expected, self.error), "why": self.why}


@dataclass(frozen=True)
class Case:
    name: str
    """Its name among the cases of its group."""
    rule: str
    """The id of the sentence that it holds."""
    op: str
    """The operation on the inputs."""
    inputs: Mapping[str, Any]
    """Arguments by name."""
    bug: str
    """The mistake that it is there to catch."""
    expected: Any = None
    """The answer, where it is no error."""
    error: str | None = None
    """The class of the error, where it is one."""
    acceptable: Sequence[Acceptable] = ()
    """Other answers that are no mistakes."""
    ulps: int = 0
    """Units in the last place by which each real number may differ from the expected one."""

    def to_json(self, group: str) -> dict[str, Any]:
        """As it stands in a file."""
        return {
            "id": f"{group}-{self.name}",
            "rule": self.rule,
            "op": self.op,
            "inputs": dict(self.inputs),
            **_outcome(self.expected, self.error),
            "bug": self.bug,
            "acceptable": [each.to_json() for each in self.acceptable],
            "ulps": self.ulps,
        }


@dataclass(frozen=True)
class Group:
    """The vectors of one file."""

    name: str
    """The file's, without ``.json``."""
    title: str
    """Their subject."""
    oracle: str
    """The source of the expected answers."""
    cases: Sequence[Case]
    """The vectors, in a fixed order."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files that the cases name, by their paths beside the JSON."""

    def to_json(self) -> dict[str, Any]:
        """Header and cases."""
        used = sorted({case.rule for case in self.cases})
        header = {
            "schema": SCHEMA,
            "group": self.name,
            "title": self.title,
            "generator": "make vectors",
            "rules": [{"id": rule, **RULES[rule]} for rule in used],
            "provenance": self.oracle,
            "count": len(self.cases),
        }
        return {"header": header, "cases": [case.to_json(self.name) for case in self.cases]}

    def to_bytes(self) -> bytes:
        """The file: ASCII, a line a case."""
        document = self.to_json()
        lines = [json.dumps(case, allow_nan=False) for case in document["cases"]]
        header = json.dumps(document["header"], indent=1, allow_nan=False)
        text = f'{{"header": {header},\n"cases": [\n' + ",\n".join(lines) + "\n]}\n"
        return text.encode("ascii")


def maker(op: str, rule: str, prefix: str = "") -> Callable[..., Case]:
    """Return what makes the cases of one operation, from their names, inputs, mistakes and outcomes."""

    def make(name: str, inputs: Mapping[str, Any], bug: str, *outcome: Any, **more: Any) -> Case:
        return Case(f"{prefix}{name}", rule, op, inputs, bug, *outcome, **more)

    return make


def numbered(cases: Iterable[Case]) -> list[Case]:
    """The cases as a list; ``ValueError`` where two have one name."""
    found = list(cases)
    names = [case.name for case in found]
    if len(set(names)) != len(names):
        raise ValueError(
            "names of cases come twice: "
            f"{sorted({name for name in names if names.count(name) > 1})}"
        )
    return found


def _outcome(expected: Any, error: str | None) -> dict[str, Any]:
    return {"expected": expected} if error is None else {"error": error}
