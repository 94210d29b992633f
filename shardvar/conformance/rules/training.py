"""Level 10: a training goes on in another number of shards as if it had never stopped.

It is saved after some steps in one layout, and resumed in another. The value after the next steps is
that of the formula for all of them, so moments, steps and hyperparameters must have come back with
the rows. The tolerance is that of level 5.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import Broken, Calls, expect, text
from shardvar.conformance.registry import rule
from shardvar.conformance.rules.cases import (
    ShardSizes,
    concatenated,
    few_rows,
    hollow_tables,
    made,
    many_shards,
    tables,
    uneven_tables,
)
from shardvar.conformance.rules.checkpoints import checkpoint_path, templates_of
from shardvar.conformance.rules.optimizers import (
    KINDS,
    ROWS,
    UNITS,
    StepGradient,
    expect_close,
    expect_formula,
    quarters,
)
from shardvar.layout.dtypes import Array
from shardvar.testing import counting

RESUMED = (
    "At saving/loading time, optimizer sees sharded variable as a ShardedVariable instance for the "
    "purpose of elastic saving and loading."
)

Gradients = list[StepGradient]
ResumedCase = tuple[str, Array, ShardSizes, ShardSizes, Gradients, Gradients]
"""A kind, a value, the layouts before and after, and the gradients before and after."""


def resumed_values(
    adapter: Calls, path: str, case: ResumedCase, templates: Mapping[str, Array]
) -> Any:
    """Save a training of the variable ``w``, resume it, and return what is answered."""
    kind, value, before, after, first, rest = case
    adapter.save_training(path, kind, {"w": value}, before, [{"w": each} for each in first])
    return adapter.resume_training(path, kind, templates, after, [{"w": each} for each in rest])


def check_resumed(adapter: Calls, case: ResumedCase) -> None:
    """Save after some steps, resume, and compare with the formula for all steps."""
    kind, value, _, _, first, rest = case
    with checkpoint_path(adapter) as path:
        came = resumed_values(adapter, path, case, templates_of({"w": value}))
        expect_formula(value_of(came, "w"), kind, value, [*first, *rest])


def value_of(came: Any, key: str) -> Any:
    """A value of an answer; ``Broken`` if it is missing."""
    expect(key in came, f"It gave {sorted(came)}.", f"It must also give {key!r}.")
    return came[key]


@st.composite
def dense_steps(
    draw: st.DrawFn, shape: tuple[int, ...], least: int = 1
) -> tuple[Gradients, Gradients]:
    """Gradients before the save, and after it; no two steps have the same."""
    before, after = draw(st.integers(least, 3)), draw(st.integers(1, 3))
    every: Gradients = [quarters(shape, number) for number in range(before + after)]
    return every[:before], every[before:]


@st.composite
def resumptions(
    draw: st.DrawFn,
    kinds: Sequence[str] = KINDS,
    start: st.SearchStrategy[tuple[Array, ShardSizes]] | None = None,
    is_turned: bool = False,
) -> ResumedCase:
    """A training that is resumed; one of its layouts is that of ``start``, the other is even."""
    if start is None:
        before, after = draw(st.integers(1, 4)), draw(st.integers(1, 4))
        rows = max(before, after) + draw(st.integers(0, 3))
        value = counting((rows, *draw(st.sampled_from(ROWS))))
        layout: ShardSizes = before
    else:
        value, layout = draw(start)
        after = draw(st.integers(1, max(1, min(4, len(value)))))
    layouts: tuple[ShardSizes, ShardSizes] = (layout, after)
    if is_turned and draw(st.booleans()):
        layouts = (after, layout)
    first, rest = draw(dense_steps(value.shape))
    return draw(st.sampled_from(list(kinds))), value, *layouts, first, rest


def _register_kinds() -> None:
    for kind in KINDS:

        def goes_on(adapter: Calls, case: ResumedCase) -> None:
            check_resumed(adapter, case)

        goes_on.__doc__ = (
            f"A training by {kind} that is saved in some number of shards and resumed in any other "
            "goes on by its formula"
        )
        rule(f"R-SLOT-2-{kind}", 10, "000", RESUMED, "save_training resume_training",
             resumptions((kind,)))(goes_on)  # fmt: skip


_register_kinds()


def _register_layouts() -> None:
    layouts: dict[str, tuple[str, Any]] = {
        "uneven": ("from or in shards of uneven sizes", uneven_tables(ROWS, 2)),
        "empty-shards": ("from or in shards of which some are empty", hollow_tables(ROWS)),
        "few-rows": ("from or in more shards than it has rows", few_rows(ROWS, 1)),
        "many": ("from or in more than ten shards", many_shards(ROWS)),
    }
    for suffix, (phrase, start) in layouts.items():

        def goes_on(adapter: Calls, case: ResumedCase) -> None:
            check_resumed(adapter, case)

        goes_on.__doc__ = f"A training is resumed {phrase}, and goes on by its formula"
        rule(f"R-SLOT-2-{suffix}", 10, "000", RESUMED, "save_training resume_training",
             resumptions(start=start, is_turned=True))(goes_on)  # fmt: skip


_register_layouts()


@rule("R-SLOT-2", 10, "000", RESUMED, "save_training resume_training", resumptions())
def a_restore_is_no_step(adapter: Calls, case: ResumedCase) -> None:
    """Without a further step, a resumed variable has the value that it was saved with."""
    kind, value, before, after, first, _ = case
    check_resumed(adapter, (kind, value, before, after, first, []))


@st.composite
def before_a_step(draw: st.DrawFn) -> ResumedCase:
    """A training that was saved before its first step, which is when many libraries make slots."""
    kind, value, before, after, _, rest = draw(resumptions())
    return kind, value, before, after, [], rest


@rule("R-SLOT-2-new", 10, "000", RESUMED, "save_training resume_training", before_a_step())
def new_trainings_are_resumed(adapter: Calls, case: ResumedCase) -> None:
    """A training that is saved before its first step begins there when it is resumed."""
    check_resumed(adapter, case)


@st.composite
def sparse_resumptions(draw: st.DrawFn) -> ResumedCase:
    """A training whose gradients are dense, or sparse ones of some rows."""
    kind, value, before, after, first, rest = draw(
        resumptions(start=tables(row_shapes=((2,),), max_more=3))
    )

    def thinned(gradient: Any) -> StepGradient:
        if draw(st.booleans()):
            return np.asarray(gradient)
        rows = np.array(draw(st.permutations(range(len(value)))))
        rows = np.append(rows, rows[:1])[: draw(st.integers(1, len(value) + 1))]
        return rows, gradient[rows]

    return kind, value, before, after, [*map(thinned, first)], [*map(thinned, rest)]


@rule("R-SLOT-2-sparse", 10, "000", RESUMED, "save_training resume_training optimize",
      sparse_resumptions())  # fmt: skip
def sparse_trainings_are_resumed(adapter: Calls, case: ResumedCase) -> None:
    """A training by sparse gradients of some rows goes on as one that was never interrupted."""
    kind, value, before, _, first, rest = case
    must = np.asarray(adapter.optimize(kind, value, before, [*first, *rest]))
    with checkpoint_path(adapter) as path:
        came = resumed_values(adapter, path, case, templates_of({"w": value}))
        expect_close(value_of(came, "w"), must)


@rule("R-SLOT-2-dtypes", 10, "000", RESUMED, "save_training resume_training optimize",
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
    split: tuple[Gradients, Gradients] = [*typed[: len(first)]], [*typed[len(first) :]]
    with checkpoint_path(adapter) as path:
        resumed = resumed_values(
            adapter, path, (kind, value, before, after, *split), templates_of({"w": value})
        )
        came = np.asarray(value_of(resumed, "w"))
        near = np.float64(16 * UNITS[name])
        is_near = came.shape == must.shape and np.allclose(
            came.astype(np.float64), must.astype(np.float64), rtol=near, atol=near
        )
        if came.dtype != must.dtype or not is_near:
            raise Broken(f"It gave {text(came)}.", f"It must give {text(must)}, to 16 units.")


@rule("R-SLOT-2-long", 10, "000", RESUMED, "save_training resume_training optimize",
      st.just((counting((3,)), 300)))  # fmt: skip
def long_trainings_are_resumed(adapter: Calls, case: tuple[Array, int]) -> None:
    """After hundreds of steps of adam the number of steps is still known."""
    value, count = case
    # Adam corrects the bias of the squares by 1 - 0.999**step: 0.23 after 256 steps, 0.26 after
    # 300. From the last step on the gradient is small, so that the steps are of the past squares.
    gradients: Gradients = [quarters(value.shape, 1)] * count
    last: Gradients = [np.full(value.shape, 2.0**-6, np.float32)] * 8
    must = np.asarray(adapter.optimize("adam", value, 1, [*gradients, *last]))
    with checkpoint_path(adapter) as path:
        training: ResumedCase = ("adam", value, 1, 2, gradients, last)
        resumed = resumed_values(adapter, path, training, templates_of({"w": value}))
        came = np.asarray(value_of(resumed, "w"))
        if came.shape != must.shape or not np.allclose(came, must, rtol=0, atol=1e-3):
            raise Broken(f"It gave {text(came)}.", f"It must give {text(must)}, to a thousandth.")


@rule("R-SLOT-2-twice", 10, "000", RESUMED, "save_training resume_training", resumptions())
def a_checkpoint_is_resumed_twice(adapter: Calls, case: ResumedCase) -> None:
    """Training on after a restore changes neither the checkpoint nor the templates."""
    kind, value, before, after, first, rest = case
    templates = templates_of({"w": value})
    steps = [{"w": each} for each in rest]
    with checkpoint_path(adapter) as path:
        adapter.save_training(path, kind, {"w": value}, before, [{"w": each} for each in first])
        adapter.resume_training(path, kind, templates, after, steps)
        came = adapter.resume_training(path, kind, templates, before, steps)
        expect_formula(value_of(came, "w"), kind, value, [*first, *rest])


# Several variables of one optimizer.

ALIKE = ("w", "w/m", "w/v", "w/momentum", "w/accumulator", "w_m", "m", "m/w", "step", "slots/m/w")
"""Names of variables that a slot or the number of steps might have."""
_SLOTTED = ("momentum", "adagrad", "adam")


def check_several(
    adapter: Calls, case: ResumedCase, names: Sequence[str], resumed: Sequence[str]
) -> None:
    """Train variables by one optimizer, resume some of them in another order."""
    kind, value, before, after, first, rest = case
    # Each variable has its own gradients, so that slots of another one show.
    scales = {name: np.float32(number + 1) for number, name in enumerate(names)}

    def of(names: Sequence[str], gradients: Gradients) -> list[dict[str, Array]]:
        return [{name: np.asarray(each) * scales[name] for name in names} for each in gradients]

    values = {name: value * scale for name, scale in scales.items()}
    templates = templates_of({name: values[name] for name in resumed})
    with checkpoint_path(adapter) as path:
        adapter.save_training(path, kind, values, before, of(names, first))
        came = adapter.resume_training(path, kind, templates, after, of(resumed, rest))
        for name in resumed:
            steps: Gradients = [step[name] for step in of(names, [*first, *rest])]
            expect_formula(value_of(came, name), kind, values[name], steps)


_ORDERS = [tuple(order) for count in (3, 2, 1) for order in permutations("abc", count)]


@rule("R-SLOT-2-several", 10, "000", RESUMED, "save_training resume_training",
      st.tuples(st.sampled_from(_ORDERS), resumptions(_SLOTTED)))  # fmt: skip
def slots_follow_their_variables(adapter: Calls, case: tuple[tuple[str, ...], ResumedCase]) -> None:
    """Of several variables of one optimizer each has its own slots again, in whatever order they
    are resumed, and if only some are."""
    check_several(adapter, case[1], "abc", case[0])


@rule("R-SLOT-2-names", 10, "000", RESUMED, "save_training resume_training",
      resumptions(_SLOTTED))  # fmt: skip
def names_of_slots_are_names_of_variables(adapter: Calls, case: ResumedCase) -> None:
    """Variables may have names that slots might have."""
    check_several(adapter, case, ALIKE, ALIKE[::-1])


# Slots as such.


def check_restored_slots(adapter: Calls, case: ResumedCase) -> None:
    """Compare restored slots with those before the save, and their shards with the variable's."""
    kind, value, before, after, first, _ = case
    must = adapter.slots(kind, value, 1, first)
    layout = [np.asarray(each).shape for each in adapter.shards(made(adapter, value, after))]
    with checkpoint_path(adapter) as path:
        adapter.save_training(path, kind, {"w": value}, before, [{"w": each} for each in first])
        came = value_of(
            adapter.resumed_slots(path, kind, templates_of({"w": value}), after, []), "w"
        )
    for name, whole in must.items():
        shards = [np.asarray(each) for each in value_of(came, name)]
        shapes = [each.shape for each in shards]
        expect(
            shapes == layout,
            f"The shards of the slot {name!r} have the shapes {shapes}.",
            f"They must have {layout}.",
        )
        expect_close(concatenated(shards), concatenated(whole))


@rule("R-SLOT-2-slots", 10, "000", RESUMED, "save_training resumed_slots slots shards create",
      resumptions(_SLOTTED))  # fmt: skip
def restored_slots_lie_as_their_variable(adapter: Calls, case: ResumedCase) -> None:
    """Restored slots have a shard for each one of the variable, of its shape, and together the
    values that were saved."""
    check_restored_slots(adapter, case)


@rule("R-SLOT-2-slots-uneven", 10, "000", RESUMED,
      "save_training resumed_slots slots shards create create_uneven",
      resumptions(_SLOTTED, start=uneven_tables(ROWS, 2), is_turned=True))  # fmt: skip
def restored_slots_are_uneven(adapter: Calls, case: ResumedCase) -> None:
    """The same, from or in shards of uneven sizes."""
    check_restored_slots(adapter, case)


@st.composite
def misfits(draw: st.DrawFn) -> tuple[ResumedCase, dict[str, Array]]:
    """A training, and a template that is not of it."""
    case = draw(resumptions())
    value = case[1]
    shape = value.shape
    others = [(shape[0] + 1, *shape[1:]), (shape[0] - 1, *shape[1:]), (*shape, 2)]
    if draw(st.booleans()):
        return case, {"w": value, "never": value}
    return case, {"w": np.zeros(draw(st.sampled_from(others)), value.dtype)}


@rule("R-SLOT-2-refused", 10, "000", RESUMED, "save_training resume_training", misfits())
def other_variables_are_refused(adapter: Calls, case: tuple[ResumedCase, dict[str, Array]]) -> None:
    """Resuming with a variable that was not saved, or of another shape, is refused."""
    (kind, value, before, after, first, _), wrong = case
    with checkpoint_path(adapter) as path:
        adapter.save_training(path, kind, {"w": value}, before, [{"w": each} for each in first])
        adapter.refuses("resume_training", path, kind, templates_of(wrong), after, [])
