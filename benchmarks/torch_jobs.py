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
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

with suppress(ImportError):
    import torchsnapshot

import shardvar.torch
from benchmarks.child import Growth
from benchmarks.jobs import ASYNC, BACKGROUND, COPY, DCP, OURS, PARTS, SNAPSHOT, Job, read_job
from benchmarks.places import sync_tree

State = dict[str, Any]


def state_of(job: Job, fill: Callable[[Any], Any]) -> State:
    """Return tensors whose rows are divided over the processes."""
    mesh = init_device_mesh("cpu", (job.count,))
    shape = job.state.rows // job.count, job.state.columns
    return {
        f"layer.{number}": DTensor.from_local(fill(shape), mesh, [Shard(0)], run_check=False)
        for number in range(job.state.tensors)
    }


def parts_of(state: State) -> State:
    """Return what lies in this process."""
    return {key: tensor.to_local() for key, tensor in state.items()}


def slowest(seconds: float) -> float:
    """Return the longest time of all processes."""
    value = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX, group=_own_group())
    return value.item()


@cache
def _own_group() -> Any:
    """The group of the benchmark: the thread of an asynchronous save uses the default one."""
    return dist.new_group(backend="gloo")


def save(program: str, path: Path, state: State, run: str) -> Any:
    """Save with a program; return what waits for the end, or None.

    What a program leaves in the memory of the system is brought to the disk, as the others do.
    """
    if program == DCP:
        return dcp.save({"model": state}, checkpoint_id=path)
    if program == ASYNC:
        return dcp.async_save({"model": state}, checkpoint_id=path)
    if program == PARTS:
        with (path / f"part-{dist.get_rank()}.pt").open("wb") as file:
            torch.save(parts_of(state), file)
            os.fsync(file.fileno())
        return None
    if program == SNAPSHOT:
        parts = {"model": torchsnapshot.StateDict(**parts_of(state))}
        torchsnapshot.Snapshot.take(str(path / "ck"), parts)
        sync_tree(path)  # it also puts tensors of all processes in one folder
        return None
    options = {"run": run, "background": program == BACKGROUND}
    return shardvar.torch.save(path / "ck", {"model": state}, **options)


def load(program: str, path: Path, state: State) -> None:
    """Load with a program, into the state."""
    if program == DCP:
        dcp.load({"model": state}, checkpoint_id=path)
    elif program == PARTS:
        parts = torch.load(path / f"part-{dist.get_rank()}.pt", weights_only=True)
        for key, tensor in parts_of(state).items():
            tensor.copy_(parts[key])
    elif program == SNAPSHOT:
        parts = {"model": torchsnapshot.StateDict(**parts_of(state))}
        torchsnapshot.Snapshot(str(path / "ck")).restore(parts)
    else:
        shardvar.torch.load(path / "ck", {"model": state})


def run_rounds(job: Job, told: list[tuple[str, str, float]]) -> None:
    """Save and restore with each program, round after round."""
    generator = torch.Generator().manual_seed(job.process)
    state = state_of(job, lambda shape: torch.randn(shape, generator=generator))
    empty = state_of(job, torch.zeros)
    for number in range(job.state.rounds + 1):
        for program in job.programs:
            path = _place(job.folder, program)
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
            told += [(program, "blocked", blocked), (program, "durable", durable)]
        dist.barrier(group=_own_group())
        start = perf_counter()
        copies = [tensor.clone() for tensor in parts_of(state).values()]
        told.append((COPY, "blocked", slowest(perf_counter() - start)))
        del copies
        for program in job.programs:
            if program not in (ASYNC, BACKGROUND):
                seconds = _restore(program, _place(job.folder, program), empty)
                told.append((program, "restore", seconds))
                assert all(torch.equal(empty[k].to_local(), state[k].to_local()) for k in state)


def run_other(job: Job, told: list[tuple[str, str, float]]) -> None:
    """Restore what another number of processes has saved."""
    empty = state_of(job, torch.zeros)
    for _ in range(job.state.rounds + 1):
        told += [
            (program, "other", _restore(program, Path(job.other) / program, empty))
            for program in (DCP, OURS)
        ]


def _place(folder: str, program: str) -> Path:
    return Path(folder) / program.replace(" ", "-")


def _restore(program: str, path: Path, empty: State) -> float:
    for tensor in empty.values():
        tensor.to_local().zero_()
    dist.barrier(group=_own_group())
    start = perf_counter()
    load(program, path, empty)
    return slowest(perf_counter() - start)


def main() -> None:
    """Run one process."""
    warnings.simplefilter("ignore")
    job = read_job(sys.argv[1])
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
