"""A run of the kit under pytest: one item a rule, and reports at the end.

The plugin calls this module once a run names the kit. The steps: read the options, construct the
adapter, collect one item a rule, judge each item, write the reports. Rules come from their table
and are not found by name, so that no setting of the user (``python_files``, ``--import-mode``)
hides or doubles them.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

import pytest

from shardvar.conformance import PACKAGE
from shardvar.conformance.adapter import load_adapter
from shardvar.conformance.calls import Isolated
from shardvar.conformance.report import (
    BROKEN_SOMETIMES,
    EXPECTED_FAILURE,
    FAILURES,
    NOT_CLAIMED,
    Report,
    Verdict,
    details,
    judge,
    read_expected,
    table_lines,
    to_html,
    to_json,
    verdict_of,
)
from shardvar.conformance.rules import LEVELS, Rule, all_rules, rules_of
from shardvar.errors import ArgumentError

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
