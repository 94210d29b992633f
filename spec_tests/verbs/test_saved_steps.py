"""sv.SavedSteps: one process with bad input, and jobs of several processes."""

import os
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointNotFound,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    LockHeld,
    MissingFile,
    StorageError,
    UnsupportedError,
)
from shardvar.verbs.training import saved_steps
from shardvar.verbs.training.resuming import Meetings
from shardvar.verbs.training.step_records import (
    RestoredStep,
    SavedStep,
)
from spec_tests.helpers.damage import flip, flip_values
from spec_tests.helpers.memory_bucket import CountingBucket, MemoryBucket, in_bucket
from spec_tests.helpers.shared_saves import save_one
from spec_tests.helpers.step_jobs import ROWS, Divided, table, together
from spec_tests.helpers.thoroughness import EXHAUSTIVE

W = {"w": np.ones(3)}
FORMATS = ["shardvar", "torch", "safetensors", "zarr"]
QUICK = (0.01, 0.02, 0.05, 1.5)
"""The seconds between two looks at a bucket."""


def save(steps: sv.SavedSteps, *numbers: int, **options: Any) -> None:
    for number in numbers:
        steps.save(number, {"w": np.full(600, number)}, **options)


def saved(folder: Any, *numbers: int, **options: Any) -> sv.SavedSteps:
    steps = sv.SavedSteps(folder)
    save(steps, *numbers, **options)
    return steps


def restored(folder: Path, **options: Any) -> sv.SavedSteps:
    steps = sv.SavedSteps(folder, **options)
    steps.restore()
    return steps


def linked(folder: Path) -> Path:
    link = folder.parent / f"{folder.name}-link"
    link.symlink_to(folder)
    return link


WITHOUT_BASE: Any = SimpleNamespace(
    save=lambda path, state, run, metadata: sv.save(path, state, metadata=metadata),
    load=sv.load,
    processes=lambda: (0, 1),
)


def numbers(steps: sv.SavedSteps) -> list[int]:
    return [step.number for step in steps.steps()]


def refuse(what: object) -> None:
    raise StorageError(f"{what}: the server does not answer.", "Wait.")


# One process


@pytest.mark.parametrize("place", ["disk", "bucket"])
@pytest.mark.parametrize("form", FORMATS)
def test_every_format_with_metadata_keeps_steps(tmp_path: Path, form: str, place: str) -> None:
    with in_bucket(bucket := MemoryBucket()):
        folder = "s3://bucket/run" if place == "bucket" else str(tmp_path)
        steps = sv.SavedSteps(folder, keep_last=2, keep_best=1)
        for number, value in enumerate([0.5, 0.1, 0.4, 0.3, 0.2]):
            save(steps, number, value=value, format=form)
        assert numbers(steps) == [1, 3, 4]
        names = os.listdir(tmp_path) or [key.split("/")[1] for key in bucket.files]
        assert {name.partition(".")[0] for name in names} == {"step-1", "step-3", "step-4"}
        if place == "disk":
            assert os.path.basename(sv.newest_checkpoint(folder)).partition(".")[0] == "step-4"
        again = sv.SavedSteps(folder)
        assert again.restore().loaded["w"][0] == 4 and again.best() == steps.best()


@pytest.mark.parametrize("form", ["npz", "tensorflow", "pt"])
def test_a_format_without_metadata_keeps_steps_without_values(tmp_path: Path, form: str) -> None:
    steps = sv.SavedSteps(tmp_path, keep_last=1)
    with pytest.raises(UnsupportedError, match=f"The format {form} keeps no metadata"):
        save(steps, 1, value=0.5, format=form)
    assert os.listdir(tmp_path) == []
    save(steps, 1, 2, format=form)
    assert numbers(steps) == [2]


def test_the_beginning_is_none(tmp_path: Path) -> None:
    """Where there is no directory, none is made."""
    steps = sv.SavedSteps(tmp_path / "not there")
    assert steps.restore() is steps.newest() is steps.best() is None
    assert steps.steps() == [] == os.listdir(tmp_path)


def test_a_damaged_step_is_passed_over_and_never_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that was not finished is passed over too, and saved again."""
    saved(tmp_path, 1, 2, 3)
    flip_values(tmp_path / "step-3")
    (tmp_path / "step-2.svindex").write_bytes(b"cut off")
    save_one(tmp_path / "step-4", [W, W], 0, run="step-4")
    steps = sv.SavedSteps(tmp_path, keep_last=1)
    found = steps.restore(verify="full")
    assert isinstance(found, RestoredStep) and isinstance(found, SavedStep)
    assert (found.number, found.loaded["w"][0]) == (1, 1)
    told = [text.split(": ")[1] for text in caplog.messages]
    assert sorted(told) == [f"passed over step-{number}" for number in (2, 3, 4)]
    assert "passed over step-4: It was not finished" in caplog.text
    save(steps, 4, 5)
    assert numbers(steps) == [5]
    # A restarted job knows it still, and saves that step again when it comes there.
    again = restored(tmp_path, keep_last=1)
    save(again, 6)
    assert numbers(again) == [6]
    indexes = {name for name in os.listdir(tmp_path) if name.endswith(".svindex")}
    assert indexes == {"step-2.svindex", "step-3.svindex", "step-6.svindex"}
    # It may need any file. Once it is removed, as the warning says, what was kept for it goes.
    assert "may need them: 'step-2.svindex'. Remove or repair these." in caplog.text
    (tmp_path / "step-2.svindex").unlink()
    save(again, 7)
    assert {name.partition(".")[0] for name in os.listdir(tmp_path)} == {"step-3", "step-7"}


@pytest.mark.parametrize("text", ["x 3", "-1 3", "3.0", "9" * 19, "3 3"])
def test_a_note_of_damage_that_is_no_list_of_numbers_is_passed_over(
    tmp_path: Path, text: str
) -> None:
    """Another program may have written it."""
    sv.save(tmp_path / "step-1", W, metadata={"shardvar.damaged": text})
    assert numbers(sv.SavedSteps(tmp_path)) == [1]


def test_a_step_that_only_a_later_release_reads_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows that it is damaged."""
    steps = saved(tmp_path, 1, 2)
    real = saved_steps.find_steps

    def later(*arguments: Any) -> Any:
        found = real(*arguments)
        fault = UnsupportedError("Version 9 is unknown.", "Install a later release.")
        return found | {2: replace(found[2], fault=fault)}

    monkeypatch.setattr(saved_steps, "find_steps", later)
    with pytest.raises(UnsupportedError, match="Version 9"):
        steps.restore()


def test_a_chosen_step_is_restored_or_an_error(tmp_path: Path) -> None:
    steps = saved(tmp_path, 1, 2, 3)
    assert steps.restore(step=2).loaded["w"][0] == 2
    with pytest.raises(CheckpointNotFound):
        steps.restore(step=7)
    flip_values(tmp_path / "step-2")
    with pytest.raises(CorruptCheckpoint):
        steps.restore(step=2)
    [file] = tmp_path.glob("step-1.svdata-*")
    file.unlink()
    with pytest.raises(MissingFile):
        steps.restore(step=1)
    # To go on from an earlier step, the later ones must leave.
    steps = sv.SavedSteps(tmp_path)
    with pytest.raises(ArgumentError, match="Step 2 does not come after step 3"):
        save(steps, 2)
    sv.remove(steps.path_of(3))
    steps.save(4, W)
    assert numbers(steps) == [2, 4]


def test_an_error_of_the_load_is_the_callers(tmp_path: Path) -> None:
    """Arguments that do not fit say nothing about the step."""
    steps = saved(tmp_path, 1, 2)
    with pytest.raises(sv.errors.UnknownKey):
        steps.restore(["x"])
    assert steps.restore(["w"]).number == 2


def test_a_step_that_cannot_be_removed_is_removed_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = sv.SavedSteps(tmp_path, keep_last=1)
    save(steps, 1)
    with monkeypatch.context() as patch:
        patch.setattr(saved_steps, "remove_found", refuse)
        save(steps, 2)
    assert "step-1 could not be removed: " in caplog.text and "does not answer." in caplog.text
    assert numbers(steps) == [1, 2]
    save(steps, 3)
    assert numbers(steps) == [3]


def test_steps_lie_in_the_folders_that_a_trainer_makes(tmp_path: Path) -> None:
    """And go with them."""
    steps = sv.SavedSteps(tmp_path, keep_last=2)
    for number in (1, 2, 3):
        os.mkdir(steps.path_of(number))
        steps.save(number, {"w": np.full(3, number)})
    assert numbers(steps) == [2, 3] and sorted(os.listdir(tmp_path)) == ["step-2", "step-3"]
    assert steps.restore().loaded["w"].tolist() == [3, 3, 3]


def test_files_of_the_user_stay(tmp_path: Path) -> None:
    """Also in the folder of a step, and under names that begin like a step's."""
    steps = sv.SavedSteps(tmp_path, keep_last=1)
    steps.save(1, W, format="torch")
    mine = [tmp_path / "step-1" / "notes.txt", tmp_path / "step-1.txt", tmp_path / "step-2-plot"]
    for path in mine:
        path.write_text("mine")
    (tmp_path / "step-2").mkdir()
    (tmp_path / "step-2" / "notes.txt").write_text("mine")
    save(steps, 3, 4, format="torch")
    assert numbers(steps) == [4]
    assert sorted(os.listdir(tmp_path)) == [
        "step-1",
        "step-1.txt",
        "step-2",
        "step-2-plot",
        "step-4",
    ]
    assert os.listdir(tmp_path / "step-1") == os.listdir(tmp_path / "step-2") == ["notes.txt"]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda d: sv.SavedSteps(d, keep_last=0), ArgumentError, "keep_last=0"),
        (lambda d: sv.SavedSteps(d, keep_last=True), ArgumentError, "keep_last=True"),
        (lambda d: sv.SavedSteps(d, keep_every=1.5), ArgumentError, "keep_every=1.5"),
        (lambda d: sv.SavedSteps(d, keep_best=-1), ArgumentError, "keep_best=-1"),
        (lambda d: sv.SavedSteps(d, keep_best=None), ArgumentError, "keep_best=None"),
        (lambda d: sv.SavedSteps(d, mode="least"), ArgumentError, "mode='least'"),
        (lambda d: sv.SavedSteps(d, name="../step"), ArgumentError, "bare name"),
        (lambda d: sv.SavedSteps(d, name=""), ArgumentError, "bare name"),
        (lambda _: sv.SavedSteps(7), ArgumentTypeError, "7 is not a path"),
        (lambda d: restored(d).save(-1, {}), ArgumentError, "Step -1"),
        (lambda d: restored(d).save(1.0, {}), ArgumentTypeError, "1.0"),
        (lambda d: restored(d).save(True, {}), ArgumentTypeError, "True"),
        (lambda d: restored(d).save(3, {}, "low"), ArgumentTypeError, "value='low'"),
        (lambda d: restored(d).save(3, {}, [0.5]), ArgumentTypeError, "is not a number"),
        (lambda d: restored(d).save(1, {}), ArgumentError, "Step 1 does not come after step 2"),
        (lambda d: sv.SavedSteps(d).save(2, {}), ArgumentError, "Restore before you save"),
        (
            lambda d: restored(d, using=WITHOUT_BASE).save(3, W, incremental=True),
            UnsupportedError,
            "has no argument base",
        ),
        (lambda d: sv.SavedSteps(d, durable=d), ArgumentError, "cannot hold copies"),
        (lambda d: sv.SavedSteps(d, durable=f"{d}/"), ArgumentError, "cannot hold copies"),
        (lambda d: sv.SavedSteps(d, durable=linked(d)), ArgumentError, "cannot hold copies"),
        (
            lambda d: sv.SavedSteps(d, durable=sv.SavedSteps(d / "copies", name="checkpoint")),
            ArgumentError,
            "same name=",
        ),
        (lambda d: saved(d / "step-2.svindex", 1), StorageError, "step-2.svindex"),
    ],
)
def test_bad_input_is_one_error_and_changes_nothing(
    tmp_path: Path, call: Callable[[Path], Any], error: type[Exception], text: str
) -> None:
    saved(tmp_path, 2)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(error, match=text):
        call(tmp_path)
    assert sorted(os.listdir(tmp_path)) == before


# Saves in the background, and bases


class Background:
    """Functions whose save ends when its handle is asked."""

    def __init__(self) -> None:
        self.bases: list[Any] = []

    def save(self, path: str, state: Any, *, background: bool = False, **options: Any) -> Any:
        self.bases.append(options.pop("base", None))
        options.pop("run")

        def work() -> Any:
            return sv.save(path, state, **options)

        return SimpleNamespace(result=work) if background else work()

    load = staticmethod(sv.load)

    def processes(self) -> tuple[int, int]:
        return 0, 1


def test_a_step_in_the_background_counts_when_it_is_done(tmp_path: Path) -> None:
    with sv.SavedSteps(tmp_path, using=Background(), keep_last=1) as steps:
        save(steps, 1, background=True)
        assert numbers(steps) == []
        save(steps, 2, background=True)
        assert numbers(steps) == [1], "the old one stays until the new one is whole"
        steps.wait()
        assert numbers(steps) == [2]
        save(steps, 3, background=True)
        assert steps.restore().number == 3, "a restore waits"
        save(steps, 4, background=True)
    assert numbers(steps) == [4]


def test_a_failed_save_removes_nothing_and_one_in_the_background_fails_the_next_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    steps, bad = sv.SavedSteps(tmp_path, using=Background(), keep_last=1), {"w": object()}
    save(steps, 1)
    with pytest.raises(ArgumentError):
        steps.save(2, bad)
    for call in (steps.wait, steps.restore, lambda: save(steps, 3)):
        steps.save(2, bad, background=True)
        with pytest.raises(ArgumentError):
            call()
        assert numbers(steps) == [1]
    steps.save(2, bad, background=True)
    with pytest.raises(KeyError, match="of the block"), steps:
        raise KeyError("of the block")
    assert "the last save failed" in caplog.text


def test_an_incremental_step_has_the_newest_whole_one_as_its_base(tmp_path: Path) -> None:
    using = Background()
    steps = sv.SavedSteps(tmp_path, using=using)
    save(steps, 1, 2, 2, 3, incremental=True)
    flip_values(tmp_path / "step-3")
    again = sv.SavedSteps(tmp_path, using=using)
    again.restore()
    again.save(4, W, incremental=True)
    names = [base and os.path.basename(base) for base in using.bases]
    assert names == [None, "step-1", "step-1", "step-2", "step-2"]


def test_an_incremental_step_reads_and_writes_no_values_that_have_not_changed() -> None:
    with in_bucket(bucket := MemoryBucket()):
        steps = sv.SavedSteps("s3://bucket/run")
        for number in range(2):
            bucket.ranges.clear()
            state = {"w": np.ones(10**5), "n": np.array(number)}
            report = steps.save(number, state, incremental=True)
        assert sum(nbytes for _, nbytes in bucket.ranges) < 10**4 and report.nbytes == 8


# Several processes


@pytest.mark.parametrize("slow", [0, 2, None])
def test_no_step_vanishes_under_a_process_that_is_late(
    tmp_path: Path, slow: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one step is kept, and each process restores it again and again; in a bucket, if none is
    slow."""
    monkeypatch.setattr("shardvar.verbs.together.run._BUCKET_SECONDS", QUICK)
    folder = tmp_path if slow is not None else "s3://bucket/run"

    def work(process: int) -> list[int]:
        using = Divided(process, 3, slow=process == slow)
        steps = sv.SavedSteps(folder, using=using, keep_last=1)
        restored = []
        for number in (1, 2, 3):
            steps.save(number, table(number))
            found = steps.restore()
            start, stop = using.rows
            assert np.array_equal(found.loaded, table(found.number)[start:stop]), "a mixture"
            restored.append(found.number)
        return restored

    with in_bucket(bucket := MemoryBucket()):
        assert together(3, work) == [[1, 2, 3]] * 3
    names = [name for name in os.listdir(tmp_path) or bucket.files if "/." not in name]
    assert {Path(name).name.partition(".")[0] for name in names} - {""} == {"step-3"}


@pytest.mark.parametrize("process", [0, 2] if EXHAUSTIVE else [2])
def test_damage_that_one_process_meets_is_passed_over_by_all(tmp_path: Path, process: int) -> None:
    steps_of = lambda each: sv.SavedSteps(tmp_path, using=Divided(each, 3), timeout=60)  # noqa: E731
    for number in (2, 3):
        together(3, lambda each, number=number: steps_of(each).save(number, table(number)))
    files = sorted(tmp_path.glob("step-3.svdata-*"), key=lambda path: path.name[-14:])
    flip(files[process])
    assert together(3, lambda each: steps_of(each).restore().number) == [2] * 3


def test_a_process_that_fails_to_load_is_an_error_of_all(tmp_path: Path) -> None:
    sv.save(tmp_path / "step-1", {"table": table(1)})

    class Failing(Divided):
        def load(self, path: str) -> Any:
            if self.process == 1:
                raise ArgumentError("The state lacks a key.", "Give it.")
            return super().load(path)

    def work(process: int) -> Any:
        return sv.SavedSteps(tmp_path, using=Failing(process, 2)).restore()

    first, second = together(2, work)
    assert isinstance(first, StorageError) and "Process 1 could not load" in str(first)
    assert isinstance(second, ArgumentError) and "lacks a key" in str(second)


def test_a_process_that_does_not_come_is_named(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    steps = sv.SavedSteps(tmp_path, using=Divided(0, 2), timeout=0.3)
    with pytest.raises(IncompleteCheckpoint, match=r"Process 1 of 2 did not come within 0.3 s"):
        steps.restore()


def test_processes_that_find_other_steps_do_not_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 1)
    steps = sv.SavedSteps(tmp_path, using=Divided(0, 2))
    monkeypatch.setattr(Meetings, "hold", lambda _, mine: [mine, []])
    with pytest.raises(StorageError, match="Process 0 finds step 1 in .*, and process 1 does not"):
        steps.restore()


def test_processes_restore_the_newest_step_that_all_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An old job commits step 3 after one of them has looked."""
    steps = sv.SavedSteps(tmp_path, using=Divided(0, 2))
    for number in (1, 2, 3):
        sv.save(tmp_path / f"step-{number}", {"table": table(number)})
    answers = iter([[[1, 0, 2, 0, 3, 0], [1, 0, 2, 0]], [[0], [0]]])
    monkeypatch.setattr(Meetings, "hold", lambda *_: next(answers))
    assert steps.restore().number == 2
    assert "passed over step-3: Other processes do not find it whole." in caplog.text
    with pytest.raises(LockHeld, match="step-3 was saved by another job"):
        steps.save(3, table(3))


@pytest.mark.parametrize("place", ["disk", "disk to read", "bucket", "bucket to read"])
@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_jobs_that_restore_at_once_find_the_newest_step_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int, place: str
) -> None:
    """Also where none of them can write, and where one process finds damage: all pass it over."""
    monkeypatch.setattr("shardvar.verbs.together.run._BUCKET_SECONDS", QUICK)
    bucket = MemoryBucket()
    folder = str(tmp_path) if "disk" in place else "s3://bucket/run"

    def files() -> list[str]:
        return sorted(bucket.files if "bucket" in place else os.listdir(tmp_path))

    def refuse(*_: Any) -> None:
        raise StorageError("You cannot write here.", "Ask for the right.")

    def restore(number: int) -> Any:
        process = number % 2

        class Damaged(Divided):
            def load(self, path: str) -> Any:
                if process and path.endswith("step-3") and "read" not in place:
                    raise CorruptCheckpoint("A byte is wrong.", "Use another step.")
                return super().load(path)

        steps = sv.SavedSteps(folder, using=Damaged(process, 2), timeout=60)
        return [
            (found.number, found.loaded.tolist()) for found in (steps.restore(), steps.restore())
        ]

    with in_bucket(bucket):
        for number in (1, 2, 3):
            sv.save(f"{folder}/step-{number}", {"table": table(number)})
        before = files()
        if "read" in place:
            monkeypatch.setattr(Meetings, "_put", refuse)
        told = together(2 * jobs, restore)
        assert files() == before
    newest = 3 if "read" in place else 2
    halves = table(newest)[: ROWS // 2].tolist(), table(newest)[ROWS // 2 :].tolist()
    assert told == [[(newest, halves[number % 2])] * 2 for number in range(2 * jobs)]


def test_a_room_of_processes_that_are_dead_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sv.save(tmp_path / "step-1", {"table": table(1)})
    before = time.time() - 60
    with monkeypatch.context() as earlier:  # rooms of one second have no order
        earlier.setattr(time, "time", lambda: before)
        dead = Meetings(str(tmp_path), "step", Divided(0, 2), 60)._open(2)

    def restore(process: int) -> Any:
        return sv.SavedSteps(tmp_path, using=Divided(process, 2), timeout=60).restore().number

    assert together(2, restore) == [1, 1]
    assert dead and not [*tmp_path.glob(".step-restore*")]


@pytest.mark.parametrize("other", [None, 1.5])
def test_one_process_may_give_the_value_and_no_other_another_one(
    tmp_path: Path, other: float | None
) -> None:
    def work(process: int) -> Any:
        steps = sv.SavedSteps(tmp_path, using=Divided(process, 2))
        return steps.save(1, table(1), other if process else 0.5)

    found = together(2, work)
    newest = sv.SavedSteps(tmp_path).newest()
    if other is None:
        assert newest is not None and newest.value == 0.5
    else:
        assert all(isinstance(e, ArgumentError) and "shardvar.value" in str(e) for e in found)
        assert newest is None


# Buckets


@pytest.mark.parametrize(
    ("form", "most"),
    [("shardvar", 25), ("safetensors", 15), ("torch", 30), ("zarr", 48), ("orbax", 50)],
)
def test_a_save_takes_the_same_requests_however_many_steps_a_bucket_keeps(
    form: str, most: int
) -> None:
    counts = []
    for kept in (2, 9):
        with in_bucket(bucket := CountingBucket()):
            steps = sv.SavedSteps("s3://bucket/run", keep_last=kept)
            for number in range(kept + 3):
                bucket.counts.clear()
                save(steps, number, format=form)
            counts.append(bucket.counts.total())
            # What is known of a step is known of these files of it.
            assert len(steps.steps()) == kept
            del bucket.files[max(key for key in bucket.files if f"/step-{number}" in key)]
            assert len(steps.steps()) == kept - 1
    assert counts[0] == counts[1] <= most


class Tiers:
    """Steps on a disk, and their copies in a bucket."""

    def __init__(self, folder: Path, form: str) -> None:
        self.folder, self.form, self.bucket = folder, form, MemoryBucket()

    def job(self) -> sv.SavedSteps:
        durable = sv.SavedSteps("s3://bucket/run", keep_last=2)
        return sv.SavedSteps(self.folder, durable=durable, keep_last=1)

    def save(self, job: sv.SavedSteps, number: int) -> None:
        """Save a step, and wait for its copy."""
        job.save(number, {"w": np.full(999, number)}, format=self.form)
        job.wait()

    def numbers(self) -> tuple[list[int], list[int]]:
        """The steps on the disk, and in the bucket."""
        return numbers(sv.SavedSteps(self.folder)), numbers(sv.SavedSteps("s3://bucket/run"))

    def damage(self, number: int) -> None:
        """Change a byte on the disk where a load finds it, or cut one off."""
        files = [each for each in self.folder.rglob("*") if f"step-{number}" in str(each)]
        largest = max(filter(Path.is_file, files), key=lambda each: each.stat().st_size)
        flip(largest)
        if self.form not in ("shardvar", "torch"):
            os.truncate(largest, largest.stat().st_size - 1)


@pytest.mark.parametrize("form", FORMATS)
def test_the_nearest_whole_step_of_two_places_is_restored(tmp_path: Path, form: str) -> None:
    tiers = Tiers(tmp_path / "run", form)
    with in_bucket(tiers.bucket):
        job = tiers.job()
        for number in (1, 2, 3):
            tiers.save(job, number)
        assert tiers.numbers() == ([3], [2, 3])
        assert tiers.job().restore().path == str(tiers.folder / "step-3")
        # The step on the disk is damaged, and its copy is not.
        tiers.damage(3)
        assert tiers.job().restore().loaded["w"].tolist() == [3] * 999
        # The disk is lost.
        shutil.rmtree(tiers.folder)
        job = tiers.job()
        found = job.restore()
        assert (found.path, found.loaded["w"][0]) == ("s3://bucket/run/step-3", 3)
        with pytest.raises(ArgumentError, match="does not come after step 3"):
            tiers.save(job, 2)
        # A step whose copy was begun stays on the disk, and is restored from there.
        tiers.bucket.gate = refuse
        with pytest.raises(StorageError, match="does not answer"):
            tiers.save(job, 4)
        tiers.bucket.gate = lambda _: None
        assert tiers.numbers() == ([4], [2, 3])
        job = tiers.job()
        assert job.restore().path == str(tiers.folder / "step-4")
        tiers.save(job, 5)
        assert tiers.numbers() == ([5], [3, 5])


def test_a_step_stays_until_it_is_copied_or_a_newer_one_is_to_be(tmp_path: Path) -> None:
    tiers = Tiers(tmp_path / "run", "shardvar")
    has_begun, is_open = threading.Event(), threading.Event()

    def gate(_: str) -> None:
        has_begun.set()
        assert is_open.wait(60)

    tiers.bucket.gate = gate
    with in_bucket(tiers.bucket):
        job = tiers.job()
        for number in (1, 2, 3, 4):
            job.save(number, {"w": np.full(9, number)})
            assert has_begun.wait(60)
        assert numbers(sv.SavedSteps(tiers.folder)) == [1, 3, 4]
        is_open.set()
        job.wait()
        # The first copy was under way; of the steps after it, the last one was awaited.
        assert tiers.numbers() == ([4], [1, 4])
