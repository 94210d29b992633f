"""Layouts of meshes: the regions that each device holds, by the rules of the frameworks. Geometry alone."""

from shardvar.layouts.dtensor import DTensorPlacement, Partial, Replicate, Shard, StridedShard, dtensor
from shardvar.layouts.fsdp import fsdp, fsdp_flat, fsdp_placements
from shardvar.layouts.layout import Layout
from shardvar.layouts.megatron import from_rank_offsets, megatron, padded_vocabulary, replica_id, vocabulary_range
from shardvar.layouts.named_sharding import UNCONSTRAINED, named_sharding
from shardvar.layouts.parameter_servers import parameter_servers

__all__ = [
    "UNCONSTRAINED",
    "DTensorPlacement",
    "Layout",
    "Partial",
    "Replicate",
    "Shard",
    "StridedShard",
    "dtensor",
    "from_rank_offsets",
    "fsdp",
    "fsdp_flat",
    "fsdp_placements",
    "megatron",
    "named_sharding",
    "padded_vocabulary",
    "parameter_servers",
    "replica_id",
    "vocabulary_range",
]
