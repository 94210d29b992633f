"""Layouts of meshes: geometry alone, of a tensor of any size."""

from collections.abc import Callable, Iterator
from time import perf_counter

import shardvar as sv
from benchmarks.figures import Figure
from benchmarks.setting import Setting
from shardvar.layout.meshes import (
    Layout,
    Shard,
    StridedShard,
    dtensor,
    fsdp,
    named_sharding,
    plan_redistribution,
)

TARGET = 50.0
PLAN_TARGET = 1.0

ROWS = 10**6


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of layouts."""
    side = setting.sizes.mesh_side
    mesh = sv.Mesh((side, side), ("dp", "tp"))
    subjects: dict[str, Callable[[], Layout]] = {
        "dtensor [Shard(0), Shard(1)]": lambda: dtensor((ROWS, 64), mesh, [Shard(0), Shard(1)]),
        "dtensor [StridedShard(0, 64), Shard(0)]": lambda: dtensor(
            (ROWS, 64), mesh, [StridedShard(0, 64), Shard(0)]
        ),
        "fsdp over tensor parallelism": lambda: fsdp((ROWS, 64), mesh, tp_dim=0),
        "named_sharding (('tp', 'dp'),)": lambda: named_sharding(
            (side * side * 244, 64), mesh, (("tp", "dp"),)
        ),
    }
    for name, make in subjects.items():
        make()  # once before, so that imports and caches are not measured
        start = perf_counter()
        layout = make()
        milliseconds = 1000 * (perf_counter() - start)
        note = f"{len(layout.device)} regions on {mesh.size} devices"
        yield Figure(name, "", "", milliseconds, "ms", TARGET, note)
    half = sv.Mesh((side // 2, side // 2))
    source, target = (
        dtensor((ROWS, 64), half, placed) for placed in ([Shard(0), Shard(1)], [Shard(1), Shard(0)])
    )
    start = perf_counter()
    plan = plan_redistribution(source, target)
    seconds = perf_counter() - start
    note = f"{len(plan.moves.sender)} copies between {half.size} devices"
    yield Figure(
        "plan_redistribution [S0, S1] to [S1, S0]", "", "", seconds, "s", PLAN_TARGET, note
    )
