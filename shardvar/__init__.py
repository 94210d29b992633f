"""shardvar: inspect, verify and reshard checkpoints of sharded tensors, without the framework that wrote them.

    import shardvar as sv

    sv.save("model", {"table": table}, partition=3)
    sv.reshard("model", "model-of-five", partition=5)
    assert sv.diff("model", "model-of-five").equal

This module is the face. It imports nothing until one of its names is used (SPEC 1), so that the command line starts
quickly and a program that wants only ``sv.div`` pays for nothing else. ``_HOMES`` is the only table of public names: a
name is added there and, for type checkers and editors, which do not run code, in the imports above it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardvar import errors as errors
    from shardvar import nn as nn
    from shardvar import random as random
    from shardvar.checkpoint import load as load
    from shardvar.checkpoint import open_checkpoint as open_checkpoint
    from shardvar.checkpoint import reshard as reshard
    from shardvar.checkpoint import save as save
    from shardvar.checkpoint.callbacks import ShardableTensor as ShardableTensor
    from shardvar.checkpoint.callbacks import ShardingCallback as ShardingCallback
    from shardvar.checkpoint.callbacks import compose as compose
    from shardvar.checkpoint.diff import diff as diff
    from shardvar.checkpoint.objects import Checkpoint as Checkpoint
    from shardvar.checkpoint.objects import CheckpointManager as CheckpointManager
    from shardvar.checkpoint.objects import PendingSave as PendingSave
    from shardvar.checkpoint.objects import latest_checkpoint as latest_checkpoint
    from shardvar.checkpoint.objects.export import export as export
    from shardvar.checkpoint.objects.exported import load_exported as load_exported
    from shardvar.checkpoint.options import CheckpointOptions as CheckpointOptions
    from shardvar.checkpoint.verify import verify as verify
    from shardvar.devices import track_transfers as track_transfers
    from shardvar.layout import Partition as Partition
    from shardvar.layout import PartitionSpec as PartitionSpec
    from shardvar.layout import Region as Region
    from shardvar.layout import chunk as chunk
    from shardvar.layout import div as div
    from shardvar.layout import div_owner as div_owner
    from shardvar.layout.partitioners import FixedShardsPartitioner as FixedShardsPartitioner
    from shardvar.layout.partitioners import MaxSizePartitioner as MaxSizePartitioner
    from shardvar.layout.partitioners import MinSizePartitioner as MinSizePartitioner
    from shardvar.layout.partitioners import fixed_size_partitioner as fixed_size_partitioner
    from shardvar.layout.partitioners import min_max_variable_partitioner as min_max_variable_partitioner
    from shardvar.layout.partitioners import variable_axis_size_partitioner as variable_axis_size_partitioner
    from shardvar.nn.matmul import matmul as matmul
    from shardvar.planning.policies import AllInOnePolicy as AllInOnePolicy
    from shardvar.planning.policies import MaxShardSizePolicy as MaxShardSizePolicy
    from shardvar.planning.policies import ShardByDevicePolicy as ShardByDevicePolicy
    from shardvar.planning.policies import ShardByTaskPolicy as ShardByTaskPolicy
    from shardvar.tracking import Stateful as Stateful
    from shardvar.tracking import Trackable as Trackable
    from shardvar.training import Module as Module
    from shardvar.training import deserialize as deserialize
    from shardvar.training import layers as layers
    from shardvar.training import optimizers as optimizers
    from shardvar.training import serializable as serializable
    from shardvar.training import serialize as serialize
    from shardvar.training import strategies as strategies
    from shardvar.training.strategies import CollectiveAllReduceStrategy as CollectiveAllReduceStrategy
    from shardvar.training.strategies import HybridStrategy as HybridStrategy
    from shardvar.training.strategies import MirroredStrategy as MirroredStrategy
    from shardvar.training.strategies import ParameterServerStrategy as ParameterServerStrategy
    from shardvar.variables import IndexedSlices as IndexedSlices
    from shardvar.variables import ShardedVariable as ShardedVariable
    from shardvar.variables import Variable as Variable
    from shardvar.variables import initializers as initializers
    from shardvar.variables import name_scope as name_scope
    from shardvar.variables import variable_creator_scope as variable_creator_scope
    from shardvar.variables import variable_operations as variable_operations

_HOMES = {
    "shardvar.errors": ("errors",),
    "shardvar.checkpoint": ("load", "open_checkpoint", "reshard", "save"),
    "shardvar.checkpoint.callbacks": ("ShardableTensor", "ShardingCallback", "compose"),
    "shardvar.checkpoint.diff": ("diff",),
    "shardvar.checkpoint.objects": ("Checkpoint", "CheckpointManager", "PendingSave", "latest_checkpoint"),
    "shardvar.checkpoint.objects.export": ("export",),
    "shardvar.checkpoint.objects.exported": ("load_exported",),
    "shardvar.checkpoint.options": ("CheckpointOptions",),
    "shardvar.checkpoint.verify": ("verify",),
    "shardvar.devices": ("track_transfers",),
    "shardvar.layout": ("Partition", "PartitionSpec", "Region", "chunk", "div", "div_owner"),
    "shardvar.layout.partitioners": (
        "FixedShardsPartitioner",
        "MaxSizePartitioner",
        "MinSizePartitioner",
        "fixed_size_partitioner",
        "min_max_variable_partitioner",
        "variable_axis_size_partitioner",
    ),
    "shardvar.nn": ("nn",),
    "shardvar.nn.matmul": ("matmul",),
    "shardvar.planning.policies": (
        "AllInOnePolicy",
        "MaxShardSizePolicy",
        "ShardByDevicePolicy",
        "ShardByTaskPolicy",
    ),
    "shardvar.random": ("random",),
    "shardvar.tracking": ("Stateful", "Trackable"),
    "shardvar.training": (
        "Module",
        "deserialize",
        "layers",
        "optimizers",
        "serializable",
        "serialize",
        "strategies",
    ),
    "shardvar.training.strategies": (
        "CollectiveAllReduceStrategy",
        "HybridStrategy",
        "MirroredStrategy",
        "ParameterServerStrategy",
    ),
    "shardvar.variables": (
        "IndexedSlices",
        "ShardedVariable",
        "Variable",
        "initializers",
        "name_scope",
        "variable_creator_scope",
        "variable_operations",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__version__ = "0.1.0"
__all__ = list(_HOME_OF)

if not TYPE_CHECKING:  # a checker that saw __getattr__ would take every misspelt name for a public one

    def __getattr__(name):
        """Import the module that holds ``name``, and remember what it is."""
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = import_module(_HOME_OF[name])
        value = home if home.__name__ == f"{__name__}.{name}" else getattr(home, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """The public names, whether imported yet or not."""
    return sorted([*__all__, "__version__"])
