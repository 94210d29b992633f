"""Many tiny tensors: what a checkpoint costs when there is next to nothing in each tensor."""

from collections.abc import Iterator, Set

import numpy as np

from benchmarks.arrays import beside_peers, check_same, our_load
from benchmarks.figures import Figure
from benchmarks.peers import PEERS, Arrays
from benchmarks.setting import Setting

FAR_AHEAD = 0.5
"""Half the time at most: what "far ahead" of all others is taken to mean."""

TARGETS = {**dict.fromkeys(PEERS, FAR_AHEAD), "safetensors": 1.5, "TensorFlow kernels": None}
"""safetensors keeps neither checksums nor slices; the kernels are what TensorFlow's own time is not
spent in."""

SLOW = frozenset(["Orbax", "Zarr"])
"""Libraries that take minutes for as many tensors as the others save in seconds: both sides save a
tenth of them."""


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of the tiny tensors."""
    arrays = _tensors(setting.sizes.tiny_count)
    our_load(setting.quiet, arrays)
    check_same(setting.quiet.path / "ours" / "model", arrays)
    yield from _beside(setting, arrays, TARGETS.keys() - SLOW)
    yield from _beside(setting, _tensors(setting.sizes.tiny_count // 10), SLOW)


def _tensors(count: int) -> Arrays:
    values = np.random.default_rng(0).standard_normal((count, 16), np.float32)
    return {f"layer_{row:06d}.bias": values[row].copy() for row in range(count)}


def _beside(setting: Setting, arrays: Arrays, names: Set[str]) -> Iterator[Figure]:
    targets = {name: TARGETS[name] for name in names}
    yield from beside_peers(setting, f"{len(arrays)} x 16 floats", setting.quiet, arrays, targets)
