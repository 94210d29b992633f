"""Judge implementations, write docs/conformance.json and .md: ``python -m
spec_tests.conformance.run [NAME ...]``.

Each implementation is judged in a process of its own, two at a time. One that is not installed is
skipped, and said to be. Reports lie in build/conformance, where those of other names may be left
from earlier runs. The page is written if there is one of each implementation that has an adapter:
from these alone, so that it changes where an adapter or a framework does. The exit code is 1 where
a rule is broken that is not among the expected failures, or where one of them is kept after all.

``--sample`` draws a quarter of the cases, leaves out the expected failures, which may be kept then,
and writes no page.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from shardvar.conformance.rules import all_rules
from shardvar.conformance.session import read_expected
from spec_tests.conformance.implementations import (
    BREACHES,
    DATA,
    IMPLEMENTATIONS,
    PAGE,
    Implementation,
)
from spec_tests.conformance.page import combined, outcomes, page
from spec_tests.helpers.paths import ROOT

DECLARED = "DECLARED_FAILURES"
"""The environment variable that has the path of the expected failures in a sample."""

PATIENCE = 3600.0
"""Seconds after which a run is ended; the slowest takes some minutes where nothing else runs."""


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Leave out the rules that an implementation is declared to break; pytest calls this in a sample,
    where this module is a plugin."""
    declared = Path(os.environ[DECLARED]).read_text(encoding="utf-8")
    left_out = read_expected(declared, {rule.id for rule in all_rules()})
    items[:] = [item for item in items if item.name not in left_out]


def judge(implementation: Implementation, *, sample: bool) -> int:
    """Write the report of an implementation; pytest's exit code."""
    began = time.monotonic()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "GRPC_VERBOSITY": "NONE",
    }
    examples = implementation.examples // 4 if sample else implementation.examples
    command = [
        sys.executable,
        *"-m pytest -q -p no:cacheprovider -p shardvar.conformance.plugin -W ignore".split(),
        *f"--pyargs shardvar.conformance --adapter {implementation.spec}".split(),
        *f"--conformance-examples {examples}".split(),
    ]
    # No settings of pytest are found from an empty directory.
    with tempfile.TemporaryDirectory(prefix="conformance-") as directory:
        report = Path(directory) / "report.json" if sample else implementation.report
        report.parent.mkdir(parents=True, exist_ok=True)
        report.unlink(missing_ok=True)
        command += ["--conformance-json", str(report)]
        if implementation.expected.is_file() and sample:
            environment[DECLARED] = str(implementation.expected)
            command += ["-p", f"{__spec__.parent}.run"]
        elif implementation.expected.is_file():
            command += ["--expected-failures", str(implementation.expected)]
        done = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        text = report.read_text(encoding="utf-8") if report.is_file() else '{"counts": {}}'
    counts = json.loads(text)["counts"]
    told = ", ".join(f"{number} {outcome}" for outcome, number in counts.items() if number)
    print(
        f"{implementation.name}: {told or 'no report'} ({time.monotonic() - began:.0f} s)",
        flush=True,
    )
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", flush=True)
    return done.returncode


def reports() -> dict[str, dict[str, Any]]:
    """The reports that there are, by implementation; an earlier run's count where they are about
    the same rules."""
    found = {
        one.name: json.loads(one.report.read_text(encoding="utf-8"))
        for one in IMPLEMENTATIONS
        if one.has_adapter and one.report.is_file()
    }
    known = [rule.id for rule in all_rules()]
    return {
        name: report
        for name, report in found.items()
        if [rule["id"] for rule in report["rules"]] == known
    }


def publish(found: dict[str, dict[str, Any]]) -> None:
    """Write the data and the page, and print the verdicts that changed."""
    data = combined(found, IMPLEMENTATIONS)
    before = json.loads(DATA.read_text(encoding="utf-8")) if DATA.is_file() else None
    DATA.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(data, BREACHES), encoding="utf-8")
    changed = (
        []
        if before is None
        else sorted(set(outcomes(data).items()) ^ set(outcomes(before).items()))
    )
    for (name, rule), outcome in changed:
        print(f"changed in docs/conformance.md: {name} {rule} {outcome}")


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--sample", action="store_true", help="a quarter of the cases, and no page")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - {implementation.name for implementation in IMPLEMENTATIONS}
    if unknown:
        known = ", ".join(implementation.name for implementation in IMPLEMENTATIONS)
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {known}")
    wanted = [one for one in IMPLEMENTATIONS if one.name in options.names or not options.names]
    present = [one for one in wanted if not one.missing()]
    for one in wanted:
        if one not in present:
            print(f"{one.name}: SKIPPED, there is no {', '.join(one.missing())}", flush=True)
    with ThreadPoolExecutor(2) as pool:
        # TensorFlow takes as long as all others together: it begins first, beside them.
        order = sorted(present, key=lambda one: one.name != "tensorflow")
        failed = any(list(pool.map(lambda one: judge(one, sample=options.sample), order)))
    if options.sample:
        return int(failed)
    found = reports()
    if len(found) < sum(one.has_adapter for one in IMPLEMENTATIONS):
        print("docs/conformance.md is not written: it is about all of them.")
    elif not failed:
        publish(found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
