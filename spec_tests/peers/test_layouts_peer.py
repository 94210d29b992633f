"""Layouts on PyTorch: what it says that devices hold, for all small cases.

It runs on a fake process group, once for each rank.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from math import prod
from typing import Any

import pytest

from shardvar.layout.meshes import Replicate, Shard, StridedShard, dtensor, fsdp
from shardvar.layout.meshes.layout import Mesh
from spec_tests.helpers.layout_tables import local_positions


@contextmanager
def fake_rank(rank: int, world: int) -> Iterator[None]:
    """Be one rank of a process group that sends nothing."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


CHOICES = [("replicate",), ("shard", 0), ("shard", 1), ("strided", 0, 2), ("strided", 0, 3)]


def our_placement(choice: Any) -> Any:
    kind, *rest = choice
    return {"replicate": Replicate, "shard": Shard, "strided": StridedShard}[kind](*rest)


def their_placement(choice: Any) -> Any:
    from torch.distributed.tensor import placement_types as types

    kind, *rest = choice
    if kind == "strided":
        return types._StridedShard(rest[0], split_factor=rest[1])
    return types.Shard(*rest) if kind == "shard" else types.Replicate()


@pytest.mark.parametrize("mesh", [(1,), (2,), (3,), (4,), (2, 2), (3, 2), (2, 3)])
def test_a_device_holds_what_distribute_tensor_gives_it(mesh: tuple[int, ...]) -> None:
    """The values of the local tensor, for all placements of a few kinds and several shapes."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    for rank in range(prod(mesh)):
        with fake_rank(rank, prod(mesh)):
            devices = init_device_mesh("cpu", mesh)
            for shape, choices in product(
                [(7, 3), (5, 4), (1, 2)], product(CHOICES, repeat=len(mesh))
            ):
                whole = torch.arange(prod(shape)).reshape(shape)
                placements = [their_placement(choice) for choice in choices]
                local = distribute_tensor(whole, devices, placements, src_data_rank=None).to_local()
                layout = dtensor(shape, Mesh(mesh), [our_placement(choice) for choice in choices])
                assert sorted(local_positions(layout, rank)) == sorted(local.flatten().tolist())


@pytest.mark.parametrize("mesh", [(2,), (5,), (2, 2), (3, 2), (2, 3, 2)])
def test_shape_and_offset_are_those_that_torch_computes(mesh: tuple[int, ...]) -> None:
    """``compute_local_shape_and_global_offset``, for shards that are one region; of empty ones it
    says so alone."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    for rank in range(prod(mesh)):
        with fake_rank(rank, prod(mesh)):
            devices = init_device_mesh("cpu", mesh)
            for shape, choices in product(
                [(13, 6), (2, 9)], product(CHOICES[:3], repeat=len(mesh))
            ):
                placements = [their_placement(choice) for choice in choices]
                local, offset = compute_local_shape_and_global_offset(shape, devices, placements)
                regions = dtensor(
                    shape, Mesh(mesh), [our_placement(each) for each in choices]
                ).regions(rank)
                if prod(local):
                    [region] = regions
                    assert (region.shape, region.offset) == (tuple(local), tuple(offset))
                else:
                    assert regions == ()


@pytest.mark.parametrize("mesh", [(2, 2), (3, 2), (4, 2), (3, 3)])
def test_the_shards_of_fully_shard_are_those_of_fsdp(mesh: tuple[int, int]) -> None:
    """Over tensor parallelism on the same dimension, at all small sizes: not what the placements
    say."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard as TheirShard
    from torch.distributed.tensor import distribute_tensor

    for rank in range(prod(mesh)):
        with fake_rank(rank, prod(mesh)):
            devices = init_device_mesh("cpu", mesh, mesh_dim_names=("dp", "tp"))
            for rows in range(2, 12):
                module = torch.nn.Linear(2, rows, bias=False)
                whole = torch.arange(2.0 * rows).reshape(rows, 2)
                cut = distribute_tensor(whole, devices["tp"], [TheirShard(0)], src_data_rank=None)
                module.weight = torch.nn.Parameter(cut)
                fully_shard(module, mesh=devices["dp"])
                layout = fsdp((rows, 2), Mesh(mesh, ("dp", "tp")), tp_dim=0)
                assert (
                    local_positions(layout, rank)
                    == module.weight.to_local().flatten().int().tolist()
                )
