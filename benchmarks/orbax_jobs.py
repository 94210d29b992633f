"""The checkpointer of a training job of JAX, beside Orbax (``benchmarks.jobs``)."""

from benchmarks.jobs import measure_jax as measure

__all__ = ["measure"]
