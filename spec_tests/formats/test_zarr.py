"""Zarr groups and checkpoints of Orbax: the golden ones by the real libraries, through the verbs;
and the parts."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import (
    CheckpointError,
    IncompleteCheckpoint,
    MissingFile,
    ShardvarError,
)
from shardvar.formats.zarr.source import Ahead, Band
from spec_tests.helpers.format_protocol import GOLDEN
from spec_tests.hostile.zarr import described_v2, described_v3, grid, leaf


def make(folder: Path, files: dict[str, Any]) -> Path:
    """Write files, of which those that are dicts are JSON."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {"title": "é", "n": [1]}}
HALVES = {"t/c/0": np.float32([1, 2]).tobytes(), "t/c/1": np.float32([3, 4]).tobytes()}


def test_raw_chunks_are_read_in_place_and_mapped_and_cut_at_the_end(tmp_path: Path) -> None:
    """Without TensorStore. A chunk that reaches beyond the array is a prefix of its file on the
    first axis, and on others it is decoded."""
    second = described_v3(shape=[2, 3], chunk_grid=grid(2, 2))
    blocks = np.float32([[1, 2, 3, 0], [4, 5, 6, 0]])
    files = {
        "u/c/0/0": np.ascontiguousarray(blocks[:, :2]).tobytes(),
        "u/c/0/1": blocks[:, 2:].copy().tobytes(),
    }
    described = {"t/zarr.json": described_v3(shape=[3]), "u/zarr.json": second}
    path = make(tmp_path / "g", {"zarr.json": GROUP, **described, **HALVES, **files})
    with sv.open_checkpoint(path) as reader:
        assert reader.metadata.user == {"title": "é", "n": "[1]"}
        assert reader.read("t").tolist() == [1, 2, 3]
        assert reader.read("t", np.s_[1:3]).tolist() == [2, 3]
        assert reader.read("u").tolist() == [[1, 2, 3], [4, 5, 6]]
        assert reader.entries().plain.tolist() == [True, True, True, False]
    assert sv.load(path, ["t"], mmap=True)["t"].tolist() == [1, 2, 3]


def test_without_a_fill_value_zeros_stand_for_an_absent_chunk(tmp_path: Path) -> None:
    """In version 2, where zarr-python omits chunks of zeros then; version 3 always has one, or it
    is damaged."""
    path = make(
        tmp_path / "g",
        {".zgroup": {"zarr_format": 2}, "t/.zarray": described_v2(), "t/0": HALVES["t/c/0"]},
    )
    assert sv.load(path)["t"].tolist() == [1, 2, 0, 0]
    said = "t: 1 of 2 chunks are absent; there is no fill value, and zeros stand for them."
    assert sv.verify(path).notes == (said,)
    files = {
        "zarr.json": GROUP,
        "t/zarr.json": described_v3(fill_value=None),
        "t/c/0": HALVES["t/c/0"],
    }
    with pytest.raises(IncompleteCheckpoint, match="'c/1', one of 2, is missing"):
        sv.load(make(tmp_path / "v3", files))


def test_symbolic_links_to_folders_are_not_entered(tmp_path: Path) -> None:
    make(tmp_path / "outside", {"t/zarr.json": described_v3(), **HALVES})
    path = make(tmp_path / "g", {"zarr.json": GROUP})
    (path / "link").symlink_to(tmp_path / "outside" / "t")
    (path / "circle").symlink_to(path)
    assert sv.load(path) == {}


def test_chunks_that_are_decoded_ahead_are_those_that_are_asked_for() -> None:
    """In any order, some never, and an error only where its own chunk is asked for."""
    begun: list[int] = []
    error = IncompleteCheckpoint("The third is missing.", "Look for it.")

    def start(bands: Sequence[Band]) -> list[Any]:
        begun.extend(band[0] for band in bands)
        return [error if band[0] == 3 else band[0] * 10 for band in bands]

    ahead = Ahead(start)
    ahead.expect([((number, 0, 1), 1 << 25) for number in range(8)])
    assert ahead.take((0, 0, 1)) == 0 and begun == [0, 1, 2]
    assert ahead.take((1, 0, 1)) == 10 and begun == [0, 1, 2, 3]
    assert ahead.take((2, 0, 1)) == 20
    with pytest.raises(IncompleteCheckpoint, match="third"):
        ahead.take((3, 0, 1))
    assert (
        ahead.take((6, 0, 1)) == 60 and ahead.take((0, 0, 1)) == 0 and ahead.take((9, 0, 1)) == 90
    )
    assert begun.count(6) == 1


def test_chunks_of_a_bucket_are_begun_together() -> None:
    """As many as there is room for, once none is left of those before; what was given up is begun
    again."""
    calls: list[list[int]] = []

    def start(bands: Sequence[Band]) -> list[Any]:
        calls.append([band[0] for band in bands])
        return [band[0] * 10 for band in bands]

    ahead = Ahead(start, is_batched=True)
    ahead.expect([((number, 0, 1), 1 << 25) for number in range(5)])
    assert [ahead.take((number, 0, 1)) for number in (0, 1, 3, 2)] == [0, 10, 30, 20]
    assert calls == [[0, 1], [3, 4], [2]]
    ahead.expect([((number, 0, 1), 8) for number in range(5000)])
    assert [ahead.take((number, 0, 1)) for number in range(5000)] == [*range(0, 50000, 10)]
    assert [len(call) for call in calls[3:]] == [4096, 904]


# --- Orbax


def orbax(folder: Path, leaves: list[dict[str, Any]], files: dict[str, Any], **fields: Any) -> Path:
    tree = {
        "tree_metadata": {str(number): each for number, each in enumerate(leaves)},
        "use_ocdbt": False,
    }
    return make(folder, {"_METADATA": tree | fields, **files})


ARRAY = {"a.t/.zarray": described_v2(), "a.t/0": HALVES["t/c/0"], "a.t/1": HALVES["t/c/1"]}


def test_keys_are_paths_joined_by_dots(tmp_path: Path) -> None:
    path = orbax(
        tmp_path / "ck", [leaf("a", "t"), leaf("n", kind="None")], ARRAY, custom_metadata={"run": 7}
    )
    assert sv.load(path)["a.t"].tolist() == [1, 2, 3, 4]
    with sv.open_checkpoint(path) as reader:
        assert reader.metadata.user == {"run": "7"} and reader.format == "orbax"
    assert sv.verify(path).notes == ("n: It is an empty leaf (None) and has no array.",)


def test_an_array_in_folders_of_folders_is_inside(tmp_path: Path) -> None:
    """Haiku's modules have names like "linear/~/w"."""
    files = {f"a/~/{name.partition('/')[2]}": octets for name, octets in ARRAY.items()}
    assert sv.load(orbax(tmp_path / "ck", [leaf("a/~")], files))["a/~"].tolist() == [1, 2, 3, 4]


def test_a_step_of_a_manager_means_its_items(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "orbax" / "manager_step_20" / "ckpt" / "20", tmp_path / "20")
    assert sv.load(tmp_path / "20").keys() == {"w"}
    shutil.copytree(tmp_path / "20" / "state", tmp_path / "20" / "other")
    with pytest.raises(ShardvarError, match="may mean"):
        sv.load(tmp_path / "20")
    assert sv.load(tmp_path / "20" / "other").keys() == {"w"}


def test_a_database_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    """At one path, in one process; a reader of the old one says so, or gives its values."""
    for case in ("dtypes", "mesh_2x2x2", "dtypes"):
        shutil.rmtree(tmp_path / "ck", ignore_errors=True)
        shutil.copytree(GOLDEN / "orbax" / case / "ckpt", tmp_path / "ck")
        right = sv.load(GOLDEN / "orbax" / case / "ckpt")
        assert all(
            array.tobytes() == right[key].tobytes()
            for key, array in sv.load(tmp_path / "ck").items()
        )
    with sv.open_checkpoint(tmp_path / "ck") as reader:
        shutil.rmtree(tmp_path / "ck")
        shutil.copytree(GOLDEN / "orbax" / "mesh_2x2x2" / "ckpt", tmp_path / "ck")
        try:
            assert np.array_equal(reader.read("int8"), right["int8"])
        except CheckpointError as error:
            assert "replaced" in str(error)


def test_leaves_without_arrays_need_no_database(tmp_path: Path) -> None:
    """Orbax makes none for strings and None alone, though the index says that arrays are in one."""
    kinds = {"s": "string", "n": "None", "w": "jax.Array"}
    leaves = {key: leaf(key, kind=kind) for key, kind in kinds.items()}
    tree = {"tree_metadata": leaves, "use_ocdbt": True, "use_zarr3": False}
    files = {"_METADATA": tree, "_strings.json": {"s": "text"}}
    with pytest.raises(MissingFile, match=r"manifest\.ocdbt"):
        sv.load(make(tmp_path / "arrays", files))
    del leaves["w"]
    assert {key: value[()] for key, value in sv.load(make(tmp_path / "none", files)).items()} == {
        "s": b"text"
    }
    assert sv.verify(tmp_path / "none").ok
