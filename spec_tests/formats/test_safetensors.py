"""safetensors as a format: the golden checkpoints, writing and reading back, sets, names,
overwriting."""

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import InvalidCheckpoint, MissingFile, UnsupportedError
from shardvar.formats.safetensors import FORMAT
from shardvar.layout.dtypes import PACKED_BITS, TORCH_ONLY
from shardvar.planning.index import Metadata
from shardvar.storage.local import LocalStorage
from shardvar.wire.safetensors_header import SAFETENSORS_DTYPES
from spec_tests.helpers.format_protocol import (
    GOLDEN,
    expectation,
    findings,
    golden_cases,
    open_path,
    read_whole,
    some_arrays,
    write_arrays,
)
from spec_tests.helpers.map_arrays import assert_same
from spec_tests.hostile.safetensors import safetensors, tensor

OPAQUE = {*PACKED_BITS, *TORCH_ONLY}
"""Dtypes that NumPy does not have."""

Arrays = dict[str, np.ndarray[Any, Any]]
OLD: Arrays = {"a": np.arange(4.0), "b": np.arange(3), "c": np.ones((2, 2), np.int8)}
NEW: Arrays = {"a": -np.arange(4.0), "b": -np.arange(5), "d": np.zeros((), np.float32)}


def read(path: Path) -> Arrays:
    arrays, errors = read_whole(open_path(FORMAT, path))
    assert errors == {}
    return arrays


def test_metadata_of_a_golden_file_are_those_that_it_says() -> None:
    for case in golden_cases("safetensors"):
        expected = expectation("safetensors", case)
        if expected["verdict"] == "accept" and "metadata" in expected:
            source = open_path(FORMAT, GOLDEN / "safetensors" / case / expected["open"])
            assert source.index.metadata.user == (expected["metadata"] or {})


@given(arrays=some_arrays(sorted(SAFETENSORS_DTYPES - OPAQUE)), data=st.data())
def test_what_is_written_is_read_back(
    arrays: Arrays, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One file or a set, any dtype that the format has, big-endian and strided input included."""
    directory = tmp_path_factory.mktemp("written")
    file_of = {key: data.draw(st.integers(0, 3)) for key in arrays}
    said = Metadata("a policy", "", {"note": "kept", "": "empty"})
    write_arrays(FORMAT, LocalStorage(str(directory)), "m", arrays, file_of=file_of, metadata=said)
    source = open_path(FORMAT, directory)
    found, errors = read_whole(source)
    assert errors == {} and findings(source) == [] and source.index.metadata == said
    assert_same(
        found, {key: array.astype(array.dtype.newbyteorder("=")) for key, array in arrays.items()}
    )
    assert not [path.name for path in directory.iterdir() if ".tmp" in path.name]


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("", ["m.safetensors.index.json", "other.safetensors"]),
        ("m", ["m.safetensors.index.json"]),
        ("m.safetensors.index.json", ["m.safetensors.index.json"]),
        ("m-00002-of-00002.safetensors", ["m.safetensors.index.json"]),
        ("m-00003-of-00003.safetensors", []),
        ("other", ["other.safetensors"]),
        ("other.safetensors", ["other.safetensors"]),
        ("blob", ["blob"]),
        ("notes.txt", []),
        ("absent", []),
    ],
)
def test_a_checkpoint_is_found_by_whatever_name_a_person_has(
    typed: str, found: list[str], tmp_path: Path
) -> None:
    storage = LocalStorage(str(tmp_path))
    write_arrays(FORMAT, storage, "m", OLD, file_of={"a": 0, "b": 1, "c": 1})
    write_arrays(FORMAT, storage, "other", NEW)
    (tmp_path / "blob").write_bytes((tmp_path / "other.safetensors").read_bytes())
    (tmp_path / "notes.txt").write_text("nothing\n")
    assert FORMAT.locate(storage, typed) == found


def written_set(directory: Path) -> Path:
    """A set of three files, and its index."""
    write_arrays(FORMAT, LocalStorage(str(directory)), "m", OLD, file_of={"a": 0, "b": 1, "c": 2})
    return directory / "m.safetensors.index.json"


def test_files_with_each_others_names_are_named_with_what_to_do(tmp_path: Path) -> None:
    """One error for each key, with the file that holds it, and no finding that repeats it."""
    index = written_set(tmp_path)
    first, second, aside = (
        tmp_path / f"m-0000{number}-of-00003.safetensors" for number in (1, 2, 9)
    )
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    source = open_path(FORMAT, index)
    arrays, errors = read_whole(source)
    assert_same(arrays, {"c": OLD["c"]})
    assert errors["a"].cause.endswith(
        f"{first.name} does not hold it, as the index claims; {second.name} holds it."
    )
    assert errors["a"].remedy == errors["b"].remedy and "rename them" in errors["a"].remedy
    assert not source.findings()


@pytest.mark.parametrize(
    ("change", "messages", "is_damage"),
    [
        ({}, [], False),
        ({"total_size": 60.0}, [], False),
        ({"total_size": 61}, ["total_size is 61"], True),
        ({"total_size": "60"}, ["total_size is '60'"], True),
        ({"total_size": 1e999}, ["total_size"], True),
        ("m-00004-of-00003.safetensors", ["does not name it"], True),
        ("m-00001-of-00009.safetensors", ["does not name it"], True),
        ("adapter.safetensors", ["does not name it"], False),
    ],
)
def test_what_is_odd_about_a_set_is_told_and_keeps_no_key_from_being_read(
    change: dict[str, Any] | str, messages: list[str], is_damage: bool, tmp_path: Path
) -> None:
    """Other metadata of the index, or another file beside it."""
    index = written_set(tmp_path)
    if isinstance(change, str):
        shutil.copy(tmp_path / "m-00001-of-00003.safetensors", tmp_path / change)
    else:
        text = json.dumps(json.loads(index.read_text()) | {"metadata": change})
        index.write_text(text.replace("Infinity", "1e999"))
    source = open_path(FORMAT, index)
    assert_same(read_whole(source)[0], OLD)
    found = findings(source)
    assert len(found) == len(messages)
    for finding, message in zip(found, messages, strict=True):
        assert message in finding.message and finding.is_damage == is_damage


def test_an_index_that_names_no_tensor_does_not_hide_the_files_beside_it(tmp_path: Path) -> None:
    """Neither in the set nor in the folder; a file of another name is read by its path."""
    written_set(tmp_path).write_text('{"metadata": {"total_size": 0}, "weight_map": {}}')
    (tmp_path / "other.safetensors").write_bytes(
        (tmp_path / "m-00002-of-00003.safetensors").read_bytes()
    )
    for name in ("", "m", "m.safetensors.index.json", "m-00001-of-00003.safetensors"):
        with pytest.raises(InvalidCheckpoint, match=r"names no tensor\. Fetch it again"):
            sv.load(tmp_path / name)
        with pytest.raises(InvalidCheckpoint):
            sv.reshard(tmp_path / name, tmp_path / "new" / "m.npz")
        assert not sv.verify(tmp_path / name).ok
    assert_same(read(tmp_path / "other.safetensors"), {"b": OLD["b"]})
    assert not (tmp_path / "new").exists()


def test_parts_without_an_index_are_read_one_by_one_alone(tmp_path: Path) -> None:
    """Without it nobody knows whether they belong together: an overwrite may be under way."""
    written_set(tmp_path).unlink()
    with pytest.raises(MissingFile, match=r"m\.safetensors\.index\.json"):
        open_path(FORMAT, tmp_path)
    assert_same(read(tmp_path / "m-00002-of-00003.safetensors"), {"b": OLD["b"]})


def packed_file(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> Path:
    """Write a file of tensors of any dtype by hand."""
    header, data = dict[str, Any](), b""
    for key, (dtype, shape, payload) in tensors.items():
        header[key] = tensor(len(data), len(data) + len(payload), shape, dtype)
        data += payload
    path.write_bytes(safetensors(header, data))
    return path


SUB_BYTE: dict[str, tuple[str, list[int], bytes]] = {
    "F4": ("F4", [4, 8], bytes(range(16))),
    "odd": ("F4", [2, 3], b"\x21\x43\x65"),
    "F6_E2M3": ("F6_E2M3", [4, 2], b"abcdef"),
    "F6_E3M2": ("F6_E3M2", [2, 0], b""),
    "w": ("F32", [1], bytes(4)),
}


@pytest.mark.parametrize("way", [["a.safetensors"], ["a"], ["a", "b"]])
def test_elements_that_share_bytes_are_copied_byte_for_byte(tmp_path: Path, way: list[str]) -> None:
    """The size that dtype and shape give is the one in the file, in every format on the way."""
    path = source = packed_file(tmp_path / "m.safetensors", SUB_BYTE)
    for name in way:
        sv.reshard(path, tmp_path / name)
        path = tmp_path / name
        with sv.open_checkpoint(path) as reader:
            slices = reader.entries().slices
            nbytes = {slices.key(row): int(slices.nbytes[row]) for row in range(len(slices))}
            assert nbytes | {"w": 4} == {key: len(data) for key, (_, _, data) in SUB_BYTE.items()}
    sv.reshard(path, tmp_path / "back.safetensors")
    for each in (source, tmp_path / "back.safetensors"):
        header_size = int.from_bytes(each.read_bytes()[:8], "little")
        header = json.loads(each.read_bytes()[8 : 8 + header_size])
        for key, (dtype, shape, payload) in SUB_BYTE.items():
            begin, end = header[key]["data_offsets"]
            data = each.read_bytes()[8 + header_size :]
            assert (header[key]["dtype"], header[key]["shape"]) == (dtype, shape)
            assert data[begin:end] == payload


def test_elements_of_four_bits_have_values_and_elements_of_six_bits_have_none(
    tmp_path: Path,
) -> None:
    path = packed_file(tmp_path / "m.safetensors", SUB_BYTE)
    halves = [half for byte in range(16) for half in (byte & 15, byte >> 4)]
    expected = np.array(halves, np.uint8).view(ml_dtypes.float4_e2m1fn).reshape(4, 8)
    found = sv.load(path, keys=["F4", "odd"])
    np.testing.assert_array_equal(found["F4"], expected)
    assert found["odd"].astype(float).tolist() == [[0.5, 1, 1.5], [2, 3, 4]]
    with sv.open_checkpoint(path) as reader:
        np.testing.assert_array_equal(reader["F4"][1:3, ::2], expected[1:3, ::2])
    with pytest.raises(UnsupportedError, match="F6_E2M3"):
        sv.load(path, keys=["F6_E2M3"])
    sv.reshard(
        path,
        tmp_path / "cast",
        filter=["F4", "odd"],
        cast="float4_e2m1fn",
        format="shardvar",
        partition=2,
    )
    cast = sv.load(tmp_path / "cast")
    assert {*map(str, (each.dtype for each in cast.values()))} == {"float4_e2m1fn"}
    np.testing.assert_array_equal(cast["F4"], expected)
    np.testing.assert_array_equal(cast["odd"], found["odd"])
