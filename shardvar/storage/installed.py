"""Entry points of installed packages, found without ``importlib.metadata`` where no package has
them.

``importlib.metadata.entry_points`` loads the parser of mails and reads the names of all packages: a
third of the time of ``shardvar inspect``. Nearly no environment has a package that adds a format,
so the steps are:

1. Look for the name of the group in the ``entry_points.txt`` of each folder of ``sys.path``.
2. Ask ``importlib.metadata`` if it was found, or if packages may be in other places than such
   folders.

Both ways give the same answer; only an absent group may be answered by the first.
"""

import os
import sys
import time
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_ENDINGS = (".dist-info", ".egg-info")
"""The endings of the folders in which installers keep what they know of a package."""


def entry_points_of(group: str) -> "list[EntryPoint]":
    """Return the entry points of a group, of all packages."""
    # 1. Only folders are looked into: other places have finders, such as archives of packages.
    may_have = False
    for finder in sys.meta_path:
        may_have |= hasattr(finder, "find_distributions") and finder is not PathFinder
    try:
        for place in sys.path:
            may_have = may_have or _knows_group(place or os.curdir, group.encode())
    except OSError:
        may_have = True
    if not may_have:
        return []
    # 2.
    from importlib.metadata import entry_points

    return list(entry_points(group=group))


_Stamp = tuple[int, int, int]
_answers: dict[tuple[str, bytes], tuple[_Stamp, bool]] = {}
"""The answer for each folder and group, and the folder as it was then: one call may ask thousands of
times. To install a package changes the time of its folder."""
_SETTLED_NS = 2_000_000_000
"""The age from which on the time of a folder tells whether it changes again: clocks of file systems
have ticks."""


def _knows_group(folder: str, group: bytes) -> bool:
    """Return ``_names_group``, once a folder as long as it stays as it is."""
    try:
        status = os.stat(folder)
    except FileNotFoundError:
        return False
    stamp = status.st_dev, status.st_ino, status.st_mtime_ns
    known, answer = _answers.get((folder, group), (None, False))
    if known != stamp:
        answer = _names_group(folder, group)
        if time.time_ns() - status.st_mtime_ns > _SETTLED_NS:
            _answers[folder, group] = stamp, answer
    return answer


def _names_group(folder: str, group: bytes) -> bool:
    """Return True if a package of a folder may have entry points of a group."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return False
    # What it keeps of its package has another name.
    if folder.rstrip("/\\").lower().endswith(".egg"):
        return True
    for name in names:
        if name.lower().endswith(_ENDINGS):
            try:
                with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                    if group in file.read():
                        return True
            except (FileNotFoundError, NotADirectoryError):  # a package without entry points
                continue
    return False
