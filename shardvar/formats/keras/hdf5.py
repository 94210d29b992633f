"""An HDF5 file, as h5py reads it; the one module that imports h5py.

h5py is given the bytes of the file, and no path. ``walk`` finds the arrays, and checks all that
h5py is asked for.

A *contiguous* dataset of little-endian elements lies in the file byte for byte, and h5py tells
where: it is read in place. Any other is decoded by h5py: in parts of a block (chunked, perhaps
compressed), big-endian, or in its header.
"""

import io
from collections.abc import Callable, Iterator
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from shardvar.errors import CorruptCheckpoint, MalformedCheckpoint
from shardvar.extras import missing_extra
from shardvar.formats.keras.archive import Span
from shardvar.formats.keras.attributes import TextAttributes
from shardvar.formats.keras.lists import NameLists
from shardvar.formats.keras.walk import CACHE_NBYTES, Dataset, Datasets, Walk, translated
from shardvar.layout.dtypes import numpy_dtype
from shardvar.storage.protocol import ReadableFile
from shardvar.wire.hdf5_texts import Hdf5Texts

if TYPE_CHECKING:
    import h5py

_UNIT_NBYTES = 1 << 20
"""Bytes that are decoded at least, where rows are smaller."""


_PAGE_NBYTES = 4 << 10
"""A page of structure. Groups and headers are of some hundred bytes each, and lie between the data."""
_MOST_PAGES = 1024


class _Pages:
    """A range of a file. Short reads bring pages, which are held: in a bucket each read is a request."""

    def __init__(self, open_file: Callable[[], ReadableFile], span: Span) -> None:
        self._open, self._span = open_file, span
        self._held: dict[int, bytes] = {}

    @property
    def nbytes(self) -> int:
        """The size of the range."""
        return self._span.nbytes

    def read(self, start: int, nbytes: int) -> bytes:
        """Return bytes of the range; ``start`` counts from its beginning."""
        octets = bytearray(nbytes)
        self.read_into(start, memoryview(octets))
        return bytes(octets)

    def read_into(self, start: int, octets: memoryview) -> None:
        """Fill the buffer; otherwise as ``read``."""
        stop, first = start + len(octets), start // _PAGE_NBYTES
        if len(octets) >= _PAGE_NBYTES or stop > self._span.nbytes:
            self._open().read_into(self._span.start + start, octets)
            return
        found, begin = self._page(first), start - first * _PAGE_NBYTES
        if stop > (first + 1) * _PAGE_NBYTES:
            found += self._page(first + 1)
        octets[:] = found[begin : begin + len(octets)]

    def _page(self, number: int) -> bytes:
        """Return a page, the last to be forgotten."""
        page = self._held.pop(number, None)
        if page is None:
            start = number * _PAGE_NBYTES
            nbytes = min(_PAGE_NBYTES, self._span.nbytes - start)
            page = self._open().read(self._span.start + start, nbytes)
            for old in list(self._held)[: len(self._held) + 1 - _MOST_PAGES]:
                self._held.pop(old, None)
        self._held[number] = page
        return page


class _View(io.RawIOBase):
    """The pages as a file of Python, for h5py."""

    def __init__(self, pages: _Pages) -> None:
        super().__init__()
        self._pages, self._position = pages, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to an offset."""
        self._position = offset + (0, self._position, self._pages.nbytes)[whence]
        return self._position

    def tell(self) -> int:
        """Return the offset of the next byte."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as there are bytes."""
        octets = memoryview(buffer).cast("B")
        nbytes = max(min(len(octets), self._pages.nbytes - self._position), 0)
        if nbytes:
            self._pages.read_into(self._position, octets[:nbytes])
        self._position += nbytes
        return nbytes


def _library() -> Any:
    """Import h5py, when a file is opened and not before."""
    try:
        import h5py
    except ImportError:
        cause = "HDF5 files, which Keras writes, are read by h5py, which is not installed."
        raise missing_extra(cause, "keras") from None
    return h5py


class Hdf5File:
    """An open HDF5 file; ``open_file`` is asked for each read: few files are open at a time."""

    def __init__(self, open_file: Callable[[], ReadableFile], span: Span) -> None:
        library = _library()
        self._pages, self._span = _Pages(open_file, span), span
        with translated("The file"):
            self._handle: h5py.File = library.File(
                _View(self._pages), "r", rdcc_nbytes=CACHE_NBYTES
            )
        self._kept: tuple[str, Any] | None = None

    def close(self) -> None:
        """Close the file of h5py."""
        self._kept = None
        self._handle.close()

    def read_into(self, dataset: Dataset, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with a part of a payload that h5py decodes, from its byte ``start``."""
        # A read that fails with a checksum means other bytes; without one, a structure that cannot
        # be decoded.
        error_type = CorruptCheckpoint if dataset.has_fletcher32 else MalformedCheckpoint
        with translated("Its data", error_type):
            kept = self._kept  # once, since another thread may replace it at any time
            if kept is None or kept[0] != dataset.key:
                name = dataset.key.encode("utf-8", "surrogateescape")
                kept = self._kept = (
                    dataset.key,
                    _library().Dataset(_library().h5d.open(self._handle.id, name)),
                )
            dtype = numpy_dtype(dataset.dtype)
            first, stop = start // dtype.itemsize, -(-(start + len(buffer)) // dtype.itemsize)
            octets = b"".join(_elements(kept[1], dataset, first, stop))
        begin = start - first * dtype.itemsize
        buffer[:] = octets[begin : begin + len(buffer)]

    def list(self) -> Datasets:
        """Return all arrays of the file, in the order of the walk."""
        found, library, span = Datasets(), _library(), self._span
        texts = Hdf5Texts(self._pages.read, span.nbytes)
        lists = NameLists(self._handle.id, TextAttributes(library, texts))
        walk = Walk(found, self._handle.id, span, lists)
        with translated("The file"):
            walk.run()
        return found


def _elements(stored: Any, dataset: Dataset, first: int, stop: int) -> Iterator[bytes]:
    """The elements [first, stop) of the payload, read in units along the one axis whose units are
    small enough."""
    dtype, shape = numpy_dtype(dataset.dtype), dataset.shape
    if not shape:
        yield _octets(stored[()], dtype)
        return
    # Of [1000, 4096, 4096] float32, rows of axis 0 are too large: units are of axis 1, and have 16
    # KiB.
    axis = 0
    while axis + 1 < len(shape) and prod(shape[axis + 1 :]) * dtype.itemsize > _UNIT_NBYTES:
        axis += 1
    unit = prod(shape[axis + 1 :])
    position, end = first // unit, -(-stop // unit)
    skipped = (first - position * unit) * dtype.itemsize
    while position < end:
        lead, begin = divmod(position, shape[axis])
        length = min(shape[axis] - begin, end - position)
        index = (*map(int, np.unravel_index(lead, shape[:axis])), slice(begin, begin + length))
        yield _octets(stored[index], dtype)[skipped:]
        position, skipped = position + length, 0


def _octets(values: Any, dtype: np.dtype[Any]) -> bytes:
    """Values that h5py returned, as little-endian bytes."""
    array = np.asarray(values)
    return (
        array.tobytes()
        if array.dtype.kind == "V"
        else array.astype(dtype.newbyteorder("<"), copy=False).tobytes()
    )
