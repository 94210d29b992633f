"""The vectors that shardvar publishes: JSON and tiny checkpoints, for implementations in any
language.

They are in ``data`` next to this file, and in the wheel. ``data/README.md`` says how to read them;
``shardvar vectors --out DIR`` writes them all to a directory. This module decodes nothing but the
JSON of a group; the tests of shardvar run shardvar on the vectors.
"""

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from shardvar.errors import ArgumentError

SCHEMA = 1
"""The version in the header of every group."""


@cache
def names() -> tuple[str, ...]:
    """Return the paths of all files, with slashes, in order.

    >>> [name for name in names() if "/" not in name][:3]
    ['README.md', 'checkpoints.json', 'div.json']
    """
    return tuple(sorted(path for path, _ in _walk(files(__name__) / "data", "")))


def read(name: str) -> bytes:
    """Return the bytes of one file; ``ArgumentError`` for a name that ``names`` does not list."""
    if name not in names():
        raise ArgumentError(
            f"Unknown file of vectors {name!r}.", "`shardvar.vectors.names()` lists the files."
        )
    return files(__name__).joinpath("data", *name.split("/")).read_bytes()


def groups() -> tuple[str, ...]:
    """Return the names of the groups.

    >>> groups()[:4]
    ('checkpoints', 'div', 'indexing', 'initializers')
    """
    return tuple(
        name.removesuffix(".json") for name in names() if "/" not in name and _is_group(name)
    )


def group(name: str) -> dict[str, Any]:
    """Return one group, header and cases; ``ArgumentError`` for a name that ``groups`` does not
    list.

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


def _is_group(name: str) -> bool:
    return name.endswith(".json") and name != "schema.json"


def _walk(directory: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for each in directory.iterdir():
        if each.is_dir():
            yield from _walk(each, f"{prefix}{each.name}/")
        else:
            yield f"{prefix}{each.name}", each
