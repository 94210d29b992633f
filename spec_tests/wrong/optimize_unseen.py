"""Wrong implementations of the family optimize that were written without a look at the rules."""

from typing import Any

import numpy as np

from spec_tests.helpers.right_adapter import Right
from spec_tests.wrong.table import wrong

Array = Any


@wrong("optimize", "R-OPT-5-shapes")
def gradients_are_broadcast(
    self: Right, kind: str, value: Array, num_shards: int, gradients: Any
) -> Any:
    """A gradient of one row is that of all rows."""
    fixed = [g if isinstance(g, tuple) else np.broadcast_to(g, value.shape) for g in gradients]
    return Right.optimize(self, kind, value, num_shards, fixed)


@wrong("dense", "R-OPT-1-outside")
def rows_outside_get_no_gradient(self: Right, gradient: Any, shape: Any) -> Any:
    """Ids outside of a sparse gradient are ignored."""
    if isinstance(gradient, tuple):
        ids, rows = gradient
        ok = (ids >= 0) & (ids < shape[0])
        gradient = ids[ok], rows[ok]
    return Right.dense(self, gradient, shape)


@wrong("optimize", "R-OPT-5-sgd")
def gradients_are_scaled_in_place(
    self: Right, kind: str, value: Array, num_shards: int, gradients: Any
) -> Any:
    """The rate is multiplied into the caller's gradients."""
    found = Right.optimize(self, kind, value, num_shards, gradients)
    for g in gradients:
        if not isinstance(g, tuple) and g.flags.writeable:
            g *= np.asarray(0.1, g.dtype)
    return found


@wrong("optimize", "R-OPT-5-sgd")
def the_value_is_trained_in_place(
    self: Right, kind: str, value: Array, num_shards: int, gradients: Any
) -> Any:
    """The caller's value is the variable's memory, and is trained."""
    found = Right.optimize(self, kind, value, num_shards, gradients)
    if value.flags.writeable:
        value[...] = found
    return found


@wrong("stepped", "R-OPT-5-sgd")
def gradients_are_clipped(
    self: Right, kind: str, value: Any, gradient: Any, slots: Any, step: int
) -> Any:
    """A shard's gradient is clipped to a norm of 5."""
    norm = float(np.sqrt((gradient**2).sum()))
    return Right.stepped(
        self, kind, value, gradient * min(1.0, 5 / norm) if norm else gradient, slots, step
    )


@wrong("optimize", "R-OPT-5-still")
def weights_pass_through_float32(
    self: Right, kind: str, value: Array, num_shards: int, gradients: Any
) -> Any:
    """Steps of float64 variables are float32."""
    found = Right.optimize(self, kind, value, num_shards, gradients)
    return found.astype(np.float32).astype(found.dtype) if found.dtype == np.float64 else found
