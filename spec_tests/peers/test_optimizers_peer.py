"""``compat="keras3"`` is Keras 3, rows that come twice included, in dtypes of many bits and of
few."""

from typing import Any

import numpy as np
import pytest

from shardvar.reference.training import optimizers
from shardvar.reference.variables import IndexedSlices, Variable
from shardvar.reference.variables.values import as_dtype

keras = pytest.importorskip("keras", minversion="3", reason="keras is not installed")
tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")

IDS = [1, 1, 3, 1, 3, 0]
SHAPE = (5, 2)
SLOTS = {
    "momentum": "momentum",
    "accumulator": "accumulator",
    "m": "momentum",
    "v": "velocity",
    "rms": "velocity",
}
"""Our names of slots, and what Keras's end with."""
NAMES = ["SGD", "Momentum", "Adagrad", "Adam", "RMSprop"]


def trained(name: str, dtype: Any) -> dict[str, tuple[Any, Any]]:
    """Values after two steps by the slot that they are of, ours and Keras's; that of the variable
    itself is ""."""
    kind, arguments = ("SGD", {"momentum": 0.9}) if name == "Momentum" else (name, {})
    theirs, ours = (
        keras.Variable(np.ones(SHAPE, np.float32), dtype=dtype.name),
        Variable(np.ones(SHAPE, dtype)),
    )
    their_optimizer = getattr(keras.optimizers, kind)(0.1, **arguments)
    optimizer = getattr(optimizers, kind)(0.1, **arguments, compat="keras3")
    random = np.random.default_rng(3)
    for _ in range(2):
        values = (random.integers(-3, 4, (len(IDS), 2)) * 0.37).astype(dtype)
        their_optimizer.apply(
            [tf.IndexedSlices(tf.constant(values), tf.constant(IDS), SHAPE)], [theirs]
        )
        optimizer.apply_gradients([(IndexedSlices(values, IDS, SHAPE), ours)])
    found = {"": (ours.numpy(), theirs.numpy())}
    for slot in optimizer.get_slot_names():
        own = next(each for each in their_optimizer.variables if each.path.endswith(SLOTS[slot]))
        found[slot] = optimizer.get_slot(ours, slot).numpy(), own.numpy()
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_steps_with_rows_that_come_twice_are_keras_3s(name: str, dtype: str) -> None:
    """Keras computes in the variable's dtype; we in float32 where that has few bits, so both differ
    by its rounding."""
    kind = as_dtype(dtype)
    slack = {"float16": 4e-3, "bfloat16": 3e-2}.get(dtype, 1e-5)
    for slot, (ours, theirs) in trained(name, kind).items():
        if (name, dtype, slot) == ("Adam", "bfloat16", ""):
            # 0.999 is 1 in bfloat16, so Keras's rate is 0 and its variable never moves.
            assert np.all(theirs == 1) and not np.all(ours == 1)
            continue
        assert ours.dtype == theirs.dtype == kind
        assert np.allclose(
            ours.astype(np.float64), theirs.astype(np.float64), rtol=slack, atol=slack
        ), slot
