"""Comparing the answers of a bucket with what it has: a service may say that it has taken a file,
and have an old one.

A version by itself proves little: S3 gives the same bytes the same one, and a copy another one than
its source has.
"""

from shardvar.errors import LockHeld, MissingFile, ShardvarError, StorageError
from shardvar.storage.outcomes import overtaken_error, removed_error, unknown_error
from shardvar.storage.requests import PART_NBYTES, BucketClient, Client, Head


def is_sent(sent: Head, before: Head | None, found: Head | None) -> bool:
    """Return True if a file that is found can be the one that was sent; ``before`` is what had its
    name before.

    Only an old file has the old version, or the same bytes have it. The answer to an upload may
    name another kind of version than listings do, and so may the upload of another process that
    writes the same.
    """
    if found is None or found.nbytes != sent.nbytes:
        return False
    return before is None or found.version in (sent.version, "") or found.version != before.version


def is_copy(
    client: Client, source: tuple[str, Head], found: tuple[str, Head | None], before: Head | None
) -> bool:
    """Return True if a file is the copy of another, each by its key; ``before`` is what had the
    name before the copy.

    The bytes are read where the version does not tell.
    """
    (old, head), (new, copied) = source, found
    if copied is None or copied.nbytes != head.nbytes:
        return False
    if before is None or copied.version in (head.version, "") or copied.version != before.version:
        return True
    for start in range(0, head.nbytes, PART_NBYTES):
        nbytes = min(PART_NBYTES, head.nbytes - start)
        if bytes(client.read(old, head, start, nbytes)) != bytes(
            client.read(new, copied, start, nbytes)
        ):
            return False
    return True


def has_content(client: Client, key: str, content: bytes) -> bool:
    """Return True if a file has this content, as far as the server answers."""
    try:
        head = client.head(key)
        return (
            head.nbytes == len(content)
            and bytes(client.read(key, head, 0, len(content))) == content
        )
    except ShardvarError:
        return False


def put_once(client: BucketClient, key: str, content: bytes) -> Head | None:
    """Write a small file unless the name is taken, and return its facts; None if it is taken."""
    try:
        return client.put_if(key, content, None)
    except StorageError as error:
        # The answer may be lost, or it may answer a second attempt after the first took effect.
        if has_content(client, key, content):
            return client.head(key)
        if isinstance(error, LockHeld):
            return None
        raise


def current_head(client: Client, key: str, old: Head | None) -> Head | None:
    """Return the file that a commit replaces as the bucket has it now; ``LockHeld`` if it is not
    the ``old`` one."""
    if old is None:
        return None
    try:
        head = client.head(key)
    except MissingFile:
        raise removed_error(client.place(key)) from None
    if head.version != old.version:
        raise overtaken_error(client.place(key))
    return head


def read_back(client: Client, key: str, most_nbytes: int) -> tuple[Head, bytes] | None:
    """Return the facts and the content of a file after a commit, without what is too large; None if
    it does not exist.

    ``StorageError`` if the outcome cannot be known.
    """
    try:
        head = client.head(key)
        if not 0 < head.nbytes <= most_nbytes:
            return head, b""
        return head, bytes(client.read(key, head, 0, head.nbytes))
    except MissingFile:
        return None
    except ShardvarError:
        raise unknown_error(client.place(key)) from None
