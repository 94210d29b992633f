"""The meshes and placements of shardvar's adapter."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import shardvar as sv
from shardvar.layout import meshes
from shardvar.layout.dtypes import Array
from shardvar.layout.meshes import Layout


class Meshes:
    def mesh_parts(
        self, value: Array, mesh: Sequence[int], placements: Sequence[Any]
    ) -> list[Array]:
        return _held(value, _layout(value.shape, mesh, placements))

    def mesh_slices(
        self, shape: Sequence[int], mesh: Sequence[int], placements: Sequence[Any]
    ) -> Any:
        return [
            _stated(layout, device)
            for layout in [_layout(shape, mesh, placements)]
            for device in layout.mesh.devices
        ]

    def mesh_gather(
        self,
        parts: Sequence[Array],
        shape: Sequence[int],
        mesh: Sequence[int],
        placements: Sequence[Any],
    ) -> Array:
        layout = _layout(shape, mesh, placements)
        whole = meshes.named_sharding(shape, sv.Mesh((1,)), ())
        return _moved(parts, layout, whole)[0]

    def mesh_move(
        self, value: Array, mesh: Sequence[int], source: Sequence[Any], target: Sequence[Any]
    ) -> list[Array]:
        before, after = (_layout(value.shape, mesh, each) for each in (source, target))
        return _moved(_held(value, before), before, after)

    def mesh_move_joined(
        self, value: Array, mesh: Sequence[int], source: Sequence[Any], target: Sequence[Any]
    ) -> list[Array]:
        # A plan does not depend on which axes were joined.
        return self.mesh_move(value, mesh, source, target)

    def mesh_reduce(
        self,
        terms: Sequence[Array],
        mesh: Sequence[int],
        axis: int,
        op: str,
        placements: Sequence[Any],
    ) -> list[Array]:
        made, shape = sv.Mesh(mesh), terms[0].shape
        pending = [
            meshes.Partial(op) if number == axis else meshes.Replicate()
            for number in range(len(mesh))
        ]
        source = meshes.dtensor(shape, made, pending)
        parts = [terms[made.coordinate(device)[axis]] for device in made.devices]
        # The only term of an axis of one device is the value: nothing is pending.
        reduce = op if mesh[axis] > 1 else None
        return _moved(parts, source, _layout(shape, mesh, placements), reduce=reduce)

    def spec_parts(
        self, value: Array, mesh: Sequence[int], names: Sequence[str], spec: Sequence[Any]
    ) -> list[Array]:
        return _held(value, meshes.named_sharding(value.shape, sv.Mesh(mesh, names), spec))

    # A layout is the same wherever it is asked for.
    spec_constrained = spec_parts

    def fsdp_parts(self, value: Array, mesh: Sequence[int]) -> list[Array]:
        return _held(value, meshes.fsdp(value.shape, sv.Mesh(mesh, ("dp", "tp")), tp_dim=0))

    def fsdp_shapes(self, shape: Sequence[int], mesh: Sequence[int]) -> list[tuple[int, ...]]:
        layout = meshes.fsdp(shape, sv.Mesh(mesh, ("dp", "tp")), tp_dim=0)
        return [_stated(layout, device)[1] for device in layout.mesh.devices]

    def hsdp_parts(
        self, value: Array, mesh: Sequence[int], fsdp_axis: int, tp_axis: int | None
    ) -> list[Array]:
        made = sv.Mesh(mesh, ("copies", "dp", "tp"))
        return _held(value, meshes.fsdp(value.shape, made, fsdp_axis, tp_axis))


# Layouts. A device may hold several regions, each as an array; the kit joins the runs of a strided
# shard.


def _layout(shape: Sequence[int], mesh: Sequence[int], placements: Sequence[Any]) -> Layout:
    def one(placement: Any) -> Any:
        if isinstance(placement, tuple):
            return meshes.StridedShard(*placement[1:])
        return meshes.Replicate() if placement is None else meshes.Shard(placement)

    return meshes.dtensor(shape, sv.Mesh(mesh), [one(placement) for placement in placements])


def _stated(layout: Layout, device: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the offset and shape of a device's first region, as frameworks state it."""
    regions = layout.regions(device)
    return (
        (regions[0].offset, regions[0].shape)
        if regions
        else ((0,) * len(layout.shape), (0,) * len(layout.shape))
    )


def _held(value: Array, layout: Layout) -> list[Array]:
    every = [layout.regions(device) for device in layout.mesh.devices]
    return [_joined([value[each.slices] for each in some], some, value) for some in every]


def _axis_of(regions: Sequence[Any]) -> int:
    """Return the axis along which the runs of a strided shard lie."""
    if len(regions) < 2:
        return 0
    first, second = regions[0].offset, regions[1].offset
    return next(axis for axis, (a, b) in enumerate(zip(first, second, strict=True)) if a != b)


def _joined(arrays: Sequence[Array], regions: Sequence[Any], like: Array) -> Array:
    if not arrays:
        return np.zeros((0, *like.shape[1:]), like.dtype)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, _axis_of(regions))


def _moved(
    parts: Sequence[Array], source: Layout, target: Layout, reduce: str | None = None
) -> list[Array]:
    """Return what each device holds after a redistribution, its regions joined."""
    given = []
    for device, part in enumerate(parts):
        regions = source.regions(device)
        axis = _axis_of(regions)
        ends = np.cumsum([region.shape[axis] for region in regions if region.shape])
        given.append([part] if len(regions) == 1 else np.split(part, ends, axis)[: len(regions)])
    moved = sv.redistribute(given, source, target, reduce=reduce)
    return [
        _joined(arrays, target.regions(device), parts[0]) for device, arrays in enumerate(moved)
    ]
