"""Where the rows of an embedding stand, when their order is not the ids' own: balanced by frequency, or shuffled.

Under div the ids that are asked for most may all live on one server. Two remedies are named by the RFCs, and both are a
permutation of rows that is remembered:

R-BALANCE-1 (RFC 002): "we can rebalance embeddings in the Keras Embedding layer, optionally given a frequency map/list,
and remember the mapping in a variable or a hash table for lookup."

R-BALANCE-2 (RFC 000): "recommend users to mitigate hotspot issues via other means like vocab shuffling".

1. ``plan_balanced_rows`` or ``plan_shuffled_rows`` gives the mapping: ``rows[id]`` is where the id's row stands.
2. ``permute_rows`` moves the rows of a table that is filled already; a new one need not be moved.
3. ``RebalancedEmbedding`` keeps table and mapping together, so that both are saved, and looks up through the mapping.
"""

from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.devices import operation_scope
from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array, Ints
from shardvar.nn.lookup import check_table, embedding_lookup, row_layout_of
from shardvar.random import stateless_uniform
from shardvar.tracking import Trackable
from shardvar.variables.indexed_slices import IndexedSlices
from shardvar.variables.interface import VariableInterface
from shardvar.variables.row_layout import RowLayout, check_rows
from shardvar.variables.variable import Variable


def plan_balanced_rows(frequencies: npt.ArrayLike, layout: RowLayout) -> Ints:
    """The row of each id, such that shards are asked about equally often.

    Ids are dealt from the most frequent to the least, each to the shard that is asked least so far and has room; equal
    ones go to the first. The sizes of the shards stay.

    >>> plan_balanced_rows([8, 4, 4, 1, 1, 1], RowLayout.of_sizes([3, 3])).tolist()
    [0, 3, 4, 1, 5, 2]
    """
    try:
        counts = np.asarray(frequencies, np.float64)
    except (TypeError, ValueError):
        raise ArgumentError("Frequencies are no numbers.", "Give a number of at least 0 for each id.") from None
    if counts.shape != (layout.num_rows,) or not np.all(np.isfinite(counts) & (counts >= 0)):
        raise ArgumentError(
            f"Frequencies of shape {counts.shape} do not fit {layout.num_rows} rows, or are not counts.",
            "Give a number of at least 0 for each id.",
        )
    starts, stops = layout.bounds[:-1], layout.bounds[1:]
    queue = [(0.0, shard, start) for shard, start in enumerate(starts) if start < stops[shard]]
    heapify(queue)
    rows = np.empty(len(counts), np.int64)
    for chosen in np.argsort(-counts, kind="stable").tolist():
        load, shard, row = heappop(queue)
        rows[chosen] = row
        if row + 1 < stops[shard]:
            heappush(queue, (load + counts[chosen], shard, row + 1))
    return rows


def plan_shuffled_rows(num_rows: int, seed: int) -> Ints:
    """A permutation that depends on the seed alone: the order of ``stateless_uniform``'s 64-bit words.

    >>> sorted(plan_shuffled_rows(5, seed=1).tolist())
    [0, 1, 2, 3, 4]
    """
    words = stateless_uniform([num_rows], [seed, 0], None, None, "uint64")
    return np.argsort(words, kind="stable").astype(np.int64)


def shard_loads(frequencies: npt.ArrayLike, rows: npt.ArrayLike, layout: RowLayout) -> Array:
    """How often each shard is asked, given how often each id is: [num_shards]."""
    owner, _ = layout.owner(check_permutation(rows, layout.num_rows))
    return np.bincount(owner, np.asarray(frequencies, np.float64), minlength=layout.num_shards)


def permute_rows(params: Any, rows: npt.ArrayLike) -> None:
    """Move the row of each id ``i``, which stood at ``i``, to ``rows[i]``: all rows or, on an error, none."""
    table = check_table(params)
    targets = check_permutation(rows, table.shape[0])
    with operation_scope("permute_rows"):
        table.scatter_update(IndexedSlices(table.read_value(), targets))


def check_permutation(rows: npt.ArrayLike, num_rows: int) -> Ints:
    """The rows, each of which comes exactly once."""
    targets = check_rows(rows, num_rows, rank=1)
    if len(targets) != num_rows or len(np.unique(targets)) != num_rows:
        raise ArgumentError(f"{len(targets)} rows are no permutation of {num_rows}.", "Name each row once.")
    return targets


class RebalancedEmbedding(Trackable):
    """A table whose rows stand elsewhere than their ids say, and the mapping that finds them.

    Both are variables and children of this object, so a checkpoint holds them together. Looking up through the mapping
    is looking up twice: the mapping's few bytes an id, then the rows.

    >>> embedding = RebalancedEmbedding(Variable([[0.0], [1.0], [2.0]]), [2, 0, 1])
    >>> embedding.lookup([2, 0]).tolist()
    [[1.0], [2.0]]
    """

    table: VariableInterface
    """The embedding; row ``mapping[i]`` is that of id ``i``."""
    mapping: VariableInterface
    """The row of each id, an int64 variable that is not trained."""

    def __init__(self, params: Any, rows: npt.ArrayLike) -> None:
        self.table = self.track("table", check_table(params))
        targets = check_permutation(rows, self.table.shape[0])
        self.mapping = self.track("mapping", Variable(targets, trainable=False, name="row_of_id"))

    @classmethod
    def by_frequency(cls, params: Any, frequencies: npt.ArrayLike) -> "RebalancedEmbedding":
        """Rebalance a table that is filled: plan, move its rows, remember."""
        table = check_table(params)
        return cls._moved(table, plan_balanced_rows(frequencies, row_layout_of(table)))

    @classmethod
    def shuffled(cls, params: Any, seed: int) -> "RebalancedEmbedding":
        """Shuffle a table that is filled: plan, move its rows, remember."""
        table = check_table(params)
        return cls._moved(table, plan_shuffled_rows(table.shape[0], seed))

    def rows_of(self, ids: Any) -> Ints:
        """Where the rows of the ids stand."""
        return embedding_lookup(self.mapping, ids, name="row_of_id")

    def lookup(self, ids: Any, max_norm: float | None = None, name: str | None = None) -> Array:
        """``embedding_lookup`` of the ids, wherever their rows stand."""
        return embedding_lookup(self.table, self.rows_of(ids), max_norm, name)

    @classmethod
    def _moved(cls, table: VariableInterface, rows: Ints) -> "RebalancedEmbedding":
        permute_rows(table, rows)
        return cls(table, rows)
