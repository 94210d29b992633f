"""A walk through an HDF5 file that is open in h5py: its arrays, and what is wrong with them.

HDF5 can lead to other files: by external links, external storage and virtual datasets. None of them
is followed: each is looked for before h5py is asked for values or shapes. A file claims sizes,
which are compared with the bytes that are there before anything of that size is read.

A group is entered once, whichever way leads to it, so cycles of links end. Soft links are other
names of what is found anyway, and are passed over.
"""

from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from shardvar.errors import (
    COPY_AGAIN,
    READ_ERRORS,
    IncompleteCheckpoint,
    InvalidCheckpoint,
    MalformedCheckpoint,
    ReadError,
    ShardvarError,
    UnsupportedError,
)
from shardvar.formats.keras.archive import Span
from shardvar.formats.keras.lists import NameLists
from shardvar.layout.dtypes import NAMES, dtype_name, is_opaque, numpy_dtype
from shardvar.limits import MAX_INFLATION, MAX_KEY_NBYTES, MAX_NBYTES, MAX_PAYLOAD_EXPANSION
from shardvar.wire.damage import DISTRUST, WRITE_AGAIN, invalid, past_limit

_FLETCHER32 = 3
_FILTERS = {1: "deflate", 2: "shuffle", _FLETCHER32: "fletcher32", 32000: "lzf"}
"""The filters that h5py brings. Others would be looked for among the libraries of the machine."""
CACHE_NBYTES = 1 << 26
"""The largest chunk that is decoded, and the memory for chunks that were decoded last."""
_NEVER_WRITTEN = "Its values were never written."
_REPACK = "Write it again without it: `h5repack -l CONTI -f NONE old.h5 new.h5`."


class Dataset(NamedTuple):
    """An array that can be read."""

    key: str
    """Its path, without the slash in front."""
    dtype: str
    """The name of its dtype."""
    shape: tuple[int, ...]
    """Its shape."""
    start: int | None
    """Its first byte, in bytes of the file; None if h5py decodes it."""
    has_fletcher32: bool
    """True if each chunk that was written with all filters has a Fletcher-32, which h5py
    compares."""

    @property
    def nbytes(self) -> int:
        """The size of its payload."""
        return prod(self.shape) * numpy_dtype(self.dtype).itemsize


@dataclass(slots=True)
class Datasets:
    """The content of a file."""

    datasets: list[Dataset] = field(default_factory=list)
    """The arrays that can be read."""
    faults: dict[str, ReadError] = field(default_factory=dict)
    """The keys that cannot be read, with the reason."""
    notes: list[str] = field(default_factory=list)
    """Links that were not followed."""
    attributes: dict[str, str] = field(default_factory=dict)
    """Short texts that belong to the whole file, such as Keras' version."""


@contextmanager
def translated(what: str, error_type: type[ShardvarError] = MalformedCheckpoint) -> Iterator[None]:
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


@dataclass(slots=True)
class Walk:
    """A walk through all groups of a file, without recursion."""

    found: Datasets
    root: Any
    """The group at the top, as h5py has it."""
    span: Span
    lists: NameLists
    """The lists of names that groups have."""
    decoded_nbytes: int = 0
    """Bytes in which the arrays are stored that h5py decodes, all together."""

    @property
    def library(self) -> Any:
        """h5py."""
        return self.lists.attributes.library

    def run(self) -> None:
        """Enter each group once, look at its links, then compare the lists with what was found."""
        for name in ("keras_version", "backend"):
            with self._fault(name):
                if text := self.lists.attributes.read_short(self.root, name):
                    self.found.attributes[name] = text
        entered = {self.library.h5o.get_info(self.root).addr}
        left: list[tuple[str, Any]] = [("", self.root)]
        paths = set()
        while left:
            path, group = left.pop()
            paths.add(path[:-1])
            self._add_lists(path, group)
            for raw in list(group):
                key = path + raw.decode("utf-8", "surrogateescape")
                if (
                    len(key) > MAX_KEY_NBYTES // 4
                    and len(key.encode("utf-8", "surrogateescape")) > MAX_KEY_NBYTES
                ):
                    raise past_limit(
                        f"A path that begins with {key[:32]!r} is too long", "MAX_KEY_NBYTES"
                    )
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
        """Keep an error as the fault of a key."""
        try:
            with translated("It"):
                yield
        except READ_ERRORS as error:
            self.found.faults[key] = error.at(repr(key))

    def _add_lists(self, path: str, group: Any) -> None:
        """Read the lists of a group."""
        for attribute in self.lists.parts(group):
            key = path + attribute
            with self._fault(key):
                if not self.lists.add(path, group, attribute):
                    note = (
                        f"{key!r} is not a list of texts, or is stored where it is not read: it "
                        "was not compared."
                    )
                    self.found.notes.append(note)

    def _compare(self, paths: Set[str]) -> None:
        """Add what the lists name, and the file lacks, to the faults."""
        met = paths | self.found.faults.keys() | {dataset.key for dataset in self.found.datasets}
        for each in self.lists.lists:
            with self._fault(each.path + each.attribute):
                for key in self.lists.find_lost(each, met):
                    cause = (
                        f"{key!r}: The file lacks it, and has its name in the list "
                        f"{each.path + each.attribute!r}."
                    )
                    self.found.faults[key] = IncompleteCheckpoint(cause, COPY_AGAIN)

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
        """Return what is needed to read a dataset; raise if it cannot or must not be read."""
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
        # Extents of 0 do not make a shape harmless: NumPy cannot hold (2**62, 2**62, 0).
        if prod(filter(None, shape)) * numpy_dtype(dtype).itemsize > MAX_NBYTES:
            raise invalid(f"Its shape {shape} is too large to exist.")
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
        start = self._check_contiguous(stored, nbytes)
        return dataset._replace(start=self.span.start + start) if is_native else dataset

    def _dtype(self, stored: Any) -> tuple[str, bool]:
        """Return the name of a dataset's dtype, and True if it is stored as in memory."""
        kind = stored.get_type()
        dtype = kind.dtype
        if dtype.kind == "V" and dtype.names is None:
            # HDF5 has no bfloat16: Keras stores opaque bytes, and the name as an attribute.
            name = self.lists.attributes.read_short(stored, "dtype")
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

    def _check_contiguous(self, stored: Any, nbytes: int) -> int:
        """Return the first byte of a contiguous dataset in the HDF5 file, or raise what is wrong
        with its place."""
        start = stored.get_offset()
        if start is None:
            raise IncompleteCheckpoint(_NEVER_WRITTEN, WRITE_AGAIN)
        if start + nbytes > self.span.nbytes:
            cause = (
                f"Its bytes from {start} to {start + nbytes} are not all in the file, which has "
                f"{self.span.nbytes}."
            )
            raise IncompleteCheckpoint(cause, COPY_AGAIN)
        return int(start)

    def _check_chunks(self, stored: Any, plist: Any, dataset: Dataset) -> bool:
        """Return True if the filters include Fletcher-32; raise if chunks are missing or too
        large."""
        filters = [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]
        for number in filters:
            if number not in _FILTERS:
                raise UnsupportedError(
                    f"It is stored through the filter {number}, which is not read.", _REPACK
                )
        chunk = plist.get_chunk()
        chunk_nbytes = prod(chunk) * numpy_dtype(dataset.dtype).itemsize
        if chunk_nbytes > CACHE_NBYTES:
            cause = (
                f"It is stored in chunks of {chunk_nbytes} bytes, which are more than "
                f"{CACHE_NBYTES}."
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
            raise InvalidCheckpoint("Its bytes also belong to other arrays.", DISTRUST)
        if count < wanted:
            raise IncompleteCheckpoint(
                f"Of its {wanted} chunks only {count} were written.", WRITE_AGAIN
            )
        return _FLETCHER32 in filters
