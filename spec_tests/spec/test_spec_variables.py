"""Chapter 3: sharded variables equal their plain rules, in every layout, dtype and rank."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ShardvarError
from shardvar.layout.dtypes import Array
from shardvar.reference.variables import create_sharded_variable
from shardvar.spec import partitions, variables
from shardvar.testing import bits
from spec_tests.helpers.embedding_tables import shard

DTYPES = [
    np.dtype(name)
    for name in "uint8 int8 int32 int64 uint64 bool float16 bfloat16 float32 float64 complex128".split()
]
REALS = [dtype for dtype in DTYPES if dtype.kind not in "bc"]
ROWS = st.sampled_from([(), (1,), (2,), (2, 1), (1, 2, 2)])
sizes = st.lists(st.integers(0, 3), min_size=1, max_size=5)
Case = tuple[Array, list[int]]


@st.composite
def cases(draw: st.DrawFn, dtypes: list[Any] = DTYPES) -> Case:
    """Any bits of some dtype, and the rows of each shard."""
    cut = draw(sizes)
    return draw(bits(draw(st.sampled_from(dtypes)), (sum(cut), *draw(ROWS)))), cut


def same(fast: Any, plain: Any) -> bool:
    """True if shapes, dtypes and bytes agree; NaNs of any bits are equal."""
    fast, plain = np.asarray(fast), np.asarray(plain)
    if (fast.shape, fast.dtype) != (plain.shape, plain.dtype):
        return False
    with np.errstate(invalid="ignore"):  # ml_dtypes warns where NumPy's own dtypes do not
        return bool(np.all((fast == plain) | ((fast != fast) & (plain != plain))))


def parts_of(variable: Any) -> list[Array]:
    return [np.asarray(each) for each in variable.variables]


@given(cases())
def test_reads_and_shards(case: Case) -> None:
    """R-SV-1 (RFC 000): "that list of variables compose a larger variable". R-CONCAT-1 (RFC 000):
    "concats shards to the full value"."""
    value, cut = case
    plain, fast = variables.shard(value, cut), shard(value, cut)
    assert all(same(one, other) for one, other in zip(parts_of(fast), plain, strict=True))
    assert same(fast.read_value(), variables.read(plain)) and same(fast.numpy(), value)


@given(st.integers(2, 12))
def test_names(num_shards: int) -> None:
    """R-CREATE-4 (RFC 000): 'assert dense.trainable_variables[0].name == "w/part_0"'"""
    made = create_sharded_variable(np.zeros(num_shards), num_shards, name="w")
    assert [each.name for each in made.variables] == variables.shard_names("w", num_shards)


items = st.one_of(
    st.integers(-7, 7),
    st.builds(slice, *[st.none() | st.integers(-7, 7)] * 2, st.none() | st.integers(-3, 3)),
    st.sampled_from([Ellipsis, None]),
)


@given(cases(), st.lists(items, max_size=4).map(tuple))
def test_getitem(case: Case, key: tuple[Any, ...]) -> None:
    """R-VAR-1 (RFC 000): "users' model code doesn't need to change w.r.t whether the variable is
    sharded or not"."""
    value, cut = case
    try:
        plain = variables.getitem(variables.shard(value, cut), key)
    except (IndexError, ValueError):
        with pytest.raises((ShardvarError, IndexError, ValueError)):
            _ = shard(value, cut)[key]
        return
    assert same(shard(value, cut)[key], plain)


@given(sizes, st.integers(1, 3), st.sampled_from(["int32", "int64", "float32", "float64"]))
def test_matmul(cut: list[int], columns: int, dtype: str) -> None:
    """R-MATMUL-1 (RFC 000): "`tf.matmul` will concat the sharded variable and then do the
    multiplication"."""
    # Small whole numbers, whose sums are exact in any order.
    value = (np.arange(sum(cut) * columns).reshape(-1, columns) % 7 - 3).astype(dtype)
    x = (np.arange(2 * sum(cut)).reshape(2, -1) % 5 - 2).astype(dtype)
    plain, fast = variables.shard(value, cut), shard(value, cut)
    assert same(sv.nn.matmul(x, fast), variables.matmul(x, plain))
    b = np.ones((columns, 2), dtype)
    assert same(sv.nn.matmul(fast, b), variables.sharded_matmul(plain, b))


@given(
    cases(), st.sampled_from(["assign", "assign_add", "assign_sub"]), st.integers(-1, 1), st.data()
)
def test_assignments(case: Case, name: str, more: int, data: st.DataObject) -> None:
    """R-SV-3 (RFC 000): "read and update functions like `read_value`, `assign_add` and
    `scatter_add`". What was read, and the caller's buffer, are no part of the variable."""
    value, cut = case
    if value.dtype == bool and name != "assign":
        return
    other = data.draw(bits(value.dtype, (max(len(value) + more, 0), *value.shape[1:])))
    fast = shard(value, cut)
    before = fast.read_value()
    plain: Callable[..., Any] = getattr(variables, name)
    with np.errstate(all="ignore"):
        try:
            after = plain(variables.shard(value, cut), other)
        except ValueError:
            with pytest.raises(ShardvarError):
                getattr(fast, name)(other)
            after = variables.shard(value, cut)
        else:
            getattr(fast, name)(other)
            if other.size:
                other[...] = 0
    assert all(same(one, two) for one, two in zip(parts_of(fast), after, strict=True))
    assert same(before, value)


@given(cases(REALS), st.sampled_from([*variables.OPERATIONS]), st.data())
def test_scatters(case: Case, operation: str, data: st.DataObject) -> None:
    """R-SV-3 (RFC 000): "`scatter_add`"; an id that is outside changes nothing."""
    value, cut = case
    if operation == "div" and value.dtype.kind in "iu":
        return
    most = len(value) - 1
    row = st.integers(0, most) if most >= 0 else st.nothing()
    if not data.draw(st.integers(0, 4)):
        row |= st.sampled_from([-1, len(value), 2**32])
    rows = data.draw(st.lists(row, max_size=6)) if most >= 0 else []
    updates = data.draw(bits(value.dtype, (len(rows), *value.shape[1:])))
    fast = shard(value, cut)
    with np.errstate(all="ignore"):
        try:
            after = variables.scatter(variables.shard(value, cut), operation, rows, updates)
        except IndexError:
            with pytest.raises(ShardvarError):
                _scatter(fast, operation, updates, rows)
            after = variables.shard(value, cut)
        else:
            _scatter(fast, operation, updates, rows)
    assert all(same(one, two) for one, two in zip(parts_of(fast), after, strict=True))


def _scatter(variable: Any, operation: str, updates: Array, rows: list[int]) -> None:
    slices = sv.IndexedSlices(updates, np.array(rows, np.int64))
    getattr(variable, f"scatter_{operation}")(slices)


@given(cases(), st.lists(st.integers(-1, 6), max_size=4), st.booleans())
def test_sparse_reads(case: Case, ids: list[int], is_flat: bool) -> None:
    """R-READ-1 (RFC 000): "users' model code doesn't need to change w.r.t whether the variable is
    sharded or not"."""
    value, cut = case
    rows = np.array(ids, np.int64).reshape(-1) if is_flat else np.array([ids], np.int64)
    try:
        plain = variables.sparse_read(variables.shard(value, cut), rows)
    except IndexError:
        with pytest.raises(ShardvarError):
            shard(value, cut).sparse_read(rows)
        return
    assert same(shard(value, cut).sparse_read(rows), plain)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([(), (1,), (2,), (2, 1), (2, 2)]), st.sampled_from(["int8", "u1"])
        ),
        max_size=3,
    )
)
def test_what_composes_a_variable(described: list[tuple[tuple[int, ...], str]]) -> None:
    """R-SV-4 (RFC 000): "that list of variables compose a larger variable"."""
    arrays = [np.zeros(shape, dtype) for shape, dtype in described]
    try:
        plain = variables.composed_shape(arrays)
    except ValueError:
        with pytest.raises(ShardvarError):
            sv.ShardedVariable([sv.Variable(each) for each in arrays])
        return
    assert sv.ShardedVariable([sv.Variable(each) for each in arrays]).shape == plain


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="do not hold 3 rows"):
        variables.shard(np.zeros(3), [1, 1])
    with pytest.raises(ValueError, match="do not fit 1 rows"):
        variables.scatter([np.zeros((3, 2))], "add", [0], np.zeros((1, 3)))
    with pytest.raises(ValueError, match="add up"):
        partitions.axis_sizes([3], splits=[[1, 1]])
