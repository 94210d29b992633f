"""index_add_ and index_copy_ on a sharded DTensor make a replicated one of it, whose ranks differ.

R-SV-3, R-SV-3-few-rows, R-SV-3-many, R-SV-3-scatter-add, R-SV-3-scatter-sub, R-SV-3-scatter-update,
R-SV-3-scatter-few-rows, R-SV-3-scatter-many, R-SV-3-scatter-update-numbers.
"""

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
    table = distribute_tensor(torch.tensor([1.0, 2.0, 3.0, 4.0]), mesh, [Shard(0)])
    ids, rows = (
        distribute_tensor(torch.tensor(one), mesh, [Replicate()]) for one in ([3], [100.0])
    )
    table.index_add_(0, ids, rows)
    came = table.full_tensor().tolist()
    if came != [1.0, 2.0, 3.0, 104.0]:
        print(
            f"PyTorch {torch.__version__}, rank {number}: [1, 2, 3, 4] plus 100 in row 3 is {came}"
        )
        sys.exit(1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as path:
        context = start_processes(rank, (path,), nprocs=2, start_method="fork", join=False)
        for process in context.processes:
            process.join(60)
        sys.exit(int(any(process.exitcode for process in context.processes)))
