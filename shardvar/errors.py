"""Every error that shardvar raises, split by whose fault it is.

    ShardvarError
    ├── ArgumentError (ValueError)              the caller's: an invalid value
    │   ├── AmbiguousPath                       a path that matches several checkpoints
    │   ├── ArgumentTypeError (TypeError)       a value of an invalid type
    │   │   └── AbstractClass (NotImplementedError) a class that lacks methods of its interface
    │   ├── OutOfRange (IndexError)             an index or an id outside its axis
    │   ├── LayoutError                         regions or splits that do not tile a shape
    │   ├── MapError                            a map that cannot be read, or does not fit
    │   ├── PolicyError                         an answer breaks a restriction of RFC 001
    │   └── UnsupportedError                    valid, but not held or read by this format
    ├── ScopeError (RuntimeError)               the caller's: scopes left out of order
    ├── DeviceFull (MemoryError)                the caller's: more than a device's memory limit
    ├── UnknownKey (KeyError)                   the caller's: no tensor has that name
    ├── MissingExtra (ImportError)              the caller's: an extra is not installed
    ├── UnmatchedObjects (AssertionError)       the caller's: an asserted match of objects fails
    ├── TargetExists (FileExistsError)          the caller's: something would be overwritten
    ├── StillSaving (TimeoutError)              the caller's: a save takes longer than the wait
    ├── StorageError (OSError)                  the machine's: disk full, permission denied
    │   ├── AccessDenied (PermissionError)      a service refuses a request for want of a right
    │   ├── LockHeld                            another writer is writing the same checkpoint
    │   ├── ServerError                         a server that does not answer, or not as it should
    │   └── WorkerLost                          a process that worked for this one has ended
    └── CheckpointError                         the checkpoint's
        ├── CheckpointNotFound (FileNotFoundError)  the path has no checkpoint
        ├── MalformedCheckpoint (ValueError)        it cannot be decoded
        ├── InvalidCheckpoint (ValueError)          it can be decoded and breaks a law of its format
        │   ├── OutOfBounds                         a slice reaches out of its tensor or its file
        │   ├── InconsistentTensor                  slices of a key disagree on dtype or shape
        │   └── OverlappingSlices                   two slices of one key hold the same element
        ├── IncompleteCheckpoint (ValueError)       regions or files are missing
        │   └── MissingFile (FileNotFoundError)     a file that the index names is missing
        └── CorruptCheckpoint (OSError)             a checksum disagrees with its bytes

Each also derives from the builtin that a caller would expect, so ``except KeyError`` keeps working.

An error is two sentences: ``cause`` names the thing, the value and the place; ``remedy`` says what
to do, in Python and at the command line: ``force=True (--force)``. Each prints its own words.

    >>> try:
    ...     raise UnsupportedError("'w' has the dtype 'bfloat16'.", "Choose the format safetensors.")
    ... except ValueError as error:
    ...     print(error)
    'w' has the dtype 'bfloat16'. Choose the format safetensors.

Code that knows an offset and not the file raises without it; the caller that knows the file adds
its name:

    >>> with prefix_errors("ck.svindex"):
    ...     raise CorruptCheckpoint("The footer has another CRC32C.", "Copy the file again.")
    Traceback (most recent call last):
    shardvar.errors.CorruptCheckpoint: ck.svindex: The footer has another CRC32C. Copy the file again.

Control characters in either sentence are escaped, and the middle of a long key is left out
(``pictures.words.message``).

To add an error, add it to the drawing above, and derive it from the branch of the party that can
mend it and from a builtin.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from shardvar.pictures.words import in_python, message

__all__ = [
    "AbstractClass",
    "AmbiguousPath",
    "ArgumentError",
    "ArgumentTypeError",
    "CheckpointError",
    "CheckpointNotFound",
    "CorruptCheckpoint",
    "DeviceFull",
    "IncompleteCheckpoint",
    "InconsistentTensor",
    "InvalidCheckpoint",
    "LayoutError",
    "LockHeld",
    "MalformedCheckpoint",
    "MissingExtra",
    "MissingFile",
    "OutOfBounds",
    "OutOfRange",
    "OverlappingSlices",
    "PolicyError",
    "ScopeError",
    "ServerError",
    "ShardvarError",
    "StillSaving",
    "StorageError",
    "TargetExists",
    "UnknownKey",
    "UnmatchedObjects",
    "UnsupportedError",
    "WorkerLost",
]

COPY_AGAIN = "Copy the file again from where it was written, or use another checkpoint."
"""The remedy for a file that is missing, cut or changed."""

LISTS_MORE = "`shardvar verify` lists all that is damaged."
"""The end of the remedy for damage that a read found; it is useful only before a verify."""


class ShardvarError(Exception):
    """The root of the tree; ``str(error)`` is the cause and then the remedy.

    Parameters
    ----------
    cause : str
        One sentence that names the thing, the value and the place.
    remedy : str, default ''
        One sentence that says what to do.
    """

    cause: str
    remedy: str
    file: str | None = None
    """The file that is missing, cut or changed, by its name; None if there is no single one."""

    def __init__(self, cause: str, remedy: str = "") -> None:
        # Names in untrusted files are part of many causes. So every error is safe to print and of
        # bounded length.
        self.cause = message(cause)
        self.remedy = message(remedy)
        self.args = (self.cause, self.remedy)

    def __reduce__(self) -> tuple[type[Self], tuple[str, str], dict[str, Any]]:
        # By the constructor. Some libraries call only ``__new__`` of an exception that does not say
        # how it is pickled, which fails for a class with two builtin bases, such as MissingFile.
        return type(self), (self.cause, self.remedy), self.__dict__

    def at(self, *places: str) -> Self:
        """Return the same error with places in front of its cause, the outermost first.

        Parameters
        ----------
        *places : str
            The places: a file, a block of a table, a key in quotes.

        Examples
        --------
        >>> print(MalformedCheckpoint("It has no end.", "Copy it again.").at("m.npz", "'w'"))
        m.npz: 'w': It has no end. Copy it again.
        """
        return type(self)(": ".join((*places, self.cause)), self.remedy).in_file(self.file)

    def in_file(self, name: str | None) -> Self:
        """Note the file that is missing, cut or changed, and return this error.

        Parameters
        ----------
        name : str or None
            The file's name in the checkpoint; a file that is known already stays.

        Returns
        -------
        ShardvarError
            This error.
        """
        self.file = self.file or name
        return self

    def __str__(self) -> str:
        return f"{self.cause} {in_python(self.remedy)}".rstrip()


class ArgumentError(ShardvarError, ValueError):
    """Base class of errors about an argument."""


class AmbiguousPath(ArgumentError):
    """A path that matches several checkpoints; the cause lists them."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument of the wrong type, such as an array where a variable is expected."""


class AbstractClass(ArgumentTypeError, NotImplementedError):
    """A class of your own that was called lacks methods of the interface that it derives from."""


class OutOfRange(ArgumentError, IndexError):
    """An index or an id outside its axis; the cause names it."""


class LayoutError(ArgumentError):
    """Regions, splits or partition counts that do not tile the shape that they are meant for."""


class PolicyError(ArgumentError):
    """A policy's answer loses, adds, reshapes, casts or mixes slices (RFC 001, Restrictions)."""


class MapError(ArgumentError):
    """A map between checkpoints that cannot be read, or does not fit the checkpoint."""

    problems: tuple[str, ...] = ()
    """All problems, a sentence each; the cause names the first one."""


class UnsupportedError(ArgumentError):
    """A valid value that a format cannot hold or that this release does not read."""


class ScopeError(ShardvarError, RuntimeError):
    """Scopes were left in another order than they were entered."""


class DeviceFull(ShardvarError, MemoryError):
    """An allocation would pass a device's memory limit; the cause names device, limit, used and
    requested bytes."""


class UnknownKey(ShardvarError, KeyError):
    """A key that the checkpoint does not have."""


class MissingExtra(ShardvarError, ImportError):
    """A part of shardvar whose optional packages are missing; the remedy names the command."""


class UnmatchedObjects(ShardvarError, AssertionError):
    """An assertion that objects and values match failed; the cause lists the others."""


class TargetExists(ShardvarError, FileExistsError):
    """Writing would replace something, and the caller did not allow it."""


class StillSaving(ShardvarError, TimeoutError):
    """A save did not finish in the time that it was waited for; it continues."""


class StorageError(ShardvarError, OSError):
    """The machine refused: no space, no permission, no such device, locked by another process."""

    state: str | None = None
    """The end of the remedy, which says what there is after a write; None if it does not."""


class AccessDenied(StorageError, PermissionError):
    """A service refuses a request: the credentials lack a right, or are not valid."""


class LockHeld(StorageError):
    """Another writer, in this process or in another one, is writing the same checkpoint."""


class ServerError(StorageError):
    """A server did not answer, or its answer contradicts the request or an earlier answer."""


class WorkerLost(StorageError):
    """A worker of an executor ended, or its executor was shut down; finished files stay."""


class CheckpointError(ShardvarError):
    """Base class of errors about a checkpoint, as opposed to errors about the call."""


class CheckpointNotFound(CheckpointError, FileNotFoundError):
    """A path that has no checkpoint."""


class MalformedCheckpoint(CheckpointError, ValueError):
    """Bytes that cannot be decoded as the format that they claim to be."""


class InvalidCheckpoint(CheckpointError, ValueError):
    """Bytes that can be decoded, and whose content breaks a law of the format."""


class OutOfBounds(InvalidCheckpoint):
    """A slice outside its tensor, or a payload outside its file."""


class InconsistentTensor(InvalidCheckpoint):
    """Slices of one key disagree on the dtype or the full shape."""


class OverlappingSlices(InvalidCheckpoint):
    """Two slices of one key hold the same element."""


class IncompleteCheckpoint(CheckpointError, ValueError):
    """Regions of a tensor that are not stored; they are never read as zeros."""


class MissingFile(IncompleteCheckpoint, FileNotFoundError):
    """A file that the index names is missing."""


class CorruptCheckpoint(CheckpointError, OSError):
    """Bytes that disagree with the checksum that covers them."""


def replaced_error(name: str) -> CorruptCheckpoint:
    """Return the error for a reader that would mix two checkpoints, or two states of one.

    Parameters
    ----------
    name : str
        The path of the file that has changed.
    """
    return CorruptCheckpoint(
        f"{name} was replaced while it was being read.", "Open the checkpoint again."
    )


ReadError = CheckpointError | UnsupportedError
READ_ERRORS = (CheckpointError, UnsupportedError)
"""The errors that keep one tensor from being read, and no other."""


@contextmanager
def prefix_errors(place: str) -> Iterator[None]:
    """Put a place in front of the cause of an error of reading that is raised inside, unless it is
    there already.

    Parameters
    ----------
    place : str
        The place: a file, a block of a table.

    Raises
    ------
    CheckpointError
        The error, of the same class. ``UnsupportedError`` also gets the place.
    """
    try:
        yield
    except READ_ERRORS as error:
        if error.cause.startswith((f"{place}:", f"{place} ")):
            raise
        raise error.at(place) from error


def log_warning(text: str, part: str = "checkpoint", **about: Any) -> None:
    """Log a problem that stops nothing, for the loggers ``shardvar.checkpoint`` and
    ``shardvar.storage``; escaped as the text of an error."""
    import logging  # few commands warn

    logging.getLogger(f"shardvar.{part}").warning("%s", message(text), **about)
