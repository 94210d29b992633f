"""Hypothesis's profiles, the folders that need more than the developer's tools, and the state that
tests share.

`default` is for the desk. `ci` draws the same examples on every run. `laws` (`make laws`) looks for
rare counterexamples. `mutants` does not shrink the counterexamples that it finds. No test has a
time limit.
"""

import gc
import locale
import os
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec

import ml_dtypes  # noqa: F401  # NumPy knows the names of its dtypes only then, whichever test is first
import pytest
from hypothesis import HealthCheck, Phase, settings

from spec_tests.helpers.thoroughness import EXHAUSTIVE

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]

# Sixty would make `make test` half as long again; `make laws` has the many.
settings.register_profile(
    "default", deadline=None, max_examples=24, suppress_health_check=_SLOW_IS_FINE
)
settings.register_profile(
    "ci", settings.get_profile("default"), derandomize=True, database=None, print_blob=True
)
# About an hour on two cores; some properties take a second an example. EXAMPLES=5000 is for a
# night.
_MANY = int(os.environ.get("EXAMPLES", "500"))
settings.register_profile("laws", settings.get_profile("default"), max_examples=_MANY)
_ONE_BUG = {"phases": [Phase.explicit, Phase.generate], "report_multiple_bugs": False}
settings.register_profile("mutants", settings.get_profile("ci"), max_examples=60, **_ONE_BUG)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# These folders are collected only where their package is installed: the parity tests beside the
# real frameworks (`make peers`), the notebook (`make tour`), the pages in a browser (`make
# browser`), buckets (`make cloud`).
_NEEDS = {"peers": "tensorflow", "notebook": "nbclient", "browser": "selenium", "cloud": "moto"}
collect_ignore = [folder for folder, package in _NEEDS.items() if not find_spec(package)]

# What the terminal and the user have set changes no outcome: the width and the colours of a
# terminal, and permissions of new files. A test that is about one of these sets it.
_UNSET = (
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "FORCE_COLOR",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    "SHARDVAR_TRACEBACK",
)
for _name in _UNSET:
    os.environ.pop(_name, None)
os.umask(0o022)


# pytest keeps the tests that it has rewritten: to rewrite them takes longer than to collect them.
_WRITES_NO_BYTECODE, sys.dont_write_bytecode = sys.dont_write_bytecode, False


def pytest_collection_finish() -> None:
    """Leave the items of all tests out of later collections of garbage, which take a second with them."""
    sys.dont_write_bytecode = _WRITES_NO_BYTECODE
    gc.collect()
    gc.freeze()


_FSTAT = os.fstat


def _sync_nothing(descriptor: int) -> None:
    """Take the place of ``os.fsync`` but for its waiting, which was half of the time of all tests.

    No test cuts the power in earnest: ``helpers.system_calls`` records what is synced and when, and
    ``crash/test_power_cut.py`` removes what was not. Programs that tests start sync as ever.
    """
    _FSTAT(descriptor)  # a descriptor that is not open is an error


os.fsync = _sync_nothing


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the cases of a test marked ``sample(every)`` whose turn it is not, unless one is named."""
    if EXHAUSTIVE or any("[" in argument for argument in config.args):
        return
    cases: Counter[str] = Counter()
    taken: dict[bool, list[pytest.Item]] = {False: [], True: []}
    for item in items:
        test, marker = item.nodeid.partition("[")[0], item.get_closest_marker("sample")
        taken[marker is None or cases[test] % marker.args[0] == 0].append(item)
        cases[test] += 1
    config.hook.pytest_deselected(items=taken[False])
    items[:] = taken[True]


@pytest.fixture(autouse=True)
def leaves_the_process_as_it_was() -> Iterator[None]:
    """Let no test change what those after it start with, so that their order and their number of
    processes is free."""
    before = _shared_state()
    yield
    assert _shared_state() == before


def _shared_state() -> tuple[object, ...]:
    """Return the state of the process: its directory, user, umask and locale, and variables that
    others read.

    Other variables may change: frameworks set their own when they are imported.
    """
    mask = os.umask(0o022)
    os.umask(mask)
    environment = [
        os.environ.get(name) for name in (*_UNSET, "TERM", "HOME", "PATH", "PYTHONPATH", "TMPDIR")
    ]
    return os.getcwd(), os.geteuid(), mask, locale.setlocale(locale.LC_ALL), environment
