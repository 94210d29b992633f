"""One large float32 table: save against a raw write, load against a raw read, both against every
peer."""

from collections.abc import Iterator

import numpy as np

from benchmarks.arrays import beside_peers, check_same, our_load, our_save, raw_read, raw_write
from benchmarks.child import Growth, call
from benchmarks.figures import Figure
from benchmarks.peers import PEERS
from benchmarks.setting import Setting
from benchmarks.sizes import MIB

SAVE_TARGET = 1.25
LOAD_TARGET = 1.3
AHEAD = 1.0


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of the table."""
    rows = setting.sizes.table_rows
    arrays = {"table": np.random.default_rng(0).standard_normal((rows, 64), np.float32)}
    subject = f"{arrays['table'].nbytes / MIB:.0f} MiB table"
    for place in setting.places:
        our_load(place, arrays)
        check_same(place.path / "ours" / "model", arrays)
        save = our_save(place, arrays), raw_write(place, arrays)
        yield setting.ratio(f"save {subject}", "write and fsync", place, *save, SAVE_TARGET)
        load = our_load(place, arrays), raw_read(place, arrays)
        yield setting.ratio(f"load {subject}", "readinto", place, *load, LOAD_TARGET)
    for place in setting.places:
        yield from beside_peers(setting, subject, place, arrays, dict.fromkeys(PEERS, AHEAD))
    del arrays
    path = str(setting.disk.room("memory") / "model")
    for verb, function in (("save", save_growth), ("load", load_growth)):
        nbytes, bound = call(function, path, rows)
        yield Figure(
            f"{verb} {subject}: memory beyond the array",
            "",
            "disk",
            nbytes / MIB,
            "MiB",
            bound / MIB,
            "as reported",
        )


def save_growth(path: str, rows: int) -> tuple[int, int]:
    """In a fresh process: the memory that a save takes in addition to the array, and what its report says
    is the most."""
    import shardvar as sv

    arrays = {"table": np.ones((rows, 64), np.float32)}
    sv.save(path, {"warm": np.zeros(1)})
    growth = Growth()
    report = sv.save(path, arrays)
    return growth.nbytes(), report.peak_nbytes


def load_growth(path: str, _rows: int) -> tuple[int, int]:
    """Return the same for a load: the memory beyond the array that it returns, and its bound."""
    import shardvar as sv

    bound = sv.save(f"{path}-warm", {"warm": np.zeros(1)}).peak_nbytes
    sv.load(f"{path}-warm")
    growth = Growth()
    array = sv.load(path)["table"]
    return growth.nbytes() - array.nbytes, bound
