"""A copy of an optimizer has copies of its slots, beside copies of the variables."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.reference.variables import create_sharded_variable


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


def test_a_copied_optimizer_is_saved_and_restored_like_the_original(tmp_path: Path) -> None:
    model = Model(sharded())
    model.step()
    twin = deepcopy(model)
    sv.Checkpoint(model).write(tmp_path / "original")
    sv.Checkpoint(twin).write(tmp_path / "copy")
    assert sv.load(tmp_path / "original").keys() == sv.load(tmp_path / "copy").keys()
    twin.w.assign(np.zeros((4, 2), np.float32))
    sv.Checkpoint(twin).read(tmp_path / "original").assert_consumed()
    np.testing.assert_array_equal(twin.w.numpy(), model.w.numpy())
