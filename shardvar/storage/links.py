"""Symbolic links that lead out of a folder: a search does not follow them, and of the files that an
index names only those in the store of a cache are read through them.

Caches of Hugging Face and git-annex keep the bytes of files in a store, and have links to them:

    models--x--y/snapshots/REV/model-00001.safetensors -> ../../blobs/SHA256
    repository/model-00001.safetensors -> .git/annex/objects/...
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress

_STORES = re.compile(
    r"(.*/models--[^/]+)/blobs/[0-9a-f]{40,64}|(.*)/\.git/annex/objects/.*", re.DOTALL
)
"""Files in stores; the groups are the folders that the stores belong to."""


def outside(folder: str, name: str) -> str | None:
    """Return the file out of a folder to which the path ``name`` in it leads; None if it stays inside,
    or leads to a store."""
    path = folder
    for step in name.split("/"):
        path = os.path.join(path, step)
        if os.path.islink(path):
            break
    else:
        return None
    target, inside = os.path.realpath(os.path.join(folder, name)), os.path.realpath(folder)
    if target.startswith(os.path.join(inside, "")) or _STORES.fullmatch(target):
        return None
    # A cache by another name: its store is next to a folder above.
    store, above = os.path.split(os.path.dirname(target))
    return None if above == "blobs" and inside.startswith(f"{store}{os.sep}") else target


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
