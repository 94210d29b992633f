"""Runs tests, and the rules of the conformance kit, on a copy of the package.

A mutant is caught by a test that fails on it and passes on the copy that nobody changed: the
control, which runs once for all. It must import, and the tests must have been run on it and not on
the package beside it: a run that proves nothing is an error, and no success.
"""

import compileall
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spec_tests.helpers.paths import ROOT
from spec_tests.mutants.mutant import Edit, Mutant, copy_package
from spec_tests.mutants.recorder import FILE

MOST = 3
"""After so many failures a mutant has been seen."""
SECONDS = 600
"""The time limit of a run; the run of a mutant that hangs is ended."""
EXAMPLES = 20
"""Cases a rule of the kit."""
ADAPTER = "shardvar.conformance.adapters.shardvar:Adapter"


class NoProof(Exception):
    """A run that says nothing about the mutant."""


@dataclass(frozen=True)
class Seen:
    """The tests and rules that saw a mutant."""

    mutant: Mutant
    """The mutant."""
    tests: tuple[str, ...]
    """Tests that failed on it, the first few; none where it survived."""
    rules: tuple[str, ...] | None
    """Rules of the conformance kit that it breaks; None where they were not asked."""


@dataclass(frozen=True)
class Workshop:
    """A directory with a copy of the package as it is, of which mutants are made."""

    place: Path
    """The directory."""

    @property
    def whole(self) -> Path:
        """The directory of the copy that nobody changes."""
        return self.place / "whole"

    def open(self) -> "Workshop":
        """Make the copy; it is compiled once, for all."""
        copy_package(self.whole)
        compileall.compile_dir(self.whole, quiet=1)
        return self

    def make(self, mutant: Mutant) -> Path:
        """A copy that is the mutant."""
        place = self.place / mutant.name
        shutil.copytree(self.whole, place)
        for edit in mutant.edits:
            edit.apply(place / "shardvar")
        return place

    def look(self, mutant: Mutant, with_rules: bool) -> Seen:
        """Return the tests and rules that see the mutant, before the control; `NoProof` if a run
        proves nothing."""
        place = self.make(mutant)
        try:
            failed = failures(place, mutant.arguments(), f"--maxfail={MOST}")
            rules = broken_rules(place, mutant.levels) if with_rules and mutant.levels else None
        finally:
            shutil.rmtree(place)
        return Seen(mutant, tuple(failed), rules)

    def control(self, seen: Sequence[Seen]) -> list[str]:
        """The tests among those that saw a mutant that fail without it too: they prove nothing."""
        tests = sorted({test.partition("[")[0] for each in seen for test in each.tests})
        return failures(self.whole, [f"{ROOT}/{test}" for test in tests]) if tests else []


def failures(place: Path, arguments: list[str], *options: str) -> list[str]:
    """The tests that fail on the package in ``place``, of those that are named."""
    record = place / "record.json"
    record.unlink(missing_ok=True)
    program = [
        *_PYTEST,
        "-p",
        "spec_tests.mutants.recorder",
        "--hypothesis-profile=mutants",
        *options,
        *arguments,
    ]
    code, said = _run(program, place, {FILE: str(record)})
    if code not in (0, 1) or not record.exists():
        raise NoProof(f"pytest ended with {code}:\n{said[-2000:]}")
    found = json.loads(record.read_text(encoding="utf-8"))
    if not found["package"].startswith(f"{place}/"):
        raise NoProof(f"The tests were run on {found['package']}.")
    if bool(found["failed"]) != (code == 1):
        raise NoProof(f"pytest ended with {code}, and {len(found['failed'])} tests failed.")
    failed: list[str] = found["failed"]
    return failed


def broken_rules(place: Path, levels: str) -> tuple[str, ...]:
    """The rules of these levels that the package in ``place`` breaks, judged by its own copy of the
    kit."""
    report = place / "report.json"
    program = [
        *(
            *_PYTEST,
            "-p",
            "shardvar.conformance.plugin",
            "--pyargs",
            "shardvar.conformance",
            "--adapter",
            ADAPTER,
        ),
        *("--level", levels if "-" in levels else f"{levels}-{levels}"),
        *("--conformance-json", str(report), "--conformance-examples", str(EXAMPLES)),
    ]
    code, said = _run(program, place, {})
    if code not in (0, 1) or not report.exists():
        raise NoProof(f"The conformance kit ended with {code}:\n{said[-2000:]}")
    rules = json.loads(report.read_text(encoding="utf-8"))["rules"]
    return tuple(rule["id"] for rule in rules if rule["outcome"] == "broken")


_PYTEST = [
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "--tb=no",
    "-p",
    "no:cacheprovider",
    "-c",
    str(ROOT / "pyproject.toml"),
]


def _run(program: list[str], place: Path, more: dict[str, str]) -> tuple[int, str]:
    """Run a program that imports the package in ``place`` and no other; its exit code, and what it
    said."""
    # Without the safe path, Python would put the working directory first, in which the package
    # stands as it is.
    paths = {"PYTHONPATH": os.pathsep.join([str(place), str(ROOT)]), "PYTHONSAFEPATH": "1"}
    environment = os.environ | paths | {"CI": "1", "OPENBLAS_NUM_THREADS": "1"} | more
    try:
        done = subprocess.run(
            program, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        raise NoProof(f"It was not done after {SECONDS} s.") from None
    return done.returncode, done.stdout + done.stderr


CANARY = Mutant(
    "canary",
    "None: it adds an empty line.",
    (Edit("layout/partition.py", "import numpy as np\n", "import numpy as np\n\n"),),
    "slice_text",
    "1",
)
"""The mutant that must survive."""
