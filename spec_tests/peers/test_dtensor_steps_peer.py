"""The steps of DTensor on PyTorch: its own planner on a fake process group, for all placements of
small meshes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import permutations, product
from math import prod
from typing import Any

import pytest

from shardvar.errors import UnsupportedError
from shardvar.layout.meshes.mesh import Mesh
from shardvar.layouts import (
    DTensorPlacement,
    Partial,
    Replicate,
    Shard,
    StridedShard,
    dtensor_steps,
)

Placements = tuple[DTensorPlacement, ...]
Changes = list[tuple[int, str, str]]
"""For each step the mesh axis, and its placements before and after, as texts."""


def ordered(
    mesh: tuple[int, ...], rank: int, others: Sequence[DTensorPlacement]
) -> list[Placements]:
    """Return all placements in which mesh axes cut each dimension in some order, or are one of
    `others`."""
    found = set()
    for kinds in product([*others, *map(Shard, range(rank))], repeat=len(mesh)):
        axes = [
            [axis for axis, kind in enumerate(kinds) if kind == Shard(dim)] for dim in range(rank)
        ]
        for orders in product(*map(permutations, axes)):
            placements = list(kinds)
            for dim, order in enumerate(orders):
                for place, axis in enumerate(order):
                    factor = prod(mesh[before] for before in order[:place] if before > axis)
                    placements[axis] = Shard(dim) if factor == 1 else StridedShard(dim, factor)
            found.add(tuple(placements))
    return sorted(found, key=str)


@contextmanager
def torch_planner(mesh: tuple[int, ...], devices_per_host: int) -> Iterator[Any]:
    """Yield the function by which torch plans on a mesh whose hosts have so many devices."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import torch.distributed as dist
    from torch.distributed.device_mesh import _mesh_resources, init_device_mesh
    from torch.distributed.tensor import _collective_utils, _redistribute, placement_types
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def theirs(placement: DTensorPlacement) -> Any:
        if isinstance(placement, StridedShard):
            return placement_types._StridedShard(placement.dim, split_factor=placement.split_factor)
        if isinstance(placement, Shard):
            return placement_types.Shard(placement.dim)
        is_terms = isinstance(placement, Partial)
        return placement_types.Partial(placement.op) if is_terms else placement_types.Replicate()

    def plan(shape: tuple[int, ...], itemsize: int, *sides: Placements) -> Changes:
        meta = TensorMeta(
            torch.Size(shape), (), {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[itemsize]
        )
        specs = [DTensorSpec(devices, tuple(map(theirs, side)), meta) for side in sides]
        # A planner remembers the placements of earlier calls.
        _redistribute.clear_redistribute_planner_cache()
        infos = _redistribute._gen_transform_infos_non_cached(*specs)
        return [(info.mesh_dim, *map(str, info.src_dst_placements)) for info in infos]

    dist.init_process_group("fake", rank=0, world_size=prod(mesh), store=FakeStore())
    try:
        devices = init_device_mesh("cpu", mesh)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_mesh_resources, "num_devices_per_host", lambda _: devices_per_host)
            _collective_utils.MeshTopoInfo.build_from_mesh.cache_clear()
            yield plan
    finally:
        _collective_utils.MeshTopoInfo.build_from_mesh.cache_clear()
        dist.destroy_process_group()


def word(placement: DTensorPlacement) -> str:
    """Return the placement as torch writes it."""
    if isinstance(placement, StridedShard):
        return f"_S({placement.dim}, {placement.split_factor})"
    if isinstance(placement, Shard):
        return f"S({placement.dim})"
    return f"P({placement.op})" if isinstance(placement, Partial) else "R"


def our_changes(
    shape: tuple[int, ...], itemsize: int, mesh: tuple[int, ...], hosts: int, *sides: Placements
) -> Changes:
    steps = dtensor_steps(shape, Mesh(mesh), *sides, itemsize=itemsize, devices_per_host=hosts)
    return [(step.axis, word(step.source), word(step.target)) for step in steps]


def keeps_terms(source: Placements, target: Placements) -> bool:
    """Return False if the target has terms that the source does not have, which both refuse."""
    return all(
        before == after
        for before, after in zip(source, target, strict=True)
        if isinstance(after, Partial)
    )


@pytest.mark.parametrize(
    ("mesh", "shape", "itemsize", "devices_per_host"),
    [
        ((2, 2), (8, 16), 4, 8),
        ((2, 2), (1024, 4096), 4, 2),
        ((2, 2), (65536, 65536), 2, 1),
        ((2, 3), (7, 5), 8, 1),
        ((2, 3), (1024, 4096), 4, 3),
        ((3, 2), (300, 4096, 8), 4, 2),
        ((1, 2), (300, 4096), 4, 2),
        ((2, 2, 2), (13,), 4, 8),
        ((2, 2, 2), (1 << 24,), 4, 4),
        ((3, 2, 2), (1 << 20,), 2, 2),
    ],
)
def test_steps_between_all_orders_are_those_of_torch(
    mesh: tuple[int, ...], shape: tuple[int, ...], itemsize: int, devices_per_host: int
) -> None:
    """Mesh axes that cut dimensions in any order, replicas and terms: plain ones, and those that
    torch searches."""
    every = ordered(mesh, len(shape), (Replicate(), Partial()))
    searched = 0
    with torch_planner(mesh, devices_per_host) as plan:
        for pair in product(every, repeat=2):
            if keeps_terms(*pair):
                ours = our_changes(shape, itemsize, mesh, devices_per_host, *pair)
                assert ours == plan(shape, itemsize, *pair), pair
                searched += any(isinstance(each, StridedShard) for side in pair for each in side)
    assert searched


def test_steps_between_orders_of_three_axes_on_two_dimensions_are_those_of_torch() -> None:
    """A tenth of all pairs, for time; the middle axis ends a host."""
    every = ordered((2, 2, 2), 2, (Replicate(),))
    with torch_planner((2, 2, 2), 4) as plan:
        for pair in list(product(every, repeat=2))[::11]:
            assert our_changes((512, 1024), 4, (2, 2, 2), 4, *pair) == plan(
                (512, 1024), 4, *pair
            ), pair


@pytest.mark.parametrize("mesh", [(2,), (3,), (2, 2), (2, 3)])
def test_strided_shards_of_no_order_are_moved_as_torch_does_or_refused(
    mesh: tuple[int, ...],
) -> None:
    """Factors that are no product of the sizes of mesh axes; refused where another axis cuts the
    same dimension."""
    kinds = (
        Replicate(),
        Shard(0),
        Shard(1),
        StridedShard(0, 5),
        StridedShard(1, 7),
        StridedShard(1, 1),
    )
    refused = compared = 0
    with torch_planner(mesh, 1) as plan:
        for pair in product(product(kinds, repeat=len(mesh)), repeat=2):
            try:
                ours = our_changes((70, 35), 4, mesh, 1, *pair)
            except UnsupportedError:
                refused += 1
                continue
            compared += 1
            assert ours == plan((70, 35), 4, *pair), pair
    assert compared
    assert bool(refused) == (len(mesh) > 1)
