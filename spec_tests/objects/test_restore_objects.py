"""Restoring objects: slots by their variables, states of their own, and checkpoints that are gone
by then."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import UnmatchedObjects
from shardvar.reference.variables import create_sharded_variable
from spec_tests.helpers import paths

Array = np.ndarray[Any, Any]
FORMS = ["shardvar", "tensorflow", "safetensors", "npz"]
LAYOUTS: list[Any] = [1, 2, 3, 7, sv.PartitionSpec(splits=[[1, 0, 8, 4]])]


def table(rows: int = 13) -> Array:
    return np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)


def model(value: Any, cut: Any, name: str = "w") -> sv.Module:
    module = sv.Module()
    one = sv.ShardedVariable([sv.Variable(value)])
    module.w = one if cut == 1 else create_sharded_variable(value, cut, name="w")
    module.b = sv.Variable(np.asarray(value)[0], name=name)
    return module


def step(optimizer: Any, module: Any, backwards: bool = False) -> None:
    """One step, of gradients that differ from row to row."""
    pairs, start = [], 0
    for shard in module.w.variables:
        rows = np.arange(start, start + shard.shape[0], dtype=np.float32)
        pairs.append((rows[:, None] * np.ones((1, 2), np.float32), shard))
        start += shard.shape[0]
    pairs.append((np.float32([1, 2]), module.b))
    optimizer.apply_gradients(reversed(pairs) if backwards else pairs)


def optimizers() -> list[Any]:
    kinds = sv.optimizers
    return [kinds.Adam(0.1), kinds.SGD(0.1, momentum=0.9), kinds.Adagrad(0.1), kinds.RMSprop(0.1)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cut", LAYOUTS, ids=str)
def test_training_goes_on_in_any_other_layout_as_if_it_had_not_stopped(
    tmp_path: Path, form: str, cut: Any
) -> None:
    """Variables and slots of 4 shards, restored into 1, 2, 3, 7 and uneven ones; also where keys
    tell the graph. Slots are there before, or come with the next step, in another order; all
    variables have one name."""
    for number, (optimizer, fresh) in enumerate(zip(optimizers(), optimizers(), strict=True)):
        module, other = model(table(), 4), model(0 * table(), cut)
        step(optimizer, module)
        if number % 2:
            step(fresh, other, backwards=True)
        path = tmp_path / f"{number}"
        sv.Checkpoint(model=module, optimizer=optimizer).write(path, format=form)
        status = (
            sv.Checkpoint(model=other, optimizer=fresh).read(path).assert_existing_objects_matched()
        )
        step(optimizer, module)
        step(fresh, other, backwards=True)
        status.assert_consumed()
        np.testing.assert_array_equal(other.w.numpy(), module.w.numpy())
        np.testing.assert_array_equal(other.b.numpy(), module.b.numpy())


def test_slots_of_variables_that_are_saved_elsewhere_are_saved_under_their_names(
    tmp_path: Path,
) -> None:
    module, optimizer = model(table(), 4), sv.optimizers.SGD(0.1, momentum=0.9)
    step(optimizer, module)
    sv.Checkpoint(optimizer=optimizer).write(tmp_path / "model")
    other, fresh = model(table(), 3), sv.optimizers.SGD(0.1, momentum=0.9)
    status = sv.Checkpoint(optimizer=fresh).read(tmp_path / "model")
    assert len(status.unmatched_keys) == 2
    fresh.add_slot(other.w, "momentum"), fresh.add_slot(other.b, "momentum")
    status.assert_consumed()
    np.testing.assert_array_equal(
        fresh.get_slot(other.w, "momentum").numpy(),
        optimizer.get_slot(module.w, "momentum").numpy(),
    )


def test_slots_that_are_there_before_their_variable_are_restored_with_it(tmp_path: Path) -> None:
    module, optimizer = model(table(), 4), sv.optimizers.SGD(0.1, momentum=0.9)
    step(optimizer, module)
    sv.Checkpoint(model=module, optimizer=optimizer).write(tmp_path / "model")
    late, fresh = model(0 * table(), 3), sv.optimizers.SGD(0.1, momentum=0.9)
    step(fresh, late)
    checkpoint = sv.Checkpoint(optimizer=fresh)
    status = checkpoint.read(tmp_path / "model")
    checkpoint.model = late
    status.assert_consumed()
    np.testing.assert_array_equal(late.w.numpy(), module.w.numpy())
    np.testing.assert_array_equal(
        fresh.get_slot(late.w, "momentum").numpy(), optimizer.get_slot(module.w, "momentum").numpy()
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fate", ["removed", "replaced"])
def test_what_appears_later_gets_the_values_of_then_or_a_clear_error(
    tmp_path: Path, form: str, fate: str
) -> None:
    """A manager removes old checkpoints while objects still wait for their values."""
    endings = {"safetensors": ".safetensors", "npz": ".npz"}
    path = tmp_path / f"model{endings.get(form, '')}"
    sv.Checkpoint(a=sv.Variable(1.0), b=sv.Variable([2.0, 3.0])).write(path, format=form)
    checkpoint = sv.Checkpoint(a=sv.Variable(0.0))
    checkpoint.read(path).expect_partial()
    if fate == "replaced":
        sv.Checkpoint(a=sv.Variable(7.0), b=sv.Variable([8.0, 9.0])).write(
            path, format=form, force=True
        )
    else:
        for file in tmp_path.iterdir():
            file.unlink()
    checkpoint.b = sv.Variable([0.0, 0.0])
    assert checkpoint.b.numpy().tolist() == [2.0, 3.0]


class Counter(sv.Stateful):
    """An object with a state of its own, which may refuse."""

    def __init__(self, count: int, refuses: bool = False) -> None:
        self.count, self.refuses = count, refuses

    def state(self) -> Mapping[str, Any]:
        return {"count": np.int64(self.count), "words": np.array([b"a"] * self.count, object)}

    def restore_state(self, values: Mapping[str, Array]) -> None:
        if self.refuses:
            raise RuntimeError("no")
        assert values["words"].tolist() == [b"a"] * int(values["count"])
        self.count = int(values["count"])


def test_states_of_their_own_are_taken_by_all_objects_or_by_none(tmp_path: Path) -> None:
    w = sv.Variable([1.0, 2.0])
    sv.Checkpoint(a=Counter(3), b=Counter(4), w=w).write(tmp_path / "model")
    a, b, w = Counter(0), Counter(0, refuses=True), sv.Variable([0.0, 0.0])
    with pytest.raises(RuntimeError, match="no"):
        sv.Checkpoint(a=a, b=b, w=w).read(tmp_path / "model")
    assert (a.count, b.count, w.numpy().tolist()) == (0, 0, [0.0, 0.0])
    b.refuses = False
    sv.Checkpoint(a=a, b=b, w=w).read(tmp_path / "model").assert_consumed()
    assert (a.count, b.count, w.numpy().tolist()) == (3, 4, [1.0, 2.0])


def test_states_are_restored_when_they_appear_and_missed_by_name(tmp_path: Path) -> None:
    sv.Checkpoint(a=Counter(3)).write(tmp_path / "model")
    checkpoint = sv.Checkpoint(b=Counter(1))
    status = checkpoint.read(tmp_path / "model").expect_partial()
    with pytest.raises(
        UnmatchedObjects,
        match=r"objects without a value: b; .*a/.ATTRIBUTES/count, a/.ATTRIBUTES/words",
    ):
        status.assert_consumed()
    checkpoint.a = Counter(0)
    assert checkpoint.a.count == 3 and status.unmatched_keys == []


def golden(case: str) -> Path:
    return paths.GOLDEN / "tensorflow" / case


def test_a_checkpoint_of_keras_is_restored_into_the_same_objects() -> None:
    """Keras 3.15's: two dense layers and a normalization in a functional model, and Adam's moments
    in lists."""
    operations: dict[str, Any] = {"1": sv.layers.Dense(4, input_dim=3), "2": sv.Module()}
    with sv.open_checkpoint(golden("keras_adam")) as reader:
        shapes = {key: reader[key].shape for key in reader}
        iterations = reader.read("optimizer/_iterations/.ATTRIBUTES/VARIABLE_VALUE")
        kernel = reader.read("optimizer/_trainable_variables/0/.ATTRIBUTES/VARIABLE_VALUE")
        moment = reader.read("optimizer/_variables/2/.ATTRIBUTES/VARIABLE_VALUE")
        mean = reader.read("model/_functional/_operations/2/moving_mean/.ATTRIBUTES/VARIABLE_VALUE")
    rows, columns = shapes["optimizer/_trainable_variables/0/.ATTRIBUTES/VARIABLE_VALUE"]
    dense = operations["1"] = sv.layers.Dense(columns, input_dim=rows)
    operations["2"].moving_mean = sv.Variable(np.zeros_like(mean))
    functional, model = sv.Module(), sv.Module()
    functional._operations, model._functional = operations, functional
    optimizer = sv.optimizers.Adam(compat="keras3")
    optimizer.add_slot(dense.kernel, "m")
    sv.Checkpoint(model=model, optimizer=optimizer).restore(golden("keras_adam")).expect_partial()
    np.testing.assert_array_equal(dense.kernel.numpy(), kernel)
    np.testing.assert_array_equal(optimizer.get_slot(dense.kernel, "m").numpy(), moment)
    np.testing.assert_array_equal(operations["2"].moving_mean.numpy(), mean)
    assert int(optimizer.iterations) == int(iterations) > 0


def test_slots_of_tensorflow_are_restored_into_shards() -> None:
    """The checkpoint is of one variable [3, 2] and its moments under TensorFlow 1's Adam."""
    v = create_sharded_variable(np.zeros((3, 2), np.float32), 2, name="w")
    optimizer = sv.optimizers.Adam(compat="v1")
    status = sv.Checkpoint(v=v, opt=optimizer).restore(golden("slots_v1_adam")).expect_partial()
    optimizer.apply_gradients([(np.zeros(shard.shape, np.float32), shard) for shard in v.variables])
    with sv.open_checkpoint(golden("slots_v1_adam")) as reader:
        moment = reader.read("v/.OPTIMIZER_SLOT/opt/v/.ATTRIBUTES/VARIABLE_VALUE")
    np.testing.assert_allclose(
        optimizer.get_slot(v, "v").numpy(), moment * np.float32(0.999), rtol=1e-6
    )
    assert status.unmatched_keys == [
        f"opt/beta{n}_power/.ATTRIBUTES/VARIABLE_VALUE" for n in (1, 2)
    ]


def test_an_error_of_restoring_tells_the_policy_once(tmp_path: Path) -> None:
    """R-POLICY-6 (RFC 001): the description "can be used to assist with debugging during checkpoint
    restoration"."""
    sv.Checkpoint(w=sv.Variable([1.0])).write(tmp_path / "m", policy=sv.AllInOnePolicy())
    told = repr(sv.AllInOnePolicy().description)
    with pytest.raises(sv.errors.InconsistentTensor) as caught:
        sv.Checkpoint(w=sv.Variable([1.0, 2.0])).read(tmp_path / "m")
    assert str(caught.value).count(told) == 1
    with pytest.raises(sv.errors.UnmatchedObjects) as unmatched:
        sv.Checkpoint(v=sv.Variable([1.0])).read(tmp_path / "m").assert_consumed()
    assert str(unmatched.value).count(told) == 1
