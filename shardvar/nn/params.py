"""What the functions of nn take as a table: one variable, or one sharded variable.

R-LOOKUP-1 (RFC 002): "let embedding_lookup take a tf.Variable or a ShardedVariable rather than a list of variables".
A list of shards does not say how its rows are numbered; a sharded variable does, and it is div: contiguous.
"""

from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError
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
