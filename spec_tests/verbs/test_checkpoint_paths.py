"""What a person types for a checkpoint, and what a target of that name is."""

import os
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    AmbiguousPath,
    ArgumentError,
    CheckpointNotFound,
    MissingFile,
    TargetExists,
    UnsupportedError,
)
from shardvar.formats.table import format_named, format_names, format_of_name
from shardvar.planning.policies import BalancedPolicy
from shardvar.verbs.locate import find_target

FORMATS = ("shardvar", "tensorflow", "safetensors", "npz")

ENDINGS = dict(zip(FORMATS, (".svindex", ".index", ".safetensors", ".npz"), strict=True))


def arrays(value: float = 1.0) -> dict[str, np.ndarray]:
    return {"a": np.full(4, value), "b": np.full(4, value)}


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_saved_under_the_name_of_its_index_is_loaded_by_it(
    form: str, tmp_path: Path
) -> None:
    """And it is the same checkpoint as that of the name without the ending, not another beside
    it."""
    path = tmp_path / f"ck{ENDINGS[form]}"
    prefix = path if form == "safetensors" else tmp_path / "ck"  # else it is a folder
    sv.save(path, arrays(1))
    files = len(os.listdir(tmp_path))
    sv.save(prefix, arrays(2), format=form, force=True)
    sv.save(path, arrays(3))
    for name in (path, tmp_path / "ck", tmp_path):
        assert sv.load(name)["a"][0] == 3
    assert len(os.listdir(tmp_path)) == files


def test_a_set_is_found_by_the_name_under_which_it_was_saved(tmp_path: Path) -> None:
    """A policy may make several files of what was to be one: the name that was given still means
    them. A dot in a name is no ending."""
    path = tmp_path / "model.safetensors"
    sv.save(path, arrays(), policy=BalancedPolicy(2))
    assert not path.exists()
    part = "model-00001-of-00002.safetensors"
    for name in ("model.safetensors", "model", "model.safetensors.index.json", part):
        assert sv.load(tmp_path / name).keys() == {"a", "b"}
    sv.save(tmp_path / "model-v1.2", arrays())
    assert sv.verify(tmp_path / "model-v1.2").ok


def test_of_two_checkpoints_the_message_gives_paths_that_can_be_typed(tmp_path: Path) -> None:
    """One prefix in several formats: each path in the message means one checkpoint, in its
    format."""
    for number, form in enumerate(FORMATS):
        name = f"ck{ENDINGS[form]}"
        sv.save(tmp_path / name, arrays(number), format=form, force=True)
    for path in (tmp_path / "ck", tmp_path):
        with pytest.raises(AmbiguousPath) as caught:
            sv.load(path)
        for number, form in enumerate(FORMATS):
            name = str(tmp_path / f"ck{ENDINGS[form]}")
            assert f"{name} ({form})" in caught.value.cause
            assert sv.load(name)["a"][0] == number


@pytest.mark.parametrize("form", ["shardvar", "tensorflow", "safetensors"])
def test_a_data_file_is_no_name_for_a_target(form: str, tmp_path: Path) -> None:
    """Somebody who types one to write to would replace the checkpoint that it is a part of."""
    sv.save(tmp_path / "ck", arrays(), format=form, policy=BalancedPolicy(2))
    names = sorted(os.listdir(tmp_path))
    for name in names:
        if "index" not in name:
            with pytest.raises(TargetExists):
                sv.save(tmp_path / name, arrays(2), format=form)
    assert sorted(os.listdir(tmp_path)) == names and sv.load(tmp_path)["a"][0] == 1


def test_files_of_a_set_without_its_index_are_not_swept_away(tmp_path: Path) -> None:
    """They may be somebody's last: they open if all are there, else the error names the index; a
    save of the same name leaves them."""
    sv.save(tmp_path / "model.safetensors", arrays(), policy=BalancedPolicy(2))
    (tmp_path / "model.safetensors.index.json").unlink()
    parts = sorted(os.listdir(tmp_path))
    paths = tmp_path / "model", tmp_path / "model.safetensors", tmp_path
    assert [sorted(sv.load(path)) for path in paths] == 3 * [sorted(arrays())]
    (tmp_path / parts[0]).rename(tmp_path / "away")
    for path in paths:
        with pytest.raises(MissingFile, match="index"):
            sv.load(path)
    (tmp_path / "away").rename(tmp_path / parts[0])
    with pytest.raises(TargetExists):
        sv.save(tmp_path / "model.safetensors", arrays(2), policy=BalancedPolicy(3))
    sv.save(tmp_path / "model.safetensors", arrays(2))
    assert sorted(os.listdir(tmp_path)) == sorted([*parts, "model.safetensors"])
    assert sv.load(tmp_path / "model")["a"][0] == 2
    assert sv.load(tmp_path / parts[0])["a"][0] == 1


@pytest.mark.parametrize(
    "path", ["new/ck", "new/ck/", "there", "there/", "there/.metadata", "new/ck.old"]
)
def test_a_target_of_a_format_of_folders_is_a_folder(path: str, tmp_path: Path) -> None:
    """Whether it exists or not, and whether it is named by itself or by the index in it."""
    (tmp_path / "there").mkdir()
    target = find_target(f"{tmp_path}/{path}", "torch", "shardvar")
    assert target.path == str(tmp_path / path.removesuffix("/.metadata"))
    assert target.name == ".metadata" and target.is_folder
    assert [*tmp_path.rglob("*")] == [tmp_path / "there"]


def test_checkpoints_that_are_folders_are_not_numbered(tmp_path: Path) -> None:
    checkpoint = sv.Checkpoint(v=sv.Variable(np.zeros(3), name="v"))
    with pytest.raises(UnsupportedError, match="folder"):
        checkpoint.save(tmp_path / "ck", format="torch")
    with pytest.raises(UnsupportedError, match="folder"):
        sv.CheckpointManager(checkpoint, tmp_path, max_to_keep=2, format="torch").save()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["model.tflite", "pytorch_model.bin", "__0_0.distcp", "model.ZIP", "model.json"]
)
def test_a_name_of_another_kind_of_file_is_written_in_a_named_format_only(
    name: str, tmp_path: Path
) -> None:
    """A native checkpoint is not looked for behind the name of another file, so nothing is
    written."""
    with pytest.raises(UnsupportedError, match=r"ends like another kind of file.*Name the format"):
        sv.save(tmp_path / name, {"w": np.ones(3)})
    assert list(tmp_path.iterdir()) == []
    sv.save(tmp_path / name, {"w": np.ones(3)}, format="shardvar")
    assert sv.load(tmp_path / name)["w"].tolist() == [1, 1, 1]


KNOWN = ".safetensors .npz .pt .h5 .gguf .npy .zarr .svindex .onnx .msgpack".split()


@pytest.mark.parametrize("ending", KNOWN)
def test_a_target_never_has_another_format_than_its_ending_says(
    ending: str, tmp_path: Path
) -> None:
    """Whichever other format is named; nothing is written. A format that is only read is never
    asked for."""
    own = format_of_name(f"model{ending}")
    assert own is not None
    words, error = "which shardvar can read but not write", UnsupportedError
    for name in {*format_names()} - {own}:
        if format_named(own).capabilities.dtypes:
            words, error = f"and {name} is asked for", ArgumentError
        with pytest.raises(error, match=f"has the ending of the format {own}, {words}"):
            sv.save(tmp_path / f"model{ending}", {"a": np.zeros(2, np.float32)}, format=name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", ["owner/name", "here/name", "name", "a/b/c"])
def test_two_names_that_are_no_path_may_be_of_the_hub(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(CheckpointNotFound) as caught:
        sv.load(path)
    assert (f"hf://{path}" in caught.value.remedy) == (path == "owner/name")
