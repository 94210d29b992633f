"""npz as a format: the golden archives, against NumPy both ways, and damage of every kind."""

import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardvar.errors import (
    CorruptCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
    UnsupportedError,
)
from shardvar.formats.npz import FORMAT
from shardvar.storage.local import LocalStorage
from shardvar.wire.npy import NPY_DTYPES
from spec_tests.helpers.format_protocol import (
    findings,
    open_path,
    read_whole,
    some_arrays,
    write_arrays,
)
from spec_tests.helpers.hypothesis_strategies import same
from spec_tests.hostile.npz import Member
from spec_tests.hostile.npz import archive as by_hand

Arrays = dict[str, np.ndarray[Any, Any]]
KEYS = st.text(max_size=8).filter(lambda key: not set("\0/\\") & set(key)) | st.sampled_from(
    ["a/b/.ATTRIBUTES/VALUE", "dense/kernel:0", "..", "a..b/c", "", "é", "w.npy", "./a"]
)
GOOD = np.arange(6, dtype=np.float32).reshape(2, 3)


def assert_same(arrays: Arrays, expected: Arrays) -> None:
    assert arrays.keys() == expected.keys()
    assert all(same(array, expected[key]) for key, array in arrays.items())


def npy(array: np.ndarray[Any, Any]) -> bytes:
    """The bytes of a member."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array)
    return file.getvalue()


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytearray:
    """A zip archive by the standard library."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as written:
        for name, data in members.items():
            written.writestr(name, data)
    return bytearray(file.getvalue())


def opened(data: bytes, directory: Path) -> Any:
    path = directory / "m.npz"
    path.write_bytes(data)
    return open_path(FORMAT, path)


@given(arrays=some_arrays(sorted(NPY_DTYPES), KEYS), is_deflated=st.booleans())
def test_what_numpy_writes_is_read(
    arrays: Arrays, is_deflated: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Stored and deflated, big-endian, in Fortran order, of rank 0, empty."""
    path = tmp_path_factory.getbasetemp() / "numpy.npz"
    with zipfile.ZipFile(
        path, "w", zipfile.ZIP_DEFLATED if is_deflated else zipfile.ZIP_STORED
    ) as file:
        for key, array in arrays.items():
            with file.open(f"{key}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array)
    found, errors = read_whole(open_path(FORMAT, path))
    assert errors == {}
    assert_same(found, arrays)


@given(arrays=some_arrays(sorted(NPY_DTYPES), KEYS))
def test_what_is_written_numpy_reads_and_so_do_we(
    arrays: Arrays, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("written")
    write_arrays(FORMAT, LocalStorage(str(directory)), "m", arrays)
    assert [path.name for path in directory.iterdir()] == ["m.npz"]
    with np.load(directory / "m.npz") as numpys:
        # Its own lookup prefers a member that is called like the key (`w.npy`), so members are
        # asked for.
        assert_same(
            {name.removesuffix(".npy"): numpys[name] for name in numpys.zip.namelist()}, arrays
        )
        assert numpys.zip.testzip() is None
    source = open_path(FORMAT, directory)
    found, errors = read_whole(source)
    assert errors == {}
    assert_same(found, arrays)
    for entries in source.index.scan():
        assert entries.plain.all() and (entries.start % 64 == 0).all()


@pytest.mark.parametrize("array", [GOOD.T, GOOD.astype(">f4"), GOOD.T.astype(">c16"), GOOD])
@given(spans=st.lists(st.tuples(st.integers(0, 96), st.integers(0, 40)), max_size=5))
def test_any_part_of_an_array_that_is_decoded_can_be_read(
    array: np.ndarray[Any, Any],
    spans: list[tuple[int, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Forwards, backwards, within an element, and again."""
    source = opened(
        archive({"x.npy": npy(array)}, zipfile.ZIP_DEFLATED), tmp_path_factory.getbasetemp()
    )
    expected = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("=")).tobytes()
    entries = source.index.find("x")
    assert not entries.plain[0]
    for start, nbytes in [*spans, (0, len(expected))]:
        start = min(start, len(expected))
        buffer = bytearray(min(nbytes, len(expected) - start))
        source.read_into(entries, 0, start, memoryview(buffer))
        assert buffer == expected[start : start + len(buffer)]


@pytest.mark.parametrize("names", [("x.npy", "x"), ("x", "x.npy")])
def test_two_members_of_one_key_are_both_refused(names: tuple[str, str], tmp_path: Path) -> None:
    """NumPy returns the last."""
    members = {"b.npy": npy(GOOD), names[0]: npy(GOOD), names[1]: npy(GOOD + 1)}
    found, errors = read_whole(opened(archive(members), tmp_path))
    assert found.keys() == {"b"} and type(errors["x"]) is InvalidCheckpoint


def test_a_member_that_is_no_array_is_told_and_one_that_should_be_is_a_fault(
    tmp_path: Path,
) -> None:
    """NumPy returns the raw bytes of both."""
    source = opened(
        archive({"README": b"hello", "x.npy": b"no magic", "y.npy": b"", "b": npy(GOOD)}), tmp_path
    )
    found, errors = read_whole(source)
    assert_same(found, {"b": GOOD})
    assert {key: type(error) for key, error in errors.items()} == {
        "x": MalformedCheckpoint,
        "y": MalformedCheckpoint,
    }
    assert [(finding.place, finding.is_damage) for finding in findings(source)] == [
        ("README", False)
    ]


def deflated(stored: bytes, crc: int, nbytes: int) -> bytes:
    """An archive of one member whose compressed bytes, CRC and size are these."""
    return by_hand(Member("x.npy", stored, 8, nbytes, crc))


def test_a_small_file_does_not_ask_for_much_memory_by_claiming_fortran_order(
    tmp_path: Path,
) -> None:
    """Other arrays are decoded piece by piece; these are held whole, so their inflation is
    bounded."""
    shape = b"(2, 2), }" + b" " * 11, b"(200000, 1000), }   "
    header = npy(np.zeros((2, 2), order="F")).replace(*shape)[:128]
    stored = zlib.compress(header, wbits=-15) + bytes(2_000_000)
    source = opened(deflated(stored, 0, 128 + 1_600_000_000), tmp_path)
    assert source.index.find("x").slices[0].full_shape == (200000, 1000)
    with pytest.raises(UnsupportedError, match="3200000000 bytes of memory"):
        source.read_into(source.index.find("x"), 0, 0, memoryview(bytearray(8)))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_the_crc_of_an_array_without_elements_is_compared(method: int, tmp_path: Path) -> None:
    """Its payload is never read, but its header may be that of another array. It is a fault of this
    key, and the others are read."""
    data = archive({"b.npy": npy(GOOD), "x.npy": npy(np.zeros((0, 3), np.int32))}, method)
    data[data.index(b"PK\x03\x04", 4) + 14] ^= 1
    data[data.rindex(b"PK\x01\x02") + 16] ^= 1
    source = opened(data, tmp_path)
    assert {key: type(error) for key, error in source.index.faults.items()} == {
        "x": CorruptCheckpoint
    }
    assert_same(read_whole(source)[0], {"b": GOOD})


@pytest.mark.parametrize("tail", [b"\0", b"other bytes", b"\x03\0"])
def test_bytes_after_the_end_of_a_deflate_stream_refuse_the_member(
    tail: bytes, tmp_path: Path
) -> None:
    """Its CRC is right and its sizes agree, but another reader might take the bytes for a part of
    it."""
    member = npy(GOOD)
    data = deflated(zlib.compress(member, wbits=-15) + tail, zlib.crc32(member), len(member))
    _, errors = read_whole(opened(data, tmp_path))
    assert {key: type(error) for key, error in errors.items()} == {"x": MalformedCheckpoint}
    assert "followed by others" in errors["x"].cause


def test_many_streams_are_read_by_turns(tmp_path: Path) -> None:
    """More arrays than streams are kept, each a piece at a time."""
    arrays = {f"k{n}": np.arange(1000, dtype=np.int32) * n for n in range(9)}
    source = opened(
        archive({f"{k}.npy": npy(a) for k, a in arrays.items()}, zipfile.ZIP_DEFLATED), tmp_path
    )
    payloads = {key: bytearray(4000) for key in arrays}
    for start in range(0, 4000, 500):
        for key, payload in payloads.items():
            source.read_into(
                source.index.find(key), 0, start, memoryview(payload)[start : start + 500]
            )
    assert {key: bytes(payload) for key, payload in payloads.items()} == {
        k: a.tobytes() for k, a in arrays.items()
    }


KEYS_ELSEWHERE = ["/etc/passwd", "../x", "a/../../x", "..\\x", "C:\\x", "c:/x", "\\\\host\\x"]


@pytest.mark.parametrize("key", [*KEYS_ELSEWHERE, "a\0b", "\udc80", "n" * 65533])
def test_a_key_that_would_be_unpacked_elsewhere_or_that_zip_cannot_hold_is_refused(
    key: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError):
        write_arrays(FORMAT, LocalStorage(str(tmp_path)), "m", {key: GOOD})
