"""Training: modules and layers, optimizers and their slots, and the strategies that place variables."""

from shardvar.training import layers, optimizers, strategies
from shardvar.training.module import Module
from shardvar.training.serialization import deserialize, serializable, serialize

__all__ = ["Module", "deserialize", "layers", "optimizers", "serializable", "serialize", "strategies"]
