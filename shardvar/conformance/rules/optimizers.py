"""Level 5: a step on shards is the step on the whole, and slots lie as their variables do."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import Broken, Calls, expect, text
from shardvar.conformance.registry import rule
from shardvar.conformance.rules.cases import tables
from shardvar.layout.dtypes import Array
from shardvar.testing import counting, ids

COMPONENTS = "gradient computation and update are always performed at the component variable level"
SPARSE = "essentially dicts mapping from indices to vectors"
SLOTS = "Slot variable is partitioned in exactly the same way as the original variable."

_Gradient = Array | tuple[Array, Array]
StepsCase = tuple[Array, int, list[_Gradient]]


def expect_close(came: Any, must: Array) -> None:
    """``Broken`` unless two arrays agree to 1e-5: libraries order and fuse the same arithmetic differently."""
    # The absolute tolerance is for values near 0, where a relative one would demand more than float32 has.
    array = np.asarray(came)
    if array.shape != must.shape or not np.allclose(array, must, rtol=1e-5, atol=1e-6):
        raise Broken(f"It gave {text(array)}.", f"It must give {text(must)}.")


@st.composite
def steps(draw: st.DrawFn, min_shards: int = 1) -> StepsCase:
    """A table and one to three dense gradients."""
    value, num_shards = draw(tables(row_shapes=((), (2,)), max_more=3, min_shards=min_shards))
    # Quarters are exact in float32, and the steps differ, so that momentum and averages matter.
    quarters = counting(value.shape) / np.float32(4)
    return value, num_shards, [quarters * np.float32(n + 1) - np.float32(1) for n in range(draw(st.integers(1, 3)))]


@st.composite
def sparse_steps(draw: st.DrawFn) -> StepsCase:
    """A table and a sparse gradient whose ids are unsorted and duplicated."""
    value, num_shards = draw(tables(row_shapes=((2,),), max_more=3))
    rows = draw(ids(len(value), max_size=6).filter(len))
    return value, num_shards, [(rows, (counting((len(rows), 2)) / 4).astype(np.float32))]


def dense(gradient: _Gradient, shape: tuple[int, ...]) -> Array:
    """A gradient as an array: rows that come several times are summed."""
    if not isinstance(gradient, tuple):
        return gradient
    whole = np.zeros(shape, np.float32)
    np.add.at(whole, gradient[0], gradient[1])
    return whole


def _register_kinds() -> None:
    for kind in ("sgd", "momentum", "adagrad", "adam"):
        # ``kind`` is bound as a default; else all four checks would use the last kind of the loop.
        def sharded(adapter: Calls, case: StepsCase, kind: str = kind) -> None:
            value, num_shards, gradients = case
            # The oracle is the implementation on one shard, since frameworks differ in epsilons and initial values.
            must = np.asarray(adapter.optimize(kind, value, 1, gradients))
            expect_close(adapter.optimize(kind, value, num_shards, gradients), must)

        sharded.__doc__ = f"Steps of {kind} on shards give what they give on one shard"
        rule(f"R-OPT-5-{kind}", 5, "000", COMPONENTS, "optimize", steps(min_shards=2))(sharded)


_register_kinds()


@rule("R-OPT-5-formula", 5, "000", COMPONENTS, "optimize", steps())
def sgd_subtracts(adapter: Calls, case: StepsCase) -> None:
    """Each step of sgd subtracts 0.1 times the gradient."""
    value, num_shards, gradients = case
    # In float64, so that the rounding of the oracle stays far below the tolerance.
    must = value.astype(np.float64)
    for gradient in gradients:
        must = must - 0.1 * dense(gradient, value.shape)
    expect_close(adapter.optimize("sgd", value, num_shards, gradients), must)


@rule("R-OPT-1", 5, "002", SPARSE, "optimize", sparse_steps())
def sparse_is_dense(adapter: Calls, case: StepsCase) -> None:
    """A sparse step of sgd is the dense one: a row that comes several times counts as often."""
    value, num_shards, gradients = case
    must = value - 0.1 * dense(gradients[0], value.shape).astype(np.float64)
    expect_close(adapter.optimize("sgd", value, num_shards, gradients), must)


@rule("R-OPT-1-sum", 5, "002", SPARSE, "optimize", sparse_steps())
def duplicates_are_summed(adapter: Calls, case: StepsCase) -> None:
    """In a sparse step of adagrad a row that comes several times is summed before it is squared."""
    value, num_shards, gradients = case
    # Row by row, gradients 1 and 2 add 1**2 + 2**2 = 5 to the accumulator; summed first, (1 + 2)**2 = 9.
    rows = np.unique(gradients[0][0])
    once: list[_Gradient] = [(rows, dense(gradients[0], value.shape)[rows])]
    must = np.asarray(adapter.optimize("adagrad", value, num_shards, once))
    expect_close(adapter.optimize("adagrad", value, num_shards, gradients), must)


@rule("R-SLOT-1", 5, "000", SLOTS, "slots shards create",
      st.tuples(steps(), st.sampled_from(["momentum", "adagrad", "adam"])))  # fmt: skip
def slots_lie_as_their_variable(adapter: Calls, case: tuple[StepsCase, str]) -> None:
    """Every slot of a shape other than a scalar has as many shards as the variable, each of its shape."""
    (value, num_shards, gradients), kind = case
    must = [np.asarray(shard).shape for shard in adapter.shards(adapter.create(value, num_shards))]
    slots = adapter.slots(kind, value, num_shards, gradients)
    expect(bool(slots), "There are no slots.", f"{kind} must have some.")
    for name, shards in slots.items():
        came = [np.asarray(shard).shape for shard in shards]
        expect(came == must, f"The shards of the slot {name!r} have the shapes {came}.", f"They must have {must}.")
