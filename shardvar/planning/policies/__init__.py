"""Which slices share a file: policies as pure functions of columns, and what makes callbacks of them."""

from shardvar.planning.policies.balanced import BalancedPolicy
from shardvar.planning.policies.columnar import ColumnarPolicy
from shardvar.planning.policies.composition import TableComposition
from shardvar.planning.policies.grouping import AllInOnePolicy, ShardByDevicePolicy, ShardByTaskPolicy
from shardvar.planning.policies.max_shard_size import MaxShardSizePolicy
from shardvar.planning.policies.pieces import file_nbytes
from shardvar.planning.policies.protocol import CallbackPolicy, Policy, TablePolicy, TensorSliceDict

__all__ = [
    "AllInOnePolicy",
    "BalancedPolicy",
    "CallbackPolicy",
    "ColumnarPolicy",
    "MaxShardSizePolicy",
    "Policy",
    "ShardByDevicePolicy",
    "ShardByTaskPolicy",
    "TableComposition",
    "TablePolicy",
    "TensorSliceDict",
    "file_nbytes",
]
