"""npz as a format: the golden archives, against NumPy both ways, and damage of every kind."""

import io
import pickle
import zipfile
import zlib
from collections.abc import Callable
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
    OutOfBounds,
    ShardvarError,
    UnsupportedError,
)
from shardvar.formats.npz import FORMAT, NpzWriter
from shardvar.formats.protocol import FileChecksums
from shardvar.planning.index import Metadata
from shardvar.planning.slices import Assignment, TensorTable
from shardvar.storage.local import LocalStorage
from shardvar.wire.npy import NPY_DTYPES
from shardvar.wire.zip import (
    build_central,
    build_end,
    build_local,
    find_directory,
    overlapping,
    parse_directory,
    plan_local_nbytes,
)
from spec_tests.helpers.format_protocol import (
    findings,
    open_path,
    read_whole,
    some_arrays,
    write_arrays,
)

Arrays = dict[str, np.ndarray[Any, Any]]
KEYS = st.text(max_size=8).filter(lambda key: not set("\0/\\") & set(key))
GOOD = np.arange(6, dtype=np.float32).reshape(2, 3)


def assert_same(arrays: Arrays, expected: Arrays) -> None:
    assert arrays.keys() == expected.keys()
    for key, array in arrays.items():
        assert (array.dtype, array.shape) == (
            expected[key].dtype.newbyteorder("="),
            expected[key].shape,
        ), key
        assert (
            array.tobytes() == np.ascontiguousarray(expected[key]).astype(array.dtype).tobytes()
        ), key


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


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("", ["m.npz"]),
        ("m", ["m.npz"]),
        ("m.npz", ["m.npz"]),
        ("blob", ["blob"]),
        ("torch.pt", []),
        ("absent", []),
    ],
)
def test_an_archive_is_found_by_whatever_name_a_person_has(
    typed: str, found: list[str], tmp_path: Path
) -> None:
    storage = LocalStorage(str(tmp_path))
    write_arrays(FORMAT, storage, "m", {"a": GOOD})
    (tmp_path / "blob").write_bytes((tmp_path / "m.npz").read_bytes())
    (tmp_path / "torch.pt").write_bytes(archive({"archive/data.pkl": b"."}))
    assert FORMAT.locate(storage, typed) == found


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


def change_local(position: int, mask: int) -> Callable[[bytearray], None]:
    """Flip bits of a byte of the second local header."""

    def change(data: bytearray) -> None:
        data[data.index(b"PK\x03\x04", 4) + position] ^= mask

    return change


def change_central(position: int, mask: int) -> Callable[[bytearray], None]:
    """Flip bits of a byte of the directory's second entry."""

    def change(data: bytearray) -> None:
        data[data.rindex(b"PK\x01\x02") + position] ^= mask

    return change


def change_both(position: int, mask: int) -> Callable[[bytearray], None]:
    """Flip bits of what both say, by its place in the local header."""

    def change(data: bytearray) -> None:
        change_local(position, mask)(data)
        change_central(position + 2, mask)(data)

    return change


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (change_both(6, 1), UnsupportedError),  # encrypted
        (change_local(6, 1), InvalidCheckpoint),
        (
            change_local(6, 1 << 1),
            InvalidCheckpoint,
        ),  # a flag that changes nothing for stored members
        (change_both(6, 1 << 5), InvalidCheckpoint),  # patched
        (change_both(7, 1 << 5), UnsupportedError),  # encrypted directory
        (change_central(10, 12), InvalidCheckpoint),  # bzip2, says the directory alone
        (change_both(8, 12), UnsupportedError),  # bzip2
        (change_both(8, 8), MalformedCheckpoint),  # stored bytes that claim to be deflated
        (change_local(8, 8), InvalidCheckpoint),
        (change_local(18, 1), InvalidCheckpoint),
        (change_central(20, 1), InvalidCheckpoint),
        (change_both(22, 1), InvalidCheckpoint),
        (change_both(14, 1), CorruptCheckpoint),  # the CRC
        (change_local(0, 1), MalformedCheckpoint),
        (change_local(30, 1), InvalidCheckpoint),  # the name
        (change_central(42, 1), MalformedCheckpoint),  # the offset
        (change_central(45, 1), OutOfBounds),
    ],
)
def test_two_accounts_of_a_member_that_disagree_refuse_it_and_no_other(
    change: Callable[[bytearray], None], error: type[ShardvarError], tmp_path: Path
) -> None:
    data = archive({"b.npy": npy(GOOD + 1), "x.npy": npy(GOOD)})
    change(data)
    found, errors = read_whole(opened(data, tmp_path))
    assert_same(found, {"b": GOOD + 1})
    assert {key: type(value) for key, value in errors.items()} == {"x": error}


def test_a_member_without_a_local_header_of_its_own_is_refused_with_the_one_whose_bytes_it_takes(
    tmp_path: Path,
) -> None:
    """Two entries of the directory for one local header: half of the bombs that inflate to
    petabytes."""
    data = archive({"x.npy": npy(GOOD), "y.npy": npy(GOOD), "b.npy": npy(GOOD)})
    second = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 1)
    data[second + 42 : second + 46] = bytes(4)
    data[second + 46 : second + 47] = b"x"
    found, errors = read_whole(opened(data, tmp_path))
    assert found.keys() == {"b"} and type(errors["x"]) is InvalidCheckpoint


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), max_size=8))
def test_ranges_overlap_as_their_definition_says(ranges: list[tuple[int, int]]) -> None:
    bytes_of = [set(range(start, start + nbytes)) for start, nbytes in ranges]
    expected = [
        row
        for row, own in enumerate(bytes_of)
        if any(own & other for n, other in enumerate(bytes_of) if n != row)
    ]
    start = np.array([start for start, _ in ranges], dtype=np.int64)
    assert (
        overlapping(start, start + np.array([n for _, n in ranges], dtype=np.int64)).tolist()
        == expected
    )


@pytest.mark.parametrize("names", [("x.npy", "x"), ("x", "x.npy"), ("x.npy", "x.npy")])
def test_two_members_of_one_key_are_both_refused(names: tuple[str, str], tmp_path: Path) -> None:
    """NumPy returns the last."""
    file = io.BytesIO()
    with (
        zipfile.ZipFile(file, "w") as written,
        pytest.warns() if names[0] == names[1] else _nothing(),
    ):
        written.writestr("b.npy", npy(GOOD))
        for number, name in enumerate(names):
            written.writestr(name, npy(GOOD + number))
    found, errors = read_whole(opened(file.getvalue(), tmp_path))
    assert found.keys() == {"b"} and type(errors["x"]) is InvalidCheckpoint


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()


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


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: b"x" + data,
        lambda data: data[:40],
        lambda data: data[data.index(b"PK\x01\x02") :],
        lambda data: data.replace(b"PK\x05\x06", b"PK\x05\x07"),
        lambda data: (
            data[:-12] + (3).to_bytes(2, "little") + data[-10:]
        ),  # three members, two listed
        lambda data: data[:-14] + (1).to_bytes(2, "little") * 2 + data[-10:],
        lambda data: data.replace(b"PK\x01\x02", b"PK\x01\x03"),
        lambda data: b"",
        lambda data: npy(GOOD),
        lambda data: b"version https://git-lfs.github.com/spec/v1\n",
        lambda data: pickle.dumps({"x": 1}),
    ],
)
def test_an_archive_whose_directory_is_not_sound_is_refused_whole(
    change: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    """What is whole by its local header can still be read by its key."""
    data = change(bytes(archive({"x.npy": npy(GOOD), "y.npy": npy(GOOD)})))
    with pytest.raises((MalformedCheckpoint, InvalidCheckpoint), match=r"m\.npz: "):
        source = opened(data, tmp_path)
        for key in read_whole(source)[0]:
            assert key in "xy"
            assert_same({key: read_whole(source)[0][key]}, {key: GOOD})
        raise next(iter(source.file_faults().values()))


def test_a_comment_after_the_directory_is_no_damage_even_if_it_looks_like_another(
    tmp_path: Path,
) -> None:
    data = archive({"x.npy": npy(GOOD)})
    comment = b"PK\x05\x06 and so on"
    data[-2:] = len(comment).to_bytes(2, "little")
    assert_same(read_whole(opened(bytes(data) + comment, tmp_path))[0], {"x": GOOD})


def test_a_stream_that_becomes_more_or_less_than_it_should_is_refused(tmp_path: Path) -> None:
    """A member's own size is what its stream must become, to the byte."""
    whole = npy(np.zeros(5000))
    for stream in (whole + b"\0", whole[:-1], whole + bytes(1 << 20)):
        data = archive({"x.npy": whole}, zipfile.ZIP_DEFLATED)
        stored = data.index(b"PK\x01\x02") - 30 - len("x.npy")
        compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
        packed = compressor.compress(stream) + compressor.flush()
        data = bytearray(bytes(data[:35]) + packed + bytes(data[35 + stored :]))
        at = data.index(b"PK\x01\x02")
        data[18:22] = data[at + 20 : at + 24] = len(packed).to_bytes(4, "little")
        data[-6:-2] = at.to_bytes(4, "little")
        _, errors = read_whole(opened(bytes(data), tmp_path))
        assert type(errors["x"]) is MalformedCheckpoint


def test_a_small_file_does_not_ask_for_much_memory_by_claiming_fortran_order(
    tmp_path: Path,
) -> None:
    """Other arrays are decoded piece by piece; these are held whole, so their inflation is
    bounded."""
    header = npy(np.zeros((2, 2), order="F")).replace(
        b"(2, 2), }" + b" " * 11, b"(200000, 1000), }   "
    )[:128]
    stored = zlib.compress(header, wbits=-15) + bytes(2_000_000)
    nbytes = 128 + 1_600_000_000
    local = build_local(64, b"x.npy", 0, nbytes)[:64]
    directory = build_central(0, b"x.npy", 0, nbytes)
    frames = [bytearray(local), bytearray(directory)]
    for frame, at in zip(frames, (8, 10), strict=True):
        frame[at : at + 2] = (8).to_bytes(2, "little")
        frame[at + 10 : at + 14] = len(stored).to_bytes(4, "little")
    end = build_end(64 + len(stored), len(directory), 1)
    source = opened(bytes(frames[0]) + stored + bytes(frames[1]) + end, tmp_path)
    assert source.index.find("x").slices[0].full_shape == (200000, 1000)
    with pytest.raises(UnsupportedError, match="3200000000 bytes of memory"):
        source.read_into(source.index.find("x"), 0, 0, memoryview(bytearray(8)))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_the_crc_of_an_array_without_elements_is_compared(method: int, tmp_path: Path) -> None:
    """Its payload is never read, but its header may be that of another array."""
    data = archive({"b.npy": npy(GOOD), "x.npy": npy(np.zeros((0, 3), np.int32))}, method)
    change_both(14, 1)(data)  # the CRC
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
    deflated = zlib.compress(member, wbits=-15) + tail
    frames = [
        bytearray(build_local(64, b"x.npy", zlib.crc32(member), len(member))),
        bytearray(build_central(0, b"x.npy", zlib.crc32(member), len(member))),
    ]
    for frame, at in zip(frames, (8, 10), strict=True):
        frame[at : at + 2] = (8).to_bytes(2, "little")
        frame[at + 10 : at + 14] = len(deflated).to_bytes(4, "little")
    end = build_end(len(frames[0]) + len(deflated), len(frames[1]), 1)
    _, errors = read_whole(opened(bytes(frames[0]) + deflated + bytes(frames[1]) + end, tmp_path))
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


def assignment_of(arrays: Arrays, num_files: int = 1) -> Assignment:
    slices = TensorTable.of(
        (key, str(array.dtype), array.shape) for key, array in arrays.items()
    ).whole()
    return Assignment(slices, np.arange(len(arrays)) % num_files, num_files)


@pytest.mark.parametrize(
    "key",
    [
        "/etc/passwd",
        "../x",
        "a/../../x",
        "..\\x",
        "C:\\x",
        "c:/x",
        "\\\\host\\x",
        "a\0b",
        "\udc80",
        "n" * 65533,
    ],
)
def test_a_key_that_would_be_unpacked_elsewhere_or_that_zip_cannot_hold_is_refused(
    key: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError):
        FORMAT.create(
            LocalStorage(str(tmp_path)), "m", assignment_of({key: GOOD}), Metadata(), "g1"
        )


@pytest.mark.parametrize(
    "key", ["a/b/.ATTRIBUTES/VALUE", "dense/kernel:0", "..", "a..b/c", "", "é", "w.npy", "./a"]
)
def test_other_keys_are_written_and_read_back(key: str, tmp_path: Path) -> None:
    write_arrays(FORMAT, LocalStorage(str(tmp_path)), "m", {key: GOOD})
    assert_same(read_whole(open_path(FORMAT, tmp_path))[0], {key: GOOD})


@given(
    start=st.integers(0, 2**40),
    nbytes=st.integers(0, 2**40),
    name=st.binary(min_size=1, max_size=30),
)
def test_headers_of_members_of_any_size_have_the_size_that_was_planned(
    start: int, nbytes: int, name: bytes
) -> None:
    """Zip64 where a number needs it, and the payload at a multiple of 64."""
    name = name.replace(b"\0", b"x").hex().encode()
    size = plan_local_nbytes(start, name, nbytes)
    header = build_local(size, name, 7, nbytes)
    assert len(header) == size and (start + size) % 64 == 0
    directory = build_central(start, name, 7, nbytes)
    end = build_end(start + size + nbytes, len(directory), 1)
    place = find_directory(directory + end, start + size + nbytes + len(directory + end))
    assert (place.start, place.nbytes, place.count) == (start + size + nbytes, len(directory), 1)
    member = parse_directory(directory, 1)[0]
    assert (member.raw_name, member.start, member.nbytes, member.stored_nbytes) == (
        name,
        start,
        nbytes,
        nbytes,
    )


def test_an_archive_of_more_members_than_16_bits_count_is_read_by_the_standard_library(
    tmp_path: Path,
) -> None:
    count = 65_537
    slices = TensorTable.of((f"{n:x}", "uint8", ()) for n in range(count)).whole()
    sink = FORMAT.create(
        LocalStorage(str(tmp_path)),
        "m",
        Assignment(slices, np.zeros(count, np.int64), 1),
        Metadata(),
        "g",
    )
    checksums = FileChecksums(np.full(count, zlib.crc32(b"\0")))
    data = bytearray(int(sink.start[-1]) + 1)
    for start, piece in NpzWriter().frame(slices, sink.start, checksums):
        data[start : start + len(piece)] = piece
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        assert len(file.namelist()) == count and file.read("10000.npy") == npy(
            np.zeros((), np.uint8)
        )
    assert sum(map(len, opened(data, tmp_path).index.scan())) == count
