"""Errors for bytes that a codec refuses, each with its remedy.

A codec knows offsets and not files; its caller names the file with ``errors.prefix_errors``.
*Malformed* bytes cannot be decoded, *invalid* ones can be decoded and break a law of their format,
*corrupt* ones disagree with their checksum.

A file that has the wrong name altogether is refused by ``foreign_file``, whose error says what the
file is instead (``kinds``); a zip archive by ``foreign_archive``, which knows the names of members.
"""

from collections.abc import Callable, Collection

from shardvar.errors import (
    COPY_AGAIN,
    CorruptCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
    ShardvarError,
)
from shardvar.limits import LIMITS, MAX_KEY_NBYTES
from shardvar.wire import kinds

WRITE_AGAIN = (
    "The program that wrote the file is at fault: write the checkpoint again with another program."
)
DISTRUST = "Do not trust the source of this file."

SNIFF_NBYTES = kinds.SNIFF_NBYTES
"""The bytes at the beginning of a file that ``foreign_file`` is given."""

UNPACK = "If it holds a checkpoint, unpack it (`unzip`) and name that."
"""The way to a checkpoint in a zip archive."""

_KNOWN_MEMBERS = (
    ("data.pkl", "an archive of torch.save", "Give it its own name (.pt), or use numpy.savez."),
    (
        "model.weights.h5",
        "an archive of Keras",
        "Give it its own name (.keras), or use numpy.savez.",
    ),
)
"""Names of members by which other programs' zip archives are known."""


class decoding:  # noqa: N801  # used as a function is
    """Within, raise what a decoder raises as an error of ours, and let those pass.

    Our errors derive from the builtins that a caller expects, so ``except ValueError`` around a
    decoder would also catch what one of its hooks has refused, and call it something else.

    >>> with decoding(lambda error: malformed(f"The number is wrong ({error})."), ValueError):
    ...     int("x")
    Traceback (most recent call last):
    shardvar.errors.MalformedCheckpoint: The number is wrong (invalid literal ...
    """

    __slots__ = ("_kinds", "_make")

    def __init__(self, make: Callable[[Exception], Exception], *kinds: type[Exception]) -> None:
        self._make = make
        self._kinds = kinds

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, self._kinds) and not isinstance(error, ShardvarError):
            raise self._make(error) from error


def malformed(cause: str) -> MalformedCheckpoint:
    """Return the error for bytes that cannot be decoded."""
    return MalformedCheckpoint(cause, COPY_AGAIN)


def invalid(cause: str) -> InvalidCheckpoint:
    """Return the error for bytes that can be decoded and break a law of their format."""
    return InvalidCheckpoint(cause, WRITE_AGAIN)


def corrupt(cause: str) -> CorruptCheckpoint:
    """Return the error for bytes that disagree with their checksum."""
    return CorruptCheckpoint(cause, COPY_AGAIN)


def past_limit(what: str, name: str) -> InvalidCheckpoint:
    """Return the error for something that passes the limit of that name.

    >>> past_limit("A key has 70000 bytes", "MAX_KEY_NBYTES").cause
    'A key has 70000 bytes, which is beyond the limit of 65535 (MAX_KEY_NBYTES).'
    """
    return InvalidCheckpoint(
        f"{what}, which is beyond the limit of {LIMITS[name]} ({name}).", DISTRUST
    )


def check_key_nbytes(nbytes: int) -> None:
    """Raise if the longest key of a file is longer than any reader accepts."""
    if nbytes > MAX_KEY_NBYTES:
        raise past_limit(f"A key has {nbytes} bytes", "MAX_KEY_NBYTES")


def check_key(key: str, what: str = "The name of a tensor") -> None:
    """Raise if a key is longer than any reader accepts; the bytes of a short one are not counted."""
    is_long = len(key) > MAX_KEY_NBYTES // 4
    if is_long and len(key.encode("utf-8", "surrogateescape")) > MAX_KEY_NBYTES:
        raise past_limit(f"{what} that begins with {key[:32]!r} is too long", "MAX_KEY_NBYTES")


def foreign_file(expected: str, first: bytes, size: int, why: str) -> MalformedCheckpoint:
    """Return the error for a file of ``size`` bytes that begins with ``first`` and is not
    ``expected``.

    ``why`` completes the message if the file is of an unknown kind.

    >>> foreign_file("a zip archive", b"<html>", 6, "it begins otherwise").cause
    'The file is a web page, not a zip archive.'
    """
    if not size:
        return MalformedCheckpoint(f"The file is empty, not {expected}.", COPY_AGAIN)
    kind = kinds.kind_of(first)
    if kind:
        return MalformedCheckpoint(f"The file is {kind.what}, not {expected}.", kind.remedy)
    return MalformedCheckpoint(f"The file is not {expected}: {why}.", COPY_AGAIN)


def is_known_archive(names: Collection[str]) -> bool:
    """Return True if a zip archive of members with these names is of a program that
    ``foreign_archive`` names."""
    return any(_has_member(names, known) for known, _, _ in _KNOWN_MEMBERS)


def foreign_archive(expected: str, names: Collection[str]) -> MalformedCheckpoint:
    """Return the error for a zip archive of members with these names, which is not ``expected``.

    >>> foreign_archive("an npz file", ["m/data.pkl", "m/data/0"]).cause
    'The file is an archive of torch.save, not an npz file.'
    """
    for known, what, remedy in _KNOWN_MEMBERS:
        if _has_member(names, known):
            return MalformedCheckpoint(f"The file is {what}, not {expected}.", remedy)
    members = ", ".join(repr(each[:100]) for each in [*names][:3])
    held = f" around {members}{', ...' * (len(names) > 3)}" if names else " without members"
    return MalformedCheckpoint(f"The file is a zip archive{held}, not {expected}.", UNPACK)


def _has_member(names: Collection[str], known: str) -> bool:
    return any(name == known or name.endswith("/" + known) for name in names)
