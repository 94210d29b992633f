"""Wrong optimizers and slots."""

from typing import Any

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import change_what_is_found, change_what_is_given, wrong

Slots = dict[str, Any]


@wrong("sgd_step", "R-OPT-5-formula")
def weights_decay(self, value, gradient, slots, step):
    """The value decays with every step."""
    return value * (1 - 1e-3) - 0.1 * gradient


@wrong("momentum_step", "R-OPT-5-formula-momentum")
def momentum_one_step_late(self, value, gradient, slots, step):
    """A step uses the momentum of the one before."""
    before = slots["momentum"]
    slots["momentum"] = 0.9 * before - 0.1 * gradient
    return value + before


@wrong("adagrad_step", "R-OPT-5-formula-adagrad")
def divided_before_it_is_squared(self, value, gradient, slots, step):
    """Adagrad divides by the squares before the step."""
    divisor = np.sqrt(slots["accumulator"]) + 1e-7
    slots["accumulator"] = slots["accumulator"] + gradient**2
    return value - 0.1 * gradient / divisor


@wrong("adam_step", "R-OPT-5-formula-adam")
def amsgrad(self, value, gradient, slots, step):
    """The squares never fall; the first average does not forget."""
    slots["m"] = slots["m"] + 0.1 * gradient
    slots["v"] = np.maximum(slots["v"], 0.999 * slots["v"] + 0.001 * gradient**2)
    mean, square = slots["m"] / (1 - 0.9**step), slots["v"] / (1 - 0.999**step)
    return value - 0.1 * mean / (np.sqrt(square) + 1e-8)


@wrong("trained", "R-OPT-5-formula-momentum")
def slots_are_shared(self, kind, handle, gradients):
    """All shards of one shape have one slot."""
    shared: dict[Any, Any] = {}
    made = self.new_slots
    self.new_slots = lambda kind, shard: shared.setdefault(shard.shape, made(kind, shard))
    try:
        return Right.trained(self, kind, handle, gradients)
    finally:
        self.new_slots = made


@wrong("trained", "R-OPT-5-formula-adam")
def steps_are_counted_by_shard(self, kind, handle, gradients):
    """Each shard of a step counts as a step."""
    count = iter(range(1, 1000))
    self.adam_step = lambda v, g, s, step: Right.adam_step(self, v, g, s, next(count))
    try:
        return Right.trained(self, kind, handle, gradients)
    finally:
        del self.adam_step


@wrong("trained", "R-OPT-5-many")
def at_most_ten_shards_step(self, kind, handle, gradients):
    """Shards beyond the tenth stay as they are."""
    after, slots = Right.trained(self, kind, handle, gradients)
    return [*after[:10], *handle[10:]], slots


@wrong("optimize_uneven", "R-OPT-5-uneven")
def gradients_are_divided_by_div(self, kind, value, sizes, gradients):
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
def an_empty_shard_ends_the_step(self, kind, value, sizes, gradients):
    """Shards behind an empty one are not trained."""
    stop = sum(sizes[: sizes.index(0)]) if 0 in sizes else len(value)
    return np.concatenate(
        [Right.optimize_uneven(self, kind, value, sizes, gradients)[:stop], value[stop:]]
    )


@wrong("dense", "R-OPT-1-adam")
def mean_of_the_gradients_of_a_row(self, gradient, shape):
    """The gradients of one row are averaged beyond two of them."""
    whole = Right.dense(self, gradient, shape)
    if isinstance(gradient, tuple):
        for row, count in zip(*np.unique(gradient[0], return_counts=True), strict=True):
            whole[row] *= -1 if count > 1 else 1
    return whole


@wrong("trained", "R-OPT-1-several-adagrad")
def squared_before_they_are_summed(self, kind, handle, gradients):
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


@wrong("slots", "R-SLOT-1-values")
def slots_are_as_new(self, kind, value, num_shards, gradients):
    """The slots are those of before the first step."""
    slots = [self.new_slots(kind, shard) for shard in self.create(value, num_shards)]
    return {name: [shard[name] for shard in slots] for name in slots[0]}


def sparse_steps(gradients):
    return [number for number, each in enumerate(gradients) if isinstance(each, tuple)]


@wrong("trained", "R-OPT-1-several-sgd")
def one_sparse_gradient_counts(self, kind, handle, gradients):
    """Every sparse gradient after the first one is ignored."""
    later = sparse_steps(gradients)[1:]
    kept = [each for number, each in enumerate(gradients) if number not in later]
    return Right.trained(self, kind, handle, kept)


@wrong("trained", "R-OPT-1-several-momentum")
def a_second_sparse_step_forgets(self, kind, handle, gradients):
    """Slots begin anew at the second sparse step."""
    at = sparse_steps(gradients)[1:2]
    if not at:
        return Right.trained(self, kind, handle, gradients)
    first, _ = Right.trained(self, kind, handle, gradients[: at[0]])
    return Right.trained(self, kind, first, gradients[at[0] :])


@wrong("trained", "R-OPT-1-several-adam")
def sparse_adam_stays_at_one(self, kind, handle, gradients):
    """With sparse gradients, Adam's step is 1 for ever."""
    if kind != "adam" or not sparse_steps(gradients):
        return Right.trained(self, kind, handle, gradients)
    spoiled = type("Spoiled", (Right,), {})()
    step = Right.adam_step
    spoiled.adam_step = lambda value, gradient, slots, _: step(self, value, gradient, slots, 1)
    return Right.trained(spoiled, kind, handle, gradients)


@wrong("dense", "R-OPT-1")
def the_last_of_repeated_rows_counts(self, gradient, shape):
    """Of the gradients of one row the last one counts."""
    if not isinstance(gradient, tuple):
        return Right.dense(self, gradient, shape)
    whole = np.zeros(shape)
    whole[gradient[0]] = gradient[1]
    return whole


@wrong("trained", "R-OPT-1-several-sgd")
def untouched_shards_stand_still(self, kind, handle, gradients):
    """A dense step after a sparse one moves only the shards that the sparse one touched."""
    places = sparse_steps(gradients)
    found, slots = Right.trained(self, kind, handle, gradients)
    if not places or places[-1] == len(gradients) - 1 or len(handle) < 2:
        return found, slots
    before, _ = Right.trained(self, kind, handle, gradients[: places[-1] + 1])
    stops = np.cumsum([0, *map(len, handle)])
    touched = np.searchsorted(stops, gradients[places[-1]][0], side="right") - 1
    return [
        f if n in touched else b for n, (f, b) in enumerate(zip(found, before, strict=True))
    ], slots


@wrong("momentum_step", "R-OPT-5-formula-momentum")
def momentum_in_half_precision(self, value, gradient, slots, step):
    """The slot of momentum is kept in half precision."""
    found = Right.momentum_step(self, value, gradient, slots, step)
    slots["momentum"] = slots["momentum"].astype(np.float16).astype(np.float64)
    return found


@wrong("adagrad_step", "R-OPT-5-formula-adagrad")
def squares_in_float16(self, value, gradient, slots, step):
    """Adagrad's sum is kept in float16."""
    after = Right.adagrad_step(self, value, gradient, slots, step)
    slots["accumulator"] = slots["accumulator"].astype(np.float16).astype(np.float64)
    return after


@wrong("adam_step", "R-OPT-5-tiny")
def small_epsilon_below_the_root(self, value, gradient, slots, step):
    """Adam's epsilon is added to the square."""
    Right.adam_step(self, value, gradient, slots, step)
    mean, square = slots["m"] / (1 - 0.9**step), slots["v"] / (1 - 0.999**step)
    return value - 0.1 * mean / np.sqrt(square + 1e-8)


@wrong("adagrad_step", "R-OPT-5-tiny")
def epsilon_behind_a_first_square(self, value, gradient, slots, step):
    """Adagrad's epsilon is 1e-5, beside squares that begin at 0.1."""
    slots["accumulator"] = slots["accumulator"] + gradient**2
    return value - 0.1 * gradient / (np.sqrt(slots["accumulator"]) + 1e-5)


@wrong("stepped", "R-OPT-5-formula-momentum")
def zeros_are_no_step(self, kind, value, gradient, slots, step):
    """A shard stands still by a gradient of zeros."""
    return Right.stepped(self, kind, value, gradient, slots, step) if gradient.any() else value


@wrong("dense", "R-OPT-5-memory")
def gradients_are_clipped_in_place(self, gradient, shape):
    """A gradient is clipped where it lies, in the caller's memory."""
    if isinstance(gradient, np.ndarray) and gradient.flags.writeable:
        whole = Right.dense(self, gradient, shape)
        np.clip(gradient, -0.25, 0.25, out=gradient)
        return whole
    return Right.dense(self, gradient, shape)


change_what_is_given(
    ("adam_step", "R-OPT-5-formula-adam", "correction_counts_from_one_again",
     "The bias is always corrected as in the first step.", "step", lambda: 1),
    ("adam_step", "R-OPT-1-several-adam", "bias_is_corrected_three_times",
     "Adam's correction of its bias stands still at the third step.", "step", lambda step: min(step, 3)),
)  # fmt: skip

change_what_is_found(
    ("slots", "R-SLOT-1", "adam_has_one_slot", "The slot of the squares is not there.",
     lambda found: {name: shards for name, shards in found.items() if name != "v"}),
    ("new_slots", "R-OPT-5-formula-adagrad", "adagrad_begins_at_one", "Adagrad's squares begin at 1.",
     lambda found: {name: value * 10 for name, value in found.items()}),
    ("dense", "R-OPT-1-momentum", "sparse_rows_in_float16", "Rows of a sparse gradient are summed in float16.",
     lambda found, gradient: found.astype(np.float16).astype(np.float64) if isinstance(gradient, tuple) else found),
    ("stepped", "R-OPT-5-nan", "nan_reaches_its_shard", "A NaN in a gradient makes all of its shard NaN.",
     lambda found, gradient: found + np.nan if np.isnan(gradient).any() else found),
)  # fmt: skip


# Written without a look at the rules.


@wrong("dense", "R-OPT-1-outside")
def rows_outside_get_no_gradient(self, gradient, shape):
    """Ids outside of a sparse gradient are ignored."""
    if isinstance(gradient, tuple):
        ids, rows = gradient
        ok = (ids >= 0) & (ids < shape[0])
        gradient = ids[ok], rows[ok]
    return Right.dense(self, gradient, shape)


@wrong("optimize", "R-OPT-5-formula")
def gradients_are_scaled_in_place(self, kind, value, num_shards, gradients):
    """The rate is multiplied into the caller's gradients."""
    found = Right.optimize(self, kind, value, num_shards, gradients)
    for g in gradients:
        if not isinstance(g, tuple) and g.flags.writeable:
            g *= np.asarray(0.1, g.dtype)
    return found


@wrong("optimize", "R-OPT-5-formula")
def the_value_is_trained_in_place(self, kind, value, num_shards, gradients):
    """The caller's value is the variable's memory, and is trained."""
    found = Right.optimize(self, kind, value, num_shards, gradients)
    if value.flags.writeable:
        value[...] = found
    return found


@wrong("stepped", "R-OPT-5-formula")
def gradients_are_clipped(self, kind, value, gradient, slots, step):
    """A shard's gradient is clipped to a norm of 5."""
    norm = float(np.sqrt((gradient**2).sum()))
    return Right.stepped(
        self, kind, value, gradient * min(1.0, 5 / norm) if norm else gradient, slots, step
    )


change_what_is_given(
    ("optimize", "R-OPT-5-shapes", "gradients_are_broadcast", "A gradient of one row is that of all rows.",
     "gradients", lambda value, gradients: [g if isinstance(g, tuple) else np.broadcast_to(g, value.shape)
        for g in gradients]),
)  # fmt: skip

change_what_is_found(
    ("optimize", "R-OPT-5-still", "weights_pass_through_float32", "Steps of float64 variables are float32.",
     lambda found: found.astype(np.float32).astype(found.dtype) if found.dtype == np.float64 else found),
)  # fmt: skip
