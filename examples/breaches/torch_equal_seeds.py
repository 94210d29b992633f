"""R-INIT-5: on a CPU mesh all ranks draw the same values for their different rows."""

import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.multiprocessing import start_processes


def rank(number: int, path: str) -> None:
    """One of two ranks; the same seed on all of them is what torch.distributed.tensor asks for."""
    dist.init_process_group("gloo", init_method=f"file://{path}/ranks", rank=number, world_size=2)
    table = distribute_tensor(torch.zeros(4), init_device_mesh("cpu", (2,)), [Shard(0)])
    torch.manual_seed(1)
    came = torch.nn.init.uniform_(table).full_tensor()
    if torch.equal(came[:2], came[2:]):
        print(f"PyTorch {torch.__version__}, rank {number}: both shards are {came[:2].tolist()}")
        sys.exit(1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as path:
        context = start_processes(rank, (path,), nprocs=2, start_method="fork", join=False)
        for process in context.processes:
            process.join(60)
        sys.exit(int(any(process.exitcode for process in context.processes)))
