"""Reading and writing each format of the table, as ratios to the same tensors in shardvar's own format.

The formats are those that `shardvar formats` lists, so a new one is measured as soon as it is in the table. A format
that is only read is written byte by byte, as ``make`` of its row says in ``spec_tests.hostile``.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

import shardvar as sv
from benchmarks.figures import Figure
from benchmarks.places import Place, emptied
from benchmarks.setting import Setting, skipped
from benchmarks.sizes import MIB
from benchmarks.timing import Run
from shardvar.formats.table import format_named, format_names

COUNT, SIDE = 64, 512
"""Matrices, and the rows and columns of each: 1 MiB of float32, as in a small model."""
OWN = "shardvar"
AGAINST = "the format shardvar"


Arrays = Mapping[str, npt.NDArray[np.float32]]


def is_written(name: str) -> bool:
    """Return True if shardvar writes the format."""
    return bool(format_named(name).capabilities.dtypes)


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of all formats but shardvar's own, which is what they are compared with."""
    draws = np.random.default_rng(0)
    state = {f"layer{row}": draws.standard_normal((SIDE, SIDE), np.float32) for row in range(COUNT)}
    place = setting.quiet
    own = place.room("own") / "ck"
    sv.save(own, state)
    for name in format_names():
        if name != OWN:
            yield from _figures(setting, place, name, state, own)


def _make(name: str, folder: Path, state: Arrays) -> None:
    from spec_tests.hostile.evidence import EVIDENCE

    make = EVIDENCE[name].make
    assert make is not None
    for file, octets in make(state).items():
        (folder / file).write_bytes(octets)


def _figures(
    setting: Setting, place: Place, name: str, state: Arrays, own: Path
) -> Iterator[Figure]:
    size = f"{COUNT * SIDE * SIDE * 4 / MIB:g} MiB"
    target = place.room(name) / "ck"
    if is_written(name):
        again = place.room("again") / "ck"
        ours = Run(partial(sv.save, target, state, format=name), emptied(target.parent))
        theirs = Run(partial(sv.save, again, state), emptied(again.parent))
        yield setting.ratio(f"save {size}, {name}", AGAINST, place, ours, theirs, None)
    else:
        try:
            _make(name, target.parent, state)
        except ImportError as error:
            yield skipped(f"load {size}, {name}", AGAINST, f"{error.name} is not installed")
            return
    ours, theirs = Run(partial(sv.load, target)), Run(partial(sv.load, own))
    yield setting.ratio(f"load {size}, {name}", AGAINST, place, ours, theirs, None)
    place.room(name)
