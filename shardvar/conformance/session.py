"""A run of the kit under pytest: one item a rule, and reports at the end.

The plugin calls this module once a run names the kit. The steps: read the options, construct the
adapter, collect one item a rule, judge each item, write the reports. Rules come from their table
and are not found by name, so that no setting of the user (``python_files``, ``--import-mode``)
hides or doubles them.

The verdict on each rule, and the report: a table for a terminal, as JSON and as one HTML page.

Cases are a list, or are drawn by Hypothesis once a process, and every adapter gets copies of them; only
if one breaks the rule does Hypothesis search, and shrink it. The search is the same in every run
(derandomized, no database), so a table changes only because an implementation did. The last failing
case is the smallest; its calls are kept as a program.

A failure may be declared in a text file, one rule a line with the reason; ``#`` begins a comment:

    R-INIT-5: the framework ignores the offset of a partition, tracked upstream
    R-DAMAGE-1-flip sometimes: no checksums, and the places of payloads differ from run to run

A declared failure that is found is an expected failure, and one that is not found is an unexpected
pass. With ``sometimes`` both are ``broken in some runs``.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import partial
from html import escape
from pathlib import Path
from random import Random
from shutil import get_terminal_size
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy, lists

import shardvar
from shardvar.conformance import PACKAGE
from shardvar.conformance.adapter import load_adapter, methods_of, strangers_of
from shardvar.conformance.calls import (
    Broken,
    Calls,
    Isolated,
    KeptByRefusal,
    NotClaimed,
    ProcessDied,
)
from shardvar.conformance.rules import LEVELS, Rule, all_rules, rules_of
from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.records import asdict, field, fields, frozen, mutable, replace

KEPT = "kept"
BROKEN = "broken"
NOT_CLAIMED = "not claimed"
EXPECTED_FAILURE = "expected failure"
BROKEN_SOMETIMES = "broken in some runs"
UNEXPECTED_PASS = "unexpected pass"
NOT_RUN = "not run"

FAILURES = (BROKEN, UNEXPECTED_PASS)

SOMETIMES = "sometimes"


@frozen
class Expected:
    reason: str
    sometimes: bool = False
    """True if only some runs find a case that breaks it, so both results are expected."""


@frozen
class Counterexample:
    """The smallest case that was found to break a rule."""

    calls: list[str]
    """The calls of the adapter, as Python; ``np`` is NumPy, ``adapter`` the adapter."""
    came: str
    must: str
    """The result that the rule demands, in a sentence."""


@mutable(eq=True)
class Verdict:
    rule: str
    outcome: str = NOT_RUN
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
        return asdict(self)


def read_expected(text: str, known: Collection[str]) -> dict[str, Expected]:
    """``ArgumentError`` for a line without a reason, or an unknown or a repeated rule."""
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
    example = data["counterexample"]
    return Verdict(
        **data | {"counterexample": None if example is None else Counterexample(**example)}
    )


def judge(
    rule: Rule, adapter: Any, *, max_examples: int = 100, expected: Expected | None = None
) -> Verdict:
    """Search for a case that breaks a rule; ``expected`` is the failure that was declared."""
    missing = [name for name in rule.needs if name not in methods_of(adapter)]
    if missing:
        return Verdict(rule.id, NOT_CLAIMED, f"no {', '.join(missing)}")
    found = Verdict(rule.id)
    for case in _drawn(rule.cases, max_examples):
        try:
            _check(rule, adapter, found, copied(case))
        # Not shrunk, at the cost of many processes.
        except ProcessDied:
            break
        except Exception:  # noqa: BLE001 - it is among the findings
            _shrink(rule, adapter, max_examples, found, case)
            break
    # The adapter declined every case, so nothing was checked: "kept" would claim what was never
    # seen.
    if found.counterexample is None and not found.cases:
        return replace(found, outcome=NOT_CLAIMED, reason="; ".join(found.unclaimed))
    reason = "" if expected is None else expected.reason
    outcome = _outcome(found.counterexample is not None, expected)
    return replace(found, outcome=outcome, reason=reason)


def _outcome(broken: bool, expected: Expected | None) -> str:
    """Return the outcome of a rule, given the result of the search and the declaration."""
    if expected is None:
        return BROKEN if broken else KEPT
    # Both results were declared, so neither can fail the run.
    if expected.sometimes:
        return BROKEN_SOMETIMES
    return EXPECTED_FAILURE if broken else UNEXPECTED_PASS


def _check(rule: Rule, adapter: Any, found: Verdict, case: Any) -> None:
    """Judge one case; raise what the rule raised where it is broken."""
    calls = Calls(adapter)
    try:
        # NumPy warns of the infinities that rules add, and pytest may be told to raise warnings.
        with suppress(KeptByRefusal), np.errstate(all="ignore"):
            rule.check(calls, case)
    except NotClaimed as error:
        found.unclaimed_cases += 1
        found.unclaimed += {str(error)} - {*found.unclaimed}
    except Exception as error:
        found.counterexample = _example(calls, error)
        raise
    else:
        # While Hypothesis shrinks a failure, it also tries cases that keep the rule; they are not
        # counted.
        found.cases += found.counterexample is None


def _shrink(rule: Rule, adapter: Any, max_examples: int, found: Verdict, case: Any) -> None:
    """Look for a smaller case that breaks the rule, and repeat it."""
    again = Verdict(rule.id)
    try:
        _check(rule, adapter, again, copied(case))
    except Exception:  # noqa: BLE001 - it breaks the rule again
        is_steady = True
    else:
        is_steady = False
    # The first cases of a list are its simplest.
    if is_steady and isinstance(rule.cases, SearchStrategy):
        smaller = replace(again, counterexample=found.counterexample)
        try:
            _search(rule.cases, max_examples, partial(_check, rule, adapter, smaller))
        except Flaky:
            is_steady = False
        except Exception:  # noqa: BLE001 - it is among the findings
            pass
        found.counterexample = smaller.counterexample
    if found.counterexample is not None and not is_steady:
        found.counterexample.calls.append("# The same calls did not do the same every time.")


BATCH = 5
"""Cases that are drawn at once, at a third of the cost: Hypothesis takes a millisecond a draw."""

_DRAWN: dict[tuple[int, int], tuple[Any, list[Any]]] = {}
"""Cases by the identity of a strategy or a list, which is kept alive, and by their number."""


def _drawn(cases: Any, max_examples: int) -> list[Any]:
    """Return the cases of a rule, which are the same for all adapters of a process."""
    key = id(cases), max_examples
    if key in _DRAWN:
        return _DRAWN[key][1]
    drawn: list[Any] = []
    if isinstance(cases, SearchStrategy):
        batches = lists(cases, min_size=BATCH, max_size=BATCH)
        _search(batches, -(-max_examples // BATCH), drawn.extend)
    elif len(cases) <= max_examples:
        drawn += cases
    else:
        drawn += [cases[at] for at in sorted(Random(0).sample(range(len(cases)), max_examples))]
    _DRAWN[key] = cases, drawn[:max_examples]
    return drawn[:max_examples]


# Reasons of the settings: importing or compiling a framework takes longer than any deadline or
# health check allows. A rule has one law, so one failure is enough. Without a database, no earlier
# failures are replayed.
def _search(cases: SearchStrategy[Any], max_examples: int, visit: Callable[[Any], None]) -> None:
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
    @given(cases)
    def search(case: Any) -> None:
        visit(case)

    search()


def copied(case: Any) -> Any:
    """Return a case whose arrays are others, and lie in memory as the drawn ones do."""
    if isinstance(case, np.ndarray):
        return _copied_array(case)
    if isinstance(case, list | tuple):
        return type(case)(map(copied, case))
    if isinstance(case, dict):
        return {key: copied(value) for key, value in case.items()}
    if is_dataclass(case) and not isinstance(case, type):
        return replace(
            case, **{each.name: copied(getattr(case, each.name)) for each in fields(case)}
        )
    return case


def _copied_array(array: Array) -> Array:
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if not array.size or array.dtype == object or owner.base is not None:
        return array.copy()
    # Strides, also backwards and with gaps, are those within the memory of the owner.
    memory = owner.ravel("K").view(np.uint8).copy()
    first = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    copy: Array = np.ndarray(array.shape, array.dtype, memory, first, array.strides)
    copy.flags.writeable = array.flags.writeable
    return copy


def _example(calls: Calls, error: Exception) -> Counterexample:
    if isinstance(error, ProcessDied):
        return Counterexample(calls.lines, str(error), "It must return or raise.")
    if isinstance(error, Broken):
        return Counterexample(calls.lines, error.came, error.must)
    # Some frameworks put a whole stack trace into a message; its beginning names the error.
    told = " ".join(str(error).split())
    shortened = told if len(told) < 400 else told[:400] + " …"
    return Counterexample(
        calls.lines, f"It raised {type(error).__name__}: {shortened}", "It must not raise."
    )


OUTCOMES = (KEPT, BROKEN, NOT_CLAIMED, EXPECTED_FAILURE, BROKEN_SOMETIMES, UNEXPECTED_PASS, NOT_RUN)
_STYLES = {KEPT: "green", BROKEN: "red", UNEXPECTED_PASS: "red"}
_STYLES |= dict.fromkeys((EXPECTED_FAILURE, BROKEN_SOMETIMES), "yellow")


@frozen
class Report:
    spec: str
    """The name of the adapter, ``package.module:Name``."""
    adapter: Any
    levels: range
    verdicts: Mapping[str, Verdict]
    """The verdicts by rule; rules that are missing were not run."""

    def rows(self) -> Iterator[tuple[Rule, Verdict]]:
        for rule in rules_of(self.levels):
            yield rule, self.verdicts.get(rule.id, Verdict(rule.id))

    def counts(self) -> dict[str, int]:
        counted = Counter(verdict.outcome for _, verdict in self.rows())
        return {outcome: counted[outcome] for outcome in OUTCOMES}


def remark(verdict: Verdict) -> str:
    """Return the remark next to an outcome: the reason, and the share of unclaimed cases."""
    parts = [verdict.reason] if verdict.reason else []
    if verdict.unclaimed_cases and verdict.outcome != NOT_CLAIMED:
        # Three reasons fit on a line; the JSON report has all of them.
        reasons = f": {'; '.join(verdict.unclaimed[:3])}" if verdict.unclaimed else ""
        total = verdict.cases + verdict.unclaimed_cases
        parts.append(f"{verdict.unclaimed_cases} of {total} cases not claimed{reasons}")
    return "; ".join(parts)


def summary(report: Report) -> str:
    """Return the counts in one line; only the first three outcomes may be 0."""
    counts = report.counts()
    shown = [
        outcome for outcome in OUTCOMES if counts[outcome] or outcome in (KEPT, BROKEN, NOT_CLAIMED)
    ]
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in shown)


def table_lines(report: Report, width: int | None) -> Iterator[tuple[str, str]]:
    """Yield the lines of the table, cut to the terminal, each with a colour or ``""``."""
    rows = list(report.rows())
    broad = max((len(rule.id) for rule, _ in rows), default=0)
    for level in report.levels:
        yield f"level {level}: {LEVELS[level]}", "bold"
        for rule, verdict in rows:
            if rule.level != level:
                continue
            note = f"({remark(verdict)}) " if remark(verdict) else ""
            line = (
                f"  {rule.id:{broad}}  {verdict.outcome:{max(map(len, OUTCOMES))}}  "
                f"{note}{rule.law}"
            )
            fits = width is None or len(line) <= width
            yield line if fits else line[: (width or 1) - 1] + "…", _STYLES.get(verdict.outcome, "")
    strangers = strangers_of(report.adapter)
    if strangers:
        yield f"no rule asks for these methods of the adapter: {', '.join(strangers)}", "yellow"
    yield summary(report), "bold"


def details(rule: Rule, verdict: Verdict, spec: str) -> str:
    head = f'{rule.id} ({rule.source}, level {rule.level}): "{rule.sentence}"\n{rule.law}.\n'
    # Only an unexpected pass fails without a counterexample.
    if verdict.counterexample is None:
        return (
            f"{head}\nIt was declared as an expected failure ({verdict.reason}), and is kept: take "
            "it off the list."
        )
    return f"{head}\nThe smallest counterexample:\n\n{program(verdict, spec)}"


def program(verdict: Verdict, spec: str) -> str:
    """Return the counterexample as a program on the adapter, with results in comments."""
    example = verdict.counterexample
    if example is None:
        return ""
    module, _, name = spec.partition(":")
    calls = "\n".join(example.calls)
    imports = ["import numpy as np", f"from {module} import {name}"]
    # Importing ml_dtypes registers these names with NumPy, which then accepts them as texts.
    if any(word in calls for word in ("bfloat16", "float8", "float4", "int4", "int2'")):
        imports.insert(0, "import ml_dtypes  # dtypes that NumPy has not")
    lines = [
        *imports,
        "",
        f"adapter = {name}()",
        *example.calls,
        f"# {example.came}",
        f"# {example.must}",
    ]
    return "\n".join(f"    {line}" if line else "" for line in "\n".join(lines).split("\n"))


def to_json(report: Report) -> str:
    rules = [
        {
            "id": rule.id,
            "sentence_id": rule.sentence_id,
            "level": rule.level,
            "rfc": rule.rfc if rule.rfc.isdigit() else None,
            "source": rule.source,
            "sentence": rule.sentence,
            "law": rule.law,
            "needs": list(rule.needs),
            **{key: value for key, value in verdict.as_json().items() if key != "rule"},
            "program": program(verdict, report.spec) or None,
        }
        for rule, verdict in report.rows()
    ]
    body = {
        "adapter": report.spec,
        "shardvar": shardvar.__version__,
        "levels": {str(level): LEVELS[level] for level in report.levels},
        "methods": sorted(methods_of(report.adapter)),
        "unknown_methods": strangers_of(report.adapter),
        "counts": report.counts(),
        "rules": rules,
    }
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


def to_html(report: Report) -> str:
    title = f"Conformance of {escape(report.spec)}"
    judged = f"{escape(summary(report))}; judged by shardvar {shardvar.__version__}"
    parts = [_HEAD.format(title=title), f"<h1>{title}</h1><p>{judged}"]
    for level in report.levels:
        parts.append(
            f"<h2>Level {level}: {LEVELS[level]}</h2><table><tr><th>rule<th>verdict<th>law and "
            "sentence"
        )
        for rule, verdict in report.rows():
            if rule.level == level:
                parts.append(_html_row(rule, verdict, report.spec))
        parts.append("</table>")
    return "\n".join(parts) + "\n"


def _html_row(rule: Rule, verdict: Verdict, spec: str) -> str:
    note = remark(verdict)
    text = f"{escape(rule.law)}<br><q>{escape(rule.sentence)}</q> {rule.source}"
    text += f"<br>{escape(note)}" if note else ""
    if verdict.counterexample is not None:
        text += f"<details><summary>counterexample</summary><pre>{escape(program(verdict, spec))}</pre></details>"
    css = verdict.outcome.replace(" ", "-")
    return f'<tr class="{css}" id="{rule.id}"><td>{rule.id}<td>{verdict.outcome}<td>{text}'


# Braces are doubled because ``str.format`` puts the title in.
_HEAD = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.4 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; vertical-align: top; padding: .3em .6em }}
tr {{ border-bottom: 1px solid #ccc }} td:first-child, td:nth-child(2) {{ white-space: nowrap }} q {{ color: #555 }}
.kept td:nth-child(2) {{ color: #060 }} .broken td:nth-child(2), .unexpected-pass td:nth-child(2) {{ color: #a00 }}
.expected-failure td:nth-child(2), .broken-in-some-runs td:nth-child(2) {{ color: #960 }}
.not-claimed td, .not-run td {{ color: #777 }}
pre {{ overflow-x: auto; background: #f6f6f6; padding: .6em }}
</style>"""


HERE = Path(__file__).resolve()
PROPERTY = "shardvar.conformance"


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "shardvar's conformance kit")
    group.addoption(
        "--adapter", metavar="MODULE:NAME", help="the adapter of the implementation to be judged"
    )
    group.addoption(
        "--level",
        metavar="N",
        help="judge levels 1 to N, or with A-B from A to B (default: all, 1-10)",
    )
    group.addoption("--conformance-json", metavar="FILE", help="write the report as JSON")
    group.addoption("--conformance-html", metavar="FILE", help="write the report as one HTML page")
    group.addoption(
        "--expected-failures",
        metavar="FILE",
        help="rules known to be broken: RULE [sometimes]: reason",
    )
    group.addoption(
        "--conformance-examples",
        metavar="N",
        type=int,
        default=60,
        help="cases a rule (default: %(default)s)",
    )


def start(config: pytest.Config) -> None:
    if config.getoption("adapter") is None:
        # With --pyargs the user asked for a verdict; without it, a path of the package may be named
        # for another reason.
        if config.known_args_namespace.pyargs and not config.getoption("help"):
            raise pytest.UsageError(
                f"{PACKAGE} judges an adapter, and none was given. Add --adapter "
                f"package.module:Name; {PACKAGE}.adapters.numpy:Adapter is one to look at."
            )
        return
    try:
        config.pluginmanager.register(Conformance(config), "shardvar.conformance.session")
    except (ArgumentError, OSError) as error:
        raise pytest.UsageError(str(error)) from error


def levels_of(text: str | None) -> range:
    """``ArgumentError`` unless the text is a level, which means all up to it, or a range."""
    first, dash, last = (text or str(max(LEVELS))).partition("-")
    if not dash:
        first, last = "1", first
    # Compared as texts, since ``int`` would also take '+3' and '3_0'.
    if not (first in map(str, LEVELS) and last in map(str, LEVELS) and int(first) <= int(last)):
        raise ArgumentError(
            f"Invalid --level {text!r}.", "Give a level from 1 to 10, or a range such as 6-8."
        )
    return range(int(first), int(last) + 1)


class Conformance:
    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.spec = str(config.getoption("adapter"))
        self.levels = levels_of(config.getoption("level"))
        # The declarations come first: a mistake in them shows before the adapter's module is
        # imported, which may take seconds.
        path = config.getoption("expected_failures")
        text = Path(path).read_text(encoding="utf-8") if path else ""
        self.expected = read_expected(text, {rule.id for rule in all_rules()})
        # An adapter need not be installed: as with ``python -m``, one in the working directory is
        # found.
        here = str(config.invocation_params.dir)
        if here not in sys.path:
            sys.path.append(here)
        self.adapter = load_adapter(self.spec)
        self.isolated = Isolated(self.adapter, self.spec)
        self.verdicts: dict[str, Verdict] = {}
        # Checked at the start, not after a run of minutes whose report would be lost.
        for option in ("conformance_json", "conformance_html"):
            target = config.getoption(option)
            if target and not Path(target).absolute().parent.is_dir():
                raise ArgumentError(
                    f"The directory of {target} does not exist.", "Create it first."
                )

    def judge(self, rule: Rule) -> Verdict:
        adapter = self.isolated if rule.isolated else self.adapter
        examples = self.config.getoption("conformance_examples")
        return judge(rule, adapter, max_examples=examples, expected=self.expected.get(rule.id))

    def report(self) -> Report:
        return Report(self.spec, self.adapter, self.levels, self.verdicts)

    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        """Collect the rules where pytest comes to this file, and nothing elsewhere."""
        # One file stands for the whole kit, so that each rule is collected once.
        if file_path != HERE:
            return None
        rules: Rules = Rules.from_parent(parent, path=file_path, nodeid=PACKAGE, kit=self)
        return rules

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the verdicts, which come from other processes under pytest-xdist."""
        # pytest-xdist sends reports as plain data, which is why a verdict travels as a dict.
        for name, value in report.user_properties:
            if name == PROPERTY and isinstance(value, dict):
                verdict = verdict_of(value)
                self.verdicts[verdict.rule] = verdict

    def pytest_report_header(self) -> str:
        return f"conformance: {self.spec}, levels {self.levels[0]} to {self.levels[-1]}"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_sep("=", f"conformance of {self.spec}")
        # Lines are cut at a terminal only; a log keeps each reason in full.
        width = get_terminal_size().columns if terminalreporter.isatty else None
        for line, style in table_lines(self.report(), width):
            terminalreporter.write_line(line, **({style: True} if style else {}))

    def pytest_sessionfinish(self) -> None:
        self.isolated.close()
        # A worker of pytest-xdist sees some of the verdicts; only the controller has all of them
        # and writes.
        if hasattr(self.config, "workerinput"):
            return
        report = self.report()
        for option, written in (("conformance_json", to_json), ("conformance_html", to_html)):
            target = self.config.getoption(option)
            if target:
                Path(target).write_text(written(report), encoding="utf-8")


class Rules(pytest.File):
    kit: Conformance

    @classmethod
    def from_parent(cls, parent: Any, *, kit: Any = None, **arguments: Any) -> Any:
        node = super().from_parent(parent, **arguments)
        node.kit = kit
        return node

    def collect(self) -> Iterator[pytest.Item]:
        for rule in rules_of(self.kit.levels):
            item: RuleItem = RuleItem.from_parent(self, name=rule.id)
            item.rule = rule
            item.kit = self.kit
            yield item


class RuleItem(pytest.Item):
    rule: Rule
    kit: Conformance

    def runtest(self) -> None:
        verdict = self.kit.judge(self.rule)
        # Recorded first, since each outcome but "kept" leaves this function by an exception.
        self.user_properties.append((PROPERTY, verdict.as_json()))
        if verdict.outcome == NOT_CLAIMED:
            pytest.skip(f"not claimed: {verdict.reason}")
        if verdict.outcome in (EXPECTED_FAILURE, BROKEN_SOMETIMES):
            pytest.xfail(verdict.reason)
        if verdict.outcome in FAILURES:
            raise NotKept(details(self.rule, verdict, self.kit.spec))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the counterexample, or a traceback where the kit itself failed."""
        if isinstance(excinfo.value, NotKept):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"{self.rule.id}: {self.rule.law}"


class NotKept(Exception):
    """A rule that was claimed or declared is not kept; the text is the whole message."""
