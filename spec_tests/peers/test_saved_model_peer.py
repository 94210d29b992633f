"""SavedModels that shardvar exports, opened by TensorFlow: variables, signatures, strategies, and
the older API."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.formats.tensorflow.contents import ENUMS
from shardvar.layout.dtypes import NAMES, is_opaque
from shardvar.reference.variables import create_sharded_variable

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

ROWS = np.arange(26, dtype=np.float32).reshape(13, 2)


class Model(sv.Module):
    """A sharded table, a variable that is not trainable, and containers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = create_sharded_variable(ROWS, 5, name="table")
        self.heads = [
            sv.Variable([1.0, 2.0], name="a", trainable=False),
            {"b": sv.Variable(3, name="b")},
        ]


@pytest.mark.parametrize("as_shards", [False, True])
def test_tensorflow_loads_every_variable_and_looks_rows_up(as_shards: bool, tmp_path: Path) -> None:
    """R-EXPORT-1, R-EXPORT-5 (RFC 000): "ShardedVariable can be saved to a SavedModel and
    served"."""
    report = sv.export(Model(), tmp_path / "model", format="tensorflow", as_shards=as_shards)
    assert report.num_slices == report.num_tensors + 4 * as_shards
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.table.numpy(), ROWS)
    assert (loaded.table.name, loaded.table.trainable, loaded.heads[0].trainable) == (
        "table:0",
        True,
        False,
    )
    assert loaded.heads[0].numpy().tolist() == [1.0, 2.0] and int(loaded.heads[1]["b"]) == 3
    for name in ("table", "serving_default"):
        answer = loaded.signatures[name](ids=tf.constant([12, 0, 12], tf.int64))
        np.testing.assert_array_equal(answer["rows"].numpy(), ROWS[[12, 0, 12]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in"):
        loaded.signatures["table"](ids=tf.constant([13], tf.int64))


def test_a_server_of_the_older_kind_restores_and_looks_rows_up(tmp_path: Path) -> None:
    sv.export(Model(), tmp_path / "model", format="tensorflow")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(tmp_path / "model"))
        signature = meta.signature_def["serving_default"]
        rows = session.run(signature.outputs["rows"].name, {signature.inputs["ids"].name: [3, 4]})
        np.testing.assert_array_equal(rows, ROWS[3:5])
        session.run(
            meta.saver_def.save_tensor_name,
            {meta.saver_def.filename_tensor_name: str(tmp_path / "saved")},
        )
    assert (
        sv.diff(tmp_path / "saved", tmp_path / "model").equal is False
    )  # it has no graph of objects
    key = "table/.ATTRIBUTES/VARIABLE_VALUE"
    np.testing.assert_array_equal(sv.load(tmp_path / "saved", [key])[key], ROWS)


def test_a_strategy_on_the_other_side_mirrors_the_variables(tmp_path: Path) -> None:
    """R-EXPORT-2 (RFC 000): "loaded under a MirroredStrategy, resulting in MirroredVariable"."""
    sv.export(Model(), tmp_path / "model", format="tensorflow")
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        loaded = tf.saved_model.load(str(tmp_path / "model"))
    assert "Mirrored" in type(loaded.table).__name__
    np.testing.assert_array_equal(loaded.table.numpy(), ROWS)


def test_tensorflow_saves_again_what_it_loaded_and_shardvar_reads_that(tmp_path: Path) -> None:
    sv.export(Model(), tmp_path / "model", format="tensorflow")
    tf.saved_model.save(tf.saved_model.load(str(tmp_path / "model")), str(tmp_path / "again"))
    loaded = sv.load_exported(tmp_path / "again")
    np.testing.assert_array_equal(loaded.table.numpy(), ROWS)
    assert int(loaded.heads[1]["b"].numpy()) == 3


def test_variables_of_the_dtypes_of_tensorflows_variables_are_loaded(tmp_path: Path) -> None:
    import ml_dtypes

    variables: dict[str, Any] = {
        "text": sv.Variable(np.array([b"a", b"\xff"], object)),
        "scalar": sv.Variable(2.5),
    }
    for name in NAMES:
        # TensorFlow has no variables of the dtypes of 8 bits or less that are new to it.
        if (
            name in ENUMS
            and not is_opaque(name)
            and not name.startswith(("string", "float8", "float4", "int2", "uint2"))
        ):
            dtype = np.dtype(getattr(np, name, None) or getattr(ml_dtypes, name))
            variables[name] = sv.Variable(np.array([[0, 1]]).astype(dtype))
    sv.export(variables, tmp_path / "model", format="tensorflow")
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    for name, variable in variables.items():
        assert np.asarray(getattr(loaded, name).numpy()).tolist() == variable.numpy().tolist(), name
