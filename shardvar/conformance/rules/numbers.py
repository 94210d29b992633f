"""Level 3: writes and lookups of numbers of all kinds: large integers, fractions, NaNs, weights
below zero, ids without an axis."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from shardvar.conformance.calls import Broken, Calls, expect_equal, text
from shardvar.conformance.registry import rule
from shardvar.conformance.rules.cases import TableCase, made, tables
from shardvar.conformance.rules.updates import (
    COMBINERS,
    LOOKUP,
    WRITES,
    BagsCase,
    Lookup,
    bags_are_combined,
)
from shardvar.layout.dtypes import Array
from shardvar.testing import SparseIds, Update, counting, ids, updated

DenseNumbers = tuple[Array, int, Array]
"""A value, its number of shards, and another value of its shape and dtype."""

_PLAIN = tables(max_shards=3, row_shapes=((), (2,)), max_more=2)
LARGE = {"int32": 2**24, "int64": 2**53, "uint8": 100, "int16": 2**11, "float64": 2**24}
"""The dtypes, and a number from where on a narrower one rounds; twice as much fits in each."""


@st.composite
def large_numbers(draw: st.DrawFn) -> DenseNumbers:
    """Numbers that a narrower dtype would round, and small ones."""
    value, num_shards = draw(_PLAIN)
    name = draw(st.sampled_from(sorted(LARGE)))
    small = counting(value.shape, np.dtype(name))
    large = small + np.asarray(LARGE[name], name)
    return (large, num_shards, small) if draw(st.booleans()) else (small, num_shards, large)


@st.composite
def fractions(draw: st.DrawFn) -> DenseNumbers:
    """Numbers of float32 with all of their digits, of either sign."""
    value, num_shards = draw(_PLAIN)
    thirds = [
        counting(value.shape) / np.float32(draw(st.sampled_from([3, -7, 0.3]))) for _ in range(2)
    ]
    return thirds[0], num_shards, thirds[1][::-1].copy()


def check_dense(adapter: Calls, case: DenseNumbers, op: str) -> None:
    """Add or subtract another value."""
    value, num_shards, other = case
    handle = adapter.create(value, num_shards)
    method, must = {
        "add": (adapter.assign_add, value + other),
        "sub": (adapter.assign_sub, value - other),
    }[op]
    expect_equal(adapter.read(method(handle, other)), must, ulps=int(value.dtype.kind == "f"))


def _register_dense() -> None:
    for op, noun in (("add", "sums"), ("sub", "differences")):

        def large(adapter: Calls, case: DenseNumbers, op: str = op) -> None:
            value, num_shards, other = case
            # Unsigned integers have no negative differences.
            check_dense(
                adapter, (np.maximum(value, other), num_shards, np.minimum(value, other)), op
            )

        def fractional(adapter: Calls, case: DenseNumbers, op: str = op) -> None:
            check_dense(adapter, case, op)

        needs = f"create assign_{op} read"
        large.__doc__ = f"After `assign_{op}` large integers are {noun} to the last digit"
        rule(f"R-SV-3-assign-{op}-dtypes", 3, "000", WRITES, needs, large_numbers())(large)
        fractional.__doc__ = f"After `assign_{op}` fractions are {noun} in all of their digits"
        rule(f"R-SV-3-assign-{op}-fractions", 3, "000", WRITES, needs, fractions())(fractional)


_register_dense()


def check_scattered_rows(adapter: Calls, case: DenseNumbers, op: str, ulps: int) -> None:
    """Scatter rows of another value, each id once and not in order."""
    value, num_shards, other = case
    rows = np.arange(len(value))[::-1][: max(1, len(value) - 1)].copy()
    handle = adapter.scatter(adapter.create(value, num_shards), op, rows, other[rows])
    expect_equal(adapter.read(handle), updated(value, Update(op, rows, other[rows])), ulps=ulps)


@rule("R-SV-3-scatter-add-dtypes", 3, "000", WRITES, "create scatter read", large_numbers())
def large_integers_are_scattered(adapter: Calls, case: DenseNumbers) -> None:
    """`scatter` adds large integers to the last digit."""
    check_scattered_rows(adapter, case, "add", 0)


def _register_rows() -> None:
    for op in ("add", "sub", "mul", "div"):

        def check(adapter: Calls, case: DenseNumbers, op: str = op) -> None:
            # A quotient may be a product with a reciprocal, which rounds twice.
            check_scattered_rows(adapter, case, op, 2 if op == "div" else 1)

        check.__doc__ = (
            f"`scatter` of {op} keeps all digits of fractions, of either sign, and is right to "
            "their last one"
        )
        words = "create scatter read"
        rule(f"R-SV-3-scatter-{op}-fractions", 3, "000", WRITES, words, fractions())(check)


_register_rows()


@rule("R-SV-3-scatter-nan", 3, "000", WRITES, "create scatter read",
      st.tuples(_PLAIN, st.sampled_from(["min", "max"]), st.booleans()))  # fmt: skip
def nan_is_neither_least_nor_greatest(adapter: Calls, case: tuple[TableCase, str, bool]) -> None:
    """`scatter` of min and max leaves NaN where the row or its operand is NaN, as NumPy does."""
    (value, num_shards), op, is_held = case
    spoiled = value.copy()
    spoiled[-1] = np.nan
    held, operands = (spoiled, value) if is_held else (value, spoiled)
    rows = np.arange(len(value))
    handle = adapter.scatter(adapter.create(held, num_shards), op, rows, operands)
    reduce: Callable[[Array, Array], Array] = {"min": np.minimum, "max": np.maximum}[op]
    expect_equal(adapter.read(handle), reduce(held, operands))


@st.composite
def weighted(draw: st.DrawFn) -> BagsCase:
    """A table and bags whose weights have either sign, and no sum near 0."""
    value, num_shards = draw(tables(row_shapes=((2,),)))
    bags, weights = [], []
    for _ in range(draw(st.integers(1, 3))):
        bag = draw(ids(len(value), max_size=3, max_rank=1).filter(len)).tolist()
        bags.append(bag)
        # Powers of -2 never add up to 0: 1, -2, 4 and so on.
        weights.append([float((-2) ** number) for number in range(len(bag))])
    return value, num_shards, SparseIds(bags, weights), draw(COMBINERS)


@rule("R-LOOKUP-2-bags-negative", 3, "000", LOOKUP, "create lookup_bags", weighted())
def weights_below_zero_are_weights(adapter: Calls, case: BagsCase) -> None:
    """A bag is the weighted sum of its rows, divided by the weights' sum or l2 norm, also where
    weights are below zero."""
    bags_are_combined(adapter, case)


@st.composite
def scalar_lookups(draw: st.DrawFn) -> Lookup:
    """A table and one id without an axis."""
    value, num_shards = draw(tables())
    return value, num_shards, np.array(draw(st.integers(0, len(value) - 1)), np.int64)


@rule("R-LOOKUP-2-scalar", 3, "000", LOOKUP, "create lookup", scalar_lookups())
def ids_without_an_axis_are_looked_up(adapter: Calls, case: Lookup) -> None:
    """A lookup of an id without an axis is a row without one."""
    value, layout, wanted = case
    came: Any = np.asarray(adapter.lookup(made(adapter, value, layout), wanted))
    if came.shape != value.shape[1:] or not np.array_equal(came, value[wanted]):
        raise Broken(f"It gave {text(came)}.", f"It must give {text(value[wanted])}.")
