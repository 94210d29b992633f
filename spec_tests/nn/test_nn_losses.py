"""Sampled losses in any layout of weights and biases; the sampler."""

from itertools import product
from math import log2
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import ArgumentError, OutOfRange
from shardvar.reference.devices import track_transfers
from shardvar.reference.nn import SampledValues, log_uniform_sampler, nce_loss, sampled_softmax_loss
from shardvar.reference.nn.losses import expected_count
from shardvar.reference.random import stateless_uniform
from shardvar.reference.variables import Variable
from spec_tests.helpers.embedding_tables import shard


def test_only_the_rows_of_labels_and_samples_move() -> None:
    """R-LOSS-1: the loss respects the partitions."""
    weights, biases = (
        shard(np.ones((100, 8), np.float32), [50, 50]),
        shard(np.ones(100, np.float32), [100]),
    )
    sampled = ([3, 60], np.ones((1, 1), np.float32), np.ones(2, np.float32))
    with track_transfers() as ledger:
        nce_loss(
            weights, biases, [[7]], np.ones((1, 8), np.float32), 2, 100, sampled_values=sampled
        )
    assert ledger.nbytes == 3 * (8 + 1) * 4


@given(st.integers(1, 200), st.integers(0, 2**62), st.data())
def test_the_sampler_draws_distinct_classes_and_its_seed_decides_which(
    range_max: int, seed: int, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, range_max))
    sampled = log_uniform_sampler([[0]], count, range_max, seed)
    candidates = sampled.sampled_candidates.tolist()
    assert len(set(candidates)) == len(candidates) == count
    assert all(0 <= c < range_max for c in candidates)
    assert (
        candidates == log_uniform_sampler([[0]], count, range_max, seed).sampled_candidates.tolist()
    )
    assert np.all((sampled.sampled_expected_count >= 0) & (sampled.sampled_expected_count <= 1))


def test_a_loss_without_samples_draws_them_by_its_seed() -> None:
    weights, biases = (
        Variable(np.ones((20, 2), np.float32)),
        Variable(np.arange(20, dtype=np.float32)),
    )
    arguments = (weights, biases, [[3]], np.ones((1, 2), np.float32), 5, 20)
    assert np.array_equal(
        sampled_softmax_loss(*arguments, seed=1), sampled_softmax_loss(*arguments, seed=1)
    )
    assert nce_loss(*arguments).shape == (1,)


def test_what_cannot_be_meant_is_refused() -> None:
    weights, biases = Variable(np.ones((4, 2), np.float32)), Variable(np.ones(4, np.float32))
    x = np.ones((1, 2), np.float32)
    with pytest.raises(OutOfRange, match="Index 4"):
        nce_loss(weights, biases, [[4]], x, 1, 4)
    with pytest.raises(ArgumentError, match="labels"):
        nce_loss(weights, biases, [[0, 1]], x, 1, 4)
    with pytest.raises(ArgumentError, match="biases"):
        nce_loss(weights, Variable([1.0]), [[0]], x, 1, 4)
    with pytest.raises(ArgumentError, match="inputs"):
        nce_loss(weights, biases, [[0]], np.ones((1, 3), np.float32), 1, 4)
    with pytest.raises(ArgumentError, match="distinct"):
        nce_loss(weights, biases, [[0]], x, 5, 4)
    with pytest.raises(ArgumentError, match="5 classes"):
        nce_loss(weights, biases, [[0]], x, 2, 5)
    with pytest.raises(ArgumentError, match="three"):
        nce_loss(weights, biases, [[0]], x, 2, 4, sampled_values=[1, 2])
    for wrong in ([[1, 2], [1.0], [0.5, 0.5]], [[1, 2], [[1.0]], [0.5]]):
        with pytest.raises(ArgumentError, match="expected_count"):
            nce_loss(weights, biases, [[0]], x, 2, 4, sampled_values=wrong)
    with pytest.raises(ArgumentError, match="sampled_expected_count"):
        SampledValues.of(([1, 2], np.ones((1, 1)), np.ones(3)), (1, 1))


def test_many_classes_are_drawn_batch_by_batch() -> None:
    """Each batch of 65,536 uniform values has a seed of its own, so that the memory is bounded and
    the draws agree."""
    count, range_max, seed = 20_000, 30_000, 3
    found: dict[int, None] = {}
    batch = 0
    while len(found) < count:
        uniform = stateless_uniform([1 << 16], [seed, batch], dtype="float64")
        found |= dict.fromkeys(
            (np.exp(uniform * np.log(range_max + 1)) - 1).astype(np.int64).tolist()
        )
        batch += 1
    candidates = log_uniform_sampler([[0]], count, range_max, seed).sampled_candidates.tolist()
    assert batch > 1 and candidates == list(found)[:count]


def test_expected_counts_are_those_of_exact_arithmetic() -> None:
    """1 - (1 - P)^t for all classes of small ranges, also where P is 1 or nearly so."""
    for range_max, draws in product((1, 2, 3, 10, 1000), (1, 2, 7, 100)):
        for chosen in {0, 1, 2, range_max // 2, range_max - 1} & set(range(range_max)):
            # The sampler draws from a Zipfian distribution: P(c) = log((c + 2) / (c + 1)) / log(n + 1).
            chance = log2((chosen + 2) / (chosen + 1)) / log2(range_max + 1)
            (found,) = expected_count([chosen], range_max, draws)
            assert found == pytest.approx(1 - (1 - chance) ** draws, rel=1e-6)


@pytest.mark.parametrize("loss", [nce_loss, sampled_softmax_loss])
def test_tables_that_hold_no_classes_of_reals_are_refused(loss: Any) -> None:
    """Whole numbers, and tables of one axis or three."""
    right: dict[str, Any] = {
        "weights": Variable(np.ones((4, 2), np.float32)),
        "biases": Variable(np.ones(4, np.float32)),
        "labels": [[3]],
        "inputs": np.ones((1, 2), np.float32),
    }
    loss(**right, num_sampled=1, num_classes=4)
    for change in (
        {"weights": Variable(np.ones((4, 2), np.int32))},
        {"weights": Variable(np.ones(4, np.float32))},
        {"weights": Variable(np.ones((4, 2, 1), np.float32))},
        {"num_true": 0},
    ):
        with pytest.raises(ArgumentError) as caught:
            loss(**(right | change), num_sampled=1, num_classes=4)
        assert caught.value.remedy
