"""Reading and writing rows that lie in several shards; a plain variable is one shard.

Every function here asks the layout which shard holds what, and each shard for its part alone. A read of several shards
holds all their mutexes, so it never sees a write half done.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from shardvar.devices import allocate, current_device, gather_parts
from shardvar.layout.dtypes import Array, Ints
from shardvar.variables.index import Rows
from shardvar.variables.resource import Resource, Write, holding
from shardvar.variables.row_layout import RowLayout
from shardvar.variables.scatter import sort_rows
from shardvar.variables.updates import Update

if TYPE_CHECKING:
    from shardvar.variables.variable import Variable


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """The shards of one value, in the order of their rows."""

    variables: tuple["Variable", ...]
    """The shards."""
    layout: RowLayout
    """Which rows each holds."""
    row_shape: tuple[int, ...]
    """The shape of one row."""
    dtype: np.dtype[Any]
    """The dtype of all."""

    @property
    def resources(self) -> tuple[Resource, ...]:
        """What holds the values of all shards."""
        return tuple(resource for shard in self.variables for resource in shard.resources)

    def read_rows(self, rows: Rows, columns: tuple[slice, ...] = ()) -> Array:
        """The rows, in range, in this order, on the current device: only the shards that hold some are asked.

        ``columns`` may be given where rows are a range: of each row only these, one slice an axis, are read.

        R-MOVE-1: what crosses to the current device is these rows and nothing else.
        """
        extents = [len(range(size)[column]) for size, column in zip(self.row_shape, columns, strict=False)]
        out = allocate((len(rows), *(extents if columns else self.row_shape)), self.dtype, is_zeroed=False).array
        with holding(self.resources):
            if isinstance(rows, range):
                for shard, run, places in self.layout.runs(rows):
                    self.variables[shard].read_run(out[places], (run, *columns))
                return out
            buffers = [buffer for shard in self.variables if (buffer := shard.rows_buffer()) is not None]
            if len(buffers) == len(self.variables):
                gather_parts(out, buffers, rows, self.layout.pieces, current_device())
            else:
                for shard, local, at in self.layout.pieces(rows):
                    self.variables[shard].gather_rows(out, local, at)
        return out

    def plan_dense(self, update: Update, value: Array) -> list[Write]:
        """A write of each shard that has rows with its own rows of ``value``."""
        bounds = pairwise(self.layout.bounds)
        return [
            shard.plan_dense(update, value[start:stop])
            for shard, (start, stop) in zip(self.variables, bounds, strict=True)
            if start < stop
        ]

    def plan_sparse(self, update: Update, rows: Ints, values: Array) -> list[Write]:
        """A write of each shard that holds some of the rows; equal rows are written in their order.

        Sorted by row, rows are sorted by shard too, because layouts are contiguous; one sort serves both.
        """
        order: Ints | None = None
        if len(rows) and not _ascends(rows):
            rows, order = sort_rows(rows)
        edges = np.searchsorted(rows, self.layout.bounds).tolist()
        writes = []
        for shard, (low, high) in enumerate(pairwise(edges)):
            if low < high:
                local = rows[low:high] - self.layout.bounds[shard]
                own = (values[low:high], None) if order is None else (values, order[low:high])
                writes.append(self.variables[shard].plan_sparse(update, local, *own))
        return writes


def one_shard(variable: "Variable") -> Shards:
    """A plain variable as the only shard of itself; it must have rows."""
    rows, *row_shape = variable.shape
    return Shards((variable,), RowLayout((0, rows)), tuple(row_shape), variable.dtype)


def layout_of(shards: Sequence["Variable"]) -> RowLayout:
    """The layout of shards that stand one after another along the first axis."""
    return RowLayout.of_sizes([shard.shape[0] for shard in shards])


def _ascends(rows: Ints) -> bool:
    return bool(np.all(rows[1:] >= rows[:-1]))
