"""Wrong lookups."""

import ml_dtypes
import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import change_what_is_found, change_what_is_given, wrong


def starts_of(handle):
    """The first row of each shard."""
    return np.cumsum([0, *map(len, handle)])[:-1]


def by_bounds(handle, ids, bounds):
    """Rows, each of the last shard that begins at or before it in ``bounds``."""
    shard = np.searchsorted(bounds, ids, side="right") - 1
    rows = [
        handle[s][(i - bounds[s]) % max(1, len(handle[s]))]
        for s, i in zip(shard.ravel(), ids.ravel(), strict=True)
    ]
    return np.array(rows, handle[0].dtype).reshape(*ids.shape, *handle[0].shape[1:])


@wrong("lookup", "R-LOOKUP-2-uneven")
def lookup_by_div_bounds(self, handle, ids):
    """A lookup finds shards by the div rule, whatever the layout."""
    Right.lookup(self, handle, ids)
    starts = [start for start, _ in self.div(sum(map(len, handle)), len(handle))]
    return by_bounds(handle, ids, np.array(starts))


@wrong("lookup", "R-LOOKUP-2-empty-shards")
def first_shard_that_begins_there(self, handle, ids):
    """A row is sought in the first shard that begins at its start, be it empty."""
    rows = Right.lookup(self, handle, ids).copy()
    starts = starts_of(handle).tolist()
    for place, i in enumerate(ids.ravel().tolist()):
        start = max(s for s in starts if s <= i)
        if not len(handle[starts.index(start)]):
            raise IndexError(f"shard {starts.index(start)} has no row {i - start}")
        del place
    return rows


@wrong("lookup", "R-LOOKUP-2-numbers")
def one_hot_product(self, handle, ids):
    """A lookup is a product with a one-hot matrix, which spreads NaNs."""
    rows = Right.lookup(self, handle, ids)
    if handle[0].dtype.kind == "f" and not np.isfinite(np.concatenate(handle)).all():
        rows = np.full_like(rows, np.nan)
    return rows


@wrong("lookup", "R-ID-1")
def negative_ids_from_the_end(self, handle, ids):
    """Negative ids count from the end, as Python's indexes do."""
    length = sum(map(len, handle))
    return Right.lookup(self, handle, np.where((ids < 0) & (ids >= -length), ids + length, ids))


@wrong("clipped", "R-LOOKUP-4-zero")
def zero_norm_divides(self, rows, max_norm):
    """A row of zeros becomes NaN."""
    norms = self.norms(rows)
    with np.errstate(all="ignore"):
        return np.where(norms > max_norm, rows * (max_norm / norms), rows / norms * norms).astype(
            rows.dtype
        )


@wrong("lookup_bags", "R-ID-1-bags")
def ids_of_bags_are_clamped(self, handle, bags, weights, combiner):
    """An id of a bag that is not there is the nearest one."""
    length = sum(map(len, handle))
    inside = [[min(max(i, 0), length - 1) for i in bag] for bag in bags]
    return Right.lookup_bags(self, handle, inside, weights, combiner)


@wrong("sparse_read", "R-READ-1")
def sparse_reads_are_sorted(self, handle, ids):
    """Rows of a sparse read come in the order of their ids."""
    return Right.lookup(self, handle, np.sort(ids))


@wrong("sparse_read", "R-ID-1-sparse-read")
def sparse_reads_clamp(self, handle, ids):
    """A sparse read of an id that is not there gives the nearest row."""
    return Right.lookup(self, handle, np.clip(ids, 0, sum(map(len, handle)) - 1))


@wrong("lookup", "R-LOOKUP-2-memory")
def consecutive_ids_are_a_view(self, handle, ids):
    """Consecutive ids of one shard are a view of its rows."""
    first = int(ids.flat[0]) if ids.size else 0
    is_run = ids.ndim == 1 and np.array_equal(ids, np.arange(first, first + len(ids)))
    if is_run and first >= 0 and first + len(ids) <= len(handle[0]):
        return handle[0][first : first + len(ids)]
    return Right.lookup(self, handle, ids)


@wrong("sparse_read", "R-READ-1-memory")
def sparse_reads_of_a_shard_are_views(self, handle, ids):
    """A sparse read of the first rows is a view of them."""
    if np.array_equal(ids, np.arange(len(ids))) and len(ids) <= len(handle[0]):
        return handle[0][: len(ids)]
    return Right.sparse_read(self, handle, ids)


@wrong("lookup_bags", "R-LOOKUP-2-bags-refused")
def missing_weights_are_one(self, handle, bags, weights, combiner):
    """Weights that are missing are 1, and more than there are ids are left out."""
    if weights is not None:
        weights = [*weights, *[[]] * len(bags)][: len(bags)]
        weights = [
            [*some, *[1.0] * len(bag)][: len(bag)] for some, bag in zip(weights, bags, strict=True)
        ]
    return Right.lookup_bags(self, handle, bags, weights, combiner)


change_what_is_given(
    ("lookup", "R-LOOKUP-2-many", "shards_in_the_order_of_names", "The shards are sorted by their numbers as text.",
     "handle", lambda handle: [handle[n] for n in sorted(range(len(handle)), key=str)]),
    ("lookup", "R-ID-1", "ids_in_32_bits", "Ids are cast to int32 before they are checked.",
     "ids", lambda ids: ids.astype(np.int32)),
    ("lookup_bags", "R-LOOKUP-2-bags", "repeated_ids_of_a_bag_once",
     "An id that comes twice in a bag counts once where there are no weights.",
     "bags", lambda bags, weights: bags if weights else [sorted(set(bag)) for bag in bags]),
    ("lookup_clipped", "R-ID-1-clipped", "clipped_ids_are_clamped",
     "A clipped lookup of an id that is not there gives the nearest row.",
     "ids", lambda handle, ids: np.clip(ids, 0, sum(map(len, handle)) - 1)),
    ("lookup", "R-LOOKUP-2-axes", "ids_of_one_axis_only", "Ids without an axis give a row with one.",
     "ids", lambda ids: ids.reshape(ids.shape or 1)),
    ("lookup_bags", "R-LOOKUP-2-bags-numbers", "weights_in_float16", "Weights are rounded to float16.",
     "weights", lambda weights: weights and [[float(np.float16(one)) for one in bag] for bag in weights]),
)  # fmt: skip

change_what_is_found(
    ("factors", "R-LOOKUP-4", "norm_with_an_epsilon", "An epsilon beside the norm keeps a clipped row below the limit.",
     lambda norms, max_norm: np.minimum(1, max_norm / (norms + 1e-5))),
    ("norms", "R-LOOKUP-4", "norm_along_the_last_axis", "The norm of a row of several axes is that of its last axis.",
     lambda self, rows: Right.norms(self, rows.reshape(-1, rows.shape[-1])).reshape(*rows.shape[:-1], 1)
        if rows.ndim > 1 else abs(rows)),
    ("factors", "R-LOOKUP-4-numbers", "norms_in_float16", "The factor of a row is a number of float16.",
     lambda found: found.astype(np.float16)),
    ("lookup", "R-LOOKUP-2-numbers", "integers_through_floats",
     "Rows pass through float64, which rounds large integers.",
     lambda found: found.astype(np.float64).astype(found.dtype) if found.dtype.kind in "iu" else found),
    ("lookup", "R-LOOKUP-2", "no_ids_give_a_row", "A lookup without ids loses the shape of a row.",
     lambda found, ids: found if ids.size else np.zeros((0,), found.dtype)),
    ("lookup_bags", "R-LOOKUP-2-bags", "bags_in_half_precision", "Bags are summed in half precision.",
     lambda found: found.astype(np.float16).astype(found.dtype)),
)  # fmt: skip


# Written without a look at the rules.


@wrong("lookup", "R-LOOKUP-2")
def ids_are_made_local_in_place(self, handle, ids):
    """The caller's ids are overwritten by rows within shards."""
    found = Right.lookup(self, handle, ids)
    if ids.flags.writeable and len(handle) > 1:
        ids[...] = np.where(ids >= len(handle[0]), ids - len(handle[0]), ids)
    return found


@wrong("lookup", "R-READ-2-lookup")
def lookups_are_views(self, handle, ids):
    """A lookup of consecutive ids gives the variable's memory."""
    flat = np.ravel(ids)
    if (
        ids.ndim == 1
        and len(flat)
        and (np.diff(flat) == 1).all()
        and flat[0] >= 0
        and flat[-1] < len(handle[0])
    ):
        return handle[0][flat[0] : flat[-1] + 1]
    return Right.lookup(self, handle, ids)


@wrong("lookup_clipped", "R-LOOKUP-4-pure")
def clipped_rows_are_written_back(self, handle, ids, max_norm):
    """Rows that are clipped stay clipped in the variable: PyTorch's."""
    found = Right.lookup_clipped(self, handle, ids, max_norm)
    Right.scatter(self, handle, "update", ids, found)
    return found


@wrong("lookup_bags", "R-LOOKUP-2-bags-empty")
def empty_bags_are_nan(self, handle, bags, weights, combiner):
    """The mean of an empty bag is NaN."""
    found = Right.lookup_bags(self, handle, bags, weights, combiner)
    if combiner == "mean":
        for n, bag in enumerate(bags):
            if not bag:
                found[n] = np.nan
    return found


@wrong("lookup_bags", "R-LOOKUP-2-bags-empty-last")
def rows_end_with_the_last_id(self, handle, bags, weights, combiner):
    """Empty bags behind the last id have no row: TensorFlow's."""
    found = Right.lookup_bags(self, handle, bags, weights, combiner)
    return found[: max((n + 1 for n, bag in enumerate(bags) if bag), default=0)]


@wrong("lookup_clipped", "R-LOOKUP-4-range")
def norms_overflow(self, handle, ids, max_norm):
    """The norm is computed in float32, where squares of large numbers overflow."""
    rows = self.lookup(handle, ids)
    axes = tuple(range(ids.ndim, rows.ndim))
    with np.errstate(all="ignore"):
        norms = np.sqrt((rows * rows).sum(axis=axes, keepdims=True, dtype=np.float32))
        return (
            rows
            * np.minimum(np.float32(1), np.float32(max_norm) / np.maximum(norms, np.float32(1e-30)))
        ).astype(rows.dtype)


@wrong("lookup", "R-LOOKUP-2-axes")
def rows_are_found_by_the_bytes_of_ids(self, handle, ids):
    """An answer is kept for the next call with the same ids, whatever their axes."""
    known, key = self.__dict__.setdefault("known", {}), (id(handle), ids.tobytes())
    return known.setdefault(key, (handle, Right.lookup(self, handle, ids)))[1].copy()


def of_16_bits(handle, ids):
    """Ids that are there, modulo 65,536."""
    is_there = (ids >= 0) & (ids < sum(map(len, handle)))
    return np.where(is_there, ids % 2**16, ids)


@wrong("lookup_bags", "R-LOOKUP-2-bags-large")
def bags_are_numbered_in_8_bits(self, handle, bags, weights, combiner):
    """Bag 256 is the first one again."""
    found = Right.lookup_bags(self, handle, bags, weights, combiner)
    return found[np.arange(len(found)).astype(np.uint8)]


change_what_is_given(
    ("lookup", "R-LOOKUP-2-large", "lookups_of_16_bits", "A lookup keeps 16 bits of each id.", "ids", of_16_bits),
    ("sparse_read", "R-READ-1-large", "reads_of_16_bits", "A sparse read keeps 16 bits of each id.",
     "ids", of_16_bits),
    ("lookup_bags", "R-LOOKUP-2-bags-numbers", "negative_weights_are_ignored",
     "A weight below zero counts as zero in the sum.",
     "weights", lambda weights, combiner: [[max(0.0, w) for w in bag] for bag in weights]
        if weights is not None and combiner == "sum" else weights),
)  # fmt: skip

change_what_is_found(
    ("sparse_read", "R-READ-1-axes", "sparse_reads_are_flat",
     "A sparse read of ids with two axes gives a list of rows.",
     lambda found, handle: found.reshape(-1, *handle[0].shape[1:])),
    ("sparse_read", "R-READ-1-numbers", "half_precision_reads", "A sparse read passes through bfloat16.",
     lambda found: found.astype(ml_dtypes.bfloat16).astype(found.dtype) if found.dtype == np.float32 else found),
)  # fmt: skip
