"""Wrong implementations of the family initialize that were written without a look at the rules."""

from typing import Any

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import wrong

Array = Any


@wrong("drawn", "R-INIT-4-distributions")
def normals_have_a_mean(self: Right, kind: str, shape: Any, part: Any, generator: Any) -> Any:
    """Normal values have the mean 0.01."""
    return Right.drawn(self, kind, shape, part, generator) + (
        0.01 if kind == "random_normal" else 0
    )


@wrong("drawn", "R-INIT-4-distributions")
def truncated_is_clipped(self: Right, kind: str, shape: Any, part: Any, generator: Any) -> Any:
    """Normal values outside the range become its ends."""
    if kind == "truncated_normal":
        return np.clip(generator.normal(0, 0.05, part), -0.1, 0.1)
    return Right.drawn(self, kind, shape, part, generator)


@wrong("generator", "R-INIT-5")
def late_shards_share_a_seed(self: Right, seed: int, start: int) -> Any:
    """All shards behind the second one are drawn from one seed."""
    return np.random.default_rng([seed, min(start, 4)])


@wrong("drawn", "R-INIT-6")
def values_in_half_precision(self: Right, kind: str, shape: Any, part: Any, generator: Any) -> Any:
    """Random values have sixteen bits."""
    return Right.drawn(self, kind, shape, part, generator).astype(np.float16).astype(np.float64)


@wrong("drawn", "R-INIT-4-distributions")
def columns_repeat(self: Right, kind: str, shape: Any, part: Any, generator: Any) -> Any:
    """All columns of a row are alike."""
    found = Right.drawn(self, kind, shape, part, generator)
    if len(part) > 1 and kind == "random_normal":
        found = np.broadcast_to(found[:, :1], part).copy()
    return found


@wrong("drawn", "R-INIT-4-distributions")
def uniform_ends_early(self: Right, kind: str, shape: Any, part: Any, generator: Any) -> Any:
    """Uniform values lie between -0.045 and 0.045."""
    found = Right.drawn(self, kind, shape, part, generator)
    return found * 0.9 if kind == "random_uniform" else found


@wrong("initialize_parts", "R-INIT-4-parts-numbers")
def dtype_of_parts_is_float32(
    self: Right, function: Any, shape: Any, dtype: Any, num_shards: int
) -> Any:
    """A partition-aware callable is asked for float32, and its answer cast."""
    return [
        p.astype(dtype)
        for p in Right.initialize_parts(self, function, shape, np.dtype("f4"), num_shards)
    ]


@wrong("initialize_whole", "R-INIT-2-shape")
def answers_are_cut_to_size(
    self: Right, function: Any, shape: Any, dtype: Any, num_shards: int
) -> Any:
    """An answer of another shape than asked for is cropped."""
    value = np.resize(function(shape, dtype), shape)
    return np.array_split(value, num_shards)
