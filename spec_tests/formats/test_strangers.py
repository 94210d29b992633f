"""A save runs the code of its own format, and of no other unless its files are there."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.formats.table import format_named, format_names
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket

FORMATS = Path(sv.__file__).parent / "formats"
TENSORS = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.zeros(3, np.float32)}
FOLDERS = [name for name in format_names() if format_named(name).capabilities.folder_index]
"""The formats whose checkpoints are folders."""


def entered(call: Callable[[], Any]) -> set[str]:
    """Return the formats whose functions a call runs, by the names of their packages."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    inside = [Path(file).relative_to(FORMATS) for file in files if file.startswith(f"{FORMATS}/")]
    return {each.parts[0] for each in inside if len(each.parts) > 1 or each.stem == "npy"}


@pytest.fixture(params=["disk", "bucket"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A folder on a disk, or in a bucket."""
    if request.param == "disk":
        yield str(tmp_path / "run")
    else:
        with in_bucket(MemoryBucket()):
            yield "s3://bucket/run"


@pytest.mark.parametrize("form", FOLDERS)
def test_a_save_into_a_folder_enters_no_other_format(folder: str, form: str) -> None:
    """A new folder, and one with a checkpoint; 16 files of other formats were entered."""
    package = {"orbax": "zarr"}.get(form, form)
    assert entered(lambda: sv.save(folder, TENSORS, format=form)) == {package}
    if form == "torch":
        again = lambda: sv.save(folder, TENSORS, format=form, force=True)  # noqa: E731
        # Items are archives of torch.save, whose format shares the package.
        assert entered(again) == {package}


@pytest.mark.parametrize("name", ["model.safetensors", "model.npz", "model.svindex", "model.pt"])
def test_a_save_of_a_new_file_enters_no_other_format(folder: str, name: str) -> None:
    other = {"model.svindex": "native", "model.pt": "torch"}
    package = other.get(name, name.partition(".")[2])
    assert entered(lambda: sv.save(f"{folder}/{name}", TENSORS)) == {package}


@pytest.mark.parametrize("form", FOLDERS)
def test_a_checkpoint_that_is_there_is_seen_all_the_same(folder: str, form: str) -> None:
    sv.save(f"{folder}/model.safetensors", TENSORS)
    with pytest.raises(sv.errors.TargetExists, match=r"model\.safetensors exists"):
        sv.save(folder, TENSORS, format=form)
