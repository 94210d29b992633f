"""Layouts of meshes: the regions that each device holds, by the rules of the frameworks. Geometry alone."""

from shardvar.layouts.deepspeed import deepspeed
from shardvar.layouts.dtensor import (
    DTensorPlacement,
    Partial,
    Replicate,
    Shard,
    StridedShard,
    dtensor,
    local_shapes_and_offsets,
)
from shardvar.layouts.fsdp import fsdp, fsdp_flat, fsdp_placements
from shardvar.layouts.keras import UNSHARDED, layouts_by_path, tensor_layout, tensorflow_dtensor
from shardvar.layouts.layout import Layout
from shardvar.layouts.megatron import (
    from_rank_offsets,
    megatron,
    padded_vocabulary,
    replica_id,
    sharded_tensor,
    vocabulary_range,
)
from shardvar.layouts.named_sharding import UNCONSTRAINED, named_sharding
from shardvar.layouts.parameter_servers import parameter_servers
from shardvar.layouts.pipeline import pipeline_layers
from shardvar.layouts.redistribution import DeviceCopies, Redistribution, plan_redistribution
from shardvar.layouts.save_plans import (
    ReadItem,
    SavedTensor,
    WriteItem,
    dcp_load_plan,
    dcp_save_plan,
    torchsnapshot_shards,
    torchsnapshot_tensor,
)
from shardvar.layouts.steps import DTensorStep, dtensor_steps

__all__ = [
    "UNCONSTRAINED",
    "UNSHARDED",
    "DTensorPlacement",
    "DTensorStep",
    "DeviceCopies",
    "Layout",
    "Partial",
    "ReadItem",
    "Redistribution",
    "Replicate",
    "SavedTensor",
    "Shard",
    "StridedShard",
    "WriteItem",
    "dcp_load_plan",
    "dcp_save_plan",
    "deepspeed",
    "dtensor",
    "dtensor_steps",
    "from_rank_offsets",
    "fsdp",
    "fsdp_flat",
    "fsdp_placements",
    "layouts_by_path",
    "local_shapes_and_offsets",
    "megatron",
    "named_sharding",
    "padded_vocabulary",
    "parameter_servers",
    "pipeline_layers",
    "plan_redistribution",
    "replica_id",
    "sharded_tensor",
    "tensor_layout",
    "tensorflow_dtensor",
    "torchsnapshot_shards",
    "torchsnapshot_tensor",
    "vocabulary_range",
]
