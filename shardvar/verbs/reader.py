"""Reader: an open checkpoint, its index, and values that are read when they are asked for.

    open_checkpoint(path) --> Reader --find(key)--> entries of one key --read--> array

Opening reads as little as the format allows. ``find`` looks up one key without the others;
``entries``, ``keys`` and ``faults`` read the whole index and keep it. ``read`` turns an index into
a region, reads that, and picks from it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import prod
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from shardvar.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointError,
    ShardvarError,
    UnknownKey,
    UnsupportedError,
    log_warning,
)
from shardvar.formats.deferred import DeferredIndex, LateIndex, find_keys, outline_of
from shardvar.formats.protocol import Format, Source
from shardvar.layout.dtypes import NAMES, STRING, Array, Shape, numpy_dtype, parse_dtype
from shardvar.layout.region import Region
from shardvar.pictures.words import human_size, human_tensors
from shardvar.planning.index import (
    EntryTable,
    Index,
    Metadata,
    concatenate_entries,
    find_faults,
    of_tensors,
)
from shardvar.records import field, frozen, mutable
from shardvar.verbs.arguments import check_string
from shardvar.verbs.locate import Location
from shardvar.verbs.parameters import may_be_codes

if TYPE_CHECKING:
    from shardvar.layout.meshes import Layout
    from shardvar.storage.protocol import Storage
    from shardvar.verbs.dequantization import LogicalTensors
    from shardvar.verbs.holders import GridRule

__all__ = ["LazyTensor", "Reader"]


def check_verify(verify: Any) -> None:
    if verify not in ("auto", "full"):
        raise ArgumentError(f"verify={verify!r} is not a way to verify.", "Give 'auto' or 'full'.")


class LazyArray(ABC):
    """An array of a known shape that is read by ``np.asarray``, and each time again."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> Shape:
        """The shape."""

    @abstractmethod
    def numpy(self) -> Array:
        """The values, as a fresh array."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def T(self) -> Array:  # noqa: N802
        """The values with their axes reversed, as a fresh array."""
        return self.numpy().T

    def astype(self, dtype: npt.DTypeLike) -> Array:
        """Return the values as another dtype, which may also be named, such as ``'bfloat16'``."""
        return self.numpy().astype(numpy_dtype(parse_dtype(dtype)))

    def __len__(self) -> int:
        if not self.shape:
            cause = f"{self!r} has no axes and therefore no length."
            raise ArgumentTypeError(cause, "Ask for its size, which is 1.")
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:  # as NumPy's protocol has it
            raise ArgumentError(f"An array of {self!r} is always a copy.", "Leave copy out.")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)


@frozen
class LazyTensor(LazyArray):
    """A tensor of an open checkpoint, whose values are read when it is indexed or made an array.

    ``tensor[3:7]`` reads only these rows, and ``np.asarray(tensor)`` the whole. Both call
    ``Reader.read``, with its errors, and read each time.
    """

    reader: "Reader" = field(repr=False)
    """The checkpoint that it is in."""
    key: str
    """Its name."""
    dtype: str
    """The name of its element type."""
    shape: Shape = field()
    """Its full shape."""
    nbytes: int = field(repr=False)
    """The bytes of its values in the checkpoint."""

    def __getitem__(self, index: Any) -> npt.NDArray[Any]:
        # To NumPy, None is a new axis.
        return self.reader.read(self.key, (None,) if index is None else index)

    def numpy(self) -> Array:
        """The values, as a fresh array."""
        return self.reader.read(self.key)


@mutable
class Reader(Mapping[str, LazyTensor]):
    """An open checkpoint: a mapping of keys to tensors, and a context manager that closes it.

    ``reader["table"]`` is a ``LazyTensor``. Values are read when asked for, and only those:
    ``reader["table"][3:7]``, or ``reader.read("table", np.s_[3:7])``, reads four rows. The other
    methods of a mapping, such as ``items`` and ``get``, read no values either.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> path = f"{tempfile.mkdtemp()}/model"
    >>> _ = sv.save(path, {"table": np.arange(26.0).reshape(13, 2)}, partition=5)
    >>> with sv.open_checkpoint(path) as reader:
    ...     reader["table"].shape, reader["table"][12].tolist()
    ((13, 2), [24.0, 25.0])
    """

    path: str
    """The path of the checkpoint."""
    format: str
    """The name of its format."""
    source: Source
    """The source that payloads are read from."""
    unverified: list[tuple[str, Region]] = field(default_factory=list)
    """The parts that were returned without comparing a checksum, since it covers many more bytes, as
    the region around each; ``verify="full"`` reads all of these instead."""
    _table: EntryTable | None = None
    _keys: dict[str, None] | None = None
    _faults: dict[str, CheckpointError] | None = None
    _storage: "Storage | None" = None
    _logical: "LogicalTensors | None" = None
    _batch: Callable[..., Any] | None = None  # Reads requests, in the place of ``read_batch``
    _rule: "GridRule | None" = None

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        known = ""
        with suppress(ShardvarError, OSError, ValueError):  # also of a closed one
            slices = self.listed().slices
            settings = len(settings_in(self.source, slices.tensors.facts()))
            number = human_tensors(len(self), 0, settings)
            known = f", {number}, {human_size(int(slices.nbytes.sum()))}"
        return f"{type(self).__name__}(path={self.path!r}, format={self.format!r}{known})"

    @property
    def index(self) -> Index:
        """The table of contents."""
        return self.source.index

    @property
    def metadata(self) -> Metadata:
        """The description, the writer and the user's metadata that the checkpoint keeps."""
        return self.source.index.metadata

    @property
    def digests(self) -> Mapping[str, str]:
        """The digests of tensors that the checkpoint carries, by key; empty if it carries none.

        ``sv.verify`` compares these claims of the writer, and ``sv.digest`` computes digests.
        The text is read when they are first used: ``MalformedCheckpoint`` if it is not one of digests.
        """
        return self.source.index.metadata.digests

    @property
    def encodings(self) -> Mapping[str, str]:
        """The encodings of keys that are listed as encoded bytes, such as Q8_0."""
        return self.source.encodings()

    def logical(self) -> "LogicalTensors | None":
        """Return the encodings and logical shapes of quantised tensors; None if it has none."""
        slices = self.listed().slices
        # Not ``np.unique``, which imports ``numpy.ma``: that takes a tenth of this command's time.
        codes = {*slices.tensors.codes[slices.tensors.ranks > 1].tolist()}
        is_any = any(map(may_be_codes, map(NAMES.__getitem__, codes)))
        is_any |= any(".quant_state." in key for key in slices.tensors.keys)
        if self._logical is None and (is_any or self.encodings):
            # Imported on use: few checkpoints have any.
            from shardvar.verbs.dequantization import logical_tensors

            self._logical = logical_tensors(self.source, self.entries(), self._storage)
        return self._logical

    def entries(self) -> EntryTable:
        """Return all entries as one table, which is kept.

        Returns
        -------
        EntryTable
            The slices of all tensors, with the place and the checksum of each.
        """
        if self._table is None:
            self._table = concatenate_entries(list(self.index.scan()))
        return self._table

    def listed(self) -> EntryTable:
        """Return all slices as far as the index tells, for a listing.

        Unlike in ``entries``, slices of PyTorch's formats have no place and no checksum here,
        because these are next to the payload.
        """
        outline = outline_of(self.index)
        return self.entries() if outline is self.index else concatenate_entries([*outline.scan()])

    def listed_faults(self) -> Mapping[str, CheckpointError]:
        """Return the keys that cannot be read, as far as the index tells, with the reason.

        ``faults`` also has the errors of payload files.
        """
        outline = outline_of(self.index)
        if outline is self.index:
            return self.faults
        return self._faults_of(self.listed()) | dict(outline.faults.items())

    @property
    def faults(self) -> Mapping[str, CheckpointError]:
        """The keys that cannot be read, with the reason. Looks at all entries, at no payload."""
        if self._faults is None:
            self._faults = self._faults_of(self.entries()) | dict(self.index.faults.items())
        return self._faults

    def keys(self) -> KeysView[str]:
        """Return the names of all tensors, including unreadable ones, in the order of the index.

        Returns
        -------
        KeysView of str
            The names: a set that has an order, as ``dict.keys()``.
        """
        return self._names().keys()

    def _names(self) -> dict[str, None]:
        index = self.index
        if self._keys is None and isinstance(index, LateIndex):
            self._keys = dict.fromkeys(index.names)
        if self._keys is None:
            is_deferred = isinstance(index, DeferredIndex)
            stored = (self.listed() if is_deferred else self.entries()).slices.tensors.keys
            # Entries of a faulty key may be missing from the table; the key is listed all the same.
            index = outline_of(index) if is_deferred else index
            faulty = sorted(set(index.faults).difference(stored))
            self._keys = dict.fromkeys(stored) | dict.fromkeys(faulty)
        return self._keys

    def __len__(self) -> int:
        return len(self._names())

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __contains__(self, key: object) -> bool:
        return key in self._names()

    def __getitem__(self, key: str) -> LazyTensor:
        slices = self._look_up(outline_of(self.index), [key]).slices
        tensors, nbytes = slices.tensors, int(slices.nbytes.sum())
        return LazyTensor(self, key, *tensors.fact(0), nbytes)

    def read(self, key: str, region: Any = None, verify: str = "auto") -> npt.NDArray[Any]:
        """Return a tensor, or a part of it, as a fresh array. Only the bytes that the part needs
        are read.

        Parameters
        ----------
        key : str
            The name of the tensor.
        region : Region or index, optional
            The part to read: a ``Region``, or an index of NumPy such as ``np.s_[3:7, 0]``, a list of
            rows or a mask. The whole tensor by default.
        verify : {'auto', 'full'}, default 'auto'
            With ``'full'``, compare all checksums that cover the part, and read the whole
            tensor if the format has a checksum only of the whole. With ``'auto'``, read the part
            then, and note it in ``unverified``. Checksums of runs are compared in both, unless the
            runs in a bucket have more than twice the bytes and 512 KiB more.

        Raises
        ------
        UnknownKey
            If the checkpoint has no such tensor.
        OutOfRange
            If the region reaches out of the tensor.
        CheckpointError
            If the tensor is damaged or incomplete.
        ArgumentError
            If ``verify`` has another value.
        """
        return self.read_many([(key, region)], verify)[0]

    def read_many(
        self,
        requests: Iterable[tuple[str, Any]],
        verify: str = "auto",
        *,
        out: Sequence[npt.NDArray[Any] | None] | None = None,
    ) -> list[npt.NDArray[Any]]:
        """Return several tensors, or parts of them, read together: neighbours in a file by one
        request, and all requests to a bucket at the same time.

        Otherwise as ``read``.

        Parameters
        ----------
        requests : iterable of (str, Region or index)
            The key and the part of each; None is the whole tensor. They may overlap and repeat.
        out : sequence of ndarray or None, optional
            An array for each request, of its shape and dtype, to read into. After an error,
            its content is not defined. Without one, or with None in its place, a fresh array is made.

        Returns
        -------
        list of ndarray
            The array of each request, in order.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> import shardvar as sv
        >>> path = f"{tempfile.mkdtemp()}/model"
        >>> _ = sv.save(path, {"a": np.arange(6), "b": np.arange(8.0).reshape(4, 2)}, partition=2)
        >>> with sv.open_checkpoint(path) as reader:
        ...     a, b = reader.read_many([("a", np.s_[2:4]), ("b", [3, 0, 3])])
        >>> a.tolist(), b.tolist()
        ([2, 3], [[6.0, 7.0], [0.0, 1.0], [6.0, 7.0]])
        """
        check_verify(verify)
        wanted: list[Any] = list(requests)
        for request in wanted:
            if not isinstance(request, tuple) or len(request) != 2:
                raise ArgumentTypeError(
                    f"Invalid request {request!r}.", "Give a tuple of a key and a region, or None."
                )
            check_string(request[0], "keys")
        from shardvar.engine.read import read_batch  # a listing reads no tensor

        entries = self.find_many(dict.fromkeys(key for key, _ in wanted))
        with self.explain_policy():
            arrays, unverified = (self._batch or read_batch)(
                self.source, wanted, entries, is_full=verify == "full", out=out
            )
        self.unverified += unverified
        return arrays

    def find(self, key: str) -> EntryTable:
        """Return the entries of one key, looked up without the others.

        Parameters
        ----------
        key : str
            The name of the tensor.

        Returns
        -------
        EntryTable
            The slices of the tensor.

        Raises
        ------
        UnknownKey
            If the checkpoint has no such tensor.
        CheckpointError
            If the entries of the key are damaged or incomplete.
        """
        return self.find_many([key])

    def find_many(self, keys: Iterable[str]) -> EntryTable:
        """Return the entries of several keys in one table, in the order of the keys.

        It raises the errors of ``find``.

        Parameters
        ----------
        keys : iterable of str
            The names of the tensors, all different.
        """
        return self._look_up(self.index, list(keys))

    def _look_up(self, index: Index, keys: Sequence[str]) -> EntryTable:
        for key in keys:
            check_string(key, "keys")
        with self.explain_policy():
            if self._table is not None and len(keys) > 1 and not isinstance(index, DeferredIndex):
                return self._look_up_all(keys)
            entries = find_keys(index, keys)
            for error in self._faults_of(entries).values():
                raise error
            return entries

    def _faults_of(self, entries: EntryTable) -> dict[str, CheckpointError]:
        return find_faults(entries.slices, is_part=self.metadata.is_part)

    def _look_up_all(self, keys: Sequence[str]) -> EntryTable:
        table, faults = self.entries(), self.faults
        rows = table.slices.tensors.rows()
        for key in keys:
            if key in faults:
                raise faults[key].at()
            if key not in rows:
                self.index.find(key)  # raises
        return of_tensors(table, np.array([*map(rows.__getitem__, keys)], np.int64))

    def layout(self, key: str) -> "Layout | None":
        """Return the layout of a mesh whose devices hold the key's slices, one each.

        Otherwise as ``find``.

        Returns
        -------
        Layout or None
            The layout; None if no rule gives these slices. Of several rules that do, the one that
            gives the slices of most tensors.

        Notes
        -----
        A checkpoint does not record which device held a slice: devices are counted in the C order of
        the slices.
        """
        # Imported on use: commands that list tensors do not pay for it.
        from shardvar.verbs.holders import recognize, usual_rule

        self._rule = self._rule or usual_rule(self.listed().slices)
        slices = self._look_up(outline_of(self.index), [key]).slices
        shape = slices.tensors.shape(0)
        offset, extent = slices.offset[:, : len(shape)], slices.shape[:, : len(shape)]
        return recognize(shape, offset, extent, self._rule)

    def columns(self) -> dict[str, list[Any]]:
        """Return the list of tensors as columns: a name for each, and its cells.

        Returns
        -------
        dict
            ``key``, ``dtype``, ``encoding`` of quantised tensors, ``shape`` as a tuple, of their
            numbers, ``stored_shape``, ``nbytes`` and ``num_slices`` as they are stored, and ``fault``, the
            name of the error's class of a tensor that cannot be read. An unknown cell is None.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> import shardvar as sv
        >>> path = f"{tempfile.mkdtemp()}/model"
        >>> _ = sv.save(path, {"table": np.ones((13, 2)), "b": np.ones(3)}, partition={"table": 5})
        >>> with sv.open_checkpoint(path) as reader:
        ...     columns = reader.columns()
        >>> columns["key"], columns["shape"], columns["num_slices"]
        (['b', 'table'], [(3,), (13, 2)], [1, 5])
        """
        slices, faults, logical = self.listed().slices, self.listed_faults(), self.logical()
        encodings, kinds = self.encodings, logical.kinds if logical else {}
        facts, row_of = slices.tensors.facts(), slices.tensors.rows()
        nbytes = slices.nbytes_of_tensors().tolist()
        counts = np.bincount(slices.tensor, minlength=len(nbytes)).tolist()
        columns: dict[str, list[Any]] = {name: [] for name in _KINDS}
        for key in self:
            row, (dtype, shape) = row_of.get(key), facts.get(key, (None, None))
            known = (None, None) if row is None else (nbytes[row], counts[row])
            fault = type(faults[key]).__name__ if key in faults else None
            encoding, numbers = kinds.get(key, (encodings.get(key), shape))
            cells = (key, dtype, encoding, numbers, shape, *known, fault)
            for column, cell in zip(columns.values(), cells, strict=True):
                column.append(cell)
        return columns

    def to_pandas(self) -> Any:
        """Return ``columns`` as a ``pandas.DataFrame``."""
        import pandas as pd

        return pd.DataFrame(self.columns())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The columns for libraries of Arrow: ``pyarrow.table(reader)``, ``polars.from_arrow``."""
        from shardvar.verbs.arrow import arrow_stream

        return arrow_stream(self.columns(), _KINDS)

    def _repr_html_(self) -> str:
        """The first tensors as a table, for notebooks. Looks at all entries, at no payload."""
        from shardvar.verbs.reports import as_html

        entries, faults, num_files = self.listed(), self.listed_faults(), len(self.index.files)
        settings = len(settings_in(self.source, entries.slices.tensors.facts()))
        return as_html(self.path, self.format, entries, list(self), faults, num_files, settings)

    def drop_tables(self) -> None:
        """Drop the tables that grow with the number of tensors; they are read again on demand."""
        self._table = self._keys = self._faults = None

    @contextmanager
    def explain_policy(self) -> Iterator[None]:
        """Add the policy that wrote the checkpoint to the errors of reading it that are raised
        inside.

        Notes
        -----
        RFC 001: "The `description` is saved alongside the tensor data in the checkpoint, and can be
        used to assist with debugging during checkpoint restoration."
        """
        try:
            yield
        except (CheckpointError, UnknownKey) as error:
            if self.policy_sentence in error.remedy:  # told already, or there is none
                raise
            # No policy explains a key that is spelled almost like another.
            if isinstance(error, UnknownKey) and error.remedy.startswith("Did you mean "):
                raise
            remedy = f"{error.remedy} {self.policy_sentence}".lstrip()
            raise type(error)(error.cause, remedy) from error

    @property
    def policy_sentence(self) -> str:
        """The policy that wrote the checkpoint, for errors; empty where it is not known."""
        description = self.metadata.description
        return f"The checkpoint was written with the policy {description!r}." if description else ""

    def close(self) -> None:
        """Give the files back."""
        self.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_found(found: Location, *, dequantize: bool | str) -> Reader:
    source = found.open(dequantize=dequantize)
    return Reader(found.path, found.format.name, source, _storage=found.storage)


_KINDS = {
    "key": "text",
    "dtype": "text",
    "encoding": "text",
    "shape": "ints",
    "stored_shape": "ints",
    "nbytes": "int",
    "num_slices": "int",
    "fault": "text",
}
"""The columns of the list of tensors, and the kinds of their cells."""


def has_settings(source: Source) -> bool:
    """Settings are listed as strings without a shape."""
    # No keys and no format are asked about, so that nothing is read.
    return source.objects((), "") is not None


def settings_in(source: Source, facts: Mapping[str, tuple[str, Shape]]) -> set[str]:
    found = facts.items() if has_settings(source) else ()
    return {key for key, fact in found if fact == (STRING, ())}


_ARRAY = b'{"numpy.ndarray"'
"""The beginning of the encoding of an array of NumPy."""


def find_objects(reader: Reader, form: Format, keys: Collection[str]) -> Mapping[str, bytes]:
    """The objects that ``form`` holds; others become string tensors, or are refused."""
    from shardvar.formats.leaves import is_in_generator  # of a write

    if not form.capabilities.holds_objects:
        return {}
    # An object of a class that is not read may be carried. Any other fault is one of the checkpoint.
    faults = reader.faults.items()
    damaged = {key for key, fault in faults if not isinstance(fault, UnsupportedError)}
    found = reader.source.objects({*keys} - damaged, form.name) or {}
    names = dict.fromkeys(found, "")
    # A distributed checkpoint of PyTorch does not tell arrays from its other objects. In a pickle they
    # stay arrays.
    for key, encoding in found.items() if form.name not in ("torch", "pt") else ():
        if encoding.startswith(_ARRAY) and not is_in_generator(key, names):
            raise UnsupportedError(
                f"{key!r} is an array of NumPy, which {reader.path} keeps as an object: it would "
                "become a text.",
                "Save it as a tensor, or leave it out with exclude= (--exclude).",
            )
    return found


def first_fault(reader: Reader) -> ShardvarError | None:
    """Return the first fault of a key, or else of a file; None if all is whole by the index."""
    for faults in (reader.faults, reader.source.file_faults()):
        for fault in faults.values():
            return fault
    return None


def warn_of_files(reader: Reader, told: Collection[str | None]) -> None:
    """Log the faults of files that ``told`` does not have."""
    for name, fault in reader.source.file_faults().items():
        if name not in told:
            log_warning(f"{fault.cause} Tensors that are whole in it are read.")
