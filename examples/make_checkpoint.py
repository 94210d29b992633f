"""Write a small model whose tensors are cut into three slices: ``python examples/make_checkpoint.py
PATH``."""

import sys

import numpy as np

import shardvar as sv


def model() -> dict[str, np.ndarray]:
    """An embedding table that three does not divide, a dense layer, its bias, a step counter and a
    name."""
    rng = np.random.default_rng(0)
    return {
        "embedding": rng.standard_normal((1000, 16), dtype=np.float32),
        "dense/kernel": rng.standard_normal((16, 10), dtype=np.float32),
        "dense/bias": np.zeros(10, np.float32),
        "step": np.array(1200, np.int64),
        "name": np.array(b"demo", object),
    }


if __name__ == "__main__":
    sv.save(sys.argv[1], model(), partition=3)
