"""Wrong partitioners and the div rule."""

from itertools import pairwise
from typing import Any

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import change_what_is_found, change_what_is_given, wrong


@wrong("div", "R-DIV-1")
def remainder_to_the_last(self, length, num_shards):
    """The last shards get the remainder."""
    sizes = [stop - start for start, stop in Right.div(self, length, num_shards)][::-1]
    stops = np.cumsum(sizes).tolist()
    return list(zip([0, *stops[:-1]], stops, strict=True))


@wrong("owner", "R-DIV-1-owner")
def owner_one_too_late(self, ids, length, num_shards):
    """The first row of a shard belongs to the one before."""
    starts = np.array([start for start, stop in self.div(length, num_shards) if start < stop])
    shard = np.maximum(np.searchsorted(starts, ids, side="left") - 1, 0)
    return shard, ids - starts[shard]


@wrong("min_size", "R-PART-3-min")
def minimum_rounded_up(self, shape, dtype, min_shard_bytes, max_shards):
    """The number of parts is rounded up, so that each is too small: TensorFlow's."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return [max(1, min(max_shards, shape[0], -(-nbytes // min_shard_bytes)))] + [1] * (
        len(shape) - 1
    )


@wrong("max_size", "R-PART-1-max-few")
def one_part_too_many(self, shape, dtype, max_shard_bytes, max_shards):
    """A tensor that fits exactly gets a part more."""
    first, *rest = Right.max_size(self, shape, dtype, max_shard_bytes, max_shards)
    return [min(first + 1, shape[0], max_shards), *rest]


@wrong("fixed_shards", "R-PART-1-fixed-few")
def no_part_without_rows(self, shape, dtype, num_shards):
    """More shards than rows are zero parts."""
    return [num_shards if num_shards <= shape[0] else 0] + [1] * (len(shape) - 1)


@wrong("div", "R-DIV-1-refused")
def no_shards_is_no_error(self, length, num_shards):
    """Nothing is divided into no shards."""
    return Right.div(self, length, num_shards) if num_shards > 0 else []


@wrong("div", "R-DIV-1-large")
def lengths_in_floats(self, length, num_shards):
    """Bounds are rounded from float32, which large lengths do not fit."""
    stops = np.cumsum([b - a for a, b in Right.div(self, length, num_shards)])
    rounded = [int(np.float32(stop)) for stop in stops]
    return list(zip([0, *rounded[:-1]], rounded, strict=True))


@wrong("regions", "R-PART-1-regions")
def last_axes_by_chunk(self, shape, counts):
    """Axes but the first are divided into ranges of one size, and a last one that is smaller."""
    found: Any = [((), ())]
    for axis, (extent, count) in enumerate(zip(shape, counts, strict=True)):
        size = max(1, -(-extent // count))
        parts = [(min(extent, n * size), min(extent, n * size + size)) for n in range(count)]
        parts = parts if axis else self.div(extent, count)
        found = [((*o, a), (*s, b - a)) for o, s in found for a, b in parts]
    return found


def in_32_bits(number):
    """A number as a signed integer of 32 bits."""
    return int(np.int64(number).astype(np.int32))


def row_in_32_bits(shape, dtype):
    """The bytes of a row, of which the lower 32 bits are known."""
    return max(in_32_bits(np.prod(shape[1:], dtype=np.int64) * np.dtype(dtype).itemsize), 0)


@wrong("min_size", "R-PART-3-upper-large")
def least_bytes_in_32_bits(self, shape, dtype, least, most):
    """The bytes of a row are a signed integer of 32 bits."""
    row = row_in_32_bits(shape, dtype)
    fits = [n for n in range(1, min(most, shape[0]) + 1) if shape[0] // n * row >= least]
    return self.fixed_shards(shape, dtype, max(fits, default=1))


@wrong("max_size", "R-PART-1-max-large")
def most_bytes_in_32_bits(self, shape, dtype, limit, most):
    """The bytes of a row are a signed integer of 32 bits."""
    row = row_in_32_bits(shape, dtype)
    fits = [n for n in range(1, shape[0] + 1) if -(-shape[0] // n) * row <= limit]
    return self.fixed_shards(shape, dtype, min(min(fits, default=shape[0]), most))


@wrong("div", "R-DIV-1-huge")
def rows_in_float64(self, length, num_shards):
    """Lengths are divided as numbers of float64."""
    if length < 2**53:
        return Right.div(self, length, num_shards)
    size = int(length / num_shards)
    stops = [*range(size, size * num_shards, size), length]
    return list(zip([0, *stops[:-1]], stops, strict=True))


change_what_is_given(
    ("owner", "R-ID-1-owner", "owners_are_clipped", "An id that is not there belongs to the nearest shard.",
     "ids", lambda ids, length: np.clip(ids, 0, max(0, length - 1))),
    ("owner", "R-DIV-1-owner-axes", "owners_of_flat_ids", "The axes of the ids are lost.",
     "ids", lambda ids: ids.ravel()),
    ("div", "R-DIV-1-refused", "negative_lengths_are_empty", "A length below zero is divided as zero is.",
     "length", lambda length: max(0, length)),
    ("regions", "R-PART-1-regions-huge", "extents_in_32_bits", "Extents are 32-bit numbers.",
     "shape", lambda shape: [abs(in_32_bits(extent)) for extent in shape]),
)  # fmt: skip


# Written without a look at the rules.


@wrong("div", "R-DIV-1")
def empty_shards_come_first(self, length, num_shards):
    """With fewer rows than shards the first shards are empty."""
    sizes = [b - a for a, b in Right.div(self, length, num_shards)]
    if length < num_shards:
        sizes = sizes[::-1]
    stops = np.cumsum([0, *sizes]).tolist()
    return list(pairwise(stops))


@wrong("owner", "R-DIV-1-owner-large")
def owners_in_32_bits(self, ids, length, num_shards):
    """Rows and ids are 32-bit numbers."""
    shard, row = Right.owner(self, ids, length, num_shards)
    return shard, row.astype(np.int32).astype(np.int64)


@wrong("max_size", "R-PART-1-max")
def limits_below_a_row_are_errors(self, shape, dtype, max_shard_bytes, max_shards):
    """A limit smaller than a row is an error."""
    if int(np.prod(shape[1:], dtype=int)) * np.dtype(dtype).itemsize > max_shard_bytes:
        raise ValueError("too small")
    return Right.max_size(self, shape, dtype, max_shard_bytes, max_shards)


@wrong("min_size", "R-PART-3-min")
def minimum_of_the_first_part(self, shape, dtype, min_shard_bytes, max_shards):
    """Only the first part, which is the largest, need hold the minimum."""
    row = int(np.prod(shape[1:], dtype=int)) * np.dtype(dtype).itemsize
    fits = [
        n
        for n in range(1, min(max_shards, shape[0]) + 1)
        if -(-shape[0] // n) * row >= min_shard_bytes
    ]
    return self.fixed_shards(shape, dtype, max(fits, default=1))


change_what_is_given(
    ("owner", "R-DIV-1-owner", "owners_of_sorted_ids", "The answer is in the order of sorted ids.",
     "ids", lambda ids: np.sort(ids, axis=None).reshape(np.shape(ids))),
    ("regions", "R-PART-1-regions-axes", "at_most_two_axes_are_cut", "Counts behind the second axis are taken as 1.",
     "counts", lambda counts: [*counts[:2], *[1] * (len(counts) - 2)]),
    ("regions", "R-PART-1-regions-refused", "counts_of_another_rank",
     "Missing counts are 1, and surplus ones are ignored.",
     "counts", lambda shape, counts: ([*counts] + [1] * len(shape))[:len(shape)]),
)  # fmt: skip

change_what_is_found(
    ("regions", "R-PART-1-regions-few", "empty_regions_are_left_out", "Regions without elements are dropped.",
     lambda found: [each for each in found if 0 not in each[1]] or found[:1]),
)  # fmt: skip
