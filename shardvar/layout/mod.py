"""The mod rule of old checkpoints, by which id ``i`` lies in shard ``i % P`` at row ``i // P``. Read, never written.

RFC 000: 'We are not going to support other partition strategies like "mod".' Variables that were sharded so are to be
read once and resharded by div; this module says where their rows lie.
"""

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange


def mod_sizes(length: int, num_shards: int) -> tuple[int, ...]:
    """The rows of each shard.

    >>> mod_sizes(13, 5)
    (3, 3, 3, 2, 2)
    """
    if num_shards < 1:
        raise ArgumentError(f"{num_shards} shards are not a layout.", "Give at least one.")
    return tuple((length - shard + num_shards - 1) // num_shards for shard in range(num_shards))


def mod_owner(ids: npt.ArrayLike, length: int, num_shards: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The shard that holds each id, and the id's row within that shard: two arrays like ``ids``.

    >>> mod_owner([12, 0, 7], 13, 5)
    (array([2, 0, 2]), array([2, 0, 1]))
    """
    mod_sizes(length, num_shards)
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
