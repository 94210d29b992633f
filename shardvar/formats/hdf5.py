"""HDF5 files: their arrays, which h5py reads, and their faults. No other module imports h5py.

h5py is given the bytes of the file, and no path. A *contiguous* dataset of little-endian elements
lies in the file byte for byte, and h5py tells where: it is read in place. Any other is decoded by
h5py: in parts of a block (chunked, perhaps compressed), big-endian, or in its header.

HDF5 can lead to other files: by external links, external storage and virtual datasets. None of them
is followed: each is looked for before h5py is asked for values or shapes. A file claims sizes,
which are compared with the bytes that are there before anything of that size is read. Texts of any
size are read by ``Hdf5Texts``: HDF5 takes as much memory for them as they claim.

h5py refuses a file that is cut off. So it gets the size that the file had, and a read behind the end
is an error of the object that needs it.

A group is entered once, whichever way leads to it, so cycles of links end. Soft links are other
names of objects that are found anyway, and are passed over.

Keras 2 has lists, by which a file notices losses: ``layer_names`` of a group lists groups
in it, and ``weight_names`` arrays, by their paths from there. A list that is larger than an
attribute may be has parts: ``weight_names0``, ``weight_names1`` and so on. A name that the walk did
not meet may still be a link, or lie in a group that it entered by another path. So each step to it
is looked at; a link to somewhere else, which the walk reported, is not followed.

The texts of attributes, as they are stored. HDF5 takes the memory that a text claims, up to 4 GiB,
before it looks for the text, and a thousand claims may lead to one text. Here a text is looked for
first, and all bytes that are read for attributes are at most twice the file's: headers, values and
texts do not share any.

    size        content
    object header, version 1, and each of its messages:
    8           version (1); other numbers
    4, 4        size of the messages; zeros
    8           type (2), size (2), flags (1), zeros (3); then the message
    object header, version 2, and each of its messages:
    6           OHDR, version (1), flags (1); then, by the flags, times (16) and limits (4)
    1, 2, 4, 8  size of the messages
    4           type (1), size (2), flags (1); then, by the header's flags, its number (2); then the
                message
    message of type 16: more messages; version 2's between OCHK and a checksum (4)
    8, 8        the place of the first byte; size
    message of type 12: an attribute
    8           version (1), flags (1), sizes of the name (2), of the dtype (2) and of the shape (2)
    1           the encoding of the name, in version 3
    …           name, dtype, shape, in version 1 each with zeros up to a multiple of 8; then the
                values
    value that is a text
    16          its size (4), the place of a collection (8), the number of an object in it (4)
    collection
    16          GCOL, version (1), zeros (3), size (8)
    16          each object: number (2), other numbers (6), size (8); then its bytes, with zeros up
                to a multiple of 8

Attributes of one object that are many, or of more than 64 KiB, lie elsewhere, and are not found
here.
"""

import io
import struct
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from itertools import count, takewhile
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardvar.errors import (
    COPY_AGAIN,
    READ_ERRORS,
    CorruptCheckpoint,
    IncompleteCheckpoint,
    MalformedCheckpoint,
    ReadError,
    ShardvarError,
    UnsupportedError,
)
from shardvar.extras import missing_extra
from shardvar.formats.files import KeptValues
from shardvar.formats.listing import check_size
from shardvar.layout.dtypes import NAMES, dtype_name, is_opaque, numpy_dtype
from shardvar.limits import MAX_INFLATION, MAX_KEY_NBYTES, MAX_NBYTES, MAX_PAYLOAD_EXPANSION
from shardvar.records import field, mutable
from shardvar.storage.protocol import ReadableFile
from shardvar.wire.damage import (
    DISTRUST,
    WRITE_AGAIN,
    check_key,
    distrusted,
    incomplete,
    invalid,
    malformed,
    past_limit,
)

if TYPE_CHECKING:
    import h5py


_MAGIC = b"OHDR\2"
_HAS_TIMES, _HAS_LIMITS, _HAS_NUMBERS, _SIZE_WIDTH = 32, 16, 4, 3
_FIRST_NBYTES = 6 + 16 + 4 + 8
"""The most bytes in front of the messages of an object header."""
_OLD_MESSAGE, _NEW_MESSAGE = struct.Struct("<HHB3x"), struct.Struct("<BHB")
_ATTRIBUTE, _CONTINUATION = 12, 16
_IS_SHARED = 2
"""The flag of a message that lies elsewhere."""
_PLACE = struct.Struct("<QQ")
_ATTRIBUTE_HEAD = struct.Struct("<BxHHH")
_TEXT = struct.Struct("<IQI")
_COLLECTION, _OBJECT = struct.Struct("<4s4xQ"), struct.Struct("<H6xQ")


@mutable
class Hdf5Texts:
    read: Callable[[int, int], bytes]
    nbytes: int
    _spent_nbytes: int = 0
    _values: dict[int, dict[bytes, bytes]] = field(default_factory=dict)
    """The values of the attributes by name, of each object header."""
    _objects: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """The short objects by number, of each collection."""

    def read_texts(self, header: int, name: bytes, count: int) -> list[bytes] | None:
        """Return the ``count`` texts of an attribute; None if the object header lacks it."""
        if header not in self._values:
            self._values[header] = dict(self._attributes(header))
        values = self._values[header].get(name)
        if values is None:
            return None
        if count * _TEXT.size > len(values):
            raise malformed(f"{count} texts are said to be in {len(values)} bytes.")
        self.spend(count * _TEXT.size)
        return [self._text(*each) for each in _TEXT.iter_unpack(values[: count * _TEXT.size])]

    def spend(self, nbytes: int) -> None:
        """Count bytes that are read, and raise if they are more than the file can hold."""
        self._spent_nbytes += nbytes
        if self._spent_nbytes > 2 * self.nbytes:
            raise distrusted("Its texts also belong to other attributes.")

    def _text(self, nbytes: int, place: int, number: int) -> bytes:
        if not nbytes:
            return b""
        if nbytes > MAX_KEY_NBYTES:
            raise past_limit(f"A text has {nbytes} bytes", "MAX_KEY_NBYTES")
        if place not in self._objects:
            self._objects[place] = dict(self._collection(place))
        text = self._objects[place].get(number, b"")
        if len(text) != nbytes:
            raise malformed(
                f"A text of {nbytes} bytes is said to be object {number} at {place}, where it is "
                "not."
            )
        self.spend(nbytes)
        return text.partition(b"\0")[0]

    def _collection(self, place: int) -> Iterator[tuple[int, bytes]]:
        """Yield the objects of a collection that are short enough for a name, by number."""
        magic, nbytes = _COLLECTION.unpack(self._take(place, _COLLECTION.size))
        if magic != b"GCOL":
            raise malformed(f"Texts are said to be at {place}, where they are not.")
        self.spend(nbytes)
        octets, position = self._take(place, nbytes), _COLLECTION.size
        while position + _OBJECT.size <= nbytes:
            number, size = _OBJECT.unpack_from(octets, position)
            if not number:  # the rest is free
                return
            position += _OBJECT.size
            if size <= MAX_KEY_NBYTES:
                yield number, octets[position : position + size]
            position += -(-size // 8) * 8

    def _attributes(self, header: int) -> Iterator[tuple[bytes, bytes]]:
        for message in self._messages(header):
            if len(message) < _ATTRIBUTE_HEAD.size:
                raise malformed(f"An attribute has {len(message)} bytes.")
            version, *sizes = _ATTRIBUTE_HEAD.unpack_from(message)
            start, unit = _ATTRIBUTE_HEAD.size + (version == 3), 8 if version == 1 else 1
            name = message[start : start + sizes[0]].partition(b"\0")[0]
            yield name, message[start + sum(-(-nbytes // unit) * unit for nbytes in sizes) :]

    def _messages(self, header: int) -> Iterator[bytes]:
        """Yield the messages of an object that are attributes, wherever it continues."""
        head, skipped, trailer, block = self._frame(header)
        left = [block]
        while left:
            start, nbytes = left.pop()
            self.spend(nbytes)
            octets, position = self._take(start, nbytes), 0
            while position + head.size + skipped <= nbytes:
                kind, size, flags = head.unpack_from(octets, position)
                position += head.size + skipped
                message = octets[position : position + size]
                position += size
                if kind == _ATTRIBUTE and not flags & _IS_SHARED:
                    yield message
                elif kind == _CONTINUATION:
                    if size < _PLACE.size or len(message) < size:
                        raise malformed(f"The object header at {header} continues nowhere.")
                    place, size = _PLACE.unpack_from(message)
                    left.append((place + trailer, max(size - 2 * trailer, 0)))

    def _frame(self, header: int) -> tuple[struct.Struct, int, int, tuple[int, int]]:
        """Return how messages begin, the bytes after that and around a continuation, and the first
        messages."""
        first = self._take(header, max(min(_FIRST_NBYTES, self.nbytes - header), 0))
        if first.startswith(b"\1"):
            return _OLD_MESSAGE, 0, 0, (header + 16, int.from_bytes(first[8:12], "little"))
        if not first.startswith(_MAGIC):
            raise malformed(f"An object header is said to be at {header}, where it is not.")
        flags = int.from_bytes(first[5:6])
        size = 6 + (16 if flags & _HAS_TIMES else 0) + (4 if flags & _HAS_LIMITS else 0)
        start = size + (1 << (flags & _SIZE_WIDTH))
        nbytes = int.from_bytes(first[size:start], "little")
        return _NEW_MESSAGE, 2 if flags & _HAS_NUMBERS else 0, 4, (header + start, nbytes)

    def _take(self, start: int, nbytes: int) -> bytes:
        if start + nbytes > self.nbytes:
            raise malformed(f"{nbytes} bytes are said to be at {start} of {self.nbytes}.")
        return self.read(start, nbytes)


_FLETCHER32 = 3
_FILTERS = {1: "deflate", 2: "shuffle", _FLETCHER32: "fletcher32", 32000: "lzf"}
"""The filters that h5py brings. Others would be looked for among the libraries of the machine."""
_CACHE_NBYTES = 1 << 26
"""The largest chunk that is decoded, and the memory for chunks that were decoded last."""
_NEVER_WRITTEN = "Its values were never written."
_REPACK = "Write it again without it: `h5repack -l CONTI -f NONE old.h5 new.h5`."


_UNIT_NBYTES = 1 << 20
"""Bytes that are decoded at least, where rows are smaller."""
_PAGE_NBYTES = 4 << 10
"""A page of structure. Groups and headers are of some hundred bytes each, and lie between the data."""
_MOST_PAGES = 1024
_LISTS = ("layer_names", "weight_names")
_LOST_NBYTES, _LOST_EXPANSION = 256, 32
"""The keys of all that is missing, and 256 bytes for each, have at most 32 bytes for each byte of
the file. Keys of Keras have some 40 bytes, and the file has the name of each."""
_MAX_SHORT_NBYTES = 64
_SIZES = (8, 8)
"""The bytes of an offset and of a size in the files that ``Hdf5Texts`` reads. All known writers
choose these."""


class Span(NamedTuple):
    """The bytes of a file that are an HDF5 file."""

    start: int
    nbytes: int
    crc: int | None = None  # their CRC-32; None for a file that is all HDF5


class Dataset(NamedTuple):
    key: str  # its path, without the slash in front
    dtype: str
    shape: tuple[int, ...]
    start: int | None  # its first byte in the file; None if h5py decodes it
    has_fletcher32: bool  # True if each chunk has one, which h5py compares

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * numpy_dtype(self.dtype).itemsize


@mutable
class Datasets:
    datasets: list[Dataset] = field(default_factory=list)
    faults: dict[str, ReadError] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # links that were not followed
    attributes: dict[str, str] = field(default_factory=dict)
    """Short texts that belong to the whole file, such as Keras' version."""


@contextmanager
def _translated(what: str, error_type: type[ShardvarError] = MalformedCheckpoint) -> Iterator[None]:
    """Raise the errors that h5py has for damaged files as ours."""
    try:
        yield
    except ShardvarError:
        raise
    except (
        OSError,
        RuntimeError,
        ValueError,
        KeyError,
        TypeError,
        OverflowError,
        MemoryError,
    ) as error:
        # Errors of the storage come through h5py with its own as their effect.
        if isinstance(error.__context__, ShardvarError):
            raise error.__context__ from None
        cause = error.args[0] if error.args else error  # as text, a KeyError has quotes
        raise error_type(f"{what} cannot be read as HDF5: {cause}.", COPY_AGAIN) from None


class _NameList(NamedTuple):
    path: str  # of its group, which is empty or ends with a slash
    attribute: str
    names: list[bytes]


@mutable
class _Walk:
    """A walk through all groups of a file, without recursion."""

    root: Any
    span: Span
    library: Any
    texts: Hdf5Texts
    found: Datasets = field(default_factory=Datasets)
    lists: list[_NameList] = field(default_factory=list)
    decoded_nbytes: int = 0  # stored bytes of all arrays that h5py decodes
    lost_nbytes: int = 0  # bytes of all that the lists name and the file lacks

    def run(self) -> None:
        """Enter each group once, look at its links, then compare the lists with what was found."""
        for name in ("keras_version", "backend"):
            with self._fault(name):
                if text := self._read_short(self.root, name):
                    self.found.attributes[name] = text
        entered = {self.library.h5o.get_info(self.root).addr}
        left: list[tuple[str, Any]] = [("", self.root)]
        paths = set()
        while left:
            path, group = left.pop()
            paths.add(path[:-1])
            self._add_lists(path, group)
            names = list[bytes]()
            with self._fault(path[:-1]):
                names += group
            for raw in names:
                key = path + raw.decode("utf-8", "surrogateescape")
                check_key(key, "A path")
                with self._fault(key):
                    info = self._follow(group, raw, key)
                    if info and info.type == self.library.h5o.TYPE_DATASET:
                        self.found.datasets.append(
                            self._dataset(self.library.h5d.open(group, raw), key)
                        )
                    elif (
                        info
                        and info.type == self.library.h5o.TYPE_GROUP
                        and info.addr not in entered
                    ):
                        entered.add(info.addr)
                        left.append((key + "/", self.library.h5g.open(group, raw)))
        self._compare(paths)

    @contextmanager
    def _fault(self, key: str) -> Iterator[None]:
        try:
            with _translated("It"):
                yield
        except READ_ERRORS as error:
            self.found.faults[key] = error.at(repr(key))

    # The attributes that are texts: short ones, and lists of names.

    def _has(self, owner: Any, name: str) -> bool:
        return bool(self.library.h5a.exists(owner, name.encode()))

    def _read_attribute(self, owner: Any, name: str) -> list[bytes] | None:
        """Return the texts of an attribute; None if it has none, or lies where it is not read."""
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

    def _read_short(self, owner: Any, name: str) -> str:
        """Return an attribute that is one short text; empty if it is missing or something else."""
        texts = self._read_attribute(owner, name) if self._has(owner, name) else None
        is_short = texts is not None and len(texts) == 1 and len(texts[0]) <= _MAX_SHORT_NBYTES
        return texts[0].decode("utf-8", "replace") if texts and is_short else ""

    def _lists_of(self, group: Any) -> Iterator[str]:
        for name in _LISTS:
            if self._has(group, name):
                yield name
            else:
                numbered = (f"{name}{number}" for number in count())
                yield from takewhile(lambda part: self._has(group, part), numbered)

    def _add_lists(self, path: str, group: Any) -> None:
        for attribute in self._lists_of(group):
            key = path + attribute
            with self._fault(key):
                names = self._read_attribute(group, attribute)
                if names is not None:
                    self.lists.append(_NameList(path, attribute, names))
                    continue
                note = (
                    f"{key!r} is not a list of texts, or is stored where it is not read: it "
                    "was not compared."
                )
                self.found.notes.append(note)

    def _compare(self, paths: Set[str]) -> None:
        met = paths | self.found.faults.keys() | {dataset.key for dataset in self.found.datasets}
        for each in self.lists:
            with self._fault(each.path + each.attribute):
                for key in self._lost(each, met):
                    cause = (
                        f"{key!r}: The file lacks it, and has its name in the list "
                        f"{each.path + each.attribute!r}."
                    )
                    self.found.faults[key] = incomplete(cause)

    def _lost(self, each: _NameList, met: Set[str]) -> list[str]:
        """Return the keys that a list names and the file lacks; ``met`` are the walk's."""
        lost = []
        for name in dict.fromkeys(each.names):
            steps = b"/".join(_steps(name))
            if not steps:
                raise invalid(f"It has the name {name!r}, which is not a path.")
            key = "" if name.startswith(b"/") else each.path
            key += steps.decode("utf-8", "surrogateescape")
            check_key(key, "A path")
            if key in met:
                continue
            group = self.library.h5g.open(
                self.root, each.path.encode("utf-8", "surrogateescape") or b"/"
            )
            if not self._is_there(self.root if name.startswith(b"/") else group, name):
                lost.append(key)
                self.lost_nbytes += len(key) + _LOST_NBYTES
                if self.lost_nbytes > _LOST_EXPANSION * self.span.nbytes:
                    raise distrusted("It names more than a file of this size can have had.")
        return lost

    def _is_there(self, group: Any, name: bytes) -> bool:
        """Return True if a path leads to an object, or to a link to somewhere else."""
        library = self.library
        *groups, last = _steps(name)
        for step in groups:
            if not group.links.exists(step):
                return False
            if group.links.get_info(step).type != library.h5l.TYPE_HARD:
                return True
            if library.h5o.get_info(group, step).type != library.h5o.TYPE_GROUP:
                return False
            group = library.h5g.open(group, step)
        return bool(group.links.exists(last))

    def _follow(self, group: Any, raw: bytes, key: str) -> Any:
        """Return the object that a link leads to, if it is in this file and under no other name."""
        kind, h5l = group.links.get_info(raw).type, self.library.h5l
        if kind == h5l.TYPE_HARD:
            return self.library.h5o.get_info(group, raw)
        if kind == h5l.TYPE_SOFT:
            self.found.notes.append(f"{key!r} is a soft link, which was not followed.")
            return None
        to = group.links.get_val(raw)[0] if kind == h5l.TYPE_EXTERNAL else b""
        cause = (
            f"It is a link to another file, {to.decode('utf-8', 'replace')!r}, which is not "
            "followed."
        )
        raise UnsupportedError(
            cause, "Leave it out with a filter, or copy its target into the file."
        )

    def _dataset(self, stored: Any, key: str) -> Dataset:
        plist, h5d = stored.get_create_plist(), self.library.h5d
        layout = plist.get_layout()
        # Before the shape is asked for: a virtual dataset may be looked up in other files.
        if layout == h5d.VIRTUAL or plist.get_external_count():
            raise UnsupportedError(
                "Its data are in other files, which are not opened.", "Copy them into this file."
            )
        if layout not in (h5d.COMPACT, h5d.CONTIGUOUS, h5d.CHUNKED):
            raise UnsupportedError(f"Its layout {layout} is unknown.", _REPACK)
        space = stored.get_space()
        if space.get_simple_extent_type() == self.library.h5s.NULL:
            raise UnsupportedError(
                "It is an empty dataset without a shape.", "Leave it out with a filter."
            )
        shape = tuple(map(int, space.get_simple_extent_dims()))
        dtype, is_native = self._dtype(stored)
        dataset = Dataset(key, dtype, shape, None, False)
        check_size(shape, numpy_dtype(dtype).itemsize)
        if not dataset.nbytes:
            return dataset._replace(start=0)
        if layout == h5d.CHUNKED:
            return dataset._replace(has_fletcher32=self._check_chunks(stored, plist, dataset))
        nbytes = stored.get_storage_size()
        if not nbytes:
            raise IncompleteCheckpoint(_NEVER_WRITTEN, WRITE_AGAIN)
        if nbytes != dataset.nbytes:
            raise invalid(f"Its shape needs {dataset.nbytes} bytes, and {nbytes} are stored.")
        if layout == h5d.COMPACT:
            return dataset
        start = stored.get_offset()
        if start is None:
            raise IncompleteCheckpoint(_NEVER_WRITTEN, WRITE_AGAIN)
        if start + nbytes > self.span.nbytes:
            raise incomplete(
                f"Its bytes from {start} to {start + nbytes} are not all in the file, which has "
                f"{self.span.nbytes}."
            )
        return dataset._replace(start=self.span.start + int(start)) if is_native else dataset

    def _dtype(self, stored: Any) -> tuple[str, bool]:
        """Return the name of a dataset's dtype, and True if it is stored as in memory."""
        kind = stored.get_type()
        dtype = kind.dtype
        if dtype.kind == "V" and dtype.names is None:
            # HDF5 has no bfloat16: Keras stores opaque bytes, and the name as an attribute.
            name = self._read_short(stored, "dtype")
            if (
                name in NAMES
                and not is_opaque(name)
                and numpy_dtype(name).itemsize == dtype.itemsize
            ):
                return name, True
        if dtype.kind not in "biufc":
            cause = f"It has the dtype {dtype}, which is neither a number nor a bool."
            raise UnsupportedError(cause, "Leave it out with a filter.")
        name = dtype_name(dtype)
        # Integers of 24 of 32 bits have the same dtype, and other bytes.
        usual = self.library.h5t.py_create(numpy_dtype(name).newbyteorder("<"), logical=True)
        return name, bool(kind.equal(usual))

    def _check_chunks(self, stored: Any, plist: Any, dataset: Dataset) -> bool:
        """Return True if the filters include Fletcher-32; raise if chunks are missing or too large."""
        filters = [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]
        for number in filters:
            if number not in _FILTERS:
                raise UnsupportedError(
                    f"It is stored through the filter {number}, which is not read.", _REPACK
                )
        chunk = plist.get_chunk()
        chunk_nbytes = prod(chunk) * numpy_dtype(dataset.dtype).itemsize
        if chunk_nbytes > _CACHE_NBYTES:
            cause = (
                f"It is stored in chunks of {chunk_nbytes} bytes, which are more than "
                f"{_CACHE_NBYTES}."
            )
            raise UnsupportedError(cause, _REPACK)
        wanted = prod(-(-extent // part) for extent, part in zip(dataset.shape, chunk, strict=True))
        count, nbytes = stored.get_num_chunks(), stored.get_storage_size()
        if nbytes > self.span.nbytes or dataset.nbytes > nbytes * MAX_INFLATION:
            cause = (
                f"Its {dataset.nbytes} bytes are said to be stored as {nbytes} in a file of "
                f"{self.span.nbytes}."
            )
            raise (
                invalid(cause)
                if nbytes > self.span.nbytes
                else IncompleteCheckpoint(cause, DISTRUST)
            )
        self.decoded_nbytes += nbytes
        if self.decoded_nbytes > MAX_PAYLOAD_EXPANSION * self.span.nbytes:
            raise distrusted("Its bytes also belong to other arrays.")
        if count < wanted:
            raise IncompleteCheckpoint(
                f"Of its {wanted} chunks only {count} were written.", WRITE_AGAIN
            )
        return _FLETCHER32 in filters


def _steps(name: bytes) -> list[bytes]:
    """Return the names in a path: HDF5 passes over empty ones and dots."""
    return [step for step in name.split(b"/") if step not in (b"", b".")]


class _Pages:
    """A range of a file. Short reads bring pages, which are held: in a bucket each read is a request."""

    def __init__(self, open_file: Callable[[], ReadableFile], span: Span) -> None:
        self._open, self._span = open_file, span
        self._held = KeptValues[int, bytes](_MOST_PAGES)

    @property
    def nbytes(self) -> int:
        return self._span.nbytes

    def read(self, start: int, nbytes: int) -> bytes:
        octets = bytearray(nbytes)
        self.read_into(start, memoryview(octets))
        return bytes(octets)

    def read_into(self, start: int, octets: memoryview) -> None:
        stop, first = start + len(octets), start // _PAGE_NBYTES
        if len(octets) >= _PAGE_NBYTES or stop > self._span.nbytes:
            self._open().read_into(self._span.start + start, octets)
            return
        octets_of, begin = self._page(first), start - first * _PAGE_NBYTES
        if stop > (first + 1) * _PAGE_NBYTES:
            octets_of += self._page(first + 1)
        octets[:] = octets_of[begin : begin + len(octets)]

    def _page(self, number: int) -> bytes:
        start = number * _PAGE_NBYTES
        nbytes = min(_PAGE_NBYTES, self._span.nbytes - start)
        return self._held.get(number, lambda: self._open().read(self._span.start + start, nbytes))


def _written_nbytes(pages: _Pages) -> int:
    """Return the size in the first block of a file, as it was when it was closed; 0 if it has none."""
    first = pages.read(0, min(64, pages.nbytes))
    # Behind the signature: the version, which tells the place of the four addresses; with the first
    # of them, the base, all others count.
    version = first[8] if len(first) == 64 else 99
    start = {0: 24, 1: 28, 2: 12, 3: 12}.get(version, 64)
    sizes = first[9:11] if version > 1 else first[13:15]
    if start == 64 or sizes != bytes(_SIZES):
        return 0
    return int.from_bytes(first[start + 16 : start + 24], "little")


class _View(io.RawIOBase):
    def __init__(self, pages: _Pages, nbytes: int) -> None:
        super().__init__()
        self._pages, self._nbytes, self._position = pages, nbytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._nbytes)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        octets = memoryview(buffer).cast("B")
        nbytes = max(min(len(octets), self._nbytes - self._position), 0)
        if nbytes:
            self._pages.read_into(self._position, octets[:nbytes])
        self._position += nbytes
        return nbytes


def _library() -> Any:
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
        self.nbytes = max(span.nbytes, min(_written_nbytes(self._pages), MAX_NBYTES))
        with _translated("The file"):
            self._handle: h5py.File = library.File(
                _View(self._pages, self.nbytes), "r", rdcc_nbytes=_CACHE_NBYTES
            )
        self._kept: tuple[str, Any] | None = None

    def close(self) -> None:
        self._kept = None
        self._handle.close()

    def read_into(self, dataset: Dataset, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with a part of a payload that h5py decodes, from its byte ``start``."""
        # A read that fails with a checksum means other bytes; without one, a structure that cannot
        # be decoded.
        error_type = CorruptCheckpoint if dataset.has_fletcher32 else MalformedCheckpoint
        with _translated("Its data", error_type):
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
        library, texts = _library(), Hdf5Texts(self._pages.read, self._span.nbytes)
        walk = _Walk(self._handle.id, self._span, library, texts)
        with _translated("The file"):
            walk.run()
        return walk.found


def _elements(stored: Any, dataset: Dataset, first: int, stop: int) -> Iterator[bytes]:
    """Yield the elements [first, stop) of the payload, in units along one axis."""
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
    """Return values that h5py returned as little-endian bytes."""
    array = np.asarray(values)
    return (
        array.tobytes()
        if array.dtype.kind == "V"
        else array.astype(dtype.newbyteorder("<"), copy=False).tobytes()
    )
