"""A lookup raises where the chunk rule leaves a rank no rows.

R-LOOKUP-2, R-LOOKUP-2-axes, R-LOOKUP-2-many, R-LOOKUP-2-numbers, R-OPT-1,
R-OPT-1-momentum, R-OPT-1-adagrad, R-OPT-1-adam.
"""

import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.multiprocessing import start_processes


def rank(number: int, path: str) -> None:
    """One of three ranks, of which the last one has none of the four rows."""
    dist.init_process_group("gloo", init_method=f"file://{path}/ranks", rank=number, world_size=3)
    mesh = init_device_mesh("cpu", (3,))
    table = distribute_tensor(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), mesh, [Shard(0)])
    ids = distribute_tensor(torch.tensor([0]), mesh, [Replicate()])
    try:
        torch.nn.functional.embedding(ids, table)
    except RuntimeError as error:
        print(f"PyTorch {torch.__version__}, rank {number}: row 0 of 4 raises: {error}")
        sys.exit(1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as path:
        context = start_processes(rank, (path,), nprocs=3, start_method="fork", join=False)
        for process in context.processes:
            process.join(60)
        sys.exit(int(any(process.exitcode for process in context.processes)))
