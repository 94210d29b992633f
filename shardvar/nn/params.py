"""What the functions of nn take as a table: one variable, or one sharded variable.

R-LOOKUP-1 (RFC 002): "let embedding_lookup take a tf.Variable or a ShardedVariable rather than a list of variables".
A list of shards does not say how its rows are numbered; a sharded variable does, and it is div: contiguous.
"""

from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array
from shardvar.variables.interface import VariableInterface
from shardvar.variables.row_layout import RowLayout
from shardvar.variables.sharded import ShardedVariable
from shardvar.variables.variable import Variable


def check_table(params: Any) -> VariableInterface:
    """``params``, which is a variable with rows; ``ArgumentTypeError`` for lists of shards and all else."""
    if isinstance(params, list | tuple):
        if not params:
            raise ArgumentError("params is empty.", "Give a variable or a sharded variable.")
        raise ArgumentTypeError(
            f"params is a {type(params).__name__} of {len(params)}, which does not say how rows are numbered.",
            "Give sv.ShardedVariable(variables), or sv.nn.mod_to_div(variables) where they were cut by mod.",
        )
    if not isinstance(params, VariableInterface):
        raise ArgumentTypeError(f"params is {type(params).__name__}.", "Give a variable or a sharded variable.")
    if not params.shape:
        raise ArgumentError(f"{params.name} is a scalar and has no rows.", "Give a variable with at least one axis.")
    return params


def components(params: VariableInterface) -> tuple[Variable, ...]:
    """The shards of a sharded variable; a plain variable is its own only one."""
    if isinstance(params, ShardedVariable):
        return tuple(params.variables)
    if not isinstance(params, Variable):
        raise ArgumentTypeError(f"{params!r} is neither a variable nor sharded.", "Give a variable.")
    return (params,)


def layout_of(params: VariableInterface) -> RowLayout:
    """Which component holds which rows."""
    return RowLayout.of_sizes([component.shape[0] for component in components(params)])


def is_half(dtype: np.dtype[Any]) -> bool:
    """True for dtypes of so few bits that sums are taken in float32: float16, bfloat16, float8."""
    return dtype.itemsize < np.dtype(np.float32).itemsize and dtype.kind not in "iub"


def exact_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype to compute in: float32 for dtypes of few bits, else the same.

    >>> exact_dtype(np.dtype(np.float16)), exact_dtype(np.dtype(np.float64))
    (dtype('float32'), dtype('float64'))
    """
    return np.dtype(np.float32) if is_half(dtype) else dtype


def as_integers(values: Any, what: str) -> Array:
    """Integers of any rank in the dtype that they have, int64 where there are none; ``what`` begins the error's words.

    >>> as_integers([], "ids").dtype, as_integers(np.uint8(3), "ids").dtype
    (dtype('int64'), dtype('uint8'))
    """
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        raise ArgumentError(f"{what} have rows of several lengths.", "Give an array.") from None
    if array.size == 0 and array.dtype.kind not in "iu":
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ArgumentTypeError(f"{what} have dtype {array.dtype}.", "Give integers.")
    return array
