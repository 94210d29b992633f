"""Plans of torch.distributed.checkpoint and of torchsnapshot: what each rank writes and reads, for
random tensors."""

from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
import pytest

from shardvar.errors import ArgumentError
from shardvar.layout.meshes.mesh import Mesh
from shardvar.layout.region import Region
from shardvar.layouts import (
    SavedTensor,
    dcp_load_plan,
    dcp_save_plan,
    local_shapes_and_offsets,
    torchsnapshot_shards,
    torchsnapshot_tensor,
)
from spec_tests.peers.test_layouts_peer import CHOICES, fake_rank, our_placement, their_placement

SEED = 20250817
DTYPES = {"float32": 4, "float16": 2, "int64": 8}


PARTS = ("storage_offsets", "dest_offsets", "lengths")


def region_of(chunk: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the offset and the shape of a saved region of torch."""
    return tuple(chunk.offsets), tuple(chunk.sizes)


def random_models(random: Any, rank: int, count: int) -> list[dict[str, Any]]:
    """Return models of a few tensors: name -> (shape, choices of placements, dtype)."""
    models = []
    for _ in range(count):
        model = {}
        for number in range(random.integers(1, 5)):
            shape = tuple(random.integers(1, 9, random.integers(2, 4)).tolist())
            choices = tuple(CHOICES[int(each)] for each in random.integers(0, 3, rank))
            model[f"t{number}"] = (shape, choices, str(random.choice(list(DTYPES))))
        models.append(model)
    return models


def their_state(model: dict[str, Any], devices: Any) -> dict[str, Any]:
    import torch
    from torch.distributed.tensor import distribute_tensor

    return {
        name: distribute_tensor(
            torch.zeros(shape, dtype=getattr(torch, dtype)),
            devices,
            [*map(their_placement, choices)],
            src_data_rank=None,
        )
        for name, (shape, choices, dtype) in model.items()
    }


def our_state(model: dict[str, Any]) -> dict[str, SavedTensor]:
    return {
        name: SavedTensor(shape, tuple(map(our_placement, choices)), DTYPES[dtype])
        for name, (shape, choices, dtype) in model.items()
    }


@pytest.mark.parametrize("mesh", [(1,), (3,), (2, 2), (3, 2), (2, 2, 3)])
def test_each_rank_writes_and_reads_what_the_planners_say(mesh: tuple[int, ...]) -> None:
    """Local plans of all ranks, both ways to leave out copies, the metadata, and what other
    placements read from it."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch.distributed.checkpoint._dedup_save_plans import dedup_save_plans
    from torch.distributed.checkpoint.default_planner import (
        create_default_global_save_plan,
        create_default_local_save_plan,
    )
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
    from torch.distributed.device_mesh import init_device_mesh

    random = np.random.default_rng(SEED)
    models, targets = random_models(random, len(mesh), 40), random_models(random, len(mesh), 40)
    targets = [
        {
            name: (shape, target[next(iter(target))][1], dtype)
            for name, (shape, _, dtype) in model.items()
        }
        for model, target in zip(models, targets, strict=True)
    ]
    plans: list[list[Any]] = [[] for _ in models]
    chunks: list[list[Any]] = [[] for _ in models]
    for rank in range(prod(mesh)):
        with fake_rank(rank, prod(mesh)):
            devices = init_device_mesh("cpu", mesh)
            for number, (model, target) in enumerate(zip(models, targets, strict=True)):
                plans[number].append(
                    create_default_local_save_plan(their_state(model, devices), rank == 0)
                )
                with suppress(IndexError):
                    wanted = their_state(target, devices)
                    chunks[number].append(
                        {name: each.__create_chunk_list__() for name, each in wanted.items()}
                    )
    for model, target, local, wanted_of in zip(models, targets, plans, chunks, strict=True):
        for lowest in (False, True):
            final, metadata = create_default_global_save_plan(
                dedup_save_plans(local, save_to_lowest_rank=lowest)
            )
            ours = dcp_save_plan(our_state(model), Mesh(mesh), dedup_save_to_lowest_rank=lowest)
            mine = [
                [(each.key, each.region.offset, each.region.shape) for each in items]
                for items in ours
            ]
            assert mine == [
                [(item.index.fqn, *region_of(item.tensor_data.chunk)) for item in plan.items]
                for plan in final
            ]
        for name, (shape, choices, _) in target.items():
            saved = [item.region for items in ours for item in items if item.key == name]
            table = metadata.state_dict_metadata[name]
            assert [(each.offset, each.shape) for each in saved] == [*map(region_of, table.chunks)]
            shapes, offsets = local_shapes_and_offsets(
                shape, Mesh(mesh), [*map(our_placement, choices)]
            )
            for rank, theirs in enumerate(wanted_of):
                items = create_read_items_for_chunk_list(name, table, theirs[name])
                read = dcp_load_plan(saved, Region(offsets[rank].tolist(), shapes[rank].tolist()))
                assert {
                    (each.saved, *(getattr(each, field) for field in PARTS)) for each in read
                } == {
                    (item.storage_index.index, *(tuple(getattr(item, field)) for field in PARTS))
                    for item in items
                }


@pytest.mark.parametrize("mesh", [(2,), (4,), (3, 2), (2, 3, 2)])
def test_shapes_and_offsets_are_torchs_of_empty_and_strided_shards_too(
    mesh: tuple[int, ...],
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    random = np.random.default_rng(SEED)
    asked = [
        (
            tuple(random.integers(0, 9, 2).tolist()),
            [CHOICES[int(each)] for each in random.integers(0, len(CHOICES), len(mesh))],
        )
        for _ in range(200)
    ]
    answers = [
        local_shapes_and_offsets(shape, Mesh(mesh), [*map(our_placement, choices)])
        for shape, choices in asked
    ]
    for rank in range(prod(mesh)):
        with fake_rank(rank, prod(mesh)):
            devices = init_device_mesh("cpu", mesh)
            for (shape, choices), (shapes, offsets) in zip(asked, answers, strict=True):
                theirs = compute_local_shape_and_global_offset(
                    shape, devices, [*map(their_placement, choices)]
                )
                assert (tuple(shapes[rank]), tuple(offsets[rank])) == (
                    tuple(theirs[0]),
                    tuple(theirs[1]),
                ), (
                    shape,
                    choices,
                )


def test_torchsnapshot_divides_shards_and_tensors_so() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("torchsnapshot", reason="torchsnapshot is not installed")
    from torchsnapshot.io_preparers.chunked_tensor import ChunkedTensorIOPreparer
    from torchsnapshot.io_preparers.sharded_tensor import ShardedTensorIOPreparer

    random = np.random.default_rng(SEED)
    for _ in range(200):
        shape = random.integers(1, 7, random.integers(0, 4)).tolist()
        dtype = str(random.choice(list(DTYPES)))
        most = int(random.integers(1, 300))
        tensor = torch.zeros(shape, dtype=getattr(torch, dtype))
        whole = ChunkedTensorIOPreparer.chunk_tensor(tensor, chunk_sz_bytes=most)
        assert [
            (each.offset, each.shape) for each in torchsnapshot_tensor(shape, DTYPES[dtype], most)
        ] == [(tuple(each.offsets), tuple(each.sizes)) for each in whole]
        if shape:
            offset, dim = (
                random.integers(0, 5, len(shape)).tolist(),
                int(random.integers(len(shape))),
            )
            parts = ShardedTensorIOPreparer.subdivide_shard(tensor, offset, shape, dim, most)
            ours = torchsnapshot_shards(Region(offset, shape), dim, DTYPES[dtype], most)
            assert [(each.offset, each.shape) for each in ours] == [
                (tuple(at), tuple(n)) for _, at, n in parts
            ]
    with pytest.raises(ArgumentError):
        torchsnapshot_tensor((0, 3))
    with pytest.raises(RuntimeError):
        ChunkedTensorIOPreparer.chunk_tensor(torch.zeros(0, 3))
