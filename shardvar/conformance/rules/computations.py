"""All levels: methods that compute, with the numbers that their dtypes hold, fractions whose digits no
narrower dtype has, repeated ids, and arrays that must stay as they were given.

Inputs that few implementations support may be refused; an answer must be right.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import (
    REFUSED,
    Broken,
    Calls,
    expect,
    expect_equal,
    expect_near,
    text,
)
from shardvar.conformance.rules import rule, rules
from shardvar.conformance.rules.cases import concatenated, refuses_write
from shardvar.conformance.rules.checkpoints import (
    checkpoint_path,
    templates_of,
)
from shardvar.conformance.rules.meshes import PAGE, TERMS
from shardvar.conformance.rules.optimizers import (
    COMPONENTS,
    KINDS,
    RESUMED,
    SLOTS,
    SLOTTED,
    SPARSE,
    expect_shapes,
    formulas,
    value_of,
)
from shardvar.conformance.rules.products import (
    COMPLEX,
    INTEGERS,
    LAWS,
    MEMORY,
    REALS,
    RESTS,
    ROWS,
    numbers,
    refusable,
)
from shardvar.conformance.rules.updates import CLIPPED, COMPOSE, LOOKUP, WRITES
from shardvar.conformance.rules.variables import (
    PRODUCT,
)
from shardvar.layout.dtypes import Array
from shardvar.spec.lookups import embedding_lookup_sparse
from shardvar.testing import counting

# Methods that compute.

_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum
}  # fmt: skip


def check_computed(call: Callable[[], Any], must: Array, ulps: int = 1) -> None:
    came = refusable(call)
    if came is not REFUSED:
        expect_equal(came, must, ulps=ulps)


def _computable(name: str, shift: int) -> Array:
    """Numbers of any kind, of which complex ones are finite: infinite ones have no one sum."""
    some = numbers(name, (9, 2), shift)
    if some.dtype.kind == "c":
        some = np.where(np.isfinite(some) & (np.abs(some) < 1e9), some, (shift + 1) * (1 / 3 - 2j))
    return some.astype(name)


def check_sums(adapter: Calls, name: str, op: str) -> None:
    """Add or subtract all kinds of numbers of a dtype."""
    value, other = (_computable(name, shift) for shift in (0, 5))
    with np.errstate(all="ignore"):
        must = _UFUNCS[op](value, other)
    method = f"assign_{op}"
    check_computed(
        lambda: adapter.read(getattr(adapter, method)(adapter.create(value, 2), other)), must
    )


def check_scattered(adapter: Calls, case: tuple[str, str], op: str) -> None:
    """Write all kinds of numbers to different rows, or numbers of one sign to repeated ones."""
    name, kind = case
    value, operands = (_computable(name, shift) for shift in (0, 5))
    rows = np.arange(9)[::-1].copy()
    if kind != "any":
        # Halves and powers of 2, which no order of operands rounds.
        sign, dtype = (1 if kind == "positive" else -1), np.dtype(name)
        rows = np.array([3, 0, 3, 1, 0, 3])
        halves = np.array([[2, 4], [1, 8], [4, 2], [2, 2], [8, 1], [1, 4]])
        value, operands = counting((5, 2)) * 3 * sign, halves * sign
        if dtype.kind == "c":
            value, operands = value * (1 - 2j), operands * (1 + 1j)
        with np.errstate(invalid="ignore"):
            value, operands = (
                each.astype("int64" if dtype.kind in "iu" else dtype).astype(dtype)
                for each in (value, operands)
            )
    must = value.copy()
    with np.errstate(all="ignore"):
        _UFUNCS[op].at(must, rows, operands)
    check_computed(
        lambda: adapter.read(adapter.scatter(adapter.create(value, 2), op, rows, operands)), must, 4
    )


def _dtypes_of(op: str) -> list[str]:
    # NumPy orders complex numbers, which few others do; products of infinite ones are defined nowhere.
    return [*INTEGERS, *REALS[1:]] + (COMPLEX if op in ("add", "sub") else [])


rules(3, "000",
    *((f"R-SV-3-assign-{op}-numbers", WRITES, f"assign_{op} create read",
       st.sampled_from([*INTEGERS, *REALS, *COMPLEX]), partial(check_sums, op=op),
       f"`assign_{op}` computes with numbers of any dtype as NumPy does, or is refused") for op in ("add", "sub")),
    *((f"R-SV-3-scatter-{op}-numbers", WRITES, "scatter create read",
       st.sampled_from([*product(_dtypes_of(op), ("any", "positive", "negative"))]), partial(check_scattered, op=op),
       f"`scatter` of {op} computes with numbers of any dtype and sign as NumPy does, or is refused, also where ids "
       "come several times")
      for op in _UFUNCS),
    ("R-VAR-2-scatter-none", COMPOSE, "scatter create read",
     st.sampled_from([*product(((1, 2), (2, 2), (0, 3)), ("add", "update"))]),
     lambda adapter, case: refuses_write(
         adapter, counting((4, 2)), adapter.create(counting((4, 2)), 2), "scatter", case[1],
         np.zeros(0, np.int64), counting(case[0]) + np.float32(100)),
     "Operands of another shape than a row are refused also if there are no ids"),
)  # fmt: skip


@rule(
    "R-MATMUL-1-refused",
    2,
    "000",
    PRODUCT,
    "matmul create",
    st.sampled_from([(2, 3), (2, 5), (3, 1)]),
)
def products_fit(adapter: Calls, shape: tuple[int, int]) -> None:
    """A product with an array of another number of columns than there are rows is refused."""
    adapter.refuses("matmul", counting(shape), adapter.create(counting((ROWS, 2)), 2))


@rule("R-MATMUL-1-numbers", 2, "000", PRODUCT, "matmul create", st.sampled_from(
    [*product(("int32", "int64", "uint8", "uint64", "float32", "float64", *COMPLEX), (1, 2))]))  # fmt: skip
def products_keep_digits(adapter: Calls, case: tuple[str, int]) -> None:
    """A product is refused, or right in all of the digits that its dtype has."""
    name, num_shards = case
    dtype = np.dtype(name)
    # Products of both are beyond 2**53, and three of them are in the dtype.
    large = {"int32": 2**14, "int64": 2**30, "uint64": 2**31}.get(name, 0)
    value, left = (
        counting((3, 2), "int64") + large,
        counting((2, 3), "int64") - 4 * (name != "uint64"),
    )
    if dtype.kind in "iu":
        value, left = value.astype(dtype), (np.abs(left) + large if large else left).astype(dtype)
        must, near = left @ value, 0.0
    else:
        factor = 1 + 2j if dtype.kind == "c" else 1
        value, left = (value * factor / 3).astype(dtype), (left * factor / 7).astype(dtype)
        must, near = (left.astype(np.complex128 if dtype.kind == "c" else np.float64) @ value), 2.0
        near *= 16 * float(np.finfo(dtype).eps)
    came = refusable(lambda: np.asarray(adapter.matmul(left, adapter.create(value, num_shards))))
    if came is not REFUSED:
        expect(came.dtype == dtype, f"It gave {came.dtype}.", f"It must give {name}.")
        if near:
            expect_near(came, must.astype(dtype), rtol=near, atol=near)
        else:
            expect_equal(came, must)


def _fractions(shape: Sequence[int], dtype: str = "float32") -> Array:
    """Numbers of either sign and below 1, with all digits of their dtype."""
    numbers = np.arange(1, int(np.prod(shape)) + 1).reshape(shape)
    return ((numbers * 5 % 17 - 8) / 8.7).astype(dtype)


_COMBINERS = ("sum", "mean", "sqrtn")
_BAGS, _WEIGHTS = [[0, 2], [1], [1, 1, 0]], [[1 / 3, 0.1], [2.7], [1e-3, 0.7, 1 / 7]]


@rule("R-LOOKUP-2-bags-numbers", 3, "000", LOOKUP, "lookup_bags create", st.sampled_from(
    [*product(_COMBINERS, ("float32", "float64"), ((2,), (2, 2)), (1, 2))]))  # fmt: skip
def bags_keep_digits(adapter: Calls, case: tuple[str, str, tuple[int, ...], int]) -> None:
    """A bag of fractions by weights of any size is right in all of their digits, or refused where it
    is not of float32 or its rows have several axes. A NaN in another row does not reach it."""
    combiner, name, rest, num_shards = case
    value = _fractions((ROWS, *rest), name)
    value[3] = np.nan
    # Of float64 only weights that float32 holds, in which they may be given.
    weights = _WEIGHTS if name == "float32" else [[0.5, 4.0], [0.25], [8.0, 0.5, 2.0]]
    entries = [
        (n, one, weights[n][at]) for n, bag in enumerate(_BAGS) for at, one in enumerate(bag)
    ]
    must = embedding_lookup_sparse([value], entries, len(_BAGS), combiner)

    def call() -> Any:
        return adapter.lookup_bags(adapter.create(value, num_shards), _BAGS, weights, combiner)

    came = call() if (name, len(rest)) == ("float32", 1) else refusable(call)
    if came is not REFUSED:
        expect_near(came, must, rtol=2e-6 if name == "float32" else 1e-14, atol=1e-7)


@rule("R-LOOKUP-2-bags-refused", 3, "000", LOOKUP, "lookup_bags create", st.sampled_from(
    [*product(([[1.0], [1.0]], [[1.0, 2.0, 3.0], [1.0]], [[1.0, 2.0]]), _COMBINERS)]))  # fmt: skip
def weights_are_counted(adapter: Calls, case: tuple[list[list[float]], str]) -> None:
    """Bags with more or fewer weights than ids are refused: no weight is made up."""
    weights, combiner = case
    handle = adapter.create(counting((4, 2)), 2)
    adapter.refuses("lookup_bags", handle, [[0, 1], [2]], weights, combiner)


@rule("R-LOOKUP-4-numbers", 3, "002", CLIPPED, "lookup_clipped create", st.sampled_from(
    [*product(("float32", "float64"), RESTS, (0.1, 0.3, 3.0))]))  # fmt: skip
def clipped_rows_keep_digits(adapter: Calls, case: tuple[str, tuple[int, ...], float]) -> None:
    """Rows of fractions are clipped in all of their digits, or refused where they are not of float32;
    a NaN in one row does not reach another."""
    name, rest, most = case
    value = _fractions((ROWS, *rest), name)
    value[3] = np.nan
    wanted = np.array([2, 0, 1, 0])
    wide = value.astype(np.float64).reshape(ROWS, -1)
    scale = np.minimum(1, most / np.sqrt((wide**2).sum(axis=1)))
    must = (wide * scale[:, None]).reshape(value.shape)[wanted].astype(name)

    def call() -> Any:
        return adapter.lookup_clipped(adapter.create(value, 2), wanted, most)

    came = call() if name == "float32" else refusable(call)
    if came is not REFUSED:
        expect_equal(came, must, ulps=16)


def check_reduced_numbers(adapter: Calls, case: tuple[str, str]) -> None:
    name, op = case
    terms = [_computable(name, shift) for shift in (0, 5)]
    with np.errstate(all="ignore"):
        must = _UFUNCS["add" if op == "sum" else op](*terms)
    came = refusable(lambda: adapter.mesh_reduce(terms, (2,), 0, op, (None,)))
    if came is not REFUSED:
        expect(len(came) == 2, f"It gave {len(came)} arrays.", "It must give one for each of 2.")
        for part in came:
            expect_equal(np.asarray(part), must, ulps=1)


rules(9, PAGE,
    ("V-TERM-1-numbers", TERMS, "mesh_reduce",
     st.sampled_from([*((name, op) for op in ("sum", "min", "max") for name in [*INTEGERS, *REALS]),
                      *((name, "sum") for name in COMPLEX)]),
     check_reduced_numbers, "Terms of any dtype and number are reduced as NumPy reduces them, or refused"),
)  # fmt: skip


# Optimizers: from zeros, so that every digit of a step counts.


def _thirds(shape: Sequence[int], count: int) -> list[Array]:
    """Gradients of either sign, none below 1.5: an epsilon of 1e-7 does not show in them."""
    places = np.arange(int(np.prod(shape))).reshape(shape)
    first = ((places * 5 % 17 - 8.3) * 5.1).astype(np.float32)
    return [first * np.float32((-1) ** n * (n + 1)) for n in range(count)]


_EVEN_STEPS = st.sampled_from([*product(KINDS, RESTS, (1, 2))])
_UNEVEN_STEPS = st.sampled_from([*product(KINDS, RESTS, ([1, 3], [3, 0, 1]))])
StepCase = tuple[str, tuple[int, ...], Any]


def _stepped(adapter: Calls, kind: str, value: Array, layout: Any, gradients: Any) -> Any:
    method = adapter.optimize_uneven if isinstance(layout, list) else adapter.optimize
    return method(kind, value, layout, gradients)


def check_fine_steps(adapter: Calls, case: StepCase, is_sparse: bool = False) -> None:
    """Make steps from zeros. A sparse gradient has a row twice and one not at all."""
    kind, rest, layout = case
    zeros = np.zeros((ROWS, *rest), np.float32)
    gradients: list[Any] = list(_thirds(zeros.shape, 1 if is_sparse else 3))
    musts = gradients
    if is_sparse:
        rows = np.array([2, 0, 2, 3])
        musts = [zeros.copy()]
        np.add.at(musts[0], rows, gradients[0])
        gradients = [(rows, gradients[0])]

    def call() -> Any:
        return _stepped(adapter, kind, zeros, layout, gradients)

    # Many embeddings are tables of vectors, and nothing else.
    came = refusable(call) if is_sparse and len(rest) != 1 else call()
    if came is not REFUSED:
        expect_near(came, *formulas(kind, zeros, musts), rtol=2e-5, atol=2e-7)


def check_swapped_steps(adapter: Calls, case: StepCase) -> None:
    """Give values and gradients in the other byte order."""
    kind, rest, layout = case
    value = counting((ROWS, *rest))
    gradients = _thirds(value.shape, 2)
    other = [each.astype(">f4") for each in (value, *gradients)]
    came = refusable(lambda: _stepped(adapter, kind, other[0], layout, other[1:]))
    if came is not REFUSED:
        expect_near(came, *formulas(kind, value, gradients), rtol=2e-5, atol=2e-6)


@rule("R-OPT-5-tiny", 5, "000", COMPONENTS, "optimize",
      st.sampled_from([*product(("adam", "adagrad"), RESTS, (1, 2))]))  # fmt: skip
def tiny_gradients_move(adapter: Calls, case: StepCase) -> None:
    """By gradients below a thousandth adam and adagrad move as by large ones, to three hundredths."""
    kind, rest, layout = case
    zeros = np.zeros((ROWS, *rest), np.float32)
    # The square is 6e-8. An epsilon of 1e-8 below the root would shorten the step by 8 %, and one of
    # 1e-7 added to the root, which adam may not have freed from its bias, by 1.3 %.
    tiny = [np.full(zeros.shape, 2.0**-12, np.float32)]
    came = adapter.optimize(kind, zeros, layout, tiny)
    expect_near(came, *formulas(kind, zeros, tiny), rtol=0.03, atol=0, share=", to 3 %")


@rule("R-OPT-5-nan", 5, "000", COMPONENTS, "optimize optimize_uneven",
      _EVEN_STEPS | _UNEVEN_STEPS)  # fmt: skip
def nan_stays_where_it_is(adapter: Calls, case: StepCase) -> None:
    """A gradient that is NaN or infinite in one element leaves the steps of all others as they are."""
    kind, rest, layout = case
    zeros = np.zeros((ROWS, *rest), np.float32)
    gradients = _thirds(zeros.shape, 2)
    spoiled = [gradients[0].copy(), gradients[1]]
    spoiled[0].ravel()[:2] = [np.nan, np.inf]
    with np.errstate(all="ignore"):
        came = np.asarray(_stepped(adapter, kind, zeros, layout, spoiled)).copy()
    expect(came.shape == zeros.shape, f"It gave {text(came)}.", f"It must have {zeros.shape}.")
    expect(bool(np.isnan(came.flat[0])), f"It gave {text(came)}.", "Its first element must be NaN.")
    musts = formulas(kind, zeros, gradients)
    for each in (came, *musts):
        each.ravel()[:2] = 0
    expect_near(came, *musts, rtol=2e-5, atol=2e-7)


def check_given(adapter: Calls, case: tuple[str, bool], method: str) -> None:
    """Train, and compare what was given with what it was before."""
    kind, is_sparse = case
    value, gradient = counting((ROWS, 2)), _fractions((ROWS, 2))
    steps: list[Any] = [(np.array([2, 0, 2, 3]), gradient)] if is_sparse else [gradient]
    steps.append(np.full((ROWS, 2), 0.5, np.float32))
    given = [value, gradient, steps[1]]
    before = [each.copy() for each in given]
    layout: Any = [1, 3] if method.endswith("uneven") else 2
    if method in ("optimize", "optimize_uneven", "slots", "slots_uneven"):
        getattr(adapter, method)(kind, value, layout, steps)
    else:
        with checkpoint_path(adapter) as path:
            named = [{"w": step} for step in steps]
            adapter.save_training(path, kind, {"w": value}, layout, named)
            if method != "save_training":
                templates = {"w": value} if is_sparse else templates_of({"w": value})
                getattr(adapter, method)(path, kind, templates, 2, named)
    for each, must in zip(given, before, strict=True):
        if not np.array_equal(each, must):
            raise Broken(f"An array that was given now holds {text(each)}.", "It must stay.")


_TRAININGS = "save_training resume_training resumed_slots".split()
_SUFFIXES = {
    "optimize": "R-OPT-5", "optimize_uneven": "R-OPT-5-uneven", "slots": "R-SLOT-1",
    "slots_uneven": "R-SLOT-1-uneven", "save_training": "R-SLOT-2", "resume_training": "R-SLOT-2-resumed",
    "resumed_slots": "R-SLOT-2-slots",
}  # fmt: skip
for _method, _id in _SUFFIXES.items():
    rules(10 if _method in _TRAININGS else 5, "000",
        (f"{_id}-memory", RESUMED if _method in _TRAININGS else SLOTS if "slots" in _method else COMPONENTS,
         " ".join(dict.fromkeys([_method, *(["save_training"] if _method in _TRAININGS else [])])),
         st.sampled_from([*product(KINDS if "slots" not in _method else SLOTTED, (False, True))]),
         partial(check_given, method=_method), LAWS[MEMORY].format(_method)),
    )  # fmt: skip


rules(5, "000",
    ("R-OPT-5-fractions", COMPONENTS, "optimize", _EVEN_STEPS, check_fine_steps,
     "Steps of fractions are right in all of their digits, of tensors of one to four axes"),
    ("R-OPT-5-uneven-fractions", COMPONENTS, "optimize_uneven", _UNEVEN_STEPS, check_fine_steps,
     "Steps of fractions are right in all of their digits, in shards of uneven sizes"),
    ("R-OPT-5-byte-order", COMPONENTS, "optimize", _EVEN_STEPS, check_swapped_steps,
     "A value and gradients of the other byte order are taken by their values, or refused"),
    ("R-OPT-5-uneven-byte-order", COMPONENTS, "optimize_uneven", _UNEVEN_STEPS, check_swapped_steps,
     "A value and gradients of the other byte order are taken by their values, or refused, in shards of uneven sizes"),
)  # fmt: skip
rules(5, "002",
    ("R-OPT-1-fractions", SPARSE, "optimize", _EVEN_STEPS, partial(check_fine_steps, is_sparse=True),
     "A first sparse step of fractions is right in all of their digits, where rows come several times"),
    ("R-OPT-1-uneven-fractions", SPARSE, "optimize_uneven", _UNEVEN_STEPS, partial(check_fine_steps, is_sparse=True),
     "The same, in shards of uneven sizes"),
)  # fmt: skip


@rule(
    "R-SLOT-1-fractions",
    5,
    "000",
    SLOTS,
    "slots slots_uneven",
    st.sampled_from([*product(SLOTTED, RESTS)]),
)
def slots_of_any_rank(adapter: Calls, case: tuple[str, tuple[int, ...]]) -> None:
    """Every slot has the shapes of its variable's shards, and in any layout the same fractions in all
    of their digits."""
    kind, rest = case
    zeros = np.zeros((ROWS, *rest), np.float32)
    gradients = _thirds(zeros.shape, 2)
    whole = adapter.slots(kind, zeros, 1, gradients)
    for layout in ([2, 2], [1, 3]):
        is_even = layout == [2, 2]
        method = adapter.slots if is_even else adapter.slots_uneven
        came = method(kind, zeros, 2 if is_even else layout, gradients)
        for name, slot in whole.items():
            parts = value_of(came, name, "the slots ")
            expect_shapes(name, parts, [(rows, *rest) for rows in layout])
            expect_near(concatenated(parts), concatenated(slot), rtol=1e-6, atol=1e-9)


_LAYOUTS: tuple[tuple[Any, Any], ...] = ((2, 3), ([1, 3], 2), (1, [3, 0, 1]))
_RESUMPTIONS = st.sampled_from([*product(KINDS, RESTS, _LAYOUTS)])
ResumeCase = tuple[str, tuple[int, ...], tuple[Any, Any]]


def check_fine_training(
    adapter: Calls, case: ResumeCase, key: str = "w", is_swapped: bool = False
) -> None:
    kind, rest, (before, after) = case
    zeros = np.zeros((ROWS, *rest), np.float32)
    other = f"{key}2"
    keys = [key] if key == "w" else [key, other]
    steps = [
        {name: each * np.float32(n + 1) for n, name in enumerate(keys)}
        for each in _thirds(zeros.shape, 4)
    ]
    values = dict.fromkeys(keys, zeros)
    given = steps
    if is_swapped:
        given = [{name: each.astype(">f4") for name, each in step.items()} for step in steps]
    with checkpoint_path(adapter) as path:

        def call() -> Any:
            adapter.save_training(path, kind, values, before, given[:2])
            return adapter.resume_training(path, kind, templates_of(values), after, given[2:])

        came = refusable(call) if is_swapped else call()
    for name in keys if came is not REFUSED else ():
        musts = formulas(kind, zeros, [step[name] for step in steps])
        expect_near(value_of(came, name), *musts, rtol=4e-5, atol=4e-7)


rules(10, "000",
    ("R-SLOT-2-fractions", RESUMED, "save_training resume_training", _RESUMPTIONS, check_fine_training,
     "A training by fractions goes on in all of their digits, of tensors of one to four axes"),
    ("R-SLOT-2-byte-order", RESUMED, "save_training resume_training", _RESUMPTIONS,
     partial(check_fine_training, is_swapped=True),
     "Gradients of the other byte order are taken by their values, or refused"),
    ("R-SLOT-2-keys", RESUMED, "save_training resume_training",
     st.tuples(st.sampled_from(KINDS), st.just((2,)), st.just((2, 3))),
     partial(check_fine_training, key="layer_" * 14),
     "Variables whose long names differ only at their ends are resumed each with its own slots"),
)  # fmt: skip


@rule("R-SLOT-2-nan", 10, "000", RESUMED, "save_training resume_training", _RESUMPTIONS)
def nan_is_resumed_where_it_was(adapter: Calls, case: ResumeCase) -> None:
    """A value and slots that are NaN in one element are restored, and all others go on as if they
    were not."""
    kind, rest, (before, after) = case
    zeros = np.zeros((ROWS, *rest), np.float32)
    gradients = _thirds(zeros.shape, 3)
    spoiled = [gradients[0].copy(), *gradients[1:]]
    spoiled[0].flat[0] = np.nan
    steps = [{"w": each} for each in spoiled]
    with checkpoint_path(adapter) as path:
        adapter.save_training(path, kind, {"w": zeros}, before, steps[:1])
        templates = templates_of({"w": zeros})
        came = value_of(adapter.resume_training(path, kind, templates, after, steps[1:]), "w")
    array = np.array(came)
    expect(array.shape == zeros.shape, f"It gave {text(array)}.", f"It must have {zeros.shape}.")
    expect(
        bool(np.isnan(array.flat[0])), f"It gave {text(array)}.", "Its first element must be NaN."
    )
    musts = formulas(kind, zeros, gradients)
    for each in (array, *musts):
        each.flat[0] = 0
    expect_near(array, *musts, rtol=4e-5, atol=4e-7)


@rule("R-SLOT-2-slots-fractions", 10, "000", RESUMED, "resumed_slots save_training slots",
      st.sampled_from([*product(SLOTTED, RESTS, _LAYOUTS)]))  # fmt: skip
def restored_slots_keep_digits(adapter: Calls, case: ResumeCase) -> None:
    """Restored slots have all digits of what they were, in tensors of one to four axes."""
    kind, rest, (before, after) = case
    zeros = np.zeros((ROWS, *rest), np.float32)
    gradients = _thirds(zeros.shape, 2)
    whole = adapter.slots(kind, zeros, 1, gradients)
    with checkpoint_path(adapter) as path:
        adapter.save_training(path, kind, {"w": zeros}, before, [{"w": each} for each in gradients])
        came = adapter.resumed_slots(path, kind, templates_of({"w": zeros}), after, [])
    for name, slot in whole.items():
        parts = value_of(value_of(came, "w"), name, "the slots ")
        expect_near(concatenated(parts), concatenated(slot), rtol=1e-6, atol=1e-9)
