"""A series that exists is never begun anew, and none of its checkpoints is overwritten unasked."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import MalformedCheckpoint, MissingFile
from shardvar.storage.local import LocalStorage
from spec_tests.helpers.managed_checkpoints import build, stems
from spec_tests.helpers.programs import ENVIRONMENT

FORMATS = ["shardvar", "tensorflow", "safetensors", "npz"]

WRONG = {
    "empty": b"",
    "blank": b" \n\n",
    "a comment": b"# nothing\n",
    "zeros": bytes(64),
    "rubbish": bytes(range(256)),
    "cut short": b'model_checkpoint_path: "ck',
    "a cut name": b"model_checkp",
    "no newest": b'all_model_checkpoint_paths: "ckpt-1"\nall_model_checkpoint_paths: "ckpt-2"\n',
    "an empty name": b'model_checkpoint_path: ""\n',
    "times that are cut": b'model_checkpoint_path: "ckpt-2"\nall_model_checkpoint_paths: "ckpt-1"\n'
    b'all_model_checkpoint_paths: "ckpt-2"\nall_model_checkpoint_timestamps: 1.5\n',
    "a message": b"\x0a\x06ckpt-2\x12\x06ckpt-1",
    "JSON": b'{"model_checkpoint_path": "ckpt-2"}',
}


def saved(directory: Path, form: str = "shardvar", times: int = 2) -> dict[str, bytes]:
    """Save twice and return the files."""
    manager = build(directory, None, 42.0, format=form)
    for _ in range(times):
        manager.save()
    return files(directory)


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.sample(5)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_state_file_that_names_no_newest_is_an_error_that_names_it_and_the_checkpoints(
    tmp_path: Path, form: str, wrong: str
) -> None:
    """Of every verb, in every format; and nothing is initialized, written or removed."""
    saved(tmp_path, form)
    opened = build(tmp_path, 3, 7.0, format=form)
    (tmp_path / "checkpoint").write_bytes(WRONG[wrong])
    there, called = files(tmp_path), []
    verbs = [
        lambda: sv.latest_checkpoint(tmp_path),
        lambda: build(
            tmp_path, format=form, init_fn=lambda: called.append(1)
        ).restore_or_initialize(),
        opened.save,
        lambda: opened.save(background=True),
        lambda: opened.save(checkpoint_number=9),
    ]
    for verb in verbs:
        with pytest.raises(MalformedCheckpoint) as caught:
            verb()
        for word in (
            str(tmp_path / "checkpoint"),
            "ckpt-1",
            "ckpt-2",
            'model_checkpoint_path: "ckpt-2"',
        ):
            assert word in str(caught.value)
    assert called == [] and files(tmp_path) == there


def test_the_remedy_of_that_error_continues_the_series(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "checkpoint").write_bytes(b"")
    with pytest.raises(MalformedCheckpoint, match="Write the line") as caught:
        sv.latest_checkpoint(tmp_path)
    line = caught.value.remedy.partition("Write the line ")[2].partition(" into it")[0]
    (tmp_path / "checkpoint").write_text(line)
    manager = build(tmp_path, 3)
    assert manager.restore_or_initialize() == str(tmp_path / "ckpt-2")
    report: Any = manager.save()
    assert report.path == str(tmp_path / "ckpt-3")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_state_file_that_is_cut_anywhere_never_means_that_there_is_nothing(
    tmp_path: Path, data: Any
) -> None:
    """Either it still names the newest, or it is an error."""
    if not (tmp_path / "whole").exists():
        saved(tmp_path, times=3)
        os.rename(tmp_path / "checkpoint", tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    (tmp_path / "checkpoint").write_bytes(
        cut + bytes(data.draw(st.sampled_from([0, len(whole) - len(cut)])))
    )
    try:
        assert (
            build(tmp_path).restore_or_initialize()
            == str(tmp_path / "ckpt-3")
            == sv.latest_checkpoint(tmp_path)
        )
    except MalformedCheckpoint as error:
        assert "ckpt-3" in str(error)


# A state file that is missing


@pytest.mark.parametrize("form", FORMATS)
def test_a_manager_begins_no_series_over_one_whose_state_file_is_missing(
    tmp_path: Path, form: str
) -> None:
    saved(tmp_path, form)
    (tmp_path / "checkpoint").unlink()
    there, called = files(tmp_path), []
    manager = build(tmp_path, 1, format="npz", init_fn=lambda: called.append(1))
    for verb in (manager.restore_or_initialize, lambda: manager.latest_checkpoint):
        with pytest.raises(
            MissingFile, match=r"checkpoint is missing; next to it lie ckpt-1, ckpt-2\. Write"
        ):
            verb()
    assert called == [] and files(tmp_path) == there
    report: Any = manager.save()
    assert report.path == str(tmp_path / "ckpt-3"), "one who saves anyway overwrites none"
    assert {name: content for name, content in files(tmp_path).items() if name in there} == there


# Numbers


@pytest.mark.sample(5)
@pytest.mark.parametrize("there", FORMATS)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("background", [False, True])
def test_a_save_takes_the_first_number_above_its_counter_that_no_checkpoint_has(
    tmp_path: Path, there: str, form: str, background: bool
) -> None:
    """Of whatever format that checkpoint is."""
    ending = ".safetensors" if there == "safetensors" else ""  # else it is a folder
    for number in (1, 2, 4):
        sv.save(tmp_path / f"ckpt-{number}{ending}", {"a": [1.0]}, format=there)
    kept = files(tmp_path)
    w = sv.Variable(2.0)
    checkpoint, saved_as = sv.Checkpoint(w=w), []
    for _ in range(3):
        report: Any = checkpoint.save(tmp_path / "ckpt", format=form, background=background)
        report = report.join() if background else report
        saved_as.append(os.path.basename(report.path))
        with sv.open_checkpoint(report.path) as reader:
            assert f"ckpt-{reader.read('save_counter/.ATTRIBUTES/VARIABLE_VALUE')}" == saved_as[-1]
    assert saved_as == ["ckpt-3", "ckpt-5", "ckpt-6"]
    assert int(checkpoint.save_counter) == 6
    assert {name: content for name, content in files(tmp_path).items() if name in kept} == kept


def test_the_files_that_a_killed_save_left_are_no_checkpoint(tmp_path: Path) -> None:
    """Its number is used again, and its files go."""
    (tmp_path / "ckpt-1.svdata-00-00000-of-00001").write_bytes(b"half")
    assert sv.Checkpoint(w=sv.Variable(1.0)).save(tmp_path / "ckpt").path == str(
        tmp_path / "ckpt-1"
    )
    assert stems(tmp_path) == {"ckpt-1"} and len(os.listdir(tmp_path)) == 3


# Locks of processes that were killed

KILLED = """
import os, signal, sys
import shardvar as sv

class Killed:
    description = "ends the process"
    def assign(self, slices, capabilities):
        return sv.AllInOnePolicy().assign(slices, capabilities)

import shardvar.verbs.writing as writing
writing.write_checkpoint = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
checkpoint = sv.Checkpoint(w=sv.Variable([1.0]))
checkpoint.save_counter.assign(int(sys.argv[2]) - 1)
checkpoint.save(sys.argv[1])
"""


def test_the_lock_of_a_killed_save_goes_with_the_next_save_of_the_series(tmp_path: Path) -> None:
    """Though that has another number; the locks of other series, of living writers and of higher
    numbers stay."""
    program = [sys.executable, "-c", KILLED, str(tmp_path / "ckpt"), "7"]
    assert subprocess.run(program, env=ENVIRONMENT, timeout=60).returncode == -9
    for other in (".ckpt-30.lock", ".other-7.lock"):
        shutil.copy(tmp_path / ".ckpt-7.lock", tmp_path / other)
    checkpoint = sv.Checkpoint(w=sv.Variable([1.0]))
    checkpoint.save_counter.assign(7)
    with LocalStorage(str(tmp_path)).lock("ckpt-3"):
        assert checkpoint.save(tmp_path / "ckpt").path == str(tmp_path / "ckpt-8")
        locks = {name for name in os.listdir(tmp_path) if name.endswith(".lock")}
        assert locks == {".ckpt-3.lock", ".ckpt-30.lock", ".other-7.lock"}
