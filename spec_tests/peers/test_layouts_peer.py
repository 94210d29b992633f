"""Layouts on the real frameworks: what torch and JAX say that devices hold, for random and for all
small cases.

PyTorch runs on a fake process group, once for each rank. JAX runs in a process with eight devices,
which are chosen when it starts.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from shardvar.errors import ArgumentError
from shardvar.layout.meshes import Replicate, Shard, StridedShard, dtensor, fsdp, named_sharding
from shardvar.layout.meshes.layout import Mesh
from spec_tests.helpers.layout_tables import held, local_positions


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


SPECS: list[Any] = [None, "x", "y", ["x", "y"], ["y", "x"]]
ASK_JAX = """
import json, sys
import jax, numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

answers = []
for shape, order, spec in json.load(sys.stdin):
    devices = np.array(jax.devices())[order].reshape(4, 2)
    mesh = Mesh(devices, ("x", "y"))
    try:
        named = NamedSharding(mesh, PartitionSpec(*(tuple(e) if isinstance(e, list) else e for e in spec)))
        found = named.devices_indices_map(tuple(shape))
        answers.append({d.id: [s.indices(n)[:2] for s, n in zip(i, shape)] for d, i in found.items()})
    except Exception as error:
        answers.append(type(error).__name__)
json.dump(answers, sys.stdout)
"""


def test_a_device_holds_what_devices_indices_map_says() -> None:
    """For all specs of a (4, 2) mesh, with its devices in order and not, and what JAX refuses is
    refused."""
    pytest.importorskip("jax", reason="JAX is not installed")
    orders = [list(range(8)), np.random.default_rng(0).permutation(8).tolist()]
    asked = [
        list(each)
        for each in product([(16, 8), (8, 6), (24, 24)], orders, product(SPECS, repeat=2))
    ]
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", ASK_JAX],
        input=json.dumps(asked),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    accepted = 0
    for (shape, order, spec), answer in zip(asked, json.loads(done.stdout), strict=True):
        mesh = Mesh((4, 2), ("x", "y"), order)
        if isinstance(answer, str):
            with pytest.raises(ArgumentError):
                named_sharding(shape, mesh, spec)
            continue
        accepted += 1
        assert held(named_sharding(shape, mesh, spec)) == {
            int(device): [
                (
                    tuple(start for start, _ in indices),
                    tuple(stop - start for start, stop in indices),
                ),
            ]
            for device, indices in answer.items()
        }
    assert 0 < accepted < len(asked)


def test_a_partition_spec_is_taken_as_it_is() -> None:
    sharding = pytest.importorskip("jax", reason="JAX is not installed").sharding
    spec, mesh = sharding.PartitionSpec, Mesh((2, 2), ("x", "y"))
    assert named_sharding((8, 6), mesh, spec(("y", "x"), None)) == named_sharding(
        (8, 6), mesh, (("y", "x"),)
    )
    assert named_sharding((8, 6), mesh, spec(spec.UNCONSTRAINED, "x")) == named_sharding(
        (8, 6), mesh, (None, "x")
    )
    assert named_sharding((8, 6), mesh, spec("x", unreduced={"y"})).pending == ((1, "sum"),)
