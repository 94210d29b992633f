"""The vectors that shardvar publishes: JSON and tiny checkpoints, for implementations in any
language.

They are packed in ``vectors.zip`` next to this file, as 750 small files would be half of the wheel.
``shardvar vectors --out DIR`` unpacks them to a directory, and their ``README.md`` explains how to
read them. This module decodes nothing but the JSON of a group; ``run`` compares answers, and
``python -m shardvar.vectors`` runs all vectors on an implementation.
"""

import json
from functools import cache
from importlib.resources import files
from io import BytesIO
from typing import Any
from zipfile import ZipFile

from shardvar.errors import ArgumentError

__all__ = [
    "SCHEMA",
    "group",
    "groups",
    "names",
    "read",
]

SCHEMA = 1
"""The version in the header of every group."""


@cache
def _archive() -> ZipFile:
    """Return the archive, held in memory: it has some 330 kB, and no file stays open."""
    return ZipFile(BytesIO(files(__name__).joinpath("vectors.zip").read_bytes()))


@cache
def names() -> tuple[str, ...]:
    """Return the paths of all files, with slashes, in order.

    Returns
    -------
    tuple of str
        The paths.

    Examples
    --------
    >>> [name for name in names() if "/" not in name][:3]
    ['README.md', 'checkpoints.json', 'deltas.json']
    """
    return tuple(sorted(_archive().namelist()))


def read(name: str) -> bytes:
    """Return the bytes of one file.

    Parameters
    ----------
    name : str
        One of ``names``.

    Returns
    -------
    bytes
        The contents.

    Raises
    ------
    ArgumentError
        If there is no such file.
    """
    if name not in names():
        raise ArgumentError(
            f"Unknown file of vectors {name!r}.", "`shardvar.vectors.names()` lists the files."
        )
    return _archive().read(name)


def groups() -> tuple[str, ...]:
    """Return the names of the groups.

    Returns
    -------
    tuple of str
        The names, in order.

    Examples
    --------
    >>> groups()[:4]
    ('checkpoints', 'deltas', 'div', 'indexing')
    """
    return tuple(
        name.removesuffix(".json")
        for name in names()
        if name.endswith(".json") and "/" not in name and name != "schema.json"
    )


def group(name: str) -> dict[str, Any]:
    """Return one group, with its header and cases.

    Parameters
    ----------
    name : str
        One of ``groups``.

    Returns
    -------
    dict
        The decoded file; its README describes the fields.

    Raises
    ------
    ArgumentError
        If there is no such group.

    Examples
    --------
    >>> case = group("div")["cases"][0]
    >>> case["id"], case["inputs"], case["expected"]
    ('div-div-13-5', {'length': 13, 'num_shards': 5}, [[0, 3], [3, 6], [6, 9], [9, 11], [11, 13]])
    """
    if name not in groups():
        raise ArgumentError(
            f"Unknown group of vectors {name!r}.", f"The groups are {', '.join(groups())}."
        )
    found: dict[str, Any] = json.loads(read(f"{name}.json"))
    return found
