"""Tables and dense lookups: check what is given as a table, and read rows of it by their ids.

A *table* is one variable, or one sharded variable. R-LOOKUP-1 (RFC 002): "let embedding_lookup take
a tf.Variable or a ShardedVariable rather than a list of variables". A list of shards does not say
how its rows are numbered. A sharded variable does: by div, so that each shard holds contiguous
rows. All functions of ``nn`` take their table through ``check_table``.

``embedding_lookup`` has three steps:

1. check the ids: integers, each in ``[0, rows)``. The error names the first id that is not, and
   nothing moves.
2. read: every shard gives the rows that it holds, and they are put in the order of the ids. No
   other row moves.
3. clip: rows that are longer than ``max_norm`` are shortened to it.
"""

from math import isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array
from shardvar.reference.variables.interface import VariableInterface
from shardvar.reference.variables.row_layout import RowLayout
from shardvar.reference.variables.sharded import ShardedVariable
from shardvar.reference.variables.variable import Variable


def embedding_lookup(
    params: VariableInterface,
    ids: npt.ArrayLike,
    max_norm: float | None = None,
    name: str | None = None,
) -> Array:
    """Return the rows of a table at ids, in the order of the ids.

    R-LOOKUP-2 (RFC 000): ops that have well defined partitioned behavior "will treat sharded
    variable as a list of variables for parallel operations". R-LOOKUP-3 (RFC 002): 'always use
    "div" partition_strategy'.

    Parameters
    ----------
    params : Variable or ShardedVariable
        The table.
    ids : array_like of int
        Row numbers [*ids]; negative ones are refused.
    max_norm : float, optional
        Rows with a larger l2 norm are scaled down to it.
    name : str, optional
        The operation's name in the transfer ledger.

    Returns
    -------
    ndarray
        [*ids, *row], of the table's dtype.

    Raises
    ------
    OutOfRange
        If an id is negative or not below the number of rows.
    ArgumentTypeError
        If `params` is not a variable, or `ids` are not integers.
    ArgumentError
        If the table is a scalar, or `max_norm` is not a number or its rows are not real.

    Examples
    --------
    >>> import shardvar as sv
    >>> table = sv.ShardedVariable([sv.Variable([[0.0], [1.0]]), sv.Variable([[2.0]])])
    >>> sv.nn.embedding_lookup(table, [[2, 0]]).tolist()
    [[[2.0], [0.0]]]
    """
    table = check_table(params)
    limit = check_max_norm(max_norm, table.dtype)
    numbers = as_integers(ids, "Ids")
    rows = table.sparse_read(numbers, name or "embedding_lookup")
    return rows if limit is None else clip_rows(rows, limit, numbers.ndim)


# Tables.


def check_table(params: Any) -> VariableInterface:
    """Return ``params``, a variable with rows; ``ArgumentTypeError`` for all else."""
    if isinstance(params, list | tuple):
        if not params:
            raise ArgumentError("params is empty.", "Give a variable or a sharded variable.")
        raise ArgumentTypeError(
            f"params is a {type(params).__name__} of {len(params)}, which does not say how rows "
            "are numbered.",
            "Give sv.ShardedVariable(variables), or sv.nn.mod_to_div(variables) where they were "
            "cut by mod.",
        )
    if not isinstance(params, VariableInterface):
        raise ArgumentTypeError(
            f"params is {type(params).__name__}.", "Give a variable or a sharded variable."
        )
    if not params.shape:
        raise ArgumentError(
            f"{params.name} is a scalar and has no rows.", "Give a variable with at least one axis."
        )
    return params


def components(params: VariableInterface) -> tuple[Variable, ...]:
    """Return the shards of a sharded variable, or a plain variable as the only one."""
    if isinstance(params, ShardedVariable):
        return tuple(params.variables)
    if not isinstance(params, Variable):
        raise ArgumentTypeError(
            f"{params!r} is neither a variable nor sharded.", "Give a variable."
        )
    return (params,)


def row_layout_of(params: VariableInterface) -> RowLayout:
    """Return which component holds which rows."""
    return RowLayout.of_sizes([component.shape[0] for component in components(params)])


# Numbers: ids, and the dtype to compute in.


def is_half(dtype: np.dtype[Any]) -> bool:
    """Return True for float16, bfloat16 and float8: so few bits that sums are taken in float32."""
    # bool and integers of one or two bytes are exact in sums, so they are excluded by kind and not
    # by size.
    return dtype.itemsize < np.dtype(np.float32).itemsize and dtype.kind not in "iub"


def exact_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype to compute in: float32 for dtypes of few bits, else the same.

    >>> exact_dtype(np.dtype(np.float16)), exact_dtype(np.dtype(np.float64))
    (dtype('float32'), dtype('float64'))
    """
    return np.dtype(np.float32) if is_half(dtype) else dtype


def as_integers(values: Any, what: str) -> Array:
    """Return integers of any rank in their dtype, int64 for an empty list; ``what`` begins the
    error's words.

    >>> as_integers([], "ids").dtype, as_integers(np.uint8(3), "ids").dtype
    (dtype('int64'), dtype('uint8'))
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        raise ArgumentError(f"{what} have rows of several lengths.", "Give an array.") from None
    if array.size == 0 and array.dtype.kind not in "iu":
        # NumPy makes [] float64, and an empty list of ids is a list of integers.
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ArgumentTypeError(f"{what} have dtype {array.dtype}.", "Give integers.")
    return array


# Clipping.


def clip_rows(rows: Array, max_norm: float, first_axis: int) -> Array:
    """Return the rows, scaled down to ``max_norm`` where their l2 norm over the axes from
    ``first_axis`` is larger.

    R-LOOKUP-4 (RFC 002): "each embedding is clipped if its l2-norm is larger than this value".

    >>> clip_rows(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0, 1).round(2).tolist()
    [[0.6, 0.8], [0.3, 0.4]]
    """
    exact = rows.astype(np.float32) if is_half(rows.dtype) else rows
    with np.errstate(over="ignore"):
        norm = row_norms(exact, first_axis)
    # Squares of numbers above 2**64 or below 2**-63 do not fit float32, but float64.
    odd = ~np.isfinite(norm) | (norm < 2.0**-60)
    if exact.dtype == np.float32 and odd.any():
        exact = exact.astype(np.float64)
        norm = row_norms(exact, first_axis)
    is_longer = norm > max_norm
    # Rows of norm 0 are never longer. They divide by 1 all the same, since np.where computes both
    # of its branches.
    shortened = exact * exact.dtype.type(max_norm) / np.where(is_longer, norm, 1)
    return np.where(is_longer, shortened, exact).astype(rows.dtype, copy=False)


def row_norms(rows: Array, first_axis: int) -> Array:
    """Return the l2 norms over the axes from ``first_axis`` on, which are kept with extent 1.

    A row of a table of one axis is a number. The sum is then over no axes, and the norm is the
    absolute value.
    """
    axes = tuple(range(first_axis, rows.ndim))
    return np.asarray(np.sqrt(np.sum(rows * rows, axis=axes, keepdims=True)))


def check_max_norm(max_norm: float | None, dtype: np.dtype[Any]) -> float | None:
    """Return ``max_norm`` as a number; a negative one counts as 0, as in TensorFlow."""
    if max_norm is None:
        return None
    if dtype.kind in "iubO":
        raise ArgumentError(
            f"Rows of dtype {dtype} cannot be clipped by max_norm.", "Use a table of real numbers."
        )
    try:
        limit = float(max_norm)
    except (TypeError, ValueError):
        limit = float("nan")
    if isnan(limit):
        raise ArgumentError(f"max_norm is {max_norm!r}.", "Give a number, or None for no limit.")
    return max(limit, 0.0)
