"""The version, for the face, for what is written into checkpoints, and for the build."""

__version__ = "0.1.0"
