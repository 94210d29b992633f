"""Claims that killed writers left in a bucket (``storage.claims``), and their removal."""

import re

from shardvar.errors import ArgumentError, CheckpointNotFound
from shardvar.storage.local import split_place
from shardvar.storage.remote import RemoteStorage

_CLAIM = re.compile(r"\..+\.claim", re.DOTALL)


def break_claim(url: str) -> str:
    """Remove the claim of a writer that was killed, and say whose it was.

    Parameters
    ----------
    url : str
        The claim, as the error of the next writer names it: ``s3://bucket/run/.model.claim``.

    Returns
    -------
    str
        A sentence: the claim that was removed, and the process that had made it.

    Raises
    ------
    ArgumentError
        If the URL is not a claim in a bucket. On a disk, a lock ends with its process.
    CheckpointNotFound
        If there is no such claim.
    StorageError
        If the bucket refuses.

    Notes
    -----
    A claim keeps other writers of a checkpoint in a bucket out. It has no time after which it ends,
    since a writer that is slow is still a writer. Break it only if you know that the writer is
    dead: a live writer may mix its files with the next writer's.
    """
    storage, name = split_place(url)
    if not isinstance(storage, RemoteStorage) or not _CLAIM.fullmatch(name):
        raise ArgumentError(
            f"{url!r} is not the URL of a claim.",
            "Give the URL that the error shows, such as s3://bucket/run/.model.claim.",
        )
    storage.check_writable(name)
    whose = storage.break_claim(name)
    if not whose:
        raise CheckpointNotFound(f"There is no claim {url}.", "Write again.")
    return f"Removed {url}, {whose}."
