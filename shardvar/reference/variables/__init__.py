"""Variables: values that can be read and assigned, plain, sharded or mirrored."""

from shardvar.reference.variables import initializers
from shardvar.reference.variables import operations as variable_operations
from shardvar.reference.variables.initial_value import name_scope, variable_creator_scope
from shardvar.reference.variables.interface import VariableInterface
from shardvar.reference.variables.mirrored import (
    AggregatingVariable,
    MirroredVariable,
    PerReplica,
    SyncOnReadVariable,
    replica_scope,
)
from shardvar.reference.variables.rows import IndexedSlices
from shardvar.reference.variables.sharded import (
    ShardedVariable,
    create_partitioned,
    create_sharded_variable,
)
from shardvar.reference.variables.variable import (
    RefVariable,
    ResourceVariable,
    UnreadVariable,
    Variable,
    VariableAggregation,
    VariableSynchronization,
)

__all__ = [
    "AggregatingVariable",
    "IndexedSlices",
    "MirroredVariable",
    "PerReplica",
    "RefVariable",
    "ResourceVariable",
    "ShardedVariable",
    "SyncOnReadVariable",
    "UnreadVariable",
    "Variable",
    "VariableAggregation",
    "VariableInterface",
    "VariableSynchronization",
    "create_partitioned",
    "create_sharded_variable",
    "initializers",
    "name_scope",
    "replica_scope",
    "variable_creator_scope",
    "variable_operations",
]
