"""A run of the kit under pytest: one item a rule, and reports at the end.

The plugin hands over to this module once the kit is asked for. Rules are collected from the registry, not found by
name, so that no setting of the user's (``python_files``, ``--import-mode``) hides or doubles them.
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
from shardvar.conformance.registry import LEVELS, Rule, all_rules, rules_of
from shardvar.conformance.report import Report, details, table_lines, to_html, to_json
from shardvar.conformance.verdict import (
    BROKEN_SOMETIMES,
    EXPECTED_FAILURE,
    FAILURES,
    NOT_CLAIMED,
    Verdict,
    judge,
    read_expected,
    verdict_of,
)
from shardvar.errors import ArgumentError

HERE = Path(__file__).resolve().parent
PROPERTY = "shardvar.conformance"


def add_options(parser: pytest.Parser) -> None:
    """The kit's options."""
    group = parser.getgroup("conformance", "shardvar's conformance kit")
    group.addoption("--adapter", metavar="MODULE:NAME", help="the adapter of the implementation to be judged")
    group.addoption("--level", metavar="N", help="judge levels 1 to N, or with A-B from A to B (default: all, 1-8)")
    group.addoption("--conformance-json", metavar="FILE", help="write the report as JSON")
    group.addoption("--conformance-html", metavar="FILE", help="write the report as one HTML page")
    group.addoption("--expected-failures", metavar="FILE", help="rules known to be broken: RULE [sometimes]: reason")
    group.addoption(
        "--conformance-examples", metavar="N", type=int, default=60, help="cases a rule (default: %(default)s)"
    )


def start(config: pytest.Config) -> None:
    """Register the kit; a ``UsageError`` where an option cannot be meant."""
    if config.getoption("adapter") is None:
        if config.known_args_namespace.pyargs and not config.getoption("help"):
            raise pytest.UsageError(
                f"{PACKAGE} judges an adapter, and none was given. Add --adapter package.module:Name; "
                f"{PACKAGE}.adapters.numpy:Adapter is one to look at."
            )
        return
    try:
        config.pluginmanager.register(Conformance(config), "shardvar.conformance.session")
    except (ArgumentError, OSError) as error:
        raise pytest.UsageError(str(error)) from error


def levels_of(text: str | None) -> range:
    """The levels that ``--level`` means; ``ArgumentError`` where it means none.

    >>> levels_of("3"), levels_of("6-8"), levels_of(None)
    (range(1, 4), range(6, 9), range(1, 9))
    """
    first, dash, last = (text or str(max(LEVELS))).partition("-")
    if not dash:
        first, last = "1", first
    if not (first in map(str, LEVELS) and last in map(str, LEVELS) and int(first) <= int(last)):
        raise ArgumentError(f"--level {text} is no level.", "Give 1 to 8, or a range such as 6-8.")
    return range(int(first), int(last) + 1)


class Conformance:
    """The kit as a pytest plugin: collects the rules, judges them, reports."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.spec = str(config.getoption("adapter"))
        self.levels = levels_of(config.getoption("level"))
        path = config.getoption("expected_failures")
        text = Path(path).read_text(encoding="utf-8") if path else ""
        self.expected = read_expected(text, {rule.id for rule in all_rules()})
        here = str(config.invocation_params.dir)
        if here not in sys.path:  # an adapter need not be installed: one in this directory will do, as for python -m
            sys.path.append(here)
        self.adapter = load_adapter(self.spec)
        self.isolated = Isolated(self.adapter, self.spec)
        self.verdicts: dict[str, Verdict] = {}
        for option in ("conformance_json", "conformance_html"):
            target = config.getoption(option)
            if target and not Path(target).absolute().parent.is_dir():
                raise ArgumentError(f"There is no directory for {target}.", "Create it first.")

    def judge(self, rule: Rule) -> Verdict:
        """The verdict on a rule."""
        adapter = self.isolated if rule.isolated else self.adapter
        examples = self.config.getoption("conformance_examples")
        return judge(rule, adapter, max_examples=examples, expected=self.expected.get(rule.id))

    def report(self) -> Report:
        """What is known at the moment."""
        return Report(self.spec, self.adapter, self.levels, self.verdicts)

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """The rules stand where the registry is."""
        if file_path != HERE / "registry.py":
            return None
        rules: Rules = Rules.from_parent(parent, path=file_path, nodeid=PACKAGE, kit=self)
        return rules

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the verdicts, which come from other processes under pytest-xdist."""
        for name, value in report.user_properties:
            if name == PROPERTY and isinstance(value, dict):
                verdict = verdict_of(value)
                self.verdicts[verdict.rule] = verdict

    def pytest_report_header(self) -> str:
        """Whom this run judges."""
        return f"conformance: {self.spec}, levels {self.levels[0]} to {self.levels[-1]}"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The table, rule by rule."""
        terminalreporter.write_sep("=", f"conformance of {self.spec}")
        width = get_terminal_size().columns if terminalreporter.isatty else None
        for line, style in table_lines(self.report(), width):
            terminalreporter.write_line(line, **({style: True} if style else {}))

    def pytest_sessionfinish(self) -> None:
        """Write the reports, where they are asked for, and end the process that restored damaged checkpoints."""
        self.isolated.close()
        if hasattr(self.config, "workerinput"):
            return
        report = self.report()
        for option, written in (("conformance_json", to_json), ("conformance_html", to_html)):
            target = self.config.getoption(option)
            if target:
                Path(target).write_text(written(report), encoding="utf-8")


class Rules(pytest.File):
    """The collector of the rules."""

    kit: Conformance

    @classmethod
    def from_parent(cls, parent: Any, *, kit: Any = None, **arguments: Any) -> Any:
        """The usual constructor of a node, and the kit."""
        node = super().from_parent(parent, **arguments)
        node.kit = kit
        return node

    def collect(self) -> Iterator[pytest.Item]:
        """One item a rule of the levels that are asked for."""
        for rule in rules_of(self.kit.levels):
            item: RuleItem = RuleItem.from_parent(self, name=rule.id)
            item.rule = rule
            item.kit = self.kit
            yield item


class RuleItem(pytest.Item):
    """One rule."""

    rule: Rule
    kit: Conformance

    def runtest(self) -> None:
        """Judge the rule and say so in pytest's terms."""
        verdict = self.kit.judge(self.rule)
        self.user_properties.append((PROPERTY, verdict.as_json()))
        if verdict.outcome == NOT_CLAIMED:
            pytest.skip(f"not claimed: {verdict.reason}")
        if verdict.outcome in (EXPECTED_FAILURE, BROKEN_SOMETIMES):
            pytest.xfail(verdict.reason)
        if verdict.outcome in FAILURES:
            raise NotKept(details(self.rule, verdict, self.kit.spec))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The counterexample; a traceback only where the kit itself failed."""
        if isinstance(excinfo.value, NotKept):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """The title of a failure."""
        return self.path, None, f"{self.rule.id}: {self.rule.law}"


class NotKept(Exception):
    """A rule is not kept as it was claimed or declared; the text says all of it."""
