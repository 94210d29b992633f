"""One process of a job that saves and restores a state of JAX with several programs, in turn.

`python -m benchmarks.jax_jobs JOB` does for JAX and Orbax what ``benchmarks.torch_jobs`` does for PyTorch.
"""

import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import shardvar.jax
from benchmarks.jobs import BACKGROUND, ORBAX, ORBAX_ASYNC, OURS, Job, read_job


def state_of(job: Job, fill: Callable[[tuple[int, ...]], Any]) -> dict[str, Any]:
    """Return arrays whose rows are divided over the processes."""
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    sharding = NamedSharding(mesh, PartitionSpec("rows"))
    shape = job.state.rows, job.state.columns
    local = job.state.rows // job.count, job.state.columns
    return {
        f"layer_{number}": jax.make_array_from_process_local_data(sharding, fill(local), shape)
        for number in range(job.state.tensors)
    }


def slowest(seconds: float) -> float:
    """Return the longest time of all processes; they meet here."""
    return float(multihost_utils.process_allgather(np.float32(seconds)).max())


def like_of(state: dict[str, Any]) -> dict[str, Any]:
    """Return the shapes and shardings of a state."""
    return {
        key: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)
        for key, array in state.items()
    }


def run_rounds(job: Job, told: list[tuple[str, str, float]]) -> None:
    """Save and restore with each program, round after round; the first round does not count."""
    generator = np.random.default_rng(job.process)
    state = state_of(job, lambda shape: generator.standard_normal(shape, np.float32))
    like = like_of(state)
    savers = {
        ORBAX: ocp.Checkpointer(ocp.StandardCheckpointHandler()),
        ORBAX_ASYNC: ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler()),
    }
    for number in range(job.state.rounds + 1):
        for program in job.programs:
            path = Path(job.folder) / program.replace(" ", "-")
            if job.process == 0:
                shutil.rmtree(path, ignore_errors=True)
            slowest(0.0)
            start = perf_counter()
            if program in (OURS, BACKGROUND):
                background = program == BACKGROUND
                handle = shardvar.jax.save(
                    path / "ck", state, run=f"{number}", background=background
                )
            else:
                savers[program].save(path, args=ocp.args.StandardSave(state))
            blocked = perf_counter() - start
            if program == ORBAX_ASYNC:
                savers[program].wait_until_finished()
            elif program == BACKGROUND:
                handle.result()
            durable = perf_counter() - start
            told += [(program, "blocked", slowest(blocked)), (program, "durable", slowest(durable))]
        for program in (ORBAX, OURS):
            found, seconds = restored(program, Path(job.folder) / program, like)
            told.append((program, "restore", seconds))
            for key, array in state.items():
                pairs = zip(array.addressable_shards, found[key].addressable_shards, strict=True)
                assert all(np.array_equal(one.data, other.data) for one, other in pairs)


def run_other(job: Job, told: list[tuple[str, str, float]]) -> None:
    """Restore what another number of processes has saved."""
    like = like_of(state_of(job, lambda shape: np.zeros(shape, np.float32)))
    for _ in range(job.state.rounds + 1):
        told += [
            (program, "other", restored(program, Path(job.other) / program, like)[1])
            for program in (ORBAX, OURS)
        ]


def restored(program: str, path: Path, like: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """Return the state that a program restores, and the time."""
    slowest(0.0)
    start = perf_counter()
    if program == OURS:
        found = shardvar.jax.load(path / "ck", like)
    else:
        reader = ocp.Checkpointer(ocp.StandardCheckpointHandler())
        found = reader.restore(path, args=ocp.args.StandardRestore(like))
    jax.block_until_ready(found)
    return found, slowest(perf_counter() - start)


def main() -> None:
    """Run one process."""
    warnings.simplefilter("ignore")
    job = read_job(sys.argv[1])
    out = os.dup(1)
    os.dup2(2, 1)  # gloo prints
    jax.distributed.initialize(job.meeting, job.count, job.process)
    told: list[tuple[str, str, float]] = []
    if job.other:
        run_other(job, told)
    if job.programs:
        run_rounds(job, told)
    slowest(0.0)
    if job.process == 0:
        os.write(out, f"{json.dumps(told)}\n".encode())
    slowest(0.0)
    os._exit(0)


if __name__ == "__main__":
    main()
