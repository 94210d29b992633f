"""Jobs of several processes that save steps in one directory, and resume from them.

`python -m spec_tests.helpers.step_jobs FOLDER PROCESS COUNT SETTINGS` is one process of a job. It restores
the newest step, checks its rows of it, saves step after step, and prints one JSON list a line:

    ["restored", number]      after the restore; null if the training begins
    ["saved", number]         after each save
    ["error", name, text]     if a call raises, which ends the process

SETTINGS is JSON: ``until``, the last step; ``rules``, the arguments of ``sv.SavedSteps``.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import shardvar as sv
from spec_tests.helpers.programs import ENVIRONMENT, command_of

ROWS = 64
"""The rows of the table that the processes divide."""
_SECONDS = 0.15
"""The time that a slow process sleeps."""


def table(number: int) -> Any:
    """Return the table of a step: no two steps have a row in common."""
    return np.arange(ROWS * 4).reshape(ROWS, 4) + number * ROWS * 4


def in_threads(processes: Iterable[int], act: Callable[[int], Any]) -> dict[int, Any]:
    """Return the result or the error of each process; threads stand for them."""

    def outcome(process: int) -> Any:
        try:
            return act(process)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return error

    every = [*processes]
    with ThreadPoolExecutor(len(every)) as pool:
        return dict(zip(every, pool.map(outcome, every), strict=True))


def together(count: int, act: Callable[[int], Any]) -> list[Any]:
    """Return the results or the errors of so many processes, in order."""
    return [*in_threads(range(count), act).values()]


class Divided:
    """The functions of ``sv.SavedSteps`` for processes that hold rows of the table."""

    def __init__(self, process: int, count: int, *, slow: bool = False, timeout: float = 120.0):
        self.process, self.count, self.slow, self.timeout = process, count, slow, timeout

    @property
    def rows(self) -> tuple[int, int]:
        return sv.div(ROWS, self.count)[self.process]

    def processes(self) -> tuple[int, int]:
        return self.process, self.count

    def save(
        self, path: str, state: Any, *, run: str, metadata: Mapping[str, str], **options: Any
    ) -> Any:
        start, stop = self.rows
        mine = {"table": sv.LocalShard(state[start:stop], (start, 0), state.shape)}
        options = {"timeout": self.timeout} | options
        names = {"process": self.process, "num_processes": self.count, "run": run}
        report = sv.save_shards(path, mine, metadata=metadata, **names, **options)
        if self.slow:
            time.sleep(_SECONDS)
        return report

    def load(self, path: str) -> Any:
        if self.slow:
            time.sleep(_SECONDS)
        start, stop = self.rows
        with sv.open_checkpoint(path) as reader:
            return reader.read("table", sv.Region((start, 0), (stop - start, 4)), "full")


def run_process(folder: str, process: int, count: int, settings: Mapping[str, Any]) -> None:
    """Train as one process of a job."""
    using = Divided(process, count)
    steps = sv.SavedSteps(folder, using=using, timeout=120.0, **settings.get("rules", {}))

    try:
        found = steps.restore()
        number = 0 if found is None else found.number
        if found is not None:
            start, stop = using.rows
            assert np.array_equal(found.loaded, table(number)[start:stop]), "a mixture"
        print(json.dumps(["restored", found and number]), flush=True)
        while number < settings["until"]:
            number += 1
            steps.save(number, table(number), value=float(number % 5))
            print(json.dumps(["saved", number]), flush=True)
    except sv.errors.ShardvarError as error:
        print(json.dumps(["error", type(error).__name__, str(error)]), flush=True)


def start_job(
    folder: Path, count: int, settings: Mapping[str, Any], only: Sequence[int] | None = None
) -> "list[subprocess.Popen[str]]":
    """Start the processes of a job, or some of them."""
    return [
        subprocess.Popen(
            command_of("helpers.step_jobs", folder, process, count, json.dumps(settings)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        for process in (range(count) if only is None else only)
    ]


def end_job(started: "list[subprocess.Popen[str]]") -> list[list[list[Any]]]:
    """Wait for processes, and return what each has printed; one that was killed may have ended
    within a line."""
    told = []
    for process in started:
        printed, errors = process.communicate(timeout=300)
        assert process.returncode in (0, -signal.SIGKILL), errors[-3000:]
        lines = printed.splitlines(keepends=True)
        told.append([json.loads(line) for line in lines if line.endswith("\n")])
    return told


def run_job(folder: Path, count: int, **settings: Any) -> list[list[list[Any]]]:
    return end_job(start_job(folder, count, settings))


if __name__ == "__main__":
    run_process(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
