"""Comparing: differences between checkpoints, digests and manifests of their tensors, statistics of
their values."""
