"""Sets of files that each have a table of contents, and an index that names the file of each key
(``wire.set_index``): the sets of PyTorch and of Flax.

A file that cannot be read, or lacks a key, is a fault of its keys and leaves the others readable. A
key that the index does not name in a file is a finding.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from shardvar.errors import (
    READ_ERRORS,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    ShardvarError,
    StorageError,
    prefix_errors,
)
from shardvar.formats.protocol import Finding
from shardvar.pictures.words import named
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import DISTRUST
from shardvar.wire.set_index import read_set_index


def is_bare(name: str) -> bool:
    """Return True if a name stays in the folder on every system."""
    return name not in ("", ".", "..") and not set(name) & set("/\\\0")


def fetch_again(file: str) -> str:
    """Return the remedy for a file that lacks a key, which its source may lack as well."""
    return (
        f"Fetch {file} again from the source of the set. If that lacks it as well, leave the key out "
        "with exclude= (--exclude)."
    )


def read_weight_map(storage: Storage, name: str) -> tuple[Mapping[str, str], str]:
    file = storage.open(name)
    try:
        with prefix_errors(file.name):
            return read_set_index(file.read, file.size).weight_map, file.stamp
    finally:
        file.close()


def add_files(
    storage: Storage,
    weight_map: Mapping[str, str],
    names: Sequence[str],
    add: Callable[[int, set[str]], Collection[str]],
) -> tuple[dict[str, ShardvarError], list[Finding]]:
    """Call ``add`` with each file's number and wanted keys; return faults and findings."""
    faults: dict[str, ShardvarError] = {}
    findings: list[Finding] = []
    keys_of: dict[str, set[str]] = {file: set() for file in names}
    for key, file in weight_map.items():
        keys_of[file].add(key)
    for number, file in enumerate(names):
        keys = keys_of[file]
        try:
            if not is_bare(file):
                cause = (
                    f"{storage.path}: the index names {file[:200]!r}, which is not a file next to "
                    "it."
                )
                raise InvalidCheckpoint(cause, DISTRUST)
            found = {*add(number, keys)}
        except (*READ_ERRORS, StorageError) as error:
            faults.update((key, error.at(repr(key))) for key in keys)
            continue
        for key in keys - found:
            cause = (
                f"{key!r}: the index says that it is in {file!r} of {storage.path}, but it is not."
            )
            faults[key] = IncompleteCheckpoint(cause, fetch_again(file))
        if found - keys:
            others = named(sorted(found - keys))
            findings.append(
                Finding(file, f"It holds {others}, which the index does not name there.", True)
            )
    return faults, findings
