"""The training loops of `examples/`, killed and started again on another number of processes: the
losses are the losses of a job that nothing has interrupted."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import shardvar as sv
from spec_tests.helpers.paths import ROOT
from spec_tests.helpers.programs import ENVIRONMENT

pytest.importorskip("torch")

SECONDS = 240


def start(command: Sequence[object]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT
        | {
            "OMP_NUM_THREADS": "1",
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        },
        start_new_session=True,
    )


def jax_job(folder: Path, last: int, count: int) -> "list[subprocess.Popen[str]]":
    """Start all processes of the training of JAX, each with two devices."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    example = ROOT / "examples" / "train_jax.py"
    jobs = [[place, count, process] for process in range(count)] if count > 1 else [[]]
    return [start([example, folder, last, *job]) for job in jobs]


def losses_of(text: str) -> dict[int, str]:
    """Return the losses of the steps that a job has printed."""
    return {int(step): loss for step, loss in re.findall(r"^(\d+) (\d\S+)$", text, re.MULTILINE)}


def torch_job(folder: Path, last: int, count: int) -> "subprocess.Popen[str]":
    """Start the training of torch; in one process without torchrun."""
    example = ROOT / "examples" / "train_torch.py"
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    return start([*torchrun, example, folder, last])


def children_of(process: int) -> list[int]:
    """Return the processes that a process has started."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return [int(each) for task in tasks for each in (task / "children").read_text().split()]


def hold(before: dict[int, str], number: int, jobs: "list[subprocess.Popen[str]]") -> None:
    """The job that went on from a step, and one that nothing has interrupted, have the losses of before."""
    ends, last = [job.communicate(timeout=SECONDS) for job in jobs], number + 3
    assert [job.returncode for job in jobs] == [0, 0], [errors[-3000:] for _, errors in ends]
    after, whole = (losses_of(printed) for printed, _ in ends)
    assert [*after] == [*range(number + 1, last + 1)]
    assert [*whole] == [*range(1, last + 1)]
    assert whole.items() >= after.items()
    assert whole.items() >= {step: before[step] for step in before if step <= last}.items()


def test_the_loop_of_torch_goes_on_after_a_kill(tmp_path: Path) -> None:
    killed = torch_job(tmp_path / "run", 1_000_000, 4)
    assert killed.stdout is not None
    begin = [killed.stdout.readline() for _ in range(7)]
    workers = children_of(killed.pid)
    assert len(workers) == 4
    os.kill(workers[-1], signal.SIGKILL)
    printed, errors = killed.communicate(timeout=SECONDS)
    assert killed.returncode != 0, "torchrun ends the job"
    before = losses_of("".join(begin) + printed)
    newest = sv.SavedSteps(tmp_path / "run").newest()
    assert newest is not None and newest.number >= 4, errors[-3000:]
    last = newest.number + 3
    # On two processes, and, from the beginning, on one.
    jobs = [torch_job(tmp_path / "run", last, 2), torch_job(tmp_path / "other", last, 1)]
    hold(before, newest.number, jobs)


def test_the_loop_of_jax_goes_on_after_a_kill(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    killed = jax_job(tmp_path / "run", 1_000_000, 2)
    assert killed[0].stdout is not None
    begin = []
    while len(losses_of("".join(begin))) < 7:  # gloo prints, too
        begin.append(killed[0].stdout.readline())
        assert begin[-1], "it goes on until it is killed"
    for each in reversed(killed):
        os.kill(each.pid, signal.SIGKILL)
    printed = killed[0].communicate(timeout=SECONDS)[0]
    killed[1].communicate(timeout=SECONDS)
    before = losses_of("".join(begin) + printed)
    newest = sv.SavedSteps(tmp_path / "run").newest()
    assert newest is not None and newest.number >= 4
    last = newest.number + 3
    jobs = [*jax_job(tmp_path / "run", last, 1), *jax_job(tmp_path / "other", last, 1)]
    hold(before, newest.number, jobs)
