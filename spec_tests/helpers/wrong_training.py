"""Wrong optimizers and initializers; ``mutant_adapters`` says what a mutant is."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from spec_tests.helpers.mutant_adapters import wrong
from spec_tests.helpers.right_adapter import Right

Array = Any
Slots = dict[str, Any]


@wrong("stepped", "R-OPT-5-formula-momentum")
def every_optimizer_is_sgd(
    self: Right, kind: str, value: Array, gradient: Array, slots: Slots, step: int
) -> Array:
    """Momentum, Adagrad and Adam are SGD."""
    return self.sgd_step(value, gradient, slots, step)


@wrong("sgd_step", "R-OPT-5-formula")
def sgd_climbs(self: Right, value: Array, gradient: Array, slots: Slots, step: int) -> Array:
    """The gradient is added."""
    return value + 0.1 * gradient


@wrong("sgd_step", "R-OPT-5-formula")
def rate_decays(self: Right, value: Array, gradient: Array, slots: Slots, step: int) -> Array:
    """The rate is divided by the step."""
    return value - 0.1 / step * gradient


@wrong("sgd_step", "R-OPT-5-formula")
def weights_decay(self: Right, value: Array, gradient: Array, slots: Slots, step: int) -> Array:
    """The value decays with every step."""
    return value * (1 - 1e-3) - 0.1 * gradient


@wrong("momentum_step", "R-OPT-5-formula-momentum")
def momentum_is_nesterov(
    self: Right, value: Array, gradient: Array, slots: Slots, step: int
) -> Array:
    """Momentum looks ahead."""
    slots["momentum"] = 0.9 * slots["momentum"] - 0.1 * gradient
    return value + 0.9 * slots["momentum"] - 0.1 * gradient


@wrong("momentum_step", "R-OPT-5-formula-momentum")
def momentum_is_dampened(
    self: Right, value: Array, gradient: Array, slots: Slots, step: int
) -> Array:
    """Gradients enter the average with a tenth of their weight."""
    slots["momentum"] = 0.9 * slots["momentum"] - 0.1 * 0.1 * gradient
    return value + slots["momentum"]


@wrong("momentum_step", "R-OPT-5-formula-momentum")
def momentum_one_step_late(
    self: Right, value: Array, gradient: Array, slots: Slots, step: int
) -> Array:
    """A step uses the momentum of the one before."""
    before = slots["momentum"]
    slots["momentum"] = 0.9 * before - 0.1 * gradient
    return value + before


@wrong("adagrad_step", "R-OPT-5-formula-adagrad")
def squares_do_not_add_up(
    self: Right, value: Array, gradient: Array, slots: Slots, step: int
) -> Array:
    """Adagrad divides by the last gradient alone."""
    slots["accumulator"] = 0.1 + gradient**2
    return value - 0.1 * gradient / (np.sqrt(slots["accumulator"]) + 1e-7)


@wrong("adagrad_step", "R-OPT-5-formula-adagrad")
def squares_without_a_root(
    self: Right, value: Array, gradient: Array, slots: Slots, step: int
) -> Array:
    """Adagrad divides by the squares, not by their root."""
    slots["accumulator"] = slots["accumulator"] + gradient**2
    return value - 0.1 * gradient / (slots["accumulator"] + 1e-7)


@wrong("adagrad_step", "R-OPT-5-formula-adagrad")
def divided_before_it_is_squared(
    self: Right, value: Array, gradient: Array, slots: Slots, step: int
) -> Array:
    """Adagrad divides by the squares before the step."""
    divisor = np.sqrt(slots["accumulator"]) + 1e-7
    slots["accumulator"] = slots["accumulator"] + gradient**2
    return value - 0.1 * gradient / divisor


@wrong("new_slots", "R-OPT-5-formula-adagrad")
def first_square_is_one(self: Right, kind: str, shard: Array) -> Slots:
    """Adagrad's squares begin at 1."""
    slots = Right.new_slots(self, kind, shard)
    return {
        name: np.ones_like(slot) if name == "accumulator" else slot for name, slot in slots.items()
    }


@wrong("adam_step", "R-OPT-5-formula-adam")
def adam_keeps_its_bias(
    self: Right, value: Array, gradient: Array, slots: Slots, step: int
) -> Array:
    """The averages are not corrected."""
    slots["m"] = 0.9 * slots["m"] + 0.1 * gradient
    slots["v"] = 0.999 * slots["v"] + 0.001 * gradient**2
    return value - 0.1 * slots["m"] / (np.sqrt(slots["v"]) + 1e-8)


@wrong("adam_step", "R-OPT-5-formula-adam")
def correction_one_step_late(
    self: Right, value: Array, gradient: Array, slots: Slots, step: int
) -> Array:
    """The bias is corrected by the next step's divisor."""
    return Right.adam_step(self, value, gradient, slots, step + 1)


@wrong("adam_step", "R-OPT-5-formula-adam")
def correction_counts_from_one_again(
    self: Right, value: Array, gradient: Array, slots: Slots, step: int
) -> Array:
    """The bias is always corrected as in the first step."""
    return Right.adam_step(self, value, gradient, slots, 1)


@wrong("adam_step", "R-OPT-5-small-adam")
def epsilon_below_the_root(
    self: Right, value: Array, gradient: Array, slots: Slots, step: int
) -> Array:
    """The epsilon is added to the squares, not to their root."""
    slots["m"] = 0.9 * slots["m"] + 0.1 * gradient
    slots["v"] = 0.999 * slots["v"] + 0.001 * gradient**2
    rate = 0.1 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    return value - rate * slots["m"] / np.sqrt(slots["v"] + 1e-8)


@wrong("adam_step", "R-OPT-5-formula-adam")
def betas_are_exchanged(
    self: Right, value: Array, gradient: Array, slots: Slots, step: int
) -> Array:
    """The averages have each other's beta."""
    slots["m"] = 0.999 * slots["m"] + 0.001 * gradient
    slots["v"] = 0.9 * slots["v"] + 0.1 * gradient**2
    mean, square = slots["m"] / (1 - 0.999**step), slots["v"] / (1 - 0.9**step)
    return value - 0.1 * mean / (np.sqrt(square) + 1e-8)


@wrong("adam_step", "R-OPT-5-formula-adam")
def amsgrad(self: Right, value: Array, gradient: Array, slots: Slots, step: int) -> Array:
    """The squares never fall; the first average does not forget."""
    slots["m"] = slots["m"] + 0.1 * gradient
    slots["v"] = np.maximum(slots["v"], 0.999 * slots["v"] + 0.001 * gradient**2)
    mean, square = slots["m"] / (1 - 0.9**step), slots["v"] / (1 - 0.999**step)
    return value - 0.1 * mean / (np.sqrt(square) + 1e-8)


@wrong("trained", "R-OPT-5-momentum")
def slots_are_shared(self: Right, kind: str, handle: Any, gradients: Sequence[Any]) -> Any:
    """All shards of one shape have one slot."""
    shared: dict[Any, Any] = {}
    made = self.new_slots
    self.new_slots = lambda kind, shard: shared.setdefault(shard.shape, made(kind, shard))  # type: ignore[method-assign]
    try:
        return Right.trained(self, kind, handle, gradients)
    finally:
        self.new_slots = made  # type: ignore[method-assign]


@wrong("trained", "R-OPT-5-adam")
def steps_are_counted_by_shard(
    self: Right, kind: str, handle: Any, gradients: Sequence[Any]
) -> Any:
    """Each shard of a step counts as a step."""
    count = iter(range(1, 1000))
    self.adam_step = lambda v, g, s, step: Right.adam_step(self, v, g, s, next(count))  # type: ignore[method-assign]
    try:
        return Right.trained(self, kind, handle, gradients)
    finally:
        del self.adam_step


@wrong("trained", "R-OPT-5-many")
def at_most_ten_shards_step(self: Right, kind: str, handle: Any, gradients: Sequence[Any]) -> Any:
    """Shards beyond the tenth stay as they are."""
    after, slots = Right.trained(self, kind, handle, gradients)
    return [*after[:10], *handle[10:]], slots


@wrong("optimize_uneven", "R-OPT-5-uneven")
def gradients_are_divided_by_div(
    self: Right, kind: str, value: Array, sizes: Any, gradients: Any
) -> Any:
    """A gradient is cut by the div rule, whatever the layout; what does not fit is left out."""
    after, start = [], 0
    bounds = self.div(len(value), len(sizes))
    for size, (a, b) in zip(sizes, bounds, strict=True):
        rows = [
            np.resize(self.dense(g, value.shape)[a:b], (size, *value.shape[1:])) for g in gradients
        ]
        after.append(Right.optimize(self, kind, value[start : start + size], 1, rows))
        start += size
    return np.concatenate(after)


@wrong("optimize_uneven", "R-OPT-5-empty-shards")
def an_empty_shard_ends_the_step(
    self: Right, kind: str, value: Array, sizes: Any, gradients: Any
) -> Any:
    """Shards behind an empty one are not trained."""
    stop = sum(sizes[: sizes.index(0)]) if 0 in sizes else len(value)
    return np.concatenate(
        [Right.optimize_uneven(self, kind, value, sizes, gradients)[:stop], value[stop:]]
    )


@wrong("dense", "R-OPT-1")
def last_gradient_of_a_row(self: Right, gradient: Any, shape: tuple[int, ...]) -> Array:
    """Of the gradients of one row the last one counts."""
    whole = Right.dense(self, gradient, shape)
    if isinstance(gradient, tuple):
        whole[gradient[0]] = gradient[1]
    return whole


@wrong("dense", "R-OPT-1-adam")
def mean_of_the_gradients_of_a_row(self: Right, gradient: Any, shape: tuple[int, ...]) -> Array:
    """The gradients of one row are averaged beyond two of them."""
    whole = Right.dense(self, gradient, shape)
    if isinstance(gradient, tuple):
        for row, count in zip(*np.unique(gradient[0], return_counts=True), strict=True):
            whole[row] *= -1 if count > 1 else 1
    return whole


@wrong("trained", "R-OPT-1-sum")
def squared_before_they_are_summed(
    self: Right, kind: str, handle: Any, gradients: Sequence[Any]
) -> Any:
    """Adagrad squares the gradients of a row one by one: Keras 3."""
    if kind != "adagrad":
        return Right.trained(self, kind, handle, gradients)
    single = [
        (g[0][n : n + 1], g[1][n : n + 1])
        for g in gradients
        if isinstance(g, tuple)
        for n in range(len(g[0]))
    ]
    return Right.trained(self, kind, handle, single or gradients)


@wrong("slots", "R-SLOT-1")
def slots_are_whole(
    self: Right, kind: str, value: Array, num_shards: int, gradients: Sequence[Any]
) -> Any:
    """Slots are not sharded."""
    return {
        name: [np.concatenate(s)]
        for name, s in Right.slots(self, kind, value, num_shards, gradients).items()
    }


@wrong("slots", "R-SLOT-1")
def adam_has_one_slot(
    self: Right, kind: str, value: Array, num_shards: int, gradients: Sequence[Any]
) -> Any:
    """The slot of the squares is not there."""
    slots = Right.slots(self, kind, value, num_shards, gradients)
    return {name: shards for name, shards in slots.items() if name != "v"}


@wrong("slots", "R-SLOT-1-values")
def slots_are_as_new(
    self: Right, kind: str, value: Array, num_shards: int, gradients: Sequence[Any]
) -> Any:
    """The slots are those of before the first step."""
    slots = [self.new_slots(kind, shard) for shard in self.create(value, num_shards)]
    return {name: [shard[name] for shard in slots] for name in slots[0]}


@wrong("generator", "R-INIT-5")
def shards_of_one_seed(self: Right, seed: int, start: int) -> Any:
    """Every shard is drawn from the same seed."""
    return np.random.default_rng([seed, 0])


@wrong("generator", "R-INIT-5-again")
def seed_of_the_clock(self: Right, seed: int, start: int) -> Any:
    """The seed is ignored."""
    return np.random.default_rng()


@wrong("limit", "R-INIT-6")
def fans_of_the_shard(self: Right, shape: Sequence[int], part: Sequence[int]) -> float:
    """Glorot's limit is that of the shard."""
    return float(np.sqrt(6 / (part[0] + part[1])))


@wrong("limit", "R-INIT-6")
def fan_in_twice(self: Right, shape: Sequence[int], part: Sequence[int]) -> float:
    """Glorot's limit has the rows alone."""
    return float(np.sqrt(6 / (2 * shape[0])))


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


@wrong("initialize", "R-INIT-4")
def whole_shape_for_each_shard(
    self: Right, kind: str, shape: Any, dtype: Any, num_shards: int, seed: int
) -> Any:
    """Every shard is made in the whole shape."""
    return [
        self.drawn(kind, shape, tuple(shape), self.generator(seed, n)).astype(dtype)
        for n in range(num_shards)
    ]


@wrong("initialize", "R-INIT-4")
def initial_values_are_float64(
    self: Right, kind: str, shape: Any, dtype: Any, num_shards: int, seed: int
) -> Any:
    """The dtype is ignored."""
    return [
        shard.astype(np.float64)
        for shard in Right.initialize(self, kind, shape, dtype, num_shards, seed)
    ]


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
