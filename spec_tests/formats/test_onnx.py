"""ONNX models: golden files of onnx, and models assembled field by field."""

import hashlib
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import CorruptCheckpoint, InvalidCheckpoint, MissingFile
from shardvar.formats.onnx import FORMAT
from shardvar.storage.local import LocalStorage
from shardvar.wire.protobuf import encode_varint
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.hostile import onnx
from spec_tests.hostile.tensorflow import proto

NARROW = {21: ("uint4", 4), 22: ("int4", 4), 25: ("uint2", 2), 26: ("int2", 2)}
NARROW |= {27: ("float6_e2m3fn", 6)}
"""The data types whose elements share bytes, with the bits of each."""


def write(folder: Path, *tensors: bytes, **more: Any) -> Path:
    (folder / "m.onnx").write_bytes(onnx.model(*tensors, **more))
    return folder / "m.onnx"


@given(st.sampled_from([*NARROW]), st.data())
def test_elements_that_share_bytes_are_unpacked_in_any_range(
    kind: int, data: st.DataObject
) -> None:
    """The oracle packs element by element, from the lowest bit on."""
    dtype, bits = NARROW[kind]
    codes = data.draw(st.lists(st.integers(0, (1 << bits) - 1), max_size=40))
    packed = sum(each << (bits * place) for place, each in enumerate(codes))
    octets = packed.to_bytes(-(-len(codes) * bits // 8), "little")
    signed = dtype.startswith("int")
    values = [each - (1 << bits) if signed and each >> (bits - 1) else each for each in codes]
    numpy_dtype = np.dtype(getattr(ml_dtypes, dtype))
    if bits == 6:
        expected = np.array(codes, np.uint8).view(numpy_dtype)
    else:
        expected = np.array(values, np.int8).astype(numpy_dtype)
    held = b"".join(map(encode_varint, codes if bits == 6 else octets))
    tensors = [
        onnx.tensor("raw", (len(codes),), kind, octets),
        onnx.tensor("numbers", (len(codes),), kind, held, onnx.INT32_DATA),
    ]
    first = data.draw(st.integers(0, len(codes)))
    stop = data.draw(st.integers(first, len(codes)))
    bucket = MemoryBucket({"run/m.onnx": onnx.model(*tensors)})
    with in_bucket(bucket), sv.open_checkpoint("s3://bucket/run/m.onnx") as reader:
        for key in ("raw", "numbers"):
            assert reader.read(key).tobytes() == expected.tobytes()
            assert (
                reader.read(key, (slice(first, stop),)).tobytes() == expected[first:stop].tobytes()
            )


INTEGERS = {2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16"}
INTEGERS |= {12: "uint32", 13: "uint64"}
FIELD_OF = {7: 7, 12: 11, 13: 11}


@given(st.sampled_from([*INTEGERS]), st.integers(1, 7), st.data())
def test_varints_are_read_in_any_order_of_ranges(kind: int, step: int, data: st.DataObject) -> None:
    """With few varints at a time, so that places between them are kept and used."""
    dtype = np.dtype(INTEGERS[kind])
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    count = data.draw(st.integers(0, 30))
    octets = rng.integers(0, 2 if kind == 9 else 256, count * dtype.itemsize).astype(np.uint8)
    values = octets.view(dtype)
    # ONNX stores the bits of narrow floats as integers, and signs of integers in 64 bits.
    bits = values.view(f"u{dtype.itemsize}") if kind in (9, 10, 12, 13) else values
    held = b"".join(encode_varint(int(each)) for each in bits)
    tensor = onnx.tensor("t", (count,), kind, held, FIELD_OF.get(kind, onnx.INT32_DATA))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardvar.formats.onnx._STEP", step)
        bucket = MemoryBucket({"run/m.onnx": onnx.model(tensor)})
        with in_bucket(bucket), sv.open_checkpoint("s3://bucket/run/m.onnx") as reader:
            for _ in range(4):
                first = data.draw(st.integers(0, count))
                stop = data.draw(st.integers(first, count))
                found = reader.read("t", (slice(first, stop),))
                assert found.tobytes() == values[first:stop].tobytes()
            assert reader.read("t").tobytes() == values.tobytes()


def test_external_data_are_found_in_folders_below_and_not_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "t").write_bytes(struct.pack("<4f", 1, 2, 3, 4))
    path = write(
        tmp_path,
        onnx.external(location="./weights/t"),
        onnx.external("u", (2,), location="weights/t", offset=8),
    )
    assert sv.load(path)["t"].tolist() == [1, 2, 3, 4] and sv.load(path)["u"].tolist() == [3, 4]
    (tmp_path / "weights" / "t").unlink()
    with sv.open_checkpoint(path) as reader:
        assert all(isinstance(reader.faults[key], MissingFile) for key in ("t", "u"))
    outside = write(tmp_path, onnx.external(location="weights/../../t"))
    with pytest.raises(InvalidCheckpoint, match="not in the folder of the model"):
        sv.load(outside)


def test_a_checksum_of_an_external_file_is_compared(tmp_path: Path) -> None:
    """By verify and reshard always, by load if it reads all bytes of the file."""
    octets = struct.pack("<4f", 1, 2, 3, 4)
    digest = hashlib.sha1(octets).hexdigest()
    halves = [
        onnx.external(name, (2,), location="data", offset=8 * place, length=8, checksum=digest)
        for place, name in enumerate("ab")
    ]
    path = write(tmp_path, *halves)
    (tmp_path / "data").write_bytes(octets)
    assert sv.verify(path).verdict == "values match" and sv.load(path)["b"].tolist() == [3, 4]
    (tmp_path / "data").write_bytes(octets[:-1] + b"\0")
    assert not sv.verify(path).ok and {each.key for each in sv.verify(path).damages} == {"a", "b"}
    for verb in (lambda: sv.load(path), lambda: sv.reshard(path, tmp_path / "m.safetensors")):
        with pytest.raises(CorruptCheckpoint, match="SHA-1"):
            verb()
    assert all(sv.load(path, [key]).keys() == {key} for key in "ab")
    with sv.open_checkpoint(path) as reader:
        assert reader.read("a").tolist() == [1, 2] and reader.unverified[0][0] == "a"
    with sv.open_checkpoint(path) as reader, pytest.raises(CorruptCheckpoint):
        reader.read("a", verify="full")


def test_names_lead_to_models(tmp_path: Path) -> None:
    write(tmp_path, onnx.tensor())
    for name in ("m.onnx.data", "m.onnx_data", "m.onnx_data_1", "other"):
        (tmp_path / name).write_bytes(b"")
    storage = LocalStorage(str(tmp_path))
    for name in ("", "m", "m.onnx", "m.onnx.data", "m.onnx_data", "m.onnx_data_1"):
        assert FORMAT.locate(storage, name) == ["m.onnx"], name
    assert FORMAT.locate(storage, "other") == []


def test_metadata_and_graphs_for_training_are_told(tmp_path: Path) -> None:
    octets = proto((1, 8), (2, b"maker"), (3, b"2"), (7, onnx.graph(onnx.tensor())))
    training = proto((2, onnx.graph(onnx.tensor("step"))))
    octets += proto((14, proto((1, b"author"), (2, b"somebody"))), (20, training))
    (tmp_path / "m.onnx").write_bytes(octets)
    with sv.open_checkpoint(tmp_path / "m.onnx") as reader:
        assert (
            reader.metadata.user == {"author": "somebody"} and reader.metadata.writer == "maker 2"
        )
        assert {*reader} == {"t"}
    report = sv.verify(tmp_path / "m.onnx")
    assert report.ok and any("training" in each for each in report.notes)
