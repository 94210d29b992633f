"""All subjects by name, and one of them in a fresh process.

    run_subject     starts ``python -m benchmarks.subjects``, and takes its figures as they come
    main            the process: measures, and writes each figure as a line of JSON

So what a subject does to its process (threads of a library, memory, an abort) reaches no other, and
a subject that dies or never ends loses what it had not yet measured, and nothing else.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from threading import Timer
from time import perf_counter
from typing import IO

from benchmarks.child import ROOT, environment
from benchmarks.figures import Figure
from benchmarks.places import Place, open_places
from benchmarks.results import Group, Machine, current_load
from benchmarks.setting import Setting
from benchmarks.sizes import FULL, QUICK

SUBJECTS = (
    *(
        "startup",
        "lookup",
        "partial",
        "plan",
        "layouts",
        "redistribution",
        "latency",
        "table",
        "tiny",
        "reshard",
        "loaders",
    ),
    *(
        "torch_checkpoints",
        "orbax_checkpoints",
        "jobs",
        "tiny_jobs",
        "orbax_jobs",
        "joint",
        "objects",
        "policies",
        "formats",
        "conversions",
        "deltas",
        "maps",
        "quantised",
        "sharded",
        "training",
    ),
    *("growth", "simulate"),
)
"""The names of the modules, in the order in which they are measured: short ones first."""

LIMIT_SECONDS = 900
"""The time after which a subject is ended; ``make bench`` as a whole is meant to take 35
minutes."""


def measure(name: str, setting: Setting) -> Iterator[Figure]:
    """The figures of a subject, measured here."""
    function: Callable[[Setting], Iterator[Figure]] = import_module(f"benchmarks.{name}").measure
    yield from function(setting)


def run_subject(name: str, disk: Path, quick: bool, limit: float = LIMIT_SECONDS) -> Group:
    """Measure a subject in a fresh process; what it fails at is the last of its figures."""
    machine, start, figures = Machine.now(), perf_counter(), list[Figure]()
    with (
        open_places(disk) as places,
        TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
    ):
        request = [name, quick, [[place.name, str(place.path)] for place in places]]
        for figure in _figures_of(request, errors, limit):
            figures.append(figure)
            print(" | ".join(filter(None, figure.cells())), file=sys.stderr, flush=True)
    return Group(machine, current_load(), round(perf_counter() - start, 1), quick, figures)


def _figures_of(request: list[object], errors: IO[str], limit: float) -> Iterator[Figure]:
    """The figures of the process, and at its end the one of its failure, if it failed."""
    command = [sys.executable, "-m", "benchmarks.subjects", json.dumps(request)]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
    ) as process:
        timer = Timer(limit, _end, [process])
        timer.start()
        try:
            for line in process.stdout or ():
                yield Figure.from_json(json.loads(line))
            process.wait()
        except BaseException:
            _end(process)
            raise
        finally:
            was_ended = timer.finished.is_set()
            timer.cancel()
    if process.returncode:
        errors.seek(0)
        lines = [line.strip() for line in errors if line.strip()]
        print("\n".join(lines[-30:]), file=sys.stderr)
        why = f"took more than {limit:g} s" if was_ended else _reason(lines, process.returncode)
        yield Figure(str(request[0]), "", "", None, "", None, f"failed: {why}", failed=True)


def _reason(lines: list[str], code: int) -> str:
    """The last line of errors, which is that of the exception; or the signal that ended the
    process."""
    return f"signal {-code}" if code < 0 else (lines or [f"exit code {code}"])[-1][:200]


def _end(process: subprocess.Popen[str]) -> None:
    """Kill the process and the processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 9)


def main() -> None:
    """The process of one subject. Standard output has the figures; what libraries print goes to
    standard error."""
    name, quick, places = json.loads(sys.argv[1])
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    setting = Setting([Place(each, Path(path)) for each, path in places], QUICK if quick else FULL)
    with lines:
        for figure in measure(name, setting):
            print(json.dumps(figure.to_json()), file=lines, flush=True)


if __name__ == "__main__":
    main()
