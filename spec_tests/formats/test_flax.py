"""Msgpack files of Flax: golden files of Flax, and files assembled value by value."""

from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import CheckpointNotFound, InvalidCheckpoint, MissingFile, UnsupportedError
from shardvar.formats.flax import FORMAT
from shardvar.storage.local import LocalStorage
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.hostile.flax import array, chunks, index, of, packed


def write(path: Path, tree: Any) -> Path:
    path.write_bytes(packed(tree))
    return path


@given(st.integers(1, 9), st.integers(0, 60), st.integers(0, 60), st.sampled_from([2, 4]))
def test_any_range_of_an_array_in_chunks_is_that_of_the_whole(
    size: int, first: int, stop: int, itemsize: int
) -> None:
    values = np.arange(30, dtype=f"<i{itemsize}")
    parts = [values[at : at + size] for at in range(0, 30, size)]
    data = packed({"t": chunks((6, 5), *map(of, parts)), "u": of(values)})
    bucket = MemoryBucket({"run/m.msgpack": data})
    first, stop = min(first, stop), min(max(first, stop), values.nbytes)
    with in_bucket(bucket), sv.open_checkpoint("s3://bucket/run/m.msgpack") as reader:
        entries = reader.source.index.find("t")
        buffer = bytearray(max(stop - first, 0))
        reader.source.read_into(entries, 0, first, memoryview(buffer))
        assert buffer == values.tobytes()[first : max(stop, first)]
        assert np.array_equal(reader.read("t"), values.reshape(6, 5))
        assert np.array_equal(reader.read("t", (slice(1, 3),)), values.reshape(6, 5)[1:3])


def test_a_value_that_cannot_be_read_leaves_the_others_readable(tmp_path: Path) -> None:
    tree: Any = {"bad": array(dtype="object"), "far": msgpack.ExtType(9, b""), "good": array()}
    tree |= {"0": 1, 0: 2, "long": b"x" * ((1 << 20) + 1), "list": [b"x" * (2 << 20)]}
    path = write(tmp_path / "m.msgpack", tree)
    with sv.open_checkpoint(path) as reader:
        faults = {*reader.faults}
        assert {*reader} == {"good"} | faults and faults == {"bad", "far", "0", "long", "list"}
        assert not reader.read("good").any()
        with pytest.raises(UnsupportedError, match="object"):
            reader.read("bad")
        with pytest.raises(InvalidCheckpoint, match="Two values"):
            reader.read("0")


def test_a_set_is_read_by_its_index_and_a_file_without_one_by_itself(tmp_path: Path) -> None:
    names = [f"m-0000{number}-of-00002.msgpack" for number in (1, 2)]
    write(tmp_path / names[0], {"layers": {"0": {"w": of(np.full(2, 0, np.int32))}}})
    with pytest.raises(MissingFile, match=r"m\.msgpack\.index\.json is missing"):
        sv.load(tmp_path / "m")
    write(tmp_path / names[1], {"layers": {"1": {"w": of(np.full(2, 1, np.int32))}}})
    assert {*sv.load(tmp_path / names[0])} == {"layers.0.w"}
    weights = {f"layers/{number}/w": name for number, name in enumerate(names)}
    (tmp_path / "m.msgpack.index.json").write_bytes(index(weights))
    for path in (tmp_path, tmp_path / "m", tmp_path / "m.msgpack.index.json", tmp_path / names[1]):
        assert {key: each.tolist() for key, each in sv.load(path).items()} == {
            "layers.0.w": [0, 0],
            "layers.1.w": [1, 1],
        }
    (tmp_path / "m.msgpack.index.json").write_bytes(
        index({"layers/0/w": names[0], "other/w": names[1]})
    )
    with sv.open_checkpoint(tmp_path) as reader:
        assert {*reader.faults} == {"other.w"} and not reader.read("layers.0.w").any()
    (finding,) = FORMAT.open(LocalStorage(str(tmp_path)), "m.msgpack.index.json").findings()
    assert "layers.1.w" in finding.message and finding.is_damage


def test_names_lead_to_checkpoints(tmp_path: Path) -> None:
    for name in ("checkpoint_1", "checkpoint_2", "m.msgpack"):
        write(tmp_path / name, {"t": array()})
    (tmp_path / "checkpoint_3").write_bytes(b"text")
    storage = LocalStorage(str(tmp_path))
    names = ["checkpoint_1", "checkpoint_2", "checkpoint_3", "m.msgpack"]
    assert FORMAT.locate(storage, "") == names
    assert FORMAT.locate(storage, "checkpoint_2") == ["checkpoint_2"]
    assert FORMAT.locate(storage, "checkpoint_3") == FORMAT.locate(storage, "x") == []
    assert FORMAT.locate(storage, "m") == ["m.msgpack"]
    with pytest.raises(CheckpointNotFound):
        sv.load(tmp_path / "checkpoint_3")


def test_large_arrays_are_jumped_over_in_a_bucket(tmp_path: Path) -> None:
    """The structure of four arrays of 8 MiB takes a small read each."""
    data = packed({str(number): array((2 << 20,), data=bytes(8 << 20)) for number in range(4)})
    bucket = MemoryBucket({"run/m.msgpack": data})
    with in_bucket(bucket), sv.open_checkpoint("s3://bucket/run/m.msgpack") as reader:
        assert len(reader) == 4
    assert len(bucket.ranges) <= 8 and sum(nbytes for _, nbytes in bucket.ranges) < 3 << 20
