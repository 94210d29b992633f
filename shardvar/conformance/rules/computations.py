"""Levels 2 and 3: methods that compute, with the numbers that their dtypes hold, fractions whose digits
no narrower dtype has, weights of either sign, and repeated ids.

Inputs that few implementations support may be refused; an answer must be right.
"""

from functools import partial
from itertools import product

import numpy as np

from shardvar.conformance.calls import Calls, expect, expect_equal, expect_near
from shardvar.conformance.rules import rule, rules
from shardvar.conformance.rules.cases import (
    COMPLEX,
    INTEGERS,
    REALS,
    RESTS,
    ROWS,
    computable,
    expect_bits,
    fractions,
    refusable,
    refuses_write,
)
from shardvar.spec.lookups import embedding_lookup_sparse
from shardvar.testing import counting

_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum, "max": np.maximum
}  # fmt: skip


def check_sums(adapter: Calls, name: str, op: str) -> None:
    """Add or subtract all kinds of numbers of a dtype."""
    value, other = (computable(name, shift) for shift in (0, 5))
    must = _UFUNCS[op](value, other)
    with refusable(name != "float32"):
        came = adapter.read(getattr(adapter, f"assign_{op}")(adapter.create(value, 2), other))
    expect_bits(came, must)


def check_scattered(adapter: Calls, case: tuple[str, str], op: str) -> None:
    """Write all kinds of numbers to different rows, or numbers of one sign to repeated ones."""
    name, kind = case
    value, operands = (computable(name, shift) for shift in (0, 5))
    rows = np.arange(len(value))[::-1].copy()
    if kind == "flat":
        value, operands = value[:, 0].copy(), operands[:, 0].copy()
        # A row of -0.0 becomes 0.0 where 0.0 is added to it.
        operands[value[rows] == 0] = 0
    elif kind != "any":
        # Halves and powers of 2, which no order of operands rounds.
        sign, dtype = (1 if kind == "positive" else -1), np.dtype(name)
        rows = np.array([3, 0, 3, 1, 0, 3])
        halves = np.array([[2, 4], [1, 8], [4, 2], [2, 2], [8, 1], [1, 4]])
        value, operands = counting((5, 2)) * 3 * sign, halves * sign
        if dtype.kind == "c":
            value, operands = value * (1 - 2j), operands * (1 + 1j)
        value, operands = (
            each.astype("int64" if dtype.kind in "iu" else dtype).astype(dtype)
            for each in (value, operands)
        )
    must = value.copy()
    _UFUNCS[op].at(must, rows, operands)
    with refusable(name != "float32" or (op == "div" and kind in ("any", "flat"))):
        came = adapter.read(adapter.scatter(adapter.create(value, 2), op, rows, operands))
    # Either of -0.0 and 0.0 may be the least or the greatest of the two.
    (expect_equal if op in ("min", "max") else expect_bits)(came, must)


rules(
    *((f"R-SV-3-assign-{op}-numbers", f"assign_{op} create read", [*INTEGERS, *REALS, *COMPLEX],
       partial(check_sums, op=op),
       f"`assign_{op}` computes with numbers of any dtype as NumPy does, or is refused where it is not float32")
      for op in ("add", "sub")),
    *((f"R-SV-3-scatter-{op}-numbers", "scatter create read",
       # NumPy orders complex numbers, which few others do; products of infinite ones are defined
       # nowhere, and a quotient of integers is none.
       [*product([*([] if op == "div" else INTEGERS), *REALS[1:], *(COMPLEX if op in ("add", "sub") else [])],
                 ("any", "flat", "positive", "negative"))], partial(check_scattered, op=op),
       f"`scatter` of {op} computes with numbers of any dtype and sign as NumPy does, or is refused where it is not "
       "float32, also if ids come several times")
      for op in _UFUNCS),
    ("R-VAR-2-scatter-none", "scatter create read", [*product(((1, 2), (2, 2), (0, 3)), ("add", "update"))],
     lambda adapter, case: refuses_write(
         adapter, counting((4, 2)), adapter.create(counting((4, 2)), 2), "scatter", case[1],
         np.zeros(0, np.int64), counting(case[0]) + np.float32(100)),
     "Operands of another shape than a row are refused also if there are no ids"),
)  # fmt: skip


@rule("R-MATMUL-1-numbers", "matmul create", [
    *product(("int32", "int64", "uint8", "uint64", "float32", "float64", *COMPLEX), (1, 3))])  # fmt: skip
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
    with refusable():
        came = np.asarray(adapter.matmul(left, adapter.create(value, num_shards)))
    expect(came.dtype == dtype, f"It gave {came.dtype}.", f"It must give {name}.")
    if near:
        expect_near(came, must.astype(dtype), rtol=near, atol=near)
    else:
        expect_equal(came, must)


_COMBINERS = ("sum", "mean", "sqrtn")
_BAGS, _WEIGHTS = [[0, 2], [1], [1, 1, 0]], [[1 / 3, -0.1], [-2.7], [1e-3, 0.0, -1 / 7]]


@rule("R-LOOKUP-2-bags-numbers", "lookup_bags create", [
    *product(_COMBINERS, ("float32", "float64"), ((2,), (2, 2)), (1, 2))])  # fmt: skip
def bags_keep_digits(adapter: Calls, case: tuple[str, str, tuple[int, ...], int]) -> None:
    """A bag of fractions by weights of any size is right in all of their digits, or refused where it
    is not of float32 or its rows have several axes. A NaN in another row does not reach it."""
    combiner, name, rest, num_shards = case
    value = fractions((ROWS, *rest), name)
    value[3] = np.nan
    # Of float64 only weights that float32 holds, in which they may be given.
    weights = _WEIGHTS if name == "float32" else [[0.5, -4.0], [-0.25], [8.0, 0.0, 2.0]]
    entries = [
        (n, one, weights[n][at]) for n, bag in enumerate(_BAGS) for at, one in enumerate(bag)
    ]
    must = embedding_lookup_sparse([value], entries, len(_BAGS), combiner)
    with refusable((name, len(rest)) != ("float32", 1)):
        came = adapter.lookup_bags(adapter.create(value, num_shards), _BAGS, weights, combiner)
    expect_near(came, must, rtol=2e-6 if name == "float32" else 1e-14, atol=1e-7)


@rule("R-LOOKUP-2-bags-refused", "lookup_bags create", [
    *product(([[1.0], [1.0]], [[1.0, 2.0, 3.0], [1.0]], [[1.0, 2.0]], [[1.0, 2.0], [1.0], [1.0]]),
             _COMBINERS)])  # fmt: skip
def weights_are_counted(adapter: Calls, case: tuple[list[list[float]], str]) -> None:
    """Bags with more or fewer weights than ids are refused: no weight is made up."""
    weights, combiner = case
    handle = adapter.create(counting((4, 2)), 2)
    adapter.refuses("lookup_bags", handle, [[0, 1], [2]], weights, combiner)


@rule("R-LOOKUP-4-numbers", "lookup_clipped create", [
    *product(("float32", "float64"), RESTS, (0.0, 0.1, 0.3, 3.0))])  # fmt: skip
def clipped_rows_keep_digits(adapter: Calls, case: tuple[str, tuple[int, ...], float]) -> None:
    """Rows of fractions are clipped in all of their digits, or refused where they are not of float32
    or the norm is zero; a NaN in one row does not reach another."""
    name, rest, most = case
    value = fractions((ROWS, *rest), name)
    value[3] = np.nan
    wanted = np.array([2, 0, 3, 1, 0])
    wide = value.astype(np.float64).reshape(ROWS, -1)
    scale = np.minimum(1, most / np.sqrt((wide**2).sum(axis=1)))
    must = (wide * scale[:, None]).reshape(value.shape)[wanted].astype(name)
    with refusable(name != "float32" or not most):
        came = adapter.lookup_clipped(adapter.create(value, 2), wanted, most)
    expect_equal(came, must, ulps=16)
