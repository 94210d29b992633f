"""Layouts of meshes: the regions that each device holds, by the rules of the frameworks. Geometry alone."""

from shardvar.layouts.dtensor import Partial, Replicate, Shard, StridedShard, dtensor
from shardvar.layouts.layout import Layout
from shardvar.layouts.parameter_servers import parameter_servers

__all__ = ["Layout", "Partial", "Replicate", "Shard", "StridedShard", "dtensor", "parameter_servers"]
