"""Keras' files: the golden ones by Keras, through the verbs; and files of h5py with what Keras
never writes."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import (
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MissingFile,
    ShardvarError,
    UnsupportedError,
)
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


def error_of(path: Path, key: str) -> ShardvarError:
    with sv.open_checkpoint(path) as reader:
        return reader.faults[key]


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
        error = error_of(tmp_path / "m.h5", key)
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
        assert isinstance(error_of(tmp_path / "m.h5", "39"), InvalidCheckpoint)


def copy_set(directory: Path) -> Path:
    shutil.copytree(GOLDEN / "keras" / "sharded_weights", directory, dirs_exist_ok=True)
    (directory / "expected.json").unlink()
    return directory


def test_a_set_is_one_checkpoint_by_any_of_its_names(tmp_path: Path) -> None:
    copy_set(tmp_path)
    for name in ("", "m", "m.weights.json", "m_00000.weights.h5", "m_00001.weights.h5"):
        assert len(sv.load(tmp_path / name)) == 6
    (tmp_path / "m_00001.weights.h5").unlink()
    assert isinstance(error_of(tmp_path / "m.weights.json", "layers/dense_1/vars"), MissingFile)
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
