"""Reports of saves of a training: their seconds, ``on_saved``, and ``on_error='warn'``, which keeps the training."""

import json
import threading
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
    IncompleteCheckpoint,
    InconsistentTensor,
    StillSaving,
    StorageError,
    TargetExists,
    UnsupportedError,
)
from shardvar.verbs import background as background_module
from shardvar.verbs.background import Aftercare, Staging, Turn, start_save
from shardvar.verbs.reports import WriteReport
from shardvar.verbs.training.step_records import Arrays


@pytest.fixture(params=[False, True, "process"])
def background(request: pytest.FixtureRequest) -> Any:
    """The ways of a save."""
    return request.param


STATE = {"w": np.ones(1000)}


def save(path: Path, background: Any, **options: Any) -> Any:
    made = Arrays().save(str(path), STATE, run="1", background=background, **options)
    return made.result() if background else made


def save_step(steps: sv.SavedSteps, number: int, background: Any) -> Any:
    made = steps.save(number, STATE, background=background)
    return made.result() if background else made


def test_a_report_has_the_seconds_and_the_callback_gets_it(background: Any, tmp_path: Path) -> None:
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


def test_a_failure_is_a_warning_and_a_report_and_the_next_save_works(
    background: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
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


def test_errors_of_the_program_are_raised(background: Any, tmp_path: Path) -> None:
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


def test_steps_go_on_after_one_that_failed(
    background: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The place of a step is taken, and then the directory itself."""
    directory, heard = tmp_path / "run", list[Any]()
    steps = sv.SavedSteps(directory, keep_last=1, on_error="warn", on_saved=heard.append)

    assert save_step(steps, 1, background).error is None
    (directory / "step-2.svindex").mkdir()
    assert isinstance(save_step(steps, 2, background).error, StorageError)
    steps.wait()
    assert [each.number for each in steps.steps()] == [1]
    (directory / "step-2.svindex").rmdir()
    directory.rename(tmp_path / "away")
    directory.write_text("in the way")
    assert isinstance(save_step(steps, 3, background).error, StorageError)
    directory.unlink()
    (tmp_path / "away").rename(directory)
    assert save_step(steps, 4, background).error is None
    steps.wait()
    assert [each.number for each in steps.steps()] == [4]
    assert [each.error is None for each in heard] == [True, False, False, True]
    assert caplog.text.count("was not saved") == 2
    with pytest.raises(ArgumentError, match="Step 2 does not come after step 4"):
        save_step(steps, 2, background)


def test_a_copy_is_durable_when_it_is_whole_in_the_second_place(
    background: Any, tmp_path: Path
) -> None:
    heard = list[tuple[int, float, float]]()

    def hear(report: WriteReport) -> None:
        newest = sv.SavedSteps(tmp_path / "there").newest()
        assert newest is not None and report.blocked_seconds and report.durable_seconds
        heard.append((newest.number, report.blocked_seconds, report.durable_seconds))

    steps = sv.SavedSteps(tmp_path / "here", durable=tmp_path / "there", on_saved=hear)
    for number in (1, 2):
        report = save_step(steps, number, background)
        steps.wait()
        assert heard[-1][0] == number
        assert heard[-1][1] == report.blocked_seconds and heard[-1][2] > report.durable_seconds


def test_a_copy_that_fails_keeps_the_training_only_if_it_may(
    background: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "there").write_text("in the way")
    (tmp_path / "here").mkdir()
    heard = list[Any]()
    places: dict[str, Any] = {"directory": tmp_path / "here", "durable": tmp_path / "there"}
    steps = sv.SavedSteps(**places, on_error="warn", on_saved=heard.append)
    for number in (1, 2):
        assert save_step(steps, number, background).error is None
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


# --- Staging: places for values in memory that is kept, and copies into them

REPORT: Any = "a report"


@given(rounds=st.lists(st.lists(st.integers(0, 300), max_size=6), min_size=1, max_size=4))
def test_places_are_apart_and_aligned(rounds: list[list[int]]) -> None:
    memory = Staging()
    for sizes in rounds:
        places = memory.places(sizes)
        assert [place.nbytes for place in places] == sizes
        for number, place in enumerate(places):
            place[:] = number
            assert place.ctypes.data % 8 == 0 or not place.nbytes
        for number, place in enumerate(places):
            assert (place == number).all()


def test_memory_is_kept_while_it_fits_and_given_back_when_it_is_much_larger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background_module, "_PORTION_NBYTES", 10)
    made: list[int] = []

    def new(nbytes: int) -> Any:
        made.append(nbytes)
        return np.empty(nbytes, np.uint8)

    memory = Staging(new)
    for sizes in ([640], [320, 64], [640], [704], [64, 64], [0]):
        memory.places(sizes)
    assert made == [640, 704, 128, 0]
    memory.places([64])
    memory.clear()
    assert memory.nbytes == 0


def test_values_that_take_more_than_the_most_are_refused() -> None:
    memory = Staging()
    assert len(memory.places([64, 64], most=128)) == 2
    with pytest.raises(ArgumentError, match=r"take 192 B in.*staging_nbytes is 128 B") as raised:
        memory.places([64, 1, 64], most=128)
    assert "without background" in raised.value.remedy and memory.nbytes == 128


@given(
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=5),
    portion=st.integers(1, 200),
)
def test_what_is_copied_equals_the_values(shapes: list[tuple[int, ...]], portion: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(background_module, "_PORTION_NBYTES", portion)
        values = [np.arange(np.prod(shape), dtype=np.int16).reshape(shape).T for shape in shapes]
        copies = Staging().copy(values)
    assert all(map(np.array_equal, copies, values))


def test_the_next_save_waits_or_is_an_error_while_one_is_under_way() -> None:
    turn, goes_on = Turn(), threading.Event()
    turn.take_next("wait")
    turn.name("run/step-1")
    pending = start_save("run/step-1", lambda: goes_on.wait(60) and REPORT, turn, is_kept=True)
    with pytest.raises(StillSaving, match="run/step-1 is still being saved"):
        turn.take_next("raise")
    threading.Timer(0.05, goes_on.set).start()
    turn.take_next("wait")
    assert pending.done() and pending.result() == REPORT
    turn.give_back()
    turn.take_next("raise")
    turn.give_back()
    with pytest.raises(ArgumentError, match="busy='never'"):
        turn.take_next("never")


@pytest.mark.parametrize("is_joined", [True, False])
def test_the_next_save_raises_the_error_of_the_last_unless_it_was_joined(is_joined: bool) -> None:
    turn = Turn()

    def fail() -> Any:
        raise StorageError("The disk is full.", "Free some space.")

    turn.take_next("wait")
    pending = start_save("run/step-1", fail, turn, is_kept=True)
    if is_joined:
        with pytest.raises(StorageError, match="full"):
            pending.result()
    else:
        with pytest.raises(StorageError, match="full"):
            turn.take_next("wait")
    turn.take_next("raise")  # an error is raised once
    turn.give_back()
