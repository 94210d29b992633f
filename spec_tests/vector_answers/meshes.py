"""Layouts of meshes, and what moves between two of them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import shardvar as sv
from shardvar.layout.meshes import (
    Layout,
    Replicate,
    Shard,
    StridedShard,
    dtensor,
    fsdp,
    named_sharding,
    plan_redistribution,
)

Inputs = Mapping[str, Any]


def _placement(told: Any) -> Any:
    if told == "replicate":
        return Replicate()
    return Shard(told["shard"]) if "shard" in told else StridedShard(*told["strided"])


def _by_placements(inputs: Inputs, name: str = "placements") -> Layout:
    return dtensor(
        inputs["shape"], sv.Mesh(inputs["mesh"]), [_placement(each) for each in inputs[name]]
    )


def _by_spec(inputs: Inputs) -> Layout:
    mesh = sv.Mesh(inputs["mesh"], inputs["axis_names"], inputs["devices"])
    return named_sharding(inputs["shape"], mesh, [tuple(entry) for entry in inputs["spec"]])


def _held(layout: Layout) -> list[list[list[int]] | None]:
    """For each device, the indices that its regions take along each axis, or None."""
    held: list[list[list[int]] | None] = []
    for device in range(layout.mesh.size):
        regions = layout.regions(device)
        axes = [
            sorted(
                {
                    index
                    for region in regions
                    for index in np.arange(extent)[region.slices[axis]].tolist()
                }
            )
            for axis, extent in enumerate(layout.shape)
        ]
        held.append(axes if regions else None)
    return held


def _received(inputs: Inputs) -> list[list[int]]:
    """For each device, the C order numbers of the elements that the plan sends it; of an element
    sent twice, twice."""
    plan = plan_redistribution(_by_placements(inputs, "source"), _by_placements(inputs, "target"))
    numbers = np.arange(int(np.prod(inputs["shape"]))).reshape(inputs["shape"])
    received: list[list[int]] = [[] for _ in range(plan.num_devices)]
    for row, device in enumerate(plan.moves.receiver.tolist()):
        received[device] += numbers[plan.moves.region(row).slices].ravel().tolist()
    return [sorted(each) for each in received]


OPS: dict[str, Callable[[Inputs], Any]] = {
    "placements": lambda inputs: _held(_by_placements(inputs)),
    "spec": lambda inputs: _held(_by_spec(inputs)),
    "fsdp": lambda inputs: _held(
        fsdp(inputs["shape"], sv.Mesh(inputs["mesh"], ("dp", "tp")), tp_dim=0)
    ),
    "redistribute": _received,
}
