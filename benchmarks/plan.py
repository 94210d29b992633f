"""Plans of many slices: metadata alone, no byte moves."""

from collections.abc import Iterator
from time import perf_counter

import shardvar as sv
from benchmarks.figures import Figure
from benchmarks.holes import one_tensor, write_holes
from benchmarks.setting import Setting
from shardvar.planning.index import find_faults
from shardvar.planning.plan import plan_copies

TARGET = 10.0


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of planning."""
    most = setting.sizes.plan_slices
    rows = 2 * most + 7
    for before, after in ((most // 5, most // 10), (most // 4, most // 4 + 1), (most, most + 1)):
        start = perf_counter()
        sources, targets = one_tensor(rows, before), one_tensor(rows, after)
        if find_faults(sources):
            raise ValueError("These slices tile their tensor.")
        note = f"{len(plan_copies(sources, targets).copies)} copies"
        seconds = perf_counter() - start
        yield Figure(f"plan {before} slices to {after}", "", "", seconds, "s", TARGET, note)
    room = setting.disk.room("plan")
    write_holes(room / "source", one_tensor(rows, most))
    start = perf_counter()
    report = sv.reshard(room / "source", room / "target", partition=most + 1, dry_run=True)
    seconds = perf_counter() - start
    note = f"{report.num_copies} copies, index included"
    yield Figure(
        f"reshard --dry-run, {most} slices to {most + 1}", "", "disk", seconds, "s", TARGET, note
    )
