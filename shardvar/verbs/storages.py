"""Storages: checksums that cover more bytes than a tensor has.

A storage of PyTorch may hold several tensors, or a tensor and padding, and has one checksum. No
read of a tensor that is a part of it compares that checksum. So the verbs do it themselves:

    verify, reshard        always: a copy would give damaged values checksums that fit them
    load                   where the tensors to load have every byte of the storage between them
    verify="full"          always
    otherwise              not, and ``Reader.unverified`` has the key
"""

from collections.abc import Callable, Collection, Mapping

from shardvar.errors import ReadError
from shardvar.formats.protocol import Source


def storage_errors(
    source: Source, keys: Collection[str], only_read: bool = False
) -> Mapping[str, ReadError]:
    """Return the errors of those keys whose tensors are parts of storages that disagree with their
    checksum.

    With ``only_read``, compare only the storages whose every byte is read with the keys.
    """
    compare: Callable[[Collection[str], bool], Mapping[str, ReadError]] | None
    compare = getattr(source, "storage_errors", None)
    return {} if compare is None else compare(keys, only_read)


def check_storages(source: Source, keys: Collection[str], only_read: bool = False) -> None:
    """Raise the first of these errors."""
    for error in storage_errors(source, keys, only_read).values():
        raise error


def is_part_of_storage(source: Source, key: str) -> bool:
    """Return True if reading a tensor compares no checksum: the only one covers more."""
    ask: Callable[[str], bool] | None = getattr(source, "is_part", None)
    return ask is not None and ask(key)
