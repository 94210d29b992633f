"""Rescue: which tensors of a damaged checkpoint are lost, so that all others can be written again.

Every payload is read and compared before the first byte is written: which tensors the target has
must be known when it is planned. A reshard that keeps going therefore reads the source twice.
"""

import json
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from shardvar.errors import CorruptCheckpoint, ReadError
from shardvar.verbs.payloads import check_payloads
from shardvar.verbs.problems import Damage
from shardvar.verbs.reader import Reader
from shardvar.verbs.renaming import matching
from shardvar.verbs.writing import Partitions

LOST = "shardvar.lost"
"""The name in the metadata under which a target lists what could not be rescued."""


def find_lost(reader: Reader, keys: Set[str]) -> tuple[Damage, ...]:
    """Return, for each of the keys whose tensor cannot be read whole, the reason;
    ``CorruptCheckpoint`` if none can."""
    errors: dict[str, ReadError] = {
        key: error for key, error in reader.faults.items() if key in keys
    }
    files: dict[str, str] = {}
    errors |= reader.source.storage_errors(keys - errors.keys())
    entries = reader.entries()
    tensors = entries.slices.tensors
    wanted = np.array([key in keys and key not in errors for key in tensors.keys], dtype=np.bool)
    chosen = entries.take(np.flatnonzero(wanted[entries.slices.tensor]))
    for row, error in sorted(check_payloads(reader.source, chosen).items()):
        key = chosen.slices.key(row)
        if key not in errors:
            errors[key], files[key] = error, reader.index.files[int(chosen.file[row])]
    if errors and len(errors) == len(keys):
        raise CorruptCheckpoint(
            f"No tensor of {reader.path} is whole.", "`shardvar verify` lists what is wrong."
        )
    return tuple(Damage.of(errors[key], key, files.get(key)) for key in reader if key in errors)


def note_of(lost: tuple[Damage, ...]) -> dict[str, str]:
    """Return the metadata that tell of lost tensors; none where nothing is lost."""
    found: list[dict[str, Any]] = [
        {"key": each.key, "kind": each.kind, "message": each.message} for each in lost
    ]
    return {LOST: json.dumps(found)} if found else {}


def without_lost(partition: Partitions, keys: Sequence[str], lost: Sequence[str]) -> Partitions:
    """Return a partition without the globs that match only lost tensors; they are right, and cut
    nothing.

    >>> without_lost({"a.*": 2, "b": 3}, ["b"], ["a.w"])
    {'b': 3}
    """
    if not lost or not isinstance(partition, Mapping):
        return partition
    idle = {glob for glob in partition if matching(lost, glob) and not matching(keys, glob)}
    return {glob: cut for glob, cut in partition.items() if glob not in idle}
