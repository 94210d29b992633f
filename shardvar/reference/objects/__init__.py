"""Checkpoints of objects: the state of variables under the names by which a root object reaches
them."""
