"""Layouts of meshes: the regions of each device, by the frameworks' rules. Only geometry."""

from shardvar.layout.meshes.dtensor import (
    DTensorPlacement,
    Partial,
    Replicate,
    Shard,
    StridedShard,
    deepspeed,
    dtensor,
    fsdp,
    fsdp_flat,
    fsdp_placements,
    local_shapes_and_offsets,
)
from shardvar.layout.meshes.layout import Layout
from shardvar.layout.meshes.megatron import (
    from_rank_offsets,
    megatron,
    padded_vocabulary,
    pipeline_layers,
    replica_id,
    sharded_tensor,
    vocabulary_range,
)
from shardvar.layout.meshes.named_sharding import (
    UNCONSTRAINED,
    UNSHARDED,
    layouts_by_path,
    named_sharding,
    parameter_servers,
    tensor_layout,
    tensorflow_dtensor,
)
from shardvar.layout.meshes.redistribution import DeviceCopies, Redistribution, plan_redistribution

__all__ = [
    "UNCONSTRAINED",
    "UNSHARDED",
    "DTensorPlacement",
    "DeviceCopies",
    "Layout",
    "Partial",
    "Redistribution",
    "Replicate",
    "Shard",
    "StridedShard",
    "deepspeed",
    "dtensor",
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
    "vocabulary_range",
]
