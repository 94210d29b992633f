"""What a sharded variable costs beside plain NumPy on the whole array: lookups, updates, products, initial values."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

import shardvar as sv
from benchmarks.figures import Figure
from benchmarks.setting import Setting
from benchmarks.timing import Run, compare

COLUMNS = 64
NUM_SHARDS = 5
BATCH = 100_000
"""Ids of one lookup, rows of one update."""

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of a float32 variable over five shards."""
    rows = setting.sizes.sharded_rows
    draws = np.random.default_rng(0)
    whole = draws.standard_normal((rows, COLUMNS), np.float32)
    variable = sv.ShardedVariable([sv.Variable(part) for part in np.array_split(whole, NUM_SHARDS)])
    uniform = draws.integers(0, rows, BATCH)
    zipf = np.minimum(draws.zipf(1.2, BATCH), rows) - 1
    pairs: list[tuple[str, str, Callable[[], object], Callable[[], object], float]] = [
        (
            "lookup",
            "np.take",
            partial(sv.nn.embedding_lookup, variable, uniform),
            partial(np.take, whole, uniform, axis=0),
            1.2,
        ),
        *_scatters(variable, whole, {"uniform": uniform, "Zipf": zipf}),
        *_products(variable, whole),
        *_initial_values(rows),
    ]
    for subject, against, ours, theirs, target in pairs:
        found = compare(Run(ours), Run(theirs), setting.sizes.seconds)
        yield Figure(f"sharded: {subject}", against, "", found.ratio, "x", target, str(found))


def _scatters(
    variable: sv.ShardedVariable, whole: Floats, ids: dict[str, Ids]
) -> Iterator[tuple[str, str, Callable[[], object], Callable[[], object], float]]:
    values = np.full((BATCH, COLUMNS), 1e-3, np.float32)
    for name, rows in ids.items():
        update = partial(variable.scatter_add, sv.IndexedSlices(values, rows))
        yield f"scatter_add, {name} ids", "np.add.at", update, partial(np.add.at, whole.copy(), rows, values), 0.5


def _products(
    variable: sv.ShardedVariable, whole: Floats
) -> Iterator[tuple[str, str, Callable[[], object], Callable[[], object], float]]:
    right = np.ones((COLUMNS, 256), np.float32)
    for mode in ("concat", "sharded"):
        yield (
            f"matmul, {mode}",
            "NumPy",
            partial(sv.matmul, variable, right, mode=mode),
            partial(np.matmul, whole, right),
            1.05,
        )


def _initial_values(rows: int) -> Iterator[tuple[str, str, Callable[[], object], Callable[[], object], float]]:
    shape = (rows // NUM_SHARDS, COLUMNS)
    part = sv.Region((rows // NUM_SHARDS, 0), shape)
    philox = np.random.Generator(np.random.Philox(1))
    uniform = sv.initializers.RandomUniform(seed=1, seed_mode="global")
    normal = sv.initializers.RandomNormal(seed=1, seed_mode="global")
    ours = partial(uniform, (rows, COLUMNS), "float32", part)
    yield "uniform, global seed", "NumPy's Philox", ours, partial(philox.random, shape, np.float32), 1.0
    ours = partial(normal, (rows, COLUMNS), "float32", part)
    yield "normal, global seed", "NumPy's Philox", ours, partial(philox.standard_normal, shape, np.float32), 1.0
