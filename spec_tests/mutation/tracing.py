"""A pytest plugin that records which test executes which line: ``-p spec_tests.mutation.tracing``.

coverage.py traces, in this process and in the Python programs that the tests start; its context is
the id of the running test. The record also has the duration of each test, so that the quick ones
can run first, and the tests that fail without any mutant, which prove nothing.
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

_TEST = "MUTATION_TEST"
"""The environment variable that tells the programs that a test starts which test it is."""
_programs = tempfile.TemporaryDirectory()
_coverage = coverage.Coverage(data_file=None, source_pkgs=["shardvar"], config_file=False)
_coverage.set_option("run:disable_warnings", ["module-not-measured", "no-data-collected"])
_seconds: dict[str, float] = {}
_failed: set[str] = set()


def pytest_configure() -> None:
    settings = Path(_programs.name, "settings")
    settings.write_text(
        f"[run]\nsource_pkgs = shardvar\nparallel = true\ndata_file = {_programs.name}/data\n"
        f"context = ${{{_TEST}}}\n",
        encoding="utf-8",
    )
    os.environ["COVERAGE_PROCESS_START"] = str(settings)  # coverage.py starts with each program
    _coverage.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _coverage.switch_context(item.nodeid)
    os.environ[_TEST] = item.nodeid
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] = round(_seconds.get(report.nodeid, 0.0) + report.duration, 4)
    if report.failed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    _coverage.stop()
    numbers = {test: number for number, test in enumerate(_seconds)}
    found: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for data in [_coverage.get_data(), *_of_programs()]:
        for path in data.measured_files():
            executed = found[path.rpartition("/shardvar/")[2]]
            for line, tests in data.contexts_by_lineno(path).items():
                executed[line] |= {numbers[test] for test in tests if test in numbers}
    lines = {
        path: {line: sorted(tests) for line, tests in executed.items()}
        for path, executed in sorted(found.items())
    }
    record = {"seconds": _seconds, "failed": sorted(_failed), "lines": lines}
    Path(os.environ[FILE]).write_text(json.dumps(record), encoding="utf-8")


def _of_programs() -> Iterator[coverage.CoverageData]:
    for path in Path(_programs.name).glob("data.*"):
        data = coverage.CoverageData(basename=str(path))
        data.read()
        yield data
