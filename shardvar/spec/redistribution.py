"""Chapter 13. Redistribution: from what the devices hold to what they must hold.

before, after  # [devices][axes][indices], as in chapter 12
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from shardvar.spec.meshes import Held, elements, parts
from shardvar.spec.variables import Array

__all__ = [
    "REDUCTIONS",
    "gathered",
    "must_receive",
    "redistribute",
    "reduced",
]


# R-MOVE-1 (RFC 002): "we can do embedding lookups in parallel and at the same time keep
# communication between machines small;"
def must_receive(
    shape: Sequence[int], before: Sequence[Held], after: Sequence[Held]
) -> list[list[int]]:
    """Return the elements that each device needs and does not hold: no plan moves fewer.

    >>> must_receive([4], [[[0, 1]], [[2, 3]]], [[[0, 1, 2, 3]], [[0, 1, 2, 3]]])
    [[2, 3], [0, 1]]
    """
    return [
        sorted(set(elements(new, shape)) - set(elements(old, shape)))
        for old, new in zip(before, after, strict=True)
    ]


def gathered(shape: Sequence[int], held: Sequence[Held], arrays: Sequence[Array]) -> Array:
    """Return the whole value. Devices that hold the same element hold the same value.

    >>> gathered([3], [[[0, 1]], [[2]]], [np.array([7, 8]), np.array([9])])
    array([7, 8, 9])
    """
    whole = np.zeros(int(np.prod(shape, dtype=np.int64)), arrays[0].dtype)
    filled = set()
    for axes, array in zip(held, arrays, strict=True):
        whole[elements(axes, shape)] = array.ravel()
        filled |= set(elements(axes, shape))
    if len(filled) < whole.size:
        raise ValueError(f"{whole.size - len(filled)} elements are on no device.")
    return whole.reshape(tuple(shape))


# PyTorch, DTensor.redistribute.
def redistribute(
    shape: Sequence[int], before: Sequence[Held], after: Sequence[Held], arrays: Sequence[Array]
) -> list[Array]:
    """Return the arrays of each device after the move: cut from the whole value.

    >>> redistribute([2], [[[0]], [[1]]], [[[0, 1]], [[0, 1]]], [np.array([7]), np.array([8])])
    [array([7, 8]), array([7, 8])]
    """
    return parts(gathered(shape, before, arrays), after)


REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "avg": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
"""The function that combines two terms. An average is divided at the end."""


# PyTorch, DTensor: Partial.
def reduced(terms: Sequence[Array], operation: str) -> Array:
    """Combine the terms of a pending value in the order of their numbers, in their dtype.

    >>> reduced([np.array([1.0, 5.0]), np.array([3.0, 4.0])], "avg")
    array([2. , 4.5])
    """
    total = np.asarray(reduce(REDUCTIONS[operation], terms))
    return (total / len(terms)).astype(total.dtype) if operation == "avg" else total
