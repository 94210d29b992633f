"""Optimizers on mirrored variables: copies take equal steps, slots are mirrored, gradients of
replicas become one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import ArgumentError
from shardvar.reference.devices import Device, track_transfers
from shardvar.reference.training import steps
from shardvar.reference.training.optimizers import SGD, Adagrad
from shardvar.reference.variables import (
    AggregatingVariable,
    IndexedSlices,
    MirroredVariable,
    PerReplica,
    ShardedVariable,
    Variable,
)
from shardvar.reference.variables.values import sum_sorted
from spec_tests.helpers.embedding_tables import Table, tables
from spec_tests.helpers.optimizer_steps import COMPATS, MAKERS, gradients

REPLICAS = (Device("worker:0/GPU:0"), Device("worker:0/GPU:1"), Device("worker:1/GPU:0"))


def mirrored(value: Any, aggregation: Any = None, sizes: list[int] | None = None) -> Any:
    """A copy on each replica, made outside of any scope; cut where there are sizes."""

    def copy(device: Device) -> Any:
        if sizes is None:
            return Variable(value, name="w", device=device)
        parts = np.split(value, np.cumsum(sizes)[:-1])
        return ShardedVariable(
            [Variable(part, name=f"w/part_{i}", device=device) for i, part in enumerate(parts)], "w"
        )

    return MirroredVariable([copy(device) for device in REPLICAS], aggregation)


@given(
    tables(), st.sampled_from(sorted(MAKERS)), st.sampled_from(COMPATS), st.booleans(), st.data()
)
def test_steps_of_a_mirrored_variable_are_the_steps_of_each_copy_bit_for_bit(
    table: Table, name: str, compat: str, is_cut: bool, data: st.DataObject
) -> None:
    """R-OPT-7: "kept in sync by applying the same updates to every copy"; slots are mirrored, and
    cut, alike."""
    sizes = [len(shard.numpy()) for shard in table.sharded.variables] if is_cut else None
    plain, copies = Variable(table.full), mirrored(table.full, sizes=sizes)
    one, other = MAKERS[name](compat), MAKERS[name](compat)
    for _ in range(data.draw(st.integers(1, 3))):
        gradient = data.draw(gradients(table))
        one.apply_gradients([(gradient, plain)])
        other.apply_gradients([(gradient, copies)])
    assert one.get_slot_names() == other.get_slot_names()
    slots = [
        (one.get_slot(plain, slot), other.get_slot(copies, slot)) for slot in one.get_slot_names()
    ]
    for wanted, found in [(plain, copies), *slots]:
        assert isinstance(found, MirroredVariable)
        assert [[each.device for each in copy.resources] for copy in found.copies] == [
            [each.device for each in copy.resources] for copy in copies.copies
        ]
        assert all(np.array_equal(copy.numpy(), wanted.numpy()) for copy in found.copies)


def test_a_variable_that_aggregates_for_a_sharded_one_has_its_slots_and_its_steps() -> None:
    """R-SLOT-1: "Slot variable is partitioned in exactly the same way as the original variable"."""
    value = np.ones((5, 2), np.float32)
    inner = ShardedVariable(
        [Variable(value[:3], device=REPLICAS[0]), Variable(value[3:], device=REPLICAS[1])]
    )
    variable, plain = AggregatingVariable(inner, "MEAN"), Variable(value)
    rows = IndexedSlices(np.full((2, 2), 2.0, np.float32), [4, 0], (5, 2))
    none = IndexedSlices(np.zeros((0, 2), np.float32), [], (5, 2))
    optimizer, other = Adagrad(0.1), Adagrad(0.1)
    optimizer.apply_gradients([(PerReplica([rows, none]), variable)])
    other.apply_gradients([(IndexedSlices(rows.values / 2, [4, 0]), plain)])
    slot = optimizer.get_slot(variable, "accumulator")
    assert slot is optimizer.get_slot(inner, "accumulator") and slot.devices == inner.devices
    assert slot.partition == inner.partition
    assert np.array_equal(slot.numpy(), other.get_slot(plain, "accumulator").numpy())
    assert np.array_equal(variable.numpy(), plain.numpy())
    with track_transfers() as ledger:
        optimizer.apply_gradients([(rows, variable)])
    assert ledger.nbytes == 2 * 2 * 4


@pytest.mark.sample(5)
@pytest.mark.parametrize("sizes", [None, [2, 0, 3], [1] * 5])
@pytest.mark.parametrize("name", sorted(MAKERS))
@pytest.mark.parametrize("compat", COMPATS)
def test_a_step_sums_the_rows_of_a_gradient_once_for_all_copies_and_shards(
    sizes: list[int] | None, name: str, compat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the sums does not grow with the replicas; Keras 3's sums of squares are one
    more."""
    summed = []

    def counted(rows: Any, values: Any, order: Any) -> Any:
        summed.append(len(rows))
        return sum_sorted(rows, values, order)

    monkeypatch.setattr(steps, "sum_sorted", counted)
    for variable in (
        mirrored(np.ones((5, 2), np.float32), sizes=sizes),
        Variable(np.ones((5, 2), np.float32)),
    ):
        gradient = IndexedSlices(np.ones((6, 2), np.float32), [4, 0, 4, 2, 4, 0], (5, 2))
        MAKERS[name](compat).apply_gradients([(gradient, variable)])
        assert summed == [6] * (2 if compat == "keras3" else 1)
        summed.clear()


def test_of_a_sparse_step_on_mirrored_rows_only_its_rows_cross() -> None:
    copies, optimizer = mirrored(np.ones((1000, 4), np.float32)), Adagrad()
    slices = IndexedSlices(np.ones((3, 4), np.float32), [3, 3, 700], (1000, 4))
    optimizer.apply_gradients([(slices, copies)])  # slots are made
    with track_transfers() as ledger:
        optimizer.apply_gradients([(slices, copies)])
    assert ledger.nbytes == len(REPLICAS) * 2 * 4 * 4  # two distinct rows to each replica


def test_slots_that_are_drawn_by_chance_are_equal_on_all_replicas_and_named_after_them() -> None:
    random = np.random.default_rng(0)
    for sizes in (None, [2, 1]):
        slot = SGD().add_slot(
            mirrored(np.ones((3, 2), np.float32), sizes=sizes),
            "noise",
            lambda shape, dtype: random.normal(size=shape).astype(dtype),
        )
        assert [copy.name for copy in slot.copies] == [
            "w/noise",
            "w/noise/replica_1",
            "w/noise/replica_2",
        ]
        values = [copy.numpy() for copy in slot.copies]
        assert (
            all(np.array_equal(values[0], value) for value in values)
            and len(np.unique(values[0])) == 6
        )


@pytest.mark.parametrize(
    ("aggregation", "factor"),
    [(None, 6.0), ("SUM", 6.0), ("MEAN", 2.0), ("ONLY_FIRST_REPLICA", 1.0)],
)
@pytest.mark.parametrize("is_sparse", [False, True])
def test_gradients_of_replicas_become_one_as_the_variable_says(
    aggregation: Any, factor: float, is_sparse: bool
) -> None:
    """R-OPT-8; without an aggregation the sum, as TensorFlow's optimizers take it."""
    ones = np.ones((4, 2), np.float32)
    parts: list[Any] = [ones * number for number in (1, 2, 3)]
    if is_sparse:
        parts = [IndexedSlices(part[:2], [3, 1], (4, 2)) for part in parts]
    for variable in (
        mirrored(ones, aggregation),
        AggregatingVariable(Variable(ones), aggregation),
        Variable(ones, aggregation=aggregation),
    ):
        SGD(1.0).apply_gradients([(PerReplica(parts, REPLICAS), variable)])
        assert np.array_equal(variable.numpy()[1], ones[1] - factor)
        assert np.array_equal(variable.numpy()[0], ones[0] - (0 if is_sparse else factor))


def test_gradients_of_replicas_that_do_not_agree_are_refused_and_nothing_is_written() -> None:
    variable, good = mirrored(np.ones((4, 2), np.float32)), np.ones((4, 2), np.float32)
    rows = IndexedSlices(np.ones((1, 2), np.float32), [0])
    for values, words in [
        ([good, None, good], "None"),
        ([good, good[:1], good], "Replica 1"),
        ([good, np.float32(1), good], "Replica 1"),
        ([rows, good, rows], "one kind"),
        ([rows, IndexedSlices(np.ones((1, 3), np.float32), [0]), rows], "Replica 1"),
        ([rows, rows, IndexedSlices(np.ones((1, 2), np.float32), [4])], "Index 4"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            SGD().apply_gradients([(PerReplica(values), variable)])
    with pytest.raises(ArgumentError, match="has no gradient"):
        SGD().apply_gradients([(PerReplica([None, None]), variable)])
    assert np.all(variable.numpy() == 1)
