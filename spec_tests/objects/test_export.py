"""The serving form: whole tensors, read where they lie, and made anew under the scope in which they
are loaded."""

import tracemalloc
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointNotFound,
    InvalidCheckpoint,
    StorageError,
    TargetExists,
    UnknownKey,
    UnsupportedError,
)
from shardvar.reference.tracking import SLOT
from shardvar.reference.variables import MirroredVariable, create_sharded_variable
from shardvar.wire.protobuf import decode_fields
from spec_tests.helpers.faulty_storage import Fault, failing, full

Array = np.ndarray[Any, Any]
FORMS = ["shardvar", "tensorflow", "safetensors", "npz"]


def table(rows: int = 13) -> Array:
    return np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)


class Model(sv.Module):
    """A sharded variable, and layers in a list and in a dictionary."""

    def __init__(self, cut: Any = 4) -> None:
        super().__init__()
        self.w = create_sharded_variable(table(), cut, name="w")
        self.count = sv.Variable(3, trainable=False, name="count")
        self.blocks = [sv.layers.Dense(2, input_dim=3), {"head": sv.layers.Dense(1, input_dim=2)}]


def key_of(*names: str) -> str:
    return "/".join(names) + "/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.mark.parametrize("form", FORMS)
def test_each_sharded_variable_is_one_whole_tensor_or_slices_where_that_is_asked_for(
    tmp_path: Path, form: str
) -> None:
    """R-EXPORT-1 (RFC 000): "as a single variable". R-EXPORT-4: "save sharded variable as it
    is"."""
    sv.export(Model(), tmp_path / "whole", format=form)
    sv.export(Model(), tmp_path / "parts", format=form, as_shards=True)
    for name, count in (("whole", 1), ("parts", 4 if form in ("shardvar", "tensorflow") else 1)):
        with sv.open_checkpoint(tmp_path / name) as reader:
            assert len(reader.find(key_of("w")).slices) == count
            np.testing.assert_array_equal(reader.read(key_of("w")), table())
        loaded = sv.load_exported(tmp_path / name)
        np.testing.assert_array_equal(loaded.w.numpy(), table())
        assert isinstance(loaded.w, sv.Variable)


def test_the_whole_is_never_made_and_the_values_are_not_copied(tmp_path: Path) -> None:
    """A variable of 64 MiB is exported in the memory of a few blocks."""
    w = create_sharded_variable(np.ones((1 << 18, 64), np.float32), 7)
    sv.export({"w": sv.Variable(1.0)}, tmp_path / "warm")
    tracemalloc.start()
    try:
        sv.export({"w": w}, tmp_path / "model")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 33 << 20
    assert sv.load_exported(tmp_path / "model").w[-1].tolist() == [1.0] * 64


def test_attributes_items_names_and_what_is_trained_come_back(tmp_path: Path) -> None:
    model = Model()
    sv.export(model, tmp_path / "model")
    loaded = sv.load_exported(tmp_path / "model")
    np.testing.assert_array_equal(loaded.blocks[0].kernel.numpy(), model.blocks[0].kernel.numpy())
    np.testing.assert_array_equal(
        loaded.blocks[1]["head"].bias.numpy(), model.blocks[1]["head"].bias.numpy()
    )
    assert (loaded.w.name, loaded.count.name, loaded.blocks[0].kernel.name) == (
        "w",
        "count",
        "dense/kernel",
    )
    assert (loaded.w.trainable, loaded.count.trainable) == (True, False)
    assert len(loaded.variables) == 6 and len(loaded.trainable_variables) == 5
    assert "w" in dir(loaded) and len(loaded.blocks) == 2
    with pytest.raises(AttributeError, match="'z'.*w, count, blocks"):
        _ = loaded.z
    with pytest.raises(UnknownKey, match="7"):
        _ = loaded.blocks[7]


def test_loading_obeys_the_scope_it_happens_in(tmp_path: Path) -> None:
    """R-EXPORT-2 (RFC 000): "a saved_model produced by a model with ParameterServerStrategy can be
    loaded under a MirroredStrategy, resulting in MirroredVariable"; and into other shards, each of
    which reads its own rows.
    """
    servers = sv.ParameterServerStrategy(4, sv.FixedShardsPartitioner(4))
    with servers.scope():
        sv.export({"w": sv.Variable(table(), name="w")}, tmp_path / "model")
    assert isinstance(sv.load_exported(tmp_path / "model").w, sv.Variable)
    with sv.MirroredStrategy(["worker:0/GPU:0", "worker:0/GPU:1"]).scope():
        mirrored = sv.load_exported(tmp_path / "model").w
    assert isinstance(mirrored, MirroredVariable)
    for copy in mirrored.copies:
        np.testing.assert_array_equal(copy.read_value(), table())
    others = sv.ParameterServerStrategy(3, sv.FixedShardsPartitioner(3))
    with others.scope(), sv.track_transfers() as transfers:
        sharded = sv.load_exported(tmp_path / "model").w
    assert [(shard.name, shard.shape) for shard in sharded.variables] == [
        ("w/part_0", (5, 2)),
        ("w/part_1", (4, 2)),
        ("w/part_2", (4, 2)),
    ]
    assert transfers.nbytes == 0
    np.testing.assert_array_equal(sharded.numpy(), table())


def test_the_partitioner_of_a_layer_is_lost(tmp_path: Path) -> None:
    """R-EXPORT-3 (RFC 000): "One drawback of this per-layer partitioning is that it is not
    preserved in SavedModel"."""
    strategy = sv.ParameterServerStrategy(4, sv.FixedShardsPartitioner(2))
    with strategy.scope(), strategy.variable_partitioning_scope(sv.FixedShardsPartitioner(4)):
        w = sv.Variable(table(), name="w")
    assert len(w.variables) == 4
    sv.export({"w": w}, tmp_path / "model", as_shards=True)
    with strategy.scope():
        assert len(sv.load_exported(tmp_path / "model").w.variables) == 2


class Words(sv.Stateful):
    """A state that is no variable."""

    def __init__(self, words: list[bytes]) -> None:
        self.words = words

    def state(self) -> Mapping[str, Any]:
        return {"words": np.array(self.words, object)}

    def restore_state(self, values: Mapping[str, Array]) -> None:
        self.words = list(values["words"])


def test_what_is_loaded_is_exported_and_restored_like_what_it_was(tmp_path: Path) -> None:
    """States, slots and all: the second export has the tensors of the first."""
    model, optimizer = Model(), sv.optimizers.Adam()
    optimizer.apply_gradients(
        [(np.ones(shard.shape, np.float32), shard) for shard in model.w.variables]
    )
    tree = {"model": model, "optimizer": optimizer, "words": Words([b"a", b"b"])}
    sv.export(tree, tmp_path / "a")
    loaded = sv.load_exported(tmp_path / "a")
    assert loaded.words.state()["words"].tolist() == [b"a", b"b"]
    sv.export(loaded, tmp_path / "b")
    first, second = sv.load(tmp_path / "a"), sv.load(tmp_path / "b")
    assert key_of("model", "w", SLOT, "optimizer", "m") in first
    assert first.keys() == second.keys()
    for key in first.keys() - {"_CHECKPOINTABLE_OBJECT_GRAPH"}:
        np.testing.assert_array_equal(first[key], second[key])
    fresh = {"model": Model(2), "optimizer": sv.optimizers.Adam(), "words": Words([])}
    fresh["model"].w.assign(0 * table())
    sv.Checkpoint(sv.load_exported(tmp_path / "b")).read(tmp_path / "a").assert_consumed()
    sv.Checkpoint(**fresh).read(tmp_path / "b").expect_partial().assert_existing_objects_matched()
    np.testing.assert_array_equal(fresh["model"].w.numpy(), model.w.numpy())
    assert fresh["words"].words == [b"a", b"b"]


def test_many_small_variables_are_read_in_few_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shardvar.reference.objects.export as exported

    reads: list[int] = []
    read = exported.read_arrays
    monkeypatch.setattr(
        exported, "read_arrays", lambda plan, *rest: reads.append(1) or read(plan, *rest)
    )
    monkeypatch.setattr(exported, "_BATCH_NBYTES", 400)
    sv.export([sv.Variable(np.float32(number)) for number in range(500)], tmp_path / "model")
    loaded = sv.load_exported(tmp_path / "model")
    assert [float(loaded[number]) for number in range(500)] == list(range(500))
    assert len(reads) == 5


def test_strings_and_shards_without_rows_are_exported(tmp_path: Path) -> None:
    words = np.array([b"a", b"", b"\xff\x00c"], object)
    cut = sv.PartitionSpec(splits=[[0, 2, 1]])
    sv.export(
        {"s": create_sharded_variable(words, 2), "w": create_sharded_variable(table(3), cut)},
        tmp_path / "model",
    )
    loaded = sv.load_exported(tmp_path / "model")
    assert loaded.s.numpy().tolist() == words.tolist()
    np.testing.assert_array_equal(loaded.w.numpy(), table(3))


def test_wrong_usage_has_one_clear_error_and_writes_nothing(tmp_path: Path) -> None:
    w = create_sharded_variable(table(), 3)
    for given, kind in (
        ((3, tmp_path / "m"), ArgumentTypeError),
        ((sv.layers.Dense(2), tmp_path / "m"), ArgumentError),
        (({"parts": w.variables}, tmp_path / "m"), ArgumentError),
    ):
        with pytest.raises(kind):
            sv.export(*given)
    with pytest.raises(ArgumentTypeError, match="as_shards"):
        sv.export({"w": w}, tmp_path / "m", as_shards=4)  # type: ignore[arg-type]
    with pytest.raises(CheckpointNotFound):
        sv.load_exported(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []
    sv.save(tmp_path / "arrays", {"w": table()})
    with pytest.raises(InvalidCheckpoint, match="no object: 'w'"):
        sv.load_exported(tmp_path / "arrays")


def test_a_callback_that_changes_what_it_reads_changes_no_variable(tmp_path: Path) -> None:
    """Values are read where they lie, and what a callback reads is a copy all the same."""

    class Spoiler:
        description = "Overwrites what it was given."

        def __call__(self, tensors: Any) -> Any:
            shard: dict[str, Any] = {}
            for each in tensors:
                array = np.asarray(each.tensor)
                shard.setdefault(each.checkpoint_key, {})[each.slice_spec] = each.tensor
                if array.dtype == np.float32:
                    array *= 0
            return [shard]

    w = create_sharded_variable(table(), 3)
    for write in (partial(sv.export, {"w": w}), sv.Checkpoint(w=w).write):
        write(tmp_path / "model", policy=Spoiler(), force=True)
        np.testing.assert_array_equal(w.numpy(), table())
        np.testing.assert_array_equal(sv.load_exported(tmp_path / "model").w.numpy(), table())


def fields_of(message: bytes, *numbers: int) -> list[Any]:
    """The values at the end of a way of fields through a message."""
    found: list[Any] = [message]
    for number in numbers:
        found = [
            field.value for each in found for field in decode_fields(each) if field.number == number
        ]
    return found


FLOAT, INT64, RESOURCE, ANY = 1, 9, 20, (1 << 64) - 1
"""TensorFlow's numbers for dtypes, and the extent -1."""


def test_a_saved_model_has_every_variable_and_a_signature_for_each_table(tmp_path: Path) -> None:
    """R-EXPORT-5 (RFC 000): "can be saved to a SavedModel and served in both TF 1.x serving and TF
    2.x serving APIs".

    The peer tests let TensorFlow load it.
    """
    sv.export(Model(), tmp_path / "model", format="tensorflow")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "saved_model.pb",
        "variables",
    ]
    content = (tmp_path / "model" / "saved_model.pb").read_bytes()
    nodes = fields_of(content, 2, 7, 1)
    assert fields_of(nodes[0], 1, 2) == [b"w", b"count", b"blocks", b"signatures"]
    assert sorted(fields_of(content, 2, 7, 1, 7, 6))[::5] == [b"count", b"w"] and len(nodes) == 15
    tables = [b"blocks/0/kernel", b"blocks/1/head/kernel", b"w"]
    assert sorted(fields_of(content, 2, 5, 1)) == [b"__saved_model_init_op", *tables]
    assert fields_of(content, 2, 1, 4) == [b"serve"]


def test_the_functions_of_a_saved_model_take_ids_and_a_table_and_give_rows(tmp_path: Path) -> None:
    """In the library of the graph, and in the graph of objects, which names each of them."""
    sv.export(Model(), tmp_path / "model", format="tensorflow")
    content = (tmp_path / "model" / "saved_model.pb").read_bytes()
    functions, told = fields_of(content, 2, 2, 2, 1), fields_of(content, 2, 7, 2)
    names = [name for each in functions for name in fields_of(each, 1, 1)]
    assert len(names) == 3 and names == [name for each in told for name in fields_of(each, 1)]
    for function, each, columns in zip(functions, told, (2, 2, 1), strict=True):
        assert fields_of(function, 1, 2, 1) == [b"ids", b"table"]
        assert fields_of(function, 1, 3, 1) == fields_of(function, 4, 1) == [b"rows"]
        assert fields_of(function, 1, 2, 3) == [INT64, RESOURCE]
        assert fields_of(function, 1, 3, 3) == [FLOAT] and fields_of(function, 1, 17) == [1]
        node = [*fields_of(function, 3, 1), *fields_of(function, 3, 2), *fields_of(function, 3, 3)]
        assert node == [b"gather", b"ResourceGather", b"table", b"ids"]
        assert fields_of(function, 4, 2) == [b"gather:output:0"]
        # A dictionary of the arguments by name, within a tuple of tuples; and one of the answers.
        for way, name, dtype, shape in (
            ((3, 52, 1, 53), b"ids", INT64, [ANY]),
            ((4, 53), b"rows", FLOAT, [ANY, columns]),
        ):
            (spec,) = fields_of(each, 2, *way, 1, 2, 33)
            assert fields_of(each, 2, *way, 1, 1) == fields_of(spec, 1) == [name]
            assert fields_of(spec, 2, 2, 1) == shape and fields_of(spec, 3) == [dtype]


def test_a_saved_model_is_read_by_its_folder_and_replaced_only_with_force(tmp_path: Path) -> None:
    path = tmp_path / "model"
    sv.export({"w": sv.Variable(table())}, path, format="tensorflow")
    before = (path / "saved_model.pb").read_bytes()
    assert sv.verify(path).ok and sv.load_exported(path).w.shape == (13, 2)
    with pytest.raises(TargetExists, match="saved_model.pb"):
        sv.export({"v": sv.Variable(table())}, path, format="tensorflow")
    assert (path / "saved_model.pb").read_bytes() == before
    report = sv.export({"v": sv.Variable(table())}, path, format="tensorflow", force=True)
    assert report.path == str(path) and list(sv.load_exported(path).children) == ["v"]
    assert sorted(each.name for each in path.iterdir()) == ["saved_model.pb", "variables"]


def test_an_export_that_fails_leaves_the_old_saved_model(tmp_path: Path) -> None:
    path = tmp_path / "model"
    sv.export({"w": sv.Variable(table())}, path, format="tensorflow")
    files = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}

    def refuse(_tensors: Any) -> Any:
        raise RuntimeError("a policy failed")

    refuse.description = "Fails."  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="failed"):
        sv.export({"w": sv.Variable(table())}, path, format="tensorflow", force=True, policy=refuse)
    assert {each: each.read_bytes() for each in path.rglob("*") if each.is_file()} == files


def test_a_full_disk_leaves_the_old_saved_model_and_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "model"
    sv.export({"w": sv.Variable(table())}, path, format="tensorflow")
    before = (path / "saved_model.pb").read_bytes()
    for at in range(99):
        with failing(path / "variables", Fault(at, full)):
            try:
                sv.export({"v": sv.Variable(table())}, path, format="tensorflow", force=True)
                break
            except StorageError:
                assert (path / "saved_model.pb").read_bytes() == before
        assert sorted(each.name for each in path.iterdir()) == ["saved_model.pb", "variables"]
    assert 2 < at < 98


def test_what_tensorflow_cannot_serve_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    import ml_dtypes

    with pytest.raises(ArgumentError, match="as its root"):
        sv.export(sv.Variable([1.0]), tmp_path / "model", format="tensorflow")
    scales = sv.Variable(np.zeros(2, ml_dtypes.float8_e8m0fnu))
    with pytest.raises(UnsupportedError, match=r"float8_e8m0fnu of 'a/0'"):
        sv.export({"a": [scales]}, tmp_path / "model", format="tensorflow")
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []
