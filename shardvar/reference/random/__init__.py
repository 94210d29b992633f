"""Random numbers that are a function of a seed: TensorFlow's and JAX's streams, and one that is
addressed by index."""

from shardvar.reference.random.indexed import (
    indexed_normal,
    indexed_truncated_normal,
    indexed_uniform,
    jax_bits,
    jax_key,
    jax_uniform,
)
from shardvar.reference.random.stateless import (
    fold_in,
    split,
    stateless_normal,
    stateless_truncated_normal,
    stateless_uniform,
)

__all__ = [
    "fold_in",
    "indexed_normal",
    "indexed_truncated_normal",
    "indexed_uniform",
    "jax_bits",
    "jax_key",
    "jax_uniform",
    "split",
    "stateless_normal",
    "stateless_truncated_normal",
    "stateless_uniform",
]
