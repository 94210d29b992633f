"""Strategies for sharded variables together with the array that they are."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from shardvar.devices import Device
from shardvar.layout.dtypes import Array
from shardvar.testing.arrays import counting
from shardvar.testing.geometry import layouts
from shardvar.variables import ShardedVariable, Variable

ROW_SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (2,), (3, 2), (0,))
"""What one row may be like: a number, a vector, a matrix, nothing."""


def sharded_of(array: Array, sizes: Sequence[int], name: str = "w") -> ShardedVariable:
    """The array cut into shards of so many rows, each on a simulated server of its own.

    >>> import numpy as np
    >>> [shard.shape for shard in sharded_of(np.ones((5, 2)), [2, 0, 3]).variables]
    [(2, 2), (0, 2), (3, 2)]
    """
    stops = np.cumsum(sizes).tolist()
    return ShardedVariable(
        [
            Variable(array[stop - size : stop], name=f"{name}/part_{number}", device=Device(f"ps:{number}"))
            for number, (size, stop) in enumerate(zip(sizes, stops, strict=True))
        ]
    )


@st.composite
def sharded_variables(
    draw: st.DrawFn,
    dtype: npt.DTypeLike = np.float32,
    row_shapes: Sequence[tuple[int, ...]] = ROW_SHAPES,
    max_shards: int = 5,
) -> tuple[ShardedVariable, Array]:
    """A sharded variable and the array that it is: random layouts, uneven, with empty shards.

    Values count 1, 2, 3 and so on, so that a wrong row shows where it came from. They shrink to one shard without rows.
    """
    sizes = draw(layouts(max_shards))
    array = counting((sum(sizes), *draw(st.sampled_from(list(row_shapes)))), dtype)
    return sharded_of(array, sizes), array
