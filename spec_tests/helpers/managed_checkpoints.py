"""Managers of numbered checkpoints for tests: a clock that stands still, a small model, names in a
directory."""

import os
from pathlib import Path
from typing import Any

import numpy as np

import shardvar as sv


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self, now: float = 1e9) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def build(
    directory: Path, most: int | None = 2, value: float = 0.0, **options: Any
) -> sv.CheckpointManager:
    """Return a manager of a checkpoint of three variables, which hold ``value`` and the numbers
    after it."""
    w = [sv.Variable(np.full((2, 3), value + number, np.float32)) for number in range(3)]
    return sv.CheckpointManager(sv.Checkpoint(w=w), directory, most, **options)


def names(paths: list[str]) -> list[str]:
    """Return the last parts of paths."""
    return [os.path.basename(path) for path in paths]


def stems(directory: Path) -> set[str]:
    """Return the numbered checkpoints of which any file is there."""
    return {
        name.split(".")[0].split("-0")[0]
        for name in os.listdir(directory)
        if name.startswith("ckpt-")
    }


def value_of(directory: Path) -> float:
    """Return the first value of the newest checkpoint, after every value of every variable was
    compared."""
    manager = build(directory, None, -1.0)
    path = manager.restore_or_initialize()
    assert path is not None
    assert path == sv.latest_checkpoint(directory)
    assert sv.verify(path).ok
    nodes: Any = manager.checkpoint.children["w"].children
    first = float(nodes["0"].numpy()[0, 0])
    for number in range(3):
        np.testing.assert_array_equal(
            nodes[str(number)].numpy(), np.full((2, 3), first + number, np.float32)
        )
    return first
