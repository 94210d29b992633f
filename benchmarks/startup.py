"""The time before any work begins: imports, the start of the command line, opening a memory map."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from statistics import median
from time import perf_counter

import numpy as np

import shardvar as sv
from benchmarks.child import ROOT, Growth, call, environment
from benchmarks.figures import Figure
from benchmarks.holes import one_tensor, write_holes
from benchmarks.setting import Setting, skipped
from benchmarks.sizes import GIB, MIB
from benchmarks.timing import Run

IMPORT_TARGET = 1.3
INSPECT_TARGET = 0.25
MAP_TARGET_MS = 50.0
"""What "in milliseconds" is taken to mean, a process's first steps through the code included."""

MAP_GROWTH_TARGET = 16.0

_INSPECT = "import sys; from shardvar.cli import main; sys.exit(main())"


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of start-up."""
    ours, numpy = (_process("-c", f"import {name}") for name in ("shardvar, numpy", "numpy"))
    yield setting.ratio(
        "import shardvar (and numpy)", "import numpy", setting.disk, ours, numpy, IMPORT_TARGET
    )
    verbs = _process("-c", "import shardvar; shardvar.save")
    yield setting.ratio(
        "import shardvar, and its verbs", "import numpy", setting.disk, verbs, numpy, None
    )
    room = setting.disk.room("startup")
    sv.save(
        room / "model", {f"layer_{row}/kernel": np.ones((4, 4), np.float32) for row in range(20)}
    )
    command_line = find_spec("shardvar.cli")
    if command_line is None or command_line.origin is None:
        yield skipped("shardvar inspect", "", "the command line is not installed")
    else:
        inspect = _process("-c", _INSPECT, "inspect", str(room / "model"))
        yield setting.ratio(
            "shardvar inspect, 20 tensors", "import numpy", setting.disk, inspect, numpy, None
        )
        seconds = median(inspect.seconds() for _ in range(setting.sizes.processes))
        yield Figure(
            "shardvar inspect, 20 tensors",
            "",
            "disk",
            seconds,
            "s",
            INSPECT_TARGET,
            "the whole process",
        )
    nbytes = setting.sizes.map_nbytes
    write_holes(room / "large", one_tensor(nbytes // 256, 4))
    seconds, grown = call(map_large, str(room))
    subject = f"load {nbytes / GIB:g} GiB with mmap=True"
    yield Figure(
        subject,
        "",
        "disk",
        seconds * 1000,
        "ms",
        MAP_TARGET_MS,
        "an array of that size, nothing read",
    )
    yield Figure(f"{subject}: memory grows", "", "disk", grown / MIB, "MiB", MAP_GROWTH_TARGET)


def map_large(room: str) -> tuple[float, int]:
    """(seconds, growth of memory) until there is an array."""
    sv.load(f"{room}/model", mmap=True)
    growth = Growth()
    start = perf_counter()
    array = sv.load(f"{room}/large", mmap=True)["table"]
    seconds = perf_counter() - start
    if array[0, 0] or array[-1, -1]:
        raise ValueError("Holes are zeros.")
    return seconds, growth.nbytes()


def _process(*arguments: str) -> Run:
    command = [sys.executable, *arguments]
    # The bytecode of an installed package is on the disk. Without it, each process would compile
    # the source again.
    compiled = {
        name: value for name, value in environment().items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    return Run(
        lambda: subprocess.run(
            command, env=compiled, cwd=ROOT, check=True, stdout=subprocess.DEVNULL
        )
    )
