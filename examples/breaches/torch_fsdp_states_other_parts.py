"""V-FSDP-1-stated: of FSDP over tensor parallelism, PyTorch states other parts than the ranks hold.

A distributed checkpoint records the part that is stated.
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group(
    "fake", rank=4, world_size=6, store=FakeStore()
)  # it sends nothing, and nothing is sent
mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("dp", "tp"))
layer = torch.nn.Linear(2, 7, bias=False)
weight = distribute_tensor(layer.weight.detach(), mesh["tp"], [Shard(0)], src_data_rank=None)
layer.weight = torch.nn.Parameter(weight)
fully_shard(layer, mesh=mesh["dp"])
held = tuple(layer.weight.to_local().shape)
stated, offset = compute_local_shape_and_global_offset(
    layer.weight.shape, mesh, layer.weight.placements
)
print(
    f"PyTorch {torch.__version__}: rank 4 of (dp 3, tp 2) holds {held} of (7, 2); {stated} at "
    f"{offset} is stated"
)
sys.exit(int(held != stated))
