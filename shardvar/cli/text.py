"""What the command line calls things: the words that it shares with pictures, and paths as a person would type them."""

import os

from shardvar.pictures.words import count, human_shape, human_size, one_line, printable

__all__ = ["count", "human_shape", "human_size", "one_line", "printable", "short_path"]


def short_path(path: str) -> str:
    """The path as a person in the working directory would type it."""
    inside = os.path.join(os.getcwd(), "")
    return printable(path.removeprefix(inside))
