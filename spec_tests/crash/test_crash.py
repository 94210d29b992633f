"""What is left behind by a writer that is killed, interrupted or refused by the disk, at every step
of every format.

The steps are those of ``faulty``: each call that changes the directory. For every step one run ends
there; the old checkpoint or the new one must stand, whole, and whoever writes next must find the
way free.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    CheckpointNotFound,
    MissingFile,
    StorageError,
    TargetExists,
)
from spec_tests.helpers.damage import flip
from spec_tests.helpers.faulty_storage import (
    CUTS,
    FORMATS,
    NEW,
    OLD,
    Fault,
    Killed,
    assert_clean,
    failing,
    full,
    is_same,
    reshard,
    save,
    state,
)
from spec_tests.helpers.programs import ENVIRONMENT
from spec_tests.helpers.thoroughness import EXHAUSTIVE, phase, stride, turn

Run = Callable[[Path], Any]


def steps(
    tmp_path: Path,
    run: Run,
    prepare: Run,
    kind: Callable[[], BaseException],
    after: bool = False,
    in_threads: bool = False,
    every: int = 3,
) -> Iterator[Any]:
    """For each step of ``run``: the directory in which one run came to its end there, and that
    run's fault.

    A write in which it dies has written some of its bytes: none, one, half of them or all but one,
    in turns. ``make crash`` tries all four at each write, and each step where others try one of ``every``.
    """
    prepared = Path(mkdtemp(dir=tmp_path))
    with failing(prepared, Fault(-1)):
        prepare(prepared)
    # A journal believes in its own file only, and in no copy.
    has_journals = any(name.endswith(".done") for name in os.listdir(prepared))
    for at in range(phase(every), 200, stride(every)):
        for cut in turn(CUTS, at):
            directory = tmp_path / str(at)
            if has_journals:
                directory.mkdir()
                with failing(directory, Fault(-1)):
                    prepare(directory)
            else:
                shutil.copytree(prepared, directory)
            fault = Fault(at, kind, after, cut)
            try:
                with failing(directory, fault, in_threads):
                    run(directory)
            except (Killed, StorageError, KeyboardInterrupt):
                pass
            if fault.taken <= at:
                return
            yield directory, fault
            shutil.rmtree(directory)
            if not fault.is_cut:
                break
    pytest.fail("the run does not come to its end")


def nothing(directory: Path) -> None:
    """There is nothing in the directory."""


def old_of(form: str) -> Run:
    return lambda directory: save(directory, form, OLD)


@pytest.mark.parametrize(
    ("before", "after"), [("safetensors set", "safetensors"), ("safetensors", "safetensors set")]
)
def test_one_file_in_the_place_of_a_set_is_two_steps_and_is_asked_for(
    before: str, after: str, tmp_path: Path
) -> None:
    """And the other way round: between them there are both, each whole by its own name, and then
    the new one alone."""
    save(tmp_path, before, OLD)
    with pytest.raises(TargetExists, match="force"):
        save(tmp_path, after, NEW)
    assert state(tmp_path, before) == "old"
    old, new = (
        {"safetensors": "ck.safetensors", "safetensors set": "ck.safetensors.index.json"},
        set(),
    )
    run = partial(save, form=after, tensors=NEW, force=True)
    for directory, fault in steps(tmp_path, run, old_of(before), Killed, every=1):
        names = [old[form] for form in (before, after) if (directory / old[form]).exists()]
        found = ["old" if is_same(sv.load(directory / name), OLD) else "new" for name in names]
        new.add(tuple(found))
        run(directory)
        assert state(directory, after) == "new", fault.log
    assert new == {("old",), ("old", "new"), ("new",)}


@pytest.mark.sample(5)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("in_threads", [False, True], ids=["one thread", "threads"])
def test_a_reshard_that_is_killed_is_taken_up_by_the_same_reshard(
    form: str, is_there: bool, in_threads: bool, source: Path, tmp_path: Path
) -> None:
    """Files whose journal was written are not written again, and the result is that of an
    undisturbed run.

    In whichever order threads, each at a file, come to their steps.
    """
    run = partial(reshard, source, form=form, force=is_there)
    seen, reused = set(), set()
    for directory, fault in steps(
        tmp_path, run, old_of(form) if is_there else nothing, Killed, in_threads=in_threads
    ):
        seen.add(state(directory, form))
        journals = sum(line.startswith("close") and line.endswith(".done") for line in fault.log)
        is_committing = any(line.startswith(("move", "rename")) for line in fault.log)
        with failing(directory, Fault(-1)):
            try:
                report = run(directory)
            except TargetExists:
                assert state(directory, form) == "new" and not is_there
                continue
        # A journal that was written and not yet closed is whole, unless the machine died too.
        assert is_committing or report.reused_files in (journals, journals + 1)
        reused.add(report.reused_files)
        assert state(directory, form) == "new", fault.log
        assert_clean(directory, form, tmp_path / "clean")
    if EXHAUSTIVE:
        assert in_threads or reused >= set(range(FORMATS[form][2] + 1))
        assert {"new", "old" if is_there else "CheckpointNotFound"} <= seen
    allowed = (
        {"old", "new", "CheckpointNotFound", "MissingFile"}
        if form == "safetensors set"
        else {"old", "new"}
    )
    assert seen <= (allowed if is_there else {"new", "CheckpointNotFound", "MissingFile"}), seen


@pytest.mark.sample(5)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("after", [False, True], ids=["instead of the step", "after the step"])
def test_a_step_that_fails_leaves_nothing_of_the_new_checkpoint_or_all_of_it(
    form: str, is_there: bool, after: bool, source: Path, tmp_path: Path
) -> None:
    """A full disk and its like. All of it only where the failure came after the step that made it
    visible."""
    run = partial(reshard, source, form=form, force=is_there)
    prepare = old_of(form) if is_there else nothing
    for directory, fault in steps(tmp_path, run, prepare, full, after):
        found = state(directory, form)
        if found == "new":
            assert after or "remove" in fault.log[-1], fault.log
        else:
            assert found == ("old" if is_there else "CheckpointNotFound"), fault.log
            if not after:
                if is_there:
                    assert_clean(directory, form, tmp_path / "clean")
                else:
                    assert os.listdir(directory) == [], fault.log


@pytest.mark.sample(2)
@pytest.mark.parametrize("form", FORMATS)
def test_an_interrupt_keeps_what_a_second_run_can_use_and_nothing_else(
    form: str, source: Path, tmp_path: Path
) -> None:
    """Ctrl-C: a reshard can be taken up. (A save cannot: ``test_disk_faults``.)"""
    for directory, fault in steps(
        tmp_path, partial(reshard, source, form=form), nothing, KeyboardInterrupt
    ):
        found, finished = (
            state(directory, form),
            sum("close" in line and ".done" in line for line in fault.log),
        )
        is_committing = len(fault.log) > 0 and finished == FORMATS[form][2]
        assert found == "CheckpointNotFound" or (found == "new" and is_committing)
        assert (
            is_committing
            or sum(name.endswith(".done") for name in os.listdir(directory)) >= finished
        )


@pytest.mark.parametrize("form", FORMATS)
def test_a_first_save_that_was_killed_is_said_to_be_unfinished(form: str, tmp_path: Path) -> None:
    """As long as a file tells of it, the error of the path and that of its folder name the file, or
    the index that the native format lacks, and what to do.
    """
    name, seen = FORMATS[form][1], 0
    for directory, fault in steps(tmp_path, partial(save, form=form, tensors=NEW), nothing, Killed):
        left = [each for each in os.listdir(directory) if not each.endswith(".lock")]
        if not left or state(directory, form) == "new":
            continue
        for path in (directory, directory / name)[: 1 if name == ".metadata" else 2]:
            with pytest.raises((CheckpointNotFound, MissingFile)) as caught:
                sv.load(path)
            said = caught.value.cause
            is_lost = "svindex is missing, but its data files exist" in said
            assert is_lost or "rite of it is not finished, which has left" in said, fault.log
            assert is_lost or any(each in said for each in left)
            assert "run the same command again" in caught.value.remedy
        seen += 1
    assert seen > (2 if EXHAUSTIVE else 0)


@pytest.mark.sample(5)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("after", [False, True], ids=["instead of the step", "after the step"])
def test_an_error_takes_back_its_own_run_and_not_what_an_earlier_one_had_finished(
    form: str, after: bool, source: Path, tmp_path: Path
) -> None:
    """The first run is killed with one file finished and one begun, the second fails at any step,
    the third goes on."""
    run = partial(reshard, source, form=form, force=True)
    undisturbed, resumed = Fault(-1), Fault(-1)
    for name in ("undisturbed", "resumed"):
        (tmp_path / name).mkdir()
    with failing(tmp_path / "undisturbed", undisturbed):
        run(tmp_path / "undisturbed")
    finished = next(
        step
        for step, line in enumerate(undisturbed.log)
        if line.startswith("close") and ".done" in line
    )

    def prepare(directory: Path) -> None:
        save(directory, form, OLD)
        with pytest.raises(Killed), failing(directory, Fault(finished + min(FORMATS[form][2], 2))):
            run(directory)

    prepare(tmp_path / "resumed")
    with failing(tmp_path / "resumed", resumed):
        run(tmp_path / "resumed")
    journals = [
        step
        for step, line in enumerate(resumed.log)
        if line.startswith("close") and ".done" in line
    ]
    assert len(journals) == FORMATS[form][2] - 1
    for directory, fault in steps(tmp_path, run, prepare, full, after):
        is_moving = fault.at <= max(
            journals, default=-1
        )  # and not yet committing, where an error takes all back
        assert state(directory, form) == "old" or not is_moving
        assert run(directory).reused_files == 1 or not is_moving, fault.log
        assert state(directory, form) == "new"
        assert_clean(directory, form, tmp_path / "clean")


@pytest.mark.parametrize("form", FORMATS)
def test_a_second_writer_is_refused_at_once_by_whatever_name_it_calls_the_target(
    form: str, source: Path, tmp_path: Path
) -> None:
    """While the first writes; and the first comes to its end as if there had been no other."""
    bare, name, _ = FORMATS[form]
    ending = {"shardvar": ".svindex", "tensorflow": ".index", "npz": ".npz"}.get(
        form, ".safetensors"
    )
    refused = []

    def write_too(nbytes: int) -> None:
        stem = set() if bare == "safetensors" else {"ck"}  # which would be a folder
        for other in {name, "ck" + ending, *stem} if bare != "torch" else {name, ""}:
            with pytest.raises(StorageError, match="being written"):
                sv.save(tmp_path / other, OLD, format=bare, force=True)
            refused.append(other)

    reshard(source, tmp_path, form, progress=write_too)
    assert refused and state(tmp_path, form) == "new"
    assert_clean(tmp_path, form, tmp_path.parent / f"{tmp_path.name}-clean")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "change",
    ["flip", "rot", "cut", "touch", "journal", "nested", "huge", "huge numbers", "other pieces"],
)
@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "safetensors set"])
def test_a_finished_file_that_is_no_longer_what_its_journal_says_is_written_again(
    form: str, change: str, source: Path, tmp_path: Path
) -> None:
    """Neither the file nor the journal is believed unseen, and no journal makes the second run
    fail."""
    (tmp_path / "undisturbed").mkdir()
    directory = tmp_path / "target"
    directory.mkdir()
    fault = Fault(-1)
    with failing(tmp_path / "undisturbed", fault):
        reshard(source, tmp_path / "undisturbed", form)
    last = max(
        step
        for step, line in enumerate(fault.log)
        if line.startswith("close") and line.endswith(".done")
    )
    with pytest.raises(Killed), failing(directory, Fault(last + 1)):
        reshard(source, directory, form)
    journal = sorted(directory.glob("*.done"))[0]
    file = journal.with_suffix("")
    before, text = file.stat(), journal.read_text()
    match change:
        case "flip":
            flip(file, -1)
        # the disk's own doing, of which no time of change tells; without checksums nobody can know
        case "rot":
            if form == "safetensors set":
                return
            flip(file, -1)
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        case "cut":
            os.truncate(file, before.st_size - 1)
        case "touch":
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        case "journal":
            journal.write_text(text[: len(text) // 2])
        case "nested":
            journal.write_text("[" * 10**6)
        case "huge":
            os.truncate(journal, 1 << 40)  # of which the disk holds no more than before
        case "huge numbers":
            journal.write_text(text.replace('"payload": [', f'"payload": [{10**400}, '))
        case "other pieces":
            journal.write_text(text.replace('"parts": [', '"parts": [[9999, 0, 1, 5], '))
    reports = len(list(directory.glob("*.done")))
    assert reshard(source, directory, form).reused_files == reports - 1
    assert state(directory, form) == "new"
    assert_clean(directory, form, tmp_path / "clean")


@pytest.mark.parametrize("form", ["shardvar", "safetensors", "npz"])
def test_a_source_that_changed_is_resharded_anew(form: str, tmp_path: Path) -> None:
    """The files of the first run are of another source, so none of them is reused, and none stays.

    A source that is one file keeps its name, and one of safetensors has no checksums to tell other
    values by.
    """
    directory = tmp_path / "target"
    directory.mkdir()
    source, partition = tmp_path / FORMATS[form][1], 2 if form == "shardvar" else None
    sv.save(source, dict(zip(NEW, OLD.values(), strict=True)), format=form, partition=partition)
    with pytest.raises(Killed), failing(directory, Fault(12)):
        reshard(source, directory, "shardvar")
    assert list(directory.glob("*.done"))
    sv.save(source, NEW, format=form, partition=partition, force=True)
    assert reshard(source, directory, "shardvar").reused_files == 0
    assert state(directory, "shardvar") == "new"
    assert_clean(directory, "shardvar", tmp_path / "clean")


LIMITED = """
import resource, sys
import shardvar as sv
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
try:
    sv.reshard(sys.argv[1], sys.argv[2], format=sys.argv[3])
except sv.errors.StorageError as error:
    print(error)
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "safetensors", "npz"])
def test_a_file_that_may_not_grow_is_a_storage_error_that_leaves_nothing(
    form: str, tmp_path: Path
) -> None:
    """The operating system's own refusal, in the midst of a write."""
    (tmp_path / "target").mkdir()
    sv.save(tmp_path / "source", {"big": np.ones(9000)})
    program = [sys.executable, "-c", LIMITED, tmp_path / "source", tmp_path / "target" / "ck", form]
    done = subprocess.run(program, capture_output=True, text=True, env=ENVIRONMENT)
    assert "larger than allowed" in done.stdout and "ulimit" in done.stdout, done.stderr
    assert os.listdir(tmp_path / "target") == []


def test_a_disk_without_room_is_refused_before_a_byte_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardvar.storage.local.LocalStorage.free_nbytes", lambda storage: 100)
    with pytest.raises(StorageError, match="100 B free"):
        reshard(source, tmp_path, "shardvar")
    with pytest.raises(StorageError, match="100 B free"):
        save(tmp_path, "shardvar", NEW)
    assert os.listdir(tmp_path) == []


def test_a_disk_needs_room_for_what_is_not_finished_yet(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of a run that was killed have taken theirs already."""
    with pytest.raises(Killed), failing(tmp_path, Fault(14)):
        reshard(source, tmp_path, "shardvar")
    assert len(list(tmp_path.glob("*.done"))) == 2
    last = reshard(source, tmp_path, "shardvar", dry_run=True).file_nbytes[-1]
    monkeypatch.setattr("shardvar.storage.local.LocalStorage.free_nbytes", lambda storage: last - 1)
    with pytest.raises(StorageError, match=r"Free 1 B there"):
        reshard(source, tmp_path, "shardvar")
    monkeypatch.setattr("shardvar.storage.local.LocalStorage.free_nbytes", lambda storage: last)
    assert reshard(source, tmp_path, "shardvar").reused_files == 2


@pytest.mark.parametrize("form", FORMATS)
def test_the_directory_of_a_target_is_made(form: str, tmp_path: Path) -> None:
    """With those above it; a file in its place is an error."""
    save(tmp_path / "a" / "b", form, NEW)
    assert state(tmp_path / "a" / "b", form) == "new"
    (tmp_path / "file").write_bytes(b"")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageError, match="something else has this name"):
            save(place, form, NEW)
