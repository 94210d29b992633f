"""The mod rule of old checkpoints: id ``i`` lies in shard ``i % P``, at row ``i // P``. Read, never
written.

R-MOD-1 (RFC 000): 'We are not going to support other partition strategies like "mod".' since "it is
proved to be error-prone from TF 1.x experiences". Variables that TensorFlow 1 cut by mod are read
once, and cut again by div.

``mod_sizes`` and ``mod_owner`` say where the rows lie; ``mod_to_div`` converts a list of shards. A
list of shards looks the same under both rules, so only the caller can know which one holds. The
caller says it by calling ``mod_to_div``; it is never the default of a lookup.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError, OutOfRange
from shardvar.layout.dtypes import Array, Ints
from shardvar.layout.partition import div, read_counts
from shardvar.reference.variables.sharded import ShardedVariable
from shardvar.reference.variables.variable import Variable


def mod_sizes(length: int, num_shards: int) -> tuple[int, ...]:
    """Return the number of rows of each shard.

    >>> mod_sizes(13, 5)
    (3, 3, 3, 2, 2)
    """
    length, num_shards = read_counts(length, num_shards)
    # Shard s holds s, s + P, s + 2P, ... below the length: (length - s) / P of them, rounded up. Of
    # 13 rows over 5, shard 2 holds 2, 7 and 12: (13 - 2 + 4) // 5 = 3.
    return tuple((length - shard + num_shards - 1) // num_shards for shard in range(num_shards))


def mod_owner(ids: npt.ArrayLike, length: int, num_shards: int) -> tuple[Ints, Ints]:
    """Return the shard that holds each id, and the id's row within that shard: two arrays like
    ``ids``.

    >>> mod_owner([12, 0, 7], 13, 5)
    (array([2, 0, 2]), array([2, 0, 1]))
    """
    length, num_shards = read_counts(length, num_shards)
    array = np.asarray(ids)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ArgumentTypeError(f"ids have dtype {array.dtype}.", "Give integers.")
    outside = array[(array < 0) | (array >= length)]
    if outside.size:
        raise OutOfRange(f"id {outside.flat[0]} is outside [0, {length}).")
    shard, row = array.astype(np.int64) % num_shards, array.astype(np.int64) // num_shards
    return shard, row


def mod_to_div(variables: Sequence[Variable], name: str = "ShardedVariable") -> ShardedVariable:
    """Return a table that was cut by mod, cut by div: as many shards, each on the device of the
    shard that it replaces.

    Parameters
    ----------
    variables : list of Variable
        The shards in their order: id ``i`` is row ``i // P`` of shard ``i % P``.
    name : str, default "ShardedVariable"
        The name of the result.

    Returns
    -------
    ShardedVariable
        The same rows in the order of their ids, in new variables.

    Raises
    ------
    LayoutError
        If the shards cannot have been cut by mod: only the first ones may have one row more, and
        rows are alike.
    ArgumentError
        If `variables` is not a non-empty list.
    ArgumentTypeError
        If an item is not a variable with rows.

    Examples
    --------
    >>> odd_and_even = [Variable([0, 2, 4]), Variable([1, 3])]
    >>> mod_to_div(odd_and_even).numpy().tolist()
    [0, 1, 2, 3, 4]
    """
    shards = _check_mod(variables)
    intervals = div(sum(shard.shape[0] for shard in shards), len(shards))
    return ShardedVariable(
        [
            Variable(
                _read_mod(shards, start, stop),
                name=shard.name,
                trainable=shard.trainable,
                colocated_with=shard,
            )
            for shard, (start, stop) in zip(shards, intervals, strict=True)
        ],
        name,
    )


def _read_mod(shards: Sequence[Variable], start: int, stop: int) -> Array:
    """Return the rows ``start`` to ``stop`` of the table, from one range of every shard."""
    out = np.empty((stop - start, *shards[0].shape[1:]), shards[0].dtype)
    for shard, first in zip(shards, _firsts(start, len(shards)), strict=True):
        # Every P-th row of the table is the shard's next one. Of P = 2 shards, rows 3 to 7 are: 3,
        # 5 from shard 1 (its rows 1 and 2) and 4, 6 from shard 0 (its rows 2 and 3).
        places = out[first - start :: len(shards)] if first < stop else out[:0]
        if len(places):
            row = first // len(shards)
            places[...] = shard[row : row + len(places)]
    return out


def _firsts(start: int, num_shards: int) -> Iterator[int]:
    """Yield for each shard the first id from ``start`` on that it holds."""
    # The smallest id >= start with id % P == shard. For start = 3 and P = 2: shard 0 has 3 + (0 -
    # 3) % 2 = 4.
    return (start + (shard - start) % num_shards for shard in range(num_shards))


def _check_mod(variables: Sequence[Variable]) -> Sequence[Variable]:
    if not variables or not isinstance(variables, list | tuple):
        raise ArgumentError(
            f"{variables!r} is not a list of shards.", "Give the shards in their order."
        )
    kinds = [
        isinstance(variable, Variable) and not isinstance(variable, ShardedVariable)
        for variable in variables
    ]
    if not all(kinds) or not all(variable.shape for variable in variables):
        raise ArgumentTypeError(
            "Not all shards are variables with rows.", "Give a list of variables."
        )
    if len({(variable.shape[1:], variable.dtype) for variable in variables}) > 1:
        raise LayoutError(
            "The shards have rows of several shapes or dtypes.", "Give the shards of one table."
        )
    sizes = [variable.shape[0] for variable in variables]
    by_mod = list(mod_sizes(sum(sizes), len(sizes)))
    if sizes != by_mod:
        raise LayoutError(
            f"Shards of {sizes} rows were not cut by mod, which gives {by_mod}.",
            "Give the shards in their order.",
        )
    return variables
