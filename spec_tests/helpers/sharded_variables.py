"""Strategies for sharded variables: those of ``shardvar.testing``, the array first, and lists of
ids; and a kind of variable as a user writes it."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.reference.variables import ShardedVariable, Variable
from shardvar.testing import counting, ids, sharded_of, sharded_variables
from shardvar.testing import layouts as _layouts
from shardvar.testing.operations import ROW_SHAPES

__all__ = [
    "Array",
    "UserVariable",
    "counting",
    "ids_of",
    "layouts",
    "row_shapes",
    "sharded_arrays",
    "sharded_of",
]

Array = np.ndarray[Any, Any]

layouts = _layouts()
"""Rows of each shard."""

row_shapes = st.sampled_from(ROW_SHAPES)


def sharded_arrays(dtype: Any = np.float32) -> st.SearchStrategy[tuple[Array, ShardedVariable]]:
    """An array, and the same in shards."""
    return sharded_variables(dtype).map(lambda pair: (pair[1], pair[0]))


def ids_of(array: Array, max_size: int = 12) -> st.SearchStrategy[list[int]]:
    """Rows of an array in any order, some of them several times."""
    return ids(len(array), max_size).map(lambda some: some.tolist())


class UserVariable(Variable):
    """The five things that a kind of variable must provide."""

    name = "user's"  # type: ignore[assignment]
    shape = property(lambda self: self.array.shape)  # type: ignore[assignment]
    dtype = property(lambda self: self.array.dtype)  # type: ignore[assignment]

    def __init__(self, value: Any, **_: Any) -> None:
        self.array, self.writes = np.array(value), 0

    def read_value(self) -> Array:
        return self.array.copy()

    def assign(
        self, value: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Any:
        self.array, self.writes = np.array(value, self.array.dtype), self.writes + 1
        return self._written(read_value)
