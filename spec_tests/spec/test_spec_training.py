"""Chapters 6 to 9: lookups, losses, gradients and steps equal their plain rules."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import ShardvarError
from shardvar.layout.dtypes import Array
from shardvar.reference.nn import gradients as fast_gradients
from shardvar.reference.nn import losses as fast_losses
from shardvar.reference.nn.rebalance import plan_balanced_rows
from shardvar.reference.variables.rows import RowLayout
from shardvar.spec import gradients, lookups, losses, optimizers, variables
from shardvar.testing import assert_matches_oracle, bits, sparse_ids
from spec_tests.helpers.embedding_tables import shard

sizes = st.lists(st.integers(0, 3), min_size=1, max_size=5)
filled = sizes.filter(sum)
REALS = ["float32", "float64"]


def values(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@given(
    filled,
    st.sampled_from("uint8 int64 bool float16 bfloat16 float32 float64 complex64".split()),
    st.sampled_from([(), (2,), (1, 2)]),
    st.data(),
)
def test_lookups(cut: list[int], dtype: str, row: tuple[int, ...], data: st.DataObject) -> None:
    """R-LOOKUP-2 (RFC 000): "treat sharded variable as a list of variables for parallel
    operations". R-LOOKUP-3 (RFC 000): 'always assume it is "div" strategy'. R-ID-1: others are
    refused."""
    table = data.draw(bits(np.dtype(dtype), (sum(cut), *row)))
    ids = np.array(data.draw(st.lists(st.integers(-1, sum(cut)), max_size=6)), np.int64)
    ids = ids.reshape(data.draw(st.sampled_from([(-1,), (1, -1)]))) if ids.size else ids
    shards = variables.shard(table, cut)
    try:
        plain = lookups.embedding_lookup(shards, ids)
    except IndexError:
        with pytest.raises(ShardvarError):
            sv.nn.embedding_lookup(shard(table, cut), ids)
        return
    came = sv.nn.embedding_lookup(shard(table, cut), ids)
    assert came.tobytes() == plain.tobytes() and came.shape == plain.shape


@given(
    filled,
    st.sampled_from(REALS),
    st.sampled_from([(), (2,), (1, 2)]),
    st.sampled_from([0.5, 1.0, 4.0]),
    st.integers(0, 99),
)
def test_clipped_lookups(
    cut: list[int], dtype: str, row: tuple[int, ...], norm: float, seed: int
) -> None:
    """R-LOOKUP-4 (RFC 002): "each embedding is clipped if its l2-norm is larger than this
    value"."""
    table = values((sum(cut), *row), dtype, seed)
    table[0] = 0
    ids = np.arange(sum(cut))[::-1]
    plain = lookups.embedding_lookup(variables.shard(table, cut), ids, norm)
    came = sv.nn.embedding_lookup(shard(table, cut), ids, norm)
    assert_matches_oracle(came, plain, ulps=4)
    assert all(np.linalg.norm(lookups.clipped(each, norm)) <= norm * 1.0001 for each in table)


@given(
    filled,
    st.sampled_from(REALS),
    st.sampled_from([(), (2,), (1, 2)]),
    st.sampled_from(["sum", "mean", "sqrtn"]),
    st.sampled_from([None, 1.0]),
    st.data(),
)
def test_bags(
    cut: list[int],
    dtype: str,
    row: tuple[int, ...],
    combiner: str,
    norm: float | None,
    data: st.DataObject,
) -> None:
    """R-SPARSE-1 (RFC 002): "we will remove `partition_strategy `from all v2 symbols"."""
    table = values((sum(cut), *row), dtype, 3)
    some = data.draw(sparse_ids(sum(cut)))
    places = [(at, place) for at, bag in enumerate(some.bags) for place in range(len(bag))]
    flat = [one for bag in some.bags for one in bag]
    weights = None if some.weights is None else [w for bag in some.weights for w in bag]
    entries = [
        (at, one, None if weights is None else weights[number])
        for number, ((at, _), one) in enumerate(zip(places, flat, strict=True))
    ]
    shape = (len(some.bags), max(map(len, some.bags), default=0))
    indices = np.array(places, np.int64).reshape(-1, 2)
    came = sv.nn.embedding_lookup_sparse(
        shard(table, cut),
        sv.nn.SparseTensor(indices, np.array(flat, np.int64), shape),
        None if weights is None else sv.nn.SparseTensor(indices, np.array(weights, dtype), shape),
        combiner,
        norm,
    )
    shards = variables.shard(table, cut)
    plain = lookups.embedding_lookup_sparse(shards, entries, len(some.bags), combiner, norm)
    # A sum whose terms cancel keeps no digits; the largest term says how many are lost.
    assert_matches_oracle(came.shape, plain.shape)
    assert np.allclose(came, plain, rtol=1e-5, atol=1e-5)


@given(filled, st.data())
def test_balanced_rows(cut: list[int], data: st.DataObject) -> None:
    """R-BALANCE-1 (RFC 002): "rebalance embeddings in the Keras Embedding layer, optionally given a
    frequency map/list"."""
    number = st.integers(0, 9)
    frequencies = data.draw(st.lists(number, min_size=sum(cut), max_size=sum(cut)))
    came = plan_balanced_rows(frequencies, RowLayout.of_sizes(cut)).tolist()
    assert came == lookups.balanced_rows(frequencies, cut)


@given(
    st.integers(4, 9),
    st.integers(0, 3),
    st.integers(1, 2),
    st.integers(0, 4),
    st.booleans(),
    st.integers(0, 99),
)
def test_sampled_losses(
    classes: int, batch: int, num_true: int, num_sampled: int, remove: bool, seed: int
) -> None:
    """R-LOSS-1 (RFC 002): "people have to write methods that respect the partitions, e.g.
    `tf.nn.sampled_softmax_loss`"."""
    random = np.random.default_rng(seed)
    weights, biases = random.normal(size=(classes, 2)), random.normal(size=classes)
    labels = random.integers(0, classes, (batch, num_true))
    inputs = random.normal(size=(batch, 2))
    sampled = random.choice(classes, num_sampled, replace=False)
    counts = [losses.expected_count(one, classes, 4) for one in range(classes)]
    expected = np.array(counts)
    assert_matches_oracle(
        fast_losses.expected_count(np.arange(classes), classes, 4),
        expected.astype(np.float32),
        ulps=4,
    )
    cut = [classes - 2, 0, 2]
    logits = losses.sampled_logits(
        variables.shard(weights, cut),
        variables.shard(biases, cut),
        labels,
        inputs,
        sampled.tolist(),
        expected[labels],
        expected[sampled],
        remove,
    )
    arguments: Any = (
        shard(weights, cut),
        shard(biases, cut),
        labels,
        inputs,
        num_sampled,
        classes,
        num_true,
        (sampled, expected[labels], expected[sampled]),
        remove,
    )
    softmax = losses.sampled_softmax_loss(logits, num_true)
    assert np.allclose(sv.nn.sampled_softmax_loss(*arguments), softmax, rtol=1e-9, atol=1e-9)
    assert np.allclose(
        sv.nn.nce_loss(*arguments), losses.nce_loss(logits, num_true), rtol=1e-9, atol=1e-9
    )


def same_gradient(fast: Any, plain: gradients.Gradient) -> bool:
    if isinstance(plain, tuple):
        rows, rest = plain
        return fast.indices.tolist() == rows and fast.values.tolist() == rest.tolist()
    return bool(np.array_equal(fast, plain))


@given(filled, st.sampled_from([(), (2,), (1, 2)]), st.data())
def test_gradients(cut: list[int], row: tuple[int, ...], data: st.DataObject) -> None:
    """R-GRAD-1 (RFC 000): "`grads_and_vars` contains a pair of (gradient, component variable)".
    R-GRAD-2 (RFC 000): "We don't plan to support directly using `ShardedVariable` in TF gradient
    APIs." R-OPT-1 (RFC 002): "essentially dicts mapping from indices to vectors"."""
    table = values((sum(cut), *row), "float64", 5)
    shards, sharded = variables.shard(table, cut), shard(table, cut)
    ids = data.draw(st.lists(st.integers(0, sum(cut) - 1), max_size=6))
    upstream = values((len(ids), *row), "float64", 6)
    kind = data.draw(st.sampled_from(["int32", "int64"]))
    _, pullback = sv.nn.vjp(sv.nn.embedding_lookup, sharded, np.array(ids, kind))
    came: list[Any] = [gradient for gradient, _ in pullback(upstream)[0]]
    assert {each.indices.dtype.name for each in came} == {kind}
    plain = gradients.embedding_lookup_gradient(ids, upstream, shards)
    assert all(map(same_gradient, came, plain))
    assert all(map(same_gradient, came, gradients.sparse_gradients(ids, upstream, shards)))
    dense = [gradient for gradient, _ in fast_gradients.dense_gradients(sharded, table)]
    assert all(map(same_gradient, dense, gradients.dense_gradients(table, shards)))
    for fast, one, each in zip(came, plain, shards, strict=True):
        assert np.allclose(fast.to_dense(), gradients.densified(one, each.shape), rtol=1e-12)
    with pytest.raises(ShardvarError):
        sv.nn.gradient([], [sharded])


@given(filled, st.integers(1, 3))
def test_matmul_gradients(cut: list[int], columns: int) -> None:
    table = values((sum(cut), columns), "float64", 7)
    x, upstream = values((2, sum(cut)), "float64", 8), values((2, columns), "float64", 9)
    _, pullback = sv.nn.vjp(sv.nn.matmul, x, shard(table, cut))
    plain = gradients.matmul_gradient(x, upstream, variables.shard(table, cut))
    came = [gradient for gradient, _ in pullback(upstream)[1]]
    assert all(np.allclose(one, other) for one, other in zip(came, plain, strict=True))


HYPER: dict[str, tuple[dict[str, float], dict[str, float]]] = {
    "SGD": ({"learning_rate": 0.125}, {}),
    "Momentum": ({"learning_rate": 0.125, "momentum": 0.75}, {"momentum": 0.0}),
    "Nesterov": ({"learning_rate": 0.125, "momentum": 0.75}, {"momentum": 0.0}),
    "Adagrad": ({"learning_rate": 0.25, "epsilon": 2.0**-20}, {"accumulator": 0.125}),
    "Adam": (
        {"learning_rate": 0.125, "beta_1": 0.875, "beta_2": 0.96875, "epsilon": 2.0**-20},
        {"m": 0.0, "v": 0.0},
    ),
    "RMSprop": ({"learning_rate": 0.125, "rho": 0.875, "epsilon": 2.0**-20}, {"rms": 0.0}),
}


@pytest.mark.parametrize("forms", [*product(("dense", "sparse", "none"), repeat=3)])
@pytest.mark.parametrize("row", [(), (2,)])
@pytest.mark.parametrize("name", sorted(HYPER))
def test_steps(name: str, row: tuple[int, ...], forms: tuple[str, ...]) -> None:
    """R-OPT-5 (RFC 000): "gradient computation and update are always performed at the component
    variable level". R-SLOT-1 (RFC 000): "Slot variable is partitioned in exactly the same way as
    the original variable." Three steps, each dense, of some rows or of none; the last shard has
    dense ones."""
    cut = [2, 0, 3, 1]
    hyper, first = HYPER[name]
    more: dict[str, float] = {}
    if name == "Adagrad":
        more = {"initial_accumulator_value": first["accumulator"]}
    if name == "Nesterov":
        more = {"nesterov": True}
    fast = getattr(sv.optimizers, name.replace("Nesterov", "Momentum"))(**hyper, **more)
    table = values((sum(cut), *row), "float64", 11)
    sharded, shards = shard(table, cut), variables.shard(table, cut)
    slots = {key: optimizers.add_slot(shards, start) for key, start in first.items()}
    assert tuple(first) == optimizers.RULES[name][1]
    for step, form in enumerate(forms, 1):
        given_gradients: list[gradients.Gradient] = []
        for number, each in enumerate(shards):
            if form == "dense" or not len(each) or number == 3:
                given_gradients.append(values(each.shape, "float64", 20 * step + number))
            else:
                rows = [(step + number) % len(each)] * 2 if form == "sparse" else []
                given_gradients.append((rows, values((len(rows), *row), "float64", step)))
        fast.apply_gradients(
            [
                (sv.IndexedSlices(one[1], np.array(one[0], np.int64)), to)
                if isinstance(one, tuple)
                else (one, to)
                for one, to in zip(given_gradients, sharded.variables, strict=True)
            ]
        )
        shards, slots = optimizers.apply_gradients(
            name, shards, given_gradients, slots, hyper, step
        )
    for to, one in zip(sharded.variables, shards, strict=True):
        assert np.allclose(to.numpy(), one, rtol=1e-9, atol=1e-12)
    for key, slot in slots.items():
        came = fast.get_slot(sharded, key)
        assert [each.shape for each in came.variables] == [each.shape for each in slot]
        assert np.allclose(came.numpy(), variables.read(slot), rtol=1e-9, atol=1e-12)
