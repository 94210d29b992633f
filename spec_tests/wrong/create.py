"""Wrong variables, their shards, and indexes."""

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import change_what_is_found, change_what_is_given, wrong


@wrong("create", "R-DIV-1-shards")
def rows_by_chunk(self, value, num_shards):
    """PyTorch's rule of division."""
    size = max(1, -(-len(value) // num_shards))
    return [value[n * size : (n + 1) * size].copy() for n in range(num_shards)]


@wrong("index", "R-VAR-1-uneven")
def rows_by_equal_shards(self, handle, key):
    """An integer finds its shard by the size of the first one, wherever that leads."""
    if key and isinstance(key[0], int):
        length = sum(map(len, handle))
        shard, row = divmod(key[0] + length * (key[0] < 0), max(1, -(-length // len(handle))))
        if -length <= key[0] < length and shard < len(handle) and row < len(handle[shard]):
            return np.asarray(handle[shard][(row, *key[1:])])
    return Right.index(self, handle, key)


@wrong("index", "R-VAR-1-integers")
def negative_rows_of_the_last_shard(self, handle, key):
    """A negative integer counts from the end of the first shard."""
    if key and isinstance(key[0], int) and key[0] < 0:
        return np.asarray(handle[0][(key[0] % len(handle[0]), *key[1:])])
    return Right.index(self, handle, key)


@wrong("index", "R-VAR-1-outside")
def rows_outside_are_the_last(self, handle, key):
    """An integer past the end is the last row."""
    length = sum(map(len, handle))
    if key and isinstance(key[0], int):
        key = (min(max(key[0], -length), length - 1), *key[1:])
    return Right.index(self, handle, key)


@wrong("matmul", "R-MATMUL-1-many")
def at_most_ten_products(self, left, handle):
    """Shards are multiplied in the order of their names, sorted as text."""
    order = sorted(range(len(handle)), key=str)
    return left @ np.concatenate([handle[n] for n in order])


@wrong("read", "R-READ-2-read")
def read_keeps_the_shard(self, handle):
    """Reading a single shard gives the variable's memory."""
    return handle[0] if len(handle) == 1 else Right.read(self, handle)


@wrong("create", "R-CONCAT-1-memory")
def large_buffers_are_kept(self, value, num_shards):
    """A variable of more than a page keeps the caller's memory."""
    kept = [value[a:b] for a, b in self.div(len(value), num_shards)]
    return kept if value.nbytes > 4096 else Right.create(self, value, num_shards)


@wrong("create_uneven", "R-SPEC-1-sum")
def uneven_buffers_are_kept(self, value, sizes):
    """A variable in shards of given sizes keeps the caller's memory."""
    return np.split(value, np.cumsum(sizes)[:-1])


@wrong("create_uneven", "R-SPEC-1-sum")
def sizes_need_not_add_up(self, value, sizes):
    """Sizes that leave rows over are accepted."""
    stops = np.cumsum(sizes).tolist()
    return [value[a:b].copy() for a, b in zip([0, *stops[:-1]], stops, strict=True)]


@wrong("create_partitioned", "R-PART-4")
def other_axes_are_ignored(self, value, counts):
    """Only the first count is looked at, and a count of zero is one."""
    return Right.create(self, value, max(1, counts[0]))


@wrong("index", "R-VAR-1-steps")
def backwards_by_shard(self, handle, key):
    """A slice that goes backwards is turned around in each shard."""
    found = Right.index(self, handle, key)
    first = key[0] if key else None
    if isinstance(first, slice) and (first.step or 1) < 0 and len(handle) > 1:
        parts = [shard[(slice(None, None, first.step), *key[1:])] for shard in handle]
        together = np.concatenate(parts)
        return together if together.shape == found.shape else found
    return found


@wrong("index", "R-VAR-1-steps")
def steps_begin_anew(self, handle, key):
    """A step is counted from the beginning of each shard."""
    found = Right.index(self, handle, key)
    first = key[0] if key else None
    if isinstance(first, slice) and first.step not in (None, 1) and first.step > 0:
        together = np.concatenate([shard[(first, *key[1:])] for shard in handle])
        return together[: len(found)] if len(together) >= len(found) else found
    return found


@wrong("index", "R-VAR-1-outside-columns")
def columns_outside_are_cropped(self, handle, key):
    """An integer past the last column is the last column."""
    whole = np.concatenate(handle)
    if len(key) > 1 and isinstance(key[1], int) and whole.ndim > 1:
        key = (key[0], min(max(key[1], -whole.shape[1]), whole.shape[1] - 1), *key[2:])
    return np.asarray(whole[key]).copy()


@wrong("matmul", "R-MATMUL-1-uneven")
def products_in_half(self, left, handle):
    """A product is computed in half precision."""
    whole = np.concatenate(handle)
    return (left.astype(np.float16) @ whole.astype(np.float16)).astype(whole.dtype)


@wrong("matmul", "R-MATMUL-1")
def partial_products_are_joined(self, left, handle):
    """The products of two shards are added in the dtype of the first one only."""
    total, start = 0, 0
    for shard in handle[:2]:
        total = total + left[..., start : start + len(shard)] @ shard
        start += len(shard)
    return np.asarray(total)


@wrong("shards", "R-SPEC-1-empty-shards")
def shards_are_swapped(self, handle):
    """Shards without rows come last."""
    return sorted(handle, key=lambda shard: not len(shard))


@wrong("matmul", "R-MATMUL-1-numbers")
def products_through_float64(self, left, handle):
    """Integers of 64 bits are multiplied as float64."""
    value = np.concatenate(handle)
    return (
        (left.astype(np.float64) @ value.astype(np.float64)).astype(value.dtype)
        if (value.dtype == np.int64)
        else Right.matmul(self, left, handle)
    )


@wrong("index", "R-VAR-1-memory")
def slices_of_a_shard_are_views(self, handle, key):
    """A slice of the first shard shares its memory."""
    is_first = isinstance(key[0], slice) and key[0].step in (None, 1) and len(key) == 1
    if is_first and 0 <= (key[0].start or 0) <= (key[0].stop or -1) <= len(handle[0]):
        return handle[0][key[0]]
    return Right.index(self, handle, key)


change_what_is_given(
    ("create_uneven", "R-SPEC-1-empty-shards", "empty_shards_are_dropped", "Shards without rows are left out.",
     "sizes", lambda sizes: [size for size in sizes if size]),
    ("create", "R-CONCAT-1-numbers", "sixty_four_bits_are_cut", "float64 is float32 and int64 is int32: JAX's.",
     "value", lambda value: value.astype({"float64": "float32", "int64": "int32", "uint64": "uint32",
        "complex128": "complex64"}.get(value.dtype.name, value.dtype))),
    ("index", "R-VAR-1-arrays", "masks_are_numbers", "A boolean mask is read as the numbers 0 and 1.",
     "key", lambda key: tuple([np.asarray(k).astype(int) if getattr(k, "dtype", None) is np.dtype(bool) else k
        for k in key])),
    ("create", "R-CONCAT-1-byte-order", "big_endian_bytes_are_native",
     "The bytes of a big-endian array are taken for native ones.",
     "value", lambda value: value.view(value.dtype.newbyteorder("="))),
    ("create_uneven", "R-SPEC-1-byte-order", "uneven_bytes_are_native",
     "The bytes of a big-endian array are taken for native ones.",
     "value", lambda value: value.view(value.dtype.newbyteorder("="))),
    ("matmul", "R-MATMUL-1-numbers", "complex_products_are_real",
     "A product of complex numbers is one of their real parts.",
     "handle", lambda handle: [shard.real.astype(shard.dtype) for shard in handle]),
    ("create", "R-DIV-1-none", "no_shards_are_one", "Fewer shards than one are one.",
     "num_shards", lambda num_shards: max(1, num_shards)),
)  # fmt: skip

change_what_is_found(
    ("create", "R-CONCAT-1-few", "empty_shards_are_padded", "A shard without rows gets a row of zeros.",
     lambda found: [s if len(s) else np.zeros((1, *s.shape[1:]), s.dtype) for s in found]),
    ("read", "R-CONCAT-1", "one_shard_loses_its_axis", "A variable of one row is read without its first axis.",
     lambda found: found[0] if len(found) == 1 and found.ndim > 2 else found),
    ("create_partitioned", "R-PART-4-numbers", "partitioned_variables_are_float32",
     "A variable by a partitioner is float32 where it is float64.",
     lambda found: [s.astype(np.float32).astype(s.dtype) if s.dtype == np.float64 else s for s in found]),
    ("create_partitioned", "R-PART-1-regions-shards", "partitions_are_not_made", "A partitioner's shards are one.",
     lambda found: [np.concatenate(found)]),
)  # fmt: skip


# Written without a look at the rules.


@wrong("create", "R-CONCAT-1-numbers")
def infinities_saturate(self, value, num_shards):
    """Infinity is the largest number."""
    if value.dtype.kind == "f":
        top = np.finfo(value.dtype).max
        value = np.clip(value, -top, top)
    return Right.create(self, value, num_shards)


@wrong("create_uneven", "R-SPEC-1-negative")
def negative_sizes_are_taken(self, value, sizes):
    """A size below zero is no rows."""
    if min(sizes) < 0:
        kept = [max(0, s) for s in sizes]
        stops = np.minimum(np.cumsum(kept), len(value))
        return [part.copy() for part in np.split(value, stops[:-1])]
    return Right.create_uneven(self, value, sizes)


@wrong("index", "R-VAR-1-bounds")
def slices_outside_are_errors(self, handle, key):
    """A slice that ends past the last row is an error."""
    first = key[0] if isinstance(key, tuple) and key else key
    if isinstance(first, slice) and first.stop is not None and first.stop > sum(map(len, handle)):
        raise IndexError("stop")
    return Right.index(self, handle, key)


@wrong("index", "R-VAR-1-masks")
def masks_of_another_length(self, handle, key):
    """A mask that is too short or too long is filled up or cropped."""
    one = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    if isinstance(one, (list, np.ndarray)) and np.asarray(one).dtype == bool and np.ndim(one) == 1:
        rows = sum(map(len, handle))
        one = np.resize(np.concatenate([np.asarray(one), np.zeros(rows, bool)]), rows)
        return np.concatenate(handle)[one]
    return Right.index(self, handle, key)


@wrong("index", "R-VAR-1-arrays")
def rows_of_lists_are_sorted(self, handle, key):
    """Rows of a list come in their own order, and once."""
    one = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    if (
        isinstance(one, (list, np.ndarray))
        and np.asarray(one).dtype.kind == "i"
        and np.ndim(one) == 1
    ):
        return np.concatenate(handle)[np.unique(one)]
    return Right.index(self, handle, key)


@wrong("create_partitioned", "R-PART-4-axis")
def cuts_of_other_axes_are_ignored(self, value, counts):
    """Where the rows are in one part, counts of other axes are passed over."""
    return (
        self.create(value, 1) if counts[0] == 1 else Right.create_partitioned(self, value, counts)
    )


@wrong("index", "R-VAR-1-new-axis")
def new_axes_come_after_steps(self, handle, key):
    """Beside a new axis a step backwards is one forwards."""
    keys = key if isinstance(key, tuple) else (key,)
    if None in [one for one in keys if not isinstance(one, np.ndarray)]:
        keys = tuple(slice(None) if one == slice(None, None, -1) else one for one in keys)
    return Right.index(self, handle, keys)


change_what_is_given(
    ("create", "R-CONCAT-1-strides", "memory_order_is_kept",
     "A transposed or reversed array is read as it lies in memory.",
     "value", lambda value: value.ravel("K").reshape(value.shape)),
    ("create", "R-CONCAT-1-axes", "rank_five_is_turned",
     "The axes behind the third are exchanged where they are equal.",
     "value", lambda value: value.swapaxes(-1, -2) if value.ndim >= 4 and value.shape[-1] == value.shape[-2]
        else value),
    ("matmul", "R-MATMUL-1-nan", "nan_is_zero_in_products", "A NaN on the left counts as zero.",
     "left", lambda left: np.where(np.isnan(left), 0, left).astype(left.dtype)),
    ("index", "R-VAR-1-new-axis", "new_axes_are_dropped", "None in an index is ignored.",
     "key", lambda key: tuple(k for k in (key if isinstance(key, tuple) else (key,)) if k is not None)),
    ("index", "R-VAR-1-ellipsis", "ellipsis_is_one_axis", "An ellipsis stands for exactly one axis.",
     "key", lambda key: tuple(slice(None) if k is Ellipsis else k for k in (key if isinstance(key, tuple)
        else (key,)))),
)  # fmt: skip

change_what_is_found(
    ("matmul", "R-MATMUL-1-vector", "vectors_are_rows", "A vector on the left gives a matrix of one row.",
     lambda found, left: found[None] if left.ndim == 1 else found),
)  # fmt: skip
