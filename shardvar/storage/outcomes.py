"""Errors of a write into a bucket, and the warning at its end; ``place`` is the URL of a file."""

from collections.abc import Collection

from shardvar.errors import LockHeld, StorageError
from shardvar.pictures.words import named
from shardvar.storage.requests import Head


def overtaken_error(place: str) -> LockHeld:
    """Return the error for a file that another writer has written since this write began."""
    cause = f"{place} was written by another writer meanwhile; nothing of this write is in place."
    return LockHeld(cause, "Look at what is there now, and run it again if it is to be replaced.")


def removed_error(place: str) -> LockHeld:
    """Return the error for a file, to be replaced, that was removed since this write began."""
    cause = (
        f"{place} was removed meanwhile, by another writer or with its bucket; nothing of this "
        "write is in place."
    )
    return LockHeld(cause, "Look at what is there now, and run it again if it is to be written.")


def commit_error(
    place: str, old: Head | None, found: Head | None, error: StorageError
) -> StorageError:
    """Return the error of a commit that failed with ``error``; ``old`` was there before, and
    ``found`` is there now."""
    if found is not None and (old is None or found.version != old.version):
        return overtaken_error(place)
    if not isinstance(error, LockHeld):
        return error
    if found is None and old is not None:
        return removed_error(place)
    cause = (
        f"{place}: the service refuses the commit as if another writer had been there, and nothing "
        "has changed."
    )
    return StorageError(
        cause, "End the lease or the hold that is on the file, or write under another name."
    )


def gone_error(place: str) -> StorageError:
    """Return the error for a file that was uploaded for the commit and is not there."""
    cause = (
        f"{place} is gone, which was uploaded for this checkpoint: another writer, or a rule of "
        "the bucket, has"
    )
    return StorageError(f"{cause} removed it.", "Write it again.")


def unknown_error(place: str) -> StorageError:
    """Return the error for a commit whose answer is lost, and whose result cannot be read."""
    cause = (
        f"{place}: the answer to the commit was lost, and whether the new checkpoint is in place "
        "is not known."
    )
    return StorageError(cause, "Verify what is there before you write again.")


def untrue_error(cause: str) -> StorageError:
    """Return the error for a file that the service says to have taken, and has not."""
    remedy = (
        "Save again. If it stays so, another writer or a rule of the bucket is at work, or the "
        "service answers"
    )
    return StorageError(cause, f"{remedy} untruly.")


def left_warning(folder: str, names: Collection[str]) -> str:
    """Return the warning about files that no checkpoint needs, and that could not be removed from a
    folder.

    >>> left_warning("s3://bucket/run", ["b", "a"])
    "s3://bucket/run: could not remove 'a', 'b'. Remove what is still there: no checkpoint needs it."
    """
    return (
        f"{folder}: could not remove {named(sorted(names))}. Remove what is still there: no "
        "checkpoint needs it."
    )
