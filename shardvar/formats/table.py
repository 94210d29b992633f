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


_INDEXES = (".svindex", ".index")
"""The endings of indexes whose checkpoints go by the name without it."""


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
    raise ArgumentError(
        f"There is no format {name!r}.", f"{_nearest(name)}The formats are {', '.join(format_names())}."
    )


def _nearest(name: str) -> str:
    """What a misspelt format may have meant."""
    from difflib import get_close_matches  # only a mistake pays for it

    return "".join(f"Did you mean {near!r}? " for near in get_close_matches(name, format_names(), n=1))


def all_formats() -> Iterator[Format]:
    """Every format, the own ones first."""
    return map(format_named, format_names())


def format_of_name(name: str) -> str | None:
    """The format that the ending of a file's name speaks of, None where it speaks of none.

    >>> format_of_name("model.safetensors"), format_of_name("model")
    ('safetensors', None)
    """
    return next((form for suffix, form in _SUFFIXES.items() if name.endswith(suffix)), None)


def stem_of_name(name: str, format_name: str) -> str:
    """A checkpoint's name without the ending that its format gives it: the same for every name that it may go by.

    >>> stem_of_name("model.safetensors.index.json", "safetensors"), stem_of_name("model", "safetensors")
    ('model', 'model')
    """
    endings = [suffix for suffix, form in _SUFFIXES.items() if form == format_name and name.endswith(suffix)]
    return name.removesuffix(max(endings, key=len, default="")) or name


def name_of_target(name: str, format_name: str) -> str:
    """What a format is to call a target: formats that go by a prefix are not given the ending of its index.

    >>> name_of_target("model.index", "tensorflow"), name_of_target("model.npz", "npz")
    ('model', 'model.npz')
    """
    return stem_of_name(name, format_name) if name.endswith(_INDEXES) else name


def names_of_target(name: str, format_name: str) -> list[str]:
    """What a person may type for a checkpoint of that name, the name itself first."""
    return [name, *(name + suffix for suffix, form in _SUFFIXES.items() if form == format_name)]


def _added() -> list[EntryPoint]:
    return [point for point in entry_points(group="shardvar.formats") if point.name not in _MODULES]
