"""The files of a tensor bundle, and what a person may type for one.

    PREFIX.index                    the table of contents
    PREFIX.data-00002-of-00005      data file 2 of 5; numbers above 99999 are written with the digits they need

The count is part of every data file's name, and the index says which count is meant. A prefix may itself end in
``.index`` or look like a data file; so each reading of a name is held against the files that are there.

The V1 format of old TensorFlow is one file at PREFIX itself (or PREFIX-00002-of-00005), recognised by its last bytes.
"""

import re
from collections.abc import Iterable, Iterator

from shardvar.errors import CheckpointError, StorageError, UnsupportedError
from shardvar.storage.protocol import Storage
from shardvar.wire.sstable import TABLE_MAGIC

INDEX_SUFFIX = ".index"
DATA = re.compile(r"(?P<prefix>.*)\.data-(?P<number>\d{5,})-of-(?P<count>\d{5,})", re.DOTALL)
V1_PART = re.compile(r"(?P<prefix>.*)-\d{5}-of-\d{5}", re.DOTALL)


def index_name(prefix: str) -> str:
    """The name of the index file."""
    return prefix + INDEX_SUFFIX


def data_name(prefix: str, number: int, count: int) -> str:
    """The name of a data file.

    >>> data_name("ck", 2, 5)
    'ck.data-00002-of-00005'
    """
    return f"{prefix}.data-{number:05}-of-{count:05}"


def data_files(prefix: str, names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """The names among ``names`` of the prefix's data files, of any count, and that count."""
    for name in names:
        match = DATA.fullmatch(name)
        if match and match["prefix"] == prefix:
            yield name, int(match["count"])


def find_prefixes(storage: Storage, name: str) -> list[str]:
    """The prefixes that ``name`` may mean, or those of all bundles in the directory where it is empty."""
    names = storage.names()
    if not name:
        return _list_prefixes(storage, names)
    there = set(names)
    if name in there and name.endswith(INDEX_SUFFIX):
        return [name.removesuffix(INDEX_SUFFIX)]
    data = DATA.fullmatch(name)
    if name in there and data:
        return [data["prefix"]]
    if index_name(name) in there or any(data_files(name, names)):
        return [name]
    part = V1_PART.fullmatch(name)
    old = part["prefix"] if part and name in there else name
    return [old] if v1_files(storage, old, names) else []


def v1_files(storage: Storage, prefix: str, names: Iterable[str]) -> list[str]:
    """The files of a V1 checkpoint of that prefix: sorted tables that are no index."""
    parts = (name for name in names if (part := V1_PART.fullmatch(name)) and part["prefix"] == prefix)
    return [name for name in (prefix, *parts) if name in names and _is_table(storage, name)]


def check_readable(prefix: str) -> None:
    """Raise ``UnsupportedError`` for a prefix that TensorFlow writes and cannot read."""
    if not prefix or "\\" in prefix or re.search(r"\[.*\]", prefix, re.DOTALL):
        raise UnsupportedError(
            f"TensorFlow would not find a checkpoint named {prefix!r}: it takes the name for a pattern.",
            "Choose a name without backslashes and brackets.",
        )


def _list_prefixes(storage: Storage, names: list[str]) -> list[str]:
    """The bundles of a directory; where it has none, what is left of one, or V1 checkpoints."""
    data = {match["prefix"] for name in names if (match := DATA.fullmatch(name))}
    indexes = [name.removesuffix(INDEX_SUFFIX) for name in names if name.endswith(INDEX_SUFFIX)]
    bundles = [prefix for prefix in indexes if prefix in data or _is_table(storage, index_name(prefix))]
    if bundles or data:
        return bundles or sorted(data)
    tables = [name for name in names if not name.endswith(INDEX_SUFFIX) and _is_table(storage, name)]
    return sorted({match["prefix"] if (match := V1_PART.fullmatch(name)) else name for name in tables})


def _is_table(storage: Storage, name: str) -> bool:
    """Whether a file ends as a sorted table does; what cannot be read is none."""
    try:
        file = storage.open(name)
        try:
            return (
                file.size >= len(TABLE_MAGIC)
                and file.read(file.size - len(TABLE_MAGIC), len(TABLE_MAGIC)) == TABLE_MAGIC
            )
        finally:
            file.close()
    except (CheckpointError, StorageError):
        return False
