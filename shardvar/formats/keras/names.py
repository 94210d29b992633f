"""The file names of Keras, and the names that a person may type for a checkpoint.

    model.weights.h5      the arrays of a model, by the paths of its layers
    model.keras           a zip archive with one such file, and the model's configuration
    model.weights.json    the index of a set: model_00000.weights.h5, model_00001.weights.h5, …
    model.h5, .hdf5       a whole model of Keras 2, or any other HDF5 file

The endings are believed. Of a file of another name, the first bytes decide.
"""

import re

from shardvar.formats.files import read_beginning
from shardvar.storage.protocol import Storage
from shardvar.wire.zip import LOCAL, LOCAL_MAGIC

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
ARCHIVE_SUFFIX = ".keras"
INDEX_SUFFIX = ".weights.json"
MEMBER = "model.weights.h5"
"""The member of an archive that has the arrays."""
_SUFFIXES = (".weights.h5", ARCHIVE_SUFFIX, ".h5", ".hdf5")
_PART = re.compile(r"(.+)_\d{5}\.weights\.h5", re.DOTALL)
_FIRST_MEMBERS = (b"metadata.json", b"config.json", MEMBER.encode())
"""The members of an archive; one of them comes first."""


def find_keras(storage: Storage, name: str) -> list[str]:
    """Return the files, and the indexes of sets, that a name may mean."""
    names = storage.names()
    if not name:
        found = (each for each in names if each.endswith((*_SUFFIXES, INDEX_SUFFIX)))
        return sorted({index_of(names, each) for each in found})
    if name in names:
        is_own = name.endswith((*_SUFFIXES, INDEX_SUFFIX)) or _begins_as_own(storage, name)
        return [index_of(names, name)] if is_own else []
    return [name + suffix for suffix in (*_SUFFIXES, INDEX_SUFFIX) if name + suffix in names]


def index_of(names: list[str], name: str) -> str:
    """Return the index of the set that a file is a part of; the file itself if it is the only one.

    >>> index_of(["m.weights.json", "m_00000.weights.h5"], "m_00000.weights.h5")
    'm.weights.json'
    """
    part = _PART.fullmatch(name)
    return part[1] + INDEX_SUFFIX if part and part[1] + INDEX_SUFFIX in names else name


def _begins_as_own(storage: Storage, name: str) -> bool:
    """Return True if a file begins as HDF5, or as a zip archive with a first member of Keras."""
    first = read_beginning(storage, name, LOCAL.size + max(map(len, _FIRST_MEMBERS)))
    if first.startswith(HDF5_MAGIC):
        return True
    if not first.startswith(LOCAL_MAGIC) or len(first) < LOCAL.size:
        return False
    # The bytes 26 and 27 of a local header are the length of the name, which follows the header.
    return first[LOCAL.size :][: int.from_bytes(first[26:28], "little")] in _FIRST_MEMBERS
