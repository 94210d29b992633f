"""Wrong variables, partitioners, lookups and writes; ``mutant_adapters`` says what a mutant is."""

from typing import Any

import numpy as np

from spec_tests.helpers.mutant_adapters import wrong
from spec_tests.helpers.right_adapter import Right

Array = Any


def starts_of(handle: Any) -> Any:
    """The first row of each shard."""
    return np.cumsum([0, *map(len, handle)])[:-1]


@wrong("div", "R-DIV-1")
def remainder_to_the_last(self: Right, length: int, num_shards: int) -> Any:
    """The last shards get the remainder."""
    sizes = [stop - start for start, stop in Right.div(self, length, num_shards)][::-1]
    stops = np.cumsum(sizes).tolist()
    return list(zip([0, *stops[:-1]], stops, strict=True))


@wrong("owner", "R-DIV-1-owner")
def owner_one_too_late(self: Right, ids: Array, length: int, num_shards: int) -> Any:
    """The first row of a shard belongs to the one before."""
    starts = np.array([start for start, stop in self.div(length, num_shards) if start < stop])
    shard = np.maximum(np.searchsorted(starts, ids, side="left") - 1, 0)
    return shard, ids - starts[shard]


@wrong("min_size", "R-PART-3-min")
def minimum_rounded_up(
    self: Right, shape: Any, dtype: Any, min_shard_bytes: int, max_shards: int
) -> Any:
    """The number of parts is rounded up, so that each is too small: TensorFlow's."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return [max(1, min(max_shards, shape[0], -(-nbytes // min_shard_bytes)))] + [1] * (
        len(shape) - 1
    )


@wrong("create", "R-CONCAT-1-dtypes")
def all_is_float32(self: Right, value: Array, num_shards: int) -> Any:
    """A variable is float32, whatever it is given."""
    return Right.create(
        self, value.astype(np.complex64 if value.dtype.kind == "c" else np.float32), num_shards
    )


@wrong("create", "R-CONCAT-1-few")
def empty_shards_are_padded(self: Right, value: Array, num_shards: int) -> Any:
    """A shard without rows gets a row of zeros."""
    return [
        s if len(s) else np.zeros((1, *s.shape[1:]), s.dtype)
        for s in Right.create(self, value, num_shards)
    ]


@wrong("create", "R-DIV-1-shards")
def rows_by_chunk(self: Right, value: Array, num_shards: int) -> Any:
    """PyTorch's rule of division."""
    size = max(1, -(-len(value) // num_shards))
    return [value[n * size : (n + 1) * size].copy() for n in range(num_shards)]


@wrong("create_uneven", "R-SPEC-1-empty-shards")
def empty_shards_are_dropped(self: Right, value: Array, sizes: Any) -> Any:
    """Shards without rows are left out."""
    return Right.create_uneven(self, value, [size for size in sizes if size])


@wrong("index", "R-VAR-1-uneven")
def rows_by_equal_shards(self: Right, handle: Any, key: Any) -> Any:
    """An integer finds its shard by the size of the first one, wherever that leads."""
    if key and isinstance(key[0], int):
        length = sum(map(len, handle))
        shard, row = divmod(key[0] + length * (key[0] < 0), max(1, -(-length // len(handle))))
        if -length <= key[0] < length and shard < len(handle) and row < len(handle[shard]):
            return np.asarray(handle[shard][(row, *key[1:])])
    return Right.index(self, handle, key)


@wrong("index", "R-VAR-1-integers")
def negative_rows_of_the_last_shard(self: Right, handle: Any, key: Any) -> Any:
    """A negative integer counts from the end of the first shard."""
    if key and isinstance(key[0], int) and key[0] < 0:
        return np.asarray(handle[0][(key[0] % len(handle[0]), *key[1:])])
    return Right.index(self, handle, key)


@wrong("index", "R-VAR-1-outside")
def rows_outside_are_the_last(self: Right, handle: Any, key: Any) -> Any:
    """An integer past the end is the last row."""
    length = sum(map(len, handle))
    if key and isinstance(key[0], int):
        key = (min(max(key[0], -length), length - 1), *key[1:])
    return Right.index(self, handle, key)


@wrong("matmul", "R-MATMUL-1-many")
def at_most_ten_products(self: Right, left: Array, handle: Any) -> Any:
    """Shards are multiplied in the order of their names, sorted as text."""
    order = sorted(range(len(handle)), key=str)
    return left @ np.concatenate([handle[n] for n in order])


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


@wrong("lookup", "R-LOOKUP-2")
def rows_in_the_order_of_shards(self: Right, handle: Any, ids: Array) -> Any:
    """Rows come as the shards give them."""
    return Right.lookup(self, handle, np.sort(ids, axis=None).reshape(ids.shape))


@wrong("lookup", "R-LOOKUP-2")
def repeated_ids_once(self: Right, handle: Any, ids: Array) -> Any:
    """Repeated ids are looked up once, and the answer is not spread again."""
    return Right.lookup(self, handle, np.unique(ids))


@wrong("lookup", "R-LOOKUP-2-axes")
def ids_are_flattened(self: Right, handle: Any, ids: Array) -> Any:
    """The axes of the ids are lost."""
    return Right.lookup(self, handle, ids.ravel())


@wrong("lookup", "R-LOOKUP-2-many")
def shards_in_the_order_of_names(self: Right, handle: Any, ids: Array) -> Any:
    """The shards are sorted by their numbers as text."""
    return Right.lookup(self, [handle[n] for n in sorted(range(len(handle)), key=str)], ids)


@wrong("lookup", "R-LOOKUP-2-dtypes")
def one_hot_product(self: Right, handle: Any, ids: Array) -> Any:
    """A lookup is a product with a one-hot matrix, which spreads NaNs."""
    rows = Right.lookup(self, handle, ids)
    if handle[0].dtype.kind == "f" and not np.isfinite(np.concatenate(handle)).all():
        rows = np.full_like(rows, np.nan)
    return rows


@wrong("lookup", "R-LOOKUP-2-dtypes")
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


@wrong("lookup", "R-ID-1")
def zeros_for_ids_outside(self: Right, handle: Any, ids: Array) -> Any:
    """An id that no shard holds gives a row of zeros."""
    inside = (ids >= 0) & (ids < sum(map(len, handle)))
    rows = np.zeros((*ids.shape, *handle[0].shape[1:]), handle[0].dtype)
    rows[inside] = Right.lookup(self, handle, ids[inside])
    return rows


@wrong("read", "R-READ-2")
def read_keeps_the_shard(self: Right, handle: Any) -> Any:
    """Reading a single shard gives the variable's memory."""
    return handle[0] if len(handle) == 1 else Right.read(self, handle)


@wrong("lookup_clipped", "R-LOOKUP-4")
def every_row_is_scaled(self: Right, handle: Any, ids: Array, max_norm: float) -> Any:
    """Rows below the limit are scaled up to it."""
    rows = Right.lookup(self, handle, ids)
    norms = np.sqrt(
        (rows.astype(np.float64) ** 2).sum(axis=tuple(range(1, rows.ndim)), keepdims=True)
    )
    return (rows * (max_norm / np.maximum(norms, 1e-300))).astype(rows.dtype)


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


@wrong("clipped", "R-LOOKUP-4")
def norm_of_all_rows(self: Right, rows: Array, max_norm: float) -> Any:
    """The norm is that of all rows together."""
    norm = np.sqrt((rows.astype(np.float64) ** 2).sum())
    return (rows * min(1.0, max_norm / max(norm, 1e-300))).astype(rows.dtype)


@wrong("divisor", "R-LOOKUP-2-bags")
def mean_by_count(self: Right, combiner: str, weights: Array) -> float:
    """The mean is divided by the number of ids, not by the weights."""
    return float(len(weights)) if combiner == "mean" else Right.divisor(self, combiner, weights)


@wrong("divisor", "R-LOOKUP-2-bags")
def sqrtn_by_the_root_of_the_sum(self: Right, combiner: str, weights: Array) -> float:
    """sqrtn divides by the root of the weights' sum."""
    return (
        float(np.sqrt(weights.sum()))
        if combiner == "sqrtn"
        else Right.divisor(self, combiner, weights)
    )


@wrong("lookup_bags", "R-LOOKUP-2-bags")
def weights_are_whole_numbers(
    self: Right, handle: Any, bags: Any, weights: Any, combiner: str
) -> Any:
    """Weights are rounded up to integers."""
    whole = weights and [[float(np.ceil(weight)) for weight in bag] for bag in weights]
    return Right.lookup_bags(self, handle, bags, whole, combiner)


@wrong("lookup_bags", "R-LOOKUP-2-bags-empty")
def bags_move_up(self: Right, handle: Any, bags: Any, weights: Any, combiner: str) -> Any:
    """Bags after an empty one take its place."""
    found = Right.lookup_bags(self, handle, bags, weights, combiner)
    full = [n for n, bag in enumerate(bags) if bag]
    return np.concatenate(
        [found[full], np.zeros((len(bags) - len(full), found.shape[1]), found.dtype)]
    )


@wrong("lookup_bags", "R-LOOKUP-2-bags")
def repeated_ids_of_a_bag_once(
    self: Right, handle: Any, bags: Any, weights: Any, combiner: str
) -> Any:
    """An id that comes twice in a bag counts once where there are no weights."""
    once = bags if weights else [sorted(set(bag)) for bag in bags]
    return Right.lookup_bags(self, handle, once, weights, combiner)


@wrong("assign", "R-VAR-2-columns")
def columns_are_broadcast(self: Right, handle: Any, value: Array) -> Any:
    """A value of one column is broadcast."""
    return Right.assign(self, handle, np.broadcast_to(value, (len(value), *handle[0].shape[1:])))


@wrong("assign", "R-SV-3-uneven")
def assigned_by_div(self: Right, handle: Any, value: Array) -> None:
    """A value is cut by the div rule, whatever the layout."""
    parts = Right.create(self, value, len(handle))
    Right.assign(self, handle, value)
    for shard, part in zip(handle, parts, strict=True):
        count = min(len(shard), len(part))
        shard[:count] = part[:count]


@wrong("assign", "R-SV-3-assign-dtypes")
def assigned_integers_are_floats(self: Right, handle: Any, value: Array) -> Any:
    """Assigned integers pass through float32."""
    passed = value.astype(np.float32).astype(value.dtype) if value.dtype.kind in "iu" else value
    return Right.assign(self, handle, passed)


@wrong("scatter", "R-SV-3-scatter-update-last")
def first_update_stays(self: Right, handle: Any, op: str, ids: Array, rows: Array) -> Any:
    """Of the updates of one row the first one stays."""
    if op == "update":
        ids, rows = ids[::-1], rows[::-1]
    return Right.scatter(self, handle, op, ids, rows)


@wrong("scatter", "R-SV-3-scatter-add")
def repeated_rows_added_once(self: Right, handle: Any, op: str, ids: Array, rows: Array) -> Any:
    """A row that comes several times is added once."""
    if op == "add":
        ids, first = np.unique(ids, return_index=True)
        rows = rows[first]
    return Right.scatter(self, handle, op, ids, rows)


@wrong("scatter", "R-SV-3-scatter-max")
def max_is_the_last(self: Right, handle: Any, op: str, ids: Array, rows: Array) -> Any:
    """Of several operands of a row, max looks at the last one only."""
    if op == "max":
        last = {row: at for at, row in enumerate(ids.tolist())}
        ids, rows = np.array(list(last), np.int64), rows[list(last.values())]
    return Right.scatter(self, handle, op, ids, rows)


@wrong("scatter", "R-SV-3-scatter-empty-shards")
def scatter_into_the_first_shard_there(
    self: Right, handle: Any, op: str, ids: Array, rows: Array
) -> Any:
    """A write finds the first shard that begins at its start, be it empty, and then has no row
    there."""
    starts = starts_of(handle).tolist()
    there = [
        len(handle[starts.index(max(s for s in starts if s <= i))]) > 0
        for i in ids.tolist()
        if i >= 0
    ]
    if not all(there):
        return handle
    return Right.scatter(self, handle, op, ids, rows)


@wrong("scatter", "R-ID-1-scatter")
def half_a_scatter(self: Right, handle: Any, op: str, ids: Array, rows: Array) -> Any:
    """Rows before a bad id are written before it is noticed."""
    starts = starts_of(handle)
    for at, row in enumerate(ids.tolist()):
        if not 0 <= row < sum(map(len, handle)):
            raise IndexError(row)
        shard = int(np.searchsorted(starts, row, side="right")) - 1
        Right.scatter(
            self, [handle[shard]], op, ids[at : at + 1] - starts[shard], rows[at : at + 1]
        )
    return handle


@wrong("scatter", "R-ID-1-scatter-update")
def bad_updates_are_dropped(self: Right, handle: Any, op: str, ids: Array, rows: Array) -> Any:
    """Updates of rows that are not there are dropped: JAX's rule."""
    inside = (ids >= 0) & (ids < sum(map(len, handle)))
    if op == "update":
        ids, rows = ids[inside], rows[inside]
    return Right.scatter(self, handle, op, ids, rows)
