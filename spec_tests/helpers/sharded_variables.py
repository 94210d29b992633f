"""Strategies for sharded variables: those of ``shardvar.testing``, the array first, and lists of
ids."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.reference.variables import ShardedVariable
from shardvar.testing import counting, ids, sharded_of, sharded_variables
from shardvar.testing import layouts as _layouts
from shardvar.testing.operations import ROW_SHAPES

__all__ = ["Array", "counting", "ids_of", "layouts", "row_shapes", "sharded_arrays", "sharded_of"]

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
