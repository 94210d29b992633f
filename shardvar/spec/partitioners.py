"""Chapter 2. Partitioners: from a variable's shape and bytes to a number of parts.

All three search: they try numbers of parts until one obeys the sentence.
"""

from collections.abc import Callable, Sequence
from inspect import signature
from math import prod
from typing import Any

from shardvar.spec.partitions import Interval, div

__all__ = [
    "Partitioner",
    "answer",
    "counts",
    "fixed_shards",
    "max_size",
    "min_size",
    "row_nbytes",
    "shard_rows",
]

Partitioner = Callable[[Sequence[int], int], Sequence[int]]
"""``partitioner(shape, itemsize)``: the number of parts along each axis."""


# R-PART-1 (RFC 000): "`num_partitions` is a list/tuple representing the number of partitions on
# each dimension"
def counts(shape: Sequence[int], axis: int, parts: int) -> list[int]:
    """Return a number of parts for one axis, and 1 for the others.

    >>> counts([13, 4], 0, 5), counts([], 0, 5)
    ([5, 1], [])
    """
    return [parts if number == axis else 1 for number in range(len(shape))]


# R-PART-1 (RFC 000): "Existing partitioners like `min_max_variable_partitioner`,
# `variable_axis_size_partitioner` and `fixed_size_partitioner` conform to the required signature so
# they can be directly used."
def fixed_shards(shape: Sequence[int], num_shards: int, axis: int = 0) -> list[int]:
    """Cut into so many parts, or into single rows if there are fewer.

    >>> fixed_shards([13, 4], 5), fixed_shards([3], 5)
    ([5, 1], [3])
    """
    return counts(shape, axis, max(1, min(num_shards, _rows(shape, axis))))


# R-PART-3 (RFC 000): "Create a partitioner that allocates at least 64MB for each partition. The max
# number of such partitions (upper bound) is the 10."
def min_size(
    shape: Sequence[int], itemsize: int, min_nbytes: int, max_shards: int, axis: int = 0
) -> list[int]:
    """Cut into as many parts as there can be if the smallest is to have enough bytes.

    >>> [min_size([rows, 1000], 4, 64 << 20, 10)[0] for rows in (600_000, 60_000)]
    [10, 3]
    """
    rows, row = _rows(shape, axis), row_nbytes(shape, itemsize, axis)
    for parts in range(min(max_shards, rows), 1, -1):
        smallest = rows // parts  # the size of div's last part
        if smallest * row >= min_nbytes:
            return counts(shape, axis, parts)
    return counts(shape, axis, 1)


# TensorFlow, variable_axis_size_partitioner.
def max_size(
    shape: Sequence[int],
    itemsize: int,
    max_nbytes: int,
    max_shards: int | None = None,
    axis: int = 0,
) -> list[int]:
    """Cut into as few parts as there can be if the largest is to have few enough bytes.

    A part of one row may have more bytes. So may all parts if there are `max_shards` of them.

    >>> max_size([13, 7], 4, 100), max_size([13, 7], 4, 100, max_shards=2)
    ([5, 1], [2, 1])
    """
    rows, row = _rows(shape, axis), row_nbytes(shape, itemsize, axis)
    most = max(1, min(max_shards or rows, rows))
    for parts in range(1, most):
        largest = -(-rows // parts)  # the size of div's first part
        if largest * row <= max_nbytes:
            return counts(shape, axis, parts)
    return counts(shape, axis, most)


def row_nbytes(shape: Sequence[int], itemsize: int, axis: int = 0) -> int:
    """Return the bytes of one index along an axis.

    >>> row_nbytes([13, 7, 2], itemsize=4, axis=1)
    104
    """
    return prod([extent for number, extent in enumerate(shape) if number != axis]) * itemsize


def _rows(shape: Sequence[int], axis: int) -> int:
    return shape[axis] if shape else 1


# R-PART-2 (RFC 002): "a callable that accepts number of shards, variable shape and variable dtype"
# "The legacy partitioner in 1.x that only accepts variable shape and variable dtype will be accepted
# as well." R-PSS-3 (RFC 002): "The number of shards is the number of ps in multi-worker case and 1
# in local case."
def answer(partitioner: Callable[..., Any], servers: int, shape: Sequence[int], dtype: str) -> Any:
    """Ask a partitioner of three arguments, or of two. In the local case there are no servers.

    >>> thrifty = lambda num_shards, shape, dtype: [min(num_shards, 2)]
    >>> answer(thrifty, 4, [9], "int8"), answer(thrifty, 0, [9], "int8")
    ([2], [1])
    """
    takes_number = len(signature(partitioner).parameters) == 3
    return partitioner(*[max(1, servers)] if takes_number else [], shape, dtype)


# R-PART-5 (RFC 000): "If users don't explicitly pass in a partitioner, variables will not be
# partitioned."
# R-PART-4 (RFC 000): "We are only going to support partitioning on the first / outermost axis at
# the moment. Exception will raised if the partitioner returns an unsupported partitioning layout."
# R-CREATE-2 (RFC 000): "We will fall back to creating normal variables when there are less than two
# partitions."
def shard_rows(
    shape: Sequence[int], itemsize: int, partitioner: Partitioner | None = None
) -> list[Interval] | None:
    """Return the rows of each shard of a new variable; None means a normal variable.

    An answer that is shorter than the shape leaves the other axes whole.

    >>> shard_rows([5, 2], 4, lambda shape, itemsize: [2, 1])
    [(0, 3), (3, 5)]
    """
    if partitioner is None:
        return None
    answer = list(partitioner(shape, itemsize))
    if len(answer) > len(shape) or min(answer, default=1) < 1 or any(n > 1 for n in answer[1:]):
        raise ValueError(f"The partitioner answered {answer} for the shape {list(shape)}.")
    # There are no more shards than rows, as in TensorFlow.
    num_shards = min(answer[0], shape[0]) if answer else 1
    return div(shape[0], num_shards) if num_shards > 1 else None
