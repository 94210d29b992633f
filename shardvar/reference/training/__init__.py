"""Training: modules and layers, optimizers and slots, strategies that place variables."""

from shardvar.reference.training import layers, optimizers, strategies
from shardvar.reference.training.module import Module, deserialize, serializable, serialize

__all__ = [
    "Module",
    "deserialize",
    "layers",
    "optimizers",
    "serializable",
    "serialize",
    "strategies",
]
