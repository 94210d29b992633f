"""Symbolic links to folders, which a search follows only if they stay inside the folder that is
searched."""

import os
from collections.abc import Iterator
from contextlib import suppress


def outer_links(folder: str) -> list[str]:
    """Return the names of the links in a folder that lead to folders outside of it, or nowhere;
    without hidden ones."""
    inside = os.path.join(os.path.realpath(folder), "")
    links = [name for name, path in _links(folder) if not os.path.join(path, "").startswith(inside)]
    return sorted(links)


def inner_links(folder: str, root: str) -> list[tuple[str, str]]:
    """Return the names of the links in a folder that lead to folders inside ``root``, and the paths
    of these."""
    inside = os.path.join(os.path.realpath(root), "")
    return sorted((name, path) for name, path in _links(folder) if path.startswith(inside))


def _links(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the names of the links to folders in a folder, and the real paths of the folders."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if (
                entry.is_symlink()
                and not entry.name.startswith(".")
                and not os.path.isfile(entry.path)
            ):
                yield entry.name, os.path.realpath(entry.path)
