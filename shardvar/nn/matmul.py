"""Matrix products with a variable, without ever holding a second copy of it.

    concat    the variable comes to where the program computes, one shard at a time, and is multiplied there
    sharded   the other matrix goes to each shard, is multiplied there, and the product comes back

R-MATMUL-1 (RFC 000): "tf.matmul will concat the sharded variable and then do the multiplication"; alternatively "one
can broadcast "b" to the parameter servers, do sharded multiplication on each parameter server, send the results back
and finally concat the results". Both give the same product; they differ in what crosses between devices, which
``sv.track_transfers()`` shows. A variable on the left gives rows of the product, one on the right gives terms of a sum.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, Literal, get_args

import numpy as np

from shardvar.devices import copy_into, current_device, device_scope, move_array, operation_scope
from shardvar.errors import ArgumentError
from shardvar.nn.params import components, layout_of
from shardvar.variables.interface import VariableInterface
from shardvar.variables.resource import holding
from shardvar.variables.values import Array, as_value
from shardvar.variables.variable import Variable

Mode = Literal["concat", "sharded"]


def matmul(a: Any, b: Any, mode: Mode = "concat") -> Array:
    """``a @ b``, where one of them may be a variable; a second variable is read whole.

    A variable has two axes; an array on its left may have more, [*batch, n, k].

    >>> from shardvar.variables import ShardedVariable, Variable
    >>> table = ShardedVariable([Variable([[1.0], [2.0]]), Variable([[3.0]])])
    >>> matmul(table, [[2.0]], mode="sharded").tolist(), matmul([[1.0, 1.0, 1.0]], table).tolist()
    ([[2.0], [4.0], [6.0]], [[6.0]])
    """
    if mode not in get_args(Mode):
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
            return _sum_of_products(other.reshape(rows, other.shape[-1]), b, mode).reshape(*batch, b.shape[1])
        left, right = _value(a), _value(b)
        check_product(left.shape, right.shape)
        return np.asarray(left @ right)


def check_product(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """``ArgumentError`` unless [*batch, n, k] and [k, m] are multiplied."""
    if len(left) < 2 or len(right) != 2 or left[-1] != right[0]:
        raise ArgumentError(f"Shapes {left} and {right} have no product.", "Give [n, k] and [k, m].")


def _rows_of_product(a: VariableInterface, b: Array, mode: Mode) -> Array:
    """[rows of a, columns of b]: each shard gives its own rows."""
    out = np.empty((a.shape[0], b.shape[1]), np.result_type(a.dtype, b.dtype))
    multiply = _multiply_here if mode == "concat" else _multiply_there
    for shard, rows in _shards(a):
        multiply(shard, b, out[rows], shard_is_left=True)
    return out


def _sum_of_products(a: Array, b: VariableInterface, mode: Mode) -> Array:
    """[rows of a, columns of b]: each shard gives the term of its own rows, and of their columns of ``a``."""
    out = np.zeros((a.shape[0], b.shape[1]), np.result_type(a.dtype, b.dtype))
    term = np.empty_like(out)
    multiply = _multiply_here if mode == "concat" else _multiply_there
    for shard, rows in _shards(b):
        multiply(shard, a[:, rows], term, shard_is_left=False)
        out += term
    return out


def _multiply_here(shard: Variable, other: Array, out: Array, *, shard_is_left: bool) -> None:
    """``out[...] = product``, computed on the current device."""
    with _value_here(shard) as value:
        left, right = (value, other) if shard_is_left else (other, value)
        np.matmul(left, right, out=out)


def _multiply_there(shard: Variable, other: Array, out: Array, *, shard_is_left: bool) -> None:
    """``out[...] = product``, computed on the shard's device."""
    here, there = current_device(), shard.device
    moved = move_array(np.ascontiguousarray(other), here, there)
    with device_scope(there), _value_here(shard) as value:
        left, right = (value, moved) if shard_is_left else (moved, value)
        if here is there:
            np.matmul(left, right, out=out)
            return
        product = np.matmul(left, right)
    copy_into(out, product, there, here)


@contextmanager
def _value_here(shard: Variable) -> Iterator[Array]:
    """The shard's value on the current device: the memory itself, held, where it lives here, else a copy."""
    if len(shard.resources) == 1 and shard.device is current_device():
        with holding(shard.resources):
            yield shard.resources[0].array
    else:
        yield shard.read_value()


def _shards(variable: VariableInterface) -> Iterator[tuple[Variable, slice]]:
    """The shards that hold rows, and which."""
    bounds = layout_of(variable).bounds
    for shard, start, stop in zip(components(variable), bounds, bounds[1:], strict=False):
        if start < stop:
            yield shard, slice(start, stop)


def _value(value: Any) -> Array:
    array = value.read_value() if isinstance(value, VariableInterface) else as_value(value)
    if array.dtype == np.object_:
        raise ArgumentError("Strings have no product.", "Give numbers.")
    return array
