"""Which of a layer's own tests execute which line: ``tracing`` records it, one record for each file
of tests.

A record is made anew when the package or the file has changed.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spec_tests.helpers.paths import ROOT, SPEC_TESTS
from spec_tests.helpers.source_code import MODULES
from spec_tests.mutation.sample import LAYERS, Mutant

FILE = "MUTATION_TRACE"
"""The environment variable that tells ``tracing`` where to write a record."""
RECORDS = ROOT / "build" / "mutation"
"""The folder of the records."""
JOBS = int(os.environ.get("JOBS", "2"))
"""The processes that run at the same time."""
_NOTHING: dict[str, Any] = {"seconds": {}, "failed": [], "lines": {}}
_PYTEST = (
    "-m pytest -q --tb=no -p no:cacheprovider -p spec_tests.mutation.tracing "
    "--hypothesis-profile=mutants"
)


@dataclass
class Trace:
    """The records of some files of tests, put together."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Test to its duration; tests that fail on the unchanged package are left out."""
    lines: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    """File to line to the tests that execute it; a line that runs only when its module is imported
    has none."""

    def add(self, path: Path) -> None:
        record = json.loads(path.read_text(encoding="utf-8"))
        names = list(record["seconds"])
        good = {
            test: seconds
            for test, seconds in record["seconds"].items()
            if test not in record["failed"]
        }
        self.seconds.update(good)
        for file, lines in record["lines"].items():
            mine = self.lines.setdefault(file, {})
            for line, numbers in lines.items():
                mine.setdefault(int(line), set()).update(
                    {names[number] for number in numbers} & good.keys()
                )

    def tests_of(self, mutant: Mutant) -> set[str]:
        """Return the tests that execute the changed lines.

        Where no test does, those that execute the function around them. At the level of a module,
        or if that function is never called, those that execute any line of the module: its
        constants are read when it is imported.
        """
        lines, change = self.lines.get(mutant.path, {}), mutant.change
        ranges = [(0, max(lines, default=0))]
        if change.function is not None:
            ranges = [(change.start[0], change.stop[0]), change.function, *ranges]
        return next((tests for each in ranges if (tests := _tests_in(lines, *each))), set())


def _tests_in(lines: dict[int, set[str]], first: int, last: int) -> set[str]:
    return {test for line in range(first, last + 1) for test in lines.get(line, ())}


def read_trace(layers: Iterable[str]) -> Trace:
    """Return the trace of the own tests of layers, after recording the files whose record is
    missing or old."""
    package = _digest(MODULES)
    files = sorted({path for layer in layers for own in LAYERS[layer] for path in _files_of(own)})
    places = {
        path.relative_to(ROOT).as_posix(): RECORDS / f"{path.stem}-{package}-{_digest([path])}.json"
        for path in files
    }
    RECORDS.mkdir(parents=True, exist_ok=True)
    new = [file for file, place in places.items() if not place.exists()]
    parts = [new[number::JOBS] for number in range(JOBS)]
    with ThreadPoolExecutor(JOBS) as pool:
        list(pool.map(lambda some: _record(some, places), filter(None, parts)))
    trace = Trace()
    for place in places.values():
        trace.add(place)
    return trace


def _files_of(own: str) -> list[Path]:
    """Return the files of tests in a folder of `spec_tests`, or the one file that it names."""
    place = SPEC_TESTS / own
    return [place] if place.is_file() else sorted(place.glob("test_*.py"))


def _record(files: Sequence[str], places: Mapping[str, Path]) -> None:
    """Run files of tests, and record each in its place."""
    print(f"recording which lines {' '.join(files)} execute", flush=True)
    together = RECORDS / f"together-{Path(files[0]).stem}.json"
    environment = os.environ | {"CI": "1", "OPENBLAS_NUM_THREADS": "1", FILE: str(together)}
    program = [sys.executable, *_PYTEST.split(), *files]
    subprocess.run(program, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False)
    found = split_record(json.loads(together.read_text(encoding="utf-8")))
    for file in files:
        places[file].write_text(json.dumps(found.get(file, _NOTHING)), encoding="utf-8")


def split_record(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the record of each file of tests, from one of several."""
    parts: dict[str, dict[str, Any]] = {}
    number_of = []  # of each test among those of its own file
    for test, seconds in record["seconds"].items():
        part = parts.setdefault(
            test.partition("::")[0], {"seconds": {}, "failed": record["failed"], "lines": {}}
        )
        number_of.append((part, len(part["seconds"])))
        part["seconds"][test] = seconds
    for file, lines in record["lines"].items():
        for line, numbers in lines.items():
            for part, number in (number_of[number] for number in numbers):
                part["lines"].setdefault(file, {}).setdefault(line, []).append(number)
    return parts


def _digest(paths: Iterable[Path]) -> str:
    state = hashlib.sha256()
    for path in paths:
        state.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return state.hexdigest()[:12]
