"""Wrong variables, their shards, and indexes."""

from typing import Any

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import wrong

Array = Any


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


@wrong("read", "R-READ-2-read")
def read_keeps_the_shard(self: Right, handle: Any) -> Any:
    """Reading a single shard gives the variable's memory."""
    return handle[0] if len(handle) == 1 else Right.read(self, handle)


@wrong("create", "R-CONCAT-1-memory")
def buffers_are_kept(self: Right, value: Array, num_shards: int) -> Any:
    """A variable keeps the caller's memory."""
    return [value[a:b] for a, b in self.div(len(value), num_shards)]


@wrong("create_uneven", "R-SPEC-1-sum")
def uneven_buffers_are_kept(self: Right, value: Array, sizes: Any) -> Any:
    """A variable in shards of given sizes keeps the caller's memory."""
    return np.split(value, np.cumsum(sizes)[:-1])


@wrong("create_uneven", "R-SPEC-1-sum")
def sizes_need_not_add_up(self: Right, value: Array, sizes: Any) -> Any:
    """Sizes that leave rows over are accepted."""
    stops = np.cumsum(sizes).tolist()
    return [value[a:b].copy() for a, b in zip([0, *stops[:-1]], stops, strict=True)]


@wrong("create", "R-CONCAT-1-numbers")
def sixty_four_bits_are_cut(self: Right, value: Array, num_shards: int) -> Any:
    """float64 is float32 and int64 is int32: JAX's."""
    narrow = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}
    return Right.create(self, value.astype(narrow.get(value.dtype.name, value.dtype)), num_shards)


@wrong("create_partitioned", "R-PART-4")
def other_axes_are_ignored(self: Right, value: Array, counts: Any) -> Any:
    """Only the first count is looked at, and a count of zero is one."""
    return Right.create(self, value, max(1, counts[0]))


@wrong("index", "R-VAR-1-steps")
def backwards_by_shard(self: Right, handle: Any, key: Any) -> Any:
    """A slice that goes backwards is turned around in each shard."""
    found = Right.index(self, handle, key)
    first = key[0] if key else None
    if isinstance(first, slice) and (first.step or 1) < 0 and len(handle) > 1:
        parts = [shard[(slice(None, None, first.step), *key[1:])] for shard in handle]
        together = np.concatenate(parts)
        return together if together.shape == found.shape else found
    return found


@wrong("index", "R-VAR-1-steps")
def steps_begin_anew(self: Right, handle: Any, key: Any) -> Any:
    """A step is counted from the beginning of each shard."""
    found = Right.index(self, handle, key)
    first = key[0] if key else None
    if isinstance(first, slice) and first.step not in (None, 1) and first.step > 0:
        together = np.concatenate([shard[(first, *key[1:])] for shard in handle])
        return together[: len(found)] if len(together) >= len(found) else found
    return found


@wrong("index", "R-VAR-1-arrays")
def masks_are_numbers(self: Right, handle: Any, key: Any) -> Any:
    """A boolean mask is read as the numbers 0 and 1."""
    number = [
        np.asarray(k).astype(int) if getattr(k, "dtype", None) is np.dtype(bool) else k for k in key
    ]
    return Right.index(self, handle, tuple(number))


@wrong("index", "R-VAR-1-outside-columns")
def columns_outside_are_cropped(self: Right, handle: Any, key: Any) -> Any:
    """An integer past the last column is the last column."""
    whole = np.concatenate(handle)
    if len(key) > 1 and isinstance(key[1], int) and whole.ndim > 1:
        key = (key[0], min(max(key[1], -whole.shape[1]), whole.shape[1] - 1), *key[2:])
    return np.asarray(whole[key]).copy()


@wrong("matmul", "R-MATMUL-1-uneven")
def products_in_half(self: Right, left: Array, handle: Any) -> Any:
    """A product is computed in half precision."""
    whole = np.concatenate(handle)
    return (left.astype(np.float16) @ whole.astype(np.float16)).astype(whole.dtype)


@wrong("matmul", "R-MATMUL-1")
def partial_products_are_joined(self: Right, left: Array, handle: Any) -> Any:
    """The products of two shards are added in the dtype of the first one only."""
    total, start = 0, 0
    for shard in handle[:2]:
        total = total + left[..., start : start + len(shard)] @ shard
        start += len(shard)
    return np.asarray(total)


@wrong("shards", "R-SPEC-1-empty-shards")
def shards_are_swapped(self: Right, handle: Any) -> Any:
    """Shards without rows come last."""
    return sorted(handle, key=lambda shard: not len(shard))


@wrong("read", "R-CONCAT-1")
def one_shard_loses_its_axis(self: Right, handle: Any) -> Any:
    """A variable of one row is read without its first axis."""
    whole = Right.read(self, handle)
    return whole[0] if len(whole) == 1 and whole.ndim > 2 else whole


@wrong("create", "R-CONCAT-1-byte-order")
def big_endian_bytes_are_native(self: Right, value: Array, num_shards: int) -> Any:
    """The bytes of a big-endian array are taken for native ones."""
    return Right.create(self, value.view(value.dtype.newbyteorder("=")), num_shards)


@wrong("create_uneven", "R-SPEC-1-byte-order")
def uneven_bytes_are_native(self: Right, value: Array, sizes: Any) -> Any:
    """The bytes of a big-endian array are taken for native ones."""
    return Right.create_uneven(self, value.view(value.dtype.newbyteorder("=")), sizes)


@wrong("matmul", "R-MATMUL-1-numbers")
def products_through_float64(self: Right, left: Array, handle: Any) -> Any:
    """Integers of 64 bits are multiplied as float64."""
    value = np.concatenate(handle)
    return (
        (left.astype(np.float64) @ value.astype(np.float64)).astype(value.dtype)
        if (value.dtype == np.int64)
        else Right.matmul(self, left, handle)
    )


@wrong("matmul", "R-MATMUL-1-numbers")
def complex_products_are_real(self: Right, left: Array, handle: Any) -> Any:
    """A product of complex numbers is one of their real parts."""
    return Right.matmul(self, left, [shard.real.astype(shard.dtype) for shard in handle])


@wrong("create", "R-DIV-1-none")
def no_shards_are_one(self: Right, value: Array, num_shards: int) -> Any:
    """Fewer shards than one are one."""
    return Right.create(self, value, max(1, num_shards))


@wrong("index", "R-VAR-1-memory")
def slices_of_a_shard_are_views(self: Right, handle: Any, key: Any) -> Any:
    """A slice of the first shard shares its memory."""
    is_first = isinstance(key[0], slice) and key[0].step in (None, 1) and len(key) == 1
    if is_first and 0 <= (key[0].start or 0) <= (key[0].stop or -1) <= len(handle[0]):
        return handle[0][key[0]]
    return Right.index(self, handle, key)


@wrong("create_partitioned", "R-PART-4-numbers")
def partitioned_variables_are_float32(self: Right, value: Array, counts: Any) -> Any:
    """A variable by a partitioner is float32 where it is float64."""
    made = Right.create_partitioned(self, value, counts)
    return [s.astype(np.float32).astype(s.dtype) if s.dtype == np.float64 else s for s in made]
