"""Wrong initial values."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import wrong

Array = Any


@wrong("generator", "R-INIT-5-again")
def seed_of_the_clock(self: Right, seed: int, start: int) -> Any:
    """The seed is ignored."""
    return np.random.default_rng()


@wrong("limit", "R-INIT-6")
def fans_of_the_shard(self: Right, shape: Sequence[int], part: Sequence[int]) -> float:
    """Glorot's limit is that of the shard."""
    return float(np.sqrt(6 / (part[0] + part[1])))


@wrong("drawn", "R-INIT-4-range")
def uniform_from_zero(self: Right, kind: str, shape: Any, part: Any, generator: Any) -> Array:
    """Uniform values lie between 0 and 1."""
    return (
        generator.uniform(0, 1, part)
        if kind == "random_uniform"
        else Right.drawn(self, kind, shape, part, generator)
    )


@wrong("drawn", "R-INIT-4-constants")
def ones_of_the_first_shard(self: Right, kind: str, shape: Any, part: Any, generator: Any) -> Array:
    """Ones are a quarter too small."""
    return Right.drawn(self, kind, shape, part, generator) * (0.75 if kind == "ones" else 1)


@wrong("initialize_whole", "R-INIT-2")
def called_for_each_shard(
    self: Right, function: Any, shape: Any, dtype: Any, num_shards: int
) -> Any:
    """A callable is called once a shard, and each slices another answer."""
    return [function(tuple(shape), dtype)[a:b] for a, b in self.div(shape[0], num_shards)]


@wrong("initialize_parts", "R-INIT-4-parts")
def offsets_in_shards(self: Right, function: Any, shape: Any, dtype: Any, num_shards: int) -> Any:
    """Offsets are computed as if all shards had the size of their own."""
    rest = tuple(shape[1:])
    bounds = enumerate(self.div(shape[0], num_shards))
    return [
        function(tuple(shape), dtype, (b - a, *rest), (n * (b - a), *[0] * len(rest)))
        for n, (a, b) in bounds
    ]


@wrong("initialize_parts", "R-INIT-2-parts")
def whole_is_made_and_sliced(
    self: Right, function: Any, shape: Any, dtype: Any, num_shards: int
) -> Any:
    """A partition-aware callable is asked for the whole."""
    whole = function(tuple(shape), dtype, tuple(shape), (0,) * len(shape))
    return [whole[a:b] for a, b in self.div(shape[0], num_shards)]


@wrong("generator", "R-INIT-5-seeds")
def seeds_are_small(self: Right, seed: int, start: int) -> Any:
    """Only the last bit of a seed counts."""
    return np.random.default_rng([seed & 1, start])


@wrong("drawn", "R-INIT-4-distributions")
def truncated_is_not_truncated(
    self: Right, kind: str, shape: Any, part: Any, generator: Any
) -> Any:
    """Truncated normal values are normal values."""
    if kind == "truncated_normal":
        return generator.normal(0, 0.05, part)
    return Right.drawn(self, kind, shape, part, generator)


@wrong("initialize", "R-INIT-4")
def initial_values_are_float32(
    self: Right, kind: str, shape: Any, dtype: Any, num_shards: int, seed: int
) -> Any:
    """Initial values are float32, whatever is asked for."""
    return Right.initialize(self, kind, shape, np.float32, num_shards, seed)


@wrong("initialize_parts", "R-INIT-4-parts")
def parts_know_no_columns(
    self: Right, function: Any, shape: Any, dtype: Any, num_shards: int
) -> Any:
    """The offset of a part has one number, whatever the rank."""
    return [
        function(tuple(shape), dtype, (b - a, *shape[1:]), (a,))
        for a, b in self.div(shape[0], num_shards)
    ]


@wrong("limit", "R-INIT-6")
def kernels_have_no_receptive_field(self: Right, shape: Any, part: Any) -> float:
    """The fans are the last two axes."""
    return float(np.sqrt(6 / (shape[-2] + shape[-1])))


@wrong("initialize", "R-INIT-5-none")
def initial_values_in_one_shard_at_least(
    self: Right, kind: str, shape: Any, dtype: Any, num_shards: int, seed: int
) -> Any:
    """Fewer shards than one are one."""
    return Right.initialize(self, kind, shape, dtype, max(1, num_shards), seed)
