"""Jobs of torch on gloo whose states, processes or disks are bad.

`python -m spec_tests.helpers.torch_bad_states FOLDER COUNT NAME:JOB...` runs jobs at once, each of COUNT forked
processes. The processes of a job save in FOLDER/NAME/ck, and each writes the outcomes of its calls in
FOLDER/NAME/JOB-RANK, one JSON list a line, with the name of the call.

    states        save a state; then states that are bad in one process or in all; then a good one, which is loaded,
                  also into states that differ
    kill-WHEN-W   save a state, and another one over it, in which the process W is killed: before its share, in it,
                  after it, or when the commit is decided; tell what the others load then
    rival-N       save ten states, while another job of another N does the same
"""

import json
import os
import resource
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from spec_tests.helpers.programs import ENVIRONMENT, command_of

SECONDS = 3.0
"""The time that the processes wait for one that is dead."""

RIVAL_RUN = "{} {}"
KILLED_RUN = RIVAL_RUN.format(0, 0)
"""The name of the run in which a process is killed, which ``rival-0`` gives to its first save."""


def run_jobs(folder: Path, count: int, *jobs: str) -> dict[str, list[dict[str, Any]]]:
    """Run jobs at once; return the outcomes of the calls of each process, by the jobs."""
    command = command_of("helpers.torch_bad_states", folder, count, *jobs)
    subprocess.run(command, env=ENVIRONMENT, check=True, timeout=240)
    return {
        job: [
            dict(map(json.loads, said_by(folder, job, rank).read_text().splitlines()))
            for rank in range(count)
        ]
        for job in jobs
    }


def said_by(folder: Path, job: str, rank: int) -> Path:
    """Return the file with the outcomes of a process."""
    name, kind = job.split(":")
    return folder / name / f"{kind}-{rank}"


def by_rows(table: Any) -> Any:
    """Return a tensor whose rows are divided over all processes."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return distribute_tensor(table, mesh, [Shard(0)], src_data_rank=None)


def state_of(step: int) -> dict[str, Any]:
    """Return a state of rows that all processes hold, and of values that are equal in all."""
    import torch

    rows = by_rows(torch.arange(44.0).reshape(11, 4) + 100 * step)
    return {"rows": rows, "bias": torch.full((3,), float(step)), "step": step}


def told(name: str, call: Callable[[], Any]) -> None:
    """Tell the outcome of a call."""
    from shardvar.errors import ShardvarError

    try:
        found = call()
    except ShardvarError as error:
        found = f"{type(error).__name__}: {error}"
    print(json.dumps([name, found]), flush=True)


def save(folder: Path, state: dict[str, Any], run: str, **options: Any) -> str:
    import shardvar.torch

    saved = shardvar.torch.save(folder / "ck", state, run=run, **{"timeout": 60.0, **options})
    if options.get("background"):
        saved.result()
    return "saved"


def loaded(folder: Path) -> int:
    """Load the checkpoint; return its step, of which all values are."""
    import torch

    import shardvar.torch

    state = state_of(0)
    shardvar.torch.load(folder / "ck", state)
    expected = state_of(state["step"])
    assert torch.equal(state["rows"].to_local(), expected["rows"].to_local())
    assert torch.equal(state["bias"], expected["bias"])
    return int(state["step"])


def tied(is_other: bool = False) -> dict[str, Any]:
    """Return two keys of one divided tensor, or of two."""
    import torch

    made = by_rows(torch.arange(40_000.0).reshape(400, 100))
    return {"table": made, "head": made.clone() if is_other else made}


class Odd:
    """An object that no checkpoint holds."""


def bad_states(rank: int, count: int) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """Return what makes a state bad, in the last process."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Shard

    mesh, is_last = init_device_mesh("cpu", (count,)), rank == count - 1
    own: dict[str, tuple[str, Any]] = {
        "object": ("odd", Odd()),
        "partial": ("rows", DTensor.from_local(torch.ones(11, 4), mesh, [Partial()])),
        "meta": ("bias", torch.ones(3, device="meta")),
        "shape": ("bias", torch.ones(4)),
        "dtype": ("bias", torch.ones(3).double()),
        "kind": ("bias", 5),
        "value": ("step", 77),
    }
    # The last process has a shape that its placement does not explain.
    odd = DTensor.from_local(
        torch.ones(2 if is_last else 4, 4),
        mesh,
        [Shard(0)],
        run_check=False,
        shape=torch.Size((4 * count - 1, 4)),
        stride=(4, 1),
    )
    changes: dict[str, Callable[[dict[str, Any]], Any]] = {
        name: lambda state, pair=pair: is_last and state.update([pair])  # type: ignore[misc]
        for name, pair in own.items()
    }
    return changes | {"mesh": lambda state: state.update(rows=odd)}


def states(folder: Path, rank: int, count: int) -> None:
    """Save bad states and good ones, and load into states that differ."""
    import torch
    import torch.distributed as dist

    import shardvar.torch

    told("first", lambda: save(folder, state_of(1), "1"))
    for name, change in bad_states(rank, count).items():
        state = state_of(2)
        change(state)
        told(
            name,
            lambda name=name, state=state: save(folder, state, name, background=name == "meta"),
        )  # type: ignore[misc]
        told(f"after {name}", lambda: loaded(folder))
    for name, room, seconds in (("full", 100_000, 60.0), ("no room", 64, SECONDS)):
        state = state_of(2) | ({"mine": torch.ones(50_000)} if rank == count - 1 else {})
        least = room if rank == count - 1 else resource.RLIM_INFINITY
        told(name, partial(save_in, least, folder, state, name, timeout=seconds))
        told(f"after {name}", lambda: loaded(folder))
    told("next", lambda: save(folder, state_of(3), "3"))
    told("after next", lambda: loaded(folder))

    large = state_of(4) | tied(rank == count - 1)
    told("ties differ", lambda: save(folder, large, "ties"))
    large = state_of(4) | tied()
    told("tied", lambda: save(folder, large, "tied", digest=True))

    state = {**state_of(0), "more": 5} | {
        key: torch.zeros_like(each) for key, each in tied().items()
    }
    del state["step"]
    load = shardvar.torch.load
    told("keys", lambda: load(folder / "ck", state))
    told("not strict", lambda: repr(load(folder / "ck", state, strict=False)))
    dist.barrier()
    state = state_of(2)
    dist.destroy_process_group()
    told("ended", lambda: save(folder, state, "4"))
    with patch.dict(os.environ, {"WORLD_SIZE": str(count)}):
        told("never begun", lambda: save(folder, {"step": 5}, "5"))


def save_in(nbytes: int, *arguments: Any, **options: Any) -> str:
    """Save where this process can write no file that is larger, as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))
    try:
        return save(*arguments, **options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def die(*_arguments: Any, **_options: Any) -> Any:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill(folder: Path, when: str, is_victim: bool) -> None:
    """Save a state, and another one over it while a process is killed."""
    from shardvar.verbs.together import fence, share_files, shares

    told("first", lambda: save(folder, state_of(1), "1"))

    def dies_later(*arguments: Any) -> Any:
        sink, checksums = merge(*arguments)
        return SimpleNamespace(commit=die, holding=sink.holding), checksums

    merge, state = fence.merge_shares, state_of(2)
    places = {
        "before": (shares, "save_called", die),
        "in": (share_files, "encode_index", die),
        "after": (fence, "wait_for_end", die),
        "decided": (fence, "merge_shares", dies_later),
    }
    if is_victim:
        setattr(*places[when])
    told("second", lambda: save(folder, state, KILLED_RUN))
    told("after", lambda: loaded(folder))


def rival(folder: Path, number: int) -> None:
    """Save ten states, while another job does the same."""
    for step in range(10):
        run = str(step) if step % 2 else RIVAL_RUN.format(number, step)
        told(str(step), partial(save, folder, state_of(step), run, timeout=SECONDS))


def main(job: str, place: Path, rank: int, count: int) -> None:
    """Run one process of a job."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{place}/meeting-{job}", rank=rank, world_size=count
    )
    kind, _, rest = job.partition("-")
    if kind == "states":
        states(place, rank, count)
    elif kind == "kill":
        when, victim = rest.split("-")
        kill(place, when, int(victim) == rank)
    else:
        rival(place, int(rest))


def start(folder: Path, job: str, rank: int, count: int) -> int:
    """Start one process of a job; return its number."""
    started = os.fork()
    if started:
        return started
    name, kind = job.split(":")
    sys.stdout = said_by(folder, job, rank).open("w")
    try:
        main(kind, folder / name, rank, count)
        sys.stdout.flush()
        os._exit(0)  # a thread of gloo that is not done yet aborts an interpreter that ends
    finally:
        traceback.print_exc()
        os._exit(1)


def run_all(folder: Path, count: int, jobs: list[str]) -> None:
    """Run jobs at once, and wait for them."""
    import torch  # noqa: F401 - once for all processes

    import shardvar.torch  # noqa: F401

    warnings.simplefilter("ignore")
    for job in jobs:
        name, kind = job.split(":")
        (folder / name).mkdir(exist_ok=True)
        (folder / name / f"meeting-{kind}").unlink(missing_ok=True)
    started = {
        (job, rank): start(folder, job, rank, count) for job in jobs for rank in range(count)
    }
    for (job, rank), process in started.items():
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        is_victim = ":kill-" in job and job.endswith(f"-{rank}")
        assert code == (-signal.SIGKILL if is_victim else 0), (job, rank, code)


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
