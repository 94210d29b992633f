"""Strategies for tables of any contiguous layout, each shard on a server of its own, and their
plain twins."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from shardvar.reference.devices import Device
from shardvar.reference.variables import ShardedVariable, Variable

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Table:
    """A sharded variable and the array that it is."""

    sharded: ShardedVariable
    full: Array

    @property
    def rows(self) -> int:
        return len(self.full)


def shard(
    full: Array, sizes: list[int], name: str = "table", local: bool = False
) -> ShardedVariable:
    """The array as shards of so many rows, each on ``ps:i`` unless they are to be local."""
    bounds = np.cumsum([0, *sizes])
    return ShardedVariable(
        [
            Variable(
                full[start:stop],
                name=f"{name}/part_{i}",
                device=None if local else Device(f"ps:{i}"),
            )
            for i, (start, stop) in enumerate(pairwise(bounds))
        ],
        name,
    )


def sizes(min_rows: int = 0) -> st.SearchStrategy[list[int]]:
    """Rows of each shard: uneven, empty ones included."""
    return st.lists(st.integers(0, 5), min_size=1, max_size=11).filter(
        lambda counts: sum(counts) >= min_rows
    )


@st.composite
def tables(
    draw: st.DrawFn, min_rows: int = 1, row_shape: tuple[int, ...] = (3,), dtype: str = "float32"
) -> Table:
    """A table of normal values; the seed alone is drawn, since which values they are does not
    matter."""
    counts = draw(sizes(min_rows))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    full = random.normal(size=(sum(counts), *row_shape)).astype(dtype)
    return Table(shard(full, counts, local=draw(st.booleans())), full)


def ids_for(rows: int, max_size: int = 12) -> st.SearchStrategy[list[int]]:
    """Ids with duplicates, in any order, perhaps none."""
    return st.lists(st.integers(0, rows - 1), max_size=max_size)
