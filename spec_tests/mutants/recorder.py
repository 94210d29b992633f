"""A pytest plugin that records the failed tests, and the shardvar they ran on: `-p
spec_tests.mutants.recorder`."""

import json
import os
from pathlib import Path

import pytest

FILE = "MUTANT_RECORD"
"""The environment variable that names the file."""

_failed: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and report.nodeid not in _failed:
        _failed.append(report.nodeid)


def pytest_sessionfinish() -> None:
    import shardvar

    Path(os.environ[FILE]).write_text(
        json.dumps({"failed": _failed, "package": shardvar.__file__}), encoding="utf-8"
    )
