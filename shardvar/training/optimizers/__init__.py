"""Optimizers: rules that change variables by their gradients, dense and sparse, shard by shard."""

from shardvar.training.optimizers.adagrad import Adagrad
from shardvar.training.optimizers.adam import Adam
from shardvar.training.optimizers.optimizer import Optimizer
from shardvar.training.optimizers.rmsprop import RMSprop
from shardvar.training.optimizers.sgd import SGD, Momentum

__all__ = ["SGD", "Adagrad", "Adam", "Momentum", "Optimizer", "RMSprop"]
