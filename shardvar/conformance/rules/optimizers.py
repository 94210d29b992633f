"""Level 5: steps follow their formulas, on shards as on the whole, and slots lie as their variables
do.

The formulas are the plain rules of ``shardvar.spec``, in float64 and on the whole array, as in the
published vectors.
Libraries differ in two constants: Adagrad's squares begin at 0 or at 0.1, and an epsilon of at most
1e-7 keeps a root from being zero. Either beginning is accepted, and gradients are so large that
such an epsilon stays below the tolerance.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import Broken, Calls, expect, expect_equal, text
from shardvar.conformance.registry import rule
from shardvar.conformance.rules.cases import (
    LaidOutCase,
    ShardSizes,
    concatenated,
    few_rows,
    hollow_tables,
    many_shards,
    tables,
    uneven_tables,
)
from shardvar.layout.dtypes import Array
from shardvar.spec.gradients import densified
from shardvar.spec.optimizers import RULES, add_slot, apply_gradients
from shardvar.spec.variables import Shards
from shardvar.testing import counting, ids

COMPONENTS = "gradient computation and update are always performed at the component variable level"
SPARSE = "essentially dicts mapping from indices to vectors"
SLOTS = "Slot variable is partitioned in exactly the same way as the original variable."

StepGradient = Array | tuple[Array, Array]
StepsCase = tuple[Array, ShardSizes, list[StepGradient]]

KINDS = ("sgd", "momentum", "adagrad", "adam")
RATE = 0.1
UNITS = {"float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The distance of 1 to the next number of each dtype."""
FIRST_SQUARES = (0.0, 0.1)
"""The values at which Adagrad's squares may begin: PyTorch's and JAX's, and TensorFlow's."""


_HYPER = {
    "learning_rate": RATE, "momentum": 0.9, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-30
}  # fmt: skip
"""The smallest epsilon changes no quotient but 0 / 0, which becomes 0."""


def formula(
    kind: str, value: Array, gradients: Sequence[Array], first_square: float = 0.0
) -> Array:
    """Return the value after a step a gradient, by the plain rules in float64."""
    name = {"sgd": "SGD"}.get(kind, kind.capitalize())
    shards: Shards = [value.astype(np.float64)]
    first = first_square if kind == "adagrad" else 0.0
    slots = {slot: add_slot(shards, first) for slot in RULES[name][1]}
    for step, gradient in enumerate(gradients, 1):
        shards, slots = apply_gradients(name, shards, [gradient], slots, _HYPER, step)
    return shards[0]


def expect_formula(came: Any, kind: str, value: Array, gradients: Sequence[StepGradient]) -> None:
    """``Broken`` unless a value is what the formula gives, from any of the first squares."""
    steps = [dense(gradient, value.shape) for gradient in gradients]
    answers = [
        formula(kind, value, steps, first)
        for first in (FIRST_SQUARES if kind == "adagrad" else (0.0,))
    ]
    if not any(is_close(came, must) for must in answers):
        raise Broken(
            f"It gave {text(np.asarray(came))}.", f"It must give {' or '.join(map(text, answers))}."
        )


def is_close(came: Any, must: Array) -> bool:
    """Return True if two arrays agree to 1e-5: libraries order arithmetic differently."""
    # The absolute tolerance is for values near 0, where a relative one would demand more than
    # float32 has.
    array = np.asarray(came)
    return array.shape == must.shape and np.allclose(array, must, rtol=1e-5, atol=1e-6)


def expect_close(came: Any, must: Array) -> None:
    """``Broken`` unless two arrays agree to 1e-5."""
    if not is_close(came, must):
        raise Broken(f"It gave {text(np.asarray(came))}.", f"It must give {text(must)}.")


ROWS: tuple[tuple[int, ...], ...] = ((), (2,))
_FEW_MORE = tables(row_shapes=ROWS, max_more=3)
_SEVERAL: st.SearchStrategy[LaidOutCase] = tables(row_shapes=ROWS, max_more=3, min_shards=2)


@st.composite
def steps(draw: st.DrawFn, start: st.SearchStrategy[LaidOutCase] = _FEW_MORE) -> StepsCase:
    """A table and one to three dense gradients."""
    value, layout = draw(start)
    # Quarters are exact in float32, and the steps differ, so that momentum and averages matter. The
    # first gradient lies in memory as a product of matrices leaves it that was transposed.
    quarters = counting(value.shape) / np.float32(4)
    count = draw(st.integers(1, 3))
    gradients: list[StepGradient] = [
        quarters * np.float32(n + 1) - np.float32(1) for n in range(count)
    ]
    return value, layout, [np.asfortranarray(gradients[0]), *gradients[1:]]


@st.composite
def sparse_steps(draw: st.DrawFn) -> StepsCase:
    """A table and a sparse gradient whose ids are unsorted and duplicated."""
    value, num_shards = draw(tables(row_shapes=((2,),), max_more=3))
    rows = draw(ids(len(value), max_size=6).filter(len))
    return value, num_shards, [(rows, (counting((len(rows), 2)) / 4).astype(np.float32))]


def dense(gradient: StepGradient, shape: tuple[int, ...]) -> Array:
    """A gradient as an array: rows that come several times are summed."""
    if not isinstance(gradient, tuple):
        return gradient
    return densified((gradient[0].tolist(), gradient[1]), shape)


def check_formula(adapter: Calls, kind: str, case: StepsCase) -> None:
    """Steps of some kind, in any layout, give what the formula gives."""
    value, layout, gradients = case
    method = adapter.optimize_uneven if isinstance(layout, list) else adapter.optimize
    expect_formula(method(kind, value, layout, gradients), kind, value, gradients)


def _register_kinds() -> None:
    for kind in KINDS:
        # ``kind`` is bound as a default; else all checks would use the last kind of the loop.
        def sharded(adapter: Calls, case: StepsCase, kind: str = kind) -> None:
            value, num_shards, gradients = case
            # To the last bits where one shard and several take the same constants, whatever these
            # are.
            must = np.asarray(adapter.optimize(kind, value, 1, gradients))
            expect_close(adapter.optimize(kind, value, num_shards, gradients), must)

        def follows(adapter: Calls, case: StepsCase, kind: str = kind) -> None:
            check_formula(adapter, kind, case)

        sharded.__doc__ = f"Steps of {kind} on shards give what they give on one shard"
        rule(f"R-OPT-5-{kind}", 5, "000", COMPONENTS, "optimize",
             steps(_SEVERAL))(sharded)  # fmt: skip
        follows.__doc__ = f"Each step of {kind} is that of its formula"
        # The name of sgd's rule is older than the others.
        suffix = "formula" if kind == "sgd" else f"formula-{kind}"
        rule(f"R-OPT-5-{suffix}", 5, "000", COMPONENTS, "optimize", steps())(follows)


_register_kinds()


@rule(
    "R-OPT-5-small-adam",
    5,
    "000",
    COMPONENTS,
    "optimize",
    st.tuples(tables(row_shapes=ROWS), st.integers(1, 2)),
)
def small_gradients_move_as_far(adapter: Calls, case: tuple[tuple[Array, int], int]) -> None:
    """Adam moves as far by small gradients as by large ones: its epsilon is added to the root, not
    below it."""
    (value, num_shards), count = case
    # Squared and times 0.001, 2**-6 is 2.4e-7. An epsilon of 1e-7 added to that would shorten the
    # first step by 16 %; added to the root, which is 4.9e-4, by 0.02 %. From zeros, so that the
    # steps are all that there is.
    small = [np.full(value.shape, 2.0**-6, np.float32)] * count
    zeros = np.zeros_like(value)
    came, must = (
        np.asarray(adapter.optimize("adam", zeros, num_shards, small)),
        formula("adam", zeros, small),
    )
    if came.shape != must.shape or not np.allclose(came, must, rtol=1e-3, atol=0):
        raise Broken(f"It gave {text(came)}.", f"It must give {text(must)}, to a thousandth.")


def _register_layouts() -> None:
    layouts: dict[str, tuple[str, str, st.SearchStrategy[LaidOutCase]]] = {
        "uneven": ("optimize_uneven", "in shards of uneven sizes", uneven_tables(ROWS, 2)),
        "empty-shards": ("optimize_uneven", "where some shards are empty", hollow_tables(ROWS)),
        "few-rows": ("optimize", "where there are fewer rows than shards", few_rows(ROWS, 1)),
        "many": ("optimize", "in more than ten shards", many_shards(ROWS)),
    }
    for suffix, (method, phrase, start) in layouts.items():

        def follows(adapter: Calls, case: tuple[str, StepsCase]) -> None:
            check_formula(adapter, *case)

        follows.__doc__ = f"Each step of an optimizer is that of its formula, {phrase}"
        rule(
            f"R-OPT-5-{suffix}",
            5,
            "000",
            COMPONENTS,
            method,
            st.tuples(st.sampled_from(KINDS), steps(start)),
        )(follows)


_register_layouts()


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
    # Row by row, gradients 1 and 2 add 1**2 + 2**2 = 5 to the accumulator; summed first, (1 + 2)**2
    # = 9.
    rows = np.unique(gradients[0][0])
    once: list[StepGradient] = [(rows, dense(gradients[0], value.shape)[rows])]
    must = np.asarray(adapter.optimize("adagrad", value, num_shards, once))
    expect_close(adapter.optimize("adagrad", value, num_shards, gradients), must)


def _register_sparse() -> None:
    for kind in ("momentum", "adagrad", "adam"):

        def sparse(adapter: Calls, case: StepsCase, kind: str = kind) -> None:
            # One step, and from new slots: whether rows without a gradient move later is the
            # library's choice.
            check_formula(adapter, kind, case)

        sparse.__doc__ = (
            f"A first sparse step of {kind} is that of the formula for the sums of the rows that "
            "come several times"
        )
        rule(f"R-OPT-1-{kind}", 5, "002", SPARSE, "optimize", sparse_steps())(sparse)


_register_sparse()


@st.composite
def many_steps(draw: st.DrawFn) -> StepsCase:
    """A table and two to six gradients, dense and sparse; each sparse one has every row."""
    value, num_shards = draw(tables(row_shapes=((2,),), max_more=2))
    gradients: list[StepGradient] = []
    for number in range(draw(st.integers(2, 6))):
        # Every row, in any order, and some twice: rows that get no gradient may move or not, as the
        # library chooses.
        rows = np.array(draw(st.permutations(range(len(value)))))
        rows = np.append(rows, rows[: draw(st.integers(0, 2))])
        if draw(st.booleans()):
            gradients.append((rows, quarters((len(rows), 2), number)))
        else:
            gradients.append(quarters(value.shape, number))
    return value, num_shards, gradients


def quarters(shape: tuple[int, ...], number: int) -> Array:
    """The gradient of a step: quarters, which float32 holds, and others in every step."""
    quarters: Array = counting(shape) * np.float32(number % 3 + 1) / np.float32(4) - np.float32(1)
    return quarters


def _register_many() -> None:
    for kind in KINDS:

        def several(adapter: Calls, case: StepsCase, kind: str = kind) -> None:
            check_formula(adapter, kind, case)

        several.__doc__ = (
            f"Each of several steps of {kind} is that of its formula, where dense gradients and "
            "sparse ones of all rows follow one another"
        )
        rule(f"R-OPT-1-several-{kind}", 5, "002", SPARSE, "optimize", many_steps())(several)


_register_many()


@st.composite
def partial_steps(draw: st.DrawFn) -> StepsCase:
    """A table and gradients, dense and sparse, of any rows."""
    value, num_shards, gradients = draw(many_steps())
    kept = draw(st.lists(st.integers(1, len(value)), min_size=6, max_size=6))
    return (
        value,
        num_shards,
        [
            (each[0][:count], each[1][:count]) if isinstance(each, tuple) else each
            for each, count in zip(gradients, kept, strict=False)
        ],
    )


@rule("R-OPT-1-mixed", 5, "002", SPARSE, "optimize", partial_steps())
def dense_and_sparse_steps_follow_one_another(adapter: Calls, case: StepsCase) -> None:
    """Sparse steps of sgd move the rows that they name, and dense ones all, one after another."""
    check_formula(adapter, "sgd", case)


@rule("R-OPT-5-dtypes", 5, "000", COMPONENTS, "optimize",
      st.tuples(st.sampled_from(KINDS), st.sampled_from(sorted(UNITS)), steps()))  # fmt: skip
def steps_keep_dtypes(adapter: Calls, case: tuple[str, str, StepsCase]) -> None:
    """Each step is that of its formula to some units of the dtype, which stays."""
    kind, name, (value, num_shards, gradients) = case
    dtype = np.dtype(name)
    # Away from 0, where an epsilon that the dtype cannot hold would leave 0 / 0.
    typed = [np.asarray(np.abs(gradient) + 0.25, dtype) for gradient in gradients]
    came = np.asarray(adapter.optimize(kind, value.astype(dtype), num_shards, typed))
    # Arithmetic in the dtype itself rounds several times a step.
    unit = UNITS[name]
    answers = [
        formula(kind, value.astype(dtype), typed, first)
        for first in (FIRST_SQUARES if kind == "adagrad" else (0.0,))
    ]
    must = " or ".join(text(answer.astype(dtype)) for answer in answers)
    atol = max(16 * unit, 1e-6)
    is_near = any(
        came.shape == answer.shape
        and np.allclose(came.astype(np.float64), answer, rtol=atol, atol=4 * atol)
        for answer in answers
    )
    if came.dtype != dtype or not is_near:
        raise Broken(f"It gave {text(came)}.", f"It must give {must}, to 16 units.")


@rule("R-OPT-5-still", 5, "000", COMPONENTS, "optimize", st.tuples(
    st.sampled_from(["sgd", "momentum", "adam"]), st.sampled_from(["float32", "float64"]),
    tables(row_shapes=ROWS), st.integers(1, 2)))  # fmt: skip
def zeros_do_not_move(adapter: Calls, case: tuple[str, str, tuple[Array, int], int]) -> None:
    """Steps by gradients of zeros leave a value as it is, in all of its digits."""
    kind, name, (value, num_shards), count = case
    thirds = value.astype(name) / np.asarray(3, name)
    zeros = [np.zeros_like(thirds)] * count
    expect_equal(adapter.optimize(kind, thirds, num_shards, zeros), thirds)


@rule("R-OPT-5-shapes", 5, "000", COMPONENTS, "optimize", st.tuples(
    st.sampled_from(KINDS), tables(row_shapes=((2,), (3,)), min_shards=2), st.integers(0, 2)))  # fmt: skip
def gradients_of_other_shapes_are_refused(
    adapter: Calls, case: tuple[str, tuple[Array, int], int]
) -> None:
    """A gradient of another shape is refused, also if NumPy would broadcast it."""
    kind, (value, num_shards), number = case
    rows, columns = value.shape
    shape = [(1, columns), (rows, 1), (rows + 1, columns)][number]
    adapter.refuses("optimize", kind, value, num_shards, [counting(shape)])


@rule("R-OPT-1-outside", 5, "002", SPARSE, "optimize", st.tuples(
    st.sampled_from(KINDS), tables(row_shapes=((2,),)), st.sampled_from([-1, 0, 3])))  # fmt: skip
def gradients_outside_are_refused(adapter: Calls, case: tuple[str, tuple[Array, int], int]) -> None:
    """A sparse gradient of a row that is not there is refused."""
    kind, (value, num_shards), beyond = case
    rows = np.array([0, -1 if beyond < 0 else len(value) + beyond])
    adapter.refuses("optimize", kind, value, num_shards, [(rows, counting((2, 2)))])


SLOT_CASES = st.tuples(steps(), st.sampled_from(["momentum", "adagrad", "adam"]))


@rule("R-SLOT-1", 5, "000", SLOTS, "slots shards create", SLOT_CASES)
def slots_lie_as_their_variable(adapter: Calls, case: tuple[StepsCase, str]) -> None:
    """Every slot of a shape other than a scalar has as many shards as the variable, each of its
    shape."""
    (value, num_shards, gradients), kind = case
    must = [np.asarray(shard).shape for shard in adapter.shards(adapter.create(value, num_shards))]
    slots = adapter.slots(kind, value, num_shards, gradients)
    least = 2 if kind == "adam" else 1
    expect(
        len(slots) >= least,
        f"There are the slots {sorted(slots)}.",
        f"{kind} must have {least} at least.",
    )
    for name, shards in slots.items():
        came = [np.asarray(shard).shape for shard in shards]
        expect(
            came == must,
            f"The shards of the slot {name!r} have the shapes {came}.",
            f"They must have {must}.",
        )


@rule("R-SLOT-1-values", 5, "000", SLOTS, "slots", SLOT_CASES)
def slots_hold_what_they_hold_on_one_shard(adapter: Calls, case: tuple[StepsCase, str]) -> None:
    """The shards of every slot are together what the slot of one shard is, and not all of it is
    zero."""
    (value, num_shards, gradients), kind = case
    whole = adapter.slots(kind, value, 1, gradients)
    slots = adapter.slots(kind, value, num_shards, gradients)
    for name, shards in slots.items():
        came = concatenated(shards)
        expect_close(came, concatenated(whole[name]))
    moved = any(np.any(gradient) for gradient in gradients)
    holds = not moved or any(np.any(concatenated(shards)) for shards in slots.values())
    expect(holds, "All slots are zeros.", "After a gradient some must not be.")


def _register_uneven_slots() -> None:
    layouts: dict[str, tuple[str, st.SearchStrategy[LaidOutCase]]] = {
        "uneven": ("in shards of uneven sizes", uneven_tables(ROWS, 2)),
        "empty-shards": ("where some shards are empty", hollow_tables(ROWS)),
    }
    for suffix, (phrase, start) in layouts.items():

        def lie(adapter: Calls, case: tuple[StepsCase, str]) -> None:
            (value, sizes, gradients), kind = case
            check_uneven_slots(adapter, kind, value, sizes, gradients)

        lie.__doc__ = (
            f"Every slot has as many shards as the variable, each of its shape and with the values "
            f"of its rows, {phrase}"
        )
        rule(f"R-SLOT-1-{suffix}", 5, "000", SLOTS, "slots_uneven slots",
             st.tuples(steps(start), st.sampled_from(["momentum", "adagrad", "adam"])))(lie)  # fmt: skip


def check_uneven_slots(
    adapter: Calls, kind: str, value: Array, sizes: Any, gradients: Sequence[StepGradient]
) -> None:
    """Compare the slots of a layout with the slots of one shard, part by part."""
    came = adapter.slots_uneven(kind, value, sizes, gradients)
    whole = adapter.slots(kind, value, 1, gradients)
    stops = np.cumsum(sizes)
    for name, slot in whole.items():
        expect(name in came, f"It gave the slots {sorted(came)}.", f"It must also give {name!r}.")
        expect(
            len(came[name]) == len(sizes),
            f"The slot {name!r} has {len(came[name])} shards.",
            f"It must have {len(sizes)}.",
        )
        for part, must in zip(came[name], np.split(concatenated(slot), stops[:-1]), strict=True):
            expect_close(part, must)


_register_uneven_slots()
