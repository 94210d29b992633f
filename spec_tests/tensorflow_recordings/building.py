"""Sharded variables from the arrays of a vector, each shard on a server of its own."""

from collections.abc import Iterable, Mapping
from typing import Any

from shardvar.reference.devices import Device
from shardvar.reference.variables import ShardedVariable, Variable
from spec_tests.tensorflow_recordings.cases import decode


def sharded(arrays: Iterable[Mapping[str, Any]]) -> ShardedVariable:
    """One shard for each encoded array, named as a strategy names them."""
    return ShardedVariable(
        [
            Variable(decode(array), name=f"w/part_{number}", device=Device(f"ps:{number}"))
            for number, array in enumerate(arrays)
        ]
    )


def contents(variable: ShardedVariable) -> list[Any]:
    """The values of the shards."""
    return [shard.numpy() for shard in variable.variables]
