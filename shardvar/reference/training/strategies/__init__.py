"""Strategies: decide the kind (plain, sharded, mirrored) and the devices of each variable."""

from shardvar.reference.training.strategies.kinds import (
    CollectiveAllReduceStrategy,
    HybridStrategy,
    MirroredStrategy,
    ParameterServerStrategy,
)
from shardvar.reference.training.strategies.strategy import (
    Choice,
    Hints,
    Strategy,
    Workload,
    choose_host_or_device,
    choose_mirror_or_shard,
    choose_sparse_or_dense,
    hints_for,
)

__all__ = [
    "Choice",
    "CollectiveAllReduceStrategy",
    "Hints",
    "HybridStrategy",
    "MirroredStrategy",
    "ParameterServerStrategy",
    "Strategy",
    "Workload",
    "choose_host_or_device",
    "choose_mirror_or_shard",
    "choose_sparse_or_dense",
    "hints_for",
]
