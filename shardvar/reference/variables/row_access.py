"""Reading and writing rows that lie in several shards. A plain variable is read as its own only
shard.

1. ``RowLayout`` says which shard holds which rows.
2. Each shard that holds some of the rows is asked only for its part, in its own row numbers.
3. A read holds the mutexes of all shards, so it never sees half of a write. A write returns one
   list of plans, which ``commit`` performs at once.

``RowShard`` lists what this module asks of a shard. Every ``Variable`` provides it.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from shardvar.layout.dtypes import Array, Ints
from shardvar.reference.devices import Buffer, allocate, current_device, gather_parts
from shardvar.reference.variables.index import Rows
from shardvar.reference.variables.row_layout import RowLayout
from shardvar.reference.variables.updates import UpdateKind
from shardvar.reference.variables.writes import Resource, Write, holding


class RowShard(Protocol):
    """A variable as a sharded variable uses it. Row numbers are the shard's own."""

    @property
    def resources(self) -> tuple[Resource, ...]:
        """The resources that hold the value."""

    def read_range(self, out: Array, ranges: tuple[slice, ...]) -> None:
        """``out[...] = value[ranges]``, a slice for each of the first axes."""

    def rows_buffer(self) -> Buffer | None:
        """Return the buffer whose rows are the value's; None if a read does more than copy."""

    def gather_rows(self, out: Array, rows: Ints, places: Ints | None) -> None:
        """``out[places] = value[rows]``; places None means all of ``out``."""

    def plan_writes(self, update: UpdateKind, value: Array) -> list[Write]:
        """Return the writes that combine all elements with ``value``."""

    def plan_row_writes(
        self, update: UpdateKind, rows: Ints, values: Array, order: Ints | None = None
    ) -> list[Write]:
        """Return the writes that combine ascending rows with ``values[order]``."""


S = TypeVar("S", bound=RowShard)


@dataclass(frozen=True, slots=True, eq=False)
class ShardGroup(Generic[S]):
    """The shards of one value, in the order of their rows."""

    variables: tuple[S, ...]
    """The shards; empty ones are among them."""
    row_layout: RowLayout
    """Which rows each shard holds."""
    row_shape: tuple[int, ...]
    """The shape of one row."""
    dtype: np.dtype[Any]
    """The dtype of every shard."""

    @property
    def resources(self) -> tuple[Resource, ...]:
        """The resources of all shards."""
        return tuple(resource for shard in self.variables for resource in shard.resources)

    def read_rows(self, rows: Rows, columns: tuple[slice, ...] = ()) -> Array:
        """Return the rows, which are in range, in their order, on the current device.

        Only the shards that hold some of them are asked. ``columns``, one slice an axis, may be
        given where rows are a range: of each row only these are read.

        R-MOVE-1: what crosses to the current device is these rows and nothing else.
        """
        # Plan: memory for the result, on the current device, whose limit is checked first. If
        # slice(2, 9, 3) is read of a row of 10 columns, 3 are read: columns 2, 5 and 8.
        extents = [
            len(range(size)[column]) for size, column in zip(self.row_shape, columns, strict=False)
        ]
        out = allocate(
            (len(rows), *(extents if columns else self.row_shape)), self.dtype, is_zeroed=False
        ).array
        # Move, one message for each shard that holds some of the rows.
        with holding(self.resources):
            if isinstance(rows, range):
                for shard, local, places in self.row_layout.split_range(rows):
                    self.variables[shard].read_range(out[places], (local, *columns))
                return out
            # Plain resources are gathered together, in row blocks that stay in the processor's
            # cache. Other kinds of shards compute their rows, so each is asked by itself.
            buffers = [
                buffer for shard in self.variables if (buffer := shard.rows_buffer()) is not None
            ]
            if len(buffers) == len(self.variables):
                gather_parts(out, buffers, rows, self.row_layout.split_rows, current_device())
            else:
                for shard, numbers, at in self.row_layout.split_rows(rows):
                    self.variables[shard].gather_rows(out, numbers, at)
        return out

    def plan_writes(self, update: UpdateKind, value: Array) -> list[Write]:
        """Return the writes of each shard that has rows, with its own rows of ``value``."""
        bounds = pairwise(self.row_layout.bounds)
        return [
            write
            for shard, (start, stop) in zip(self.variables, bounds, strict=True)
            if start < stop
            for write in shard.plan_writes(update, value[start:stop])
        ]

    def plan_row_writes(
        self, update: UpdateKind, rows: Ints, values: Array, order: Ints | None = None
    ) -> list[Write]:
        """Return the writes of each shard that holds some of the ascending rows, in their order.

        Shards hold contiguous rows, so ascending rows are already grouped by shard: bounds (0, 3,
        5) and the rows [0, 2, 2, 4] have the edges [0, 3, 4], and shard 0 gets the first three
        rows.
        """
        edges = np.searchsorted(rows, self.row_layout.bounds).tolist()
        writes = []
        for shard, (low, high) in enumerate(pairwise(edges)):
            if low < high:
                local = rows[low:high] - self.row_layout.bounds[shard]
                own = (values[low:high], None) if order is None else (values, order[low:high])
                writes += self.variables[shard].plan_row_writes(update, local, *own)
        return writes


def read_rows_of(
    shard: RowShard,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    rows: Rows,
    columns: tuple[slice, ...],
) -> Array:
    """Return rows of a plain variable, which is the only shard of itself."""
    return ShardGroup((shard,), RowLayout((0, shape[0])), shape[1:], dtype).read_rows(rows, columns)
