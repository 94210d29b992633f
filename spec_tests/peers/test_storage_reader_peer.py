"""``dcp.load`` with shardvar's reader: any format, any mesh, and each fault by its name."""

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import ArgumentError
from shardvar.formats.torch.values import DTYPES
from shardvar.layout.dtypes import TORCH_ONLY
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.helpers.torch_training import Other, differences, emptied, run_training

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
dcp = pytest.importorskip("torch.distributed.checkpoint", reason="PyTorch is not installed")
face = pytest.importorskip("shardvar.torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")

TABLE = torch.arange(52, dtype=torch.float32).reshape(13, 4)
SETTINGS = {
    "lr": 0.1,
    "betas": (0.9, 0.99),
    "shape": torch.Size([2]),
    "dtype": torch.bfloat16,
    "device": torch.device("cpu"),
    "names": {"a", "b"},
    "big": 2**70,
}


def load(state: dict[str, Any], path: Any, **options: Any) -> dict[str, Any]:
    dcp.load(state, storage_reader=face.StorageReader(path, **options), no_dist=True)
    return state


def error_of(state: dict[str, Any], path: Any, planner: Any = None, **options: Any) -> str:
    """Return the text of the error of a load."""
    with pytest.raises(dcp.api.CheckpointException) as raised:
        reader = face.StorageReader(path, **options)
        dcp.load(state, storage_reader=reader, planner=planner, no_dist=True)
    (failure,) = raised.value.failures.values()
    return f"{type(failure[0]).__name__}: {failure[0]}"


def change(path: Path, position: int) -> None:
    """Flip a bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the state of a training of two processes, by two writers and in three formats."""
    folder = tmp_path_factory.mktemp("trained")
    run_training("write", folder, 2, "fsdp")
    names = ["dcp", "torch", "native", "resharded", "whole.safetensors"]
    paths = [folder / name for name in names]
    sv.reshard(paths[0], paths[3], partition={"model.*weight": 3})
    sv.reshard(paths[0], paths[4])
    (folder / "read.json").write_text(json.dumps([str(path) for path in paths]))
    return folder


@pytest.mark.sample(2)
@pytest.mark.parametrize(("count", "kind"), [(4, "fsdp-tp"), (4, "hsdp"), (2, "tp"), (1, "fsdp")])
def test_a_state_is_loaded_on_any_mesh_from_any_format(
    trained: Path, count: int, kind: str
) -> None:
    """Each process compares all values, whole, with those that were saved."""
    run_training("read", trained, count, kind)


FORMATS = {
    "torch": "folder",
    "shardvar": "m",
    "tensorflow": "m",
    "safetensors": "m.safetensors",
    "pt": "m.pt",
    "zarr": "folder",
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_tensors_and_objects_of_every_format(form: str, place: str, tmp_path: Path) -> None:
    """The values and the types are those that ``dcp.save`` was given."""
    state = {
        "model": {"table": TABLE[:12], "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3)},
        "half": torch.randn(5).bfloat16(),
        "groups": [{"params": torch.arange(3), **SETTINGS}],
    }
    dcp.save(state, checkpoint_id=tmp_path / "saved", no_dist=True)
    folder = "s3://bucket/run" if place == "bucket" else tmp_path / "run"
    path = f"{folder}/{FORMATS[form]}"
    with in_bucket(MemoryBucket()):
        cut = None if form in ("safetensors", "pt") else {"model.table": 2}
        sv.reshard(tmp_path / "saved", path, format=form, partition=cut)
        assert differences(load(emptied(state), path), state) == []


def test_every_dtype_is_read_and_none_is_cast_unasked(tmp_path: Path) -> None:
    names = sorted({*DTYPES.values()} - {*TORCH_ONLY})
    state = {
        name: torch.arange(32, dtype=torch.uint8).view(getattr(torch, name))
        if name != "bool"
        else torch.tensor([True, False])
        for name in names
    }
    dcp.save(state, checkpoint_id=tmp_path / "saved", no_dist=True)
    found = load({key: torch.empty_like(each) for key, each in state.items()}, tmp_path / "saved")
    for name, tensor in state.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name
    sv.save(tmp_path / "m", {"w": TABLE})
    dcp.save({"only": torch.zeros(2).to(torch.complex32)}, checkpoint_id=tmp_path / "ck")
    text = error_of({"only": torch.zeros(2).to(torch.complex32)}, tmp_path / "ck")
    assert text.startswith("UnsupportedError: 'only' in ") and "complex32" in text
    other = {"w": torch.zeros(13, 4, dtype=torch.float64)}
    text = error_of(other, tmp_path / "m")
    assert text.startswith("ArgumentError: 'w' is float32 in ") and "cast=True" in text
    assert not other["w"].any()
    assert torch.equal(load(other, tmp_path / "m", cast=True)["w"], TABLE.double())


def test_a_part_of_the_state_is_read_and_what_is_missing_is_torchs_own_error(
    tmp_path: Path,
) -> None:
    sv.save(tmp_path / "m", {"w": TABLE, "more": np.ones(3)})
    assert torch.equal(load({"w": torch.zeros(13, 4)}, tmp_path / "m")["w"], TABLE)
    text = error_of({"x": torch.zeros(3)}, tmp_path / "m")
    assert text == "RuntimeError: Missing key in checkpoint state_dict: x."
    assert "Size mismatch" in error_of({"w": torch.zeros(12, 4)}, tmp_path / "m")
    text = error_of({"w": TABLE}, tmp_path / "nothing")
    assert f"There is no checkpoint at {tmp_path / 'nothing'}" in text


@pytest.mark.parametrize("form", ["torch", "shardvar"])
def test_a_damaged_byte_is_found(form: str, tmp_path: Path) -> None:
    """PyTorch's own reader does not notice it."""
    path = tmp_path / FORMATS[form]
    sv.save(path, {"w": TABLE}, format=form, partition=2)
    row = TABLE[3:4].numpy().tobytes()
    (file,) = [each for each in tmp_path.rglob("*") if each.is_file() and row in each.read_bytes()]
    change(file, file.read_bytes().index(row))
    text = error_of({"w": torch.zeros(13, 4)}, path)
    assert text.startswith("CorruptCheckpoint") and "'w'" in text and file.name in text
    if form == "torch":
        found = {"w": torch.zeros(13, 4)}
        dcp.load(found, checkpoint_id=path, no_dist=True)
        assert not torch.equal(found["w"], TABLE)


def test_full_verification_compares_the_slices_of_a_part_and_auto_reads_less(
    tmp_path: Path,
) -> None:
    """Each item of a distributed checkpoint has one checksum."""
    sv.save(tmp_path / "ck", {"w": TABLE}, format="torch")
    (file,) = (tmp_path / "ck").glob("*.distcp")
    change(file, file.read_bytes().index(TABLE[12:].numpy().tobytes()))

    class FirstRows(dcp.DefaultLoadPlanner):  # type: ignore[misc,name-defined]
        """Asks for the first two rows of a tensor."""

        def create_local_plan(self) -> Any:
            plan = super().create_local_plan()
            items = [self.first_rows(item) for item in plan.items]
            return dcp.LoadPlan(items)

        def first_rows(self, item: Any) -> Any:
            return dcp.planner.ReadItem(
                item.type,
                item.dest_index,
                item.dest_offsets,
                item.storage_index,
                torch.Size([1, 0]),
                torch.Size([2, 4]),
            )

    for verify in ("full", "auto"):
        state = {"w": torch.zeros(13, 4)}
        if verify == "full":
            assert "CorruptCheckpoint" in error_of(state, tmp_path / "ck", FirstRows())
        else:
            reader = face.StorageReader(tmp_path / "ck", verify=verify)
            dcp.load(state, storage_reader=reader, planner=FirstRows(), no_dist=True)
            assert torch.equal(state["w"][:2], TABLE[1:3]) and not state["w"][2:].any()
    with pytest.raises(ArgumentError, match="verify='fast' is not a way to verify"):
        face.StorageReader(tmp_path / "ck", verify="fast")


def test_a_missing_file_is_named_also_in_a_partial_load(tmp_path: Path) -> None:
    sv.save(tmp_path / "ck", {"w": TABLE}, format="torch", partition=2)
    lost = sorted((tmp_path / "ck").glob("*.distcp"))[0]
    lost.unlink()
    planner = dcp.DefaultLoadPlanner(allow_partial_load=True)
    text = error_of({"w": torch.zeros(13, 4)}, tmp_path / "ck", planner)
    assert lost.name in text and "'w'" in text


def test_a_hole_is_an_error_where_torch_keeps_what_was_there(tmp_path: Path) -> None:
    """Three slices are stored, and the index lists two of them."""
    sv.save(tmp_path / "ck", {"w": TABLE}, format="torch", partition=3)
    metadata = dcp.FileSystemReader(tmp_path / "ck").read_metadata()
    del metadata.state_dict_metadata["w"].chunks[1]
    (tmp_path / "ck" / ".metadata").write_bytes(pickle.dumps(metadata))
    text = error_of({"w": torch.zeros(13, 4)}, tmp_path / "ck")
    assert "'w'" in text and "Missing key" not in text


def test_objects_of_other_classes_are_refused_by_name_unless_they_are_trusted(
    tmp_path: Path,
) -> None:
    dcp.save({"w": TABLE, "other": Other()}, checkpoint_id=tmp_path / "ck", no_dist=True)
    assert torch.equal(load({"w": torch.zeros(13, 4)}, tmp_path / "ck")["w"], TABLE)
    text = error_of({"other": None}, tmp_path / "ck")
    assert text.startswith("UnsupportedError") and "Other" in text and "'other'" in text
    assert "trusted=True" in text
    assert load({"other": None}, tmp_path / "ck", trusted=True) == {"other": Other()}


class Harmful:
    """An object that calls a function of the system when it is loaded."""

    def __reduce__(self) -> Any:
        return os.getpid, ()


def test_an_object_that_calls_the_system_is_refused_also_if_it_is_trusted(tmp_path: Path) -> None:
    """PyTorch's own reader calls it."""
    dcp.save({"harmful": Harmful()}, checkpoint_id=tmp_path / "ck", no_dist=True)
    for trusted in (False, True):
        text = error_of({"harmful": None}, tmp_path / "ck", trusted=trusted)
        assert "'harmful'" in text and "getpid" in text and "trusted=True" not in text
    state = {"harmful": None}
    dcp.load(state, checkpoint_id=tmp_path / "ck", no_dist=True)
    assert state == {"harmful": os.getpid()}


def test_texts_that_torch_does_not_have_are_refused_by_name(tmp_path: Path) -> None:
    sv.save(tmp_path / "m", {"w": TABLE, "words": np.array([b"a", b"b"], object)})
    assert torch.equal(load({"w": torch.zeros(13, 4)}, tmp_path / "m")["w"], TABLE)
    text = error_of({"words": None}, tmp_path / "m")
    assert text.startswith("UnsupportedError: 'words' in ") and "string" in text


@pytest.mark.parametrize("form", ["torch", "shardvar", "safetensors"])
def test_the_requests_to_a_bucket_do_not_grow_with_the_number_of_tensors(form: str) -> None:
    """A few for the index, and one for neighbours; and tensors that are not contiguous are filled."""
    state = {f"t{number:03}": torch.full((3, 2), float(number)) for number in range(300)}
    bucket, path = MemoryBucket(), f"s3://bucket/run/{FORMATS[form]}"
    with in_bucket(bucket):
        sv.save(path, {key: tensor.numpy() for key, tensor in state.items()}, format=form)
        bucket.ranges.clear()
        found = {key: torch.zeros(2, 3).T for key in state}
        assert differences(load(found, path), state) == []
    assert len(bucket.ranges) <= 8


def test_one_reader_loads_several_checkpoints_and_torch_makes_a_file_of_one(
    tmp_path: Path,
) -> None:
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner

    reader = face.StorageReader(tmp_path / "0")
    for number in range(2):
        sv.save(tmp_path / str(number), {"w": TABLE + number})
        state = {"w": torch.zeros(13, 4)}
        dcp.load(state, checkpoint_id=tmp_path / str(number), storage_reader=reader, no_dist=True)
        assert torch.equal(state["w"], TABLE + number)
        assert reader.checkpoint_id == tmp_path / str(number)
    nested = {"model": {"w": TABLE}, "list": [{"a": 1, "t": torch.ones(2)}]}
    dcp.save(nested, checkpoint_id=tmp_path / "ck", no_dist=True)
    shutil.copytree(tmp_path / "ck", tmp_path / "copy")
    whole: dict[str, Any] = {}
    reader, planner = face.StorageReader(tmp_path / "copy"), _EmptyStateDictLoadPlanner()
    dcp.state_dict_loader._load_state_dict(whole, reader, no_dist=True, planner=planner)
    assert differences(whole, nested) == []
