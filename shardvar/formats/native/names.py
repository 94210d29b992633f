"""The files of a native checkpoint, and what a person may type for one.

    PREFIX.svindex                          the table of contents
    PREFIX.svdata-GENERATION-00002-of-00005 data file 2 of 5; numbers above 99999 would have more digits, and none is

No file holds a name: the index gives the generation and the number of files, and its own name gives the prefix. So no
index can lead to another directory, and a checkpoint is renamed by renaming its files.
"""

import re
from collections.abc import Iterable

from shardvar.errors import ArgumentError

INDEX_SUFFIX = ".svindex"
MAX_FILES = 99_999
"""Data files of one checkpoint: as many as five digits name."""

_GENERATION = re.compile(r"[A-Za-z0-9]{1,64}")
_DATA = re.compile(r"(?P<prefix>.+)\.svdata-[A-Za-z0-9]{1,64}-\d{5}-of-\d{5}", re.DOTALL)
_ASIDE = re.compile(
    r"(?P<prefix>.+)\.(svdata-[A-Za-z0-9]{1,64}-\d{5}-of-\d{5}(\.done)?|svindex\.[A-Za-z0-9]{1,64}\.tmp)", re.DOTALL
)


def index_name(prefix: str) -> str:
    """The name of the index file."""
    return prefix + INDEX_SUFFIX


def aside_name(prefix: str, generation: str) -> str:
    """The name under which the index is written before it takes the place of the old one."""
    return f"{index_name(prefix)}.{generation}.tmp"


def data_names(prefix: str, generation: str, count: int) -> list[str]:
    """The names of the data files.

    >>> data_names("ck", "1f", 2)
    ['ck.svdata-1f-00000-of-00002', 'ck.svdata-1f-00001-of-00002']
    """
    return [f"{prefix}.svdata-{generation}-{number:05}-of-{count:05}" for number in range(count)]


def is_generation(text: str) -> bool:
    """True where a generation may have this name: letters and digits, 64 at most."""
    return _GENERATION.fullmatch(text) is not None


def check_generation(text: str) -> None:
    """Raise ``ArgumentError`` where no generation may have this name."""
    if not is_generation(text):
        raise ArgumentError(f"The generation {text!r} is not made of 1 to 64 letters and digits.")


def find_prefixes(names: Iterable[str], name: str) -> list[str]:
    """The prefixes that ``name`` may mean among these files: a prefix, an index, a data file, or empty for all.

    >>> find_prefixes(["a.svindex", "b.svindex", "b.svdata-0-00000-of-00001"], "b.svdata-0-00000-of-00001")
    ['b']
    """
    indexes = [file for file in names if file.endswith(INDEX_SUFFIX) and file != INDEX_SUFFIX]
    if not name:
        return [file.removesuffix(INDEX_SUFFIX) for file in indexes]
    if index_name(name) in indexes:
        return [name]
    if name in indexes:
        return [name.removesuffix(INDEX_SUFFIX)]
    data = _DATA.fullmatch(name)
    return [data["prefix"]] if data and index_name(data["prefix"]) in indexes else []


def leftovers(names: Iterable[str], prefix: str, named: Iterable[str]) -> list[str]:
    """The files of a prefix that its index, which names ``named``, does not name.

    Older generations, files of writers that died, journals and indexes that stand aside; never a file of another kind,
    such as a copy that somebody made of an index.
    """
    kept = {index_name(prefix), *named}
    return [
        name for name in names if name not in kept and (match := _ASIDE.fullmatch(name)) and match["prefix"] == prefix
    ]
