"""Processes of PyTorch with a disk each: killed, with a lost disk, on another number of processes."""

import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import shardvar as sv

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
dist = pytest.importorskip("torch.distributed", reason="PyTorch is not installed")
face = pytest.importorskip("shardvar.torch", reason="PyTorch is not installed")
pytest.importorskip("torch.distributed.fsdp", reason="PyTorch is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")


def run_job(folder: Path, rank: int, count: int, store: Path, last: int, killed: int) -> None:
    """Train to a step, save each, and tell the number that was restored, its place, and the losses."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate

    def tell(*told: Any) -> None:
        with open(f"{store}-{rank}", "a") as file:
            file.write(json.dumps(told) + "\n")

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    mesh = dist.device_mesh.init_device_mesh("cpu", (count,))
    torch.manual_seed(0)
    # One process holds the only row of a weight, and nothing of others.
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    same = DTensor.from_local(torch.zeros(3), mesh, [Replicate()])
    large = torch.zeros(20_000)  # tied, and whole in all processes
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "same": same, "step": 0}
    state |= {"large": large, "tied": large, "own": {str(rank): rank}}
    steps = sv.SavedSteps(
        f"{folder}/node-{rank}", using=face, durable=f"{folder}/durable", shared=False, timeout=90
    )
    # Keys of single processes are of the processes that have saved them.
    found = steps.restore(state, strict=count == 2)
    tell(found and found.number, bool(found and "durable" in found.path))
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    for step in range(state["step"] + 1, last + 1):
        assert large.unique().tolist() == [step - 1.0] == same.to_local().unique().tolist()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        large += 1
        same.to_local().add_(1)
        state["step"] = step
        tell(step, loss.item())
        steps.save(step, state, background=True)
        if step == killed:
            steps._wait_for_save()
            os.kill(os.getpid(), signal.SIGKILL)
    steps.wait()
    dist.barrier()
    dist.destroy_process_group()


def job(folder: Path, count: int, last: int, killed: int = 0) -> list[list[Any]]:
    """Run a job of forked processes, and return what each has told."""
    folder.mkdir(exist_ok=True)
    fork, store = multiprocessing.get_context("fork"), folder / f"store-{count}-{last}"
    started = [
        fork.Process(target=run_job, args=(folder, rank, count, store, last, killed))
        for rank in range(count)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(300)
        assert process.exitcode == (-signal.SIGKILL if killed else 0)
    told = [Path(f"{store}-{rank}").read_text() for rank in range(count)]
    return [[*map(json.loads, each.splitlines())] for each in told]


def test_a_killed_job_resumes_from_disks_and_copies_with_the_losses_of_one_that_was_not(
    tmp_path: Path,
) -> None:
    expected = dict(job(tmp_path / "whole", 2, 6)[0][1:])
    folder = tmp_path / "killed"
    first = job(folder, 2, 6, killed=3)
    assert [each[0] for each in first] == [[None, False]] * 2
    # The disks have step 3, whether it was copied or not.
    second = job(folder, 2, 4)
    assert [each[0] for each in second] == [[3, False]] * 2
    shutil.rmtree(folder / "node-1")
    third = job(folder, 2, 5)
    assert [each[0] for each in third] == [[4, False], [4, True]]
    last = job(folder, 1, 6)
    assert last[0][0] == [5, True]
    for told in (first, second, third, last):
        for step, loss in told[0][1:]:
            assert loss == pytest.approx(expected[step], rel=1e-5), step
