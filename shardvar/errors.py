"""Every error that shardvar raises, split by whose fault it is.

    ShardvarError
    ├── ArgumentError (ValueError)              the caller's: a value that cannot be meant
    │   ├── AmbiguousPath                       several checkpoints may be meant
    │   ├── ArgumentTypeError (TypeError)       a value of a kind that cannot be meant
    │   ├── OutOfRange (IndexError)             an index or an id that its axis does not have
    │   ├── LayoutError                         regions or splits that do not tile a shape
    │   ├── PolicyError                         a policy's answer breaks one of RFC 001's restrictions
    │   └── UnsupportedError                    valid, but this format or this release cannot hold or read it
    ├── ScopeError (RuntimeError)               the caller's: scopes left in another order than entered
    ├── DeviceFull (MemoryError)                the caller's: more on a device than its memory limit allows
    ├── UnknownKey (KeyError)                   the caller's: no tensor of that name
    ├── MissingExtra (ImportError)              the caller's: a part of shardvar whose extra is not installed
    ├── UnmatchedObjects (AssertionError)       the caller's: objects and checkpoint do not match, and it was asserted
    ├── TargetExists (FileExistsError)          the caller's: something would be overwritten
    ├── StillSaving (TimeoutError)              the caller's: a save was joined for less time than it takes
    ├── StorageError (OSError)                  the machine's: disk full, permission denied
    │   └── LockHeld                            another writer is at it
    └── CheckpointError                         the checkpoint's
        ├── CheckpointNotFound (FileNotFoundError)  there is none at that path
        ├── MalformedCheckpoint (ValueError)        it cannot be decoded
        ├── InvalidCheckpoint (ValueError)          it decodes and breaks a law of its format
        │   ├── OutOfBounds                         a slice reaches out of its tensor or its file
        │   ├── InconsistentTensor                  slices of one key disagree on dtype or full shape
        │   └── OverlappingSlices                   two slices of one key hold the same element
        ├── IncompleteCheckpoint (ValueError)       regions or files are missing
        │   └── MissingFile (FileNotFoundError)     a file that the index names is not there
        └── CorruptCheckpoint (OSError)             a checksum disagrees with the bytes that it covers

Each also derives from the builtin that a caller would expect, so ``except KeyError`` keeps working.
An error is two sentences: ``cause`` names the thing, the value and the place; ``remedy`` says what to do.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class ShardvarError(Exception):
    """The root of the tree; ``str(error)`` is the cause and then the remedy."""

    cause: str
    remedy: str

    def __init__(self, cause: str, remedy: str = "") -> None:
        self.cause = cause
        self.remedy = remedy
        self.args = (cause, remedy)

    def __str__(self) -> str:
        return f"{self.cause} {self.remedy}".rstrip()


class ArgumentError(ShardvarError, ValueError):
    """An argument that cannot be meant."""


class AmbiguousPath(ArgumentError):
    """A path that may mean several checkpoints; the cause lists them."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument of a kind that cannot be meant: no variable where variables are asked for."""


class OutOfRange(ArgumentError, IndexError):
    """An index or an id that its axis does not have; the cause names it."""


class LayoutError(ArgumentError):
    """Regions, splits or partition counts that do not tile the shape that they are for."""


class PolicyError(ArgumentError):
    """A policy's answer loses, adds, reshapes, casts or mixes what it was given (RFC 001, Restrictions)."""


class UnsupportedError(ArgumentError):
    """Something valid that a format cannot hold or that this release does not read."""


class ScopeError(ShardvarError, RuntimeError):
    """Scopes were left in another order than they were entered."""


class DeviceFull(ShardvarError, MemoryError):
    """An allocation would pass a device's memory limit; the cause names device, limit, used and requested bytes."""


class UnknownKey(ShardvarError, KeyError):
    """No tensor of that name."""


class MissingExtra(ShardvarError, ImportError):
    """A part of shardvar that needs packages of an extra which is not installed; the remedy names the command."""


class UnmatchedObjects(ShardvarError, AssertionError):
    """Objects without a value, or values without an object, where it was asserted that there are none; lists all."""


class TargetExists(ShardvarError, FileExistsError):
    """Writing would replace something and the caller did not say that it may."""


class StillSaving(ShardvarError, TimeoutError):
    """A save was joined for less time than it takes; it goes on."""


class StorageError(ShardvarError, OSError):
    """The machine refused: no space, no permission, no such device, locked by another process."""


class LockHeld(StorageError):
    """Another writer is at it, in this process or in another one."""


class CheckpointError(ShardvarError):
    """Whatever is wrong with a checkpoint, as opposed to with the call."""


class CheckpointNotFound(CheckpointError, FileNotFoundError):
    """There is no checkpoint at that path."""


class MalformedCheckpoint(CheckpointError, ValueError):
    """The bytes cannot be decoded as the format that they claim to be."""


class InvalidCheckpoint(CheckpointError, ValueError):
    """The bytes decode, and what they say breaks a law of the format."""


class OutOfBounds(InvalidCheckpoint):
    """A slice reaches out of its tensor, or a payload out of its file."""


class InconsistentTensor(InvalidCheckpoint):
    """Slices of one key disagree on the dtype or the full shape."""


class OverlappingSlices(InvalidCheckpoint):
    """Two slices of one key hold the same element."""


class IncompleteCheckpoint(CheckpointError, ValueError):
    """Regions of a tensor are stored nowhere; they are named, and never read as zeros."""


class MissingFile(IncompleteCheckpoint, FileNotFoundError):
    """A file that the index names is not there."""


class CorruptCheckpoint(CheckpointError, OSError):
    """A checksum disagrees with the bytes that it covers."""


ReadError = CheckpointError | UnsupportedError
READ_ERRORS = (CheckpointError, UnsupportedError)
"""The errors that keep one tensor from being read, and no other."""


@contextmanager
def prefix_errors(place: str) -> Iterator[None]:
    """Name the place (a file, a block) in front of the cause of a ``CheckpointError`` raised inside."""
    try:
        yield
    except CheckpointError as error:
        raise type(error)(f"{place}: {error.cause}", error.remedy) from error
