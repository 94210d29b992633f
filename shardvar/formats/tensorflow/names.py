"""The file names of a tensor bundle, and the names that a person may type for one.

    PREFIX.index                    the table of contents
    PREFIX.data-00002-of-00005      data file 2 of 5; numbers above 99999 are written with the
                                    digits they need

The count is part of every data file's name, and the index gives the right count. A prefix may
itself end in ``.index`` or look like a data file, so each interpretation of a name is compared with
the existing files.

The V1 format of old TensorFlow is one file at PREFIX itself (or PREFIX-00002-of-00005), recognised
by its last bytes.
"""

import re
from collections.abc import Iterable, Iterator

from shardvar.errors import UnsupportedError
from shardvar.formats.files import look_into
from shardvar.formats.unfinished import unfinished_files
from shardvar.storage.concurrency import as_answered
from shardvar.storage.protocol import Storage
from shardvar.wire.sstable import TABLE_MAGIC

_INDEX_SUFFIX = ".index"
DATA_NAME = re.compile(r"(?P<prefix>.*)\.data-(?P<number>\d{5,})-of-(?P<count>\d{5,})", re.DOTALL)
_V1_PART = re.compile(r"(?P<prefix>.*)-\d{5}-of-\d{5}", re.DOTALL)


def bundle_index_name(prefix: str) -> str:
    return prefix + _INDEX_SUFFIX


def data_name(prefix: str, number: int, count: int) -> str:
    return f"{prefix}.data-{number:05}-of-{count:05}"


def data_files(prefix: str, names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the data files of the prefix in ``names``, of any count, each with that count."""
    for name in names:
        match = DATA_NAME.fullmatch(name)
        if match and match["prefix"] == prefix:
            yield name, int(match["count"])


def find_bundles(storage: Storage, name: str) -> list[str]:
    """Return the prefixes that ``name`` may mean; if empty, all in the directory."""
    names = storage.names()
    if not name:
        return _list_prefixes(storage, names)
    # In the order of certainty: an index, a data file, a prefix of either, and at last files whose
    # bytes are read.
    there = set(names)
    if name in there and name.endswith(_INDEX_SUFFIX):
        return [name.removesuffix(_INDEX_SUFFIX)]
    data = DATA_NAME.fullmatch(name)
    if name in there and data:
        return [data["prefix"]]
    if bundle_index_name(name) in there or any(data_files(name, names)):
        return [name]
    part = _V1_PART.fullmatch(name)
    old = part["prefix"] if part and name in there else name
    return [old] if v1_files(storage, old, names) else []


def v1_files(storage: Storage, prefix: str, names: Iterable[str]) -> list[str]:
    """Return the files of a V1 checkpoint of that prefix: sorted tables that are not an index."""
    parts = (
        name for name in names if (part := _V1_PART.fullmatch(name)) and part["prefix"] == prefix
    )
    return [name for name in (prefix, *parts) if name in names and _is_table(storage, name)]


def check_readable(prefix: str) -> None:
    """Raise ``UnsupportedError`` for a prefix that TensorFlow would write and cannot read."""
    if not prefix or "\\" in prefix or re.search(r"\[.*\]", prefix, re.DOTALL):
        raise UnsupportedError(
            f"TensorFlow would not find a checkpoint named {prefix!r}: it reads the name as a "
            "pattern.",
            "Choose a name without backslashes and brackets.",
        )


def _list_prefixes(storage: Storage, names: list[str]) -> list[str]:
    """Return the bundles of a directory, or else prefixes of data files, or V1 checkpoints."""
    # An ``.index`` without data files may be a file of another program, so its last bytes are read.
    # Bundles without any tensor have no data files and are also found by these bytes.
    data = {match["prefix"] for name in names if (match := DATA_NAME.fullmatch(name))}
    indexes = [name.removesuffix(_INDEX_SUFFIX) for name in names if name.endswith(_INDEX_SUFFIX)]
    bundles = [
        prefix
        for prefix in indexes
        if prefix in data or _is_table(storage, bundle_index_name(prefix))
    ]
    if bundles or data:
        return bundles or sorted(data)
    # One file of each set is looked at: other formats may have thousands, and in a bucket each is a
    # request.
    firsts: dict[str, str] = {}
    # An index under its temporary name ends as a table too.
    unfinished = unfinished_files(names, "")
    for name in sorted(
        name for name in set(names).difference(unfinished) if not name.endswith(_INDEX_SUFFIX)
    ):
        firsts.setdefault(match["prefix"] if (match := _V1_PART.fullmatch(name)) else name, name)
    looked = as_answered(
        lambda item: (item[0], _is_table(storage, item[1])), firsts.items(), storage.traits
    )
    return sorted(prefix for prefix, is_table in looked if is_table)


def _is_table(storage: Storage, name: str) -> bool:
    """Return True if a file can be read and ends as a sorted table does."""
    count = len(TABLE_MAGIC)
    last = look_into(
        storage, name, lambda file: file.read(max(file.size - count, 0), min(count, file.size)), b""
    )
    return last == TABLE_MAGIC
