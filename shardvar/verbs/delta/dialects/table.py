"""The dialects by name, and deltas of them that are open.

A dialect is known by its marks (``formats.published``), never by a name that the caller gives. One that
is not read is refused by its name.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from shardvar.errors import ArgumentError, UnsupportedError
from shardvar.formats.published import SLIME, TRL, Published, published_of
from shardvar.planning.slices import TensorTable
from shardvar.storage.protocol import Storage
from shardvar.verbs.delta.dialects.changes import PublishedDelta
from shardvar.verbs.delta.dialects.slime import open_slime
from shardvar.verbs.delta.dialects.trl import open_trl
from shardvar.verbs.reader import Reader

_OPENERS: Mapping[str, Callable[[Reader], PublishedDelta]] = {SLIME: open_slime, TRL: open_trl}


def marks_of(reader: Reader, storage: Storage) -> Published | None:
    """Return the delta of another program that an open checkpoint is; None if it is none."""
    if reader.format != "safetensors":
        return None
    tables = [*reader.index.scan()]
    tensors = tables[0].slices.tensors if tables else TensorTable.of(())
    return published_of(storage, reader.metadata.user, tensors)


def open_published(reader: Reader, marks: Published) -> PublishedDelta:
    """Return a delta by its marks; ``UnsupportedError`` if its dialect is not read."""
    opener = _OPENERS.get(marks.dialect)
    if opener is None:
        kind = marks.kind()
        raise UnsupportedError(f"{reader.path} is {kind.what}.", kind.remedy)
    return opener(reader)


def check_versions(deltas: Sequence[PublishedDelta]) -> None:
    """Raise ``ArgumentError`` unless each delta was made of the version that the one before makes.

    A version is all that a dialect says of its base.
    """
    for before, after in pairwise(deltas):
        if before.dialect != after.dialect:
            raise ArgumentError(
                f"{after.path} is of the dialect {after.dialect}, and {before.path} of "
                f"{before.dialect}: nothing says that one follows the other.",
                "Apply them one after the other.",
            )
        if is_version(before.version, after.base_version):
            continue
        raise ArgumentError(
            f"{after.path} does not follow {before.path}: its base is the version "
            f"{after.base_version or '?'}, and the one before it makes {before.version or '?'}.",
            "Give them in order, and each one between the first and the last.",
        )


def is_version(a: str, b: str) -> bool:
    """Return True if two texts mean one version: as numbers, or the same text.

    >>> is_version("000007", "7"), is_version("v7", "v7"), is_version("v7", "v07"), is_version("", "")
    (True, True, False, False)
    """
    are_numbers = all(each.isascii() and each.isdigit() and len(each) < 19 for each in (a, b))
    return int(a) == int(b) if are_numbers else bool(a) and a == b
