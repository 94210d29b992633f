"""Levels 5 and 10: steps follow their formulas, on shards as on the whole, slots lie as their
variables do, and a training goes on in another number of shards as if it had never stopped.

The formulas are the plain rules of ``shardvar.spec``, in float64 and on the whole array, as in the
published vectors.
Libraries differ in two constants: Adagrad's squares begin at 0 or at 0.1, and an epsilon of at most
1e-7 keeps a root from being zero. Either beginning is accepted, and gradients are so large that
such an epsilon stays below the tolerance.

At level 10 a training is saved after some steps in one layout, and resumed in another. The value
after the next steps is the formula's for all of them, so moments, steps and hyperparameters must
have come back with the rows.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import permutations, product
from typing import Any, cast

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import Broken, Calls, expect, expect_equal, expect_near, text
from shardvar.conformance.rules import refuses, rule, rules
from shardvar.conformance.rules.cases import (
    LAYOUTS,
    RESTS,
    ShardSizes,
    Start,
    concatenated,
    few_rows,
    fractions,
    hollow_tables,
    made,
    many_shards,
    tables,
    uneven_tables,
    unless_refused,
    value_of,
)
from shardvar.conformance.rules.checkpoints import checkpoint_path, templates_of
from shardvar.layout.dtypes import Array, Shape
from shardvar.spec.gradients import densified
from shardvar.spec.optimizers import RULES, add_slot, apply_gradients
from shardvar.spec.variables import Shards
from shardvar.testing import counting

StepGradient = Array | tuple[Array, Array]
Gradients = list[StepGradient]
StepsCase = tuple[str, Array, ShardSizes, Gradients]
"""A kind, a value, its layout, and a gradient a step."""

KINDS = ("sgd", "momentum", "adagrad", "adam")
UNITS = {"float64": 2.0**-52, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""The distance of 1 to the next number of each dtype."""
FIRST_SQUARES = (0.0, 0.1)
"""The values at which Adagrad's squares may begin: PyTorch's and JAX's, and TensorFlow's."""


_HYPER = {
    "learning_rate": 0.1, "momentum": 0.9, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-30
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


def formulas(kind: str, value: Array, gradients: Sequence[Array]) -> list[Array]:
    """Return the values after the steps, from each of the first squares."""
    firsts = FIRST_SQUARES if kind == "adagrad" else (0.0,)
    return [formula(kind, value, gradients, first) for first in firsts]


def expect_formula(came: Any, kind: str, value: Array, gradients: Sequence[StepGradient]) -> None:
    """``Broken`` unless a value is what the formula gives, from any of the first squares."""
    steps = [dense(gradient, value.shape) for gradient in gradients]
    expect_near(came, *formulas(kind, value, steps), rtol=2e-5, atol=1e-6)


def expect_close(came: Any, must: Array) -> None:
    """``Broken`` unless two arrays agree to 1e-5: libraries order arithmetic differently."""
    # The absolute tolerance is for values near 0, where a relative one would demand more than
    # float32 has.
    expect_near(came, must, rtol=1e-5, atol=1e-6)


def expect_typed(came: Any, *answers: Array, dtype: np.dtype[Any], near: float) -> None:
    """``Broken`` unless a value has a dtype, and is near one of several answers."""
    array = np.asarray(came)
    expect(array.dtype == dtype, f"It gave {array.dtype}.", f"It must give {dtype}.")
    wide = [each.astype(np.float64) for each in (array, *answers)]
    expect_near(*wide, rtol=near, atol=4 * near, share=", to 16 units")


_FEW_MORE = tables(row_shapes=RESTS, max_more=3)


def gradient_of(shape: Sequence[int], number: int) -> Array:
    """The gradient of a step: fractions of either sign, others in every step. None is below 1.5, so
    that an epsilon of 1e-7 does not show; but the third is zeros, by which slots go on."""
    places = np.arange(int(np.prod(shape))).reshape(shape)
    first = ((places * 5 % 17 - 8.3) * 5.1).astype(np.float32)
    return first * np.float32([1, -2, 0, 3, -1][number % 5])


@st.composite
def dense_step_gradients(
    draw: st.DrawFn, shape: Shape, counts: Sequence[int] = (1, 2, 3)
) -> Gradients:
    """Gradients of which the first lies in memory as a product of matrices leaves it that was
    transposed; no two are alike."""
    count = draw(st.sampled_from(counts))
    gradients = [gradient_of(shape, number) for number in range(count)]
    return [*map(np.asfortranarray, gradients[:1]), *gradients[1:]]


@st.composite
def sparse_step_gradients(draw: st.DrawFn, shape: Shape) -> Gradients:
    """A sparse gradient whose ids are unsorted and duplicated, or that has none."""
    ids = draw(st.lists(st.integers(0, shape[0] - 1), max_size=6))
    return [(np.array(ids, np.int64), gradient_of((len(ids), *shape[1:]), 0))]


@st.composite
def mixed_gradients(draw: st.DrawFn, shape: Shape, is_whole: bool = True) -> Gradients:
    """Gradients, dense and sparse; each sparse one has every row, or some."""
    gradients: Gradients = []
    for number in range(draw(st.integers(2, 6))):
        gradient = gradient_of(shape, number)
        # Every row, in any order, and some twice: rows that get no gradient may move or not, as the
        # library chooses.
        rows = np.array(draw(st.permutations(range(shape[0]))))
        rows = np.append(rows, rows[: draw(st.integers(0, 2))])
        if not is_whole:
            rows = rows[: draw(st.integers(1, shape[0]))]
        gradients.append((rows, gradient[rows]) if draw(st.booleans()) else gradient)
    return gradients


GradientsOf = Callable[[tuple[int, ...]], st.SearchStrategy[Gradients]]
some_gradients = partial(mixed_gradients, is_whole=False)
_TWO_TO_SIX = partial(dense_step_gradients, counts=range(2, 7))


@st.composite
def steps(
    draw: st.DrawFn,
    kinds: Sequence[str] = KINDS,
    start: Start = _FEW_MORE,
    gradients: GradientsOf = dense_step_gradients,
) -> StepsCase:
    kind, (value, layout) = draw(st.sampled_from(list(kinds))), draw(start)
    # From zeros every digit of a step counts.
    value *= np.float32(draw(st.booleans()))
    value = np.asarray(value, order=draw(st.sampled_from("CF")))
    return kind, value, layout, draw(gradients(value.shape))


def dense(gradient: StepGradient, shape: Shape) -> Array:
    """A gradient as an array: rows that come several times are summed."""
    if not isinstance(gradient, tuple):
        return gradient
    return densified((gradient[0].tolist(), gradient[1]), shape)


def optimized(adapter: Calls, case: StepsCase) -> Any:
    return (adapter.optimize_uneven if isinstance(case[2], list) else adapter.optimize)(*case)


def check_formula(adapter: Calls, case: StepsCase) -> None:
    kind, value, _, gradients = case
    expect_formula(optimized(adapter, case), kind, value.astype(np.float32), gradients)


rules(
    # The name of sgd's rule is older than the others.
    *(("R-OPT-5-formula" if kind == "sgd" else f"R-OPT-5-formula-{kind}", "optimize",
       steps((kind,), gradients=partial(dense_step_gradients, counts=(0, 1, 2, 13))),
       check_formula, f"Each step of {kind} is that of its formula")
      for kind in KINDS),
    *((f"R-OPT-5-{layout.suffix}", layout.method.replace("create", "optimize"),
       steps(start=layout.tables(RESTS)), check_formula,
       f"Each step of an optimizer is that of its formula, {layout.phrase}")
      for layout in LAYOUTS),
    # One step, and from new slots: whether rows without a gradient move later is the library's choice.
    *(("R-OPT-1" if kind == "sgd" else f"R-OPT-1-{kind}", "optimize",
       steps((kind,), gradients=sparse_step_gradients), check_formula,
       f"A first sparse step of {kind} is that of the formula for the sums of the rows that come several times")
      for kind in KINDS),
    ("R-OPT-1-uneven", "optimize_uneven", steps(KINDS, uneven_tables(RESTS, 2), sparse_step_gradients), check_formula,
     "The same, in shards of uneven sizes"),
    *((f"R-OPT-1-several-{kind}", "optimize", steps((kind,), gradients=gradients), check_formula,
       f"Each of several steps of {kind} is that of its formula, where dense gradients and sparse ones of {rows} "
       "follow one another")
      for kind in KINDS
      for rows, gradients in [("some rows", some_gradients) if kind == "sgd" else ("all rows", mixed_gradients)]),
)  # fmt: skip


@rule("R-OPT-5-dtypes", "optimize",
      st.tuples(st.sampled_from(sorted(UNITS)), steps() | steps(start=uneven_tables(RESTS, 2))))  # fmt: skip
def steps_keep_dtypes(adapter: Calls, case: tuple[str, StepsCase]) -> None:
    """Each step is that of its formula to some units of the dtype, which stays."""
    name, (kind, value, layout, gradients) = case
    dtype = np.dtype(name)
    # Away from 0, where an epsilon that the dtype cannot hold would leave 0 / 0.
    typed = [np.asarray(np.abs(gradient) + 0.25, dtype) for gradient in gradients]
    came = optimized(adapter, (kind, value.astype(dtype), layout, [*typed]))
    # Arithmetic in the dtype itself rounds several times a step.
    answers, near = formulas(kind, value.astype(dtype), typed), max(16 * UNITS[name], 1e-6)
    expect_typed(came, *answers, dtype=dtype, near=near)


@rule("R-OPT-5-still", "optimize", st.tuples(
    st.sampled_from(["sgd", "momentum", "adam"]), st.sampled_from(["float32", "float64"]),
    tables(row_shapes=RESTS), st.integers(1, 2)))  # fmt: skip
def zeros_do_not_move(adapter: Calls, case: tuple[str, str, tuple[Array, int], int]) -> None:
    """Steps by gradients of zeros leave a value as it is, in all of its digits."""
    kind, name, (value, num_shards), count = case
    thirds = value.astype(name) / np.asarray(3, name)
    zeros = [np.zeros_like(thirds)] * count
    expect_equal(adapter.optimize(kind, thirds, num_shards, zeros), thirds)


_TABLES = [counting((4, columns)) for columns in (2, 3)]


@rule("R-OPT-5-shapes", "optimize", [
    (kind, value, 2, [counting(shape)])
    for kind, value in product(KINDS, _TABLES)
    for shape in ((1, *value.shape[1:]), (4, 1), (5, *value.shape[1:]))])  # fmt: skip
def gradients_of_other_shapes_are_refused(adapter: Calls, case: Any) -> None:
    """A gradient of another shape is refused, also if NumPy would broadcast it."""
    adapter.refuses("optimize", *case)


@rule("R-OPT-1-outside", "optimize", [
    (kind, _TABLES[0], count, [(np.array([0, beyond]), counting((2, 2)))])
    for kind, count, beyond in product(KINDS, (1, 2, 4), (-1, 4, 7))])  # fmt: skip
def gradients_outside_are_refused(adapter: Calls, case: Any) -> None:
    """A sparse gradient of a row that is not there is refused."""
    adapter.refuses("optimize", *case)


# Adam gets gradients of 2**-12, whose square is 6e-8. An epsilon of 1e-8 under the root would shorten the step by
# 8 %, and an epsilon of 1e-7 added to a root that still has its bias by 1.3 %. Adagrad gets 2**-5. An epsilon of
# 1e-7 shortens its step by 3e-6, and one of 1e-5 by 3e-5, beside a first square of 0.1.
_SIZES = ("adam", 2.0**-12, 0.03), ("adagrad", 2.0**-5, 1e-5), ("sgd", 2.0**20, 1e-5)


@rule("R-OPT-5-tiny", "optimize", [*product(_SIZES, RESTS, (1, 2), (1, 12))])
def small_and_large_gradients_move(adapter: Calls, case: Any) -> None:
    """By small gradients adam and adagrad move as by others, as far as an epsilon of 1e-7 lets them, and
    by large ones sgd does."""
    (kind, size, near), rest, num_shards, count = case
    zeros = np.zeros((4, *rest), np.float32)
    gradients = [np.full(zeros.shape, size, np.float32)] * count
    came = adapter.optimize(kind, zeros, num_shards, gradients)
    expect_near(came, *formulas(kind, zeros, gradients), rtol=near, atol=0)


def expect_but_nan(came: Any, kind: str, value: Array, gradients: Sequence[StepGradient]) -> None:
    """``Broken`` unless the first element is NaN, and all others are what the formula gives."""
    array, musts = np.array(came), formulas(kind, value, [np.asarray(each) for each in gradients])
    expect(array.shape == value.shape, f"It gave {text(array)}.", f"It must have {value.shape}.")
    is_nan = bool(np.isnan(array.flat[0]))
    expect(is_nan, f"It gave {text(array)}.", "Its first element must be NaN.")
    for each in (array, *musts):
        each.flat[0] = 0
    expect_near(array, *musts, rtol=4e-5, atol=1e-6)


def spoiled(gradients: Sequence[StepGradient]) -> list[StepGradient]:
    """Gradients of which the first element of the first one is NaN."""
    first = np.array(gradients[0])
    first.flat[0] = np.nan
    return [first, *gradients[1:]]


@rule("R-OPT-5-nan", "optimize optimize_uneven",
      steps() | steps(start=uneven_tables(RESTS, 2)))  # fmt: skip
def nan_stays_where_it_is(adapter: Calls, case: StepsCase) -> None:
    """A gradient that is NaN in one element leaves the steps of all others as they are."""
    kind, value, layout, gradients = case
    came = optimized(adapter, (kind, value, layout, spoiled(gradients)))
    expect_but_nan(came, kind, value, gradients)


def other_order(given: Any) -> Any:
    """The same, with arrays of numbers in the other byte order."""
    if isinstance(given, list | tuple):
        return type(given)(map(other_order, given))
    is_number = isinstance(given, np.ndarray) and given.dtype.kind == "f"
    return given.astype(given.dtype.newbyteorder(">")) if is_number else given


rules(*(
    (f"R-OPT-5{suffix}-byte-order", method, steps(start=start).map(other_order), unless_refused(check_formula),
     f"A value and gradients of the other byte order are taken by their values by `{method}`, or refused")
    for suffix, method, start in (("", "optimize", _FEW_MORE), ("-uneven", "optimize_uneven", uneven_tables(RESTS, 2)))
))  # fmt: skip


SLOTTED = ("momentum", "adagrad", "adam")
SLOT_CASES = steps(SLOTTED)


@rule("R-SLOT-1", "slots shards create", SLOT_CASES)
def slots_lie_as_their_variable(adapter: Calls, case: StepsCase) -> None:
    """Every slot of a shape other than a scalar has as many shards as the variable, each of its
    shape."""
    kind, value, num_shards, _ = case
    must = [np.asarray(shard).shape for shard in adapter.shards(adapter.create(value, num_shards))]
    slots = adapter.slots(*case)
    least = 2 if kind == "adam" else 1
    there = f"There are the slots {sorted(slots)}."
    expect(len(slots) >= least, there, f"{kind} must have {least} at least.")
    for name, shards in slots.items():
        expect_shapes(name, shards, must)


def expect_shapes(name: str, shards: Any, must: list[tuple[int, ...]]) -> None:
    """``Broken`` unless the shards of a slot have the shapes of the variable's."""
    came = [np.asarray(shard).shape for shard in shards]
    message = f"The shards of the slot {name!r} have the shapes {came}."
    expect(came == must, message, f"They must have {must}.")


@rule("R-SLOT-1-values", "slots",
      SLOT_CASES | steps(SLOTTED, few_rows(RESTS, 1) | many_shards(RESTS)))  # fmt: skip
def slots_hold_what_they_hold_on_one_shard(adapter: Calls, case: StepsCase) -> None:
    """The shards of every slot are together what the slot of one shard is, and not all of it is
    zero."""
    kind, value, _, gradients = case
    whole = adapter.slots(kind, value, 1, gradients)
    slots = adapter.slots(*case)
    for name, shards in slots.items():
        expect_close(concatenated(shards), concatenated(whole[name]))
    moved = any(np.any(gradient) for gradient in gradients)
    holds = not moved or any(np.any(concatenated(shards)) for shards in slots.values())
    expect(holds, "All slots are zeros.", "After a gradient some must not be.")


def expect_slots(
    came: Any, whole: Any, must: list[tuple[int, ...]], what: str = "the slots "
) -> None:
    """``Broken`` unless the shards of each slot have some shapes, and the values of the whole one."""
    for name, slot in whole.items():
        shards = value_of(came, name, what)
        expect_shapes(name, shards, must)
        expect_close(concatenated(shards), concatenated(slot))


def check_uneven_slots(adapter: Calls, case: StepsCase) -> None:
    """Compare the slots of a layout with the slots of one shard, part by part."""
    kind, value, sizes, gradients = case
    came = adapter.slots_uneven(*case)
    whole = adapter.slots(kind, value, 1, gradients)
    expect_slots(came, whole, [(size, *value.shape[1:]) for size in cast(list[int], sizes)])


# Level 10.


ResumedCase = tuple[str, Array, ShardSizes, ShardSizes, Gradients, Gradients]
"""A kind, a value, the layouts before and after, and the gradients before and after."""


def stepped(gradients: Gradients) -> list[dict[str, StepGradient]]:
    return [{"w": each} for each in gradients]


@contextmanager
def saved_training(adapter: Calls, case: ResumedCase) -> Iterator[str]:
    kind, value, before, _, first, _ = case
    with checkpoint_path(adapter) as path:
        adapter.save_training(path, kind, {"w": value}, before, stepped(first))
        yield path


def resumed_value(adapter: Calls, case: ResumedCase) -> Any:
    kind, value, _, after, _, rest = case
    templates = templates_of({"w": value})
    with saved_training(adapter, case) as path:
        return value_of(adapter.resume_training(path, kind, templates, after, stepped(rest)), "w")


def check_resumed(adapter: Calls, case: ResumedCase) -> None:
    kind, value, _, _, first, rest = case
    came = resumed_value(adapter, case)
    expect_formula(came, kind, value.astype(np.float32), [*first, *rest])


@st.composite
def resumptions(
    draw: st.DrawFn,
    kinds: Sequence[str] = KINDS,
    start: Start = _FEW_MORE,
    is_turned: bool = False,
    gradients: GradientsOf = _TWO_TO_SIX,
) -> ResumedCase:
    """A training that is resumed, with the layout of ``start`` and an even one."""
    value, layout = draw(start)
    value *= np.float32(draw(st.booleans()))
    after = draw(st.integers(1, max(1, min(4, len(value)))))
    layouts: tuple[ShardSizes, ShardSizes] = (layout, after)
    if is_turned and draw(st.booleans()):
        layouts = (after, layout)
    every = draw(gradients(value.shape))
    count = draw(st.integers(1, min(3, len(every) - 1)))
    return draw(st.sampled_from(list(kinds))), value, *layouts, every[:count], every[count:]


_RESUMED = resumptions()
_SLOTTED = resumptions(SLOTTED)


rules(
    *(
        (f"R-SLOT-1-{layout.suffix}", "slots_uneven slots",
         steps(SLOTTED, layout.tables(RESTS)), check_uneven_slots,
         f"Every slot has as many shards as the variable, each of its shape and with the values of its rows, "
         f"{layout.phrase}")
        for layout in LAYOUTS[:2]
    ),
    *((f"R-SLOT-1-{layout.suffix}", "slots shards create", steps(SLOTTED, layout.tables(RESTS)),
       slots_lie_as_their_variable,
       f"Every slot has as many shards as the variable, each of its shape, {layout.phrase}")
      for layout in LAYOUTS[2:]),
    *(
        (f"R-SLOT-2-{kind}", "save_training resume_training", resumptions((kind,)), check_resumed,
         f"A training by {kind} that is saved in some number of shards and resumed in any other goes on by its formula")
        for kind in KINDS
    ),
    *(
        (f"R-SLOT-2-{layout.suffix}", "save_training resume_training",
         resumptions(start=layout.tables(RESTS), is_turned=True), check_resumed,
         f"A training is resumed from or in another layout, and goes on by its formula, {layout.phrase}")
        for layout in LAYOUTS
    ),
    ("R-SLOT-2", "save_training resume_training",
     _RESUMED, lambda adapter, case: check_resumed(adapter, (*case[:5], [])),
     "Without a further step, a resumed variable has the value that it was saved with"),
    ("R-SLOT-2-new", "save_training resume_training",
     _RESUMED, lambda adapter, case: check_resumed(adapter, (*case[:4], [], case[5])),
     "A training that is saved before its first step begins there when it is resumed"),
)  # fmt: skip


@rule("R-SLOT-2-sparse", "save_training resume_training optimize",
      resumptions(start=_FEW_MORE | uneven_tables(RESTS, 2), is_turned=True, gradients=some_gradients))  # fmt: skip
def sparse_trainings_are_resumed(adapter: Calls, case: ResumedCase) -> None:
    """A training by sparse gradients of some rows goes on as one that was never interrupted."""
    kind, value, before, _, first, rest = case
    must = np.asarray(optimized(adapter, (kind, value, before, [*first, *rest])))
    expect_close(resumed_value(adapter, case), must)


@rule("R-SLOT-2-dtypes", "save_training resume_training optimize",
      st.tuples(st.sampled_from(sorted(UNITS)), resumptions()))  # fmt: skip
def trainings_keep_dtypes(adapter: Calls, case: tuple[str, ResumedCase]) -> None:
    """A training of another dtype goes on as one that was never interrupted, to some units of its
    dtype."""
    name, (kind, value, before, after, first, rest) = case
    dtype = np.dtype(name)
    # Away from 0, as at level 5. A third has all digits that the dtype holds.
    typed = [np.asarray((np.abs(each) + 0.25) / 3, dtype) for each in [*first, *rest]]
    value = value.astype(dtype)
    must = np.asarray(adapter.optimize(kind, value, before, typed))
    count = len(first)
    training: ResumedCase = kind, value, before, after, [*typed[:count]], [*typed[count:]]
    expect_typed(resumed_value(adapter, training), must, dtype=dtype, near=16 * UNITS[name])


@rule("R-SLOT-2-long", "save_training resume_training optimize",
      [(counting((3,)), 300)])  # fmt: skip
def long_trainings_are_resumed(adapter: Calls, case: tuple[Array, int]) -> None:
    """After hundreds of steps of adam the number of steps is still known."""
    value, count = case
    # Adam corrects the bias of the squares by 1 - 0.999**step: 0.23 after 256 steps, 0.26 after
    # 300. From the last step on the gradient is small, so that the steps are of the past squares.
    gradients: Gradients = [gradient_of(value.shape, 1)] * count
    last: Gradients = [np.full(value.shape, 2.0**-6, np.float32)] * 8
    must = np.asarray(adapter.optimize("adam", value, 1, [*gradients, *last]))
    came = resumed_value(adapter, ("adam", value, 1, 2, gradients, last))
    expect_near(came, must, rtol=0, atol=1e-3, share=", to a thousandth")


@rule("R-SLOT-2-twice", "save_training resume_training", _RESUMED)
def a_checkpoint_is_resumed_twice(adapter: Calls, case: ResumedCase) -> None:
    """Training on after a restore changes neither the checkpoint nor the templates."""
    kind, value, before, after, first, rest = case
    templates, steps = templates_of({"w": value}), stepped(rest)
    with saved_training(adapter, case) as path:
        adapter.resume_training(path, kind, templates, after, steps)
        came = adapter.resume_training(path, kind, templates, before, steps)
        expect_formula(value_of(came, "w"), kind, value, [*first, *rest])


# Several variables of one optimizer.

ALIKE = ("w", "w/m", "w/v", "w/momentum", "w/accumulator", "w_m", "m", "m/w", "step", "steps", "slots/m/w",
         "layer_" * 14, "layer_" * 14 + "2")  # fmt: skip
"""Names of variables that a slot or the number of steps might have."""


def check_several(
    adapter: Calls, case: ResumedCase, names: Sequence[str], resumed: Sequence[str]
) -> None:
    """Train variables by one optimizer, resume some of them in another order."""
    kind, value, before, after, first, rest = case
    # Each variable has its own gradients, so that slots of another one show.
    scales = {name: np.float32(number + 1) for number, name in enumerate(names)}

    def of(name: str, array: Any) -> Array:
        # Every second one has twice as many rows, and every third one an axis more.
        scale = scales[name]
        scaled = np.concatenate([array * scale] * (2 - int(scale) % 2))
        return scaled if scale % 3 else scaled[..., None]

    def step_of(names: Sequence[str], gradients: Gradients) -> list[dict[str, Array]]:
        return [{name: of(name, each) for name in names} for each in gradients]

    values = {name: of(name, value) for name in names}
    templates = templates_of({name: values[name] for name in resumed})
    with checkpoint_path(adapter) as path:
        # Gradients belong to variables by their names, and not by their places.
        adapter.save_training(path, kind, values, before, step_of(names[::-1], first))
        came = adapter.resume_training(path, kind, templates, after, step_of(resumed, rest))
        for name in resumed:
            steps: Gradients = [of(name, each) for each in [*first, *rest]]
            expect_formula(value_of(came, name), kind, values[name], steps)


# The second and the fourth have one shape.
_ORDERS = [tuple(order) for count in (4, 2, 1) for order in permutations("abcd", count)]


def check_resumed_nan(adapter: Calls, case: ResumedCase) -> None:
    kind, value, before, after, first, rest = case
    came = resumed_value(adapter, (kind, value, before, after, spoiled(first), rest))
    expect_but_nan(came, kind, value, [*first, *rest])


# Slots as such.


def check_restored_slots(adapter: Calls, case: ResumedCase) -> None:
    kind, value, _, after, first, _ = case
    must = adapter.slots(kind, value, 1, first)
    layout = [np.asarray(each).shape for each in adapter.shards(made(adapter, value, after))]
    templates = templates_of({"w": value})
    with saved_training(adapter, case) as path:
        came = value_of(adapter.resumed_slots(path, kind, templates, after, []), "w")
    expect_slots(came, must, layout, "")


rules(
    ("R-SLOT-2-several", "save_training resume_training",
     st.tuples(st.sampled_from(_ORDERS), resumptions(SLOTTED)),
     lambda adapter, case: check_several(adapter, case[1], "abcd", case[0]),
     "Of several variables of one optimizer each has its own slots again, in whatever order they are resumed, and "
     "if only some are"),
    ("R-SLOT-2-names", "save_training resume_training",
     _SLOTTED, partial(check_several, names=ALIKE, resumed=ALIKE[::-1]),
     "Variables may have names that slots might have, and long names that differ only at their ends"),
    ("R-SLOT-2-byte-order", "save_training resume_training", _RESUMED.map(other_order), unless_refused(check_resumed),
     "Values and gradients of the other byte order are taken by their values, or refused"),
    ("R-SLOT-2-nan", "save_training resume_training", _RESUMED, check_resumed_nan,
     "A value and slots that are NaN in one element are restored, and all others go on as if they were not"),
    ("R-SLOT-2-slots", "save_training resumed_slots slots shards create",
     _SLOTTED, check_restored_slots,
     "Restored slots have a shard for each one of the variable, of its shape, and together the values that were "
     "saved"),
    ("R-SLOT-2-slots-uneven", "save_training resumed_slots slots shards create create_uneven",
     resumptions(SLOTTED, start=uneven_tables(RESTS, 2) | hollow_tables(RESTS), is_turned=True), check_restored_slots,
     "The same, from or in shards of uneven sizes, some of them empty"),
)  # fmt: skip


@st.composite
def misfits(draw: st.DrawFn) -> tuple[ResumedCase, dict[str, Array]]:
    """A training, and a template that is not of it."""
    case = draw(resumptions())
    value = case[1]
    shape = value.shape
    others = [(shape[0] + 1, *shape[1:]), (shape[0] - 1, *shape[1:]), (*shape, 2)]
    wrong = [{"w": np.zeros(other, value.dtype)} for other in others]
    return case, draw(st.sampled_from([*wrong, {"w": value, "never": value}]))


@rule("R-SLOT-2-refused", "save_training resume_training", misfits())
def other_variables_are_refused(adapter: Calls, case: tuple[ResumedCase, dict[str, Array]]) -> None:
    """Resuming with a variable that was not saved, or of another shape, is refused."""
    training, wrong = case
    kind, _, _, after, *_ = training
    with saved_training(adapter, training) as path:
        adapter.refuses("resume_training", path, kind, templates_of(wrong), after, [])


# What was given stays, and refusals.


def check_given(adapter: Calls, case: tuple[str, bool], method: str) -> None:
    """Train, and compare the arguments with their values before."""
    kind, is_sparse = case
    value, gradient = counting((4, 2)), fractions((4, 2))
    steps: Gradients = [(np.array([2, 0, 2, 3]), gradient)] if is_sparse else [gradient]
    steps.append(np.full((4, 2), 0.5, np.float32))
    given = [value, gradient, steps[1]]
    before = [np.array(each) for each in given]
    layout: ShardSizes = [1, 3] if method.endswith("uneven") else 2
    if method in ("optimize", "optimize_uneven", "slots", "slots_uneven"):
        getattr(adapter, method)(kind, value, layout, steps)
    else:
        with checkpoint_path(adapter) as path:
            adapter.save_training(path, kind, {"w": value}, layout, stepped(steps))
            if method != "save_training":
                templates = {"w": value} if is_sparse else templates_of({"w": value})
                getattr(adapter, method)(path, kind, templates, 2, stepped(steps))
    for each, must in zip(given, before, strict=True):
        if not np.array_equal(each, must):
            raise Broken(f"An array that was given now holds {text(each)}.", "It must stay.")


rules(
    *((f"{name}-memory", f"{method} save_training" if name.startswith("R-SLOT-2-") else method,
       [*product(SLOTTED if "slots" in method else KINDS, (False, True))], partial(check_given, method=method),
       f"`{method}` does not change the arrays that it is given")
      for name, method in (
          ("R-OPT-5", "optimize"), ("R-OPT-5-uneven", "optimize_uneven"), ("R-SLOT-1", "slots"),
          ("R-SLOT-1-uneven", "slots_uneven"), ("R-SLOT-2", "save_training"), ("R-SLOT-2-resumed", "resume_training"),
          ("R-SLOT-2-slots", "resumed_slots"))),
    *((f"{name}-none", method, [("momentum", counting((4, 2)), count, [counting((4, 2))]) for count in (0, -1)],
       refuses(method), f"`{method}` in fewer shards than one is refused")
      for name, method in (("R-OPT-5", "optimize"), ("R-SLOT-1", "slots"))),
)  # fmt: skip
