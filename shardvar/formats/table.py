"""The formats that there are: one table, open to other packages.

A package adds a format by an entry point in the group ``shardvar.formats`` whose name is the format's and whose object
is a ``Format``. Names in the table are taken; nothing is imported until a format is asked for.
"""

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from shardvar.errors import ArgumentError
from shardvar.formats.protocol import Format

_MODULES = {
    "shardvar": "shardvar.formats.native",
    "tensorflow": "shardvar.formats.tensorflow",
    "safetensors": "shardvar.formats.safetensors",
    "npz": "shardvar.formats.npz",
}
"""In the order in which a path is offered to them."""

_SUFFIXES = {
    ".svindex": "shardvar",
    ".index": "tensorflow",
    ".safetensors": "safetensors",
    ".safetensors.index.json": "safetensors",
    ".npz": "npz",
}
"""What the ending of a target's name says of its format."""


def format_names() -> list[str]:
    """The names of all formats."""
    return [*_MODULES, *(point.name for point in _added())]


def format_named(name: str) -> Format:
    """The format of that name; ``ArgumentError`` lists those that there are."""
    if name in _MODULES:
        built_in: Format = import_module(_MODULES[name]).FORMAT
        return built_in
    for point in _added():
        if point.name == name:
            added: Format = point.load()
            return added
    raise ArgumentError(f"There is no format {name!r}.", f"The formats are {', '.join(format_names())}.")


def all_formats() -> Iterator[Format]:
    """Every format, the own ones first."""
    return map(format_named, format_names())


def format_of_name(name: str) -> str | None:
    """The format that the ending of a file's name speaks of, None where it speaks of none.

    >>> format_of_name("model.safetensors"), format_of_name("model")
    ('safetensors', None)
    """
    return next((form for suffix, form in _SUFFIXES.items() if name.endswith(suffix)), None)


def _added() -> list[EntryPoint]:
    return [point for point in entry_points(group="shardvar.formats") if point.name not in _MODULES]
