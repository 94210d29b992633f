"""sv.Checkpoint: objects to files and back, into any layout, whole or not at all, now or when they
appear."""

import gc
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointNotFound,
    CorruptCheckpoint,
    InconsistentTensor,
    InvalidCheckpoint,
    MalformedCheckpoint,
    UnmatchedObjects,
)
from shardvar.reference.objects.stored_graph import (
    GRAPH_KEY,
    VARIABLE_VALUE,
    decode_graph,
    key_of,
    nodes_of_keys,
    split_key,
)
from shardvar.reference.training.module import Module
from shardvar.reference.variables import AggregatingVariable, MirroredVariable
from spec_tests.helpers.thoroughness import stride
from spec_tests.hostile.tensorflow import proto

Array = np.ndarray[Any, Any]


def sharded(value: Array, sizes: list[int]) -> sv.ShardedVariable:
    stops = np.cumsum(sizes).tolist()
    return sv.ShardedVariable(
        [sv.Variable(value[b - n : b]) for b, n in zip(stops, sizes, strict=True)]
    )


def zeros(
    sizes: list[int], row_shape: tuple[int, ...] = (2,), dtype: Any = np.float32
) -> sv.ShardedVariable:
    return sharded(np.zeros((sum(sizes), *row_shape), dtype), sizes)


def table(rows: int = 5) -> Array:
    return np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)


class Model(Module):
    """A module with a sharded variable, a plain one, and a list of both."""

    def __init__(self, scale: float, sizes: list[int]) -> None:
        super().__init__()
        self.w = sharded(table() * np.float32(scale), sizes)
        self.inner = Module()
        self.inner.b = sv.Variable([scale, 2 * scale])
        self.blocks = [sv.Variable(scale), {"a.b/c": sv.Variable(3 * scale)}, (self.inner,)]


@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "safetensors", "npz"])
def test_modules_dictionaries_lists_and_tuples_keep_their_names_in_every_format(
    tmp_path: Path, form: str
) -> None:
    """Also where the format holds no strings, and so no graph of objects: the keys tell it."""
    sv.Checkpoint(model=Model(1.0, [3, 2]), more=["no state", sv.Variable(7)]).write(
        tmp_path / "model", format=form
    )
    model, more = Model(0.0, [1, 1, 3]), list[Any]([None, sv.Variable(0)])
    sv.Checkpoint(model=model, more=more).read(tmp_path / "model").assert_consumed()
    np.testing.assert_array_equal(model.w.numpy(), table())
    assert model.inner.b.numpy().tolist() == [1.0, 2.0]
    assert (float(model.blocks[0]), float(model.blocks[1]["a.b/c"]), int(more[1])) == (1.0, 3.0, 7)


def test_the_file_is_a_checkpoint_like_any_other_with_the_keys_of_tensorflow(
    tmp_path: Path,
) -> None:
    """A sharded variable is one key and a slice a shard; an object under two names is stored once,
    under the first."""
    model = Model(1.0, [3, 0, 2])
    report = sv.Checkpoint(model=model, again=model.inner).write(tmp_path / "model")
    with sv.open_checkpoint(tmp_path / "model") as reader:
        assert set(reader) == {
            GRAPH_KEY,
            "again/b/.ATTRIBUTES/VARIABLE_VALUE",
            "model/blocks/0/.ATTRIBUTES/VARIABLE_VALUE",
            "model/blocks/1/a..b.Sc/.ATTRIBUTES/VARIABLE_VALUE",
            "model/w/.ATTRIBUTES/VARIABLE_VALUE",
        }
        np.testing.assert_array_equal(reader.read("model/w/.ATTRIBUTES/VARIABLE_VALUE"), table())
        assert len(reader.find("model/w/.ATTRIBUTES/VARIABLE_VALUE").slices) == 2
    assert report.num_tensors == 5
    assert sv.verify(tmp_path / "model").ok


@pytest.mark.parametrize("count", [3, 200])
def test_many_variables_are_restored_as_few_are(tmp_path: Path, count: int) -> None:
    """Of many the entries are scanned, of few they are looked up."""
    arrays = {key_of([f"{number}"]): np.float32(number) for number in range(count)}
    sv.save(tmp_path / "model", arrays | {"other": np.float32(1)})
    variables = {f"{number}": sv.Variable(-1.0) for number in range(count)}
    status = sv.Checkpoint(**variables).read(tmp_path / "model").assert_existing_objects_matched()
    assert status.unmatched_keys == ["other"]
    assert [float(variable) for variable in variables.values()] == list(range(count))


@pytest.mark.parametrize("is_mirrored", [False, True])
def test_what_delegates_to_others_is_saved_once_in_slices_and_restored_to_other_shards(
    tmp_path: Path, is_mirrored: bool
) -> None:
    """R-CKPT-2 (RFC 002): a mirrored variable, of which every copy is restored, and one that
    aggregates."""

    def made(copies: list[sv.ShardedVariable]) -> Any:
        return MirroredVariable(copies) if is_mirrored else AggregatingVariable(copies[0], "MEAN")

    report = sv.Checkpoint(w=made([sharded(table(), [3, 2]) for _ in "ab"])).write(
        tmp_path / "model"
    )
    assert (report.num_tensors, report.num_slices) == (2, 3)
    copies = [zeros([1, 4]) for _ in "ab"][: 1 + is_mirrored]
    sv.Checkpoint(w=made(copies)).read(tmp_path / "model").assert_consumed()
    for copy in copies:
        np.testing.assert_array_equal(copy.numpy(), table())


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: zeros([2, 2]),
        lambda: zeros([5], (3,)),
        lambda: zeros([5], dtype=np.float64),
        lambda: zeros([10], ()),
    ],
)
def test_another_dtype_or_shape_changes_nothing_at_all(tmp_path: Path, wrong: Any) -> None:
    sv.Checkpoint(a=sv.Variable(1.0), w=sharded(table(), [3, 2]), z=sv.Variable(2.0)).write(
        tmp_path / "model"
    )
    a, z, w = sv.Variable(0.0), sv.Variable(0.0), wrong()
    with pytest.raises(InconsistentTensor, match="w/"):
        sv.Checkpoint(a=a, w=w, z=z).read(tmp_path / "model")
    assert (float(a), float(z), w.numpy().any()) == (0.0, 0.0, False)


def test_a_damaged_payload_changes_nothing_at_all(tmp_path: Path) -> None:
    sv.Checkpoint(a=sv.Variable(1.0), w=sharded(table(), [3, 2])).write(tmp_path / "model")
    (data,) = (path for path in tmp_path.iterdir() if "svdata" in path.name)
    octets = bytearray(data.read_bytes())
    octets[-1] ^= 1
    data.write_bytes(octets)
    a, w = sv.Variable(0.0), zeros([5])
    with pytest.raises(CorruptCheckpoint):
        sv.Checkpoint(a=a, w=w).read(tmp_path / "model")
    assert (float(a), w.numpy().any()) == (0.0, False)


def test_what_appears_later_is_restored_before_it_is_read(tmp_path: Path) -> None:
    """A variable, a module full of them, an item of a list; each when it is attached."""
    sv.Checkpoint(model=Model(1.0, [3, 2]), step=sv.Variable(9)).write(tmp_path / "model")
    model = Module()
    checkpoint = sv.Checkpoint(model=model)
    status = checkpoint.read(tmp_path / "model")
    model.w = zeros([4, 1])
    np.testing.assert_array_equal(model.w.numpy(), table())
    model.blocks = []
    model.blocks.append(sv.Variable(0.0))
    assert float(model.blocks[0]) == 1.0
    inner = Module()
    model.inner = inner
    with pytest.raises(UnmatchedObjects):
        status.assert_consumed()
    inner.b = sv.Variable([0.0, 0.0])
    assert inner.b.numpy().tolist() == [1.0, 2.0]
    model.blocks.append({"a.b/c": sv.Variable(0.0)})
    checkpoint.step = sv.Variable(0)
    assert (float(model.blocks[1]["a.b/c"]), int(checkpoint.step)) == (3.0, 9)
    status.assert_consumed()


def test_the_status_lists_every_key_and_every_object_that_did_not_match(tmp_path: Path) -> None:
    sv.Checkpoint(a=sv.Variable(1.0), b=sv.Variable(2.0), c=sv.Variable(3.0)).write(
        tmp_path / "model"
    )
    status = sv.Checkpoint(c=sv.Variable(0.0), d=sv.Variable(0.0), m={"e": sv.Variable(0.0)}).read(
        tmp_path / "model"
    )
    assert status.unmatched_keys == [key_of(["a"]), key_of(["b"])]
    assert status.unmatched_objects == ["d", "m/e"]
    with pytest.raises(
        UnmatchedObjects, match="d, m/e; values without an object: a/.*, b/"
    ) as caught:
        status.assert_consumed()
    assert isinstance(caught.value, AssertionError)
    with pytest.raises(UnmatchedObjects, match=r"objects without a value: d, m/e\."):
        status.assert_existing_objects_matched()
    assert status.assert_nontrivial_match() is status.expect_partial() is status
    with pytest.raises(UnmatchedObjects):
        sv.Checkpoint(z=sv.Variable(0.0)).read(
            tmp_path / "model"
        ).expect_partial().assert_nontrivial_match()


@pytest.mark.parametrize("is_expected", [False, True])
def test_values_that_nobody_ever_took_are_logged_unless_that_is_expected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_expected: bool
) -> None:
    sv.Checkpoint(a=sv.Variable(1.0), b=sv.Variable(2.0)).write(tmp_path / "model")
    gc.collect()  # what other tests left has its say first
    caplog.clear()
    with caplog.at_level(logging.WARNING, "shardvar.checkpoint"):
        checkpoint = sv.Checkpoint(a=sv.Variable(0.0))
        status = checkpoint.read(tmp_path / "model")
        if is_expected:
            status.expect_partial()
        assert caplog.text == ""
        del checkpoint, status
        gc.collect()
    assert (key_of(["b"]) in caplog.text) is not is_expected


@pytest.mark.parametrize("value", [3, "text", None, object()])
def test_only_objects_with_state_are_given(value: Any) -> None:
    with pytest.raises(ArgumentTypeError):
        sv.Checkpoint(a=value)


def test_shards_and_names_that_cannot_be_kept_apart_are_refused(tmp_path: Path) -> None:
    w = sharded(table(), [3, 2])
    for checkpoint in (
        sv.Checkpoint(w=w, parts=w.variables),
        sv.Checkpoint(d={1: sv.Variable(1.0), "1": sv.Variable(2.0)}),
        sv.Checkpoint(d={"\ud800": sv.Variable(1.0)}),
    ):
        with pytest.raises(ArgumentError):
            checkpoint.write(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    for names in ({"read": w}, {"_root": w}):
        with pytest.raises(ArgumentError):
            sv.Checkpoint(**names)
    with pytest.raises(ArgumentError, match="another child"):
        sv.Checkpoint(Model(1.0, [5]), w=sv.Variable(1.0))
    with pytest.raises(CheckpointNotFound):
        sv.Checkpoint(w=w).read(tmp_path / "model")


@given(st.lists(st.text(min_size=1), max_size=4).map(tuple))
def test_keys_are_read_back_as_the_paths_that_they_were_made_of(path: tuple[str, ...]) -> None:
    assert split_key(key_of(path)) == (path, VARIABLE_VALUE)


@given(st.text("./SA", max_size=8))
def test_what_is_no_key_is_no_path(text: str) -> None:
    """A path is only found where the key is the one that the path has."""
    key = f"{text}/.ATTRIBUTES/VARIABLE_VALUE"
    found = split_key(key)
    assert found is None or key_of(*found) == key


def test_a_slot_has_a_path_behind_its_marker() -> None:
    end = ".ATTRIBUTES/VARIABLE_VALUE"
    assert split_key(f"a/.OPTIMIZER_SLOT/{end}") is None
    assert split_key(f"a/.OPTIMIZER_SLOT/b/.OPTIMIZER_SLOT/c/{end}") is None
    assert split_key(f"a/.OPTIMIZER_SLOT/b/{end}") is not None


def test_graphs_that_break_their_own_law_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedCheckpoint):
        decode_graph(b"", ())
    with pytest.raises(InvalidCheckpoint, match="object 5"):
        decode_graph(bytes([0x0A, 4, 0x0A, 2, 0x08, 5]), ())
    # A slot that is object 7 of one, and a child whose number is bytes.
    with pytest.raises(InvalidCheckpoint, match="Slot 'm' of object 0 is 7, of 0"):
        decode_graph(proto((1, proto((3, proto((1, 0), (2, b"m"), (3, 7)))))), ())
    with pytest.raises(MalformedCheckpoint, match="holds bytes where a number belongs"):
        decode_graph(proto((1, proto((1, proto((1, b"x")))))), ())
    for number, message in enumerate((np.float32(1), np.array([b"a", b"b"], object))):
        sv.save(tmp_path / f"{number}", {GRAPH_KEY: message})
        with pytest.raises(InvalidCheckpoint, match="one string"):
            sv.Checkpoint(w=sv.Variable(1.0)).read(tmp_path / f"{number}")


def test_a_list_of_slots_is_of_the_first_optimizer_and_name_that_has_it() -> None:
    def node(**children: int) -> tuple[int, bytes]:
        links = [(1, proto((1, number), (2, name.encode()))) for name, number in children.items()]
        return 1, proto(*links)

    owner = node(_trainable_variables=3, _momentums=4, _velocities=4)
    variables, slots = node(**{"0": 5}), node(**{"0": 6})
    graph = proto(node(a=1, b=2), owner, owner, variables, slots, node(), node())
    assert [each.slots for each in decode_graph(graph, ())[1:3]] == [{(5, "_momentums"): 6}, {}]


LIKE_FIELDS = "\x03abc\x1a\x23" + "n" * 12
"""A text that holds the tag and the length of what follows it."""


@settings(max_examples=200 // stride(8))
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.text("ab/é", max_size=3) | st.just("n" * 130),
            st.integers(0, 1 << 21),
        ),
        min_size=1,
        max_size=4,
    )
)
@example([(3, LIKE_FIELDS, 0)])
def test_the_common_forms_of_a_graph_mean_what_any_other_form_means(
    rows: list[tuple[int, str, int]],
) -> None:
    """A message whose fields are in another order, or have an unknown field beside them, takes the
    plain way."""

    def message(*, is_common: bool) -> bytes:
        nodes = []
        for kind, name, number in rows:
            text = name.encode()
            link = [(1, number % len(rows)), (2, text)]
            value = [
                (1, b"VARIABLE_VALUE" if kind % 2 else b"state"),
                (2, text),
                (3, b"key" + text),
            ]
            fields = link if kind < 2 else value
            changed = fields if is_common else [*reversed(fields), (9, 1)]
            nodes.append((1, proto((1 if kind < 2 else 2, proto(*changed)))))
        return proto(*nodes)

    keys = {"key" + name for _, name, _ in rows}
    assert decode_graph(message(is_common=True), keys) == decode_graph(
        message(is_common=False), keys
    )


def test_a_graph_without_end_and_a_key_without_end_are_walked(tmp_path: Path) -> None:
    """Neither a cycle nor a depth beyond Python's stack is a problem."""
    deep = nodes_of_keys([key_of(["x"] * 5000)])
    assert len(deep) == 5001
    assert deep[-1].key is not None
    sv.save(
        tmp_path / "loop", {GRAPH_KEY: np.array(bytes([0x0A, 5, 0x0A, 3, 0x12, 1, 0x61]), object)}
    )
    model = Module()
    model.a = model
    sv.Checkpoint(model).read(tmp_path / "loop").assert_consumed()
