"""Tables that were cut by TensorFlow 1's "mod" strategy, and their conversion to div.

``layout.mod`` says where rows lie under mod. A list of shards looks the same under both strategies, so which
one holds is the caller's knowledge. It is said once, here, and never as a default of a lookup.

R-MOD-1 (RFC 000): 'We are not going to support other partition strategies like "mod".' since "it is proved to be
error-prone from TF 1.x experiences".
"""

from collections.abc import Iterator, Sequence

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError
from shardvar.layout.dtypes import Array
from shardvar.layout.mod import mod_sizes
from shardvar.layout.partition import div
from shardvar.variables.sharded import ShardedVariable
from shardvar.variables.variable import Variable


def mod_to_div(variables: Sequence[Variable], name: str = "ShardedVariable") -> ShardedVariable:
    """The same table cut by div: as many shards, each on the device of the shard that it takes the place of.

    ``LayoutError`` where the shards cannot have been cut by mod: the first ones may have one row more, no others.

    >>> odd_and_even = [Variable([0, 2, 4]), Variable([1, 3])]
    >>> mod_to_div(odd_and_even).numpy().tolist()
    [0, 1, 2, 3, 4]
    """
    shards = _check_mod(variables)
    intervals = div(sum(shard.shape[0] for shard in shards), len(shards))
    return ShardedVariable(
        [
            Variable(_read_mod(shards, start, stop), name=shard.name, trainable=shard.trainable, colocated_with=shard)
            for shard, (start, stop) in zip(shards, intervals, strict=True)
        ],
        name,
    )


def _read_mod(shards: Sequence[Variable], start: int, stop: int) -> Array:
    """The rows ``start`` to ``stop`` of the table: of every shard, one run of rows."""
    out = np.empty((stop - start, *shards[0].shape[1:]), shards[0].dtype)
    for shard, first in zip(shards, _firsts(start, len(shards)), strict=True):
        places = out[first - start :: len(shards)] if first < stop else out[:0]
        if len(places):
            row = first // len(shards)
            places[...] = shard[row : row + len(places)]
    return out


def _firsts(start: int, num_shards: int) -> Iterator[int]:
    """For each shard the first id from ``start`` on that it holds."""
    return (start + (shard - start) % num_shards for shard in range(num_shards))


def _check_mod(variables: Sequence[Variable]) -> Sequence[Variable]:
    if not variables or not isinstance(variables, list | tuple):
        raise ArgumentError(f"{variables!r} is no list of shards.", "Give the shards in their order.")
    if not all(isinstance(variable, Variable) and variable.shape for variable in variables):
        raise ArgumentTypeError("Not all shards are variables with rows.", "Give a list of variables.")
    if len({(variable.shape[1:], variable.dtype) for variable in variables}) > 1:
        raise LayoutError("The shards have rows of several shapes or dtypes.", "Give the shards of one table.")
    sizes = [variable.shape[0] for variable in variables]
    by_mod = list(mod_sizes(sum(sizes), len(sizes)))
    if sizes != by_mod:
        raise LayoutError(
            f"Shards of {sizes} rows were not cut by mod, which gives {by_mod}.", "Give the shards in their order."
        )
    return variables
