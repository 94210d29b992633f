"""The version, for the face, for checkpoints, and for the build."""

__version__ = "0.1.0"
