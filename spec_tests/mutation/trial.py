"""Makes mutants in a copy of the repository, and runs on each the tests that execute its line.

Only the layer's own tests run, the quick ones before the slow ones, and end at the first that
fails. A copy is used again for the next mutant: the file that was changed gets its old
text, and a new time, so that no compiled file is taken for it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from spec_tests.helpers.paths import ROOT
from spec_tests.mutation import forks
from spec_tests.mutation.sample import Mutant
from spec_tests.mutation.selection import FILE
from spec_tests.mutation.trace import Trace

PATIENCE = 40.0
"""Seconds that a test may take more than it does on the unchanged package, ten times over, before
it hangs."""
START = 300.0
"""Seconds that the import and the collection of the tests may take."""

_COPIED = (
    "shardvar",
    "spec_tests",
    "docs",
    "examples",
    "benchmarks",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
)
_PYTEST = "-m pytest -q --tb=no -p no:cacheprovider --maxfail=1 --hypothesis-profile=mutants"


@dataclass
class Copy:
    """A copy of the repository of which mutants are made, one at a time."""

    place: Path
    """Its directory."""
    _times: "count[int]" = field(default_factory=lambda: count(1_000_000_000))

    def open(self) -> "Copy":
        for name in _COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(
                    ROOT / name, self.place / name, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                shutil.copy2(ROOT / name, self.place / name)
        return self

    def write(self, path: str, text: str) -> None:
        """Replace a file of the package."""
        changed = self.place / "shardvar" / path
        changed.write_text(text, encoding="utf-8")
        moment = next(self._times)
        os.utime(changed, (moment, moment))

    def sift(
        self, mutants: Sequence[Mutant], trace: Trace, *, all_: bool = False
    ) -> list[list[str]]:
        """Return the first test, or all tests, that fail on each mutant if it is tried in a fork
        (see `forks`)."""
        jobs = []
        for each in mutants:
            tests = _order(each, trace)
            slowest = max((trace.seconds[test] for test in tests), default=0.0)
            jobs.append(
                {
                    "patience": PATIENCE / (2 if all_ else 1) + 10 * slowest,
                    "path": each.path,
                    "text": each.text(),
                    "line": each.change.start[0],
                    "tests": tests,
                    "all": all_,
                }
            )
        path = self.place / "jobs.json"
        path.write_text(json.dumps(jobs), encoding="utf-8")
        files = {test.partition("::")[0] for job in jobs for test in job["tests"]}
        if files:
            self._start("forks", forks.FILE, path, files).wait()
        found = path.with_suffix(".found")
        lines = found.read_text(encoding="utf-8").splitlines() if found.exists() else []
        return [json.loads(line) for line in lines] + [[]] * (len(mutants) - len(lines))

    def judge(self, mutant: Mutant, trace: Trace, *, all_: bool = False) -> list[str]:
        """Run the tests that execute the mutant's line, and return those that notice it: the first,
        or all."""
        tests = _order(mutant, trace)
        self.write(mutant.path, mutant.text())
        try:
            return self.run(tests, trace, all_=all_) if tests else []
        finally:
            self.write(mutant.path, (ROOT / "shardvar" / mutant.path).read_text(encoding="utf-8"))

    def run(self, tests: Sequence[str], trace: Trace, *, all_: bool = False) -> list[str]:
        """Run tests in their order; those that fail or hang, the first or all; `import` if none can
        run."""
        chosen = self.place / "chosen.json"
        chosen.write_text(json.dumps(tests), encoding="utf-8")
        log = chosen.with_suffix(".log")
        log.write_text("", encoding="utf-8")
        files = {test.partition("::")[0] for test in tests}
        process = self._start("selection", FILE, chosen, files, *["--maxfail=0"] * all_)
        hangs = _wait(process, log, trace)
        said = [line.partition(" ") for line in log.read_text(encoding="utf-8").splitlines()]
        failed = list(dict.fromkeys(test for what, _, test in said if what == "failed"))
        if (
            hangs
            or process.returncode not in (0, 1, 2, 5)
            or (process.returncode in (1, 2) and not said)
        ):
            failed.append(said[-1][2] + " (hangs or ends Python)" if said else "import")
        return failed if all_ else failed[:1]

    def _start(
        self, plugin: str, variable: str, value: Path, files: Iterable[str], *options: str
    ) -> "subprocess.Popen[bytes]":
        """Start pytest in the copy, with a plugin of this package."""
        paths = {"PYTHONPATH": str(self.place), "PYTHONSAFEPATH": "1", variable: str(value)}
        return subprocess.Popen(
            [
                sys.executable,
                *_PYTEST.split(),
                "-p",
                f"spec_tests.mutation.{plugin}",
                *options,
                *sorted(files),
            ],
            cwd=self.place,
            env=os.environ | paths | {"CI": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _wait(process: "subprocess.Popen[bytes]", log: Path, trace: Trace) -> bool:
    """Wait until the process ends; if one of its tests hangs, end it and return True."""
    length, since, patience = 0, time.monotonic(), START
    while process.poll() is None:
        time.sleep(0.05)
        if log.stat().st_size != length:
            length, since = log.stat().st_size, time.monotonic()
            test = log.read_text(encoding="utf-8").splitlines()[-1].partition(" ")[2]
            patience = PATIENCE + 10 * trace.seconds.get(test, 0.0)
        elif time.monotonic() - since > patience:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True
    return False


def _order(mutant: Mutant, trace: Trace) -> list[str]:
    """Return the tests that execute the mutant's line, quick ones first."""
    return sorted(trace.tests_of(mutant), key=lambda test: (trace.seconds[test], test))
