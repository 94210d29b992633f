"""Rows that stand elsewhere than their ids say: balanced by frequency or shuffled, and always found
again."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import ArgumentError, OutOfRange
from shardvar.layout.dtypes import Array, Ints
from shardvar.layout.partition import Partition
from shardvar.reference.nn import (
    RebalancedEmbedding,
    embedding_lookup,
    permute_rows,
    plan_balanced_rows,
    plan_shuffled_rows,
)
from shardvar.reference.tracking import ObjectGraph
from shardvar.reference.variables import (
    AggregatingVariable,
    MirroredVariable,
    ShardedVariable,
    Variable,
)
from shardvar.reference.variables.rows import RowLayout
from spec_tests.helpers.embedding_tables import Table, ids_for, tables


def shard_loads(frequencies: npt.ArrayLike, rows: Ints, layout: RowLayout) -> Array:
    """Return how often each shard is read, given how often each id is."""
    owner, _ = layout.owner(rows)
    return np.bincount(owner, np.asarray(frequencies, np.float64), minlength=layout.num_shards)


@given(tables(), st.integers(0, 2**31), st.booleans(), st.data())
def test_a_rebalanced_embedding_gives_every_id_the_row_that_it_had(
    table: Table, seed: int, by_frequency: bool, data: st.DataObject
) -> None:
    """R-BALANCE-1 (RFC 002): "remember the mapping in a variable"."""
    frequencies = np.random.default_rng(seed).zipf(1.5, table.rows)
    if by_frequency:
        embedding = RebalancedEmbedding.by_frequency(table.sharded, frequencies)
    else:
        embedding = RebalancedEmbedding.shuffled(table.sharded, seed)
    ids = data.draw(ids_for(table.rows))
    assert np.array_equal(embedding.lookup(np.array(ids, np.int64)), table.full[ids])
    assert np.array_equal(
        embedding_lookup(table.sharded, embedding.rows_of(np.array(ids, np.int64))), table.full[ids]
    )


@given(st.integers(0, 300), st.integers(0, 2**62))
def test_a_shuffle_is_a_permutation_that_its_seed_decides(num_rows: int, seed: int) -> None:
    rows = plan_shuffled_rows(num_rows, seed)
    assert sorted(rows.tolist()) == list(range(num_rows))
    assert np.array_equal(rows, plan_shuffled_rows(num_rows, seed))


def test_shuffling_spreads_a_hot_spot() -> None:
    """R-BALANCE-2 (RFC 000): "mitigate hotspot issues via other means like vocab shuffling"."""
    layout = RowLayout.of_sizes([1000] * 4)
    frequencies = 1 / np.arange(1, 4001)
    before = shard_loads(frequencies, np.arange(4000), layout)
    after = shard_loads(frequencies, plan_shuffled_rows(4000, 3), layout)
    assert before.max() / before.mean() > 3 > 2 > after.max() / after.mean()


def test_table_and_mapping_are_saved_together() -> None:
    embedding = RebalancedEmbedding(Variable([[0.0], [1.0]]), [1, 0])
    assert [path for path in ObjectGraph.of(embedding).paths() if path] == [
        ("table",),
        ("mapping",),
    ]
    assert not embedding.mapping.trainable


@pytest.mark.parametrize("rows", [[0, 0], [0], [0, 2], [0.5, 1.0]])
def test_rows_that_are_no_permutation_are_refused(rows: list[float]) -> None:
    variable = Variable([[0.0], [1.0]])
    with pytest.raises(ArgumentError):
        permute_rows(variable, rows)
    with pytest.raises(ArgumentError):
        RebalancedEmbedding(variable, rows)
    assert variable.numpy().tolist() == [[0.0], [1.0]]


@pytest.mark.parametrize("frequencies", [[1.0], [1.0, -1.0], [1.0, float("nan")], [[1.0, 2.0]]])
def test_frequencies_that_are_no_counts_are_refused(frequencies: list[float]) -> None:
    with pytest.raises(ArgumentError, match="Frequencies"):
        plan_balanced_rows(frequencies, RowLayout.of_sizes([1, 1]))


def test_a_table_or_its_partition_says_which_shard_holds_which_rows() -> None:
    frequencies = [8, 4, 4, 1, 1, 1]
    table = ShardedVariable([Variable(np.zeros((rows, 2))) for rows in (2, 0, 4)])
    wanted = plan_balanced_rows(frequencies, RowLayout.of_sizes([2, 0, 4])).tolist()
    mirrored = MirroredVariable(
        [ShardedVariable([Variable(np.zeros((rows, 2))) for rows in (2, 0, 4)]) for _ in "ab"]
    )
    for layout in (table, table.partition, mirrored, AggregatingVariable(table, "SUM")):
        assert plan_balanced_rows(frequencies, layout).tolist() == wanted
    assert plan_balanced_rows(frequencies, Variable(np.zeros((6, 2)))).tolist() == list(range(6))
    assert plan_balanced_rows({0: 8, 2: 4, 1: 4, 3: 1, 5: 1, 4: 1}, table).tolist() == wanted


@pytest.mark.parametrize(
    "layout", [Partition.from_counts((6, 2), (1, 2)), Partition.from_counts((), ()), "ab", 3, None]
)
def test_what_does_not_say_which_shard_holds_which_rows_is_refused(layout: Any) -> None:
    with pytest.raises(ArgumentError):
        plan_balanced_rows([1.0] * 6, layout)


@pytest.mark.parametrize(
    ("frequencies", "error", "words"),
    [
        ({5: 1.0}, OutOfRange, "5"),
        ({-1: 1.0}, OutOfRange, "-1"),
        ({0: "often"}, ArgumentError, "not numbers"),
        ({0: None, 1: [1]}, ArgumentError, "not numbers"),
        (["a", "b"], ArgumentError, "not numbers"),
    ],
)
def test_ids_outside_and_what_is_no_number_are_different_errors(
    frequencies: Any, error: type[ArgumentError], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        plan_balanced_rows(frequencies, RowLayout.of_sizes([1, 1]))
    assert type(caught.value) is error
