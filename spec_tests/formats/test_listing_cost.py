"""Opening and listing cost requests that do not grow with the number of tensors.

Law: for each format, a checkpoint of 400 tensors is opened and its keys, dtypes and shapes are
listed with as many requests as one of 4. ``BY_FILE`` lists the formats that cost requests by file
or by tensor, with what they may cost. A load reads neighbours together, and each byte once;
``LOADED_BY_TENSOR`` lists the formats that take requests by tensor.

Payloads that are read together with their frames: for the formats whose checksums or places are next
to the payloads, what a verb returns or finds in a bucket is what it returns or finds on a disk, for
whole and damaged checkpoints, and reading all of many tensors costs about a request for each 4 MiB.
"""

import os
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.cli import main
from shardvar.formats.deferred import ADDRESSES, Enclosed
from shardvar.formats.files import DataFiles
from shardvar.storage.remote import AHEAD_NBYTES, TRAITS, RemoteStorage
from spec_tests.helpers.memory_bucket import MemoryBucket, count_requests, in_bucket, in_memory
from spec_tests.helpers.orbax_files import write_database
from spec_tests.helpers.paths import GOLDEN
from spec_tests.hostile import onnx
from spec_tests.hostile.evidence import EVIDENCE

SHAPE, NBYTES = (8, 512), 16 << 10
"""Of each tensor: larger than the reads by which small ones come together."""


def by_save(name: str, **options: Any) -> Callable[[Path, int], str]:
    def write(folder: Path, count: int) -> str:
        rng = np.random.default_rng(0)
        tensors = {f"layer.{number:03}": rng.random(SHAPE, np.float32) for number in range(count)}
        sv.save(folder / name, tensors, **options)
        return name

    return write


def by_row(name: str) -> Callable[[Path, int], str]:
    """Return what writes a checkpoint of a format that shardvar only reads."""
    row = EVIDENCE[name]

    def write(folder: Path, count: int) -> str:
        if name == "keras":
            pytest.importorskip("h5py")
        assert row.make is not None
        arrays = {f"layer.{number:03}": np.zeros(SHAPE, np.float32) for number in range(count)}
        for file, octets in row.make(arrays).items():
            (folder / file).write_bytes(octets)
        return row.file

    return write


def write_onnx(folder: Path, count: int) -> str:
    tensors = [
        onnx.tensor(f"layer.{number:03}", SHAPE, data=bytes(NBYTES)) for number in range(count)
    ]
    (folder / "m.onnx").write_bytes(onnx.model(*tensors))
    return "m.onnx"


def write_llama(folder: Path, count: int) -> str:
    part = {f"layers.{n}.attention.wq.weight": np.zeros(SHAPE, np.float32) for n in range(count)}
    for rank in range(2):
        sv.save(folder / f"consolidated.0{rank}.pth", part)
    return ""


def write_rankwise(folder: Path, count: int) -> str:
    index = {"metadata": {}, "world_size": 2, "version": "2.0"}
    (folder / "metadata.pkl").write_bytes(pickle.dumps(index))
    part = {f"{number}": np.zeros(SHAPE, np.float32) for number in range(count)}
    for rank in range(2):
        sv.save(folder / f"layer_{rank}.pt", part)
    return ""


def write_own_database(folder: Path, count: int) -> str:
    pytest.importorskip("tensorstore")
    return by_save("m", format="orbax")(folder, count)


def write_compressed(folder: Path, count: int) -> str:
    """Write a database of compressed nodes and chunks, as Orbax does, in which all chunks differ."""
    pytest.importorskip("tensorstore")
    pytest.importorskip("zstandard")
    rng = np.random.default_rng(0)
    arrays = {f"large.{n}": rng.integers(0, 1 << 30, SHAPE).astype("<f4") for n in range(count)}
    write_database(folder / "m", arrays, max_inline_value_bytes=1024)
    return "m"


FORMATS: dict[str, Callable[[Path, int], str]] = {
    "native": by_save("m", partition=2),
    "native in files": by_save("m", policy=sv.BalancedPolicy(3)),
    "safetensors": by_save("m.safetensors"),
    "safetensors in files": by_save(
        "m.safetensors.index.json", policy=sv.BalancedPolicy(3), format="safetensors"
    ),
    "pt": by_save("m.pt"),
    "pt of Llama": write_llama,
    "pt of torch_checkpointing": write_rankwise,
    "dcp": by_save("m", format="torch"),
    "dcp in files": by_save("m", format="torch", policy=sv.BalancedPolicy(3)),
    "tensorflow": by_save("m", format="tensorflow"),
    "npz": by_save("m.npz"),
    "onnx with values": write_onnx,
    **{name: by_row(name) for name, row in EVIDENCE.items() if row.make},
    "zarr": by_save("m.zarr"),
    "orbax": by_save("m", format="orbax-plain"),
    "orbax in a database": write_own_database,
    "orbax in a compressed database": write_compressed,
}
BY_FILE: dict[str, Callable[[int, int], int]] = {
    "pt of Llama": lambda _count, files: 2 + 3 * files,
    "pt of torch_checkpointing": lambda _count, files: 2 + 3 * files,
    "npz": lambda count, _files: 4 + -(-count * NBYTES // (1 << 22)),
    "zarr": lambda _count, files: 8 + files,
    "orbax": lambda _count, files: 8 + files,
    "keras": lambda count, _files: 8 + 2 * count,
    "flax": lambda count, _files: 4 + -(-count * NBYTES // TRAITS.small_nbytes),
    "onnx with values": lambda count, _files: 4 + -(-count * NBYTES // TRAITS.small_nbytes),
}
"""The most requests for dtypes and shapes. In files of npz, Flax and ONNX they lie between the
elements: small arrays are read through, and a large one is jumped over. Object headers of HDF5 have
them; an array of Zarr or Orbax is a file or two. Each rank has a file, whose long pickle takes a
request more."""


THROUGH = {"flax", "onnx with values", "npz"}
"""The formats whose small tensors are read through, since they have no index."""


LOADED_BY_TENSOR = {
    "pt of torch_checkpointing": 2, "zarr": 2, "orbax": 2, "keras": 2
}  # fmt: skip
"""The most requests for each tensor of a load, besides one for each 4 MiB: the local headers of a
tensor and of its copy in another rank's file; the description of an array and its chunk; the object
headers of HDF5. All other formats take none."""

READ_TWICE = {"npz", "keras", "flax", "onnx with values"}
"""The formats whose small tensors are read through for their structure, and read again for a load."""


def list_all(path: str) -> None:
    with sv.open_checkpoint(path) as reader:
        for key in reader:
            assert reader[key].shape


@pytest.mark.parametrize("form", FORMATS)
def test_a_listing_takes_as_many_requests_for_400_tensors_as_for_4(
    form: str, tmp_path: Path
) -> None:
    """Twice 64 KiB and more for 400 entries of an index are one more request at most."""
    costs = {}
    for count in (4, 400):
        folder = tmp_path / str(count)
        folder.mkdir()
        name = FORMATS[form](folder, count)
        bucket = in_memory(folder)
        with in_bucket(bucket):
            costs[count] = count_requests(bucket, partial(list_all, f"s3://bucket/run/{name}"))
        most = 8 if form in THROUGH else 5 if form == "keras" else 4
        assert sum(nbytes for _, nbytes in bucket.ranges) < most << 20
        if form in BY_FILE:
            assert costs[count] <= BY_FILE[form](count, len(bucket.files))
    assert form in BY_FILE or costs[400] <= costs[4] + 1, costs


@pytest.mark.parametrize("form", FORMATS)
def test_a_load_joins_neighbours_and_reads_each_byte_once(form: str, tmp_path: Path) -> None:
    """A hundred tensors of 16 KiB are 1.6 MiB, less than one read brings."""
    name = FORMATS[form](tmp_path, 100)
    bucket = in_memory(tmp_path)
    with in_bucket(bucket):
        assert (
            sum(array.nbytes for array in sv.load(f"s3://bucket/run/{name}").values()) >= 100 << 14
        )
    assert len(bucket.ranges) <= 16 + 100 * LOADED_BY_TENSOR.get(form, 0)
    size = sum(map(len, bucket.files.values()))
    most = 2 if form in READ_TWICE else 1.1
    assert sum(nbytes for _, nbytes in bucket.ranges) <= most * size + AHEAD_NBYTES


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_large_members_of_npz_take_a_request_each_before_they_are_read_together(
    save: Any, tmp_path: Path
) -> None:
    """Only the header of a member tells its shape, and the members in between are not read along."""
    rng = np.random.default_rng(0)
    tensors = {f"l.{number}": rng.random((32, 1024), np.float32) for number in range(60)}
    save(tmp_path / "m.npz", **tensors)
    bucket, url = in_memory(tmp_path), "s3://bucket/run/m.npz"
    size = len(bucket.files["run/m.npz"])
    with in_bucket(bucket):
        assert count_requests(bucket, partial(list_all, url)) <= 60 + 4
        assert sum(nbytes for _, nbytes in bucket.ranges) < size / 10 + AHEAD_NBYTES
        assert count_requests(bucket, partial(sv.load, url)) <= 60 + 8 + size / (1 << 22)
        loaded = sv.load(url)
    assert all(np.array_equal(loaded[key], tensors[key]) for key in tensors)


@pytest.mark.parametrize("form", FORMATS)
def test_a_small_file_is_read_once(form: str, tmp_path: Path) -> None:
    """Also where it is sniffed first, and asked for its end, its structure and its payloads."""
    name = FORMATS[form](tmp_path, 2)
    bucket = in_memory(tmp_path)
    with in_bucket(bucket):
        assert len(sv.load(f"s3://bucket/run/{name}")) == (1 if form == "npy" else 2)
    assert len(bucket.ranges) <= len(bucket.files) + (2 if form == "keras" else 0)


def listed(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["inspect", str(path), "--json"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("case", ["base", "fsdp2_adamw_bf16_3_ranks", "nested_and_objects"])
def test_inspect_of_a_distributed_checkpoint_reads_no_data_file(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With holes of the same sizes in place of the files, it prints the same."""
    folder = tmp_path / "ck"
    shutil.copytree(GOLDEN / "torch_dcp" / case / "ckpt", folder)
    before = listed(folder, capsys)
    for path in folder.glob("*.distcp"):
        nbytes = path.stat().st_size
        path.write_bytes(b"")
        os.truncate(path, nbytes)
    assert listed(folder, capsys) == before
    # What a listing does not look at, every read and every verify does.
    assert not sv.verify(folder).ok
    with pytest.raises(sv.errors.CheckpointError):
        sv.load(folder)


BLOCK = 4 << 20


INDEXES = ("zarr.json", ".metadata")


def tensors_of(count: int, most: int = 1 << 19) -> dict[str, Any]:
    """Tensors of many sizes, from 64 KiB on."""
    rng = np.random.default_rng(0)
    rows = np.exp(rng.uniform(np.log(1 << 16), np.log(most), count)).astype(int) >> 10
    rows = rows // 12 * 12
    return {
        f"l.{number}": rng.random((int(each), 256), np.float32) for number, each in enumerate(rows)
    }


WHOLE: dict[str, dict[str, Any]] = {"m.pt": {}, "m": {"format": "torch"}, "m.zarr": {}}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_reads_take_about_a_request_for_each_4_mib(name: str, tmp_path: Path) -> None:
    """A load, a verify and a copy: each byte comes once, and memory is bounded by the requests."""
    tensors = tensors_of(100)
    sv.save(tmp_path / "from" / name, tensors, **WHOLE[name])
    bucket, url = in_memory(tmp_path / "from"), f"s3://bucket/run/{name}"
    size = sum(map(len, bucket.files.values()))
    verbs: list[Callable[[], Any]] = [
        partial(sv.load, url),
        partial(sv.verify, url),
        partial(sv.reshard, url, tmp_path / "copy.safetensors"),
    ]
    for verb in verbs:
        bucket.ranges.clear()
        with in_bucket(bucket):
            # An array of Zarr has a description, and a file for each chunk.
            files = len(bucket.files) if name == "m.zarr" else 0
            assert count_requests(bucket, verb) <= 10 + files + 1.2 * size / BLOCK
        assert sum(nbytes for _, nbytes in bucket.ranges) <= 1.1 * size
        assert max(nbytes for _, nbytes in bucket.ranges) <= BLOCK + (64 << 10)
    with in_bucket(bucket):
        for loaded in (sv.load(tmp_path / "copy.safetensors"), sv.load(url)):
            assert all(np.array_equal(loaded[key], tensors[key]) for key in tensors)


def outcome(path: str) -> Any:
    """What a load and a verify of a path return, or the kinds of their errors."""
    found: list[Any] = []
    try:
        values = sv.load(path).items()
        found.append(
            {key: each.tolist() if each.dtype == object else each.tobytes() for key, each in values}
        )
    except sv.errors.ShardvarError as error:
        found.append(type(error))
    try:
        report = sv.verify(path)
        damages = sorted((each.kind, str(each.key)) for each in report.damages)
        # Of a wrong frame, the bytes were read in a bucket.
        found += [damages, report.outcomes, report.verdict, report.unguarded_nbytes]
    except sv.errors.ShardvarError as error:
        found.append(type(error))
    return found


@pytest.mark.parametrize("name", WHOLE)
@given(data=st.data())
def test_damage_is_found_as_on_a_disk(
    name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Each damaged byte, of a frame or of a payload, has the outcome that it has on a disk."""
    folder = tmp_path_factory.mktemp("damaged")
    sv.save(
        folder / name, {f"l.{each}": np.arange(40.0) + each for each in range(3)}, **WHOLE[name]
    )
    found = sorted(each for each in folder.rglob("*") if each.is_file())
    path = data.draw(st.sampled_from([each for each in found if each.name not in INDEXES]))
    octets = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(octets) - 1))
    octets[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(octets)
    here = outcome(str(folder / name))
    with in_bucket(in_memory(folder)):
        assert outcome(f"s3://bucket/run/{name}") == here


@given(
    extents=st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 30), st.integers(0, 9)), max_size=8
    ),
    low=st.integers(0, 200),
    nbytes=st.integers(1, 300),
)
def test_a_span_of_addresses_has_the_bytes_of_its_payloads(
    extents: list[tuple[int, int, int]], low: int, nbytes: int
) -> None:
    """Oracle: each payload cut out of the file by itself. Extents have a gap, a payload, a frame."""
    content = bytes(range(256)) * 2
    bucket = MemoryBucket({"f": content})
    begin, columns = 0, list[tuple[int, ...]]()
    for row, (gap, size, frame) in enumerate(extents):
        columns.append((row, 0, begin + gap, begin + gap + size + frame, size))
        begin = columns[-1][3]
    table = np.array(columns, np.int64).reshape(-1, 5)
    data = DataFiles(RemoteStorage(bucket, ""), ["f"])
    # A payload begins its extent here, and its frame follows.
    unframe = lambda row, octets: octets[: int(table[row, 4])]  # noqa: E731
    enclosed = Enclosed.of(data, table, unframe)
    assert len(enclosed.rows) == len(extents)
    span = memoryview(bytearray(b"?" * nbytes))
    enclosed.read_span(0, ADDRESSES + low, span)
    for _, _, first, stop, size in columns:
        for place, octet in zip(range(stop - size, stop), content[first:], strict=False):
            if low <= place < low + nbytes:
                assert span[place - low] == octet


def test_extents_that_share_bytes_are_left_out() -> None:
    bucket = MemoryBucket({"f": bytes(100), "g": bytes(100)})
    data = DataFiles(RemoteStorage(bucket, ""), ["f", "g"])
    extents = (0, 0, 50), (0, 10, 20), (0, 30, 40), (0, 60, 70), (1, 5, 15)
    table = np.array([[row, *extent, 9] for row, extent in enumerate(extents)])
    enclosed = Enclosed.of(data, table, lambda _row, octets: octets)
    assert enclosed.rows.tolist() == [3, 4]
