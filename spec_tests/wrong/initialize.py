"""Wrong initial values."""

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import change_what_is_found, change_what_is_given, wrong


@wrong("generator", "R-INIT-5-again")
def seed_of_the_clock(self, seed, start):
    """The seed is ignored."""
    return np.random.default_rng()


@wrong("limit", "R-INIT-6")
def fans_of_the_shard(self, shape, part):
    """Glorot's limit is that of the shard."""
    return float(np.sqrt(6 / (part[0] + part[1])))


@wrong("drawn", "R-INIT-4-range")
def uniform_from_zero(self, kind, shape, part, generator):
    """Uniform values lie between 0 and 1."""
    return (
        generator.uniform(0, 1, part)
        if kind == "random_uniform"
        else Right.drawn(self, kind, shape, part, generator)
    )


@wrong("initialize_whole", "R-INIT-2")
def called_for_each_shard(self, function, shape, dtype, num_shards):
    """A callable is called once a shard, and each slices another answer."""
    return [function(tuple(shape), dtype)[a:b] for a, b in self.div(shape[0], num_shards)]


@wrong("initialize_parts", "R-INIT-2-parts")
def whole_is_made_and_sliced(self, function, shape, dtype, num_shards):
    """A partition-aware callable is asked for the whole."""
    whole = function(tuple(shape), dtype, tuple(shape), (0,) * len(shape))
    return [whole[a:b] for a, b in self.div(shape[0], num_shards)]


@wrong("generator", "R-INIT-5-seeds")
def seeds_are_small(self, seed, start):
    """Seeds are numbers of float16."""
    return np.random.default_rng([int(np.float16(min(seed, 65504))), start])


@wrong("drawn", "R-INIT-4-distributions")
def truncated_is_not_truncated(self, kind, shape, part, generator):
    """Truncated normal values are normal values."""
    if kind == "truncated_normal":
        return generator.normal(0, 0.05, part)
    return Right.drawn(self, kind, shape, part, generator)


@wrong("initialize_parts", "R-INIT-4-parts")
def parts_know_no_columns(self, function, shape, dtype, num_shards):
    """The offset of a part has one number, whatever the rank."""
    return [
        function(tuple(shape), dtype, (b - a, *shape[1:]), (a,))
        for a, b in self.div(shape[0], num_shards)
    ]


@wrong("limit", "R-INIT-6")
def kernels_have_no_receptive_field(self, shape, part):
    """The fans are the last two axes."""
    return float(np.sqrt(6 / (shape[-2] + shape[-1])))


change_what_is_given(
    ("initialize_parts", "R-INIT-4-parts", "the_whole_is_not_told",
     "The shape of a part is told in the place of the whole's.",
     "function", lambda function: lambda _shape, *more: function(more[1], *more)),
    ("initialize", "R-INIT-4", "initial_values_are_float32", "Initial values are float32, whatever is asked for.",
     "dtype", lambda: np.float32),
    ("initialize", "R-INIT-5-none", "initial_values_in_one_shard_at_least", "Fewer shards than one are one.",
     "num_shards", lambda num_shards: max(1, num_shards)),
)  # fmt: skip

change_what_is_found(
    ("drawn", "R-INIT-4-constants", "ones_of_the_first_shard", "Ones are a quarter too small.",
     lambda found, kind: found * (0.75 if kind == "ones" else 1)),
)  # fmt: skip


# Written without a look at the rules.


@wrong("drawn", "R-INIT-4-distributions")
def truncated_is_clipped(self, kind, shape, part, generator):
    """Normal values outside the range become its ends."""
    if kind == "truncated_normal":
        return np.clip(generator.normal(0, 0.05, part), -0.1, 0.1)
    return Right.drawn(self, kind, shape, part, generator)


@wrong("generator", "R-INIT-5")
def late_shards_share_a_seed(self, seed, start):
    """All shards behind the second one are drawn from one seed."""
    return np.random.default_rng([seed, min(start, 4)])


@wrong("drawn", "R-INIT-4-distributions")
def columns_repeat(self, kind, shape, part, generator):
    """All columns of a row are alike."""
    found = Right.drawn(self, kind, shape, part, generator)
    if len(part) > 1 and kind == "random_normal":
        found = np.broadcast_to(found[:, :1], part).copy()
    return found


@wrong("initialize_parts", "R-INIT-4-parts-numbers")
def dtype_of_parts_is_float32(self, function, shape, dtype, num_shards):
    """A partition-aware callable is asked for float32, and its answer cast."""
    return [
        p.astype(dtype)
        for p in Right.initialize_parts(self, function, shape, np.dtype("f4"), num_shards)
    ]


@wrong("initialize_whole", "R-INIT-2-shape")
def answers_are_cut_to_size(self, function, shape, dtype, num_shards):
    """An answer of another shape than asked for is cropped."""
    value = np.resize(function(shape, dtype), shape)
    return np.array_split(value, num_shards)


change_what_is_found(
    ("drawn", "R-INIT-4-distributions", "normals_have_a_mean", "Normal values of three axes have the mean 0.01.",
     lambda found, kind, part: found + (0.01 if kind == "random_normal" and len(part) == 3 else 0)),
    ("drawn", "R-INIT-6", "values_in_half_precision", "Random values have sixteen bits.",
     lambda found: found.astype(np.float16).astype(np.float64)),
    ("drawn", "R-INIT-4-distributions", "uniform_ends_early", "Uniform values lie between -0.045 and 0.045.",
     lambda found, kind: found * 0.9 if kind == "random_uniform" else found),
    ("drawn", "R-INIT-4-distributions", "values_come_with_both_signs", "The second half of rows is minus the first.",
     lambda found: np.concatenate([found[: -(-len(found) // 2)], -found[: len(found) // 2]])),
    ("initialize", "R-INIT-4", "a_small_last_shard_is_joined", "A smaller last shard is the one before's.",
     lambda found: [*found[:-2], np.concatenate(found[-2:])] if len(found[-1]) < len(found[0]) else found),
)  # fmt: skip
