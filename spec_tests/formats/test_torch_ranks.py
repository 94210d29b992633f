"""Files of single ranks as one checkpoint: placements, shards, copies, what does not fit together; and
whether a folder is a save in parts, by the index of torch_checkpointing and by its names."""

import pickle
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardvar as sv
from shardvar.errors import (
    AmbiguousPath,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    InconsistentTensor,
    InvalidCheckpoint,
    MalformedCheckpoint,
    MissingFile,
    OutOfBounds,
    OverlappingSlices,
    TargetExists,
    UnsupportedError,
)
from shardvar.formats.parts import kind_of_parts
from shardvar.formats.torch.archive import tensor_call
from shardvar.formats.torch.shares import Placement, Spread, held_regions, local_shape, share_of
from shardvar.layout.region import Region
from shardvar.storage.local import LocalStorage
from shardvar.wire.opcode_writer import Call, Instance
from shardvar.wire.plain import Global
from spec_tests.helpers.damage import flip
from spec_tests.helpers.torch_files import write_torch

TORCH = "torch.distributed.tensor"
SHARDED = "torch.distributed._shard"
DTENSOR, SHARDED_TENSOR = f"{TORCH}.DTensor", f"{SHARDED}.sharded_tensor.api.ShardedTensor"
EXTENTS = st.integers(0, 9)
PLACEMENTS = st.one_of(
    st.just(Placement()),
    st.builds(Placement, st.integers(0, 1)),
    st.builds(Placement, st.integers(0, 1), st.integers(1, 4)),
)
AXES = st.lists(st.tuples(st.integers(1, 4), PLACEMENTS), min_size=1, max_size=3)


def chunks(indices: Any, count: int) -> list[Any]:
    """``torch.chunk``, filled up with empty ones: the first parts have the quotient, rounded up."""
    size = max(-(-len(indices) // count), 1)
    return [indices[part * size :][:size] for part in range(count)]


def twin(spread: Spread) -> list[Any]:
    """The indices that a device holds along each axis, by the definition: one placement after the
    other."""
    held = [np.arange(extent) for extent in spread.shape]
    for count, at, placement in zip(spread.mesh, spread.coordinate, spread.placements, strict=True):
        if placement.dim is not None:
            parts = chunks(held[placement.dim], placement.split_factor or 1)
            held[placement.dim] = np.concatenate([chunks(part, count)[at] for part in parts])
    return held


@given(st.tuples(EXTENTS, EXTENTS), AXES)
def test_a_device_holds_what_the_definition_of_its_placements_says(
    shape: tuple[int, ...], axes: Any
) -> None:
    """Law: the regions, each at its place in what the device keeps, are the product of the indices
    along the axes."""
    mesh, placements = (tuple(each) for each in zip(*axes, strict=True))
    values = np.arange(shape[0] * shape[1]).reshape(shape)
    for coordinate in product(*map(range, mesh)):
        spread = Spread(shape, mesh, coordinate, placements)
        runs = spread.runs(strided_last=False)
        kept = np.full(local_shape(runs), -1)
        for region in held_regions(runs):
            place, part = (Region(at, region.shape).slices for at in (region.inner, region.offset))
            kept[place] = values[part]
        assert np.array_equal(kept, values[np.ix_(*twin(spread))])


@given(EXTENTS, st.integers(1, 4), st.integers(1, 4))
def test_fsdp_over_tensor_parallelism_holds_one_run_of_what_the_latter_cut(
    rows: int, data: int, parts: int
) -> None:
    placements = Placement(0, parts), Placement(0)
    for first, last in product(range(data), range(parts)):
        (runs,) = Spread((rows,), (data, parts), (first, last), placements).runs(strided_last=True)
        held = [index for low, high in runs for index in range(low, high)]
        assert held == chunks(chunks(np.arange(rows), parts)[last], data)[first].tolist()


# --- Files made by hand


def tensor(array: Any, number: int = 0) -> Call:
    return tensor_call(str(array.dtype), array.shape, number)


def subclass(kind: str, shape: tuple[int, ...], state: Any, dtype: str = "float32") -> Call:
    about = Global(kind), Global(f"torch.{dtype}"), shape
    function = Global("torch._utils._rebuild_wrapper_subclass")
    return Call("torch._tensor._rebuild_from_type_v2", (function, about[0], about, state))


def dtensor(
    array: Any,
    shape: tuple[int, ...],
    mesh: tuple[int, ...],
    at: tuple[int, ...],
    *placements: Any,
    **more: Any,
) -> Call:
    layout = Instance("torch.distributed._mesh_layout._MeshLayout", {"shape": mesh, "stride": mesh})
    device_mesh = Instance(
        "torch.distributed.device_mesh.DeviceMesh",
        {"_layout": layout, "_coordinate_on_dim": at, **more},
    )
    spec = Instance(
        f"{TORCH}._dtensor_spec.DTensorSpec", {"mesh": device_mesh, "placements": placements}
    )
    return subclass(DTENSOR, shape, (None, {"_local_tensor": tensor(array), "_spec": spec}))


def placement(kind: str, **fields: Any) -> Instance:
    return Instance(f"{TORCH}.placement_types.{kind}", fields)


def strided(split_factor: int) -> Instance:
    return placement("_StridedShard", dim=0, split_factor=split_factor)


def sharded(array: Any, offset: Any = (0, 0), shape: Any = (3, 2), sizes: Any = None) -> Call:
    about = {"shard_offsets": [*offset], "shard_sizes": sizes or list(array.shape)}
    metadata = Instance(f"{SHARDED}.metadata.ShardMetadata", (None, about))
    state = None, {"tensor": tensor(array), "metadata": metadata}
    shard = Instance(f"{SHARDED}.sharded_tensor.shard.Shard", state)
    return subclass(SHARDED_TENSOR, shape, ([shard], None))


def rank(directory: Path, number: int, value: Any, *arrays: Any, world: int = 2) -> None:
    write_torch(directory / f"ck_world_size_{world}_rank_{number}.pt", value, *arrays)


ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)
SHARD = placement("Shard", dim=0)


def halves(directory: Path, *placements: Any, **more: Any) -> Path:
    """Three rows on two ranks, by these placements on a mesh of two."""
    for number, part in enumerate((ROWS[:2], ROWS[2:])):
        value = dtensor(part, (3, 2), (2,), (number,), *placements, **more)
        rank(directory, number, {"t": value}, part)
    return directory / "ck_world_size_2"


def test_parts_of_ranks_are_slices_and_are_mapped(tmp_path: Path) -> None:
    path = halves(tmp_path, SHARD)
    with sv.open_checkpoint(path) as reader:
        entries = reader.entries()
        assert entries.plain.all() and [str(entries.slices.region(row)) for row in range(2)] == [
            "[0:2, 0:2]",
            "[2:3, 0:2]",
        ]
    assert np.array_equal(sv.load(path)["t"], ROWS) and sv.verify(path).ok
    assert np.array_equal(sv.load(tmp_path, mmap=True)["t"], ROWS)
    sv.reshard(path, tmp_path / "model.safetensors")
    assert sv.diff(path, tmp_path / "model.safetensors").equal


def test_shards_with_offsets_are_slices(tmp_path: Path) -> None:
    for number, (offset, part) in enumerate((([1, 0], ROWS[1:]), ([0, 0], ROWS[:1]))):
        rank(tmp_path, number, {"t": sharded(part, offset)}, part)
    assert np.array_equal(sv.load(tmp_path / "ck_world_size_2")["t"], ROWS)


def test_every_file_means_the_checkpoint_of_all_ranks(tmp_path: Path) -> None:
    path = halves(tmp_path, SHARD)
    for name in ("ck_world_size_2", "ck_world_size_2_rank_0.pt", "ck_world_size_2_rank_1.pt", ""):
        assert list(sv.load(tmp_path / name)) == ["t"]
    for number in range(2):
        shutil.copy(f"{path}_rank_{number}.pt", tmp_path / f"optim_world_size_2_rank_{number}.pt")
    with pytest.raises(AmbiguousPath, match="ck_world_size_2.*optim_world_size_2"):
        sv.load(tmp_path)


def test_the_model_speaks_for_a_folder_in_which_the_ranks_also_saved_other_states(
    tmp_path: Path,
) -> None:
    path = halves(tmp_path, SHARD)
    for number in range(2):
        for name in ("model", "optim", "extra_state"):
            shutil.copy(
                f"{path}_rank_{number}.pt", tmp_path / f"{name}_world_size_2_rank_{number}.pt"
            )
        Path(f"{path}_rank_{number}.pt").unlink()
    with sv.open_checkpoint(tmp_path) as reader:
        assert reader.index.files == [f"model_world_size_2_rank_{number}.pt" for number in range(2)]
    report = sv.verify(tmp_path)
    assert report.ok and all(
        f"'{name}_world_size_2'" in report.notes[0] for name in ("optim", "extra_state")
    )
    assert list(sv.load(tmp_path / "optim_world_size_2")) == ["t"]
    # Two sizes of the job are two models.
    for number in range(2):
        shutil.copy(
            tmp_path / "model_world_size_2_rank_0.pt",
            tmp_path / f"model_world_size_3_rank_{number}.pt",
        )
    with pytest.raises(
        AmbiguousPath, match=r"model_world_size_2 \(pt\), .*model_world_size_3 \(pt\)\."
    ):
        sv.load(tmp_path)


@pytest.mark.parametrize("name", ["ck_world_size_2", "ck_world_size_2_rank_0.pt"])
def test_files_of_ranks_are_not_written_over(name: str, tmp_path: Path) -> None:
    halves(tmp_path, SHARD)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises((TargetExists, UnsupportedError)):
        sv.save(tmp_path / name, {"t": ROWS}, format="pt", force=True)
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".lock") == before


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    path = halves(tmp_path, SHARD)
    Path(f"{path}_rank_0.pt").unlink()
    for name in ("ck_world_size_2", "ck_world_size_2_rank_1.pt", ""):
        with pytest.raises(
            MissingFile, match="ck_world_size_2_rank_0.pt' is missing, of the 2 ranks"
        ):
            sv.load(tmp_path / name)
    rank(tmp_path, 0, {}, world=999_999)
    with pytest.raises(MissingFile, match="rank_8.pt' and 1 more is missing"):
        sv.load(tmp_path / "ck_world_size_999999")


@pytest.mark.parametrize(
    ("placements", "more", "error", "why"),
    [
        ((placement("Partial", reduce_op="sum"),), {}, UnsupportedError, "term of a value"),
        ((placement("_MaskPartial"),), {}, UnsupportedError, "full_tensor"),
        ((placement("Interleaved", dim=0),), {}, UnsupportedError, "'Interleaved'"),
        ((SHARD, SHARD), {}, InvalidCheckpoint, "2 placements on a mesh of 1"),
        ((placement("Shard", dim=2),), {}, InvalidCheckpoint, "axis 2 of 2"),
        ((placement("Shard", dim=True),), {}, InvalidCheckpoint, "axis True"),
        ((strided(0),), {}, InvalidCheckpoint, "split factor 0"),
        ((strided(2**60),), {}, UnsupportedError, "strided shard"),
        ((placement("Shard", dim=1),), {}, InvalidCheckpoint, "keeps the shape"),
        ((placement("Replicate"),), {}, InvalidCheckpoint, "keeps the shape"),
        ((SHARD,), {"_rank": 5}, InvalidCheckpoint, "rank 5 wrote it"),
        ((SHARD,), {"_coordinate_on_dim": (2,)}, OutOfBounds, "outside of a mesh"),
        ((SHARD,), {"_coordinate_on_dim": None}, MalformedCheckpoint, "lists of numbers"),
        ((SHARD,), {"_coordinate_on_dim": (2**80,)}, MalformedCheckpoint, "out of bounds"),
    ],
)
def test_a_placement_that_does_not_give_regions_is_refused_with_the_reason(
    placements: Any, more: dict[str, Any], error: type[Exception], why: str, tmp_path: Path
) -> None:
    path = halves(tmp_path, *placements, **more)
    with pytest.raises(error, match=why) as caught:
        sv.load(path)
    assert type(caught.value) is error


def test_a_reshard_compares_storages_of_which_its_tensors_are_parts(tmp_path: Path) -> None:
    """A bit that flipped in one is not copied into a checkpoint whose checksums would fit it."""
    rows = np.arange(16, dtype=np.float32).reshape(8, 2)
    for number, part in enumerate((rows[[0, 1, 4, 5]], rows[[2, 3, 6, 7]])):
        parts = {"t": dtensor(part, (8, 2), (2,), (number,), strided(2)), "same": tensor(ROWS, 1)}
        rank(tmp_path, number, parts, part, ROWS)
    source, target = tmp_path / "ck_world_size_2", tmp_path / "new"
    assert sv.reshard(source, target / "whole").num_tensors == 2
    file = Path(f"{source}_rank_1.pt")
    flip(file, file.read_bytes().index(rows[6:].tobytes()))
    with pytest.raises(
        CorruptCheckpoint, match=r"rank_1.pt: The 32 bytes at offset \d+, which hold 't', disagree"
    ):
        sv.reshard(source, target / "damaged")
    assert not list(target.glob("damaged*"))
    assert [each.key for each in sv.reshard(source, target / "rest", keep_going=True).lost] == ["t"]
    assert list(sv.load(target / "rest")) == ["same"]
    assert list(sv.load(source, ["same"])) == ["same"]


def test_copies_that_differ_are_refused_and_damaged_ones_are_found(tmp_path: Path) -> None:
    replicate = placement("Replicate")
    for number in range(2):
        rank(tmp_path, number, {"t": dtensor(ROWS, (3, 2), (2,), (number,), replicate)}, ROWS)
    path = tmp_path / "ck_world_size_2"
    assert np.array_equal(sv.load(path)["t"], ROWS) and sv.verify(path).ok
    # One bit of the second copy, which loading does not read.
    file = Path(f"{path}_rank_1.pt")
    flip(file, file.read_bytes().index(ROWS.tobytes()))
    assert np.array_equal(sv.load(path)["t"], ROWS) and not sv.verify(path).ok
    other = ROWS + 1
    rank(tmp_path, 1, {"t": dtensor(other, (3, 2), (2,), (1,), replicate)}, other)
    with pytest.raises(InvalidCheckpoint, match="ranks 0 and 1 hold different values"):
        sv.load(path)
    assert not sv.verify(path).ok
    # A view of a part of a storage has no checksum, and verify compares the copies.
    for number in range(2):
        storage = np.append(ROWS.ravel(), np.float32(number + 1))
        storage[0] += 5 * number
        rank(tmp_path, number, {"t": dtensor(ROWS, (3, 2), (2,), (number,), replicate)}, storage)
    assert not sv.verify(tmp_path / "ck_world_size_2").ok


SHARDS = sharded(ROWS)


@pytest.mark.parametrize(
    ("parts", "error", "why"),
    [
        ((sharded(ROWS, shape=(4, 2)), sharded(ROWS, (1, 0), (4, 2))), OverlappingSlices, "'t'"),
        ((sharded(ROWS, shape=(7, 2)), sharded(ROWS, (4, 0), (7, 2))), IncompleteCheckpoint, "'t'"),
        ((sharded(ROWS, (1, 0)), SHARDS), OutOfBounds, "Rank 0 holds a shard"),
        ((sharded(ROWS, (0,)), SHARDS), InvalidCheckpoint, "unlike its description"),
        ((sharded(ROWS, sizes=[2, 3]), SHARDS), InvalidCheckpoint, "unlike its"),
        ((SHARDS, sharded(ROWS, shape=(4, 2))), InconsistentTensor, "Rank 0 holds a Sharded"),
        ((SHARDS, tensor(ROWS)), InconsistentTensor, "rank 1 a plain tensor"),
        ((tensor(ROWS), tensor(ROWS.T)), UnsupportedError, "Rank 0 holds a plain tensor"),
        ((1, 2), UnsupportedError, "different objects"),
        ((1, tensor(ROWS)), UnsupportedError, "different objects"),
        ((subclass("torch.jagged.Tensor", (3, 2), None), 1), UnsupportedError, "torch.jagged.T"),
        ((subclass(DTENSOR, (3, 2), None), 1), MalformedCheckpoint, "without a local tensor"),
        ((subclass(SHARDED_TENSOR, (3,), ({},)), 1), MalformedCheckpoint, "list of sh"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    parts: Any, error: type[Exception], why: str, tmp_path: Path
) -> None:
    for number, part in enumerate(parts):
        rank(tmp_path, number, {"t": part, "other": 1}, ROWS)
    with pytest.raises(error, match=why):
        sv.load(tmp_path / "ck_world_size_2")
    assert sv.load(tmp_path / "ck_world_size_2", ["other"])["other"][()] == b"1"


def test_plain_tensors_that_differ_have_no_common_value_and_others_are_read(tmp_path: Path) -> None:
    """Such as the states of random generators."""
    for number in range(2):
        values = {"rng": tensor(ROWS), "step": tensor(ROWS, 1), "lr": 0.5}
        rank(tmp_path, number, values, ROWS + number, ROWS)
    path = tmp_path / "ck_world_size_2"
    with pytest.raises(
        UnsupportedError, match="ranks 0 and 1 hold different values.*copy its file"
    ):
        sv.load(path)
    loaded = sv.load(path, ["step", "lr"])
    assert np.array_equal(loaded["step"], ROWS) and loaded["lr"][()] == b"0.5"


def test_a_tensor_without_elements_is_whole(tmp_path: Path) -> None:
    for number in range(2):
        part = np.zeros((1 - number, 0), np.float32)
        rank(tmp_path, number, {"t": dtensor(part, (1, 0), (2,), (number,), SHARD)}, part)
    assert sv.load(tmp_path / "ck_world_size_2")["t"].shape == (1, 0)


def test_a_dtensor_of_which_one_file_has_all_is_read_under_any_name(tmp_path: Path) -> None:
    """On one device, or replicated; also a ShardedTensor of one shard. A part says what to do."""
    replicate, partial = placement("Replicate"), placement("Partial")
    one, copy = (
        dtensor(ROWS, (3, 2), *how) for how in (((1,), (0,), SHARD), ((4,), (1,), replicate))
    )
    for value, words in (
        *((one, ""), (copy, ""), (SHARDS, "")),
        (dtensor(ROWS, (3, 2), (2,), (0,), partial), "term of a value"),
        (dtensor(ROWS, (6, 2), (2,), (0,), SHARD), "files of all ranks"),
    ):
        write_torch(tmp_path / "x.pt", {"t": value}, ROWS)
        if words:
            with pytest.raises(UnsupportedError, match=words):
                sv.load(tmp_path / "x.pt")
        else:
            assert np.array_equal(sv.load(tmp_path / "x.pt")["t"], ROWS)


ALONE, SEVERAL = ("model.pt",), ("model_0.pt", "model_1.pt")


@pytest.mark.parametrize(
    ("index", "names", "is_save"),
    [
        ({"world_size": 1}, ALONE, False),
        ({"world_size": 1}, SEVERAL, False),
        ({"world_size": 2}, ALONE, True),
        ({"world_size": 2}, SEVERAL, True),
        ({"world_size": "2"}, ALONE, False),
        ({}, SEVERAL, True),
        ([], ALONE, False),
        (None, SEVERAL, False),
    ],
)
def test_the_index_says_how_many_ranks_wrote_and_else_the_names_do(
    index: Any, names: tuple[str, ...], is_save: bool, tmp_path: Path
) -> None:
    """None is a folder without an index."""
    if index is not None:
        (tmp_path / "metadata.pkl").write_bytes(pickle.dumps(index))
    for name in names:
        (tmp_path / name).write_bytes(b"")
    kind = kind_of_parts(LocalStorage(str(tmp_path)), ())
    assert (kind is not None) == is_save


@pytest.mark.parametrize(
    "about",
    [None, (), (Global("X"),), (Global("X"), Global("torch.float32")), (Global("X"), "f4", (2,))],
)
def test_a_share_without_a_dtype_or_a_shape_is_malformed(about: Any) -> None:
    call = subclass("torch.distributed.tensor.DTensor", (2,), None)
    function, kind, _, state = call.args
    call = type(call)(call.name, (function, kind, about, state))
    with pytest.raises(MalformedCheckpoint, match="no dtype or no shape"):
        share_of(call, 0, lambda tensor: tensor)
