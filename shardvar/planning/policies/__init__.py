"""Policies: which slices share a file. Pure functions of columns, which can also be called as RFC
001's callbacks."""

from shardvar.planning.policies.max_shard_size import MaxShardSizePolicy
from shardvar.planning.policies.policy import (
    AllInOnePolicy,
    BalancedPolicy,
    CallbackPolicy,
    ColumnarPolicy,
    Policy,
    SeparatePolicy,
    ShardByDevicePolicy,
    ShardByTaskPolicy,
    TablePolicy,
    TensorSliceDict,
)

__all__ = [
    "AllInOnePolicy",
    "BalancedPolicy",
    "CallbackPolicy",
    "ColumnarPolicy",
    "MaxShardSizePolicy",
    "Policy",
    "SeparatePolicy",
    "ShardByDevicePolicy",
    "ShardByTaskPolicy",
    "TablePolicy",
    "TensorSliceDict",
]
