"""sv.CheckpointManager: which checkpoints stay, whatever fails and whenever; and what is never
touched."""

import os
from collections.abc import Callable
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
    PolicyError,
    StorageError,
)
from shardvar.reference.objects.series import Retention, plan_rotation
from shardvar.storage.local import LocalStorage
from shardvar.verbs.newest import SeriesState, write_state
from spec_tests.helpers.managed_checkpoints import Clock, build, names, stems

HOUR = 3600.0


# What stays


@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "safetensors", "npz"])
def test_the_newest_are_kept_and_of_the_others_nothing(tmp_path: Path, form: str) -> None:
    manager = build(tmp_path, 3, format=form)
    for _ in range(12):
        manager.save()
    assert names(manager.checkpoints) == ["ckpt-10", "ckpt-11", "ckpt-12"]
    assert stems(tmp_path) == {"ckpt-10", "ckpt-11", "ckpt-12"}
    assert manager.latest_checkpoint == sv.latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-12")
    assert manager.directory == str(tmp_path)
    assert not [
        name
        for name in os.listdir(tmp_path)
        if not name.startswith("ckpt-") and name != "checkpoint"
    ]


def test_one_every_so_many_hours_stays_for_good(tmp_path: Path) -> None:
    """The example of TensorFlow's behaviour: of hours 1, 2.1, 3, 4.5 and 5, those of 2, 4 and 5
    stay."""
    clock = Clock(0.0)
    manager = build(tmp_path, 1, keep_checkpoint_every_n_hours=2, clock=clock)
    for hours in (1, 2.1, 3, 4.5, 5):
        clock.now = hours * HOUR
        manager.save()
    assert stems(tmp_path) == {"ckpt-2", "ckpt-4", "ckpt-5"}
    assert names(manager.checkpoints) == ["ckpt-5"]
    again = build(tmp_path, 1, keep_checkpoint_every_n_hours=2, clock=clock)
    clock.now = 6.4 * HOUR
    again.save(checkpoint_number=6)
    assert stems(tmp_path) == {"ckpt-2", "ckpt-4", "ckpt-6"}, (
        "what was preserved last is known to the next manager"
    )


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_new_manager_for_each_save_keeps_what_one_manager_does(tmp_path: Path, most: int) -> None:
    kept = []
    for place in (tmp_path / "one", tmp_path / "new"):
        clock = Clock(0.0)
        manager = build(place, most, keep_checkpoint_every_n_hours=2, clock=clock)
        for number, hours in enumerate((1, 2.1, 3, 4.5, 5, 6.4, 9), 1):
            clock.now = hours * HOUR
            if place.name == "new" and number > 1:
                manager = build(place, most, keep_checkpoint_every_n_hours=2, clock=clock)
            manager.save(checkpoint_number=number)
        kept.append(stems(place))
    assert kept[0] == kept[1]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 10)), max_size=12),
    st.none() | st.integers(1, 4),
    st.none() | st.floats(0, 4),
)
def test_no_checkpoint_is_lost_and_none_is_removed_that_is_kept(
    saves: list[tuple[int, float]], most: int | None, hours: float | None
) -> None:
    """Every one that was saved is kept, preserved, or removed; and of the newest so many are
    kept."""
    state, now = SeriesState("", (), (), -1.0), 0.0
    there: list[str] = []
    for number, later in saves:
        now += later * HOUR
        before = set(there) - set(state.kept)
        state, gone = plan_rotation(state, f"ckpt-{number}", now, Retention(most, hours))
        there = [name for name in there if name != f"ckpt-{number}"] + [f"ckpt-{number}"]
        there = [name for name in there if name not in gone]
        assert state.newest == state.kept[-1] == f"ckpt-{number}"
        assert set(gone).isdisjoint(state.kept)
        assert set(gone).isdisjoint(before - {f"ckpt-{number}"}), (
            "what was preserved is never removed"
        )
        assert len(state.kept) == (len(state.kept) if most is None else min(most, len(state.kept)))
        assert list(state.times) == sorted(state.times)


def test_a_number_may_be_given_and_is_the_newest_again_where_it_was_there(tmp_path: Path) -> None:
    manager = build(tmp_path, 2)
    step = sv.Variable(np.int64(40))
    for number in (10, 20, 10, np.int32(30), step):
        manager.save(checkpoint_number=number)
    assert names(manager.checkpoints) == ["ckpt-30", "ckpt-40"]
    assert stems(tmp_path) == {"ckpt-30", "ckpt-40"}
    assert int(manager.checkpoint.save_counter) == 5
    assert int(step) == 40


def test_a_save_is_left_out_until_it_is_time(tmp_path: Path) -> None:
    step = sv.Variable(0, dtype=np.int64)
    manager = build(tmp_path, None, step_counter=step, checkpoint_interval=5)
    saved = []
    for number in range(12):
        step.assign(number)
        if manager.save() is not None:
            saved.append(number)
    assert saved == [0, 5, 10]
    assert manager.checkpoint_interval == 5
    assert manager.save(check_interval=False) is not None
    assert manager.save(check_interval=False) is None, "this step was saved"
    step.assign(16)
    again = build(tmp_path, None, step_counter=step, checkpoint_interval=5, last_checkpoint_step=12)
    assert again.save() is None


# Restoring


def test_the_newest_is_restored_or_else_what_the_user_says_is_done(tmp_path: Path) -> None:
    called = []
    first = build(tmp_path, value=1.0, init_fn=lambda: called.append(1))
    assert first.restore_or_initialize() is None
    assert called == [1]
    first.save()
    second = build(tmp_path, value=9.0, init_fn=lambda: called.append(2))
    assert second.restore_or_initialize() == str(tmp_path / "ckpt-1")
    assert called == [1]
    assert (
        second.checkpoint.children["w"].children["0"].numpy().tolist()
        == np.full((2, 3), 1.0).tolist()
    )  # type: ignore[attr-defined]
    report: Any = second.save()
    assert report.path == str(tmp_path / "ckpt-2")
    assert build(tmp_path / "empty").restore_or_initialize() is None


def test_opening_a_manager_changes_nothing(tmp_path: Path) -> None:
    """Another process may open one to restore while the first is saving."""
    manager = build(tmp_path, 5)
    for _ in range(3):
        manager.save()
    (tmp_path / "ckpt-9.svdata-0-00000-of-00001").write_bytes(b"")
    there = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert names(build(tmp_path, 1).checkpoints) == ["ckpt-1", "ckpt-2", "ckpt-3"]
    assert build(tmp_path, 1).latest_checkpoint == str(tmp_path / "ckpt-3")
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == there
    assert not (tmp_path / "nowhere").exists()
    build(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


# What is never touched


FOREIGN = [
    "ckpt",
    "ckpt-1",
    "ckpt-1.txt",
    "ckpt-10.txt",
    "ckpt-1.svindex.bak",
    "ckpt-1x.svindex",
    "ckpt-01.svdata-0-00000-of-00001",
    "ckpt-1-1.svindex",
    "ckpt-1.npz",
    "ckpt-77.svindex",
    "other-1.svindex",
    "checkpoint.old",
]


def test_files_of_others_stay_whatever_their_names_begin_with(tmp_path: Path) -> None:
    for name in FOREIGN:
        (tmp_path / name).write_bytes(b"mine")
    manager = sv.CheckpointManager(sv.Checkpoint(w=sv.Variable(1.0)), tmp_path, 1)
    manager.save(checkpoint_number=1)
    (tmp_path / "ckpt-1.index").write_bytes(b"mine")
    for number in (10, 100):
        manager.save(checkpoint_number=number)
    assert (tmp_path / "ckpt-1.index").read_bytes() == b"mine"
    assert {name for name in FOREIGN if (tmp_path / name).read_bytes() == b"mine"} == set(FOREIGN)
    assert {name for name in os.listdir(tmp_path) if name.startswith("ckpt-100.")} >= {
        "ckpt-100.svindex"
    }
    assert not (tmp_path / "ckpt-10.svindex").exists()


def test_what_checkpoint_save_wrote_is_restored_and_never_removed(tmp_path: Path) -> None:
    """Also under the name that a manager would give: it has no time in the state file."""
    checkpoint = sv.Checkpoint(w=sv.Variable(1.0))
    checkpoint.save(tmp_path / "ckpt")
    manager = sv.CheckpointManager(sv.Checkpoint(w=sv.Variable(0.0)), tmp_path, 1)
    assert manager.restore_or_initialize() == str(tmp_path / "ckpt-1")
    assert manager.checkpoints == []
    for _ in range(3):
        manager.save()
    assert stems(tmp_path) == {"ckpt-1", "ckpt-4"}


@pytest.mark.parametrize(
    "stated", ["../precious", "precious", "ckpt-1/../precious", "{home}/precious", "ckpt-x"]
)
def test_a_state_file_makes_no_manager_remove_what_it_did_not_write(
    tmp_path: Path, stated: str
) -> None:
    home = tmp_path / "home"
    for place in (tmp_path, home):
        sv.save(place / "precious", {"a": np.zeros(2)})
        sv.save(place / "ckpt-x", {"a": np.zeros(2)})
    there = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    name = stated.format(home=home)
    storage = LocalStorage(str(home))
    write_state(storage, SeriesState("ckpt-x", (name, name), (1e8, 2e8)))
    write_state(storage, SeriesState("ckpt-x", (name,)), "checkpoint.unfinished")
    manager = build(home, 1)
    for _ in range(3):
        manager.save()
    assert [path for path in there if not path.exists()] == []


def test_a_checkpoint_of_another_format_is_removed_in_its_own(tmp_path: Path) -> None:
    build(tmp_path, 2, format="tensorflow").save()
    manager = build(tmp_path, 1, format="npz")
    manager.restore_or_initialize()
    manager.save()
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "ckpt-2.npz"]


# Others


def test_what_cannot_be_removed_is_told_and_removed_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = build(tmp_path, 1)
    manager.save()
    with LocalStorage(str(tmp_path)).lock("ckpt-1"):
        manager.save()
    assert "ckpt-1 could not be removed" in caplog.text
    assert stems(tmp_path) == {"ckpt-1", "ckpt-2"}
    manager.save()
    assert stems(tmp_path) == {"ckpt-3"}


# Wrong usage


WRONG: dict[str, list[Any]] = {
    "max_to_keep": [0, -1, True, 2.0, "2"],
    "keep_checkpoint_every_n_hours": [-1, float("nan"), "1", True],
    "checkpoint_name": ["a/b", "../a", "a\0", "x" * 300, 3],
    "checkpoint_interval": [3],  # without step_counter
    "format": ["parquet"],
}
WORDS = {"checkpoint_name": None, "checkpoint_interval": "step_counter", "format": "Unknown format"}


@pytest.mark.parametrize(("name", "value"), [(n, each) for n in WRONG for each in WRONG[n]])
def test_an_argument_that_means_nothing_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    """A name of checkpoints leads to no other directory."""
    given = {"max_to_keep": 1, name: value}
    with pytest.raises(ArgumentError, match=WORDS.get(name, name)):
        build(tmp_path, given.pop("max_to_keep"), **given)


@pytest.mark.parametrize("number", [-1, 1.5, "3", True, sv.Variable(1.0)])
def test_a_number_is_an_integer(tmp_path: Path, number: Any) -> None:
    with pytest.raises(ArgumentError, match="checkpoint_number"):
        build(tmp_path).save(checkpoint_number=number)
    assert os.listdir(tmp_path) == []


def test_only_checkpoints_are_managed_and_only_in_paths(tmp_path: Path) -> None:
    with pytest.raises(ArgumentTypeError, match=r"sv\.Checkpoint"):
        sv.CheckpointManager({"w": sv.Variable(1.0)}, tmp_path, 1)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="not a path"):
        build(3)  # type: ignore[arg-type]


class Refusing:
    """A policy that has no answer."""

    description = "refuses"

    def assign(self, slices: Any, capabilities: Any) -> Any:
        raise PolicyError("No.", "Give another.")


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("refusal", ["disk", "policy"])
def test_what_is_refused_leaves_no_new_folder(
    refusal: str, background: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a manager, of ``Checkpoint.save`` and of an export for TensorFlow; and the next save has
    the number."""
    checkpoint, folder = sv.Checkpoint(w=sv.Variable([1.0])), tmp_path / "new" / "folder"
    manager = sv.CheckpointManager(checkpoint, folder, 2)
    writes: list[Callable[..., Any]] = [
        lambda options: manager.save(options=options, background=background),
        lambda options: checkpoint.save(folder / "ckpt", options, background=background),
        lambda options: sv.export(checkpoint, folder, format="tensorflow", options=options),
    ]
    options = (
        sv.CheckpointOptions(experimental_sharding_callback=Refusing())
        if refusal == "policy"
        else None
    )
    with monkeypatch.context() as patch:
        if refusal == "disk":
            patch.setattr(LocalStorage, "free_nbytes", lambda _: 3)
        for write in writes:
            with pytest.raises((StorageError, PolicyError)):
                pending = write(options)
                pending.join()
            assert not (tmp_path / "new").exists()
    assert int(checkpoint.save_counter) == 0
    manager.save()
    assert manager.latest_checkpoint == str(folder / "ckpt-1")
