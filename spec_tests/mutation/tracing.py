"""A pytest plugin that records which test executes which line: ``-p spec_tests.mutation.tracing``.

coverage.py traces, in this process, in its forks and in the Python programs that the tests start. Its
context is the number of a set of tests: of the running one, or of all that share the fixture that is
made. The record also has the duration of each test, so that the quick ones can run first, and the
tests that fail without any mutant, which prove nothing.
"""

import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

from spec_tests.mutation.trace import FILE

_data = tempfile.TemporaryDirectory()
_settings = Path(_data.name, "settings")
"""The settings of programs. A program's environment may be older than the test that starts it, so
that the context stands here."""
_coverage = coverage.Coverage(
    data_file=f"{_data.name}/data", data_suffix=True, source_pkgs=["shardvar"], config_file=False
)
_coverage.set_option("run:disable_warnings", ["module-not-measured", "no-data-collected"])
_coverage.set_option("run:patch", ["_exit"])  # by which forks end
_contexts: list[set[str]] = [set()]
_users: dict[str, set[str]] = defaultdict(set)
"""The tests of each fixture that is made once for several."""
_seconds: dict[str, float] = {}
_failed: set[str] = set()


def _begin(tests: set[str]) -> None:
    """Let what is executed from now on be executed by these tests."""
    _contexts.append(tests)
    context = len(_contexts) - 1
    _coverage.switch_context(str(context))
    _settings.write_text(
        f"[run]\nsource_pkgs = shardvar\nparallel = true\npatch = _exit\ncontext = {context}\n"
        f"data_file = {_data.name}/data\n",
        encoding="utf-8",
    )


def pytest_configure() -> None:
    os.environ["COVERAGE_PROCESS_START"] = str(_settings)  # coverage.py starts with each program
    _coverage.start()
    _begin(set())


def _name_of(fixture: pytest.FixtureDef[object]) -> str:
    return f"{fixture.baseid}::{fixture.argname}"


def pytest_collection_finish(session: pytest.Session) -> None:
    for item in session.items:
        assert isinstance(item, pytest.Function)
        for fixtures in item._fixtureinfo.name2fixturedefs.values():
            _users[_name_of(fixtures[-1])].add(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    assert isinstance(item, pytest.Function)
    for value in vars(item.module).values():  # a result that is kept executes nothing again
        if getattr(value, "__module__", "") == item.module.__name__ and hasattr(
            value, "cache_clear"
        ):
            value.cache_clear()
    _begin({item.nodeid})
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
    if fixturedef.scope == "function":
        return (yield)
    before = _contexts[-1]
    _begin(_users[_name_of(fixturedef)])
    try:
        return (yield)
    finally:
        _begin(before)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] = round(_seconds.get(report.nodeid, 0.0) + report.duration, 4)
    if report.failed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    _coverage.stop()
    _coverage.save()
    numbers = {test: number for number, test in enumerate(_seconds)}
    found: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for file in Path(_data.name).glob("data.*"):
        data = coverage.CoverageData(basename=str(file))
        try:
            data.read()
        except coverage.exceptions.DataError:  # Its program was killed while it wrote.
            continue
        for path in data.measured_files():
            executed = found[path.rpartition("/shardvar/")[2]]
            for line, contexts in data.contexts_by_lineno(path).items():
                tests = set().union(*(_contexts[int(each or 0)] for each in contexts))
                executed[line] |= {numbers[test] for test in tests if test in numbers}
    lines = {
        path: {line: sorted(tests) for line, tests in executed.items()}
        for path, executed in sorted(found.items())
    }
    record = {"seconds": _seconds, "failed": sorted(_failed), "lines": lines}
    Path(os.environ[FILE]).write_text(json.dumps(record), encoding="utf-8")
