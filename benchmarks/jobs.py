"""The checkpointer of a training job: several processes save their state, and restore it.

    save           until all processes may go on
    background     the time that the training is blocked, and until the checkpoint is durable
    restore        on the same mesh, and what another number of processes has saved
    memory         of a process, while it saves in the background for the first time

Each job is a few processes on this machine. The programs take turns in them, and each ratio is the
median of the rounds.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from statistics import median

from benchmarks.child import ROOT, environment
from benchmarks.figures import Figure
from benchmarks.setting import Setting, skipped
from benchmarks.sizes import MIB

DCP, ASYNC, OURS, BACKGROUND = "DCP", "DCP async", "shardvar", "shardvar background"
COPY = "a copy of the state"
COUNTS = 2, 4
ROUNDS = 3
TARGET, BLOCKED_TARGET = 1.0, 1.2
LIMIT_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Job:
    """One process of a job."""

    process: int
    """Its number."""
    count: int
    """The number of processes."""
    meeting: str
    """The file or the address at which they meet."""
    folder: str
    """The folder of the checkpoints."""
    rows: int
    """The rows of 64 float32 of the state."""
    rounds: int
    """The rounds that count."""
    programs: list[str]
    """The programs that save; none to restore only."""
    other: str = ""
    """The folder with what another number of processes has saved."""


Times = dict[tuple[str, str], list[float]]
"""The times of each program and each thing that it does."""


def run_job(module: str, job: Job) -> Times:
    """Run all processes of a job, and return the times that they measured."""
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                f"benchmarks.{module}",
                json.dumps(asdict(replace(job, process=process))),
            ],
            cwd=ROOT,
            env={**environment(), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for process in range(job.count)
    ]
    try:
        ends = [each.communicate(timeout=LIMIT_SECONDS) for each in processes]
    finally:
        for each in processes:
            each.kill()
    for each, (_, errors) in zip(processes, ends, strict=True):
        if each.returncode:
            raise RuntimeError(errors.strip().splitlines()[-1] if errors.strip() else "It died.")
    times: Times = {}
    for program, what, seconds in json.loads(ends[0][0].splitlines()[-1]):
        times.setdefault((program, what), []).append(seconds)
    return times


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of jobs."""
    if find_spec("torch") is None:
        yield skipped("jobs", DCP, "PyTorch is not installed")
        return
    rows, place = setting.sizes.table_rows, setting.disk
    size = f"{rows * 256 // MIB} MiB"
    first, second = COUNTS
    rooms = {count: place.room(f"job-of-{count}") for count in COUNTS}
    programs = [DCP, OURS, ASYNC, BACKGROUND]
    job = Job(0, first, "", "", rows, ROUNDS, programs)

    def run(count: int, *, saves: bool, restores: int | None) -> Times:
        meeting = rooms[count] / "meeting"
        meeting.unlink(missing_ok=True)
        other = "" if restores is None else str(rooms[restores])
        here = replace(job, count=count, meeting=str(meeting), folder=str(rooms[count]))
        return run_job("torch_jobs", replace(here, programs=programs * saves, other=other))

    times = run(first, saves=True, restores=None)
    yield from _figures(f"{size} on {first} processes", times, place.name)
    times = run(second, saves=True, restores=first)
    yield from _figures(f"{size} on {second} processes", times, place.name)
    yield _other(f"{size} on {second} processes", first, times, place.name)
    times = run(first, saves=False, restores=second)
    yield _other(f"{size} on {first} processes", second, times, place.name)
    for count in COUNTS:
        place.room(f"job-of-{count}")


def _figures(subject: str, times: Times, place: str) -> Iterator[Figure]:
    """The figures of one job."""

    def compared(
        name: str, what: str, ours: str, theirs: str, target: float | None = TARGET
    ) -> Figure:
        return _ratio(f"{subject}: {name}", what, ours, theirs, times, place, target)

    yield compared("save", "durable", OURS, DCP)
    yield compared("save in the background: blocked", "blocked", BACKGROUND, ASYNC)
    yield compared("save in the background: blocked", "blocked", BACKGROUND, COPY, BLOCKED_TARGET)
    yield compared("save in the background: until durable", "durable", BACKGROUND, ASYNC)
    yield compared("restore", "restore", OURS, DCP)
    name = f"{subject}: memory of a process that saves in the background"
    ours, theirs = (times[program, "memory"][0] / MIB for program in (BACKGROUND, ASYNC))
    note = f"{ours:.0f} MiB / {theirs:.0f} MiB beyond the state"
    yield Figure(name, ASYNC, place, ours / theirs, "x", TARGET, note)


def _other(subject: str, count: int, times: Times, place: str) -> Figure:
    """The figure of a restore of what another number of processes has saved."""
    name = f"{subject}: restore what {count} saved"
    return _ratio(name, "other", OURS, DCP, times, place, TARGET)


def _ratio(
    subject: str,
    what: str,
    ours: str,
    theirs: str,
    times: Times,
    place: str,
    target: float | None,
) -> Figure:
    """The median of the ratios of rounds."""
    one, other = times[ours, what][-ROUNDS:], times[theirs, what][-ROUNDS:]
    ratio = median(mine / yours for mine, yours in zip(one, other, strict=True))
    note = f"{median(one):.3g} s / {median(other):.3g} s, {len(one)} pairs"
    return Figure(subject, theirs, place, ratio, "x", target, note)
