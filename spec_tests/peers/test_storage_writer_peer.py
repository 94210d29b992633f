"""``dcp.save`` with shardvar's writer: torch's reader reads it, and nothing incomplete looks whole."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import ArgumentTypeError, CheckpointNotFound, UnsupportedError
from spec_tests.helpers.memory_bucket import MemoryBucket, in_bucket
from spec_tests.helpers.torch_training import Other, differences, emptied, run_training

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
dcp = pytest.importorskip("torch.distributed.checkpoint", reason="PyTorch is not installed")
face = pytest.importorskip("shardvar.torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")

TABLE = torch.arange(52, dtype=torch.float32).reshape(13, 4)
STATE = {
    "model": {"table": TABLE, "half": torch.randn(5).bfloat16(), "scalar": torch.tensor(2.5)},
    "columns": TABLE.T,
    "empty": torch.zeros(0, 3),
    "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": torch.arange(3)}, {"names": {"a"}}],
    "step": 7,
}


def save(state: dict[str, Any], path: Any, planner: Any = None, **options: Any) -> None:
    writer = face.StorageWriter(path, **options)
    dcp.save(state, storage_writer=writer, planner=planner, no_dist=True)


def error_of(state: dict[str, Any], path: Any, planner: Any = None, **options: Any) -> str:
    """Return the text of the error of a save."""
    with pytest.raises(dcp.api.CheckpointException) as raised:
        save(state, path, planner, **options)
    (failure,) = raised.value.failures.values()
    return f"{type(failure[0]).__name__}: {failure[0]}"


def load(state: dict[str, Any], path: Any, *, by_torch: bool) -> dict[str, Any]:
    """Load what was saved into a state without its values."""
    found = emptied(state)
    if by_torch:
        dcp.load(found, checkpoint_id=path, no_dist=True)
    else:
        dcp.load(found, storage_reader=face.StorageReader(path), no_dist=True)
    return found


@pytest.mark.sample(2)
@pytest.mark.parametrize(("count", "kind"), [(4, "fsdp-tp"), (4, "hsdp"), (2, "tp")])
def test_what_many_processes_save_is_the_whole_state(count: int, kind: str, tmp_path: Path) -> None:
    """As torch's own reader and shardvar's read it, and shardvar verifies it."""
    run_training("write", tmp_path, count, kind)
    whole = torch.load(tmp_path / "whole.pt")
    assert differences(load(whole, tmp_path / "torch", by_torch=True), whole) == []
    for name in ("torch", "native"):
        assert differences(load(whole, tmp_path / name, by_torch=False), whole) == []
        assert sv.verify(tmp_path / name).ok
        assert sv.diff(tmp_path / name, tmp_path / "dcp").equal
    left = [path.name for path in tmp_path.rglob("*") if "svshare" in path.name]
    assert left == []


@pytest.mark.sample(3)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("form", ["torch", "shardvar"])
def test_a_killed_process_leaves_the_old_checkpoint_or_none(
    form: str, when: str, tmp_path: Path
) -> None:
    (tmp_path / "kill.json").write_text(json.dumps({"format": form, "when": when}))
    run_training("killed", tmp_path, 2, "fsdp")
    assert sv.load(tmp_path / "old")["run.step"] == b"1"
    assert sv.verify(tmp_path / "old").ok
    with pytest.raises(CheckpointNotFound):
        sv.open_checkpoint(tmp_path / "new")


@pytest.mark.parametrize("form", ["torch", "shardvar"])
@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_a_state_is_saved_twice_and_read_back(form: str, place: str, tmp_path: Path) -> None:
    folder = "s3://bucket/run" if place == "bucket" else tmp_path
    with in_bucket(MemoryBucket()):
        for step in (7, 8):
            state = {**STATE, "step": step}
            save(state, f"{folder}/ck", format=form, metadata={"by": "a test"})
            assert differences(load(state, f"{folder}/ck", by_torch=False), state) == []
            with sv.open_checkpoint(f"{folder}/ck") as reader:
                assert reader.format == form and reader.metadata.user == {"by": "a test"}
            if (form, place) == ("torch", "disk"):
                assert differences(load(state, f"{folder}/ck", by_torch=True), state) == []


def test_objects_of_any_class_are_kept_for_torch_and_refused_by_the_native_format(
    tmp_path: Path,
) -> None:
    state = {"w": TABLE, "other": Other()}
    save(state, tmp_path / "ck")
    assert differences(load(state, tmp_path / "ck", by_torch=True), state) == []
    text = error_of(state, tmp_path / "native", format="shardvar")
    assert text.startswith("UnsupportedError: 'other'") and "Other" in text
    with pytest.raises(CheckpointNotFound):
        sv.open_checkpoint(tmp_path / "native")


def test_version_and_path_are_told_as_torch_does(tmp_path: Path) -> None:
    """By a save, and to the planner of a load."""
    path = tmp_path / "ck"
    saved = dcp.save(STATE, storage_writer=face.StorageWriter(path), no_dist=True)
    own = dcp.save(STATE, checkpoint_id=tmp_path / "own", no_dist=True)
    for about in (saved, face.StorageReader(path).read_metadata()):
        assert about.version == own.version
        assert Path(about.storage_meta.checkpoint_id) == path


@pytest.mark.parametrize("name", ["model.pt", "meta.pt", "rng_0.pth", "data.npy", "notes.txt"])
def test_files_of_a_trainer_may_be_in_the_folder(name: str, tmp_path: Path) -> None:
    """As for torch's own writer; the folder means the new checkpoint."""
    torch.save({"other": TABLE}, tmp_path / name)
    before = (tmp_path / name).read_bytes()
    save(STATE, tmp_path)
    for by_torch in (True, False):
        assert differences(load(STATE, tmp_path, by_torch=by_torch), STATE) == []
    assert (tmp_path / name).read_bytes() == before


def test_a_state_without_tensors_and_one_without_objects(tmp_path: Path) -> None:
    for name, state in {"objects": {"step": 7}, "tensors": {"w": TABLE}}.items():
        for form in ("torch", "shardvar"):
            path = tmp_path / f"{name}-{form}"
            save(state, path, format=form)
            assert differences(load(state, path, by_torch=False), state) == []


def test_planners_that_keep_plans_save_again(tmp_path: Path) -> None:
    """The plan of the second save is the first one's."""
    for number in range(3):
        state = {**STATE, "step": number}
        planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
        save(state, tmp_path / f"{number % 2}", planner)
        found = load(state, tmp_path / f"{number % 2}", by_torch=True)
        assert differences(found, state) == []


def test_planners_may_change_values(tmp_path: Path) -> None:
    class Halves(dcp.DefaultSavePlanner):  # type: ignore[misc,name-defined]
        """Saves tensors as float16."""

        def create_local_plan(self) -> Any:
            plan = super().create_local_plan()
            for item in plan.items:
                item.tensor_data.properties.dtype = torch.float16
            return plan

        def resolve_data(self, item: Any) -> Any:
            return super().resolve_data(item).to(torch.float16)

    save({"w": TABLE}, tmp_path / "ck", Halves())
    assert sv.load(tmp_path / "ck")["w"].dtype == np.float16


@pytest.mark.parametrize("form", ["torch", "shardvar"])
def test_a_plan_that_lacks_a_slice_is_never_committed(form: str, tmp_path: Path) -> None:
    class Rows(dcp.DefaultSavePlanner):  # type: ignore[misc,name-defined]
        """Saves the first rows of a tensor, or the first rows twice."""

        def __init__(self, regions: list[tuple[int, int]]) -> None:
            super().__init__()
            self.regions = regions

        def create_global_plan(self, plans: Any) -> Any:
            """Return the plans; the original would find that rows are lacking."""
            return plans, dcp.metadata.Metadata({})

        def create_local_plan(self) -> Any:
            (item,) = super().create_local_plan().items
            return dcp.SavePlan([self.rows(item, *each) for each in self.regions])

        def rows(self, item: Any, start: int, stop: int) -> Any:
            offset, sizes = torch.Size([start, 0]), torch.Size([stop - start, 4])
            slice_ = dcp.metadata.ChunkStorageMetadata(offset, sizes)
            data = dcp.planner.TensorWriteData(slice_, item.tensor_data.properties, TABLE.shape)
            index = dcp.metadata.MetadataIndex("w", offset)
            return dcp.planner.WriteItem(index, item.type, tensor_data=data)

        def resolve_data(self, item: Any) -> Any:
            start, (rows, _) = item.index.offset[0], item.tensor_data.chunk.sizes
            return TABLE[start : start + rows]

    save({"w": TABLE}, tmp_path / "ck", Rows([(0, 5), (5, 13)]), format=form)
    assert np.array_equal(sv.load(tmp_path / "ck")["w"], TABLE)
    text = error_of({"w": TABLE + 1}, tmp_path / "ck", Rows([(0, 5), (8, 13)]), format=form)
    assert text.startswith("IncompleteCheckpoint") and "'w'" in text and "[5:8, 0:4]" in text
    text = error_of({"w": TABLE + 1}, tmp_path / "ck", Rows([(0, 8), (5, 13)]), format=form)
    assert text.startswith("OverlappingSlices") and "'w'" in text
    assert np.array_equal(sv.load(tmp_path / "ck")["w"], TABLE)


def test_what_cannot_be_saved_is_refused_by_name(tmp_path: Path) -> None:
    text = error_of({"w": TABLE}, tmp_path / "ck", format="zarr")
    assert text.startswith("UnsupportedError: The format zarr cannot be written by several")
    text = error_of({"w": TABLE, "step": 7}, tmp_path / "m.safetensors", format="safetensors")
    assert text.startswith("UnsupportedError") and "'step'" in text
    odd = torch.quantize_per_tensor(TABLE, 0.1, 0, torch.qint8)
    text = error_of({"odd": odd}, tmp_path / "ck")
    assert text.startswith("UnsupportedError: 'odd'") and "qint8" in text
    writer = face.StorageWriter(tmp_path / "ck")
    with pytest.raises(UnsupportedError, match="use_collectives=False"):
        dcp.save({"w": TABLE}, storage_writer=writer, no_dist=True, use_collectives=False)
    assert [path.name for path in tmp_path.rglob("*")] == []


def test_arguments_of_other_types_are_refused_before_torch_saves_or_loads(tmp_path: Path) -> None:
    for wrong in (5, None, ["torch"]):
        with pytest.raises(ArgumentTypeError, match="the names of formats are strings"):
            face.StorageWriter(tmp_path / "ck", format=wrong)
        with pytest.raises(ArgumentTypeError, match="the ways to verify are strings"):
            face.StorageReader(tmp_path / "ck", verify=wrong)


def test_a_state_is_saved_while_the_training_goes_on(tmp_path: Path) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        state = {"w": TABLE.clone(), "step": 1}
        writer = face.StorageWriter(tmp_path / "ck")
        saving = dcp.async_save(state, storage_writer=writer)
        state["w"].zero_()
        saving.result()
    finally:
        dist.destroy_process_group()
    assert np.array_equal(sv.load(tmp_path / "ck")["w"], TABLE)
