"""V-MOVE-1-joined: on a mesh whose axes were joined, one all_gather takes nested parts for flat
ones and loses rows."""

import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.multiprocessing import start_processes


def rank(number: int, path: str) -> None:
    """One of four ranks on two axes, both of which cut the five rows."""
    dist.init_process_group("gloo", init_method=f"file://{path}/ranks", rank=number, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    mesh._flatten("joined")
    rows = distribute_tensor(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), mesh, [Shard(0), Shard(0)])
    found = rows.redistribute(placements=[Replicate(), Replicate()]).to_local().tolist()
    if number == 0:
        print(
            f"PyTorch {torch.__version__}: [1, 2, 3, 4, 5] in parts, put together on the joined "
            f"axes, is {found}"
        )
    sys.exit(int(found != [1.0, 2.0, 3.0, 4.0, 5.0]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as path:
        context = start_processes(rank, (path,), nprocs=4, start_method="fork", join=False)
        for process in context.processes:
            process.join(60)
        sys.exit(int(any(process.exitcode for process in context.processes)))
