"""Errors for bytes that a codec refuses, each with its remedy.

A codec knows offsets and not files; its caller names the file with ``errors.prefix_errors``. *Malformed* bytes cannot
be decoded, *invalid* ones can be decoded and break a law of their format, *corrupt* ones disagree with their checksum.

A file that has the wrong name altogether is refused by ``foreign_file``, which recognises common kinds of files by
their first bytes, so that the error can say what the file is instead; a zip archive by ``foreign_archive``, which knows
the names of members.
"""

from collections.abc import Collection

from shardvar.errors import CorruptCheckpoint, InvalidCheckpoint, MalformedCheckpoint
from shardvar.limits import LIMITS, MAX_KEY_NBYTES

COPY_AGAIN = "Copy the file again from where it was written, or use another checkpoint."
WRITE_AGAIN = "The program that wrote the file is at fault: write the checkpoint again with another program."
DISTRUST = "Do not trust the source of this file."

SNIFF_NBYTES = 64
"""The bytes at the beginning of a file that ``foreign_file`` is given: more than the longest text that it knows."""

_CONVERT = "Convert it with the framework that wrote it."
_PICKLE = "a Python pickle, which is never loaded"
_DOWNLOAD = "The download failed: fetch the file again."
_KNOWN = (
    (b"version https://git-lfs", "a Git LFS pointer instead of the file itself", "Fetch the content: `git lfs pull`."),
    (b"\x1f\x8b", "compressed by gzip", "Unpack it: `gzip -d`, under a name that ends in .gz."),
    (b"PK\x03\x04", "a zip archive, such as torch.save and numpy.savez write", "Convert it, or give it its own name."),
    (b"\x93NUMPY", "a single NumPy array (.npy)", "Give it its own name (.npy), or store it with numpy.savez."),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", _CONVERT),
    (b"\x80\x02", _PICKLE, _CONVERT),  # a pickle begins with 0x80 and the number of its protocol
    (b"\x80\x04", _PICKLE, _CONVERT),
    (b"\x80\x05", _PICKLE, _CONVERT),
    (b"<!DOCTYPE", "a web page", _DOWNLOAD),
    (b"<html", "a web page", _DOWNLOAD),
)
_KNOWN_MEMBERS = (
    ("data.pkl", "an archive of torch.save", "Give it its own name (.pt), or use numpy.savez."),
    ("model.weights.h5", "an archive of Keras", "Give it its own name (.keras), or use numpy.savez."),
)
"""Names of members by which the zip archives of other programs are known, in the archive or in a folder of it."""


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
    return InvalidCheckpoint(f"{what}, which is beyond the limit of {LIMITS[name]} ({name}).", DISTRUST)


def check_key_nbytes(nbytes: int) -> None:
    """Raise if the longest key of a file, of ``nbytes`` bytes, is longer than any reader accepts."""
    if nbytes > MAX_KEY_NBYTES:
        raise past_limit(f"A key has {nbytes} bytes", "MAX_KEY_NBYTES")


def foreign_file(expected: str, first: bytes, size: int, why: str) -> MalformedCheckpoint:
    """Return the error for a file of ``size`` bytes that begins with ``first`` and is not ``expected``.

    ``why`` completes the message if the file is of an unknown kind.

    >>> foreign_file("a zip archive", b"<html>", 6, "it begins otherwise").cause
    'The file is a web page, not a zip archive.'
    """
    if not size:
        return MalformedCheckpoint(f"The file is empty, not {expected}.", COPY_AGAIN)
    for magic, what, remedy in _KNOWN:
        if first.startswith(magic):
            return MalformedCheckpoint(f"The file is {what}, not {expected}.", remedy)
    return MalformedCheckpoint(f"The file is not {expected}: {why}.", COPY_AGAIN)


def is_known_archive(names: Collection[str]) -> bool:
    """Return True if a zip archive of members with these names is of a program that ``foreign_archive`` names."""
    return any(_has_member(names, known) for known, _, _ in _KNOWN_MEMBERS)


def foreign_archive(expected: str, names: Collection[str]) -> MalformedCheckpoint:
    """Return the error for a zip archive of members with these names, which is not ``expected``.

    >>> foreign_archive("an npz file", ["m/data.pkl", "m/data/0"]).cause
    'The file is an archive of torch.save, not an npz file.'
    """
    for known, what, remedy in _KNOWN_MEMBERS:
        if _has_member(names, known):
            return MalformedCheckpoint(f"The file is {what}, not {expected}.", remedy)
    cause = f"The file is a zip archive in which none of {len(names)} members is an array, not {expected}."
    return MalformedCheckpoint(cause, "Name the file that holds the tensors.")


def _has_member(names: Collection[str], known: str) -> bool:
    return any(name == known or name.endswith("/" + known) for name in names)
