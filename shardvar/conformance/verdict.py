"""The verdict on one rule: Hypothesis searches for a case that breaks it, and shrinks what it
finds.

The search is the same in every run (derandomized, no database), so a table changes only because an
implementation did. The case that is found last is the smallest; its calls are kept as a program.

A failure may be declared in a text file, one rule a line with the reason; ``#`` begins a comment:

    R-INIT-5: the framework ignores the offset of a partition, tracked upstream
    R-DAMAGE-1-flip sometimes: no checksums, and the places of payloads differ from run to run

A declared failure that is found is an expected failure, and one that is not found is an unexpected
pass. With ``sometimes`` both are ``broken in some runs``.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis.errors import Flaky

from shardvar.conformance.adapter import methods_of
from shardvar.conformance.calls import Broken, Calls, NotClaimed, ProcessDied
from shardvar.conformance.registry import Rule
from shardvar.errors import ArgumentError

KEPT = "kept"
BROKEN = "broken"
NOT_CLAIMED = "not claimed"
EXPECTED_FAILURE = "expected failure"
BROKEN_SOMETIMES = "broken in some runs"
UNEXPECTED_PASS = "unexpected pass"
NOT_RUN = "not run"

FAILURES = (BROKEN, UNEXPECTED_PASS)

SOMETIMES = "sometimes"


@dataclass(frozen=True, slots=True)
class Expected:
    """A failure that was declared."""

    reason: str
    """The reason why the rule is broken."""
    sometimes: bool = False
    """True if only some runs find a case that breaks it, so both results are expected."""


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The smallest case that was found to break a rule."""

    calls: list[str]
    """The calls of the adapter, as Python; ``np`` is NumPy, ``adapter`` the adapter."""
    came: str
    """The result, in a sentence."""
    must: str
    """The result that the rule demands, in a sentence."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one rule for one adapter."""

    rule: str
    """The rule's id."""
    outcome: str
    """``kept``, ``broken``, ``not claimed``, ``expected failure``, ``broken in some runs``,
    ``unexpected pass`` or ``not run``."""
    reason: str = ""
    """The reason why it is not claimed, or expected to fail."""
    cases: int = 0
    """The cases that kept the rule, before one that broke it."""
    unclaimed_cases: int = 0
    """The cases for which the adapter raised ``NotImplementedError``."""
    unclaimed: list[str] = field(default_factory=list)
    """The messages of these errors, each text once."""
    counterexample: Counterexample | None = None
    """The case that breaks the rule, if one was found."""

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as plain data, which ``verdict_of`` reads."""
        return asdict(self)


def read_expected(text: str, known: Collection[str]) -> dict[str, Expected]:
    """Return the declarations by rule; ``ArgumentError`` for a line without a reason, an unknown or
    a repeated rule.

    >>> read_expected("# upstream\\nR-DIV-1: our own rule\\n", {"R-DIV-1"})
    {'R-DIV-1': Expected(reason='our own rule', sometimes=False)}
    """
    expected: dict[str, Expected] = {}
    for number, line in enumerate(text.splitlines(), 1):
        # A reason therefore cannot hold a ``#``, as in the number of an issue; a link to the issue
        # can be given.
        content = line.partition("#")[0].strip()
        if not content:
            continue
        head, _, reason = (part.strip() for part in content.partition(":"))
        rule, _, word = head.partition(" ")
        if word.strip() not in ("", SOMETIMES):
            raise ArgumentError(
                f"Line {number} has {word!r} after the rule.",
                "Write: RULE: reason, or RULE sometimes: reason",
            )
        if not reason:
            raise ArgumentError(
                f"Line {number} gives no reason: {line.strip()!r}.", "Write: RULE: reason"
            )
        if rule not in known:
            raise ArgumentError(
                f"Line {number} names an unknown rule {rule!r}.", "The report lists all rules."
            )
        if rule in expected:
            raise ArgumentError(
                f"Line {number} names the rule {rule} a second time.", "Keep one of the lines."
            )
        expected[rule] = Expected(reason, bool(word))
    return expected


def verdict_of(data: dict[str, Any]) -> Verdict:
    """Return the verdict that ``as_json`` gave as data."""
    example = data["counterexample"]
    return Verdict(
        **data | {"counterexample": None if example is None else Counterexample(**example)}
    )


def judge(
    rule: Rule, adapter: Any, *, max_examples: int = 100, expected: Expected | None = None
) -> Verdict:
    """Search for a case that breaks a rule and return the verdict; ``expected`` is the failure that
    was declared."""
    missing = [name for name in rule.needs if name not in methods_of(adapter)]
    if missing:
        return Verdict(rule.id, NOT_CLAIMED, f"no {', '.join(missing)}")
    found = _Findings()
    _search(rule, adapter, max_examples, found)
    seen = (found.held, found.refused, list(found.reasons))
    # The adapter declined every case, so nothing was checked: "kept" would claim what was never
    # seen.
    if found.example is None and not found.held:
        return Verdict(rule.id, NOT_CLAIMED, "; ".join(found.reasons), *seen)
    reason = "" if expected is None else expected.reason
    return Verdict(
        rule.id, _outcome(found.example is not None, expected), reason, *seen, found.example
    )


def _outcome(broken: bool, expected: Expected | None) -> str:
    """Return the outcome of a rule, given the result of the search and the declaration."""
    if expected is None:
        return BROKEN if broken else KEPT
    # Both results were declared, so neither can fail the run.
    if expected.sometimes:
        return BROKEN_SOMETIMES
    return EXPECTED_FAILURE if broken else UNEXPECTED_PASS


class _Ended(BaseException):
    """The end of a search in which a process died.

    It derives from ``BaseException`` so that Hypothesis does not shrink the case: each further one
    may cost a process.
    """


@dataclass(slots=True)
class _Findings:
    """The findings of a search, which Hypothesis repeats for each case."""

    held: int = 0
    refused: int = 0
    # A dict as an ordered set: each text once, in the order of appearance.
    reasons: dict[str, None] = field(default_factory=dict)
    example: Counterexample | None = None


# Reasons of the settings: importing or compiling a framework takes longer than any deadline or
# health check allows. A rule has one law, so one failure is enough. Without a database, no earlier
# failures are replayed.
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
            # While Hypothesis shrinks a failure, it also tries cases that keep the rule; they are
            # not counted.
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
    # Some frameworks put a whole stack trace into a message; its beginning says what is wrong.
    told = " ".join(str(error).split())
    shortened = told if len(told) < 400 else told[:400] + " …"
    return Counterexample(
        calls.lines, f"It raised {type(error).__name__}: {shortened}", "It must not raise."
    )
