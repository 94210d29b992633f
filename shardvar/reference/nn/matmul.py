"""Matrix products with a variable, without a second copy of it.

    concat    the variable comes to the device where the program computes, one shard at a time, and
              is multiplied there
    sharded   the other matrix goes to each shard, is multiplied there, and the product comes back

R-MATMUL-1 (RFC 000): "tf.matmul will concat the sharded variable and then do the multiplication";
alternatively 'one can broadcast "b" to the parameter servers, do sharded multiplication on each
parameter server, send the results back and finally concat the results'. Both give the same product;
they differ in what crosses between devices, which ``sv.track_transfers()`` shows.

A variable on the left gives rows of the product, one on the right gives terms of a sum. Of two
shards with rows 0-1 and 2 of a [3, m] variable ``b``: ``a @ b = a[:, 0:2] @ b[0:2] + a[:, 2:3] @
b[2:3]``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.reference.devices import (
    copy_into,
    current_device,
    device_scope,
    move_array,
    operation_scope,
)
from shardvar.reference.nn.lookup import components, row_layout_of
from shardvar.reference.variables.interface import VariableInterface
from shardvar.reference.variables.values import as_value
from shardvar.reference.variables.variable import Variable
from shardvar.reference.variables.writes import holding

MatmulMode = Literal["concat", "sharded"]
_Product = Callable[[Array, Array, Array], object]
"""``product(other, shard, out)`` writes the product of the two to ``out``."""


def matmul(a: npt.ArrayLike, b: npt.ArrayLike, mode: MatmulMode = "concat") -> Array:
    """Return ``a @ b``, where one of them may be a variable; a second variable is read whole.

    Parameters
    ----------
    a : array_like, Variable or ShardedVariable
        [*batch, n, k], a variable [n, k].
    b : array_like, Variable or ShardedVariable
        [k, m].
    mode : {"concat", "sharded"}, default "concat"
        "concat" brings the shards to the current device; "sharded" multiplies each shard on its own
        device.

    Returns
    -------
    ndarray
        [*batch, n, m].

    Raises
    ------
    ArgumentError
        If the shapes have no product, or `mode` is another text.

    Examples
    --------
    >>> import shardvar as sv
    >>> table = sv.ShardedVariable([sv.Variable([[1.0], [2.0]]), sv.Variable([[3.0]])])
    >>> sv.matmul(table, [[2.0]], mode="sharded").tolist(), sv.matmul([[1.0, 1.0, 1.0]], table).tolist()
    ([[2.0], [4.0], [6.0]], [[6.0]])
    """
    if mode not in get_args(MatmulMode):
        raise ArgumentError(f"mode is {mode!r}.", "It is 'concat' or 'sharded'.")
    with operation_scope("matmul"):
        if isinstance(a, VariableInterface):
            other = _value(b)
            check_product(a.shape, other.shape)
            return _rows_of_product(a, other, mode)
        if isinstance(b, VariableInterface):
            other = _value(a)
            check_product(other.shape, b.shape)
            batch, rows = other.shape[:-1], prod(other.shape[:-1])
            return _sum_of_products(other.reshape(rows, other.shape[-1]), b, mode).reshape(
                *batch, b.shape[1]
            )
        left, right = _value(a), _value(b)
        check_product(left.shape, right.shape)
        return np.asarray(left @ right)


def matmul_transposed(a: Array, b: VariableInterface, mode: MatmulMode = "concat") -> Array:
    """Return ``a @ b.T`` for ``a`` [n, m] and ``b`` [k, m] -> [n, k]; each shard gives the columns
    of its rows.

    >>> import shardvar as sv
    >>> table = sv.ShardedVariable([sv.Variable([[1.0, 0.0], [2.0, 1.0]]), sv.Variable([[3.0, 1.0]])])
    >>> matmul_transposed(np.array([[10.0, 1.0]], np.float32), table).tolist()
    [[10.0, 21.0, 31.0]]
    """
    with operation_scope("matmul"):
        out = np.empty((a.shape[0], b.shape[0]), np.result_type(a.dtype, b.dtype))
        multiply = _multiply_here if mode == "concat" else _multiply_there
        for shard, rows in _shards(b):
            multiply(shard, a, out[:, rows], _shard_transposed)
        return out


def check_product(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """Raise ``ArgumentError`` unless the shapes are [*batch, n, k] and [k, m]."""
    if len(left) < 2 or len(right) != 2 or left[-1] != right[0]:
        raise ArgumentError(
            f"Shapes {left} and {right} have no product.", "Give [n, k] and [k, m]."
        )


def _rows_of_product(a: VariableInterface, b: Array, mode: MatmulMode) -> Array:
    """Return ``a @ b``, [rows of a, columns of b]; each shard gives its own rows."""
    out = np.empty((a.shape[0], b.shape[1]), np.result_type(a.dtype, b.dtype))
    multiply = _multiply_here if mode == "concat" else _multiply_there
    for shard, rows in _shards(a):
        multiply(shard, b, out[rows], _shard_first)
    return out


def _sum_of_products(a: Array, b: VariableInterface, mode: MatmulMode) -> Array:
    """Return ``a @ b``, [rows of a, columns of b]; each shard gives the term of its rows and their
    columns of ``a``."""
    multiply = _multiply_here if mode == "concat" else _multiply_there
    shape, dtype = (a.shape[0], b.shape[1]), np.result_type(a.dtype, b.dtype)
    # Terms are added in the order of the shards, into the first one, so that only two products are
    # ever in memory.
    out: Array | None = None
    for shard, rows in _shards(b):
        term = np.empty(shape, dtype)
        multiply(shard, a[:, rows], term, np.matmul)
        out = term if out is None else np.add(out, term, out=out)
    return np.zeros(shape, dtype) if out is None else out


def _multiply_here(shard: Variable, other: Array, out: Array, product: _Product) -> None:
    """Compute ``product(other, shard, out)`` on the current device."""
    with _value_here(shard) as value:
        product(other, value, out)


def _multiply_there(shard: Variable, other: Array, out: Array, product: _Product) -> None:
    """Compute ``product(other, shard, out)`` on the shard's device."""
    # Move the other factor there.
    here, there = current_device(), shard.device
    moved = move_array(np.ascontiguousarray(other), here, there)
    with device_scope(there), _value_here(shard) as value:
        if here is there:  # ``out`` is on the same device: no product has to come back
            product(moved, value, out)
            return
        computed = np.empty(out.shape, out.dtype)
        product(moved, value, computed)
    # Bring the product back.
    copy_into(out, computed, there, here)


def _shard_first(other: Array, shard: Array, out: Array) -> None:
    np.matmul(shard, other, out=out)


def _shard_transposed(other: Array, shard: Array, out: Array) -> None:
    np.matmul(other, shard.T, out=out)


@contextmanager
def _value_here(shard: Variable) -> Iterator[Array]:
    """Yield the shard's value on the current device: its locked memory, or a copy."""
    if len(shard.resources) == 1 and shard.device is current_device():
        with holding(shard.resources):
            yield shard.resources[0].array
    else:
        yield shard.read_value()


def _shards(variable: VariableInterface) -> Iterator[tuple[Variable, slice]]:
    """Yield the shards that hold rows, each with its range of rows."""
    bounds = row_layout_of(variable).bounds
    for shard, start, stop in zip(components(variable), bounds, bounds[1:], strict=False):
        if start < stop:
            yield shard, slice(start, stop)


def _value(value: Any) -> Array:
    # The second variable of a product of two is read whole: only one factor can be taken shard by
    # shard.
    array = value.read_value() if isinstance(value, VariableInterface) else as_value(value)
    if array.dtype == np.object_:
        raise ArgumentError("Strings have no product.", "Give numbers.")
    return array
