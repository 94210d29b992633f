"""Format.remove: a checkpoint goes whole, the index first, and nothing of another's goes with it. And
of one that another replaces while it is being opened, one of the two is read, whole."""

import os
from pathlib import Path
from typing import Any

import pytest

import shardvar as sv
from shardvar.errors import CheckpointError, CheckpointNotFound, StorageError
from shardvar.formats.files import State
from shardvar.formats.table import format_named
from shardvar.planning.policies import BalancedPolicy
from shardvar.storage.local import LocalStorage
from spec_tests.helpers.faulty_storage import (
    FOLDERS,
    FORMATS,
    NEW,
    OLD,
    WRITTEN,
    Fault,
    FaultyStorage,
    Killed,
    arrays,
    failing,
    full,
    is_same,
    save,
)


def folder_of(path: Path, form: str) -> Path:
    """The folder that has the files of a checkpoint, when one is saved at ``path``."""
    return path / WRITTEN[form][1] if form in FOLDERS else path


def remove(path: Path, form: str, fault: Fault | None = None) -> None:
    name, target, _ = WRITTEN[form]
    removes, storage = format_named(name), LocalStorage(str(folder_of(path, form)))
    faulty: Any = storage if fault is None else FaultyStorage(storage, fault)
    removes.remove(faulty, removes.capabilities.folder_index or target)


@pytest.mark.parametrize("form", WRITTEN)
def test_a_removal_that_stops_at_any_step_leaves_no_checkpoint_and_is_finished_by_the_next(
    form: str, tmp_path: Path
) -> None:
    """The error of a disk says that the checkpoint is gone if, and only if, it is, but for a set,
    whose files can be read without their index. Other files stay."""
    are_whole, step, is_over = list[bool](), 0, False
    while not is_over:
        for kind, after in ((full, False), (Killed, True)):
            place, state = tmp_path / f"{step}{after}", None
            save(place, form, OLD)
            (folder_of(place, form) / "notes.txt").write_text("mine")
            try:
                remove(place, form, Fault(step, kind, after))
                is_over = True
            except (Killed, StorageError) as error:
                state = getattr(error, "state", None)
            try:
                assert is_same(sv.load(place / WRITTEN[form][1]), OLD)
                are_whole.append(True)
            except CheckpointError:
                are_whole.append(False)
            if kind is full and not is_over and form != "safetensors set":
                assert state == (None if are_whole[-1] else State.REMOVED.value)
            remove(place, form)
            assert os.listdir(folder_of(place, form)) == ["notes.txt"]
        step += 1
    # It is there up to one step, and from then on it is not.
    assert are_whole[0] and not are_whole[-1] and are_whole == sorted(are_whole, reverse=True)


@pytest.mark.parametrize("form", FORMATS)
def test_what_writers_of_the_name_left_goes_too(form: str, tmp_path: Path) -> None:
    name, target, files = FORMATS[form]
    fault = Fault(4)
    save(tmp_path, form, arrays(1))
    whole = set(os.listdir(tmp_path))
    with pytest.raises(Killed), failing(tmp_path, fault):
        policy = BalancedPolicy(files) if files > 1 else None
        sv.save(tmp_path / target, arrays(2), format=name, policy=policy, force=True)
    assert set(os.listdir(tmp_path)) - whole
    remove(tmp_path, form)
    assert [left for left in os.listdir(tmp_path) if not left.endswith(".lock")] == []


TRAPS = {
    "shardvar": "ck-10.svindexes ck-1-1.svindex~ ck-1x.svdata-0-00000-of-00001 ck-1.svindex.bak",
    "tensorflow": "ck-10.index ck-10.data-00000-of-00001 ck-1.data-00000-of-00001.bak ck-1.indexes",
    "safetensors": "ck-10.safetensors ck-10-00001-of-00002.safetensors ck-1-extra.safetensors"
    " ck-00001-of-00002.safetensors",
    "npz": "ck-10.npz ck-1.npz.bak ck-1.npy",
}
"""Names that begin like those of ``ck-1`` and are not."""


@pytest.mark.parametrize("form", sorted(TRAPS))
def test_nothing_goes_that_only_has_a_similar_name(form: str, tmp_path: Path) -> None:
    traps = {"ck-1", *TRAPS[form].split()}
    for name in traps:
        (tmp_path / name).write_bytes(b"mine")
    ending = ".safetensors" if form == "safetensors" else ""  # without it, a folder is meant
    sv.save(tmp_path / f"ck-1{ending}", arrays(1), format=form, force=True)
    sv.save(tmp_path / f"ck-100{ending}", arrays(3), format=form)
    before = {name for name in os.listdir(tmp_path) if name.startswith("ck-100")}
    format_named(form).remove(LocalStorage(str(tmp_path)), "ck-1")
    assert set(os.listdir(tmp_path)) == traps | before
    with pytest.raises(CheckpointNotFound):
        sv.open_checkpoint(tmp_path / ("ck-1.npz" if form == "npz" else "ck-1.index"))


def test_files_of_a_set_without_any_index_are_nobodys_to_remove(tmp_path: Path) -> None:
    """They may be somebody's last copy."""
    save(tmp_path, "safetensors set", arrays(1))
    (tmp_path / "ck.safetensors.index.json").unlink()
    there = sorted(os.listdir(tmp_path))
    remove(tmp_path, "safetensors set")
    assert sorted(os.listdir(tmp_path)) == there


@pytest.mark.parametrize("form", FORMATS)
def test_of_two_checkpoints_one_is_read_whole(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer commits before any one of the files is opened."""
    opens, number, is_over = LocalStorage.open, 0, False
    found = []
    while not is_over:
        save(tmp_path, form, OLD, force=True)
        count = 0

        def open_and_write(storage: LocalStorage, name: str) -> Any:
            nonlocal count
            count += 1
            if count == number + 1:  # noqa: B023 - called within this turn
                with monkeypatch.context() as quiet:
                    quiet.setattr(LocalStorage, "open", opens)
                    save(tmp_path, form, NEW, force=True)
            return opens(storage, name)

        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, "open", open_and_write)
            values = sv.load(tmp_path / FORMATS[form][1])
        found.append(is_same(values, NEW))
        assert found[-1] or is_same(values, OLD)
        number, is_over = number + 1, number >= count
    assert found[0] and not found[-1]
