"""Directories to write in: on the disk, and on a memory file system, where no noise of the disk
hides the program."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Place:
    """A directory that is emptied afterwards."""

    name: str
    """What the table calls it: ``disk`` or ``memory``."""
    path: Path
    """Where it is."""

    def room(self, name: str) -> Path:
        """An empty directory of that name."""
        path = self.path / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def within(self, name: str) -> "Place":
        """Return a new directory in it."""
        return Place(self.name, self.path / name)

    def has_room_for(self, nbytes: int) -> bool:
        """Return True if 1.2 times this number of bytes is free."""
        return shutil.disk_usage(self.path).free > nbytes * 6 // 5


@contextmanager
def open_places(disk: Path) -> Iterator[list[Place]]:
    """A place on the disk and, where this system has one, a place in memory; both are removed in
    the end."""
    disk.mkdir(parents=True, exist_ok=True)
    places = [Place("disk", Path(mkdtemp(dir=disk)).resolve())]
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        places.append(Place("memory", Path(mkdtemp(dir=MEMORY))))
    try:
        yield places
    finally:
        for place in places:
            shutil.rmtree(place.path)


def sync_tree(directory: Path) -> None:
    """Force every file of a directory, and the directories, to the disk."""
    for path, _, names in os.walk(directory):
        for name in [os.curdir, *names]:
            descriptor = os.open(os.path.join(path, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def emptied(directory: Path) -> Callable[[], None]:
    """A function that empties a directory and lets the disk come to rest."""

    def empty() -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        os.sync()

    return empty
