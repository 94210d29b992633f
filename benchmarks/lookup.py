"""One tensor out of a large index, opened and read by a process that has started and read nothing
from it yet."""

from collections.abc import Iterator
from statistics import median
from time import perf_counter

from benchmarks.child import call
from benchmarks.figures import Figure
from benchmarks.holes import write_holes
from benchmarks.setting import Setting
from shardvar.planning.slices import TensorTable

TARGET_MS = 50.0


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of the lookup."""
    count = setting.sizes.index_entries
    room = setting.disk.room("lookup")
    for name, entries in (("large", count), ("small", 1)):
        write_holes(
            room / name,
            TensorTable.of((key(row), "float32", (16,)) for row in range(entries)).whole(),
        )
    times = [
        call(lookup, str(room / "small"), str(room / "large"), count)
        for _ in range(setting.sizes.processes)
    ]
    subject = f"open, and read one tensor of {count}"
    yield Figure(
        subject, "", "disk", median(times) * 1000, "ms", TARGET_MS, f"{len(times)} fresh processes"
    )


def key(row: int) -> str:
    """The name of a tensor."""
    return f"layer_{row:07d}/kernel"


def lookup(small: str, large: str, count: int) -> float:
    """The seconds from the path to the array."""
    import shardvar as sv

    with sv.open_checkpoint(small) as reader:
        reader.read(key(0))
    start = perf_counter()
    with sv.open_checkpoint(large) as reader:
        reader.read(key(count // 3))
    return perf_counter() - start
