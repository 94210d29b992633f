"""Train with FSDP2, and save every second step in the background. Kill it, and start it again on
any number of processes: it goes on from the newest whole step, with the same losses.

    torchrun --nproc-per-node 4 examples/train_torch.py RUN_FOLDER NUMBER_OF_STEPS
"""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import shardvar as sv
import shardvar.torch

folder, last = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def state() -> dict[str, Any]:
    """Return what a job needs to go on; it is filled in place by a restore."""
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer}


with sv.SavedSteps(folder, using=shardvar.torch, keep_last=2, keep_best=1) as steps:
    restored = state()
    found = steps.restore(restored)
    if found is not None:
        set_state_dict(
            model,
            optimizer,
            model_state_dict=restored["model"],
            optim_state_dict=restored["optimizer"],
        )
    for step in range(found.number + 1 if found else 1, last + 1):
        batch = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(step, loss.item(), flush=True)
        if step % 2 == 0 or step == last:
            steps.save(step, state(), value=loss.item(), background=True)
dist.destroy_process_group()
