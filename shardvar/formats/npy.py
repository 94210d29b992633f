"""npy, a file of ``numpy.save``: one array, without a name and without a checksum.

The array's key is always ``array``, so that two files with different names can be compared. A
little-endian array in C order is read in place, or mapped. The elements of any other are picked
from the mapped file, a range at a time.
"""

from functools import partial

import numpy as np

from shardvar.errors import UnsupportedError, prefix_errors
from shardvar.formats.files import DataFiles, find_files, first_bytes
from shardvar.formats.listing import (
    ListedFormat,
    ListedTensor,
    Listing,
    ReadSpan,
    begins_with,
    swapped,
)
from shardvar.storage.protocol import Storage
from shardvar.wire.damage import foreign_file, incomplete
from shardvar.wire.npy import NPY_MAGIC, NpyHeader, parse_preamble, preamble_nbytes

KEY = "array"
"""The key of the array."""
_SIZED_NBYTES = 12
"""The bytes that tell how long the header is: magic, version and size."""


def _read(storage: Storage, name: str) -> Listing:
    data = DataFiles(storage, [name], named=name)
    file = data.open(0)
    with prefix_errors(file.name):
        first = first_bytes(file)
        if not first.startswith(NPY_MAGIC):
            raise foreign_file("a NumPy array (.npy)", first, file.size, "it begins otherwise")
        header = parse_preamble(file.read(0, preamble_nbytes(first[:_SIZED_NBYTES], file.size)))
        stop = header.data_start + header.nbytes
        if stop > file.size:
            raise incomplete(f"Its shape needs {stop} bytes, but the file has {file.size}.")
        if stop < file.size:
            # numpy.save may be called several times with one open file, and numpy.load as often.
            cause = f"Its array ends at byte {stop}, and {file.size - stop} bytes follow it."
            remedy = "If they are other arrays, save each to a separate file."
            data.note(0, UnsupportedError(cause, remedy).at(file.name))
    decode = None if header.is_plain else partial(swapped, size=header.swap_nbytes)
    decode = partial(_decode, header, data) if header.is_fortran else decode
    array = ListedTensor(KEY, header.dtype, header.shape, 0, header.data_start, decode, True)
    return Listing(data, [array])


def _decode(
    header: NpyHeader,
    data: DataFiles,
    _read: ReadSpan,
    tensor: ListedTensor,
    start: int,
    buffer: memoryview,
) -> None:
    """Fill a buffer from elements in Fortran order, which may be big-endian."""
    if not buffer:
        return
    size = header.itemsize
    first, stop = start // size, -(-(start + len(buffer)) // size)
    stored = data.view(0, tensor.start, tensor.start + header.nbytes)
    array = np.ndarray(header.shape[::-1], f"V{size}", stored).T
    elements = np.frombuffer(array.flat[first:stop].tobytes(), np.uint8)
    in_order = elements.reshape(-1, header.swap_nbytes)[:, ::-1].tobytes()
    buffer[:] = in_order[start - first * size :][: len(buffer)]


_find = partial(find_files, suffixes=(".npy",), begins=begins_with(NPY_MAGIC))
FORMAT = ListedFormat("npy", _find, _read)
