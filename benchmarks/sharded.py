"""The cost of a sharded variable relative to NumPy on the whole array: lookups, updates, products,
initial values."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

import shardvar as sv
from benchmarks.figures import Figure
from benchmarks.peers import import_tensorflow
from benchmarks.setting import Setting, skipped
from benchmarks.timing import Run, compare

COLUMNS = 64
NUM_SHARDS = 5
BATCH = 100_000
"""Ids of one lookup, rows of one update."""
CACHED_ROWS = 8192
"""Rows that are copied at a time: 2 MiB, as much as a lookup of shardvar."""

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Call = Callable[[], object]
Pair = tuple[str, str, Call, Call, float | None]
"""The subject, the peer, our call, its call, and the largest ratio that is asked for, if there is
one."""


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of a float32 variable over five shards."""
    rows = setting.sizes.sharded_rows
    draws = np.random.default_rng(0)
    whole = draws.standard_normal((rows, COLUMNS), np.float32)
    variable = sv.ShardedVariable([sv.Variable(part) for part in np.array_split(whole, NUM_SHARDS)])
    uniform = draws.integers(0, rows, BATCH)
    zipf = np.minimum(draws.zipf(1.2, BATCH), rows) - 1
    pairs: list[Pair] = [
        (
            "lookup",
            "np.take",
            partial(sv.nn.embedding_lookup, variable, uniform),
            partial(np.take, whole, uniform, axis=0),
            1.2,
        ),
        (
            "lookup, its copies alone, in one thread",
            "np.take",
            _two_copies(whole, uniform),
            partial(np.take, whole, uniform, axis=0),
            None,
        ),
        *_scatters(variable, whole, {"uniform": uniform, "Zipf": zipf}),
        *_products(variable, whole),
        *_initial_values(rows),
    ]
    for pair in pairs:
        yield _figure(pair, setting.sizes.seconds)
    yield from _beside_tensorflow(rows, setting.sizes.seconds)


def _two_copies(whole: Floats, ids: Ids) -> Call:
    """Return the two copies of a lookup, in one thread: rows of each buffer into the cache, from
    there in order.

    Which rows lie where is known before.
    """
    parts = np.array_split(whole, NUM_SHARDS)
    first = np.cumsum([0, *map(len, parts)])
    owners = first[1:].searchsorted(ids, side="right")
    out, scratch = (
        np.empty((len(ids), COLUMNS), np.float32),
        np.empty((CACHED_ROWS, COLUMNS), np.float32),
    )
    takes: list[Call] = []
    for start in range(0, len(ids), CACHED_ROWS):
        block = slice(start, start + CACHED_ROWS)
        order = np.argsort(owners[block], kind="stable")
        edges = np.searchsorted(owners[block][order], range(NUM_SHARDS + 1))
        for part, low, high, begin in zip(parts, edges[:-1], edges[1:], first[:-1], strict=True):
            rows = ids[block][order[low:high]] - begin
            takes.append(partial(part.take, rows, axis=0, out=scratch[low:high], mode="clip"))
        takes.append(partial(scratch.take, np.argsort(order), axis=0, out=out[block], mode="clip"))
    return lambda: [take() for take in takes]


def _scatters(variable: sv.ShardedVariable, whole: Floats, ids: dict[str, Ids]) -> Iterator[Pair]:
    values = np.full((BATCH, COLUMNS), 1e-3, np.float32)
    for name, rows in ids.items():
        update = partial(variable.scatter_add, sv.IndexedSlices(values, rows))
        yield (
            f"scatter_add, {name} ids",
            "np.add.at",
            update,
            partial(np.add.at, whole.copy(), rows, values),
            0.5,
        )


def _products(variable: sv.ShardedVariable, whole: Floats) -> Iterator[Pair]:
    right = np.ones((COLUMNS, 256), np.float32)
    for mode in ("concat", "sharded"):
        yield (
            f"matmul, {mode}",
            "NumPy",
            partial(sv.matmul, variable, right, mode=mode),
            partial(np.matmul, whole, right),
            1.05,
        )


def _initial_values(rows: int) -> Iterator[Pair]:
    shape = (rows // NUM_SHARDS, COLUMNS)
    ours = _shard_of_initial_values(rows, shape)
    philox = np.random.Generator(np.random.Philox(1))
    uniform, normal = (
        partial(philox.random, shape, np.float32),
        partial(philox.standard_normal, shape, np.float32),
    )
    yield "uniform, global seed", "NumPy's Philox", ours["uniform"], uniform, 1.0
    yield "normal, global seed", "NumPy's Philox", ours["normal"], normal, 1.0


def _beside_tensorflow(rows: int, seconds: float) -> Iterator[Figure]:
    """The same initial values, beside stateless ones of TensorFlow, which depend on a seed alone,
    too."""
    shape = (rows // NUM_SHARDS, COLUMNS)
    ours = _shard_of_initial_values(rows, shape)
    try:
        random = import_tensorflow().random
    except ImportError:
        for subject in ours:
            yield skipped(
                f"sharded: {subject}, global seed", "TensorFlow", "TensorFlow is not installed"
            )
        return
    uniform = partial(random.stateless_uniform, shape, [1, 0], -0.05, 0.05)
    normal = partial(random.stateless_normal, shape, [1, 0], 0, 0.05)
    yield _figure(("uniform, global seed", "TensorFlow", ours["uniform"], uniform, 0.5), seconds)
    yield _figure(("normal, global seed", "TensorFlow", ours["normal"], normal, 1.0), seconds)


def _shard_of_initial_values(rows: int, shape: tuple[int, int]) -> dict[str, Call]:
    """Return the functions that draw the second shard alone, by the name of the distribution."""
    kinds = {"uniform": sv.initializers.RandomUniform, "normal": sv.initializers.RandomNormal}
    part = sv.Region((shape[0], 0), shape)
    return {
        name: partial(kind(seed=1, seed_mode="global"), (rows, COLUMNS), "float32", part)
        for name, kind in kinds.items()
    }


def _figure(pair: Pair, seconds: float) -> Figure:
    subject, against, ours, theirs, target = pair
    found = compare(Run(ours), Run(theirs), seconds)
    return Figure(f"sharded: {subject}", against, "", found.ratio, "x", target, str(found))
