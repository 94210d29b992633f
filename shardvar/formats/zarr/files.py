"""The files of a checkpoint that is a tree of folders, by their paths with "/"; or the keys of a
database in it."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardvar.errors import InvalidCheckpoint
from shardvar.formats.files import open_below
from shardvar.storage.protocol import ReadableFile, Storage, Traits
from shardvar.wire.damage import DISTRUST


@dataclass(frozen=True, slots=True)
class PathListing:
    """The contents of a folder."""

    names: Sequence[str]
    """The paths of all files, or the keys of the database, sorted."""
    sizes: Mapping[str, int]
    """The sizes of all files; the sizes of the values of a database are unknown."""

    def has(self, name: str) -> bool:
        """Return True if there is a file of that path."""
        at = bisect_left(self.names, name)
        return at < len(self.names) and self.names[at] == name

    def below(self, path: str) -> list[str]:
        """Return the paths of the files below a folder, in it.

        >>> PathListing(["a/.zarray", "a/0.0", "a0"], {}).below("a")
        ['.zarray', '0.0']
        """
        rows = self.rows_below(path)
        return [name[len(path) + bool(path) :] for name in self.names[rows.start : rows.stop]]

    def rows_below(self, path: str) -> range:
        """Return the range of ``names`` that lie below a folder."""
        if not path:
            return range(len(self.names))
        # "0" is the character after "/": all paths that begin with "a/" lie before "a0".
        return range(bisect_left(self.names, f"{path}/"), bisect_left(self.names, f"{path}0"))


@dataclass(frozen=True, slots=True)
class Tree:
    """A folder whose files, also in the folders in it, are opened by their paths."""

    root: Storage
    """The folder."""

    @property
    def path(self) -> str:
        """The folder's path, for messages."""
        return self.root.path

    @property
    def traits(self) -> Traits | None:
        """The cost of a request to the folder; None on a local disk."""
        return self.root.traits

    def open(self, name: str) -> ReadableFile:
        """Open a file; ``InvalidCheckpoint`` if its path leads out of the folder."""
        return open_below(self.root, name)


def check_inside(path: str) -> None:
    """Raise ``InvalidCheckpoint`` unless every step of a path is a bare name."""
    if any(step in ("", ".", "..") or "\0" in step or "\\" in step for step in path.split("/")):
        cause = f"The array {path[:200]!r} is not in the folder of the checkpoint."
        raise InvalidCheckpoint(cause, DISTRUST)
