"""Wrong implementations of the family lookup that were written without a look at the rules."""

from typing import Any

import ml_dtypes
import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import wrong

Array = Any


@wrong("lookup", "R-LOOKUP-2")
def ids_are_made_local_in_place(self: Right, handle: Any, ids: Array) -> Any:
    """The caller's ids are overwritten by rows within shards."""
    found = Right.lookup(self, handle, ids)
    if ids.flags.writeable and len(handle) > 1:
        ids[...] = np.where(ids >= len(handle[0]), ids - len(handle[0]), ids)
    return found


@wrong("lookup", "R-READ-2-lookup")
def lookups_are_views(self: Right, handle: Any, ids: Array) -> Any:
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
def clipped_rows_are_written_back(self: Right, handle: Any, ids: Array, max_norm: float) -> Any:
    """Rows that are clipped stay clipped in the variable: PyTorch's."""
    found = Right.lookup_clipped(self, handle, ids, max_norm)
    Right.scatter(self, handle, "update", ids, found)
    return found


@wrong("lookup_bags", "R-LOOKUP-2-bags-empty")
def empty_bags_are_nan(self: Right, handle: Any, bags: Any, weights: Any, combiner: str) -> Any:
    """The mean of an empty bag is NaN."""
    found = Right.lookup_bags(self, handle, bags, weights, combiner)
    if combiner == "mean":
        for n, bag in enumerate(bags):
            if not bag:
                found[n] = np.nan
    return found


@wrong("lookup_bags", "R-LOOKUP-2-bags-numbers")
def negative_weights_are_ignored(
    self: Right, handle: Any, bags: Any, weights: Any, combiner: str
) -> Any:
    """A weight below zero counts as zero in the sum."""
    if weights is not None and combiner == "sum":
        weights = [[max(0.0, w) for w in bag] for bag in weights]
    return Right.lookup_bags(self, handle, bags, weights, combiner)


@wrong("lookup_clipped", "R-LOOKUP-4-range")
def norms_overflow(self: Right, handle: Any, ids: Array, max_norm: float) -> Any:
    """The norm is computed in float32, where squares of large numbers overflow."""
    rows = self.lookup(handle, ids)
    axes = tuple(range(ids.ndim, rows.ndim))
    with np.errstate(all="ignore"):
        norms = np.sqrt((rows * rows).sum(axis=axes, keepdims=True, dtype=np.float32))
        return (
            rows
            * np.minimum(np.float32(1), np.float32(max_norm) / np.maximum(norms, np.float32(1e-30)))
        ).astype(rows.dtype)


@wrong("sparse_read", "R-READ-1-axes")
def sparse_reads_are_flat(self: Right, handle: Any, ids: Array) -> Any:
    """A sparse read of ids with two axes gives a list of rows."""
    found = Right.sparse_read(self, handle, ids)
    return found.reshape(-1, *handle[0].shape[1:])


@wrong("sparse_read", "R-READ-1-numbers")
def half_precision_reads(self: Right, handle: Any, ids: Array) -> Any:
    """A sparse read passes through bfloat16."""
    found = Right.sparse_read(self, handle, ids)
    return (
        found.astype(ml_dtypes.bfloat16).astype(found.dtype) if found.dtype == np.float32 else found
    )
