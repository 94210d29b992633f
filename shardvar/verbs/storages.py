"""Storages: checksums that cover more bytes than a tensor has.

A storage of PyTorch may hold several tensors, or a tensor and padding, and has one checksum. No
read of a tensor that is a part of it compares that checksum. So the verbs do it themselves:

    verify, reshard        always: a copy would give damaged values checksums that fit them
    load                   where the tensors to load have every byte of the storage between them
    verify="full"          always
    otherwise              not, and ``Reader.unverified`` has the key
"""

from collections.abc import Collection

from shardvar.formats.protocol import Source


def check_storages(source: Source, keys: Collection[str], only_read: bool = False) -> None:
    """Raise the error of the first key whose tensor is part of a damaged storage."""
    for error in source.storage_errors(keys, only_read).values():
        raise error
