"""Strategies for tests, and where they put variables."""

from typing import Any

import numpy as np

from shardvar.reference.training import serializable
from shardvar.reference.training.strategies import MirroredStrategy


def arange(*shape: int) -> np.ndarray[Any, Any]:
    """Float32 numbers from 0 on."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def places(variable: Any) -> list[str]:
    """The short names of the devices that hold a variable, part by part."""
    return [resource.device.short_name for resource in variable.resources]


def two_gpus() -> MirroredStrategy:
    """One worker with two accelerators."""
    return MirroredStrategy(["worker:0/GPU:0", "worker:0/GPU:1"])


@serializable
class Tall:
    """A registered chooser: tall variables go to the second strategy."""

    def __call__(self, name: str | None, shape: tuple[int, ...], dtype: Any) -> int:
        return 2 if shape and shape[0] > 4 else 1

    def get_config(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Tall":
        return cls()


def assert_equal_copies(variable: Any) -> None:
    """All copies hold the same bits, no two in one buffer."""
    copies = [copy.numpy() for copy in variable.copies]
    assert all(np.array_equal(copies[0], copy) for copy in copies)
    addresses = [resource.array.__array_interface__["data"][0] for resource in variable.resources]
    assert len(set(addresses)) == len(addresses)
