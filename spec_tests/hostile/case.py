"""A hostile checkpoint."""

from dataclasses import dataclass

Files = dict[str, bytes]


@dataclass(frozen=True)
class Case:
    """One hostile checkpoint."""

    name: str
    """Its directory."""
    path: str
    """The path that a person would type for it, in its directory."""
    error: str
    """The class of the error that every verb gives, as an error or as the kind of a damage."""
    why: str
    """The bug that it is there to catch."""
    files: Files
    """Its files, by their paths in its directory."""


PICTURE = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(200)
"""Something else, of which every byte is in order."""
