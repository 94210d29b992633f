"""Many tiny tensors: what a checkpoint costs when there is next to nothing in each tensor."""

from collections.abc import Iterator

import numpy as np

from benchmarks.arrays import beside_peers, check_same, our_load
from benchmarks.figures import Figure
from benchmarks.setting import Setting

TARGETS = {"safetensors": 1.5, "TensorFlow kernels": None}
"""safetensors keeps neither checksums nor slices; the kernels are what TensorFlow's own time is not spent in."""

FAR_AHEAD = 0.5
"""Half the time at most: what "far ahead" of all others is taken to mean."""


def measure(setting: Setting) -> Iterator[Figure]:
    """The figures of the tiny tensors."""
    count = setting.sizes.tiny_count
    values = np.random.default_rng(0).standard_normal((count, 16), np.float32)
    arrays = {f"layer_{row:06d}.bias": values[row].copy() for row in range(count)}
    our_load(setting.quiet, arrays)
    check_same(setting.quiet.path / "ours" / "model", arrays)
    yield from beside_peers(setting, f"{count} x 16 floats", setting.quiet, arrays, TARGETS, FAR_AHEAD)
