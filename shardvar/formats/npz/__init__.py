"""npz, NumPy's zip archive of arrays, read more carefully than NumPy reads it.

contents    the archive's directory and the arrays' headers, and what is wrong with them
source      reading payloads, including compressed, big-endian and Fortran-order ones
sink        writing an archive
"""

from dataclasses import dataclass

from shardvar.formats.files import look_into
from shardvar.formats.npz.contents import MEMBER_SUFFIX, open_npz
from shardvar.formats.npz.sink import npz_sink
from shardvar.formats.npz.source import NpzSource
from shardvar.formats.protocol import Format, NewCheckpoint
from shardvar.formats.sinks import OneFileSink, remove_one_file
from shardvar.planning.slices import Capabilities
from shardvar.storage.protocol import Storage
from shardvar.wire.npy import NPY_DTYPES
from shardvar.wire.zip import LOCAL, local_nbytes

_FILE_SUFFIX = ".npz"

CAPABILITIES = Capabilities(
    dtypes=NPY_DTYPES,
    slice_dtypes=frozenset(),
    many_files=False,
    holds_objects=True,
    guards_metadata=True,
    holds_texts=False,
    objects_in_tensor=True,
)
"""Whole tensors of NumPy's own dtypes; an npy header cannot name others."""


@dataclass(frozen=True, slots=True)
class NpzFormat(Format):
    """npz: one zip archive of arrays."""

    name: str = "npz"
    """The name for ``format=``."""
    capabilities: Capabilities = CAPABILITIES
    """The dtypes that NumPy can read back, whole and in one file."""

    def locate(self, storage: Storage, name: str) -> list[str]:
        """Return the archives that ``name`` may mean."""
        names = storage.names()
        if not name:
            return [found for found in names if found.endswith(_FILE_SUFFIX)]
        # The ending is believed. A file of any other name may also be an archive, so its first
        # bytes decide.
        if name in names and (name.endswith(_FILE_SUFFIX) or _begins_with_array(storage, name)):
            return [name]
        return [name + _FILE_SUFFIX] if name + _FILE_SUFFIX in names else []

    def open(self, storage: Storage, name: str) -> NpzSource:
        """Open an archive."""
        return NpzSource(open_npz(storage, name))

    def lay_out(self, new: NewCheckpoint) -> OneFileSink:
        """Lay out an archive."""
        return npz_sink(new, _file_name(new.name), self)

    def remove(self, storage: Storage, name: str) -> None:
        """Remove the archive."""
        remove_one_file(storage, _file_name(name))


def _file_name(name: str) -> str:
    """Return the name of the archive that a target's name means."""
    return name if name.endswith(_FILE_SUFFIX) else name + _FILE_SUFFIX


def _begins_with_array(storage: Storage, name: str) -> bool:
    """Return True if a file begins as a zip archive does whose first member is an array."""
    local = look_into(
        storage, name, lambda file: file.read(0, local_nbytes(file.read(0, LOCAL.size))), b""
    )
    # The bytes 26 and 27 of a local header are the length of the name, which follows the 30 bytes
    # of the header.
    return local[LOCAL.size :][: int.from_bytes(local[26:28], "little")].endswith(
        MEMBER_SUFFIX.encode()
    )


FORMAT = NpzFormat()
