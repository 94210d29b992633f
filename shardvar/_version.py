"""The version, where everything reads it: the face, what is written into checkpoints, and the
build."""

__version__ = "0.1.0"
