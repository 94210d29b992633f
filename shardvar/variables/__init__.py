"""Variables: values that can be read and assigned, plain, sharded or mirrored."""

from shardvar.variables import initializers
from shardvar.variables import operations as variable_operations
from shardvar.variables.create import create_partitioned, create_sharded_variable
from shardvar.variables.indexed_slices import IndexedSlices
from shardvar.variables.interface import VariableInterface
from shardvar.variables.mirrored import AggregatingVariable, MirroredVariable, PerReplica
from shardvar.variables.ref_variable import RefVariable
from shardvar.variables.resource_variable import ResourceVariable
from shardvar.variables.scopes import name_scope, variable_creator_scope
from shardvar.variables.sharded import ShardedVariable
from shardvar.variables.sync_on_read import SyncOnReadVariable, replica_scope
from shardvar.variables.variable import UnreadVariable, Variable, VariableAggregation, VariableSynchronization

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
