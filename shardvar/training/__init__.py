"""Training: modules and layers, optimizers and their slots, and the strategies that place variables."""

from shardvar.training import optimizers

__all__ = ["optimizers"]
