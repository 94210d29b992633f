"""Optimizers: change variables by their gradients, dense and sparse, shard by shard."""

from shardvar.reference.training.optimizers.optimizer import Optimizer
from shardvar.reference.training.optimizers.rules import SGD, Adagrad, Adam, Momentum, RMSprop

__all__ = ["SGD", "Adagrad", "Adam", "Momentum", "Optimizer", "RMSprop"]
