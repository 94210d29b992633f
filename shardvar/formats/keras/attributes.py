"""The attributes of an HDF5 file that are texts: short ones, and lists of names.

h5py reads texts of one size, which are compared with the size of the file before. Texts of any size
are read by ``wire.hdf5_texts``: HDF5 takes as much memory for them as they claim.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardvar.wire.hdf5_texts import Hdf5Texts

_MAX_SHORT_NBYTES = 64
_SIZES = (8, 8)
"""The bytes of an offset and of a size in the files that ``Hdf5Texts`` reads. All known writers
choose these."""


@dataclass(frozen=True, slots=True)
class TextAttributes:
    """The attributes of the objects of one file."""

    library: Any
    """h5py."""
    texts: Hdf5Texts
    """The texts of any size."""

    def has(self, owner: Any, name: str) -> bool:
        """Return True if an object has an attribute, of any dtype."""
        return bool(self.library.h5a.exists(owner, name.encode()))

    def read(self, owner: Any, name: str) -> list[bytes] | None:
        """Return the texts of an attribute; None if its elements are not texts, or lie where they
        are not read."""
        attribute, h5 = self.library.h5a.open(owner, name.encode()), self.library
        kind, space = attribute.get_type(), attribute.get_space()
        count = (
            0
            if space.get_simple_extent_type() == h5.h5s.NULL
            else space.get_simple_extent_npoints()
        )
        if not count:  # NumPy makes numbers of an empty list
            return []
        if kind.get_class() != h5.h5t.STRING:
            return None
        if not kind.is_variable_str():
            self.texts.spend(attribute.get_storage_size())
            values = np.empty(count, f"S{kind.get_size()}")
            attribute.read(values, kind)
            return [each.partition(b"\0")[0] for each in values.tolist()]
        if h5.h5i.get_file_id(owner).get_create_plist().get_sizes() != _SIZES:
            return None
        return self.texts.read_texts(h5.h5o.get_info(owner).addr, name.encode(), count)

    def read_short(self, owner: Any, name: str) -> str:
        """Return an attribute that is one short text; empty if it is missing or something else."""
        texts = self.read(owner, name) if self.has(owner, name) else None
        is_short = texts is not None and len(texts) == 1 and len(texts[0]) <= _MAX_SHORT_NBYTES
        return texts[0].decode("utf-8", "replace") if texts and is_short else ""
