"""Updates: the ways in which a write combines old and new elements. Dense and sparse writes share
one table.

``new = combine(old, value)``. A sparse write applies duplicates one after another in the order in
which they were given, so sums, products and the last of several replacements equal a plain loop's,
bit for bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array, dtype_name


@dataclass(frozen=True, slots=True)
class UpdateKind:
    """One way of combining old elements with given ones."""

    verb: str
    """The verb in messages and in the ledger."""
    combine: Callable[[Array, Array], Array]
    """Elementwise ``new = combine(old, value)``."""
    fold: Callable[[Array], Array] | None = None
    """``fold(stack)`` applies ``combine`` to [n, *row] in order, if there is a fast form."""
    is_arithmetic: bool = True
    """True if it needs numbers; strings and booleans can only be replaced."""

    def apply(self, array: Array, value: Array) -> None:
        """Combine all elements of an array with a value of its shape, in place."""
        if isinstance(self.combine, np.ufunc):
            self.combine(array, value, out=array)
        else:
            array[...] = self.combine(array, value)


def truncated_quotient(old: Array, value: Array) -> Array:
    """Return ``old / value``; integers are divided towards zero, as in TensorFlow and C.

    >>> truncated_quotient(np.array([-7, 7]), np.array([2, -2]))
    array([-3, -3])
    """
    if old.dtype.kind not in "iu":
        return np.asarray(np.divide(old, value))
    # NumPy divides towards minus infinity: -7 = 2 * -4 + 1. Where something remains and the signs
    # differ, the quotient towards zero is one more: -3.
    quotient, remainder = np.divmod(old, value)
    return np.asarray(
        quotient + ((remainder != 0) & ((old < 0) != (value < 0))).astype(quotient.dtype)
    )


def _fold(ufunc: np.ufunc) -> Callable[[Array], Array]:
    """Return a fold from left to right along axis 0."""

    def fold(stack: Array) -> Array:
        # `reduce` goes row by row, except for rows of one element: these it adds in pairs, ((a + b)
        # + (c + d)), whose rounding differs from a loop's; `accumulate` adds one element after
        # another.
        if stack[0].size == 1:
            return np.asarray(ufunc.accumulate(stack, axis=0)[-1])
        return np.asarray(ufunc.reduce(stack, axis=0))

    return fold


def _replace(_old: Array, value: Array) -> Array:
    return value


REPLACE = UpdateKind("update", _replace, lambda stack: stack[-1], is_arithmetic=False)
ADD = UpdateKind("add", np.add, _fold(np.add))
SUB = UpdateKind("sub", np.subtract, _fold(np.subtract))
MUL = UpdateKind("mul", np.multiply, _fold(np.multiply))
DIV = UpdateKind("div", truncated_quotient)
MIN = UpdateKind("min", np.minimum, _fold(np.minimum))
MAX = UpdateKind("max", np.maximum, _fold(np.maximum))


def check_update(update: UpdateKind, dtype: np.dtype[Any], values: Array) -> None:
    """Raise ``ArgumentError`` if the dtype has no such arithmetic, or a divisor is zero."""
    if update.is_arithmetic and dtype.kind in "Ob":
        raise ArgumentError(
            f"A variable of dtype {dtype_name(dtype)} cannot {update.verb} values.",
            "Assign new values instead.",
        )
    if update is DIV and not np.all(values):
        # As TensorFlow does, for floats too: a model that fills with infinities would go unseen.
        raise ArgumentError(
            "The values to divide by hold a zero.", "Divide by numbers other than 0."
        )
