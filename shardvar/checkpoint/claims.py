"""Claims that killed writers left in a bucket (``storage.claims``), and their removal by a person who knows of it."""

import re

from shardvar.errors import ArgumentError, CheckpointNotFound
from shardvar.storage.places import is_url, split_place
from shardvar.storage.remote import RemoteStorage

_CLAIM = re.compile(r"\..+\.claim", re.DOTALL)


def break_claim(url: str) -> str:
    """Remove the claim of a writer that was killed, by the URL that the next writer's error gives; say whose it was.

    A claim keeps other writers of a checkpoint in a bucket out. It has no time after which it ends, since a writer that
    is slow is still a writer: break it only if you know that it is dead. One that is not may then mix its files with
    yours. ``CheckpointNotFound`` if there is none. On a disk nothing is to be done: a lock ends with its process.
    """
    storage, name = split_place(url) if is_url(url) else (None, "")
    if not isinstance(storage, RemoteStorage) or not _CLAIM.fullmatch(name):
        raise ArgumentError(
            f"{url!r} is not the URL of a claim.", "Give that of the error, such as s3://bucket/run/.model.claim."
        )
    storage.check_writable(name)
    whose = storage.break_claim(name)
    if not whose:
        raise CheckpointNotFound(f"There is no claim {url}.", "Write again.")
    return f"Removed {url}, {whose}."
