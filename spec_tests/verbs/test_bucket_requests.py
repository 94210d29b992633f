"""Sources that read through another one plan their reads of a bucket as that one does."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.engine import files
from shardvar.errors import CorruptCheckpoint
from shardvar.verbs.load import open_checkpoint
from spec_tests.helpers.format_protocol import GOLDEN, expectation, golden_cases
from spec_tests.helpers.hypothesis_strategies import same
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket

COUNT = 200
"""The tensors of a checkpoint."""
URL = "s3://bucket/run"


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[MemoryBucket]:
    bucket = MemoryBucket()
    with in_bucket(bucket):
        yield bucket


def many(*shape: int, count: int = COUNT) -> dict[str, Any]:
    """Tensors of one shape, of different values."""
    rng = np.random.default_rng(0)
    return {f"layer.{number:03}": rng.random(shape, np.float32) for number in range(count)}


def put(bucket: MemoryBucket, name: str, tensors: dict[str, Any], folder: Path) -> str:
    """Put a checkpoint into the bucket."""
    sv.save(folder / name, tensors)
    for path in folder.iterdir():
        bucket.files[f"run/{path.name}"] = path.read_bytes()
    return f"{URL}/{name}"


def arrays_equal(path: str | Path, expected: dict[str, Any]) -> None:
    found = sv.load(path)
    assert found.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array, strict=True)


class AddOne:
    """A sharding callback that changes one value."""

    description = "Adds 1 to one tensor."

    def __call__(self, tensors: Any) -> Any:
        file: dict[str, Any] = {}
        for number, each in enumerate(tensors):
            value = each.tensor + 1 if number == 3 else each.tensor
            file.setdefault(each.checkpoint_key, {})[each.slice_spec] = value
        return [file]


@pytest.mark.parametrize("end", ["safetensors", "svindex"])
def test_files_that_are_joined_take_few_requests(
    bucket: MemoryBucket, tmp_path: Path, end: str
) -> None:
    """Two files with half of each tensor."""
    tensors = many(100, 500)
    halves = [
        put(bucket, f"{name}.{end}", {key: array[rows] for key, array in tensors.items()}, tmp_path)
        for name, rows in (("a", slice(50)), ("b", slice(50, None)))
    ]
    bucket.ranges.clear()
    sv.reshard(halves, tmp_path / "joined.safetensors", concat={"*": 0})
    assert len(bucket.ranges) < 30
    arrays_equal(tmp_path / "joined.safetensors", tensors)


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({}, lambda array: array),
        ({"policy": AddOne()}, None),
        ({"cast": "float16"}, lambda array: array.astype(np.float16)),
        ({"transpose": "*"}, lambda array: array.T),
        ({"transpose": "*", "cast": "float64"}, lambda array: array.T.astype(np.float64)),
    ],
    ids=["copy", "policy", "cast", "transpose", "both"],
)
@pytest.mark.parametrize("name", ["one.safetensors", "one.svindex"])
def test_converted_tensors_take_few_requests(
    bucket: MemoryBucket,
    tmp_path: Path,
    name: str,
    options: dict[str, Any],
    change: Callable[[Any], Any] | None,
) -> None:
    """As few as without a change; each byte comes once."""
    tensors = many(30, 500)
    source = put(bucket, name, tensors, tmp_path)
    bucket.ranges.clear()
    sv.reshard(source, tmp_path / "new.safetensors", **options)
    assert len(bucket.ranges) < 12
    size = sum(map(len, bucket.files.values()))
    assert sum(nbytes for _, nbytes in bucket.ranges) < 1.1 * size
    if change is None:
        expected = {key: array + (key == "layer.003") for key, array in tensors.items()}
    else:
        expected = {key: change(array) for key, array in tensors.items()}
    arrays_equal(tmp_path / "new.safetensors", expected)


@pytest.mark.parametrize("partition", [1, 3])
@pytest.mark.parametrize("name", ["wide.safetensors", "wide.pt"])
def test_a_large_matrix_is_transposed_in_bounded_memory(
    bucket: MemoryBucket,
    tmp_path: Path,
    name: str,
    partition: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is fetched once, in blocks, into a temporary file, as --dry-run says."""
    matrix = np.arange(3000 * 1700, dtype=np.float32).reshape(3000, 1700)
    source = put(bucket, name, {"m": matrix, "b": np.arange(10)}, tmp_path)
    target = tmp_path / "turned.svindex"
    dry = sv.reshard(source, target, transpose="m", partition=partition, dry_run=True)
    bucket.ranges.clear()
    wet = sv.reshard(source, target, transpose="m", partition=partition)
    assert (dry.num_slices, dry.nbytes) == (wet.num_slices, wet.nbytes)
    assert max(nbytes for _, nbytes in bucket.ranges) <= 4 << 20
    assert sum(nbytes for _, nbytes in bucket.ranges) < matrix.nbytes + (2 << 20)
    arrays_equal(target, {"m": matrix.T, "b": np.arange(10)})


MANY_FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "zarr": ("", {"format": "zarr"}),
    "zarr columns": ("", {"format": "zarr", "partition": {"*": (1, 5)}}),
    "orbax-plain": ("", {"format": "orbax-plain"}),
    "set": ("m.safetensors.index.json", {"policy": sv.MaxShardSizePolicy(80_000)}),
    "torch": ("", {"format": "torch", "policy": sv.MaxShardSizePolicy(80_000)}),
}
"""Targets of a file for each tensor, or each slice, or two tensors."""


@pytest.mark.sample(2)
@pytest.mark.parametrize("portion", [200_000, files._PORTION_NBYTES])
@pytest.mark.parametrize("where", ["disk", "bucket"])
@pytest.mark.parametrize("form", MANY_FILES)
def test_a_source_is_read_once_for_many_files(
    bucket: MemoryBucket,
    tmp_path: Path,
    form: str,
    where: str,
    portion: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request for several of them, and none for a byte that another has brought. Columns of a
    tensor are read once for all files of a portion, tensor by tensor."""
    monkeypatch.setattr(files, "_PORTION_NBYTES", portion)
    tensors = many(20, 500, count=60)
    source = put(bucket, "m.svindex", tensors, tmp_path)
    name, options = MANY_FILES[form]
    target = f"{URL}/new/{name}" if where == "bucket" else str(tmp_path / "new" / name)
    nbytes = sum(map(len, bucket.files.values()))
    bucket.ranges.clear()
    sv.reshard(source, target, **options)
    most = 10 + 1.5 * nbytes / min(portion, 4 << 20) + len(tensors) * ("columns" in form)
    assert len(bucket.ranges) < most
    assert sum(size for _, size in bucket.ranges) < 1.5 * nbytes + (1 << 20)
    arrays_equal(target, tensors)
    assert sv.verify(target).ok


@pytest.mark.parametrize("form", ["zarr", "zarr columns"])
def test_damage_in_a_source_is_found_for_many_files(
    bucket: MemoryBucket, tmp_path: Path, form: str
) -> None:
    """Also if no file needs all of a payload, and its parts were read together with others."""
    source = put(bucket, "m.svindex", many(40, 500, count=40), tmp_path)
    [data] = [key for key in bucket.files if "svdata" in key]
    octets = bytearray(bucket.files[data])
    octets[-70_000] ^= 1
    bucket.files[data] = bytes(octets)
    before = {*bucket.files}
    with pytest.raises(CorruptCheckpoint, match=r"do not have the checksum"):
        sv.reshard(source, f"{URL}/new", **MANY_FILES[form][1])
    assert {*bucket.files} == before


@pytest.mark.parametrize("transpose", [None, "m"])
@pytest.mark.parametrize("shape", [(100, 500), (3000, 1700)])
def test_damage_in_a_bucket_is_found_before_a_value_is_changed(
    bucket: MemoryBucket, tmp_path: Path, shape: tuple[int, int], transpose: str | None
) -> None:
    """A small matrix is compared where it is held, a large one while it is fetched."""
    matrix = np.random.default_rng(1).random(shape, np.float32)
    source = put(bucket, "m.npz", {"m": matrix}, tmp_path)
    content = bytearray(bucket.files["run/m.npz"])
    content[len(content) // 2] ^= 1
    bucket.files["run/m.npz"] = bytes(content)
    with pytest.raises(sv.errors.CorruptCheckpoint, match="'m'"):
        sv.reshard(source, tmp_path / "n.npz", transpose=transpose, cast="float64")
    assert not (tmp_path / "n.npz").exists()


def loaded(path: str | Path) -> dict[str, Any] | type[Exception]:
    """Return the tensors, or the class of the error."""
    try:
        return sv.load(path)
    except sv.errors.ShardvarError as error:
        return type(error)


READ_BY_OTHERS = {"zarr": "tensorstore", "orbax": "tensorstore", "keras": "h5py"}
"""The libraries that decode files of some formats."""


@pytest.mark.parametrize("form", sorted(each.name for each in GOLDEN.iterdir() if each.is_dir()))
def test_what_a_disk_has_is_read_from_a_bucket(bucket: MemoryBucket, form: str) -> None:
    """Strided tensors, other byte orders and strings too, whole and in part: every accepted golden
    checkpoint."""
    pytest.importorskip(READ_BY_OTHERS.get(form, "numpy"))
    for case in golden_cases(form):
        expected = expectation(form, case)
        if expected.get("verdict") != "accept":
            continue
        folder, path = GOLDEN / form / case, expected.get("path") or ""
        bucket.files.clear()
        for file in folder.rglob("*"):
            if file.is_file():
                bucket.files[f"run/{file.relative_to(folder).as_posix()}"] = file.read_bytes()
        found = loaded(f"{URL}/{path}")
        there = loaded(folder / path)
        if not isinstance(found, dict) or not isinstance(there, dict):
            assert found is there
            continue
        assert found.keys() == there.keys()
        assert all(same(found[key], there[key]) for key in there)
        with open_checkpoint(f"{URL}/{path}") as reader:
            for key, array in there.items():
                assert not array.ndim or same(reader.read(key, np.s_[1:3]), array[1:3])
