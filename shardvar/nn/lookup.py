"""Dense lookups: rows of a table by their ids.

1. ids are checked: integers, each in ``[0, rows)``; the first that is not is named, and nothing moves.
2. every shard gives the rows that it holds, and they are put in the order of the ids; no other row moves.
3. rows that are longer than ``max_norm`` are shortened to it.
"""

from math import isnan
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.nn.params import as_integers, check_table, is_half


def embedding_lookup(params: Any, ids: Any, max_norm: float | None = None, name: str | None = None) -> Array:
    """The rows of ``params`` at ``ids`` [*ids], in the order of the ids -> [*ids, *row].

    R-LOOKUP-2 (RFC 000): ops that have well defined partitioned behavior "will treat sharded variable as a list of
    variables for parallel operations". R-LOOKUP-3 (RFC 002): 'always use "div" partition_strategy'.

    >>> from shardvar.variables import ShardedVariable, Variable
    >>> table = ShardedVariable([Variable([[0.0], [1.0]]), Variable([[2.0]])])
    >>> embedding_lookup(table, [[2, 0]]).tolist()
    [[[2.0], [0.0]]]
    """
    table = check_table(params)
    limit = check_max_norm(max_norm, table.dtype)
    numbers = as_integers(ids, "Ids")
    rows = table.sparse_read(numbers, name or "embedding_lookup")
    return rows if limit is None else clip_rows(rows, limit, numbers.ndim)


def clip_rows(rows: Array, max_norm: float, first_axis: int) -> Array:
    """Rows, those whose l2 norm over the axes from ``first_axis`` on is above ``max_norm`` scaled down to it.

    R-LOOKUP-4 (RFC 002): "each embedding is clipped if its l2-norm is larger than this value".

    >>> clip_rows(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0, 1).round(2).tolist()
    [[0.6, 0.8], [0.3, 0.4]]
    """
    exact = rows.astype(np.float32) if is_half(rows.dtype) else rows
    norm = row_norms(exact, first_axis)
    is_longer = norm > max_norm
    shortened = exact * exact.dtype.type(max_norm) / np.where(is_longer, norm, 1)
    return np.where(is_longer, shortened, exact).astype(rows.dtype, copy=False)


def row_norms(rows: Array, first_axis: int) -> Array:
    """The l2 norms over the axes from ``first_axis`` on, which are kept with extent 1.

    For a table of one axis there is none to sum over: a row's norm is its absolute value.
    """
    axes = tuple(range(first_axis, rows.ndim))
    return np.asarray(np.sqrt(np.sum(rows * rows, axis=axes, keepdims=True)))


def check_max_norm(max_norm: float | None, dtype: np.dtype[Any]) -> float | None:
    """``max_norm`` as a number that is not negative; a negative one counts as 0, as in TensorFlow."""
    if max_norm is None:
        return None
    if dtype.kind in "iubO":
        raise ArgumentError(f"Rows of dtype {dtype} cannot be clipped by max_norm.", "Use a table of real numbers.")
    try:
        limit = float(max_norm)
    except (TypeError, ValueError):
        limit = float("nan")
    if isnan(limit):
        raise ArgumentError(f"max_norm is {max_norm!r}.", "Give a number, or None for no limit.")
    return max(limit, 0.0)
