"""The verdict on one rule: Hypothesis looks for a case that breaks it, and shrinks what it finds.

The search is the same in every run (derandomized, no database): a table changes because an implementation did. Which
case is found last is the smallest; the calls that it took are kept as a program.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis.errors import Flaky

from shardvar.conformance.adapter import methods_of
from shardvar.conformance.calls import Broken, Calls, NotClaimed, ProcessDied
from shardvar.conformance.expected import Expected
from shardvar.conformance.registry import Rule

KEPT = "kept"
BROKEN = "broken"
NOT_CLAIMED = "not claimed"
EXPECTED_FAILURE = "expected failure"
BROKEN_SOMETIMES = "broken in some runs"
UNEXPECTED_PASS = "unexpected pass"
NOT_RUN = "not run"

FAILURES = (BROKEN, UNEXPECTED_PASS)


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The smallest case that was found to break a rule."""

    calls: list[str]
    """The calls of the adapter, as Python; ``np`` is NumPy, ``adapter`` the adapter."""
    came: str
    """What came."""
    must: str
    """What must come."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of a rule and an adapter."""

    rule: str
    """The rule's id."""
    outcome: str
    """``kept``, ``broken``, ``not claimed``, ``expected failure``, ``broken in some runs``, ``unexpected pass`` or
    ``not run``."""
    reason: str = ""
    """Why it is not claimed, or expected to fail."""
    cases: int = 0
    """The cases that were as they should be, before one was not."""
    unclaimed_cases: int = 0
    """The cases for which the adapter raised ``NotImplementedError``."""
    unclaimed: list[str] = field(default_factory=list)
    """What it said then, each text once."""
    counterexample: Counterexample | None = None
    """Why it is broken."""

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)


def verdict_of(data: dict[str, Any]) -> Verdict:
    """The verdict that ``as_json`` gave."""
    example = data["counterexample"]
    return Verdict(**data | {"counterexample": None if example is None else Counterexample(**example)})


def judge(rule: Rule, adapter: Any, *, max_examples: int = 100, expected: Expected | None = None) -> Verdict:
    """Look for a case that breaks a rule; ``expected`` says that one is expected to be found, and why."""
    missing = [name for name in rule.needs if name not in methods_of(adapter)]
    if missing:
        return Verdict(rule.id, NOT_CLAIMED, f"no {', '.join(missing)}")
    found = _Findings()
    _search(rule, adapter, max_examples, found)
    seen = (found.held, found.refused, list(found.reasons))
    if found.example is None and not found.held:
        return Verdict(rule.id, NOT_CLAIMED, "; ".join(found.reasons), *seen)
    reason = "" if expected is None else expected.reason
    return Verdict(rule.id, _outcome(found.example is not None, expected), reason, *seen, found.example)


def _outcome(broken: bool, expected: Expected | None) -> str:
    """What it is that a rule was found to be broken, or was not, beside what was expected."""
    if expected is None:
        return BROKEN if broken else KEPT
    if expected.sometimes:
        return BROKEN_SOMETIMES
    return EXPECTED_FAILURE if broken else UNEXPECTED_PASS


class _Ended(BaseException):
    """A process died: the search ends with the case at hand, since each further one would cost a process."""


@dataclass(slots=True)
class _Findings:
    """What a search has seen."""

    held: int = 0
    refused: int = 0
    reasons: dict[str, None] = field(default_factory=dict)
    example: Counterexample | None = None


def _search(rule: Rule, adapter: Any, max_examples: int, found: _Findings) -> None:
    @settings(
        max_examples=max_examples,
        database=None,
        deadline=None,
        derandomize=True,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    @given(rule.cases)
    def search(case: Any) -> None:
        calls = Calls(adapter)
        try:
            rule.check(calls, case)
        except NotClaimed as error:
            found.refused += 1
            found.reasons[str(error)] = None
        except Exception as error:
            found.example = _example(calls, error)
            if isinstance(error, ProcessDied):
                raise _Ended from error
            raise
        else:
            found.held += found.example is None

    try:
        search()
    except _Ended:
        return
    except Flaky:
        if found.example is None:
            raise
        found.example.calls.append("# The same calls did not do the same every time.")
    except Exception:
        if found.example is None:
            raise


def _example(calls: Calls, error: Exception) -> Counterexample:
    if isinstance(error, ProcessDied):
        return Counterexample(calls.lines, str(error), "It must return or raise.")
    if isinstance(error, Broken):
        return Counterexample(calls.lines, error.came, error.must)
    told = " ".join(str(error).split())
    shortened = told if len(told) < 400 else told[:400] + " …"
    return Counterexample(calls.lines, f"It raised {type(error).__name__}: {shortened}", "It must not raise.")
