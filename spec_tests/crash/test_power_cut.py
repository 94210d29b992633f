"""What is left when the power fails at any moment of a save or a reshard: the old checkpoint or the
new one, whole.

The calls that a writer makes are recorded and then read as a strict disk reads them
(``disk.survivors``): names reach it in any order but across a sync of their directory, bytes not at
all but by a sync of their file. Each sync that the library asks for is also left out, by the line
that asks for it, and then some power cut must show the loss: no sync is missing, and none is there
for nothing.
"""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import shardvar as sv
from shardvar.planning.policies import BalancedPolicy
from shardvar.storage.local import LocalStorage
from spec_tests.helpers.faulty_storage import (
    FOLDERS,
    FORMATS,
    NEW,
    OLD,
    WRITTEN,
    assert_clean,
    reshard,
    save,
    state,
)
from spec_tests.helpers.killed_writers import Series, object_series, rotating_series
from spec_tests.helpers.system_calls import Disk, Event, snapshot, survivors
from spec_tests.helpers.thoroughness import EXHAUSTIVE, is_due

Run = Callable[[Path], Any]

_INDEX = "model.safetensors.index.json"

LOST = {"CheckpointNotFound", "MissingFile"}
"""What a reader may be told of what was never there."""


def record(directory: Path, prepare: Run | None, run: Run) -> tuple[dict[str, bytes], list[Event]]:
    """The files before a run, and what the run did."""
    directory.mkdir()
    if prepare is not None:
        prepare(directory)
    before, disk = snapshot(directory), Disk(str(directory))
    with disk.meeting():
        run(directory)
    return before, disk.events


def put(directory: Path, files: dict[str, bytes]) -> None:
    """Lay files out; journals are to believe in the files beside them, as they would if these were
    the same files."""
    directory.mkdir()
    for path, octets in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(octets)
    for path in files:
        journal, file = directory / path, directory / path.removesuffix(".done")
        if path.endswith(".done") and file.exists():
            try:
                content = json.loads(journal.read_bytes())
            except ValueError:
                continue
            if isinstance(content, dict):
                content["stamp"] = LocalStorage(str(directory)).open(file.name).stamp
                journal.write_text(json.dumps(content))


def find_loss(
    place: Path,
    before: dict[str, bytes],
    events: list[Event],
    form: str,
    again: Run | None = None,
    inner: str = ".",
) -> str:
    """The first power cut after which a law is broken; empty where there is none.

    Where an old checkpoint stood, it or the new one stands, and the new one once all was done;
    ``again`` writes the new one and leaves nothing else; it is tried after each third power cut,
    and after each one in ``make crash``. ``inner`` is the directory that it is in.
    """
    allowed = {"old", "new"} if before else {"old", "new", *LOST}
    for number, (is_done, files) in enumerate(survivors(before, events)):
        directory = place / "left"
        put(directory, files)
        where = f"{'after' if is_done else 'in'} the run, with {sorted(files)}"
        try:
            found = state(directory / inner, form)
            if found not in allowed or (is_done and found != "new"):
                return f"{found} {where}"
            if again is None or not (is_done or is_due(number, 3)):
                continue
            if found in ("old", "new") and not sv.verify(directory).ok:
                return f"damage {where}"
            again(directory)
            if state(directory, form) != "new":
                return f"{state(directory, form)} when written again {where}"
            assert_clean(directory, form, place / "clean")
        except AssertionError as error:
            return f"{error} {where}"
        finally:
            shutil.rmtree(directory)
    return ""


# A folder has many files; ``test_folders_of_arrays`` takes a sample of them.
@pytest.mark.sample(2)
@pytest.mark.parametrize("form", WRITTEN if EXHAUSTIVE else [*FORMATS, "pt"])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_power_cut_in_a_save_leaves_the_old_or_the_new_and_the_next_save_is_clean(
    form: str, is_there: bool, tmp_path: Path
) -> None:
    """And the new, once the save has returned."""
    run = partial(save, form=form, tensors=NEW, force=form in FOLDERS)
    before, events = record(
        tmp_path / "run", partial(save, form=form, tensors=OLD) if is_there else None, run
    )
    assert not find_loss(tmp_path, before, events, form, partial(run, force=True))


@pytest.mark.sample(2)
@pytest.mark.parametrize("form", FORMATS)
def test_a_reshard_is_taken_up_after_a_power_cut_and_believes_no_file_that_did_not_reach_the_disk(
    form: str, source: Path, tmp_path: Path
) -> None:
    """Journals that outlive their files, or files that kept their lengths alone, are seen
    through."""
    run = partial(reshard, source, form=form, force=True)
    before, events = record(tmp_path / "run", partial(save, form=form, tensors=OLD), run)
    assert not find_loss(tmp_path, before, events, form, run)


@pytest.mark.sample(2)
@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("is_there", [False, True])
def test_weights_that_survive_have_all_files_of_their_model_folder(
    files: int, is_there: bool, tmp_path: Path
) -> None:
    """Where other files stood, those are there until the old weights are gone."""
    texts = ("config.json", "tokenizer.json", "1_Pooling/config.json")
    folders = {name: tmp_path / name for name in ("a", "b")}
    for name, folder in folders.items():
        sv.save(folder / "model.safetensors", OLD if name == "a" else NEW)
        (folder / "1_Pooling").mkdir()
        for text in texts:
            (folder / text).write_text(json.dumps(name))
    policy = BalancedPolicy(files) if files > 1 else None

    def run(place: Path, name: str = "b") -> None:
        sv.reshard(folders[name], place, policy=policy, force=True)

    before, events = record(tmp_path / "run", partial(run, name="a") if is_there else None, run)
    written = snapshot(tmp_path / "run")
    for is_done, left in survivors(before, events):
        whole = [name for name in left if name in ("model.safetensors", _INDEX)]
        is_new = any(left[name] != before.get(name) for name in whole)
        assert whole if is_done or is_there else True
        if is_done:
            assert {each: left.get(each) for each in written} == written
        elif whole and not (is_there and is_new):
            expected = before if is_there else written
            assert {text: left.get(text) for text in texts} == {
                each: expected[each] for each in texts
            }
        if not is_there or is_due(len(left), 3):
            put(tmp_path / "left", left)
            run(tmp_path / "left")
            names = [
                {each for each in some if "-of-" not in each}
                for some in (snapshot(tmp_path / "left"), written)
            ]
            assert names[0] == names[1]
            shutil.rmtree(tmp_path / "left")


@pytest.mark.parametrize("make", [object_series, rotating_series])
@pytest.mark.parametrize("form", ["shardvar", "tensorflow"])
def test_a_power_cut_in_a_save_of_objects_leaves_what_the_state_file_names_whole(
    make: Callable[[Path, str], Series], form: str, tmp_path: Path
) -> None:
    """``Checkpoint.write``, and a manager that removes one checkpoint for each that it saves."""
    series = make(tmp_path, form)

    def prepare(place: Path) -> None:
        for version in (1, 2, 3):
            series.write(place, version)

    before, events = record(tmp_path / "run", prepare, partial(series.write, version=4))
    for is_done, files in survivors(before, events):
        directory = tmp_path / "left"
        put(directory, files)
        assert series.find(directory) in ({0} if is_done else {0, 1}), sorted(files)
        series.write(directory, 5)
        series.check_clean(directory)
        assert series.find(directory) == 1, sorted(files)
        shutil.rmtree(directory)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_set_syncs_its_directory_once_for_all_its_files(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then once for its index."""
    if is_there:
        save(tmp_path, "safetensors set", OLD)
    syncs: list[str] = []
    monkeypatch.setattr("shardvar.storage.local.sync_path", syncs.append)
    save(tmp_path, "safetensors set", NEW, force=True)
    assert len(syncs) == 2


def test_each_sync_is_needed(tmp_path: Path) -> None:
    """Where any one line of the library does not sync, some power cut loses a checkpoint."""
    losses: dict[str, str] = {}
    for form, inner in (("shardvar", "."), ("safetensors set", "."), ("shardvar", "new/deep")):
        place = tmp_path / f"{len(losses)}-{form}"
        place.mkdir()
        prepare = partial(save, form=form, tensors=OLD) if inner == "." else None
        before, events = record(
            place / "run",
            prepare,
            lambda at, form=form, inner=inner: save(at / inner, form, NEW, force=True),
        )
        assert not find_loss(place, before, events, form, inner=inner)
        for site in sorted({event.site for event in events if event.site}):
            kept = [event for event in events if event.site != site]
            losses[site] = losses.get(site) or find_loss(place, before, kept, form, inner=inner)
    assert len(losses) == 4 and all(losses.values()), losses
