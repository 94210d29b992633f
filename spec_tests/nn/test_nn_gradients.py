"""Pullbacks agree with differences in float64, and fall to the shards as RFC 000 wants them."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar import nn
from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.reference.nn import SparseTensor, gradient, vjp
from shardvar.reference.nn.gradients import dense_gradients
from shardvar.reference.variables import IndexedSlices, ShardedVariable, Variable
from spec_tests.helpers.embedding_tables import Table, ids_for, shard, tables

STEP = 1e-6


def dense(pairs: Any) -> np.ndarray[Any, Any]:
    """The gradient of the whole, from the gradients of its shards."""
    parts = [part.to_dense() if isinstance(part, IndexedSlices) else part for part, _ in pairs]
    return np.concatenate(
        [
            np.zeros(shard.shape) if part is None else part
            for part, (_, shard) in zip(parts, pairs, strict=False)
        ]
    )


def by_differences(
    function: Callable[[np.ndarray[Any, Any]], Any], at: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """The gradient of a scalar function, element by element."""
    slopes = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        up, down = at.copy(), at.copy()
        up[index] += STEP
        down[index] -= STEP
        slopes[index] = (function(up) - function(down)) / (2 * STEP)
    return slopes


def check(
    function: Callable[..., Any],
    table: Table,
    call: Callable[[Any], tuple[Any, ...]],
    place: int = 0,
) -> None:
    """The pullback at a random upstream against differences of ``sum(upstream * value)``."""
    value, pullback = vjp(function, *call(table.sharded))
    upstream = np.random.default_rng(1).normal(size=value.shape)
    expected = by_differences(
        lambda full: float(np.sum(upstream * function(*call(Variable(full))))), table.full
    )
    assert np.allclose(dense(pullback(upstream)[place]), expected, atol=1e-4, rtol=1e-4)


REALS = tables(row_shape=(2,), dtype="float64")


@given(REALS, st.one_of(st.none(), st.floats(0.1, 3)), st.data())
def test_of_lookups(table: Table, max_norm: float | None, data: st.DataObject) -> None:
    ids = np.array(data.draw(ids_for(table.rows, 5)), np.int64)
    check(nn.embedding_lookup, table, lambda params: (params, ids, max_norm))


@given(
    REALS,
    st.sampled_from(["sum", "mean", "sqrtn"]),
    st.one_of(st.none(), st.floats(0.1, 3)),
    st.data(),
)
def test_of_sparse_lookups(
    table: Table, combiner: str, max_norm: float | None, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(ids_for(table.rows, 3), max_size=4))
    ids = SparseTensor.from_rows(rows)
    weights = SparseTensor(ids.indices, np.linspace(0.5, 2, len(ids.values)), ids.dense_shape)
    check(
        nn.embedding_lookup_sparse, table, lambda params: (params, ids, weights, combiner, max_norm)
    )
    default = data.draw(st.one_of(st.none(), st.integers(0, table.rows - 1)))
    check(
        nn.safe_embedding_lookup_sparse,
        table,
        lambda params: (params, ids, weights, combiner, default, max_norm),
    )


@given(REALS, st.sampled_from(["concat", "sharded"]))
def test_of_products_by_both_factors(table: Table, mode: str) -> None:
    other = np.random.default_rng(2).normal(size=(2, 3))
    check(nn.matmul, table, lambda params: (params, other, mode))
    left = np.random.default_rng(3).normal(size=(2, 2, table.rows))
    check(nn.matmul, table, lambda params: (left, params, mode), 1)
    value, pullback = vjp(nn.matmul, left, table.sharded, mode)
    upstream = np.ones_like(value)
    assert np.allclose(pullback(upstream)[0], upstream @ table.full.T)
    assert np.allclose(
        vjp(nn.matmul, table.sharded, other, mode)[1](np.ones((table.rows, 3)))[1],
        table.full.sum(0)[:, None],
    )


@given(
    tables(row_shape=(2,), min_rows=2, dtype="float64"),
    st.sampled_from([nn.nce_loss, nn.sampled_softmax_loss]),
)
def test_of_sampled_losses_by_weights_biases_and_inputs(
    table: Table, loss: Callable[..., Any]
) -> None:
    random = np.random.default_rng(4)
    biases, inputs = random.normal(size=table.rows), random.normal(size=(2, 2))
    sampled = ([1, 0], random.uniform(0.1, 1, (2, 1)), random.uniform(0.1, 1, 2))

    def call(weights: Any, offsets: Any, features: Any) -> tuple[Any, ...]:
        return weights, offsets, [[0], [1]], features, 2, table.rows, 1, sampled, False

    check(loss, table, lambda params: call(params, Variable(biases), inputs))
    _, pullback = vjp(loss, *call(table.sharded, shard(biases, [table.rows]), inputs))
    _, of_biases, of_inputs = pullback(np.ones(2))
    whole = Variable(table.full)
    by_biases = by_differences(
        lambda b: float(loss(*call(whole, Variable(b), inputs)).sum()), biases
    )
    assert np.allclose(dense(of_biases), by_biases, atol=1e-4)
    by_inputs = by_differences(
        lambda x: float(loss(*call(whole, Variable(biases), x)).sum()), inputs
    )
    assert np.allclose(of_inputs, by_inputs, atol=1e-4)


def test_of_a_loss_has_the_defaults_of_the_loss() -> None:
    """``sampled_softmax_loss`` removes accidental hits unless it is told otherwise."""
    weights, biases, inputs = Variable(np.eye(5, 2)), Variable(np.zeros(5)), np.ones((2, 2))
    sampled = nn.log_uniform_sampler([[1], [2]], 3, 5, seed=1)
    assert {1, 2} & set(sampled.sampled_candidates.tolist())
    arguments = (weights, biases, [[1], [2]], inputs, 3, 5, 1, sampled)
    value, _ = vjp(nn.sampled_softmax_loss, *arguments)
    assert value.tolist() == nn.sampled_softmax_loss(*arguments).tolist()


@given(REALS, st.data())
def test_of_indexing_is_none_for_shards_that_the_index_does_not_touch(
    table: Table, data: st.DataObject
) -> None:
    start, stop = sorted(
        data.draw(st.tuples(st.integers(0, table.rows), st.integers(0, table.rows)))
    )
    value, pullback = vjp(operator.getitem, table.sharded, slice(start, stop))
    pairs = pullback(np.ones_like(value))[0]
    first = 0
    for part, variable in pairs:
        rows = range(first, first + variable.shape[0])
        assert (part is None) == (not any(start <= row < stop for row in rows))
        first = rows.stop
    assert (
        np.array_equal(dense(pairs)[start:stop], np.ones_like(value))
        and dense(pairs).sum() == value.size
    )


def test_contributions_add_up_and_sparse_ones_stay_sparse() -> None:
    variable, other = Variable(np.zeros((3, 1), np.float32)), Variable([0.0])
    first, second = IndexedSlices([[1.0]], [2], (3, 1)), IndexedSlices([[2.0]], [0], (3, 1))
    (total, nothing) = gradient(
        [(first, variable), (second, variable), (None, other)], [variable, other]
    )
    assert isinstance(total, IndexedSlices) and total.indices.tolist() == [2, 0] and nothing is None
    (total,) = gradient([(first, variable), (np.ones((3, 1), np.float32), variable)], [variable])
    assert total.tolist() == [[1.0], [1.0], [2.0]]
    (total,) = gradient([(first, variable), (None, variable)], [variable])
    assert total is first


@pytest.mark.parametrize("as_list", [True, False])
def test_a_sharded_variable_given_to_a_gradient_function_is_refused_with_the_remedy(
    as_list: bool,
) -> None:
    """R-GRAD-2 (RFC 000): "We don't plan to support directly using ShardedVariable in TF gradient
    APIs"."""
    sharded = ShardedVariable([Variable([1.0])], name="w")
    with pytest.raises(ArgumentTypeError, match=r"'w'.*\.variables"):
        gradient([], [sharded] if as_list else sharded)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError):
        gradient([], [np.zeros(1)])


def test_a_function_without_a_pullback_and_an_upstream_of_another_shape_are_refused() -> None:
    with pytest.raises(ArgumentError, match="sum has no pullback"):
        vjp(np.sum, [1.0])
    _, pullback = vjp(nn.embedding_lookup, Variable([1.0]), [0])
    with pytest.raises(ArgumentError, match=r"\(2,\)"):
        pullback([1.0, 2.0])


def test_a_row_as_long_as_max_norm_has_the_gradient_of_longer_rows() -> None:
    """As in TensorFlow, where the limit is the larger of two equal numbers."""
    for rows, limit, wanted in (
        ([[3.0, 4.0]], 5.0, [[0.16, -0.12]]),
        ([[0.0, 0.0]], 0.0, [[1.0, 0.0]]),
    ):
        _, pullback = nn.vjp(nn.embedding_lookup, Variable(rows, dtype="float64"), [0], limit)
        ((found, _),) = pullback(np.array([[1.0, 0.0]]))[0]
        np.testing.assert_allclose(found.values, np.array(wanted) * (4 if limit else 1), rtol=1e-12)


def test_the_gradient_of_a_scalar_is_one_part() -> None:
    """It has no rows to cut; a table has a part for each shard."""
    scalar, table = Variable(1.0), shard(np.zeros((5, 2), np.float32), [2, 3])
    assert [(part.tolist(), source) for part, source in dense_gradients(scalar, np.array(2.0))] == [
        (2.0, scalar)
    ]
    parts = dense_gradients(table, np.arange(10.0).reshape(5, 2))
    assert [part.shape for part, _ in parts] == [(2, 2), (3, 2)]
