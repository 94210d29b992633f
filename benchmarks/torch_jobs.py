"""One process of a job that saves and restores a state of PyTorch with several programs, in turn.

`python -m benchmarks.torch_jobs JOB` takes a ``benchmarks.jobs.Job`` as JSON. Process 0 prints the measured times,
each the longest of all processes: a JSON list of ``[program, what, seconds]``.
"""

import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import shardvar.torch
from benchmarks.child import Growth
from benchmarks.jobs import ASYNC, BACKGROUND, COPY, DCP, OURS, Job

TENSORS = 16


def state_of(job: Job, fill: Callable[[Any], Any]) -> dict[str, Any]:
    """Return tensors of 64 columns whose rows are divided over the processes."""
    mesh = init_device_mesh("cpu", (job.count,))
    rows = job.rows // TENSORS // job.count
    return {
        f"layer.{number}": DTensor.from_local(fill((rows, 64)), mesh, [Shard(0)])
        for number in range(TENSORS)
    }


def slowest(seconds: float) -> float:
    """Return the longest time of all processes."""
    value = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX, group=_own_group())
    return value.item()


@cache
def _own_group() -> Any:
    """The group of the benchmark: the thread of an asynchronous save uses the default one."""
    return dist.new_group(backend="gloo")


def save(program: str, path: Path, state: dict[str, Any], run: str) -> Any:
    """Save with a program; return what waits for the end, or None."""
    if program == DCP:
        return dcp.save({"model": state}, checkpoint_id=path)
    if program == ASYNC:
        return dcp.async_save({"model": state}, checkpoint_id=path)
    options = {"run": run, "background": program == BACKGROUND}
    return shardvar.torch.save(path / "ck", {"model": state}, **options)


def load(program: str, path: Path, state: dict[str, Any]) -> None:
    """Load with a program."""
    if program == DCP:
        dcp.load({"model": state}, checkpoint_id=path)
    else:
        shardvar.torch.load(path / "ck", {"model": state})


def run_rounds(job: Job, told: list[tuple[str, str, float]]) -> None:
    """Save and restore with each program, round after round; the first round does not count."""
    generator = torch.Generator().manual_seed(job.process)
    state = state_of(job, lambda shape: torch.randn(shape, generator=generator))
    empty = state_of(job, torch.zeros)
    for number in range(job.rounds + 1):
        for program in job.programs:
            path = Path(job.folder) / program.replace(" ", "-")
            if job.process == 0:
                shutil.rmtree(path, ignore_errors=True)
                path.mkdir()
            dist.barrier(group=_own_group())
            growth, start = Growth(), perf_counter()
            handle = save(program, path, state, f"{number}")
            blocked = slowest(perf_counter() - start)
            if program in (ASYNC, BACKGROUND):
                handle.result()
            durable = slowest(perf_counter() - start)
            if number == 0:  # memory is kept between saves
                told.append((program, "memory", slowest(float(growth.nbytes()))))
            else:
                told += [(program, "blocked", blocked), (program, "durable", durable)]
        dist.barrier(group=_own_group())
        start = perf_counter()
        copies = [tensor.to_local().clone() for tensor in state.values()]
        told.append((COPY, "blocked", slowest(perf_counter() - start)))
        del copies
        for program in (DCP, OURS):
            if program in job.programs:
                seconds = _restore(program, Path(job.folder) / program, empty)
                told.append((program, "restore", seconds))
                assert all(torch.equal(empty[k].to_local(), state[k].to_local()) for k in state)


def run_other(job: Job, told: list[tuple[str, str, float]]) -> None:
    """Restore what another number of processes has saved."""
    empty = state_of(job, torch.zeros)
    for _ in range(job.rounds + 1):
        told += [
            (program, "other", _restore(program, Path(job.other) / program, empty))
            for program in (DCP, OURS)
        ]


def _restore(program: str, path: Path, empty: dict[str, Any]) -> float:
    for tensor in empty.values():
        tensor.to_local().zero_()
    dist.barrier(group=_own_group())
    start = perf_counter()
    load(program, path, empty)
    return slowest(perf_counter() - start)


def main() -> None:
    """Run one process."""
    warnings.simplefilter("ignore")
    job = Job(**json.loads(sys.argv[1]))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{job.meeting}", rank=job.process, world_size=job.count
    )
    _own_group()
    told: list[tuple[str, str, float]] = []
    if job.other:
        run_other(job, told)
    if job.programs:
        run_rounds(job, told)
    dist.barrier(group=_own_group())
    if job.process == 0:
        print(json.dumps(told), flush=True)
    dist.barrier(group=_own_group())
    os._exit(0)  # an interpreter that ends may wait for threads of gloo for ever


if __name__ == "__main__":
    main()
