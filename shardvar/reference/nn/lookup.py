"""Lookups of rows of a table: dense, and in bags of sparse ids.

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

In sparse lookups each row of sparse ids is a bag of rows of the table, combined into one row of the
answer.

``embedding_lookup_sparse`` takes ids as they are: every row of ``sp_ids`` gives a row of the
answer, and one without entries gives zeros. ``safe_embedding_lookup_sparse`` first drops invalid
entries, negative ids and weights that are not positive, and fills rows that are then empty with
``default_id``.

1. ``plan_bags`` and ``plan_safe_bags`` find the rows to combine, a ``Bags`` value; nothing has
   moved yet.
2. ``read_bags`` fetches every row that any bag holds, once, and combines:

       sum     S(w * e)          mean    S(w * e) / S(w)          sqrtn    S(w * e) / sqrt(S(w^2))

   A bag whose divisor is 0 gives zeros. Rows of few bits are combined in float32.
3. ``bag_gradients`` goes the same way back.

R-SPARSE-1 (RFC 002): "we will remove partition_strategy from all v2 symbols".
"""

from collections.abc import Sequence
from math import isnan, prod
from typing import Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange
from shardvar.layout.dtypes import Array, DType, Ints, Shape
from shardvar.records import entity
from shardvar.reference.variables.interface import VariableInterface
from shardvar.reference.variables.rows import RowLayout
from shardvar.reference.variables.sharded import ShardedVariable
from shardvar.reference.variables.values import ADD, as_value, scatter_sorted, sort_rows
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
    return RowLayout.of_sizes([component.shape[0] for component in components(params)])


# Numbers: ids, and the dtype to compute in.


def exact_dtype(dtype: DType) -> DType:
    """Return the dtype to compute in: float32 for float16, bfloat16 and float8, else the same."""
    # bool and integers of one or two bytes are exact in sums, so they are excluded by kind and not
    # by size.
    is_half = dtype.itemsize < np.dtype(np.float32).itemsize and dtype.kind not in "iub"
    return np.dtype(np.float32) if is_half else dtype


def as_integers(values: Any, what: str) -> Array:
    """Return integers of any rank in their dtype, int64 for an empty list; ``what`` begins an error."""
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
    """Return the rows, scaled down to ``max_norm`` where their ``row_norms`` are larger."""
    # R-LOOKUP-4 (RFC 002): "each embedding is clipped if its l2-norm is larger than this value".
    exact = rows.astype(exact_dtype(rows.dtype), copy=False)
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
    """Return the l2 norms over the axes from ``first_axis`` on; over none, absolute values."""
    axes = tuple(range(first_axis, rows.ndim))
    return np.asarray(np.sqrt(np.sum(rows * rows, axis=axes, keepdims=True)))


def check_max_norm(max_norm: float | None, dtype: DType) -> float | None:
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


@entity
class SparseTensor:
    """A tensor given by some elements with their indices; TensorFlow's form, in NumPy.

    Parameters
    ----------
    indices : array_like of int
        The indices of the entries, [n, rank].
    values : array_like
        The entries, [n]; ``values[i]`` is at ``indices[i]``.
    dense_shape : sequence of int
        The shape of the tensor; every index lies in it.

    Raises
    ------
    ArgumentError
        If `indices` does not fit `dense_shape`, or there is not one value for each index.
    OutOfRange
        If an index is outside of `dense_shape`.

    Examples
    --------
    >>> SparseTensor.from_rows([[1, 3], [], [0]]).indices.tolist()
    [[0, 0], [0, 1], [2, 0]]
    """

    indices: Ints
    values: Array
    dense_shape: Shape

    def __init__(
        self, indices: npt.ArrayLike, values: npt.ArrayLike, dense_shape: Sequence[int]
    ) -> None:
        shape = tuple(as_integers(dense_shape, "The extents of a dense shape").tolist())
        places = as_integers(indices, "Indices")
        places = places.reshape(-1, len(shape)) if places.size == 0 and shape else places
        if places.ndim != 2 or places.shape[1] != len(shape) or not shape:
            raise ArgumentError(
                f"Indices of shape {places.shape} do not fit the dense shape {shape}.",
                "Give integers [n, rank].",
            )
        # Parsed before the fields are set: the dataclass is frozen, and holds arrays only, never
        # lists.
        object.__setattr__(self, "indices", places.astype(np.int64))
        object.__setattr__(
            self, "values", as_value(values) if np.size(values) else np.asarray(values).reshape(-1)
        )
        object.__setattr__(self, "dense_shape", shape)
        if self.values.shape != self.indices.shape[:1]:
            raise ArgumentError(
                f"There are {len(self.indices)} indices and values of shape {self.values.shape}.",
                "Give one value for each index.",
            )
        outside = np.flatnonzero(
            ((self.indices < 0) | (self.indices >= np.array(shape))).any(axis=1)
        )
        if len(outside):
            first = int(outside[0])
            raise OutOfRange(f"Index {self.indices[first].tolist()} at {first} is outside {shape}.")

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[Any]], dtype: npt.DTypeLike | None = None) -> Self:
        """Return the matrix whose rows begin with given values; the longest one gives its width.

        Parameters
        ----------
        rows : sequence of sequences
            The values of each row, which may differ in number.
        dtype : dtype_like, optional
            The dtype of the values.

        Raises
        ------
        ArgumentTypeError
            If a row is not a list, a tuple or an array.
        """
        if not all(isinstance(values, list | tuple | np.ndarray) for values in rows):
            raise ArgumentTypeError(
                "Not all rows are lists.", "Give a list of values for each row."
            )
        indices = [
            (row, column) for row, values in enumerate(rows) for column in range(len(values))
        ]
        values = np.asarray(
            [value for row in rows for value in row], dtype or (None if indices else np.int64)
        )
        return cls(indices, values, (len(rows), max(map(len, rows), default=0)))


Combiner = Literal["sum", "mean", "sqrtn"]
EmptyRows = Literal["tf"]
"""The treatment of trailing rows without entries: dropped as in TensorFlow, or kept like any other
row (None)."""


def embedding_lookup_sparse(
    params: VariableInterface,
    sp_ids: SparseTensor,
    sp_weights: SparseTensor | None,
    combiner: str | None = None,
    max_norm: float | None = None,
    name: str | None = None,
    *,
    compat: EmptyRows | None = None,
) -> Array:
    """Return the rows of a table at each row of ids, combined into one.

    Parameters
    ----------
    params : Variable or ShardedVariable
        The table.
    sp_ids : SparseTensor
        Ids, each row of them a bag; entries are sorted by row.
    sp_weights : SparseTensor or None
        A weight for each id, at the same indices; None where all are 1.
    combiner : {"sum", "mean", "sqrtn"}, optional
        The rule that combines the rows of a bag: ``S(w * e)``, and for the others that over
        ``S(w)`` or ``sqrt(S(w^2))``. By default "mean".
    max_norm : float, optional
        Rows with a larger l2 norm are scaled down to it before they are combined.
    name : str, optional
        The operation's name in the transfer ledger.
    compat : {"tf"}, optional
        "tf" drops the last rows of the answer if they are empty, as TensorFlow does.

    Returns
    -------
    ndarray
        [rows of sp_ids, *row], of the table's dtype; zeros for empty rows.

    Raises
    ------
    OutOfRange
        If an id is negative or not below the number of rows.
    ArgumentTypeError
        If `params` is not a variable, ids or weights are not sparse, or ids are not integers.
    ArgumentError
        If weights are at other indices, entries are not sorted, or the table's dtype has no such
        combiner.
    """
    table = check_table(params)
    limit = check_max_norm(max_norm, table.dtype)
    bags = plan_bags(table.dtype, sp_ids, sp_weights, combiner, compat)
    return read_bags(table, bags, limit, name or "embedding_lookup_sparse")


def safe_embedding_lookup_sparse(
    embedding_weights: VariableInterface,
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None = None,
    combiner: str | None = "mean",
    default_id: int | None = None,
    max_norm: float | None = None,
    name: str | None = None,
) -> Array:
    """Return the rows of a table at each row of ids, combined into one, without invalid entries.

    Negative ids and weights that are not positive count as absent. As in TensorFlow, "sum" keeps
    such weights.

    Parameters
    ----------
    embedding_weights : Variable or ShardedVariable
        The table.
    sparse_ids : SparseTensor
        Ids [*batch, width], sorted by row.
    sparse_weights : SparseTensor, optional
        A weight of the table's dtype for each id, at the same indices; by default all are 1.
    combiner : {"sum", "mean", "sqrtn"}, default "mean"
        The rule that combines the rows of a bag, as in ``embedding_lookup_sparse``.
    default_id : int, optional
        The row of the table that fills rows without entries; by default they are zeros.
    max_norm : float, optional
        Rows with a larger l2 norm are scaled down to it before they are combined.
    name : str, optional
        The operation's name in the transfer ledger.

    Returns
    -------
    ndarray
        [*batch, *row], of the table's dtype.

    Raises
    ------
    OutOfRange
        If an id, or `default_id`, is not below the number of rows.
    ArgumentTypeError
        If `embedding_weights` is not a variable, ids or weights are not sparse, or ids are not
        integers.
    ArgumentError
        If ids have no rows, weights are at other indices or of another dtype, entries are not
        sorted, or the table's dtype has no such combiner.
    """
    table = check_table(embedding_weights)
    limit = check_max_norm(max_norm, table.dtype)
    bags = plan_safe_bags(table.dtype, sparse_ids, sparse_weights, combiner, default_id)
    return read_bags(table, bags, limit, name or "safe_embedding_lookup_sparse")


# Bags: the rows that they combine, and the gradients of those.


@entity
class Bags:
    """Entries of bags; an entry is an id with a weight."""

    ids: Array
    """The table's row of each entry, [n], in the caller's integer dtype."""
    owners: Ints
    """The bag of each entry, [n], ascending."""
    weights: Array | None
    """The weight of each entry, [n]; None where all are 1."""
    shape: Shape
    """The shape [*batch] of the bags, which owners count in C order; empty bags give zeros."""
    combiner: Combiner

    def weights_as(self, dtype: DType) -> Array:
        """Return the weights in a dtype, ones where none are given, [n]."""
        return np.ones(len(self.ids), dtype) if self.weights is None else self.weights.astype(dtype)

    def sums(self, values: Array) -> Array:
        """Return the sums of the entries' values, [bags, ...], each in order."""
        out = np.zeros((prod(self.shape), *values.shape[1:]), values.dtype)
        scatter_sorted(out, self.owners, values, ADD)
        return out

    def divided(self, values: Array, weights: Array, bags: Ints | slice = slice(None)) -> Array:
        """Return values [n, ...] of the bags over ``S(w)``, or ``sqrt(S(w^2))`` for "sqrtn"."""
        if self.combiner == "sum":
            return values
        is_mean = self.combiner == "mean"
        divisors = self.sums(weights) if is_mean else np.sqrt(self.sums(weights * weights))
        divisors = _with_axes(divisors[bags], values)
        # Weights may cancel: a divisor of 0 gives 0.
        return np.divide(values, divisors, out=np.zeros_like(values), where=divisors != 0)


def read_bags(table: VariableInterface, bags: Bags, max_norm: float | None, name: str) -> Array:
    """Return the combined rows, [*batch, *row]."""
    distinct, inverse = distinct_ids(bags.ids)
    rows = table.sparse_read(distinct, name)
    if max_norm is not None:
        rows = clip_rows(rows, max_norm, 1)
    dtype = exact_dtype(table.dtype)
    entries = rows.astype(dtype, copy=False)[inverse]
    if bags.combiner == "sum" and bags.weights is None:
        answer = bags.sums(entries)
    else:
        # Sum first, divide last, so that whole numbers stay whole: the mean of seven rows of 3.0 is
        # then 21 / 7 = 3 exactly, where the sum of seven 3.0 * (1 / 7) in float32 is not.
        weights = bags.weights_as(dtype)
        answer = bags.divided(bags.sums(entries * _with_axes(weights, entries)), weights)
    return answer.astype(table.dtype, copy=False).reshape(*bags.shape, *table.shape[1:])


def bag_gradients(bags: Bags, upstream: Array, dtype: DType) -> tuple[Array, Array]:
    """Return the distinct ids, and their summed gradients [n, *row], given [*batch, *row]."""
    exact = exact_dtype(dtype)
    distinct, inverse = distinct_ids(bags.ids)
    # An answer is linear in its rows: answer[b] = S coefficient[i] * row[i] over the entries i of
    # bag b. So entry i gets coefficient[i] * upstream[b]: for the mean of two rows, half of the
    # bag's gradient each.
    row_shape, weights = upstream.shape[len(bags.shape) :], bags.weights_as(exact)
    entries = upstream.astype(exact).reshape(-1, *row_shape)[bags.owners]
    entries = entries * _with_axes(bags.divided(weights, weights, bags.owners), entries)
    gradient = np.zeros((len(distinct), *row_shape), exact)
    rows, order = sort_rows(inverse)
    scatter_sorted(gradient, rows, entries[order], ADD)
    return distinct, gradient.astype(dtype, copy=False)


def distinct_ids(ids: Array) -> tuple[Array, Ints]:
    """Return the distinct ids in the order of their first places, and each id's position there."""
    # np.unique sorts: for 7, 1, 7 it gives ascending 1, 7, first places 1, 0 and inverse 1, 0, 1.
    # Sorted by first place they are 7, 1, and ``rank`` translates positions in the sorted list into
    # positions in that order.
    ascending, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return ascending[order], rank[inverse.reshape(-1)]


def check_combiner(combiner: str | None, dtype: DType) -> Combiner:
    """Return the combiner, by default "mean"; ``ArgumentError`` also for a division of integers."""
    chosen = combiner or "mean"
    if chosen not in get_args(Combiner):
        raise ArgumentError(f"combiner is {combiner!r}.", "It is 'sum', 'mean' or 'sqrtn'.")
    if dtype.kind in "bO" or (dtype.kind in "iu" and chosen != "sum"):
        raise ArgumentError(
            f"Rows of dtype {dtype} have no {chosen}.", "Use a table of real numbers."
        )
    return chosen  # type: ignore[return-value]  # mypy does not narrow by get_args


def _with_axes(values: Array, rows: Array) -> Array:
    """Return [n] as [n, 1, ...], to be combined with ``rows`` [n, *row]."""
    return values.reshape(-1, *(1 for _ in rows.shape[1:]))


def plan_bags(
    dtype: DType,
    sp_ids: SparseTensor,
    sp_weights: SparseTensor | None,
    combiner: str | None,
    compat: EmptyRows | None,
) -> Bags:
    """Plan one bag for each index along the first axis of ``sp_ids``."""
    chosen = check_combiner(combiner, dtype)
    _check_pair(sp_ids, sp_weights)
    if compat not in (None, "tf"):
        raise ArgumentError(f"compat is {compat!r}.", "It is None or 'tf'.")
    owners = _check_ascending(sp_ids.indices[:, 0])
    # Deviation D-NN-2: a row of ids without entries is a row of the answer, wherever it stands.
    count = sp_ids.dense_shape[0] if compat is None else int(owners.max(initial=-1)) + 1
    weights = None if sp_weights is None else sp_weights.values
    return Bags(sp_ids.values, owners, weights, (count,), chosen)


def plan_safe_bags(
    dtype: DType,
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None,
    combiner: str | None,
    default_id: int | None,
) -> Bags:
    """Plan one bag for each index into all axes but the last, only valid entries."""
    chosen = check_combiner(combiner, dtype)
    _check_pair(sparse_ids, sparse_weights)
    if len(sparse_ids.dense_shape) < 2:
        raise ArgumentError(
            f"Ids of shape {sparse_ids.dense_shape} have no rows.", "Give ids [*batch, width]."
        )
    weights = None if sparse_weights is None else sparse_weights.values
    if weights is not None and weights.size and weights.dtype != dtype:
        raise ArgumentError(
            f"Weights have dtype {weights.dtype}, and the table {dtype}.", "Convert them first."
        )
    batch = sparse_ids.dense_shape[:-1]
    # Horner's scheme: in the shape (2, 3, width) index (1, 2, _) is in row (0 * 2 + 1) * 3 + 2 = 5.
    owners = np.zeros(len(sparse_ids.indices), np.int64)
    for axis, extent in enumerate(batch):
        owners = owners * extent + sparse_ids.indices[:, axis]
    _check_ascending(owners)
    # A weight <= 0 is dropped where the weights are divided by. "sum" keeps it, as TensorFlow does.
    keep = sparse_ids.values >= 0
    if weights is not None and chosen != "sum":
        keep &= weights > 0
    ids, owners = sparse_ids.values[keep], owners[keep]
    weights = None if weights is None else weights[keep]
    if default_id is not None:
        # The default entries, with weight 1, go to the end, and a stable sort by owner brings them
        # into place: of owners 0, 2 and 3 bags, bag 1 is empty, and 0, 2, 1 becomes 0, 1, 2.
        # Entries of one bag keep their order.
        empty = np.flatnonzero(np.bincount(owners, minlength=prod(batch)) == 0)
        owners = np.concatenate([owners, empty])
        order = np.argsort(owners, kind="stable")
        ids = np.concatenate([ids, np.full(len(empty), default_id, ids.dtype)])[order]
        owners = owners[order]
        if weights is not None:
            weights = np.concatenate([weights, np.ones(len(empty), weights.dtype)])[order]
    return Bags(ids, owners, weights, batch, chosen)


def _check_ascending(rows: Ints) -> Ints:
    falls = np.flatnonzero(rows[1:] < rows[:-1])
    if len(falls):
        first = int(falls[0]) + 1
        raise ArgumentError(
            f"Entry {first} is in row {rows[first]}, the one before it in row {rows[first - 1]}.",
            "Sort the entries by their indices.",
        )
    return rows


def _check_pair(ids: Any, weights: Any) -> None:
    for what, value in {"ids": ids, "weights": weights}.items():
        if not isinstance(value, SparseTensor) and not (what == "weights" and value is None):
            raise ArgumentTypeError(
                f"The {what} are {type(value).__name__}.", "Give a sv.nn.SparseTensor."
            )
    as_integers(ids.values, "Ids")
    if weights is not None and not np.array_equal(ids.indices, weights.indices):
        raise ArgumentError(
            f"{len(ids.values)} ids and {len(weights.values)} weights are not at the same indices.",
            "Give one weight for each id.",
        )
