"""Chapter 3. A sharded variable is a list of arrays that compose a larger one.

    shards  # list of [rows of the shard, *row]; together [rows, *row]

All functions return new arrays: a later write does not change what was read.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.spec.partitions import intervals, owner

__all__ = [
    "OPERATIONS",
    "Array",
    "Shards",
    "assign",
    "assign_add",
    "assign_sub",
    "composed_shape",
    "getitem",
    "matmul",
    "read",
    "scatter",
    "shard",
    "shard_names",
    "sharded_matmul",
    "sparse_read",
]

Array = npt.NDArray[Any]
Shards = Sequence[Array]
"""The components of a sharded variable, in the order of their rows."""


# R-CREATE-4 (RFC 000): 'assert dense.trainable_variables[0].name == "w/part_0"'
def shard_names(name: str, num_shards: int) -> list[str]:
    """Name the shards of a variable.

    >>> shard_names("w", 2)
    ['w/part_0', 'w/part_1']
    """
    return [f"{name}/part_{number}" for number in range(num_shards)]


# R-INIT-1 (RFC 000): "In the case of Tensor-like values, we can use `tf.slice` to get the sliced
# value."
def shard(value: Array, sizes: Sequence[int]) -> list[Array]:
    """Cut an array along its first axis into shards of these numbers of rows.

    >>> shard(np.arange(5), [3, 2])
    [array([0, 1, 2]), array([3, 4])]
    """
    if sum(sizes) != len(value):
        raise ValueError(f"Shards of {list(sizes)} rows do not hold {len(value)} rows.")
    return [value[start:stop].copy() for start, stop in intervals(sizes)]


# R-SV-4 (RFC 000): "that list of variables compose a larger variable."
def composed_shape(shards: Shards) -> tuple[int, ...]:
    """Return the shape of the larger variable, or refuse arrays that compose none.

    >>> composed_shape([np.zeros((2, 3)), np.zeros((1, 3))])
    (3, 3)
    """
    if not shards or any(not each.ndim for each in shards):
        raise ValueError("A scalar cannot be a shard, and a variable needs at least one.")
    if len({(each.shape[1:], each.dtype) for each in shards}) > 1:
        raise ValueError(
            "The shards differ in their dtype, or in their shape behind the first axis."
        )
    return sum(len(each) for each in shards), *shards[0].shape[1:]


# R-SV-1 (RFC 000): "`ShardedVariable` is a container of a list of variables that are placed on
# different devices, and that list of variables compose a larger variable."
# R-CONCAT-1 (RFC 000): "ShardedVariable will register a tensor conversion function that concats
# shards to the full value."
def read(shards: Shards) -> Array:
    """Concatenate the shards to the full value.

    >>> read([np.array([0, 1, 2]), np.array([3, 4])])
    array([0, 1, 2, 3, 4])
    """
    return np.concatenate(shards)


# R-VAR-1 (RFC 000): "With above, users' model code doesn't need to change w.r.t whether the
# variable is sharded or not."
def getitem(shards: Shards, key: Any) -> Array:
    """Index a sharded variable as NumPy indexes the full value.

    >>> getitem([np.array([0, 1, 2]), np.array([3, 4])], slice(None, None, -2))
    array([4, 2, 0])
    """
    return np.array(read(shards)[key])


# R-READ-1 (RFC 000): "With above, users' model code doesn't need to change w.r.t whether the
# variable is sharded or not."
def sparse_read(shards: Shards, ids: npt.ArrayLike) -> Array:
    """Return the row of each id, [*ids, *row]. Ids count from 0, and never from the end.

    >>> sparse_read([np.array([7, 8]), np.array([9])], [[2], [0]])
    array([[9],
           [7]])
    """
    whole, rows = read(shards), np.asarray(ids, np.int64)
    if any(not 0 <= row < len(whole) for row in rows.ravel()):
        raise IndexError(f"The rows are 0 to {len(whole) - 1}.")
    return np.array(whole[rows])


# R-MATMUL-1 (RFC 000): "For example, `tf.matmul` will concat the sharded variable and then do the
# multiplication."
def matmul(x: Array, shards: Shards) -> Array:
    """Multiply with the full value.

    >>> matmul(np.array([[1, 2, 3]]), [np.array([[1], [0]]), np.array([[1]])])
    array([[4]])
    """
    return np.asarray(x @ read(shards))


# R-MATMUL-1 (RFC 000): 'alternatively one can broadcast "b" to the parameter servers, do sharded
# multiplication on each parameter server, send the results back and finally concat the results.'
def sharded_matmul(shards: Shards, b: Array) -> Array:
    """Multiply each shard, and concatenate the results: the same as ``read(shards) @ b``.

    >>> sharded_matmul([np.array([[1], [2]]), np.array([[3]])], np.array([[10]])).tolist()
    [[10], [20], [30]]
    """
    return np.concatenate([each @ b for each in shards])


# Writes. They return the shards after the write, and leave the given ones alone.


# R-SV-3 (RFC 000): "`ShardedVariable` will support read and update functions like `read_value`,
# `assign_add` and `scatter_add`." R-VAR-2 (RFC 000): "that list of variables compose a larger
# variable."
def assign(shards: Shards, value: Array) -> list[Array]:
    """Give each shard its rows of a value, which has the shape and the dtype of the variable.

    >>> assign([np.array([0, 0]), np.array([0])], np.array([7, 8, 9]))
    [array([7, 8]), array([9])]
    """
    if value.shape != read(shards).shape:
        raise ValueError(f"A value of shape {value.shape} does not fit.")
    return shard(value, [len(each) for each in shards])


# R-SV-3 (RFC 000): "`ShardedVariable` will support read and update functions like `read_value`,
# `assign_add` and `scatter_add`."
def assign_add(shards: Shards, value: Array) -> list[Array]:
    """Add a value of the variable's shape.

    >>> assign_add([np.array([1, 1]), np.array([1])], np.array([7, 8, 9]))
    [array([8, 9]), array([10])]
    """
    return [old + new for old, new in zip(shards, assign(shards, value), strict=True)]


# TensorFlow, tf.Variable.assign_sub.
def assign_sub(shards: Shards, value: Array) -> list[Array]:
    """Subtract a value of the variable's shape.

    >>> assign_sub([np.array([1, 1]), np.array([1])], np.array([7, 8, 9]))
    [array([-6, -7]), array([-8])]
    """
    return [old - new for old, new in zip(shards, assign(shards, value), strict=True)]


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, new: old + new,
    "sub": lambda old, new: old - new,
    "mul": lambda old, new: old * new,
    "div": lambda old, new: old / new,
    "min": np.minimum,
    "max": np.maximum,
    "update": lambda _old, new: new,
}
"""The scatter operations: a row before, its update -> the row after. NaN wins in min and max."""


# R-SV-3 (RFC 000): "`scatter_add`"
def scatter(shards: Shards, operation: str, rows: Sequence[int], updates: Array) -> list[Array]:
    """Apply updates to rows one after the other. A row that occurs twice is updated twice.

    If a row is in no shard, nothing is written.

    >>> scatter([np.array([0, 0]), np.array([0])], "add", [2, 0, 2], np.array([1, 5, 10]))
    [array([5, 0]), array([11])]
    """
    found = [each.copy() for each in shards]
    if updates.shape != (len(rows), *found[0].shape[1:]):
        raise ValueError(f"Updates of shape {updates.shape} do not fit {len(rows)} rows.")
    for row, update in zip(rows, updates, strict=True):
        number, local = owner(row, [len(each) for each in shards])
        found[number][local] = OPERATIONS[operation](found[number][local], update)
    return found
