"""Objects saved here are restored by TensorFlow's own Checkpoint, and the other way round."""

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

import shardvar as sv
from shardvar.reference.training.module import Module
from shardvar.reference.variables import create_sharded_variable

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

VALUE = np.arange(26, dtype=np.float32).reshape(13, 2)


def ours(value: Any, shards: int, number: int) -> Module:
    module = Module()
    module.w = create_sharded_variable(value, shards)
    module.first = module.second = sv.Variable([1.0, 2.0])
    module.blocks = [sv.Variable(number), {"a.b/c": sv.Variable(4.0)}]
    return module


def theirs(value: Any, number: int) -> Any:
    module = tf.Module()
    module.w = tf.Variable(value)
    module.second = module.first = tf.Variable([0.0, 0.0])
    module.blocks = [tf.Variable(number), {"a.b/c": tf.Variable(0.0)}]
    return module


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_tensorflow_restores_what_was_written_here(tmp_path: Path, shards: int) -> None:
    """A variable under two names is one there too, though it comes first under the other."""
    sv.Checkpoint(model=ours(VALUE, shards, 3), step=sv.Variable(7)).write(
        tmp_path / "model", format="tensorflow"
    )
    model, step = theirs(np.zeros((13, 2), np.float32), 0), tf.Variable(0)
    tf.train.Checkpoint(model=model, step=step).read(str(tmp_path / "model")).assert_consumed()
    np.testing.assert_array_equal(model.w.numpy(), VALUE)
    assert model.first.numpy().tolist() == [1.0, 2.0]
    assert (int(model.blocks[0]), float(model.blocks[1]["a.b/c"]), int(step)) == (3, 4.0, 7)


@pytest.mark.parametrize("shards", [1, 3, 7])
def test_what_tensorflow_saved_is_restored_here_now_and_later(tmp_path: Path, shards: int) -> None:
    path = tf.train.Checkpoint(model=theirs(VALUE, 3), step=tf.Variable(7)).save(
        str(tmp_path / "model")
    )
    model = ours(np.zeros((13, 2), np.float32), shards, 0)
    checkpoint = sv.Checkpoint(model=model)
    status = checkpoint.restore(path)
    assert status.unmatched_keys == ["step/.ATTRIBUTES/VARIABLE_VALUE"]
    checkpoint.step = sv.Variable(0)
    status.assert_consumed()
    np.testing.assert_array_equal(model.w.numpy(), VALUE)
    assert model.second.numpy().tolist() == [0.0, 0.0]
    assert (int(model.blocks[0]), int(checkpoint.step)) == (3, 7)


def test_a_root_is_a_root_in_both(tmp_path: Path) -> None:
    root = tf.Module()
    root.w = tf.Variable([5.0, 6.0])
    path = tf.train.Checkpoint(root).write(str(tmp_path / "model"))
    module = Module()
    module.w = sv.Variable([0.0, 0.0])
    sv.Checkpoint(module).read(path).assert_consumed()
    assert module.w.numpy().tolist() == [5.0, 6.0]
    sv.Checkpoint(module).write(tmp_path / "back", format="tensorflow")
    root.w.assign([0.0, 0.0])
    tf.train.Checkpoint(root).read(str(tmp_path / "back")).assert_consumed()
    assert root.w.numpy().tolist() == [5.0, 6.0]


class KerasModel(tf.keras.Model):  # type: ignore[misc]
    """A model whose layers are attributes, as Keras tracks them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = tf.keras.layers.Embedding(5, 2), tf.keras.layers.Dense(3)

    def call(self, ids: Any) -> Any:
        return self.head(self.table(ids))


class OurModel(Module):
    """The same model here."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = sv.layers.Embedding(5, 2), sv.layers.Dense(3, input_dim=2)

    @property
    def ordered(self) -> list[Any]:
        """The variables in the order in which Keras has them."""
        return [self.table.embeddings, self.head.kernel, self.head.bias]


IDS = np.array([[1, 2]])
KERAS = {
    "Adam": ({}, {}),
    "SGD": ({"momentum": 0.9}, {"momentum": 0.9}),
    "Adagrad": ({}, {}),
    "RMSprop": ({}, {}),
}


@pytest.mark.parametrize("name", KERAS)
def test_training_in_keras_goes_on_here(tmp_path: Path, name: str) -> None:
    """Variables, learning rate, steps and slots; the step after the restore is Keras's own."""
    there, here = (
        getattr(library.optimizers, name)(0.1, **more, **compat)
        for library, more, compat in (
            (tf.keras, KERAS[name][0], {}),
            (sv, KERAS[name][1], {"compat": "keras3"}),
        )
    )
    keras, module = KerasModel(), OurModel()
    keras(IDS)
    gradients = [
        np.full(variable.shape, 1 + number, np.float32)
        for number, variable in enumerate(module.ordered)
    ]
    for _ in range(2):
        there.apply_gradients(zip(gradients, keras.trainable_variables, strict=True))
    path = tf.train.Checkpoint(model=keras, optimizer=there).save(str(tmp_path / "model"))
    status = sv.Checkpoint(model=module, optimizer=here).restore(path).expect_partial()
    assert all("_variables/" in key for key in status.unmatched_keys)
    there.apply_gradients(zip(gradients, keras.trainable_variables, strict=True))
    here.apply_gradients(zip(gradients, module.ordered, strict=True))
    assert status.unmatched_keys == []
    for ours, theirs in zip(module.ordered, keras.trainable_variables, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_keras_restores_a_model_and_what_is_not_a_slot_from_here(tmp_path: Path) -> None:
    module, here = OurModel(), sv.optimizers.Adam(0.25)
    here.apply_gradients(
        [(np.ones(variable.shape, np.float32), variable) for variable in module.ordered]
    )
    sv.Checkpoint(model=module, optimizer=here).write(tmp_path / "model", format="tensorflow")
    keras, there = KerasModel(), tf.keras.optimizers.Adam()
    keras(IDS)
    there.build(keras.trainable_variables)
    tf.train.Checkpoint(model=keras).read(str(tmp_path / "model")).assert_existing_objects_matched()
    tf.train.Checkpoint(optimizer=there).read(str(tmp_path / "model")).expect_partial()
    for ours, theirs in zip(module.ordered, keras.trainable_variables, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
    assert (int(there.iterations), float(there.learning_rate)) == (1, 0.25)


V1 = {
    "AdamOptimizer": sv.optimizers.Adam(0.1, compat="v1"),
    "MomentumOptimizer": sv.optimizers.SGD(0.1, momentum=0.9, compat="v1"),
    "AdagradOptimizer": sv.optimizers.Adagrad(0.1, compat="v1"),
}


@pytest.mark.parametrize("name", V1)
def test_slots_go_to_tensorflow_1s_optimizers_and_come_back(tmp_path: Path, name: str) -> None:
    """TensorFlow 2.21 has no other optimizers with slots: the legacy ones of Keras need another
    package."""
    kind, here = getattr(tf.compat.v1.train, name), V1[name]
    arguments = (0.1, 0.9) if name == "MomentumOptimizer" else (0.1,)
    there, v, w = kind(*arguments), tf.Variable([1.0, 2.0]), sv.Variable([0.0, 0.0])
    for _ in range(2):
        there.apply_gradients([(tf.constant([1.0, 0.5]), v)])
    path = tf.train.Checkpoint(v=v, opt=there).save(str(tmp_path / "theirs"))
    sv.Checkpoint(v=w, opt=here).restore(path).expect_partial()
    for slot in there.get_slot_names():
        here.add_slot(w, slot)
        np.testing.assert_array_equal(
            here.get_slot(w, slot).numpy(), there.get_slot(v, slot).numpy()
        )
    sv.Checkpoint(v=w, opt=here).write(tmp_path / "ours", format="tensorflow")
    with sv.open_checkpoint(tmp_path / "ours") as ours, sv.open_checkpoint(path) as theirs:
        assert {key for key in ours if ".OPTIMIZER_SLOT" in key} == {
            key for key in theirs if ".OPTIMIZER_SLOT" in key
        }
    fresh, v2 = kind(*arguments), tf.Variable([0.0, 0.0])
    fresh.apply_gradients([(tf.constant([0.0, 0.0]), v2)])
    tf.train.Checkpoint(v=v2, opt=fresh).read(str(tmp_path / "ours")).expect_partial()
    np.testing.assert_array_equal(v2.numpy(), v.numpy())
    for slot in there.get_slot_names():
        np.testing.assert_array_equal(
            fresh.get_slot(v2, slot).numpy(), there.get_slot(v, slot).numpy()
        )


def test_what_is_exported_here_is_restored_by_tensorflow_and_the_other_way_round(
    tmp_path: Path,
) -> None:
    sv.export(ours(VALUE, 5, 3), tmp_path / "ours", format="tensorflow")
    module = theirs(np.zeros((13, 2), np.float32), 0)
    tf.train.Checkpoint(module).read(
        str(tmp_path / "ours" / "variables" / "variables")
    ).assert_consumed()
    np.testing.assert_array_equal(module.w.numpy(), VALUE)
    path = tf.train.Checkpoint(module).write(str(tmp_path / "theirs"))
    loaded = sv.load_exported(path)
    np.testing.assert_array_equal(loaded.w.numpy(), VALUE)
    assert float(loaded.blocks[1]["a.b/c"]) == 4.0
