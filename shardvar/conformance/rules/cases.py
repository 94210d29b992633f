"""Cases that several levels share: tables and numbers of shards, and their set-up."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from shardvar.conformance.calls import (
    Broken,
    Calls,
    KeptByRefusal,
    NotClaimed,
    Panic,
    ProcessDied,
    expect,
    expect_equal,
    text,
)
from shardvar.conformance.rules import RuleCheck
from shardvar.layout.dtypes import Array
from shardvar.records import frozen
from shardvar.testing import counting

ShardSizes = int | list[int]
"""The cut of a variable: into a number of shards, or into shards of these rows."""

TableCase = tuple[Array, int]
LaidOutCase = tuple[Array, ShardSizes]
RowShapes = tuple[tuple[int, ...], ...]

# Tables of one, two and three axes: implementations often assume two.
ROW_SHAPES: RowShapes = ((), (1,), (3,), (2, 2))
WIDE: RowShapes = ((2,), (3,), (2, 2))
"""Rows of more than one column."""


@st.composite
def tables(
    draw: st.DrawFn,
    max_shards: int = 4,
    row_shapes: RowShapes = ROW_SHAPES,
    min_shards: int = 1,
    max_more: int = 5,
    dtype: npt.DTypeLike = np.float32,
) -> TableCase:
    """An array and a number of shards that is not above its number of rows."""
    num_shards = draw(st.integers(min_shards, max_shards))
    # A row for each shard at least. Empty shards have separate rules, so that their lack breaks
    # only those.
    rows = num_shards + draw(st.integers(0, max_more) | st.just(290 * (min_shards > 9)))
    return counting((rows, *draw(st.sampled_from(list(row_shapes)))), dtype), num_shards


@st.composite
def few_rows(draw: st.DrawFn, row_shapes: RowShapes = ((), (2,)), min_rows: int = 0) -> TableCase:
    """An array with fewer rows than there are shards, perhaps none."""
    num_shards = draw(st.integers(min_rows + 1, 4))
    rows = draw(st.integers(min_rows, num_shards - 1))
    return counting((rows, *draw(st.sampled_from(list(row_shapes))))), num_shards


@st.composite
def uneven_tables(
    draw: st.DrawFn, row_shapes: RowShapes = ROW_SHAPES, min_shards: int = 1
) -> tuple[Array, list[int]]:
    few = st.lists(st.integers(1, 4), min_size=min_shards, max_size=4)
    # The same sizes from the end: only the values show the order then.
    mirrored = few.map(lambda some: some + some[-2::-1])
    # In more than ten shards, the name of shard 10 sorts before the name of shard 2.
    sizes = draw(few | mirrored | st.lists(st.integers(1, 2), min_size=11, max_size=12))
    return counting((sum(sizes), *draw(st.sampled_from(list(row_shapes))))), sizes


@st.composite
def hollow_tables(draw: st.DrawFn, row_shapes: RowShapes = ROW_SHAPES) -> tuple[Array, list[int]]:
    """An array and the rows of each shard; the first, the last or some between may have none."""
    value, sizes = draw(uneven_tables(row_shapes))
    for _ in range(draw(st.integers(1, 3))):
        sizes.insert(draw(st.integers(0, len(sizes))), 0)
    return value, sizes


def typed(cases: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return the same cases, whose first entry, an array, is of floats or of integers."""
    return st.builds(
        lambda case, dtype: (case[0].astype(dtype), *case[1:]),
        cases,
        st.sampled_from(["float32", "int64"]),
    )


ORDINARY = tables()
"""The tables of ordinary cases."""


def many_shards(row_shapes: RowShapes = ROW_SHAPES) -> st.SearchStrategy[TableCase]:
    """Return arrays in more than ten shards: as text, the name of shard 10 is before the name of shard 2."""
    return tables(13, row_shapes, 11, 3)


Start = st.SearchStrategy[LaidOutCase]


@frozen
class OtherLayout:
    """A kind of layouts that the ordinary cases leave out."""

    suffix: str
    """The end of the ids of its rules."""
    phrase: str
    """The variables, as a phrase that follows the law."""
    method: str
    tables: Callable[[RowShapes], Start]
    """The tables whose rows have one of some shapes."""


LAYOUTS = (
    OtherLayout("uneven", "in shards of uneven sizes", "create_uneven", lambda rows: uneven_tables(rows, 2)),
    OtherLayout("empty-shards", "where some shards are empty", "create_uneven", hollow_tables),
    OtherLayout("few-rows", "where there are fewer rows than shards", "create", lambda rows: few_rows(rows, 1)),
    OtherLayout("many", "in more than ten shards", "create", many_shards),
)  # fmt: skip


def along(axis: int, length: int, other: int = 2) -> Array:
    return counting((length, other) if axis == 0 else (other, length))


INTEGERS = "int8 uint8 int16 uint16 int32 uint32 int64 uint64".split()
REALS = "float16 float32 float64".split()
COMPLEX = "complex64 complex128".split()
NARROW = "bfloat16 float8_e4m3fn float8_e5m2 int4 uint4".split()
EVERY = ("bool", *INTEGERS, *REALS, *COMPLEX, *NARROW)
RESTS: RowShapes = ((), (2,), (1, 2, 3))
"""The axes of a row."""
ROWS = 4
"""The rows of a table, in two shards."""


def numbers(name: str, shape: Sequence[int], shift: int = 0, is_low: bool = False) -> Array:
    """Numbers of a dtype that a mistake changes: both ends of its range, those that 32 bits or
    float64 do not hold, signed zeros, infinities, NaN, fractions and the least subnormal number. Low integers are below
    the middle of an unsigned dtype."""
    dtype = np.dtype(name)
    if dtype.kind == "b":
        pool = np.array([True, False, False])
    elif "int" in name:
        info = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
        wide = [-1, 0, 1, info.min, info.max, info.max // 2 + 1, 2**31 + 1, 2**53 + 1, -(2**53) - 1]
        top = info.max // 2 if is_low else info.max
        pool = np.array([one for one in wide if info.min <= one <= top], dtype)
    else:
        tiny, most = (6.2e-5, 6e4) if name == "float16" else (1e-30, 3e38)
        odd = [1 / 3, -0.0, np.inf, np.nan, -1 / 7, most, 0.0, -np.inf, tiny]
        parts = np.array(odd, np.float64)
        with np.errstate(all="ignore"):
            pool = parts.astype(dtype)
        if dtype.kind == "c":
            pool = np.resize(pool, len(pool) + 1)
            pool.imag = np.roll(parts, 4)[np.arange(len(pool)) % len(parts)]
        else:
            # A NaN with all bits, and the number with only the last one.
            ends = np.array([-1, 1], f"i{dtype.itemsize}").view(dtype)
            pool = np.concatenate([pool, ends])
    return np.resize(np.roll(pool, -shift), shape)


def computable(name: str, shift: int) -> Array:
    """Numbers of any kind, of which complex ones are finite: infinite ones have no one sum, and
    numbers below the normal ones may be flushed to zero."""
    some = numbers(name, (11, 2), shift)
    if some.dtype.kind == "c":
        some = np.where(np.isfinite(some) & (np.abs(some) < 1e9), some, (shift + 1) * (1 / 3 - 2j))
    elif some.dtype.kind == "f":
        some = np.where((some != 0) & (np.abs(some) < np.finfo(name).tiny), 0, some)
    return some.astype(name)


def fractions(shape: Sequence[int], dtype: str = "float32") -> Array:
    """Numbers of either sign and below 1, with all digits of their dtype."""
    places = np.arange(int(np.prod(shape))).reshape(shape) + 1
    return ((places * 5 % 17 - 8) / 8.7).astype(dtype)


@contextmanager
def refusable(is_refusable: bool = True) -> Iterator[None]:
    """Several calls of which each may raise; then the case keeps the rule."""
    try:
        yield
    except (NotClaimed, ProcessDied, Broken, Panic):
        raise
    except Exception as error:
        if is_refusable:
            raise KeptByRefusal from error
        raise


def unless_refused(check: RuleCheck) -> RuleCheck:
    """Return the same check, for inputs that an implementation may refuse."""
    return refusable()(check)


def value_of(came: Any, key: str, what: str = "") -> Any:
    expect(key in came, f"It gave {what}{sorted(came)}.", f"It must also give {key!r}.")
    return came[key]


def made(adapter: Calls, value: Array, layout: ShardSizes) -> Any:
    return (
        adapter.create_uneven(value, layout)
        if isinstance(layout, list)
        else adapter.create(value, layout)
    )


def pairs(value: Any) -> list[tuple[int, int]]:
    """Return the pairs that an adapter answered as plain integers; ``Broken`` for other values."""
    try:
        # None or triples are a wrong answer of the adapter, and not an exception that it raised.
        return [(int(start), int(stop)) for start, stop in value]
    except (TypeError, ValueError) as error:
        raise Broken(f"It gave {value!r}.", "It must give pairs of integers.") from error


def concatenated(parts: Any) -> Array:
    """Return the arrays of shards as one array; ``Broken`` for an empty list."""
    arrays = [np.asarray(part) for part in parts]
    if not arrays:
        raise Broken("It gave no shards.", "It must give at least one.")
    return np.concatenate(arrays)


def expect_bits(came: Any, must: Array) -> None:
    """``Broken`` unless an answer has an array's dtype and values, and zeros their signs."""
    expect_equal(came, must)
    signs = []
    for array in (came, must):
        # In the order of C, whatever the order in which it came.
        wide = np.ascontiguousarray(array, np.complex128 if must.dtype.kind in "fcV" else np.int64)
        real = wide.view(np.float64) if must.dtype.kind in "fcV" else np.abs(wide)
        signs.append(np.signbit(np.where(real == 0, real, 1)))
    if not np.array_equal(signs[0], signs[1]):
        raise Broken(f"It gave {text(np.asarray(came))}.", f"It must give {text(must)}.")


def refuses_write(adapter: Calls, value: Array, handle: Any, method: str, *arguments: Any) -> None:
    """``Broken`` unless a write is refused, and the variable still holds its value."""
    adapter.refuses(method, handle, *arguments)
    came = adapter.read(handle)
    if not np.array_equal(np.asarray(came), value):
        raise Broken(
            f"The write was refused, and the variable now holds {np.asarray(came).tolist()}.",
            f"It must still hold {value.tolist()}.",
        )


def check_outside(method: str, *more: Any) -> RuleCheck:
    """Return the check that a method refuses a table's ids or key."""

    def check(adapter: Calls, case: tuple[Array, ShardSizes, Any]) -> None:
        value, layout, wanted = case
        adapter.refuses(method, made(adapter, value, layout), wanted, *more)

    return check
