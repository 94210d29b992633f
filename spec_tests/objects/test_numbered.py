"""Checkpoint.save: numbered checkpoints, their counter, and the state file that says which is the
newest."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointNotFound,
    InvalidCheckpoint,
    MalformedCheckpoint,
    TargetExists,
    UnsupportedError,
)
from shardvar.reference.training.module import Module
from shardvar.storage.local import LocalStorage
from shardvar.verbs.newest import SeriesState, read_state

COUNTER = "save_counter/.ATTRIBUTES/VARIABLE_VALUE"
FORMATS = ["shardvar", "tensorflow", "safetensors", "npz"]


@pytest.mark.parametrize("form", FORMATS)
def test_checkpoints_are_numbered_from_one_and_the_newest_is_found(
    tmp_path: Path, form: str
) -> None:
    """In every format, by the same file."""
    w = sv.Variable([0.0, 0.0])
    checkpoint = sv.Checkpoint(w=w)
    for number in (1, 2, 3):
        w.assign([number, -number])
        report = checkpoint.save(tmp_path / "model", format=form)
        assert os.fspath(report) == report.path == str(tmp_path / f"model-{number}")
        assert sv.latest_checkpoint(tmp_path) == report.path
        assert int(checkpoint.save_counter) == number
    again = sv.Variable([0.0, 0.0])
    sv.Checkpoint(w=again).restore(tmp_path / "model-2").assert_consumed()
    assert again.numpy().tolist() == [2.0, -2.0]


def test_counting_goes_on_where_the_restored_checkpoint_was(tmp_path: Path) -> None:
    checkpoint = sv.Checkpoint(w=sv.Variable([1.0]))
    for _ in range(3):
        checkpoint.save(tmp_path / "model")
    other = sv.Checkpoint(w=sv.Variable([0.0]))
    other.restore(tmp_path / "model-2").assert_consumed()
    assert int(other.save_counter) == 2
    assert other.save(tmp_path / "model").path.endswith("model-4"), (
        "model-3 exists, and is not overwritten"
    )
    assert int(other.save_counter) == 4
    assert other.save(tmp_path / "elsewhere" / "model").path.endswith("model-5")


def test_write_and_read_make_no_counter_and_restore_none_where_none_was_saved(
    tmp_path: Path,
) -> None:
    sv.Checkpoint(w=sv.Variable([1.0])).write(tmp_path / "model")
    assert sv.load(tmp_path / "model").keys() >= {"w/.ATTRIBUTES/VARIABLE_VALUE"}
    assert COUNTER not in sv.load(tmp_path / "model")
    other = sv.Checkpoint(w=sv.Variable([0.0]))
    other.restore(tmp_path / "model").assert_consumed()
    assert "save_counter" not in other.children
    assert not (tmp_path / "checkpoint").exists()
    other.save(tmp_path / "model")
    third = sv.Checkpoint(w=sv.Variable([0.0]))
    third.read(tmp_path / "model-1").assert_existing_objects_matched()
    assert "save_counter" not in third.children


def test_a_root_without_room_for_a_counter_is_refused_before_a_byte_is_written(
    tmp_path: Path,
) -> None:
    module = Module()
    module.save_counter = sv.Variable(1)
    with pytest.raises(ArgumentError, match="another child named 'save_counter'"):
        sv.Checkpoint(module).save(tmp_path / "model")
    with pytest.raises(ArgumentError, match="no place"):
        sv.Checkpoint(save_counter=sv.Variable(1))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["", "a\0b", "x" * 300, 3, None], "."),
        ([".", "inner", "inner/"], "is a directory"),
        (["m.npz", "m.safetensors", "m.index", "m.svindex"], "ending of a file.*format="),
    ],
)
def test_what_is_no_prefix_is_refused(tmp_path: Path, names: list[Any], words: str) -> None:
    (tmp_path / "inner").mkdir()
    for name in names:
        with pytest.raises((ArgumentError, ArgumentTypeError), match=words):
            sv.Checkpoint(w=sv.Variable(1.0)).save(
                os.path.join(tmp_path, name) if name and name != 3 else name
            )
    assert os.listdir(tmp_path) == ["inner"]


@pytest.mark.parametrize("form", ["torch", "zarr", "orbax"])
def test_folders_are_not_numbered(tmp_path: Path, form: str) -> None:
    checkpoint = sv.Checkpoint(w=sv.Variable([1.0]))
    with pytest.raises(UnsupportedError, match="folders are not numbered"):
        checkpoint.save(tmp_path / "model", format=form)
    with pytest.raises(UnsupportedError, match="folders are not numbered"):
        sv.CheckpointManager(checkpoint, tmp_path, 1, format=form)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("is_managed", [False, True])
def test_a_directory_in_the_place_of_the_state_file_is_refused_before_a_byte_is_written(
    tmp_path: Path, is_managed: bool
) -> None:
    (tmp_path / "checkpoint").mkdir()
    checkpoint = sv.Checkpoint(w=sv.Variable(1.0))
    with pytest.raises(TargetExists, match="is a directory"):
        if is_managed:
            sv.CheckpointManager(checkpoint, tmp_path, 1).save()
        else:
            checkpoint.save(tmp_path / "model")
    assert os.listdir(tmp_path) == ["checkpoint"]
    assert int(checkpoint.save_counter) == 0
    assert sv.latest_checkpoint(tmp_path) is None


NAMES = [
    "a/b",
    "..",
    ".",
    "../../etc",
    "a\0b",
    "é日本",
    "🙂",
    "x" * 10_000,
    " ",
    "\n",
    "\\",
    ".ATTRIBUTES",
    "a.b",
]


@pytest.mark.sample(3)
@pytest.mark.parametrize("form", ["shardvar", "tensorflow"])
@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:12]))
def test_whatever_a_thing_is_called_it_is_saved_and_restored(
    tmp_path: Path, name: str, form: str
) -> None:
    sv.Checkpoint(d={name: sv.Variable([1.0])}).save(tmp_path / "model", format=form)
    target = sv.Variable([0.0])
    sv.Checkpoint(d={name: target}).restore(tmp_path / "model-1").assert_consumed()
    assert target.numpy().tolist() == [1.0]
    assert {path.parent for path in tmp_path.rglob("*")} == {tmp_path}


@pytest.mark.parametrize("form", FORMATS)
def test_a_name_that_no_file_holds_is_one_error_and_the_checkpoint_before_stays(
    tmp_path: Path, form: str
) -> None:
    sv.Checkpoint(d={"a": sv.Variable([1.0])}).save(tmp_path / "model", format=form)
    there = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for names in (["\ud800"], [1, "1"]):
        checkpoint = sv.Checkpoint(d={name: sv.Variable([2.0]) for name in names})
        checkpoint.save_counter.assign(0)
        with pytest.raises(ArgumentError):
            checkpoint.save(tmp_path / "model", format=form)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == there


@pytest.mark.parametrize(
    "state", [None, [1], {1: np.zeros(1)}, {"": np.zeros(1)}, {"a": object()}, {"a": "2000-01-01"}]
)
def test_a_state_that_is_none_is_refused_before_a_byte_is_written(
    tmp_path: Path, state: Any
) -> None:
    class Odd(sv.Stateful):
        def state(self) -> Any:
            return state if state != {"a": "2000-01-01"} else {"a": np.zeros(1, "datetime64[s]")}

        def restore_state(self, values: Any) -> None:
            raise AssertionError

    with pytest.raises(ArgumentError):
        sv.Checkpoint(odd=Odd()).write(tmp_path / "model")
    assert os.listdir(tmp_path) == []


# The state file


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SECONDS = st.floats(allow_nan=False, allow_infinity=False)


@given(TEXT, st.lists(st.tuples(TEXT, SECONDS), max_size=4), st.booleans(), SECONDS)
def test_a_state_is_read_as_it_was_written(
    newest: str, kept: list[tuple[str, float]], timed: bool, last: float
) -> None:
    names, times = tuple(name for name, _ in kept), tuple(each for _, each in kept)
    state = SeriesState(newest, names, times if timed else (), last)
    assert SeriesState.decode(state.encode()) == state


def test_comments_quotes_escapes_and_bytes_that_are_no_text_are_as_in_protobuf() -> None:
    state = SeriesState(os.fsdecode(b"a\xff\x01\n\"'\\"))
    assert state.encode() == b'model_checkpoint_path: "a\\377\\001\\012\\"\'\\\\"\n'
    assert SeriesState.decode(state.encode()) == state
    content = b"# a comment\nmodel_checkpoint_path : 'a\"\\303\\251\\x41\\t' # another"
    assert SeriesState.decode(content) == SeriesState('a"éA\t')


@pytest.mark.parametrize(
    "content",
    [
        b"\x00",
        b"model_checkpoint_path",
        b'model_checkpoint_path: "a',
        b'model_checkpoint_path: "a" model_checkpoint_path: "b"',
        b"model_checkpoint_path: 3",
        b'no_such_field: "a"',
        b'model_checkpoint_path: "\\q"',
        b'model_checkpoint_path: "\\777"',
        b"last_preserved_timestamp: nan",
        b"last_preserved_timestamp: 1e999",
        b"last_preserved_timestamp: soon",
        b'all_model_checkpoint_paths: "a" all_model_checkpoint_timestamps: 1 '
        b"all_model_checkpoint_timestamps: 2",
        b'model_checkpoint_path: "a"\n}',
    ],
)
def test_what_is_no_state_is_malformed_and_says_where(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoint").write_bytes(content)
    with pytest.raises(MalformedCheckpoint, match=str(tmp_path / "checkpoint")):
        sv.latest_checkpoint(tmp_path)


def test_a_state_without_end_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with open(tmp_path / "checkpoint", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(MalformedCheckpoint, match="bytes"):
        sv.latest_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "stated", ["../out", "/out", "..", ".", "inner/../../out", "link/out", "a\0b", "x" * 300]
)
def test_a_state_file_leads_nowhere_outside_of_its_directory(tmp_path: Path, stated: str) -> None:
    home = tmp_path / "home"
    (home / "inner").mkdir(parents=True)
    (home / "link").symlink_to(tmp_path)
    sv.save(tmp_path / "out", {"a": np.zeros(1)})
    (home / "checkpoint").write_bytes(
        SeriesState(stated.replace("/out", f"{tmp_path}/out", stated == "/out")).encode()
    )
    with pytest.raises(InvalidCheckpoint, match="not in that directory"):
        sv.latest_checkpoint(home)


def test_a_checkpoint_that_is_named_and_gone_is_no_reason_to_begin_anew(tmp_path: Path) -> None:
    checkpoint = sv.Checkpoint(w=sv.Variable(1.0))
    checkpoint.save(tmp_path / "model")
    (tmp_path / "model-1.svindex").unlink()
    for path in tmp_path.glob("model-1*"):
        path.unlink()
    with pytest.raises(CheckpointNotFound, match="model-1"):
        sv.latest_checkpoint(tmp_path)


def test_without_a_state_file_there_is_no_latest_checkpoint(tmp_path: Path) -> None:
    assert sv.latest_checkpoint(tmp_path) is None
    assert sv.latest_checkpoint(tmp_path / "nowhere") is None
    sv.Checkpoint(w=sv.Variable(1.0)).save(tmp_path / "model")
    assert sv.latest_checkpoint(tmp_path, "other") is None
    os.rename(tmp_path / "checkpoint", tmp_path / "other")
    assert sv.latest_checkpoint(tmp_path, latest_filename="other") == str(tmp_path / "model-1")
    assert sv.latest_checkpoint(os.fsencode(tmp_path), "other") == str(tmp_path / "model-1")
    with pytest.raises(ArgumentTypeError):
        sv.latest_checkpoint(3)  # type: ignore[arg-type]


def test_two_series_in_one_directory_share_the_state_file(tmp_path: Path) -> None:
    """As in TensorFlow, it names the one that was saved last."""
    a, b = sv.Checkpoint(w=sv.Variable(1.0)), sv.Checkpoint(w=sv.Variable(2.0))
    a.save(tmp_path / "a")
    b.save(tmp_path / "b")
    assert read_state(LocalStorage(str(tmp_path))) == SeriesState("b-1", ("b-1",))


class SavesFirst:
    """A policy that another process gets ahead of: it saves a checkpoint of the same series."""

    description = "Places everything in one file."

    def __init__(self, prefix: Path, form: str) -> None:
        self.prefix, self.form = prefix, form

    def __call__(self, tensors: Any) -> Any:
        sv.Checkpoint(w=sv.Variable([2.0])).save(self.prefix, format=self.form)
        return sv.ShardByTaskPolicy()(tensors)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("is_managed", [False, True])
def test_a_number_that_another_process_took_meanwhile_keeps_its_checkpoint(
    tmp_path: Path, form: str, is_managed: bool
) -> None:
    """The save is refused; the next one takes the next number."""
    checkpoint, prefix = sv.Checkpoint(w=sv.Variable([1.0])), tmp_path / "model"
    policy = SavesFirst(prefix, form)
    with pytest.raises(TargetExists, match="model-1.* exists.* Save again"):
        if is_managed:
            sv.CheckpointManager(
                checkpoint, tmp_path, None, checkpoint_name="model", format=form, policy=policy
            ).save()
        else:
            checkpoint.save(prefix, format=form, policy=policy)
    assert sv.load(tmp_path / "model-1")["w/.ATTRIBUTES/VARIABLE_VALUE"].tolist() == [2.0]
    assert checkpoint.save(prefix, format=form).path == str(tmp_path / "model-2")
