"""Other orders of the rows of an embedding: the mod rule of old checkpoints, and permutations.

By the mod rule, id ``i`` lies in shard ``i % P``, at row ``i // P``. It is read, never written.

R-MOD-1 (RFC 000): 'We are not going to support other partition strategies like "mod".' since "it is
proved to be error-prone from TF 1.x experiences". Variables that TensorFlow 1 cut by mod are read
once, and cut again by div.

``mod_to_div`` converts a list of shards. It looks the same under both rules, so only the caller can
know which rule holds, and calls ``mod_to_div``; it is never the default of a lookup.

Under div the ids that are asked for most may all live on one server. The RFCs name two remedies.
Both are a permutation of rows that is remembered:

R-BALANCE-1 (RFC 002): "we can rebalance embeddings in the Keras Embedding layer, optionally given a
frequency map/list, and remember the mapping in a variable or a hash table for lookup."

R-BALANCE-2 (RFC 000): "recommend users to mitigate hotspot issues via other means like vocab
shuffling".

1. ``plan_balanced_rows`` or ``plan_shuffled_rows`` gives the mapping: ``rows[id]`` is the row of
   the table for the id.
2. ``permute_rows`` moves the rows of a table that is filled already; the rows of a new one need not
   be moved.
3. ``RebalancedEmbedding`` keeps table and mapping together, so that both are saved, and looks up
   through the mapping.

The layer does all three: ``sv.layers.Embedding(..., rebalance=True, frequencies=...)``.
"""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError, OutOfRange
from shardvar.layout.dtypes import Array, Ints
from shardvar.layout.partition import Partition, div, plan_rows, read_counts
from shardvar.reference.devices import operation_scope
from shardvar.reference.nn.lookup import check_table, embedding_lookup, row_layout_of
from shardvar.reference.random import stateless_uniform
from shardvar.reference.tracking import Trackable
from shardvar.reference.variables.interface import VariableInterface
from shardvar.reference.variables.mirrored import AggregatingVariable, MirroredVariable
from shardvar.reference.variables.rows import IndexedSlices, RowLayout, check_rows
from shardvar.reference.variables.sharded import ShardedVariable
from shardvar.reference.variables.variable import Variable


def mod_sizes(length: int, num_shards: int) -> tuple[int, ...]:
    length, num_shards = read_counts(length, num_shards)
    # Shard s holds s, s + P, s + 2P, ... below the length.
    return tuple(len(range(shard, length, num_shards)) for shard in range(num_shards))


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
    # Check.
    if not variables or not isinstance(variables, list | tuple):
        raise ArgumentError(
            f"{variables!r} is not a list of shards.", "Give the shards in their order."
        )
    if not all(
        isinstance(shard, Variable) and not isinstance(shard, ShardedVariable) and shard.shape
        for shard in variables
    ):
        raise ArgumentTypeError(
            "Not all shards are variables with rows.", "Give a list of variables."
        )
    if len({(shard.shape[1:], shard.dtype) for shard in variables}) > 1:
        raise LayoutError(
            "The shards have rows of several shapes or dtypes.", "Give the shards of one table."
        )
    sizes = [shard.shape[0] for shard in variables]
    by_mod = list(mod_sizes(sum(sizes), len(sizes)))
    if sizes != by_mod:
        raise LayoutError(
            f"Shards of {sizes} rows were not cut by mod, which gives {by_mod}.",
            "Give the shards in their order.",
        )
    # Move.
    shards = [
        Variable(
            _read_mod(variables, start, stop),
            name=shard.name,
            trainable=shard.trainable,
            colocated_with=shard,
        )
        for shard, (start, stop) in zip(variables, div(sum(sizes), len(sizes)), strict=True)
    ]
    return ShardedVariable(shards, name)


def _read_mod(shards: Sequence[Variable], start: int, stop: int) -> Array:
    """Return the rows ``start`` to ``stop`` of the table, from one range of every shard."""
    out = np.empty((stop - start, *shards[0].shape[1:]), shards[0].dtype)
    for number, shard in enumerate(shards):
        # Its first id is the smallest id >= start with id % P == number. For start = 3 and P = 2:
        # shard 0 has 3 + (0 - 3) % 2 = 4.
        first = start + (number - start) % len(shards)
        # Every P-th row of the table is the shard's next one. Of P = 2 shards, rows 3 to 7 are: 3,
        # 5 from shard 1 (its rows 1 and 2) and 4, 6 from shard 0 (its rows 2 and 3).
        places = out[first - start :: len(shards)] if first < stop else out[:0]
        if len(places):
            row = first // len(shards)
            places[...] = shard[row : row + len(places)]
    return out


Frequencies = npt.ArrayLike | Mapping[int, float]
"""The number of reads of each id: a list with one for each, or a map from ids."""


def plan_balanced_rows(
    frequencies: Frequencies, layout: Partition | RowLayout | VariableInterface
) -> Ints:
    """Return the row of each id, such that shards are read about equally often.

    Ids are dealt from the most frequent to the least, each to the shard with the smallest load so
    far that has room; of equal shards to the first. The sizes of the shards stay.

    Parameters
    ----------
    frequencies : array_like or mapping
        The number of reads of each id: one for each id, or a map from ids, in which ids may be
        missing.
    layout : Partition, Variable or ShardedVariable
        The rows that each shard holds: a table, or the partition of its rows.

    Raises
    ------
    ArgumentError
        If the frequencies are not finite numbers from 0 on, one for each row, or `layout` has no
        rows.
    OutOfRange
        If the map has an id that is not a row.

    Examples
    --------
    >>> plan_balanced_rows([8, 4, 4, 1, 1, 1], Partition.from_counts((6, 2), (2, 1))).tolist()
    [0, 3, 4, 1, 5, 2]
    """
    bounds = _bounds_of(layout)
    counts = read_frequencies(frequencies, bounds[-1])
    starts, stops = bounds[:-1], bounds[1:]
    # A heap of (load, shard, next free row); it begins sorted, which a heap may be. For counts 8,
    # 4, 4, 1, 1, 1 and two shards of 3 rows: 8 goes to shard 0, then 4 and 4 to shard 1, whose load
    # is then 8 too; the rest goes to shard 0 (9), to shard 1 (9, now full), and to shard 0. Greedy
    # is not optimal: as long as no shard is full, the largest load is at most 4/3 of the best
    # (Graham).
    queue = [(0.0, shard, start) for shard, start in enumerate(starts) if start < stops[shard]]
    rows = np.empty(len(counts), np.int64)
    for chosen in np.argsort(-counts, kind="stable").tolist():
        load, shard, row = heappop(queue)
        rows[chosen] = row
        if row + 1 < stops[shard]:  # a full shard leaves the heap
            heappush(queue, (load + counts[chosen], shard, row + 1))
    return rows


def read_frequencies(frequencies: Frequencies, num_rows: int) -> Array:
    """Return the number of reads of each id, as float64, from a list, or from a map of some ids."""
    remedy = (
        f"Give a number of at least 0 for each of {num_rows} ids, or a map from ids to such "
        "numbers."
    )
    try:
        if isinstance(frequencies, Mapping):
            counts = np.zeros(num_rows, np.float64)
            ids = check_rows(list(frequencies), num_rows, rank=1)
            counts[ids] = np.asarray([frequencies[one] for one in frequencies], np.float64)
        else:
            counts = np.asarray(frequencies, np.float64)
    except (TypeError, ValueError) as error:
        if isinstance(error, OutOfRange):
            raise
        raise ArgumentError("Frequencies are not numbers.", remedy) from None
    if counts.shape != (num_rows,) or not np.all(np.isfinite(counts) & (counts >= 0)):
        raise ArgumentError(
            f"Frequencies of shape {counts.shape} do not fit {num_rows} rows, or are not counts.",
            remedy,
        )
    return counts


def _bounds_of(layout: Partition | RowLayout | VariableInterface) -> tuple[int, ...]:
    if isinstance(layout, RowLayout):
        return layout.bounds
    if isinstance(layout, Partition):
        if not layout.shape:
            raise ArgumentError(
                "A partition of a scalar has no rows.", "Give the partition of a table."
            )
        return RowLayout.of_sizes(
            [part.shape[0] for part in plan_rows(layout, layout.shape, None)]
        ).bounds
    # A copy of a mirrored table has the rows of each of its shards where every other copy has them.
    while isinstance(layout, MirroredVariable | AggregatingVariable):
        layout = layout.copies[0] if isinstance(layout, MirroredVariable) else layout.variable
    return row_layout_of(check_table(layout)).bounds


def plan_shuffled_rows(num_rows: int, seed: int) -> Ints:
    """Return a permutation that depends only on the seed: the order of ``stateless_uniform``'s
    64-bit words.

    Parameters
    ----------
    num_rows : int
        The number of rows.
    seed : int
        An integer of at most 64 bits.

    Raises
    ------
    ArgumentError
        If `num_rows` is negative, or the seed has more than 64 bits.

    Examples
    --------
    >>> sorted(plan_shuffled_rows(5, seed=1).tolist())
    [0, 1, 2, 3, 4]
    """
    # Sorting random keys shuffles without bias as long as keys differ. Two of n keys of 64 bits are
    # equal with a probability of about n^2 / 2^65, below 10^-5 for ten million rows; a stable sort
    # then keeps their order.
    words = stateless_uniform([num_rows], [seed, 0], None, None, "uint64")
    return np.argsort(words, kind="stable").astype(np.int64)


def permute_rows(params: VariableInterface, rows: npt.ArrayLike) -> None:
    """Move each row ``i`` of a table to ``rows[i]``: all rows or, on an error, none.

    Parameters
    ----------
    params : Variable or ShardedVariable
        The table.
    rows : array_like of int
        A permutation, [rows].

    Raises
    ------
    ArgumentError
        If `rows` is not a permutation of the table's rows.
    ArgumentTypeError
        If `params` is not a variable.
    """
    # Check.
    table = check_table(params)
    targets = check_permutation(rows, table.shape[0])
    # Move. The value is a copy, so that no row is overwritten before it has moved. It holds the
    # whole table.
    with operation_scope("permute_rows"):
        table.scatter_update(IndexedSlices(table.read_value(), targets))


def check_permutation(rows: npt.ArrayLike, num_rows: int) -> Ints:
    """Return the rows; ``ArgumentError`` unless each comes exactly once."""
    targets = check_rows(rows, num_rows, rank=1)
    if len(targets) != num_rows or len(np.unique(targets)) != num_rows:
        raise ArgumentError(
            f"{len(targets)} rows are not a permutation of {num_rows}.", "Name each row once."
        )
    return targets


class RebalancedEmbedding(Trackable):
    """A table with permuted rows, and the mapping that finds them.

    Both are variables and children of this object, so a checkpoint holds them together. A lookup
    through the mapping is two lookups: 8 bytes of the mapping for each id, then the rows.

    Parameters
    ----------
    params : Variable or ShardedVariable
        The table, whose rows are permuted already.
    rows : array_like of int
        The row of each id, [rows], a permutation.

    Raises
    ------
    ArgumentError
        If `rows` is not a permutation of the table's rows.

    Examples
    --------
    >>> embedding = RebalancedEmbedding(Variable([[0.0], [1.0], [2.0]]), [2, 0, 1])
    >>> embedding.lookup([2, 0]).tolist()
    [[1.0], [2.0]]
    """

    table: VariableInterface
    """The embedding; row ``mapping[i]`` belongs to id ``i``."""
    mapping: VariableInterface
    """The row of each id, an int64 variable that is not trained."""

    def __init__(self, params: VariableInterface, rows: npt.ArrayLike) -> None:
        self.table = self.track("table", check_table(params))
        targets = check_permutation(rows, self.table.shape[0])
        self.mapping = self.track("mapping", Variable(targets, trainable=False, name="row_of_id"))

    @classmethod
    def by_frequency(
        cls, params: VariableInterface, frequencies: Frequencies
    ) -> "RebalancedEmbedding":
        """Rebalance a table that is filled: plan, move its rows, and remember the mapping.

        Parameters
        ----------
        params : Variable or ShardedVariable
            The table.
        frequencies : array_like or mapping
            The number of reads of each id: one for each id, or a map from ids.

        Returns
        -------
        RebalancedEmbedding
            The table, and the mapping.

        Raises
        ------
        ArgumentError
            If the frequencies are not finite numbers from 0 on, one for each row.
        """
        table = check_table(params)
        return cls._moved(table, plan_balanced_rows(frequencies, table))

    @classmethod
    def shuffled(cls, params: VariableInterface, seed: int) -> "RebalancedEmbedding":
        """Shuffle a table that is filled: plan, move its rows, and remember the mapping.

        See ``by_frequency`` for the other parameters.

        Parameters
        ----------
        seed : int
            An integer of at most 64 bits.

        Raises
        ------
        ArgumentError
            If the seed has more than 64 bits.
        """
        table = check_table(params)
        return cls._moved(table, plan_shuffled_rows(table.shape[0], seed))

    def rows_of(self, ids: npt.ArrayLike) -> Ints:
        """Return the rows of the table for ids.

        Parameters
        ----------
        ids : array_like of int
            Ids of any shape.

        Raises
        ------
        OutOfRange
            If an id is negative or not below the number of rows.
        """
        return embedding_lookup(self.mapping, ids, name="row_of_id")

    def lookup(
        self, ids: npt.ArrayLike, max_norm: float | None = None, name: str | None = None
    ) -> Array:
        """Return ``embedding_lookup`` of the ids, through the mapping.

        See ``embedding_lookup`` for the parameters.
        """
        return embedding_lookup(self.table, self.rows_of(ids), max_norm, name)

    @classmethod
    def _moved(cls, table: VariableInterface, rows: Ints) -> "RebalancedEmbedding":
        permute_rows(table, rows)
        return cls(table, rows)
