"""The checkpointer of a training job whose state has very many tensors (``benchmarks.jobs``)."""

from benchmarks.jobs import measure_tiny as measure

__all__ = ["measure"]
