"""The checkpointer of a training job: several processes save their state, and restore it.

    save           until all processes may go on
    background     the time that the training is blocked, and until the checkpoint is durable
    restore        on the same mesh, and what another number of processes has saved
    memory         of a process, while it saves in the background for the first time

Each job is a few processes on this machine. The programs take turns in them, and each ratio is the
median of the rounds.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.child import ROOT, environment
from benchmarks.figures import Figure
from benchmarks.setting import Setting, skipped
from benchmarks.sizes import MIB

DCP, ASYNC, OURS, BACKGROUND = "DCP", "DCP async", "shardvar", "shardvar background"
ORBAX, ORBAX_ASYNC = "Orbax", "Orbax async"
PARTS, SNAPSHOT = "torch.save of local parts", "torchsnapshot"
COPY = "a copy of the state"
COUNTS = 2, 4
ROUNDS = 5
TARGET, NEAR_TARGET = 1.0, 1.2
LIMIT_SECONDS = 900
TENSORS = 16
TINY_ROWS, TINY_COLUMNS = 4, 16
"""The shape of each of very many tensors."""


class State(NamedTuple):
    """What is saved, and how often."""

    name: str
    """Its size."""
    tensors: int
    """The number of its tensors."""
    rows: int
    """The rows of each."""
    columns: int
    """The float32 of each row."""
    rounds: int
    """The rounds after the first; without them, the first one counts."""


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
    state: State
    """What is saved."""
    programs: list[str]
    """The programs that save; none to restore only."""
    other: str = ""
    """The folder with what another number of processes has saved."""


def read_job(text: str) -> Job:
    """Return a job from its JSON."""
    fields = json.loads(text)
    return Job(**{**fields, "state": State(*fields["state"])})


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
            env={**environment(), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"},
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
    """The figures of jobs of PyTorch whose state has a few tensors."""
    yield from _measure_torch(setting, _large_states(setting))


def measure_tiny(setting: Setting) -> Iterator[Figure]:
    """The figures of jobs of PyTorch whose state has very many tensors."""
    count = setting.sizes.tiny_count
    state = State(f"{count} tensors", count, TINY_ROWS, TINY_COLUMNS, rounds=0)
    yield from _measure_torch(setting, [state])


def measure_jax(setting: Setting) -> Iterator[Figure]:
    """The figures of jobs of JAX."""
    if find_spec("orbax") is None:
        yield skipped("orbax_jobs", ORBAX, "Orbax is not installed")
        return
    programs = [ORBAX, OURS, ORBAX_ASYNC, BACKGROUND]
    for state in _large_states(setting):
        yield from _of_jobs(setting, "jax_jobs", "JAX", state, programs, _jax_figures)


def _measure_torch(setting: Setting, states: Iterable[State]) -> Iterator[Figure]:
    if find_spec("torch") is None:
        yield skipped("jobs", DCP, "PyTorch is not installed")
        return
    programs = [DCP, OURS, ASYNC, BACKGROUND, PARTS]
    if find_spec("torchsnapshot") is None:
        yield skipped("jobs", SNAPSHOT, "torchsnapshot is not installed")
    else:
        programs.append(SNAPSHOT)
    for state in states:
        yield from _of_jobs(setting, "torch_jobs", "PyTorch", state, programs, _torch_figures)


def _large_states(setting: Setting) -> Iterator[State]:
    rows = setting.sizes.table_rows
    for part in (8, 1):
        name = f"{rows * 256 // part // MIB} MiB"
        yield State(name, TENSORS, rows // part // TENSORS, 64, ROUNDS)


def _of_jobs(
    setting: Setting,
    module: str,
    framework: str,
    state: State,
    programs: list[str],
    figures_of: Callable[[str, Times, str], Iterator[Figure]],
) -> Iterator[Figure]:
    """The figures of the jobs of one framework with one state."""
    place = setting.disk
    first, second = COUNTS
    rooms = {count: place.room(f"job-of-{count}") for count in COUNTS}

    def subject(count: int) -> str:
        return f"{framework}, {state.name} on {count} processes"

    def run(count: int, *, saves: bool, restores: int | None) -> Times:
        other = "" if restores is None else str(rooms[restores])
        meeting = _meeting(rooms[count], module)
        chosen = programs if saves else []
        job = Job(0, count, meeting, str(rooms[count]), state, chosen, other)
        return run_job(module, job)

    def other(count: int, saved: int, times: Times) -> Figure:
        name = f"{subject(count)}: restore what {saved} saved"
        return _ratio(name, "other", OURS, programs[0], times, place.name, TARGET)

    times = run(first, saves=True, restores=None)
    yield from figures_of(subject(first), times, place.name)
    times = run(second, saves=True, restores=first)
    yield from figures_of(subject(second), times, place.name)
    yield other(second, first, times)
    yield other(first, second, run(first, saves=False, restores=second))
    for count in COUNTS:
        place.room(f"job-of-{count}")


def _meeting(room: Path, module: str) -> str:
    """Return the file or the address at which the processes of a new job meet."""
    if module == "torch_jobs":
        (room / "meeting").unlink(missing_ok=True)
        return str(room / "meeting")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def _torch_figures(subject: str, times: Times, place: str) -> Iterator[Figure]:
    """The figures of one job."""

    def compared(
        name: str, what: str, ours: str, theirs: str, target: float | None = TARGET
    ) -> Figure:
        return _ratio(f"{subject}: {name}", what, ours, theirs, times, place, target)

    yield compared("save", "durable", OURS, DCP)
    yield compared("save in the background: blocked", "blocked", BACKGROUND, ASYNC)
    yield compared("save in the background: blocked", "blocked", BACKGROUND, COPY, NEAR_TARGET)
    yield compared("save in the background: until durable", "durable", BACKGROUND, ASYNC)
    yield compared("restore", "restore", OURS, DCP)
    for program, target in ((PARTS, NEAR_TARGET), (SNAPSHOT, TARGET)):
        if (program, "durable") in times:
            yield compared("save", "durable", OURS, program, target)
            yield compared("restore", "restore", OURS, program, target)
    name = f"{subject}: memory of a process that saves in the background"
    ours, theirs = (times[program, "memory"][0] / MIB for program in (BACKGROUND, ASYNC))
    note = f"{ours:.0f} MiB / {theirs:.0f} MiB beyond the state"
    yield Figure(name, ASYNC, place, ours / theirs, "x", TARGET, note)


def _jax_figures(subject: str, times: Times, place: str) -> Iterator[Figure]:
    """The figures of one job of JAX."""
    yield _ratio(f"{subject}: save", "durable", OURS, ORBAX, times, place, TARGET)
    name = f"{subject}: save in the background"
    yield _ratio(f"{name}: blocked", "blocked", BACKGROUND, ORBAX_ASYNC, times, place, TARGET)
    yield _ratio(f"{name}: until durable", "durable", BACKGROUND, ORBAX_ASYNC, times, place, TARGET)
    yield _ratio(f"{subject}: restore", "restore", OURS, ORBAX, times, place, TARGET)


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
    one, other = (times[program, what] for program in (ours, theirs))
    one, other = one[1:] or one, other[1:] or other
    ratio = median(mine / yours for mine, yours in zip(one, other, strict=True))
    note = f"{median(one):.3g} s / {median(other):.3g} s, {len(one)} pairs"
    return Figure(subject, theirs, place, ratio, "x", target, note)
