"""Sparse lookups: each row of sparse ids is a bag of rows of the table, combined into one.

``embedding_lookup_sparse`` takes ids as they are: every row of ``sp_ids`` gives a row of the answer, one without
entries gives zeros. ``safe_embedding_lookup_sparse`` first drops what cannot be meant, negative ids and weights that
are not positive, and fills rows that are then empty with ``default_id``.

R-SPARSE-1 (RFC 002): "we will remove partition_strategy from all v2 symbols".
"""

from math import prod
from typing import Any, Literal

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array, Ints
from shardvar.nn.bags import Bags, check_combiner, read_bags
from shardvar.nn.lookup import check_max_norm
from shardvar.nn.params import as_integers, check_table
from shardvar.nn.sparse_tensor import SparseTensor

Compat = Literal["tf"]


def embedding_lookup_sparse(
    params: Any,
    sp_ids: SparseTensor,
    sp_weights: SparseTensor | None,
    combiner: str | None = None,
    max_norm: float | None = None,
    name: str | None = None,
    *,
    compat: Compat | None = None,
) -> Array:
    """The rows of the table at each row of ids, combined -> [rows of sp_ids, *row].

    Empty rows give zeros, the last ones too; with ``compat="tf"`` the last ones are dropped, as TensorFlow does.
    """
    table = check_table(params)
    chosen, limit = check_combiner(combiner, table.dtype), check_max_norm(max_norm, table.dtype)
    bags = plan_bags(sp_ids, sp_weights, compat)
    return read_bags(table, bags, chosen, limit, name or "embedding_lookup_sparse")


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None = None,
    combiner: str | None = "mean",
    default_id: int | None = None,
    max_norm: float | None = None,
    name: str | None = None,
) -> Array:
    """The same for ids [*batch, width] -> [*batch, *row], where negative ids and weights <= 0 count as absent.

    Rows without entries give the table's row ``default_id``, zeros where it is None. As in TensorFlow, "sum" keeps
    weights that are not positive.
    """
    table = check_table(embedding_weights)
    chosen, limit = check_combiner(combiner, table.dtype), check_max_norm(max_norm, table.dtype)
    bags = plan_safe_bags(table.dtype, sparse_ids, sparse_weights, chosen, default_id)
    combined = read_bags(table, bags, chosen, limit, name or "safe_embedding_lookup_sparse")
    return combined.reshape(*sparse_ids.dense_shape[:-1], *table.shape[1:])


def plan_bags(sp_ids: SparseTensor, sp_weights: SparseTensor | None, compat: Compat | None = None) -> Bags:
    """One bag for each index along the first axis of ``sp_ids``."""
    _check_pair(sp_ids, sp_weights)
    if compat not in (None, "tf"):
        raise ArgumentError(f"compat is {compat!r}.", "It is None or 'tf'.")
    owners = _check_ascending(sp_ids.indices[:, 0])
    # D-SPARSE-ROWS: a row of ids without entries is a row of the answer, wherever it stands.
    count = sp_ids.dense_shape[0] if compat is None else int(owners.max(initial=-1)) + 1
    return Bags(sp_ids.values, owners, None if sp_weights is None else sp_weights.values, count)


def plan_safe_bags(
    dtype: np.dtype[Any],
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None,
    combiner: str,
    default_id: int | None,
) -> Bags:
    """One bag for each index into all axes but the last, without what is pruned, with defaults."""
    _check_pair(sparse_ids, sparse_weights)
    if len(sparse_ids.dense_shape) < 2:
        raise ArgumentError(f"Ids of shape {sparse_ids.dense_shape} have no rows.", "Give ids [*batch, width].")
    weights = None if sparse_weights is None else sparse_weights.values
    if weights is not None and weights.size and weights.dtype != dtype:
        raise ArgumentError(f"Weights have dtype {weights.dtype}, and the table {dtype}.", "Convert them first.")
    batch = sparse_ids.dense_shape[:-1]
    owners = _check_ascending(_flat_rows(sparse_ids))
    keep = sparse_ids.values >= 0
    if weights is not None and combiner != "sum":
        keep &= weights > 0
    pruned = Bags(sparse_ids.values[keep], owners[keep], None if weights is None else weights[keep], prod(batch))
    return pruned if default_id is None else _with_defaults(pruned, default_id)


def _with_defaults(bags: Bags, default_id: int) -> Bags:
    """Every empty bag holds ``default_id`` with weight 1."""
    empty = np.flatnonzero(np.bincount(bags.owners, minlength=bags.count) == 0)
    owners = np.concatenate([bags.owners, empty])
    order = np.argsort(owners, kind="stable")
    ids = np.concatenate([bags.ids, np.full(len(empty), default_id, bags.ids.dtype)])[order]
    weights = bags.weights
    if weights is not None:
        weights = np.concatenate([weights, np.ones(len(empty), weights.dtype)])[order]
    return Bags(ids, owners[order], weights, bags.count)


def _flat_rows(ids: SparseTensor) -> Ints:
    """The number of each entry's row, all axes but the last counted in C order."""
    rows = np.zeros(len(ids.indices), np.int64)
    for axis, extent in enumerate(ids.dense_shape[:-1]):
        rows = rows * extent + ids.indices[:, axis]
    return rows


def _check_ascending(rows: Ints) -> Ints:
    falls = np.flatnonzero(rows[1:] < rows[:-1])
    if len(falls):
        first = int(falls[0]) + 1
        raise ArgumentError(
            f"Entry {first} stands in row {rows[first]}, the one before it in row {rows[first - 1]}.",
            "Sort the entries by their indices.",
        )
    return rows


def _check_pair(ids: Any, weights: Any) -> None:
    for what, value in {"ids": ids, "weights": weights}.items():
        if not isinstance(value, SparseTensor) and not (what == "weights" and value is None):
            raise ArgumentTypeError(f"The {what} are {type(value).__name__}.", "Give a sv.nn.SparseTensor.")
    as_integers(ids.values, "Ids")
    if weights is not None and not np.array_equal(ids.indices, weights.indices):
        raise ArgumentError(
            f"{len(ids.values)} ids and {len(weights.values)} weights do not stand at the same indices.",
            "Give one weight for each id.",
        )
