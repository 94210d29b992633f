"""A pytest plugin that records which test executes which line: ``-p spec_tests.mutation.tracing``.

coverage.py traces; its context is the id of the running test. The record also has the duration of
each test, so that the quick ones can run first, and the tests that fail without any mutant, which
prove nothing.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

from spec_tests.mutation.trace import FILE

_coverage = coverage.Coverage(data_file=None, source_pkgs=["shardvar"], config_file=False)
_coverage.set_option("run:disable_warnings", ["module-not-measured", "no-data-collected"])
_seconds: dict[str, float] = {}
_failed: set[str] = set()


def pytest_configure() -> None:
    _coverage.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _coverage.switch_context(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] = round(_seconds.get(report.nodeid, 0.0) + report.duration, 4)
    if report.failed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    _coverage.stop()
    data = _coverage.get_data()
    numbers = {test: number for number, test in enumerate(_seconds)}
    lines = {
        path.rpartition("/shardvar/")[2]: {
            line: sorted({numbers[test] for test in tests if test in numbers})
            for line, tests in data.contexts_by_lineno(path).items()
        }
        for path in sorted(data.measured_files())
    }
    record = {"seconds": _seconds, "failed": sorted(_failed), "lines": lines}
    Path(os.environ[FILE]).write_text(json.dumps(record), encoding="utf-8")
