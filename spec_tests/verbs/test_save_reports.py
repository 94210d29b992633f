"""Reports of saves of a training: their seconds, ``on_saved``, and ``on_error='warn'``, which keeps the training."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    IncompleteCheckpoint,
    InconsistentTensor,
    StorageError,
    TargetExists,
    UnsupportedError,
)
from shardvar.verbs.background import Aftercare
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.training.step_records import Arrays

WAYS = False, True, "process"
STATE = {"w": np.ones(1000)}


def save(path: Path, background: bool | str, **options: Any) -> Any:
    made = Arrays().save(str(path), STATE, run="1", background=background, **options)
    return made.result() if background else made


@pytest.mark.parametrize("background", WAYS)
def test_a_report_has_the_seconds_and_the_callback_gets_it(
    background: bool | str, tmp_path: Path
) -> None:
    heard: list[Any] = []
    report = save(tmp_path / "m", background, on_saved=heard.append)
    assert heard == [report] and heard[0] is report and report.error is None
    assert 0 < report.blocked_seconds <= report.durable_seconds < 100
    assert (report.blocked_seconds == report.durable_seconds) is (background is False)
    told = json.loads(json.dumps(report.to_json()))
    assert told["durable_seconds"] == report.durable_seconds and "error" not in told
    plain = sv.save(tmp_path / "n", STATE)
    assert plain.durable_seconds is None and "durable_seconds" not in plain.to_json()


def test_the_wait_for_the_save_before_blocks(tmp_path: Path) -> None:
    goes_on = threading.Event()
    first = Arrays().save(
        str(tmp_path / "a"), STATE, run="1", background=True, on_saved=lambda _: goes_on.wait(60)
    )
    threading.Timer(0.3, goes_on.set).start()
    second = save(tmp_path / "b", True)
    assert first.result().blocked_seconds < 0.3 <= second.blocked_seconds + 0.1


@pytest.mark.parametrize("background", WAYS)
def test_a_failure_is_a_warning_and_a_report_and_the_next_save_works(
    background: bool | str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    path, heard = tmp_path / "file" / "m", list[Any]()
    with pytest.raises(StorageError) as raised:
        save(path, background, on_saved=heard.append)
    assert not heard and not caplog.records
    report = save(path, background, on_error="warn", on_saved=heard.append)
    assert heard == [report] and (report.path, report.nbytes) == (str(path), 0)
    assert (type(report.error), str(report.error)) == (raised.type, str(raised.value))
    text = f"{path} was not saved: {raised.value}"
    assert str(report) == text and [each.getMessage() for each in caplog.records] == [text]
    assert report.to_json()["error"] == str(raised.value)
    (tmp_path / "file").unlink()
    assert save(path, background, on_error="warn").error is None and sv.load(path).keys() == {"w"}


@pytest.mark.parametrize("background", WAYS)
def test_errors_of_the_program_are_raised(background: bool | str, tmp_path: Path) -> None:
    for options in ({"format": "x"}, {"metadata": {"a": 1}}, {"partition": 0}):
        with pytest.raises(ArgumentError):
            save(tmp_path / "m", background, on_error="warn", **options)
    with pytest.raises(
        ArgumentError, match=r"on_error='ignore' is unknown. Give 'raise' or 'warn'"
    ):
        save(tmp_path / "m", background, on_error="ignore")
    with pytest.raises(ArgumentTypeError, match="on_saved=3 is not a function"):
        save(tmp_path / "m", background, on_saved=3)


def test_the_failures_that_a_training_survives_are_of_the_machine() -> None:
    bears = Aftercare("warn").is_borne
    assert bears(StorageError("x")) and bears(IncompleteCheckpoint("x"))
    others = ArgumentError, UnsupportedError, TargetExists, InconsistentTensor, KeyboardInterrupt
    assert not any(bears(each("x")) for each in others)
    assert not Aftercare().is_borne(StorageError("x"))


@pytest.mark.parametrize("background", WAYS)
def test_steps_go_on_after_one_that_failed(
    background: bool | str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The place of a step is taken, and then the directory itself."""
    directory, heard = tmp_path / "run", list[Any]()
    steps = sv.SavedSteps(directory, keep_last=1, on_error="warn", on_saved=heard.append)

    def step(number: int) -> Any:
        made = steps.save(number, STATE, background=background)
        return made.result() if background else made

    assert step(1).error is None
    (directory / "step-2.svindex").mkdir()
    assert isinstance(step(2).error, StorageError)
    steps.wait()
    assert [each.number for each in steps.steps()] == [1]
    (directory / "step-2.svindex").rmdir()
    directory.rename(tmp_path / "away")
    directory.write_text("in the way")
    assert isinstance(step(3).error, StorageError)
    directory.unlink()
    (tmp_path / "away").rename(directory)
    assert step(4).error is None
    steps.wait()
    assert [each.number for each in steps.steps()] == [4]
    assert [each.error is None for each in heard] == [True, False, False, True]
    failures = [
        each.getMessage() for each in caplog.records if "was not saved" in each.getMessage()
    ]
    assert len(failures) == 2
    with pytest.raises(ArgumentError, match="Step 2 does not come after step 4"):
        step(2)


@pytest.mark.parametrize("background", WAYS)
def test_a_copy_is_durable_when_it_is_whole_in_the_second_place(
    background: bool | str, tmp_path: Path
) -> None:
    heard = list[tuple[int, float, float]]()

    def hear(report: WriteReport) -> None:
        newest = sv.SavedSteps(tmp_path / "there").newest()
        assert newest is not None and report.blocked_seconds and report.durable_seconds
        heard.append((newest.number, report.blocked_seconds, report.durable_seconds))

    steps = sv.SavedSteps(tmp_path / "here", durable=tmp_path / "there", on_saved=hear)
    for number in (1, 2):
        made = steps.save(number, STATE, background=background)
        report = made.result() if background else made
        steps.wait()
        assert heard[-1][0] == number
        assert heard[-1][1] == report.blocked_seconds and heard[-1][2] > report.durable_seconds


@pytest.mark.parametrize("background", WAYS)
def test_a_copy_that_fails_keeps_the_training_only_if_it_may(
    background: bool | str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "there").write_text("in the way")
    (tmp_path / "here").mkdir()
    heard = list[Any]()
    places: dict[str, Any] = {"directory": tmp_path / "here", "durable": tmp_path / "there"}
    steps = sv.SavedSteps(**places, on_error="warn", on_saved=heard.append)
    for number in (1, 2):
        made = steps.save(number, STATE, background=background)
        assert (made.result() if background else made).error is None
        steps.wait()
    lines = [each.getMessage().partition(" was not written")[0] for each in caplog.records]
    assert lines == [f"{tmp_path}/there/step-{number}" for number in (1, 2)] and not heard
    steps = sv.SavedSteps(**places)
    steps.save(3, STATE)
    with pytest.raises(StorageError, match="something else has this name"):
        steps.wait()


def test_functions_without_these_options_are_refused(tmp_path: Path) -> None:
    class Own:
        def save(self, path: str, state: Any, *, run: str, metadata: Any) -> None: ...
        def load(self, path: str) -> None: ...
        def processes(self) -> tuple[int, int]:
            return 0, 1

    sv.SavedSteps(tmp_path, using=Own())  # type: ignore[arg-type]
    for options in ({"on_error": "warn"}, {"on_saved": print}):
        with pytest.raises(UnsupportedError, match="the function that saves has no argument on_"):
            sv.SavedSteps(tmp_path, using=Own(), **options)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="on_error='x' is unknown"):
        sv.SavedSteps(tmp_path, on_error="x")
