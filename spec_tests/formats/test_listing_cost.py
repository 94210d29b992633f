"""Opening and listing cost requests that do not grow with the number of tensors.

Law: for each format, a checkpoint of 400 tensors is opened and its keys, dtypes and shapes are
listed with as many requests as one of 4. ``BY_FILE`` lists the formats that cost requests by file
or by tensor, with what they may cost. A load reads neighbours together, and no byte three times;
``LOADED_BY_TENSOR`` lists the formats whose frames take requests by tensor.
"""

import os
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import shardvar as sv
from shardvar.cli import main
from shardvar.storage.remote import AHEAD_NBYTES, TRAITS
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.helpers.paths import GOLDEN
from spec_tests.hostile import flax, onnx
from spec_tests.hostile.gguf import F32, Info, gguf

SHAPE, NBYTES = (8, 512), 16 << 10
"""Of each tensor: larger than the reads by which small ones come together."""


def by_save(name: str, **options: Any) -> Callable[[Path, int], str]:
    def write(folder: Path, count: int) -> str:
        rng = np.random.default_rng(0)
        tensors = {f"layer.{number:03}": rng.random(SHAPE, np.float32) for number in range(count)}
        sv.save(folder / name, tensors, **options)
        return name

    return write


def write_gguf(folder: Path, count: int) -> str:
    infos = [
        Info(f"layer.{number:03}", SHAPE[::-1], F32, number * NBYTES) for number in range(count)
    ]
    (folder / "m.gguf").write_bytes(gguf(*infos, data=bytes(count * NBYTES)))
    return "m.gguf"


def write_flax(folder: Path, count: int) -> str:
    layers = {f"{number:03}": flax.array(SHAPE, data=bytes(NBYTES)) for number in range(count)}
    (folder / "m.msgpack").write_bytes(flax.packed({"layer": layers}))
    return "m.msgpack"


def write_onnx(folder: Path, count: int) -> str:
    tensors = [
        onnx.tensor(f"layer.{number:03}", SHAPE, data=bytes(NBYTES)) for number in range(count)
    ]
    (folder / "m.onnx").write_bytes(onnx.model(*tensors))
    return "m.onnx"


def write_external(folder: Path, count: int) -> str:
    places = [{"offset": number * NBYTES, "length": NBYTES} for number in range(count)]
    tensors = [
        onnx.external(f"layer.{number:03}", SHAPE, location="m.onnx.data", **each)
        for number, each in enumerate(places)
    ]
    (folder / "m.onnx").write_bytes(onnx.model(*tensors))
    (folder / "m.onnx.data").write_bytes(bytes(count * NBYTES))
    return "m.onnx"


def write_npy(folder: Path, count: int) -> str:
    np.save(folder / "m.npy", np.zeros((count, *SHAPE), np.float32))
    return "m.npy"


def write_keras(folder: Path, count: int) -> str:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "m.weights.h5", "w") as file:
        for number in range(count):
            group = file.create_group(f"layers/dense_{number}/vars")
            group.create_dataset("0", data=np.zeros(SHAPE, np.float32))
    return "m.weights.h5"


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
    "npy": write_npy,
    "gguf": write_gguf,
    "flax": write_flax,
    "onnx": write_onnx,
    "onnx with external data": write_external,
    "zarr": by_save("m.zarr"),
    "orbax": by_save("m", format="orbax-plain"),
    "keras": write_keras,
}
BY_FILE: dict[str, Callable[[int, int], int]] = {
    "pt of Llama": lambda _count, files: 2 + 3 * files,
    "pt of torch_checkpointing": lambda _count, files: 2 + 3 * files,
    "npz": lambda count, _files: 3 + count,
    "zarr": lambda _count, files: 8 + files,
    "orbax": lambda _count, files: 8 + files,
    "keras": lambda count, _files: 8 + 6 * count,
    "flax": lambda count, _files: 4 + -(-count * NBYTES // TRAITS.small_nbytes),
    "onnx": lambda count, _files: 4 + -(-count * NBYTES // TRAITS.small_nbytes),
}
"""The most requests for dtypes and shapes: only the members of an npz file have them, and the
object headers of HDF5; an array of Zarr or Orbax is a file or two. Each rank has
a file, whose long pickle takes a request more. In files of Flax and ONNX they lie
between the elements: small arrays are read through, and a large one is jumped over."""


THROUGH = {"flax", "onnx"}
"""The formats whose small tensors are read through, since they have no index."""


LOADED_BY_TENSOR = {
    "pt": 1, "npz": 1, "dcp": 2, "dcp in files": 2, "zarr": 3, "orbax": 2, "keras": 6
}  # fmt: skip
"""The most requests for each tensor of a load: local headers, both ends of an item, files."""


def requests_of(bucket: MemoryBucket, verb: Callable[[], Any]) -> int:
    """Return the requests of every kind that a verb makes."""
    made: list[str] = []

    def counted(name: str) -> Any:
        inner = getattr(MemoryBucket, name)

        def call(self: MemoryBucket, *arguments: Any) -> Any:
            made.append(name)
            return inner(self, *arguments)

        return mock.patch.object(MemoryBucket, name, call)

    with counted("read"), counted("listing"), counted("walk"):
        verb()
    return len(made)


def in_memory(folder: Path) -> MemoryBucket:
    files = (path for path in folder.rglob("*") if path.is_file())
    return MemoryBucket(
        {f"run/{path.relative_to(folder).as_posix()}": path.read_bytes() for path in files}
    )


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
            costs[count] = requests_of(bucket, partial(list_all, f"s3://bucket/run/{name}"))
        assert sum(nbytes for _, nbytes in bucket.ranges) < (8 if form in THROUGH else 4) << 20
        if form in BY_FILE:
            assert costs[count] <= BY_FILE[form](count, len(bucket.files))
    assert form in BY_FILE or costs[400] <= costs[4] + 1, costs


@pytest.mark.parametrize("form", FORMATS)
def test_a_load_joins_neighbours_and_reads_no_byte_three_times(form: str, tmp_path: Path) -> None:
    """A hundred tensors of 16 KiB are 1.6 MiB, less than one read brings."""
    name = FORMATS[form](tmp_path, 100)
    bucket = in_memory(tmp_path)
    with in_bucket(bucket):
        assert (
            sum(array.nbytes for array in sv.load(f"s3://bucket/run/{name}").values()) >= 100 << 14
        )
    by_tensor = LOADED_BY_TENSOR.get(form, 2 if form.startswith("pt of") else 0)
    assert len(bucket.ranges) <= 16 + 100 * by_tensor
    size = sum(map(len, bucket.files.values()))
    # Once for the structure between small payloads, and once for the payloads.
    assert sum(nbytes for _, nbytes in bucket.ranges) <= 2 * size + AHEAD_NBYTES


@pytest.mark.parametrize("form", ["npz", "pt", "dcp"])
def test_keys_are_listed_without_a_read_of_a_tensor(form: str, tmp_path: Path) -> None:
    name = FORMATS[form](tmp_path, 400)
    bucket = in_memory(tmp_path)
    with in_bucket(bucket), sv.open_checkpoint(f"s3://bucket/run/{name}") as reader:
        assert len(reader) == len([*reader]) == 400 and "layer.399" in reader
    assert len(bucket.ranges) <= 4


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


def test_a_listing_of_torch_save_reads_the_pickle_and_no_storage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With zeros in place of all storages and their local headers, it prints the same."""
    path = tmp_path / "m.pt"
    by_save("m.pt")(tmp_path, 20)
    before, octets = listed(path, capsys), bytearray(path.read_bytes())
    first, last = octets.index(b"archive/data/0"), octets.index(b"archive/version")
    octets[first : last - 30] = bytes(last - 30 - first)
    path.write_bytes(octets)
    assert listed(path, capsys) == before
    assert not sv.verify(path).ok
    with pytest.raises(sv.errors.CheckpointError):
        sv.load(path, ["layer.003"])
