"""Layouts of meshes: the regions of each device, by the frameworks' rules. Only geometry."""

from shardvar.layout.meshes.copies import DeviceCopies
from shardvar.layout.meshes.deepspeed import deepspeed
from shardvar.layout.meshes.dtensor import (
    DTensorPlacement,
    Partial,
    Replicate,
    Shard,
    StridedShard,
    dtensor,
    local_shapes_and_offsets,
)
from shardvar.layout.meshes.fsdp import fsdp, fsdp_flat, fsdp_placements
from shardvar.layout.meshes.keras import (
    UNSHARDED,
    layouts_by_path,
    tensor_layout,
    tensorflow_dtensor,
)
from shardvar.layout.meshes.layout import Layout
from shardvar.layout.meshes.megatron import from_rank_offsets, megatron, replica_id, sharded_tensor
from shardvar.layout.meshes.named_sharding import UNCONSTRAINED, named_sharding
from shardvar.layout.meshes.parameter_servers import parameter_servers
from shardvar.layout.meshes.pipeline import pipeline_layers
from shardvar.layout.meshes.redistribution import Redistribution, plan_redistribution
from shardvar.layout.meshes.vocabulary import padded_vocabulary, vocabulary_range

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
