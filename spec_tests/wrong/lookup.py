"""Wrong lookups."""

from typing import Any

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import wrong

Array = Any


def starts_of(handle: Any) -> Any:
    """The first row of each shard."""
    return np.cumsum([0, *map(len, handle)])[:-1]


def by_bounds(handle: Any, ids: Array, bounds: Any) -> Array:
    """Rows, each of the last shard that begins at or before it in ``bounds``."""
    shard = np.searchsorted(bounds, ids, side="right") - 1
    rows = [
        handle[s][(i - bounds[s]) % max(1, len(handle[s]))]
        for s, i in zip(shard.ravel(), ids.ravel(), strict=True)
    ]
    return np.array(rows, handle[0].dtype).reshape(*ids.shape, *handle[0].shape[1:])


@wrong("lookup", "R-LOOKUP-2-uneven")
def lookup_by_div_bounds(self: Right, handle: Any, ids: Array) -> Any:
    """A lookup finds shards by the div rule, whatever the layout."""
    Right.lookup(self, handle, ids)
    starts = [start for start, _ in self.div(sum(map(len, handle)), len(handle))]
    return by_bounds(handle, ids, np.array(starts))


@wrong("lookup", "R-LOOKUP-2-empty-shards")
def first_shard_that_begins_there(self: Right, handle: Any, ids: Array) -> Any:
    """A row is sought in the first shard that begins at its start, be it empty."""
    rows = Right.lookup(self, handle, ids).copy()
    starts = starts_of(handle).tolist()
    for place, i in enumerate(ids.ravel().tolist()):
        start = max(s for s in starts if s <= i)
        if not len(handle[starts.index(start)]):
            raise IndexError(f"shard {starts.index(start)} has no row {i - start}")
        del place
    return rows


@wrong("lookup", "R-LOOKUP-2-many")
def shards_in_the_order_of_names(self: Right, handle: Any, ids: Array) -> Any:
    """The shards are sorted by their numbers as text."""
    return Right.lookup(self, [handle[n] for n in sorted(range(len(handle)), key=str)], ids)


@wrong("lookup", "R-LOOKUP-2-numbers")
def one_hot_product(self: Right, handle: Any, ids: Array) -> Any:
    """A lookup is a product with a one-hot matrix, which spreads NaNs."""
    rows = Right.lookup(self, handle, ids)
    if handle[0].dtype.kind == "f" and not np.isfinite(np.concatenate(handle)).all():
        rows = np.full_like(rows, np.nan)
    return rows


@wrong("lookup", "R-LOOKUP-2-numbers")
def integers_through_floats(self: Right, handle: Any, ids: Array) -> Any:
    """Rows pass through float64, which rounds large integers."""
    rows = Right.lookup(self, handle, ids)
    return rows.astype(np.float64).astype(rows.dtype) if rows.dtype.kind in "iu" else rows


@wrong("lookup", "R-ID-1")
def ids_in_32_bits(self: Right, handle: Any, ids: Array) -> Any:
    """Ids are cast to int32 before they are checked."""
    return Right.lookup(self, handle, ids.astype(np.int32))


@wrong("lookup", "R-ID-1")
def negative_ids_from_the_end(self: Right, handle: Any, ids: Array) -> Any:
    """Negative ids count from the end, as Python's indexes do."""
    length = sum(map(len, handle))
    return Right.lookup(self, handle, np.where((ids < 0) & (ids >= -length), ids + length, ids))


@wrong("clipped", "R-LOOKUP-4")
def norm_with_an_epsilon(self: Right, rows: Array, max_norm: float) -> Any:
    """An epsilon beside the norm keeps a clipped row below the limit."""
    norms = np.sqrt(
        (rows.astype(np.float64) ** 2).sum(axis=tuple(range(1, rows.ndim)), keepdims=True)
    )
    return (rows * np.minimum(1, max_norm / (norms + 1e-5))).astype(rows.dtype)


@wrong("clipped", "R-LOOKUP-4-zero")
def zero_norm_divides(self: Right, rows: Array, max_norm: float) -> Any:
    """A row of zeros becomes NaN."""
    norms = np.sqrt(
        (rows.astype(np.float64) ** 2).sum(axis=tuple(range(1, rows.ndim)), keepdims=True)
    )
    with np.errstate(all="ignore"):
        return np.where(norms > max_norm, rows * (max_norm / norms), rows / norms * norms).astype(
            rows.dtype
        )


@wrong("lookup_bags", "R-LOOKUP-2-bags")
def repeated_ids_of_a_bag_once(
    self: Right, handle: Any, bags: Any, weights: Any, combiner: str
) -> Any:
    """An id that comes twice in a bag counts once where there are no weights."""
    once = bags if weights else [sorted(set(bag)) for bag in bags]
    return Right.lookup_bags(self, handle, once, weights, combiner)


@wrong("lookup_bags", "R-ID-1-bags")
def ids_of_bags_are_clamped(
    self: Right, handle: Any, bags: Any, weights: Any, combiner: str
) -> Any:
    """An id of a bag that is not there is the nearest one."""
    length = sum(map(len, handle))
    inside = [[min(max(i, 0), length - 1) for i in bag] for bag in bags]
    return Right.lookup_bags(self, handle, inside, weights, combiner)


@wrong("lookup_clipped", "R-ID-1-clipped")
def clipped_ids_are_clamped(self: Right, handle: Any, ids: Array, max_norm: float) -> Any:
    """A clipped lookup of an id that is not there gives the nearest row."""
    inside = np.clip(ids, 0, sum(map(len, handle)) - 1)
    return Right.lookup_clipped(self, handle, inside, max_norm)


@wrong("clipped", "R-LOOKUP-4")
def norm_along_the_last_axis(self: Right, rows: Array, max_norm: float) -> Any:
    """The norm of a row of several axes is that of its last axis."""
    axes = rows.ndim - 1 if rows.ndim > 1 else ()
    norms = np.sqrt((rows.astype(np.float64) ** 2).sum(axis=axes, keepdims=True))
    return (rows * np.minimum(1, max_norm / np.maximum(norms, 1e-300))).astype(rows.dtype)


@wrong("sparse_read", "R-READ-1")
def sparse_reads_are_sorted(self: Right, handle: Any, ids: Array) -> Any:
    """Rows of a sparse read come in the order of their ids."""
    return Right.lookup(self, handle, np.sort(ids))


@wrong("sparse_read", "R-ID-1-sparse-read")
def sparse_reads_clamp(self: Right, handle: Any, ids: Array) -> Any:
    """A sparse read of an id that is not there gives the nearest row."""
    return Right.lookup(self, handle, np.clip(ids, 0, sum(map(len, handle)) - 1))


@wrong("lookup", "R-LOOKUP-2-axes")
def ids_of_one_axis_only(self: Right, handle: Any, ids: Array) -> Any:
    """Ids without an axis give a row with one."""
    return Right.lookup(self, handle, np.atleast_1d(ids))


@wrong("lookup", "R-LOOKUP-2")
def no_ids_give_a_row(self: Right, handle: Any, ids: Array) -> Any:
    """A lookup without ids loses the shape of a row."""
    rows = Right.lookup(self, handle, ids)
    return rows if ids.size else np.zeros((0,), rows.dtype)


@wrong("lookup_bags", "R-LOOKUP-2-bags")
def bags_in_half_precision(self: Right, handle: Any, bags: Any, weights: Any, combiner: str) -> Any:
    """Bags are summed in half precision."""
    found = Right.lookup_bags(self, handle, bags, weights, combiner)
    return found.astype(np.float16).astype(found.dtype)


@wrong("lookup", "R-LOOKUP-2-memory")
def consecutive_ids_are_a_view(self: Right, handle: Any, ids: Array) -> Any:
    """Consecutive ids of one shard are a view of its rows."""
    first = int(ids.flat[0]) if ids.size else 0
    is_run = ids.ndim == 1 and np.array_equal(ids, np.arange(first, first + len(ids)))
    if is_run and first >= 0 and first + len(ids) <= len(handle[0]):
        return handle[0][first : first + len(ids)]
    return Right.lookup(self, handle, ids)


@wrong("sparse_read", "R-READ-1-memory")
def sparse_reads_of_a_shard_are_views(self: Right, handle: Any, ids: Array) -> Any:
    """A sparse read of the first rows is a view of them."""
    if np.array_equal(ids, np.arange(len(ids))) and len(ids) <= len(handle[0]):
        return handle[0][: len(ids)]
    return Right.sparse_read(self, handle, ids)


@wrong("lookup_bags", "R-LOOKUP-2-bags-numbers")
def weights_in_float16(self: Right, handle: Any, bags: Any, weights: Any, combiner: str) -> Any:
    """Weights are rounded to float16."""
    rounded = weights and [[float(np.float16(one)) for one in bag] for bag in weights]
    return Right.lookup_bags(self, handle, bags, rounded, combiner)


@wrong("lookup_bags", "R-LOOKUP-2-bags-refused")
def missing_weights_are_one(
    self: Right, handle: Any, bags: Any, weights: Any, combiner: str
) -> Any:
    """Weights that are missing are 1, and more than there are ids are left out."""
    if weights is not None:
        weights = [*weights, *[[]] * len(bags)][: len(bags)]
        weights = [
            [*some, *[1.0] * len(bag)][: len(bag)] for some, bag in zip(weights, bags, strict=True)
        ]
    return Right.lookup_bags(self, handle, bags, weights, combiner)


@wrong("clipped", "R-LOOKUP-4-numbers")
def norms_in_float16(self: Right, rows: Array, max_norm: float) -> Array:
    """The factor of a row is a number of float16."""
    norms = np.sqrt(
        (rows.astype(np.float64) ** 2).sum(axis=tuple(range(1, rows.ndim)), keepdims=True)
    )
    factors = np.minimum(1, max_norm / np.maximum(norms, 1e-300)).astype(np.float16)
    return (rows * factors.astype(rows.dtype)).astype(rows.dtype)
