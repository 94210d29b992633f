"""Layouts of meshes: the regions that each device holds, by the rules of the frameworks. Geometry alone."""

from shardvar.layouts.dtensor import DTensorPlacement, Partial, Replicate, Shard, StridedShard, dtensor
from shardvar.layouts.fsdp import fsdp, fsdp_flat, fsdp_placements
from shardvar.layouts.layout import Layout
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
    "fsdp",
    "fsdp_flat",
    "fsdp_placements",
    "named_sharding",
    "parameter_servers",
]
