"""Variables: values that can be read and assigned, plain, sharded or mirrored."""

from shardvar.reference.variables import initializers
from shardvar.reference.variables import operations as variable_operations
from shardvar.reference.variables.create import create_partitioned, create_sharded_variable
from shardvar.reference.variables.indexed_slices import IndexedSlices
from shardvar.reference.variables.interface import VariableInterface
from shardvar.reference.variables.mirrored import AggregatingVariable, MirroredVariable, PerReplica
from shardvar.reference.variables.ref_variable import RefVariable
from shardvar.reference.variables.resource_variable import ResourceVariable
from shardvar.reference.variables.scopes import name_scope, variable_creator_scope
from shardvar.reference.variables.sharded import ShardedVariable
from shardvar.reference.variables.sync_on_read import SyncOnReadVariable, replica_scope
from shardvar.reference.variables.variable import (
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
