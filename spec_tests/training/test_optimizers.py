"""A step on shards is the step on the whole, bit for bit; slots lie as their variables; nothing is
half done."""

import gc
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar import nn
from shardvar.errors import ArgumentError, ArgumentTypeError, UnknownKey
from shardvar.reference.devices import Device, track_transfers
from shardvar.reference.nn.gradients import dense_gradients, sparse_gradients
from shardvar.reference.tracking import ObjectGraph, Trackable
from shardvar.reference.training.optimizers import SGD, Adagrad, Adam, Momentum, Optimizer
from shardvar.reference.training.strategies import ParameterServerStrategy
from shardvar.reference.variables import (
    IndexedSlices,
    MirroredVariable,
    ShardedVariable,
    Variable,
    create_sharded_variable,
    variable_creator_scope,
)
from shardvar.spec.optimizers import RULES, add_slot, apply_gradients
from spec_tests.helpers.embedding_tables import Table, shard, tables
from spec_tests.helpers.optimizer_steps import ANY, COMPATS, MAKERS, gradients
from spec_tests.helpers.sharded_variables import UserVariable


def apply(optimizer: Optimizer, variable: Any, whole: Any) -> None:
    """Apply the gradient of the whole to a variable, or to the shards."""
    sparse = isinstance(whole, IndexedSlices)
    optimizer.apply_gradients(
        sparse_gradients(variable, whole.indices, whole.values)
        if sparse
        else dense_gradients(variable, whole)
    )


@pytest.mark.parametrize("compat", COMPATS)
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_rows_without_a_gradient_go_on_where_the_rule_moves_them(name: str, compat: str) -> None:
    """Adam's and RMSprop's slots of all rows decay, and Adam moves each by its own, as the dense
    form does.

    Momentum is that of rows with a gradient alone, but for Keras 3.
    """
    rng = np.random.default_rng(7)
    start, first, later = rng.normal(size=(3, 5, 3)).astype(np.float32)
    slices = IndexedSlices(later[[3, 1]], np.array([3, 1]), start.shape)
    variables, optimizers = (
        [Variable(start), Variable(start)],
        [MAKERS[name](compat), MAKERS[name](compat)],
    )
    for variable, optimizer in zip(variables, optimizers, strict=True):
        optimizer.apply_gradients([(first, variable)])
    before = variables[0].numpy()
    for variable, optimizer, gradient in zip(
        variables, optimizers, (slices, slices.to_dense()), strict=True
    ):
        optimizer.apply_gradients([(gradient, variable)])
    stays = name in ("momentum", "nesterov") and compat != "keras3"
    expected = variables[1].numpy()
    expected[[0, 2, 4]] = before[[0, 2, 4]] if stays else expected[[0, 2, 4]]
    assert np.array_equal(variables[0].numpy(), expected)
    for slot in optimizers[0].get_slot_names():
        of_sparse, of_dense = (
            o.get_slot(v, slot).numpy() for o, v in zip(optimizers, variables, strict=True)
        )
        assert np.array_equal(of_sparse[[1, 3]], of_dense[[1, 3]])
        assert stays or np.array_equal(of_sparse, of_dense)


HYPER = {
    "learning_rate": 0.1, "momentum": 0.9, "beta_1": 0.9, "beta_2": 0.999, "rho": 0.9, "epsilon": 1e-7
}  # fmt: skip


def by_the_book(name: str, w: Any, steps: list[Any]) -> Any:
    """The plain rules on one shard, in float64."""
    title = {"sgd": "SGD", "rmsprop": "RMSprop"}.get(name, name.capitalize())
    first = 0.1 if name == "adagrad" else 0.0
    shards: Any = [w]
    slots: Any = {slot: add_slot(shards, first) for slot in RULES[title][1]}
    for t, g in enumerate(steps, 1):
        shards, slots = apply_gradients(title, shards, [g], slots, HYPER, t)
    return shards[0]


@pytest.mark.parametrize("name", sorted(MAKERS))
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_each_rule_is_its_formula(name: str, dtype: str) -> None:
    """Of more elements than a block has, which repeat some."""
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    w, *steps = np.random.default_rng(5).normal(size=(4, 100)).astype(kind)
    variable, optimizer = Variable(np.tile(w, 400)), MAKERS[name]("keras_legacy")
    for g in steps:
        optimizer.apply_gradients([(np.tile(g, 400), variable)])
    expected = by_the_book(name, w.astype(np.float64), [g.astype(np.float64) for g in steps])
    slack = {"float16": 2e-2, "bfloat16": 1e-1}.get(dtype, 1e-4)
    found = variable.numpy().astype(np.float64).reshape(400, 100)
    assert variable.dtype == kind and np.allclose(found, expected, rtol=slack, atol=slack)


def test_slots_lie_as_their_variable_and_are_created_at_the_first_step() -> None:
    """R-SLOT-1: "Slot variable is partitioned in exactly the same way as the original variable";
    R-OPT-5."""
    table = shard(np.ones((7, 2), np.float32), [4, 0, 3])
    optimizer = Adam()
    assert optimizer.get_slot_names() == []
    apply(optimizer, table, np.ones((7, 2), np.float32))
    slot = optimizer.get_slot(table, "m")
    assert isinstance(slot, ShardedVariable) and slot.partition == table.partition
    assert slot.devices == table.devices and not slot.trainable
    assert optimizer.get_slot(table.variables[2], "m") is slot.variables[2]
    assert optimizer.get_slot(table, "m") is slot and optimizer.get_slot_names() == ["m", "v"]
    assert slot.name == "table/m" and slot.variables[2].name == "table/part_2/m"


def test_add_slot_of_a_sharded_variable_is_add_slot_of_its_shards() -> None:
    """R-SLOT-1 (RFC 000): "construct a new ShardedVariable on the fly containing those slots"."""
    together, one_by_one = (
        shard(np.ones((3, 2), np.float32), [2, 1]),
        shard(np.ones((3, 2), np.float32), [2, 1]),
    )
    optimizer = SGD()
    first = optimizer.add_slot(together, "m", 0.5)
    for variable in one_by_one.variables:
        optimizer.add_slot(variable, "m", 0.5)
    second = optimizer.get_slot(one_by_one, "m")
    assert isinstance(first, ShardedVariable) and isinstance(second, ShardedVariable)
    assert np.array_equal(first, second) and np.all(np.asarray(first) == 0.5)
    assert optimizer.add_slot(together, "m") is first


def test_slots_of_variables_that_become_shards_become_those_of_a_sharded_slot() -> None:
    """R-SLOT-1 (RFC 000): "get_slot will lookup the slots of var's component variables"; each is a
    child once."""
    optimizer, variables = SGD(), [Variable([1.0, 2.0], name="a"), Variable([3.0], name="b")]
    slots = [
        optimizer.add_slot(variable, "m", value)
        for variable, value in zip(variables, (0.5, 0.25), strict=True)
    ]
    assert {"a.m", "b.m"} <= optimizer.children.keys()
    table = ShardedVariable(variables, name="w")
    slot = optimizer.get_slot(table, "m")
    assert np.asarray(slot).tolist() == [0.5, 0.5, 0.25]
    assert all(one is other for one, other in zip(slot.variables, slots, strict=True))
    assert "w.m" in optimizer.children and not {"a.m", "b.m"} & optimizer.children.keys()


def test_a_slot_that_is_not_there_is_named() -> None:
    with pytest.raises(UnknownKey, match="'m'"):
        SGD().get_slot(Variable([1.0], name="w"), "m")
    with pytest.raises(ArgumentTypeError):
        SGD().add_slot(np.zeros(1), "m")


def test_an_optimizer_is_saved_with_hyperparameters_and_folded_slots() -> None:
    """R-SLOT-2 (RFC 000): "At saving/loading time, optimizer sees sharded variable as a
    ShardedVariable instance"."""
    table, plain = shard(np.ones((3, 2), np.float32), [2, 1]), Variable([1.0], name="b")
    optimizer = Momentum()
    optimizer.apply_gradients(
        [*dense_gradients(table, np.ones((3, 2), np.float32)), (np.ones(1, np.float32), plain)]
    )
    children = dict(optimizer.children)
    assert set(children) == {
        "learning_rate",
        "momentum",
        "iterations",
        "table.momentum",
        "b.momentum",
    }
    assert children["table.momentum"] is optimizer.get_slot(table, "momentum")
    twin = Variable([1.0], name="b")
    optimizer.apply_gradients([(np.ones(1, np.float32), twin)])
    assert "b_1.momentum" in optimizer.children and len(ObjectGraph.of(optimizer).objects) == 7


def test_slots_stay_their_variables_own_when_others_are_gone() -> None:
    optimizer = Momentum()
    for _ in range(50):
        optimizer.apply_gradients([(np.ones(1, np.float32), Variable([1.0]))])
    gc.collect()
    fresh = Variable([1.0])
    with pytest.raises(UnknownKey):
        optimizer.get_slot(fresh, "momentum")


def test_hyperparameters_are_variables_made_under_the_scope() -> None:
    """R-OPT-3: "Hyperparameters creation will be subject to the parameter strategy scope"."""
    made = []

    def creator(next_creator: Any, **kwargs: Any) -> Any:
        made.append(kwargs["name"])
        return next_creator(**kwargs)

    with variable_creator_scope(creator):
        optimizer = SGD(0.5)
    assert made == ["SGD/learning_rate", "SGD/momentum", "SGD/iterations"]
    optimizer.learning_rate.assign(2.0)
    variable = Variable([1.0])
    optimizer.apply_gradients([(np.ones(1, np.float32), variable)])
    assert variable.numpy().tolist() == [-1.0] and int(optimizer.iterations) == 1
    with pytest.raises(ArgumentError, match="beta_1"):
        optimizer.hyperparameter("beta_1")


def test_slots_do_not_move_and_of_a_sparse_gradient_only_its_rows_do() -> None:
    table = shard(np.ones((1000, 4), np.float32), [500, 500])
    optimizer = Adam()
    slices = IndexedSlices(np.ones((3, 4), np.float32), np.array([3, 3, 700]), (1000, 4))
    apply(optimizer, table, slices)  # slots are made
    with track_transfers() as ledger:
        apply(optimizer, table, slices)
    assert ledger.nbytes == 2 * 4 * 4  # two distinct rows
    assert set(ledger.operations) == {"apply_gradients"}


@given(ANY, st.data())
def test_on_an_error_no_variable_and_no_slot_has_changed(
    optimizer: Optimizer, data: st.DataObject
) -> None:
    good, bad = Variable(np.ones((2, 2), np.float32)), Variable(np.ones((3, 2), np.float32))
    optimizer.apply_gradients(
        [(np.ones((2, 2), np.float32), good), (np.ones((3, 2), np.float32), bad)]
    )
    before = [np.asarray(value) for value in (good, bad, *optimizer.children.values())]
    wrong = data.draw(
        st.sampled_from(
            [
                np.ones((2, 2), np.float32),
                np.ones((3, 2), np.complex64),
                IndexedSlices(np.ones((1, 2), np.float32), [3]),
                IndexedSlices(np.ones((1, 2), np.float32), [-1]),
                IndexedSlices(np.ones((1, 3), np.float32), [0]),
                IndexedSlices(np.ones((1, 2), np.float32), [0], (4, 2)),
            ]
        )
    )
    with pytest.raises(ArgumentError):
        optimizer.apply_gradients([(np.ones((2, 2), np.float32), good), (wrong, bad)])
    after = [np.asarray(value) for value in (good, bad, *optimizer.children.values())]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_pairs_that_cannot_be_meant_are_refused() -> None:
    variable, one = Variable([1.0], name="w"), np.ones(1, np.float32)
    with pytest.raises(ArgumentTypeError, match=r"sharded\.variables"):
        SGD().apply_gradients([(one, ShardedVariable([Variable([1.0])]))])
    with pytest.raises(ArgumentError, match="two gradients"):
        SGD().apply_gradients([(one, variable), (one, variable)])
    with pytest.raises(ArgumentError, match="has no gradient"):
        SGD().apply_gradients([(None, variable)])
    with pytest.raises(ArgumentError, match="int32"):
        SGD().apply_gradients([(one, Variable([1]))])
    with pytest.raises(ArgumentTypeError):
        SGD().apply_gradients([(one, np.ones(1))])  # type: ignore[list-item]
    for pairs in (None, [1, 2]):
        with pytest.raises(ArgumentTypeError, match="pairs"):
            SGD().apply_gradients(pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "fast", None])
def test_hyperparameters_that_are_no_numbers_are_refused(value: Any) -> None:
    with pytest.raises(ArgumentError, match="learning_rate"):
        SGD(value)
    with pytest.raises(ArgumentError, match="compat"):
        SGD(compat="torch")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="initial_accumulator_value"):
        Adagrad(initial_accumulator_value=-1.0)


def test_constraints_hold_after_a_dense_step_and_refuse_a_sparse_one() -> None:
    variable = Variable([[1.0], [1.0]], constraint=lambda value: np.maximum(value, 0))
    SGD(1.0).apply_gradients([(np.array([[5.0], [0.5]], np.float32), variable)])
    assert variable.numpy().tolist() == [[0.0], [0.5]]
    with pytest.raises(ArgumentError, match="constraint"):
        SGD().apply_gradients([(IndexedSlices([[1.0]], [0]), variable)])


def test_minimize_takes_a_list_or_an_object_with_variables_and_goes_down() -> None:
    """A regression on looked-up rows: what the sum of pullbacks gives is the gradient of the
    loss."""
    random = np.random.default_rng(6)
    table = shard(random.normal(size=(9, 4)).astype(np.float32), [4, 5])
    kernel = Variable(random.normal(size=(4, 1)).astype(np.float32), name="kernel")
    ids, wanted = np.array([0, 8, 3, 0]), np.array([[1.0], [2.0], [3.0], [1.0]], np.float32)

    def loss() -> tuple[float, list[Any]]:
        rows, by_table = nn.vjp(nn.embedding_lookup, table, ids)
        found, by_factors = nn.vjp(nn.matmul, rows, kernel)
        of_rows, of_kernel = by_factors(2 * (found - wanted) / len(ids))
        return float(np.mean((found - wanted) ** 2)), [*by_table(of_rows)[0], *of_kernel]

    class Model(Trackable):
        trainable_variables = (*table.variables, kernel)

    first = Adam(0.05).minimize(loss, [*table.variables, kernel])
    optimizer = Adam(0.05)
    losses = [optimizer.minimize(loss, Model()) for _ in range(200)]
    assert losses[-1] < 1e-2 * first
    untouched = table.numpy()[[1, 2, 4, 5, 6, 7]]
    assert np.array_equal(
        untouched,
        np.random.default_rng(6).normal(size=(9, 4)).astype(np.float32)[[1, 2, 4, 5, 6, 7]],
    )


@given(tables(), st.sampled_from(sorted(MAKERS)), st.sampled_from(COMPATS), st.data())
def test_steps_on_shards_and_variables_of_a_users_own_class_are_those_on_the_whole_bit_for_bit(
    table: Table, name: str, compat: str, data: st.DataObject
) -> None:
    """R-OPT-2, R-OPT-4, R-OPT-5: "always performed at the component variable level".

    R-VAR-5 (RFC 003): "users will be able to implement their own variable-like objects by
    subclassing tf.Variable": whole, as shards and as copies, in and outside of a strategy's
    scope."""
    plain = Variable(table.full)
    users = UserVariable(table.full)
    parts = ShardedVariable([UserVariable(each.numpy()) for each in table.sharded.variables])
    copies = MirroredVariable([UserVariable(table.full), UserVariable(table.full)])
    every: list[Any] = [plain, table.sharded, users, parts, copies]
    optimizers = [MAKERS[name](compat) for _ in every]
    strategy = ParameterServerStrategy(2)
    for _ in range(data.draw(st.integers(1, 4))):
        gradient = data.draw(gradients(table))
        for variable, optimizer in zip(every, optimizers, strict=True):
            with strategy.scope() if data.draw(st.booleans()) else nullcontext():
                if variable is parts or variable is table.sharded:
                    apply(optimizer, variable, gradient)
                else:
                    optimizer.apply_gradients([(gradient, variable)])
        assert all(np.array_equal(each.numpy(), plain.numpy()) for each in every)
    for slot in optimizers[0].get_slot_names():
        first = optimizers[0].get_slot(plain, slot).numpy()
        for variable, optimizer in zip(every, optimizers, strict=True):
            assert np.array_equal(optimizer.get_slot(variable, slot).numpy(), first)
    for variable, optimizer in zip(every, optimizers, strict=True):
        added = optimizer.add_slot(variable, "more", 0.5)
        assert added.shape == table.full.shape and np.all(added.numpy() == 0.5)


def test_slots_take_room_on_the_device_of_their_variable() -> None:
    variable = Variable(np.ones(100, np.float32), device=Device("ps:0", memory_limit=1000))
    with pytest.raises(MemoryError, match="ps"):
        Adam().apply_gradients([(np.ones(100, np.float32), variable)])
    assert np.all(variable.numpy() == 1)


@pytest.mark.parametrize("name", ["adagrad", "adam", "rmsprop"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_keras_3_squares_rows_that_come_twice_before_it_sums_them_in_every_dtype(
    name: str, dtype: Any
) -> None:
    """3 and -3 have the sum 0, which is the gradient; their squares have the sum 18."""
    variable, optimizer = Variable(np.ones((3, 1), dtype)), MAKERS[name]("keras3")
    optimizer.apply_gradients([(IndexedSlices(np.array([[3], [-3]], dtype), [1, 1]), variable)])
    slot = optimizer.get_slot(
        variable, {"adagrad": "accumulator", "adam": "v", "rmsprop": "rms"}[name]
    )
    first, share = {"adagrad": (0.1, 1.0), "adam": (0.0, 0.001), "rmsprop": (0.0, 0.1)}[name]
    assert np.allclose(slot.numpy()[1].astype(np.float32), first + 18 * share, rtol=1e-2)
    assert np.all(variable.numpy() == 1)


def test_two_lists_instead_of_pairs_are_refused_with_the_pairs_that_are_meant() -> None:
    """As RFC 000 writes it, ``optimizer.apply_gradients((gradients,
    sharded_variable.variables))``."""
    for sizes in ([2], [2, 1], [1, 1], [1, 1, 1]):
        table = shard(np.ones((sum(sizes), 2), np.float32), sizes)
        gradients = [np.ones(shard.shape, np.float32) for shard in table.variables]
        for lists in ((gradients, table.variables), [gradients, table.variables]):
            with pytest.raises(
                ArgumentTypeError, match=r"Give pairs .* zip\(gradients, variables\)"
            ):
                SGD(0.1).apply_gradients(lists)
        assert (table.numpy() == 1).all()


def test_minimize_says_that_it_needs_variables() -> None:
    """R-OPT-6 (RFC 003): "The Optimizer.minimize method will no longer work if it's passed a Tensor
    and no list of variables.". Nothing is collected globally."""
    for var_list in ([], 3, [3], ShardedVariable([Variable([1.0])])):
        with pytest.raises(ArgumentError):
            SGD().minimize(lambda: (0.0, []), var_list)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="gradients"):
        SGD().minimize(lambda: 1.0, [Variable([1.0])])  # type: ignore[arg-type, return-value]
    with pytest.raises(ArgumentTypeError, match="no variables are collected globally"):
        SGD().minimize(np.float32(1.0))  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="a value, float32, .* function without arguments"):
        SGD().minimize(np.float32(1.0), [Variable([1.0])])  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="A contribution is ndarray. Give pairs"):
        SGD().minimize(lambda: (1.0, [np.ones(1)]), [Variable([1.0])])  # type: ignore[arg-type, return-value]


def plain() -> Any:
    return sv.Variable(np.ones((4, 2), np.float32))


def sharded() -> Any:
    return create_sharded_variable(np.ones((4, 2), np.float32), 3)


def mirrored() -> Any:
    with sv.MirroredStrategy(["GPU:0", "GPU:1"]).scope():
        return plain()


class Model(sv.Module):
    """A variable and its optimizer."""

    def __init__(self, w: Any) -> None:
        super().__init__()
        self.w = w
        self.optimizer = sv.optimizers.Adam(0.1)

    def step(self) -> None:
        """Apply gradients of ones."""
        shards = self.w.variables if isinstance(self.w, sv.ShardedVariable) else [self.w]
        self.optimizer.apply_gradients([(np.ones(each.shape, np.float32), each) for each in shards])


@pytest.mark.parametrize("make", [plain, sharded, mirrored])
def test_a_copied_optimizer_goes_on_as_the_original_does(make: Any) -> None:
    """The second steps of both end with the same bits, and neither moves the other's slots."""
    model = Model(make())
    model.step()
    twin = deepcopy(model)
    assert twin.optimizer.get_slot(twin.w, "m") is not model.optimizer.get_slot(model.w, "m")
    assert list(twin.optimizer.children) == list(model.optimizer.children)
    model.step()
    before = twin.optimizer.get_slot(twin.w, "m").numpy().copy()
    twin.step()
    np.testing.assert_array_equal(twin.w.numpy(), model.w.numpy())
    for name in ("m", "v"):
        mine, other = model.optimizer.get_slot(model.w, name), twin.optimizer.get_slot(twin.w, name)
        np.testing.assert_array_equal(mine.numpy(), other.numpy())
    assert (before != twin.optimizer.get_slot(twin.w, "m").numpy()).all()
    assert list(twin.optimizer.children) == list(model.optimizer.children)
