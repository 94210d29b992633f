"""A directory of numbered checkpoints is TensorFlow's and ours: each finds, restores and rotates
the other's."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

import shardvar as sv
from shardvar.reference.variables import create_sharded_variable
from shardvar.verbs.newest import SeriesState

tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")

VALUE = np.arange(26, dtype=np.float32).reshape(13, 2)


def ours(value: Any = 0.0) -> Any:
    return sv.Checkpoint(w=create_sharded_variable(np.full((13, 2), value, np.float32), 3))


def theirs(value: Any = 0.0) -> Any:
    return tf.train.Checkpoint(w=tf.Variable(np.full((13, 2), value, np.float32)))


def names(paths: Any) -> list[str]:
    return [os.path.basename(path) for path in paths]


def test_both_write_the_same_state_file(tmp_path: Path) -> None:
    theirs().save(str(tmp_path / "theirs" / 'mo"d\\el é'))
    ours().save(tmp_path / "ours" / 'mo"d\\el é')
    assert (tmp_path / "ours" / "checkpoint").read_bytes() == (
        tmp_path / "theirs" / "checkpoint"
    ).read_bytes()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_managers_take_turns_in_one_directory(tmp_path: Path, order: tuple[int, int]) -> None:
    """Each restores what the other saved last, goes on with the next number, and removes the
    oldest, whosever it is."""

    def run(which: int, value: float) -> Any:
        if which:
            manager: Any = tf.train.CheckpointManager(theirs(), str(tmp_path), 2)
        else:
            manager = sv.CheckpointManager(ours(), tmp_path, 2, format="tensorflow")
        before = manager.restore_or_initialize()
        read = None if before is None else float(manager.checkpoint.w.numpy()[0, 0])
        manager.checkpoint.w.assign(np.full((13, 2), value, np.float32))
        manager.save()
        newest = sv.latest_checkpoint(tmp_path)
        assert newest == tf.train.latest_checkpoint(str(tmp_path)) == manager.latest_checkpoint
        return read, names(manager.checkpoints)

    seen = [run(order[turn % 2], float(turn)) for turn in range(5)]
    assert [read for read, _ in seen] == [None, 0.0, 1.0, 2.0, 3.0]
    assert seen[-1][1] == ["ckpt-4", "ckpt-5"]
    assert {name.partition(".")[0] for name in os.listdir(tmp_path)} == {
        "checkpoint",
        "ckpt-4",
        "ckpt-5",
    }


@pytest.mark.parametrize("hours", [None, 0.5, 2])
@pytest.mark.parametrize("most", [1, 2, 3, None])
def test_the_same_checkpoints_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: Any, hours: Any
) -> None:
    """At every step of a day, also across a new manager."""
    from tensorflow.python.checkpoint import checkpoint_management

    now = [1e9]
    monkeypatch.setattr(checkpoint_management, "time", SimpleNamespace(time=lambda: now[0]))

    def managers() -> list[Any]:
        mine = sv.CheckpointManager(
            ours(), tmp_path / "ours", most, hours, format="tensorflow", clock=lambda: now[0]
        )
        return [mine, tf.train.CheckpointManager(theirs(), str(tmp_path / "theirs"), most, hours)]

    pair = managers()
    for number, later in enumerate([0.1, 1.1, 0.9, 1.5, 0.5, 3.0, 0.0, 0.2]):
        now[0] += later * 3600
        for manager in pair:
            manager.save(checkpoint_number=number % 6)
        assert names(pair[0].checkpoints) == names(pair[1].checkpoints)
        states = [
            tf.train.get_checkpoint_state(str(tmp_path / name)) for name in ("ours", "theirs")
        ]
        assert names(states[0].all_model_checkpoint_paths) == names(
            states[1].all_model_checkpoint_paths
        )
        assert list(states[0].all_model_checkpoint_timestamps) == list(
            states[1].all_model_checkpoint_timestamps
        )
        assert states[0].last_preserved_timestamp == states[1].last_preserved_timestamp
        assert {name.partition(".")[0] for name in os.listdir(tmp_path / "ours")} == {
            name.partition(".")[0] for name in os.listdir(tmp_path / "theirs")
        }
        if number == 4:
            pair = managers()


@pytest.mark.parametrize(
    "path", ["ckpt-1", 'q"\\', "é日本", "a b", "tab\there", "new\nline", "\x01"]
)
def test_paths_are_spelt_so_that_both_read_them(path: str) -> None:
    from google.protobuf import text_format
    from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState

    state = SeriesState(path, (path,), (1.5,), 0.1)
    message = text_format.Parse(state.encode().decode(), CheckpointState())
    assert (message.model_checkpoint_path, list(message.all_model_checkpoint_paths)) == (
        path,
        [path],
    )
    assert SeriesState.decode(text_format.MessageToString(message).encode()) == state
