"""Wrong implementations of the family partition that were written without a look at the rules."""

from itertools import pairwise
from typing import Any

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import wrong

Array = Any


@wrong("div", "R-DIV-1")
def empty_shards_come_first(self: Right, length: int, num_shards: int) -> Any:
    """With fewer rows than shards the first shards are empty."""
    sizes = [b - a for a, b in Right.div(self, length, num_shards)]
    if length < num_shards:
        sizes = sizes[::-1]
    stops = np.cumsum([0, *sizes]).tolist()
    return list(pairwise(stops))


@wrong("owner", "R-DIV-1-owner")
def owners_of_sorted_ids(self: Right, ids: Array, length: int, num_shards: int) -> Any:
    """The answer is in the order of sorted ids."""
    return Right.owner(self, np.sort(ids, axis=None).reshape(np.shape(ids)), length, num_shards)


@wrong("owner", "R-DIV-1-owner-large")
def owners_in_32_bits(self: Right, ids: Array, length: int, num_shards: int) -> Any:
    """Rows and ids are 32-bit numbers."""
    shard, row = Right.owner(self, ids, length, num_shards)
    return shard, row.astype(np.int32).astype(np.int64)


@wrong("regions", "R-PART-1-regions-axes")
def at_most_two_axes_are_cut(self: Right, shape: Any, counts: Any) -> Any:
    """Counts behind the second axis are taken as 1."""
    return Right.regions(self, shape, [*counts[:2], *[1] * (len(counts) - 2)])


@wrong("regions", "R-PART-1-regions-few")
def empty_regions_are_left_out(self: Right, shape: Any, counts: Any) -> Any:
    """Regions without elements are dropped."""
    found = Right.regions(self, shape, counts)
    return [each for each in found if 0 not in each[1]] or found[:1]


@wrong("regions", "R-PART-1-regions-refused")
def counts_of_another_rank(self: Right, shape: Any, counts: Any) -> Any:
    """Missing counts are 1, and surplus ones are ignored."""
    return Right.regions(self, shape, ([*counts] + [1] * len(shape))[: len(shape)])


@wrong("max_size", "R-PART-1-max")
def limits_below_a_row_are_errors(
    self: Right, shape: Any, dtype: Any, max_shard_bytes: int, max_shards: int
) -> Any:
    """A limit smaller than a row is an error."""
    if int(np.prod(shape[1:], dtype=int)) * np.dtype(dtype).itemsize > max_shard_bytes:
        raise ValueError("too small")
    return Right.max_size(self, shape, dtype, max_shard_bytes, max_shards)


@wrong("min_size", "R-PART-3-min")
def minimum_of_the_first_part(
    self: Right, shape: Any, dtype: Any, min_shard_bytes: int, max_shards: int
) -> Any:
    """Only the first part, which is the largest, need hold the minimum."""
    row = int(np.prod(shape[1:], dtype=int)) * np.dtype(dtype).itemsize
    fits = [
        n
        for n in range(1, min(max_shards, shape[0]) + 1)
        if -(-shape[0] // n) * row >= min_shard_bytes
    ]
    return self.fixed_shards(shape, dtype, max(fits, default=1))
