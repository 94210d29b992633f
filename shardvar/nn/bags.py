"""Bags: which rows of a table are combined into which rows of an answer. What all sparse lookups share.

1. A lookup says what its bags are (``sparse.py``); they are values, and nothing has moved yet.
2. ``read_bags`` fetches every row that any bag holds, once, and combines:

       sum     S(w * e)          mean    S(w * e) / S(w)          sqrtn    S(w * e) / sqrt(S(w^2))

   A bag whose divisor is 0 gives zeros. Rows of few bits are combined in float32.
3. ``bag_gradients`` goes the same way back.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array, Ints
from shardvar.nn.lookup import clip_rows
from shardvar.nn.params import is_half
from shardvar.variables.interface import VariableInterface
from shardvar.variables.scatter import scatter_sorted, sort_rows
from shardvar.variables.updates import ADD

Combiner = Literal["sum", "mean", "sqrtn"]


@dataclass(frozen=True, slots=True, eq=False)
class Bags:
    """Entries of bags; an entry is an id with a weight."""

    ids: Array
    """The row of the table that each entry means, [n], of the caller's integer dtype."""
    owners: Ints
    """The bag of each entry, [n], ascending."""
    weights: Array | None
    """The weight of each entry, [n]; None where all are 1."""
    count: int
    """The number of bags; those without entries give zeros."""

    def coefficients(self, combiner: Combiner, dtype: np.dtype[Any]) -> Array:
        """What each entry's row is multiplied by in its bag's answer, [n]."""
        weights = np.ones(len(self.ids), dtype) if self.weights is None else self.weights.astype(dtype)
        if combiner == "sum":
            return weights
        sums = self.sums(weights if combiner == "mean" else weights * weights)
        divisor = (sums if combiner == "mean" else np.sqrt(sums))[self.owners]
        return np.divide(weights, divisor, out=np.zeros_like(weights), where=divisor != 0)

    def sums(self, values: Array) -> Array:
        """The sums of the entries' values, [count, ...], each from the first entry to the last."""
        out = np.zeros((self.count, *values.shape[1:]), values.dtype)
        scatter_sorted(out, self.owners, values, ADD)
        return out


def read_bags(table: VariableInterface, bags: Bags, combiner: Combiner, max_norm: float | None, name: str) -> Array:
    """The combined rows, [count, *row]."""
    distinct, inverse = distinct_ids(bags.ids)
    rows = table.sparse_read(distinct, name)
    if max_norm is not None:
        rows = clip_rows(rows, max_norm, 1)
    dtype = exact_dtype(table.dtype, combiner)
    entries = rows.astype(dtype, copy=False)[inverse]
    if combiner == "sum" and bags.weights is None:
        return bags.sums(entries).astype(table.dtype, copy=False)
    # Divided last, as the definition says: what is a whole number stays one.
    plain = bags.coefficients("sum", dtype)
    total = bags.sums(entries * _beside(plain, entries))
    return _divided(total, bags, combiner, plain).astype(table.dtype, copy=False)


def _divided(total: Array, bags: Bags, combiner: Combiner, weights: Array) -> Array:
    if combiner == "sum":
        return total
    sums = bags.sums(weights if combiner == "mean" else weights * weights)
    divisor = _beside(sums if combiner == "mean" else np.sqrt(sums), total)
    return np.divide(total, divisor, out=np.zeros_like(total), where=divisor != 0)


def bag_gradients(bags: Bags, combiner: Combiner, upstream: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """What the answer's gradient [count, *row] is for the rows that were read: their ids, and [n, *row].

    The ids are distinct, in the order in which they first came; the entries of one id are summed.
    """
    exact = exact_dtype(dtype, combiner)
    distinct, inverse = distinct_ids(bags.ids)
    entries = upstream.astype(exact)[bags.owners]
    entries = entries * _beside(bags.coefficients(combiner, exact), entries)
    gradient = np.zeros((len(distinct), *upstream.shape[1:]), exact)
    rows, order = sort_rows(inverse)
    scatter_sorted(gradient, rows, entries[order], ADD)
    return distinct, gradient.astype(dtype, copy=False)


def distinct_ids(ids: Array) -> tuple[Array, Ints]:
    """The distinct ids in the order in which they first come, and which of them each id is.

    >>> distinct_ids(np.array([7, 1, 7]))
    (array([7, 1]), array([0, 1, 0]))
    """
    ascending, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return ascending[order], rank[inverse.reshape(-1)]


def check_combiner(combiner: str | None, dtype: np.dtype[Any]) -> Combiner:
    """The combiner, "mean" where none is given; ``ArgumentError`` for another word, and for integers and a division."""
    chosen = combiner or "mean"
    if chosen not in get_args(Combiner):
        raise ArgumentError(f"combiner is {combiner!r}.", "It is 'sum', 'mean' or 'sqrtn'.")
    if dtype.kind in "bO" or (dtype.kind in "iu" and chosen != "sum"):
        raise ArgumentError(f"Rows of dtype {dtype} have no {chosen}.", "Use a table of real numbers.")
    return chosen  # type: ignore[return-value]  # mypy does not narrow by get_args


def exact_dtype(dtype: np.dtype[Any], combiner: Combiner) -> np.dtype[Any]:
    """The dtype in which rows are combined: the table's, or float32 where that has few bits."""
    return np.dtype(np.float32) if is_half(dtype) else dtype


def _beside(values: Array, rows: Array) -> Array:
    """[n] as [n, 1, ...], to be combined with ``rows`` [n, *row]."""
    return values.reshape(-1, *(1 for _ in rows.shape[1:]))
