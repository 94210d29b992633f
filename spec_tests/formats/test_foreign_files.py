"""A file of another kind under a format's name: the error says what it is and what it is not."""

import io
from pathlib import Path

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import MalformedCheckpoint

EXPECTED = {
    "m.npz": "an npz file",
    "m.npy": "a NumPy array (.npy)",
    "m.h5": "an HDF5 file",
    "m.keras": "an archive of Keras",
    "m.weights.h5": "an HDF5 file",
    "m.weights.json": "the index of a set",
    "m.pt": "a file of torch.save",
    ".metadata": "the index of a distributed checkpoint",
    "m.index": "a sorted table",
    "zarr.json": "a description of Zarr",
    ".zarray": "a description of Zarr",
    "m.gguf": "a GGUF file",
    "m.onnx": "an ONNX model",
    "m.msgpack": "a msgpack file of Flax",
    "m.msgpack.index.json": "the index of a set",
    "m.safetensors": "a safetensors file",
    "m.safetensors.index.json": "the index of a set",
    "m.svindex": "an index of shardvar",
}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 12\n"
FOREIGN = {
    "empty": (b"", "is empty", "Copy the file again"),
    "pointer": (POINTER, "is a Git LFS pointer instead of the file itself", "git lfs pull"),
    "page": (b"<!DOCTYPE html><html>" + b"x" * 5000, "is a web page", "fetch the file again"),
}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_is_named_with_what_was_expected(
    name: str, kind: str, tmp_path: Path
) -> None:
    if name.endswith("h5"):
        pytest.importorskip("h5py")
    content, what, remedy = FOREIGN[kind]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MalformedCheckpoint) as caught:
        sv.open_checkpoint(tmp_path / name)
    assert f"{name}: The file {what}, not {EXPECTED[name]}." in str(caught.value)
    assert remedy in str(caught.value)


def test_an_archive_begins_with_its_first_member(tmp_path: Path) -> None:
    """The directory at the end is not enough: what stands before the archive is nobody's."""
    archive = io.BytesIO()
    np.savez(archive, w=np.arange(3.0))
    (tmp_path / "m.npz").write_bytes(b"#!/bin/sh\n" + archive.getvalue())
    with pytest.raises(MalformedCheckpoint, match="not an npz file: it does not begin as a zip"):
        sv.load(tmp_path / "m.npz")
