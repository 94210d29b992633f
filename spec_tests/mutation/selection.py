"""A pytest plugin that runs the listed tests alone, in their order: ``-p
spec_tests.mutation.selection``.

It writes a line for each test that begins and for each that fails, so that the process that waits
can end a test that hangs and name the test that failed.
"""

import json
import os
from pathlib import Path

import pytest

FILE = "MUTATION_TESTS"
"""The environment variable that names the file of the list; what is written goes beside it, with
the suffix `.log`."""


class _Selection:
    """The listed tests."""

    def __init__(self, path: Path) -> None:
        self._log = path.with_suffix(".log").open("a", encoding="utf-8", buffering=1)
        self._place = {
            test: number for number, test in enumerate(json.loads(path.read_text(encoding="utf-8")))
        }

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        place = self._place
        items[:] = sorted(
            (item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid]
        )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        print("begins", nodeid, file=self._log)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            print("failed", report.nodeid, file=self._log)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Selection(Path(os.environ[FILE])))
