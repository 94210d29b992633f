"""Chapter 6. Lookups: rows of a sharded table by their ids, and bags of ids.

Sums are exact (``math.fsum``), and are rounded once, when the answer is made.
"""

from collections.abc import Sequence
from math import fsum, sqrt

import numpy as np
import numpy.typing as npt

from shardvar.spec.partitions import owner
from shardvar.spec.variables import Array, Shards

__all__ = [
    "Entry",
    "balanced_rows",
    "clipped",
    "embedding_lookup",
    "embedding_lookup_sparse",
]

Entry = tuple[int, int, float | None]
"""Of sparse ids: the row of the answer, an id, and its weight."""


# R-LOOKUP-2 (RFC 000): "Python ops that have well defined partitioned behavior (e.g,
# `tf.nn.embedding_lookup`, `tf.nn.sampled_softmax_loss`) will treat sharded variable as a list of
# variables for parallel operations"
# R-LOOKUP-3 (RFC 000): 'Most of the ops like `tf.nn.embedding_lookup` in TF 2.x always assume it is
# "div" strategy.'
def embedding_lookup(shards: Shards, ids: npt.ArrayLike, max_norm: float | None = None) -> Array:
    """Return the row of each id, in the order and the shape of the ids: [*ids, *row].

    >>> table = [np.array([[0.0], [1.0]]), np.array([[2.0]])]
    >>> embedding_lookup(table, [2, 0, 2]).tolist()
    [[2.0], [0.0], [2.0]]
    """
    ids, row = np.asarray(ids, np.int64), shards[0].shape[1:]
    found = np.zeros((ids.size, *row), shards[0].dtype)
    for place, one in enumerate(ids.ravel().tolist()):
        shard, local = owner(one, [len(each) for each in shards])
        found[place] = clipped(shards[shard][local], max_norm)
    return found.reshape((*ids.shape, *row))


# R-LOOKUP-4 (RFC 002): "max_norm: If not `None`, each embedding is clipped if its l2-norm is larger
# than this value."
def clipped(row: Array, max_norm: float | None) -> Array:
    """Return a row, scaled down to a norm that it exceeds. In float64, if so.

    >>> clipped(np.array([3.0, 4.0]), 1.0), clipped(np.array([3.0, 4.0]), 6.0)
    (array([0.6, 0.8]), array([3., 4.]))
    """
    if max_norm is None:
        return row
    norm = sqrt(fsum(float(abs(value)) ** 2 for value in row.ravel()))
    return row if norm <= max_norm else row.astype(np.float64) * (max_norm / norm)


# R-SPARSE-1 (RFC 002): "we will remove `partition_strategy `from all v2 symbols."
def embedding_lookup_sparse(
    shards: Shards,
    entries: Sequence[Entry],
    num_rows: int,
    combiner: str,
    max_norm: float | None = None,
) -> Array:
    """Combine the rows of each bag: [num_rows, *row]. A bag without ids, or without weight, is 0.

    >>> table = [np.array([[0.0], [1.0]]), np.array([[4.0]])]
    >>> embedding_lookup_sparse(table, [(0, 1, None), (0, 2, None)], 2, "mean").tolist()
    [[2.5], [0.0]]
    """
    found = np.zeros((num_rows, *shards[0].shape[1:]), shards[0].dtype)
    for number in range(num_rows):
        bag = [(one, 1.0 if w is None else float(w)) for at, one, w in entries if at == number]
        rows = [clipped(embedding_lookup(shards, one), max_norm) for one, _ in bag]
        weights = [weight for _, weight in bag]
        divisor = {
            "sum": 1.0,
            "mean": fsum(weights),
            "sqrtn": sqrt(fsum(weight * weight for weight in weights)),
        }[combiner]
        for column in np.ndindex(found.shape[1:]):
            total = fsum(w * float(row[column]) for row, w in zip(rows, weights, strict=True))
            found[(number, *column)] = total / divisor if divisor else 0.0
    return found


# R-BALANCE-1 (RFC 002): "we can rebalance embeddings in the Keras Embedding layer, optionally given
# a frequency map/list, and remember the mapping in a variable or a hash table for lookup."
def balanced_rows(frequencies: Sequence[float], sizes: Sequence[int]) -> list[int]:
    """Return the row of each id, so that shards are asked about equally often.

    The most frequent id goes first. Each goes to the shard of the least load that has a free row.

    >>> balanced_rows([8, 4, 3, 1], [2, 2])
    [0, 2, 3, 1]
    """
    starts = [sum(sizes[:shard]) for shard in range(len(sizes))]
    loads, used, rows = [0.0] * len(sizes), [0] * len(sizes), [0] * len(frequencies)
    for one in sorted(range(len(frequencies)), key=lambda one: (-frequencies[one], one)):
        free = [shard for shard in range(len(sizes)) if used[shard] < sizes[shard]]
        shard = min(free, key=lambda shard: (loads[shard], shard))
        rows[one] = starts[shard] + used[shard]
        loads[shard], used[shard] = loads[shard] + frequencies[one], used[shard] + 1
    return rows
