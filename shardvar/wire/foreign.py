"""What a file is that bears the wrong name, told by its first bytes, so that an error can say more than "not one"."""

from shardvar.errors import MalformedCheckpoint
from shardvar.wire.damage import COPY_AGAIN

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
