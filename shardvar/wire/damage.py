"""How the codecs of this layer refuse bytes: the two errors, each with its remedy.

A codec knows offsets and nothing of files; whoever called it names the file with ``errors.at``.
*Malformed* bytes cannot be decoded; *invalid* ones decode and break a law of their format.
"""

from shardvar.errors import CorruptCheckpoint, InvalidCheckpoint, MalformedCheckpoint

COPY_AGAIN = "Copy the file again from where it was written, or use another checkpoint."
WRITE_AGAIN = "Whatever wrote the file is at fault: write the checkpoint again with another program."


def malformed(cause: str) -> MalformedCheckpoint:
    """The error for bytes that cannot be decoded."""
    return MalformedCheckpoint(cause, COPY_AGAIN)


def invalid(cause: str) -> InvalidCheckpoint:
    """The error for bytes that decode and break a law of their format."""
    return InvalidCheckpoint(cause, WRITE_AGAIN)


def corrupt(cause: str) -> CorruptCheckpoint:
    """The error for bytes with which their checksum disagrees."""
    return CorruptCheckpoint(cause, COPY_AGAIN)


# What a file is that bears the wrong name, told by its first bytes, so that an error can say more than "not one".


SNIFF_NBYTES = 64
"""How much of a file is looked at."""

_KNOWN = (
    (b"version https://git-lfs", "a Git LFS pointer instead of the file itself", "Fetch the content: `git lfs pull`."),
    (b"\x1f\x8b", "compressed by gzip", "Unpack it: `gzip -d`, under a name that ends in .gz."),
    (b"PK\x03\x04", "a zip archive, such as torch.save and numpy.savez write", "Convert it, or give it its own name."),
    (b"\x93NUMPY", "a single NumPy array (.npy)", "Store it with numpy.savez under a name of its own."),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "Convert it with the framework that wrote it."),
    (b"\x80\x02", "a Python pickle, which is never loaded", "Convert it with the framework that wrote it."),
    (b"\x80\x04", "a Python pickle, which is never loaded", "Convert it with the framework that wrote it."),
    (b"\x80\x05", "a Python pickle, which is never loaded", "Convert it with the framework that wrote it."),
    (b"<!DOCTYPE", "a web page", "The download failed: fetch the file again."),
    (b"<html", "a web page", "The download failed: fetch the file again."),
)


def not_a(expected: str, first: bytes, size: int, why: str) -> MalformedCheckpoint:
    """The error for a file of ``size`` bytes that begins with ``first`` and is not ``expected``, as ``why`` shows."""
    if not size:
        return MalformedCheckpoint(f"The file is empty, not {expected}.", COPY_AGAIN)
    for magic, what, remedy in _KNOWN:
        if first.startswith(magic):
            return MalformedCheckpoint(f"The file is {what}, not {expected}.", remedy)
    return MalformedCheckpoint(f"The file is not {expected}: {why}.", COPY_AGAIN)
