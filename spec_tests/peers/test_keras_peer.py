"""What Keras misses in its files is missed here, and lists that it writes in parts are read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv

pytest.importorskip("h5py", reason="h5py is not installed")
keras = pytest.importorskip("keras", reason="keras is not installed")


@pytest.fixture(scope="module")
def model() -> Any:
    """A model that was trained for a step."""
    layers = keras.layers
    made = keras.Sequential(
        [keras.Input((6,)), layers.Embedding(11, 4), layers.LSTM(3), layers.Dense(2)]
    )
    made.compile("adam", "mse")
    made.train_on_batch(np.ones((4, 6), np.float32), np.ones((4, 2), np.float32))
    return made


def test_a_weight_that_a_file_of_keras_2_lost_is_named(model: Any, tmp_path: Path) -> None:
    """Keras finds it when it loads the file; each weight and each slot."""
    import h5py

    model.save(tmp_path / "m.h5")
    for key in [
        key
        for key in sv.load(tmp_path / "m.h5")
        if key.startswith(("model_weights/", "optimizer_weights/"))
    ]:
        path = tmp_path / f"lost {key.replace('/', ' ')}.h5"
        path.write_bytes((tmp_path / "m.h5").read_bytes())
        with h5py.File(path, "a") as file:
            del file[key]
        assert [damage.key for damage in sv.verify(path).damages] == [key]
        with pytest.raises((KeyError, ValueError)):
            keras.models.load_model(path)
        with pytest.raises(sv.errors.IncompleteCheckpoint, match="The file lacks it"):
            sv.load(path)


def test_lists_that_keras_writes_in_parts_are_read(tmp_path: Path) -> None:
    """As of a model of so many layers that their names do not fit in one attribute."""
    import h5py
    from keras.src.legacy.saving.legacy_h5_format import (
        load_attributes_from_hdf5_group,
        save_attributes_to_hdf5_group,
    )

    names = [f"{'w' * 90}_{number}".encode() for number in range(2000)]
    with h5py.File(tmp_path / "m.h5", "w") as file:
        save_attributes_to_hdf5_group(file, "weight_names", names)
        assert (
            "weight_names2" in file.attrs
            and len(load_attributes_from_hdf5_group(file, "weight_names")) == 2000
        )
        for name in names[:-1]:
            file[name] = np.float32(1)
    assert [damage.key for damage in sv.verify(tmp_path / "m.h5").damages] == [names[-1].decode()]
