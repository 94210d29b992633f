"""The time before any work begins: imports, the start of the command line, opening a memory map."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
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
COMMAND_TARGET = 2.2
"""Processor time of a command on a small file, in times of ``import numpy``."""
MAP_TARGET_MS = 50.0
"""What "in milliseconds" is taken to mean, a process's first steps through the code included."""

MAP_GROWTH_TARGET = 16.0

_MAIN = "import sys; from shardvar.cli import main; code = main()"
_COUNT = "; print(sum(name.startswith('shardvar') for name in sys.modules), file=sys.stderr)"
_EXIT = "; sys.exit(code)"

_ABOUT_BYTECODE = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")


@dataclass(frozen=True, slots=True)
class ProcessorRun(Run):
    """A process, whose time is the processor's."""

    def seconds(self) -> float:
        """The time of one process, its own and the kernel's for it."""
        before = getrusage(RUSAGE_CHILDREN)
        self.call()
        after = getrusage(RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of start-up."""
    ours, numpy = (Run(_process("-c", f"import {name}")) for name in ("shardvar, numpy", "numpy"))
    yield setting.ratio(
        "import shardvar (and numpy)", "import numpy", setting.disk, ours, numpy, IMPORT_TARGET
    )
    verbs = Run(_process("-c", "import shardvar; shardvar.save"))
    yield setting.ratio(
        "import shardvar, and its verbs", "import numpy", setting.disk, verbs, numpy, None
    )
    room = setting.disk.room("startup")
    arrays = {f"layer_{row}/kernel": np.ones((4, 4), np.float32) for row in range(20)}
    sv.save(room / "native", arrays)
    sv.save(room / "model.npz", arrays)
    command_line = find_spec("shardvar.cli")
    if command_line is None or command_line.origin is None:
        yield skipped("shardvar inspect", "", "the command line is not installed")
    else:
        yield from _commands(setting, str(room / "model.npz"), str(room / "native"))
        inspect = Run(_process("-c", _MAIN + _EXIT, "inspect", str(room / "native")))
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


def _commands(setting: Setting, path: str, other: str) -> Iterator[Figure]:
    """The processor time of commands on 20 tensors, with and without bytecode on the disk."""
    commands = {
        "inspect FILE.npz": ["inspect", path],
        "inspect, native": ["inspect", other],
        "show": ["show", path, "layer_0/kernel"],
        "verify": ["verify", path],
        "diff": ["diff", path, other],
        "completion of a key": ["__complete", "show", path, "layer_1"],
    }
    for words, arguments in commands.items():
        modules = subprocess.run(
            [sys.executable, "-c", _MAIN + _COUNT + _EXIT, *arguments],
            env=environment(),
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        note = f"{int(modules.stderr)} modules of shardvar"
        for compiled in (True, False):
            ours = ProcessorRun(_process("-c", _MAIN + _EXIT, *arguments, compiled=compiled))
            numpy = ProcessorRun(_process("-c", "import numpy", compiled=compiled))
            subject = f"shardvar {words}, processor{'' if compiled else ', without bytecode'}"
            figure = setting.ratio(
                subject,
                "import numpy",
                setting.disk,
                ours,
                numpy,
                COMMAND_TARGET if compiled else None,
            )
            yield replace(figure, note=f"{figure.note}, {note}")


def map_large(room: str) -> tuple[float, int]:
    """(seconds, growth of memory) until there is an array."""
    sv.load(f"{room}/native", mmap=True)
    growth = Growth()
    start = perf_counter()
    array = sv.load(f"{room}/large", mmap=True)["table"]
    seconds = perf_counter() - start
    if array[0, 0] or array[-1, -1]:
        raise ValueError("Holes are zeros.")
    return seconds, growth.nbytes()


def _process(*arguments: str, compiled: bool = True) -> Callable[[], object]:
    """Return a function that runs Python; not ``compiled``, each process compiles all it imports."""
    # The bytecode of an installed package is on the disk.
    known = {name: text for name, text in environment().items() if name not in _ABOUT_BYTECODE}
    if not compiled:
        nowhere = Path(tempfile.gettempdir(), "shardvar-no-bytecode")
        known |= {"PYTHONPYCACHEPREFIX": str(nowhere), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, *arguments]
    return lambda: subprocess.run(
        command, env=known, cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )
