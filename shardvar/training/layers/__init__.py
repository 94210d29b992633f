"""Layers: modules that compute one thing, know its gradient, and have a plain form."""

from shardvar.training.layers.dense import Dense
from shardvar.training.layers.embedding import Embedding
from shardvar.training.layers.layer import Layer

__all__ = ["Dense", "Embedding", "Layer"]
