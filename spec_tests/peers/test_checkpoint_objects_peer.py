"""Objects saved here are restored by TensorFlow's own Checkpoint, and the other way round."""

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

import shardvar as sv
from shardvar.training.module import Module
from shardvar.variables import create_sharded_variable

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
    sv.Checkpoint(model=ours(VALUE, shards, 3), step=sv.Variable(7)).write(tmp_path / "model", format="tensorflow")
    model, step = theirs(np.zeros((13, 2), np.float32), 0), tf.Variable(0)
    tf.train.Checkpoint(model=model, step=step).read(str(tmp_path / "model")).assert_consumed()
    np.testing.assert_array_equal(model.w.numpy(), VALUE)
    assert model.first.numpy().tolist() == [1.0, 2.0]
    assert (int(model.blocks[0]), float(model.blocks[1]["a.b/c"]), int(step)) == (3, 4.0, 7)


@pytest.mark.parametrize("shards", [1, 3, 7])
def test_what_tensorflow_saved_is_restored_here_now_and_later(tmp_path: Path, shards: int) -> None:
    path = tf.train.Checkpoint(model=theirs(VALUE, 3), step=tf.Variable(7)).save(str(tmp_path / "model"))
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
