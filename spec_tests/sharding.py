"""Strategies for sharded variables: random layouts, uneven and with empty shards, each shard on a server of its own."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.devices import Device
from shardvar.variables import ShardedVariable, Variable

Array = np.ndarray[Any, Any]

layouts = st.lists(st.integers(0, 4), min_size=1, max_size=5)
"""Rows of each shard."""

row_shapes = st.sampled_from([(), (1,), (2,), (3, 2), (0,)])


def sharded_of(array: Array, sizes: Sequence[int], name: str = "w") -> ShardedVariable:
    """The array cut into shards of so many rows."""
    stops = np.cumsum(sizes).tolist()
    return ShardedVariable(
        [
            Variable(array[stop - size : stop], name=f"{name}/part_{number}", device=Device(f"ps:{number}"))
            for number, (size, stop) in enumerate(zip(sizes, stops, strict=True))
        ]
    )


def counting(shape: Sequence[int], dtype: Any = np.float32) -> Array:
    """Distinct small numbers, none of them zero."""
    return (np.arange(1, np.prod(shape, dtype=int) + 1).reshape(shape)).astype(dtype)


@st.composite
def sharded_arrays(draw: st.DrawFn, dtype: Any = np.float32) -> tuple[Array, ShardedVariable]:
    """An array, and the same in shards."""
    sizes = draw(layouts)
    array = counting((sum(sizes), *draw(row_shapes)), dtype)
    return array, sharded_of(array, sizes)


def ids_of(array: Array, max_size: int = 12) -> st.SearchStrategy[list[int]]:
    """Rows of an array in any order, some of them several times."""
    return st.lists(st.integers(0, len(array) - 1), max_size=max_size) if len(array) else st.just([])
