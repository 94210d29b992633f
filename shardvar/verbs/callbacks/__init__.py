"""Sharding callbacks (RFC 001): the user decides, tensor by tensor, what goes to which file."""

from shardvar.verbs.callbacks.answer import compose
from shardvar.verbs.callbacks.shardable_tensor import LazySlice, ShardableTensor, ShardingCallback

__all__ = ["LazySlice", "ShardableTensor", "ShardingCallback", "compose"]
