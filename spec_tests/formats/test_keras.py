"""Keras' files: files of h5py with what Keras never writes, and the lists of names in files of Keras
2: what a file has lost is named, and lists that lie cost little."""

import os
import shutil
import struct
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli import main
from shardvar.errors import (
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
    MissingFile,
    ShardvarError,
    UnsupportedError,
)
from shardvar.formats.hdf5 import Hdf5Texts
from shardvar.formats.keras import FORMAT
from shardvar.storage.local import LocalStorage
from spec_tests.helpers.damage import flip
from spec_tests.helpers.format_protocol import GOLDEN
from spec_tests.helpers.hypothesis_strategies import same
from spec_tests.hostile.keras import MEMBER
from spec_tests.hostile.npz import Member, archive

h5py = pytest.importorskip("h5py", reason="h5py is not installed")

TABLE = np.arange(60.0).reshape(5, 12)
STORED: dict[str, dict[str, Any]] = {
    "big_endian": {"data": TABLE.astype(">i4")},
    "chunked": {"data": TABLE, "chunks": (2, 5)},
    "deflated": {"data": TABLE, "chunks": (5, 1), "compression": "gzip", "shuffle": True},
    "lzf": {"data": TABLE.astype(">u2"), "chunks": (3, 5), "compression": "lzf"},
    "guarded": {"data": np.arange(60).astype(">c16"), "chunks": (7,), "fletcher32": True},
    "scalar": {"data": np.float32(2.5)},
    "bool": {"data": np.array([True, False])},
    "nothing": {"data": np.zeros((0, 3), np.float32)},
}


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A file with arrays that are stored in every way."""
    with h5py.File(tmp_path / "m.h5", "w") as file:
        for name, how in STORED.items():
            file.create_dataset(f"a/{name}", **how)
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((3,))
        compact = h5py.h5d.create(file["a"].id, b"compact", h5py.h5t.IEEE_F64LE, space, plist)
        compact.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(3.0))
    return tmp_path / "m.h5"


def test_arrays_are_read_however_they_are_stored(many: Path) -> None:
    loaded = sv.load(many)
    assert loaded.pop("a/compact").tolist() == [0, 1, 2]
    assert loaded.keys() == {f"a/{name}" for name in STORED}
    for name, how in STORED.items():
        expected = how["data"].astype(how["data"].dtype.newbyteorder("<"))
        found = loaded[f"a/{name}"]
        assert found.dtype == expected.dtype and same(found, expected), name
    sv.reshard(many, many.parent / "m.npz")
    assert sv.diff(many, many.parent / "m.npz").equal


@given(data=st.data())
def test_a_part_of_a_payload_is_a_part_of_the_whole(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("keras")
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    dtype = data.draw(st.sampled_from([">f4", "<u2", ">i8"]))
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    parts = tuple(data.draw(st.integers(1, extent)) for extent in shape)
    with h5py.File(directory / "m.h5", "w") as file:
        file.create_dataset("x", data=array, chunks=parts)
    source = FORMAT.open(LocalStorage(str(directory)), "m.h5")
    octets = array.astype(array.dtype.newbyteorder("<")).tobytes()
    (entries,) = source.index.scan()
    start, stop = sorted(data.draw(st.integers(0, len(octets))) for _ in range(2))
    part = bytearray(stop - start)
    source.read_into(entries, 0, start, memoryview(part))
    assert part == octets[start:stop]
    source.close()


def test_threads_that_read_different_arrays_do_not_mix_them(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        for number in range(8):
            file.create_dataset(str(number), data=np.full(1000, number, ">i4"), chunks=(100,))
    with sv.open_checkpoint(tmp_path / "m.h5") as reader, ThreadPoolExecutor(8) as pool:
        keys = [str(number) for number in range(8)] * 40
        for key, array in zip(keys, pool.map(reader.read, keys), strict=True):
            assert (array == int(key)).all()


def test_large_rows_are_decoded_in_units(tmp_path: Path) -> None:
    """Along an inner axis, so that a part of a row does not take the memory of the row."""
    array = np.arange(2 * 3 * 300_000, dtype=">i4").reshape(2, 3, 300_000)
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.create_dataset("x", data=array, chunks=(1, 2, 100_000))
    assert np.array_equal(sv.load(tmp_path / "m.h5")["x"], array)
    with sv.open_checkpoint(tmp_path / "m.h5") as reader:
        assert reader.read("x", np.s_[1, 1, 7:9]).tolist() == array[1, 1, 7:9].tolist()


def test_checksums_of_hdf5_are_compared_and_count(many: Path) -> None:
    report = sv.verify(many)
    kinds = {report.outcomes[f"a/{name}"] for name in ("guarded", "chunked")}
    assert report.ok and kinds == {"not verifiable"}
    flip(many, many.read_bytes().index(np.arange(7).astype(">c16").tobytes()) + 3)
    assert sv.verify(many).outcomes["a/guarded"] == "damaged"
    with pytest.raises(CorruptCheckpoint, match="a/guarded"):
        sv.load(many)


def test_fletcher32_by_itself_is_never_called_ok(tmp_path: Path) -> None:
    """A chunk may be written without its filters, and then nothing is compared."""
    with h5py.File(tmp_path / "m.h5", "w") as file:
        dataset = file.create_dataset("a", data=np.arange(4.0), chunks=(2,), fletcher32=True)
        dataset.id.write_direct_chunk((2,), np.array([9.0, 9.0]).tobytes(), filter_mask=1)
    assert sv.load(tmp_path / "m.h5")["a"].tolist() == [0, 1, 9, 9]
    assert sv.verify(tmp_path / "m.h5").outcomes == {"a": "not verifiable"}


def faults(path: Path) -> dict[str, ShardvarError]:
    with sv.open_checkpoint(path) as reader:
        return dict(reader.faults)


def test_data_in_other_files_are_refused_and_the_files_not_opened(tmp_path: Path) -> None:
    """External storage, external links and virtual datasets, whose files are fifos: opening one
    would hang."""
    (tmp_path / "raw").write_bytes(bytes(80))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.arange(10.0)
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.create_dataset("stored", (10,), "<f8", external=[(str(tmp_path / "raw"), 0, 80)])
        layout = h5py.VirtualLayout((10,), "<f8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (10,))
        file.create_virtual_dataset("virtual", layout)
        file["linked"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "x")
        file["good"] = np.arange(3.0)
    for name in ("raw", "other.h5"):
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
    for key in ("stored", "virtual", "linked"):
        error = faults(tmp_path / "m.h5")[key]
        assert isinstance(error, UnsupportedError) and "not " in error.cause and error.remedy
    assert sv.load(tmp_path / "m.h5", ["good"])["good"].tolist() == [0, 1, 2]


def test_what_cannot_be_read_is_a_fault_of_its_key(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file.create_dataset("never", (4,), "<f4")
        part = file.create_dataset("in_part", (4,), "<f4", chunks=(2,))
        part[:2] = 1
        file.create_dataset("text", data="a text")
        file.create_dataset("compound", data=np.zeros(2, [("a", "f4"), ("b", "i4")]))
        file.create_dataset("empty", data=h5py.Empty("f4"))
        file.create_dataset("huge_chunk", (1 << 13, 1 << 12), "<f4", chunks=(1 << 13, 1 << 12))
        file.create_dataset("opaque", data=np.zeros(2, "V2"))
        file.create_dataset("nbit", data=np.arange(4, dtype="u4"), chunks=(4,), scaleoffset=8)
        file["good"] = np.arange(3.0)
    with sv.open_checkpoint(tmp_path / "m.h5") as reader:
        found = {key: type(error) for key, error in reader.faults.items()}
        lost = dict.fromkeys(("never", "in_part"), IncompleteCheckpoint)
        unread = dict.fromkeys(
            "text compound empty huge_chunk opaque nbit".split(), UnsupportedError
        )
        assert found == lost | unread
        assert reader.read("good").tolist() == [0, 1, 2]


def test_integers_that_do_not_fill_their_bytes_are_not_read_in_place(tmp_path: Path) -> None:
    kind = h5py.h5t.STD_I32LE.copy()
    kind.set_precision(24)
    kind.set_offset(8)
    with h5py.File(tmp_path / "m.h5", "w") as file:
        stored = h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((3,)))
        stored.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array([1, -2, 3], "<i4"))
    assert sv.load(tmp_path / "m.h5")["x"].tolist() == [1, -2, 3]


def test_groups_are_entered_once(tmp_path: Path) -> None:
    """Hard links may lead in circles, or to 2^40 paths."""
    with h5py.File(tmp_path / "m.h5", "w") as file:
        group = file.create_group("0")
        for _ in range(1, 40):
            inner = group.create_group("a")
            group["b"] = inner
            group = inner
        group["x"] = np.arange(3.0)
        group["top"] = file["0"]
        file["soft"] = h5py.SoftLink("/0")
        file["dangling"] = h5py.SoftLink("/nowhere")
    report = sv.verify(tmp_path / "m.h5")
    assert report.ok and report.num_tensors == 1 and len(report.notes) == 2


def test_one_array_under_many_names_does_not_become_many_large_ones(tmp_path: Path) -> None:
    for how in ({}, {"chunks": (1 << 10,)}):
        with h5py.File(tmp_path / "m.h5", "w") as file:
            file.create_dataset("0", data=np.zeros(1 << 15), **how)  # type: ignore[arg-type]
            for number in range(1, 40):
                file[str(number)] = file["0"]
        assert isinstance(faults(tmp_path / "m.h5")["39"], InvalidCheckpoint)


def copy_set(directory: Path) -> Path:
    shutil.copytree(GOLDEN / "keras" / "sharded_weights", directory, dirs_exist_ok=True)
    (directory / "expected.json").unlink()
    return directory


def test_a_set_is_one_checkpoint_by_any_of_its_names(tmp_path: Path) -> None:
    copy_set(tmp_path)
    for name in ("", "m", "m.weights.json", "m_00000.weights.h5", "m_00001.weights.h5"):
        assert len(sv.load(tmp_path / name)) == 6
    (tmp_path / "m_00001.weights.h5").unlink()
    assert isinstance(faults(tmp_path / "m.weights.json")["layers/dense_1/vars"], MissingFile)
    assert sv.load(tmp_path, ["layers/dense/vars/1"])["layers/dense/vars/1"].shape == (64,)
    with pytest.raises(MissingFile, match="m_00001"):
        sv.load(tmp_path)


def test_the_set_of_a_model_without_weights_is_an_empty_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "m.weights.json").write_text('{"metadata": {"total_size": 0}, "weight_map": {}}')
    report = sv.verify(tmp_path / "m.weights.json")
    assert report.ok and report.num_tensors == 0 and sv.load(tmp_path) == {}


def test_a_compressed_archive_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "m.keras").write_bytes(archive(Member(MEMBER, b"\3\0", 8, 1000, 0)))
    with pytest.raises(UnsupportedError, match="zip -0"):
        sv.load(tmp_path / "m.keras")


LIBVERS = ("earliest", "v108", "v110", "latest")
LAYERS: dict[str, tuple[str, ...]] = {"drop": ()}
LAYERS |= {"dense": ("dense/kernel:0", "dense/bias:0"), "outer": ("outer/inner/kernel:0",)}


def names(texts: Sequence[str], kind: str) -> Any:
    """Names as the value of an attribute: of one size, of any size as Keras writes few, or of any
    size and UTF-8."""
    octets = [text.encode() for text in texts]
    if not texts:
        return []
    return {"fixed": np.array(octets), "bytes": octets, "text": list(texts)}[kind]


def write(path: Path, kind: str = "bytes", libver: str = "earliest", lists: bool = True) -> None:
    """Write a file as Keras 2 does."""
    with h5py.File(path, "w", libver=libver) as file:
        group = file.create_group("model_weights")
        if lists:
            group.attrs["layer_names"] = names(list(LAYERS), kind)
        for layer, weights in LAYERS.items():
            inner = group.create_group(layer)
            if lists:
                inner.attrs["weight_names"] = names(weights, kind)
            for weight in weights:
                inner[weight] = np.arange(3.0)


KEY = "model_weights/dense/dense/bias:0"


@pytest.mark.parametrize("libver", LIBVERS)
@pytest.mark.parametrize("kind", ["fixed", "bytes", "text"])
def test_a_weight_that_a_list_names_and_the_file_lacks_is_damage(
    kind: str, libver: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """R-DAMAGE-1 (RFC 001): of itself; the other weights are read."""
    path = tmp_path / "m.h5"
    write(path, kind, libver)
    assert sv.verify(path).ok and sv.verify(path).notes == ()
    whole = sv.load(path)
    with h5py.File(path, "a") as file:
        del file[KEY]
    report = sv.verify(path)
    assert [(each.kind, each.key) for each in report.damages] == [("IncompleteCheckpoint", KEY)]
    with pytest.raises(
        IncompleteCheckpoint, match=r"bias:0.*The file lacks it.*'model_weights/dense/weight_names'"
    ):
        sv.load(path)
    assert sv.load(path, [key for key in whole if key != KEY]).keys() == whole.keys() - {KEY}
    main(["inspect", str(path)])
    assert KEY in capsys.readouterr().out


def test_a_list_in_parts_is_one_list(tmp_path: Path) -> None:
    """An attribute has at most 64 KiB, and Keras writes longer lists in numbered parts."""
    weights = np.array([f"block_{number}/{'k' * 60}:0".encode() for number in range(3000)])
    parts = np.array_split(weights, 4)
    with h5py.File(tmp_path / "m.h5", "w") as file:
        group = file.create_group("dense")
        for number, part in enumerate(parts):
            group.attrs[f"weight_names{number}"] = part
        for weight in weights:
            group[weight] = np.float32(1)
        for part in parts:
            del group[part[7]]
    assert faults(tmp_path / "m.h5").keys() == {f"dense/{part[7].decode()}" for part in parts}


def test_what_a_name_reaches_in_any_way_is_not_lost(tmp_path: Path) -> None:
    """Links, groups of two paths, absolute paths, and dots."""
    with h5py.File(tmp_path / "m.h5", "w") as file:
        file["real/x"] = np.arange(3.0)
        file["alias"] = file["real"]
        group = file.create_group("listed")
        group["hard"] = file["real/x"]
        group["soft"] = h5py.SoftLink("/real/x")
        group["deep"] = h5py.SoftLink("/real")
        group["group"] = file["real"]
        group["away"] = h5py.ExternalLink("other.h5", "/g")
        group["dangling"] = h5py.SoftLink("/nowhere")
        group.attrs["weight_names"] = (
            "hard soft deep/x group/x away/x dangling/x /real/x /alias/x ./hard .//hard".split()
        )
    assert faults(tmp_path / "m.h5").keys() == {"listed/away"}  # a link that is not followed
    with h5py.File(tmp_path / "m.h5", "a") as file:
        lost = "/alias/y group/y hard/y group/x/y ./lost lost".split()
        file["listed"].attrs["weight_names"] = lost
    keys = {f"listed/{name}" for name in ("away", "group/y", "hard/y", "group/x/y", "lost")}
    assert faults(tmp_path / "m.h5").keys() == {"alias/y", *keys}


def test_a_name_that_is_not_a_path_is_a_fault_of_its_list(tmp_path: Path) -> None:
    for name in ("", ".", "/"):
        with h5py.File(tmp_path / "m.h5", "w") as file:
            file["x"] = np.arange(3.0)
            file.attrs["weight_names"] = ["x", name]
        assert {key: type(error) for key, error in faults(tmp_path / "m.h5").items()} == {
            "weight_names": InvalidCheckpoint
        }


@pytest.mark.parametrize(
    ("libver", "value"),
    [("earliest", [1, 2]), ("earliest", h5py.Empty("f4")), ("latest", ["w"])],
    ids=["numbers", "empty", "elsewhere"],
)
def test_a_list_that_is_not_read_is_noted_and_not_damage(
    libver: str, value: Any, tmp_path: Path
) -> None:
    """Numbers, and texts of any size among so many attributes that HDF5 keeps them elsewhere."""
    with h5py.File(tmp_path / "m.h5", "w", libver=libver) as file:
        file["x"] = np.arange(3.0)
        file.attrs["weight_names"] = value
        for number in range(20):
            file.attrs[f"other_{number}"] = number
    report = sv.verify(tmp_path / "m.h5")
    is_empty = isinstance(value, h5py.Empty)
    assert report.ok and len(report.notes) == (0 if is_empty else 1)
    assert is_empty or "'weight_names'" in str(report.notes[0]), report.notes


def test_offsets_of_other_sizes_are_noted(tmp_path: Path) -> None:
    """A file may have offsets of 4 bytes, which no known writer chooses."""
    plist = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    plist.set_sizes(4, 4)
    with h5py.File(h5py.h5f.create(bytes(tmp_path / "m.h5"), fcpl=plist)) as file:
        file["x"] = np.arange(3.0)
        file.attrs["weight_names"] = ["x", "lost"]
        file.attrs["keras_version"] = "2.15.0"
    report = sv.verify(tmp_path / "m.h5")
    assert report.ok and "'weight_names'" in str(report.notes[0])


TEXTS = st.lists(
    st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40),
    max_size=30,
)


@given(
    libver=st.sampled_from(LIBVERS),
    texts=st.lists(TEXTS, min_size=1, max_size=6),
    numbers=st.integers(0, 3),
    ordered=st.booleans(),
)
def test_texts_are_those_that_h5py_reads(
    libver: str,
    texts: list[list[str]],
    numbers: int,
    ordered: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("texts") / "m.h5"
    with h5py.File(path, "w", libver=libver) as file:
        group = file.create_group("g", track_order=ordered)
        for number in range(numbers):
            group.attrs[f"number_{number}"] = np.arange(number, dtype="i4")
        for number, value in enumerate(texts):
            group.attrs.create(f"t{number}", np.array(value, object), dtype=h5py.string_dtype())
        header = h5py.h5o.get_info(group.id).addr
    octets = path.read_bytes()
    found = Hdf5Texts(lambda start, nbytes: octets[start : start + nbytes], len(octets))
    for number, value in enumerate(texts):
        read = found.read_texts(header, f"t{number}".encode(), len(value))
        is_elsewhere = (ordered or libver != "earliest") and len(texts) + numbers > 8
        assert read == [text.encode() for text in value] or (read is None and is_elsewhere)
    assert found.read_texts(header, b"missing", 1) is None


def test_a_text_that_claims_gigabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """HDF5 takes the memory first: of a list, of Keras' version, and of the dtype of an array."""
    for attribute, owner in (("weight_names", "/"), ("keras_version", "/"), ("dtype", "x")):
        with h5py.File(tmp_path / "m.h5", "w") as file:
            file["x"] = np.zeros(2, "V2")
            file[owner].attrs[attribute] = "a text of 21 bytes..."
        data = (tmp_path / "m.h5").read_bytes()
        claimed = data.replace(struct.pack("<I", 21), struct.pack("<I", (1 << 32) - 1))
        assert claimed != data
        (tmp_path / "m.h5").write_bytes(claimed)
        error = faults(tmp_path / "m.h5")["x" if owner == "x" else attribute]
        assert isinstance(error, (InvalidCheckpoint, MalformedCheckpoint)), error


def test_short_names_under_a_long_path_do_not_become_many_long_keys(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "m.h5", "w") as file:
        group = file.create_group("p" * 60_000)
        group.attrs["weight_names"] = np.array([f"{number:04}".encode() for number in range(9000)])
    tracemalloc.start()
    try:
        (error,) = faults(tmp_path / "m.h5").values()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(error, InvalidCheckpoint) and "of this size" in error.cause
    assert peak < (4 << 20) + 300 * (tmp_path / "m.h5").stat().st_size


def message(kind: int, body: bytes) -> bytes:
    return struct.pack("<HHB3x", kind, len(body), 0) + body


def headed(*messages: bytes) -> bytes:
    """An object header of version 1, at the beginning of the bytes."""
    octets = b"".join(messages)
    return struct.pack("<BxHII4x", 1, len(messages), 1, len(octets)) + octets


def attribute(name: bytes, values: bytes) -> bytes:
    return message(12, struct.pack("<BxHHH", 2, len(name), 0, 0) + name + values)


@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"\1",
        b"a picture" * 9,
        headed(message(16, struct.pack("<QQ", 16, 24))),  # it continues where it begins
        headed(message(16, struct.pack("<QQ", 1 << 63, 1 << 40))),
        headed(message(16, b"nowhere")),
        headed(message(12, b"short")),
        headed(attribute(b"w", bytes(8))),
        headed(attribute(b"w", struct.pack("<IQI", 3, 0, 1))),  # the collection is this header
        headed(attribute(b"w", struct.pack("<IQI", 3, 1 << 63, 1))),
        b"OHDR\2\3" + b"\xff" * 8,
    ],
)
def test_a_structure_that_lies_is_an_error(octets: bytes) -> None:
    """h5py has decoded the same structure before, but the bytes may have changed since."""
    texts = Hdf5Texts(lambda start, nbytes: octets[start : start + nbytes], len(octets))
    with pytest.raises((MalformedCheckpoint, InvalidCheckpoint)):
        texts.read_texts(0, b"w", 1)
