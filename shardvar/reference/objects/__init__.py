"""Checkpoints of objects: the state of variables, named by their paths from a root."""
