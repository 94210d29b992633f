"""Layouts of meshes, and the plans between two of them: geometry alone, no byte moves."""

from collections.abc import Iterator
from time import perf_counter

import shardvar as sv
from benchmarks.figures import Figure
from benchmarks.setting import Setting
from shardvar.layout.meshes import Replicate, Shard, dtensor, plan_redistribution
from shardvar.layout.meshes.dtensor import DTensorPlacement

SHAPE = 10**6, 1024
TARGET = 1.0

PAIRS: tuple[tuple[str, tuple[DTensorPlacement, ...], tuple[DTensorPlacement, ...]], ...] = (
    ("transpose the mesh", (Shard(0), Shard(1)), (Shard(1), Shard(0))),
    ("exchange rows for columns", (Shard(0), Shard(0)), (Shard(1), Shard(1))),
    ("gather columns", (Shard(0), Shard(1)), (Shard(0), Replicate())),
    ("cut replicas", (Replicate(), Replicate()), (Shard(0), Shard(1))),
)


def measure(_setting: Setting) -> Iterator[Figure]:
    """The figures of planning between layouts on 1,024 devices."""
    mesh = sv.Mesh((32, 32))
    for name, before, after in PAIRS:
        start = perf_counter()
        plan = plan_redistribution(dtensor(SHAPE, mesh, before), dtensor(SHAPE, mesh, after))
        seconds = perf_counter() - start
        note = f"{len(plan.moves)} copies"
        yield Figure(
            f"plan redistribution, 1024 devices: {name}", "", "", seconds, "s", TARGET, note
        )
