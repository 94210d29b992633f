"""R-ID-1: a lookup in a sharded DTensor answers zeros for an id that no rank has."""

import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.multiprocessing import start_processes


def rank(number: int, path: str) -> None:
    """One of two ranks."""
    dist.init_process_group("gloo", init_method=f"file://{path}/ranks", rank=number, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    table = distribute_tensor(torch.tensor([[1.0], [2.0]]), mesh, [Shard(0)])
    ids = distribute_tensor(torch.tensor([7]), mesh, [Replicate()])
    came = torch.nn.functional.embedding(ids, table).full_tensor().tolist()
    print(f"PyTorch {torch.__version__}, rank {number}: row 7 of 2 is {came}")
    sys.exit(1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as path:
        context = start_processes(rank, (path,), nprocs=2, start_method="fork", join=False)
        for process in context.processes:
            process.join(60)
        sys.exit(int(any(process.exitcode for process in context.processes)))
