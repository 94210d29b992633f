"""Sharding callbacks and their arguments: ``ShardingCallback``, ``ShardableTensor`` and
``LazySlice``.

A callback gets a ``ShardableTensor`` for each slice: its metadata, and as its values a
``LazySlice``. R-POLICY-19 (RFC 001): "the callback really only works with the tensor metadata (it
doesn't actually move around GBs of data when sharding)". So a lazy slice can be cut by any basic
index without being read; values are read by ``np.asarray``, by arithmetic, and when they are saved.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from shardvar.engine.read import read_region
from shardvar.errors import ArgumentError
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import NAMES, Array, Ints, Shape, is_opaque, is_whole, numpy_dtype
from shardvar.layout.indexing import select_basic, slice_of, span_of
from shardvar.layout.region import Region
from shardvar.planning.index import EntryTable
from shardvar.planning.policies import ColumnarPolicy, TensorSliceDict
from shardvar.planning.policies.policy import slice_spec
from shardvar.planning.slices import LOCAL_DEVICE, SliceTable, task_of
from shardvar.records import dataclass, field
from shardvar.verbs.reader import LazyArray


class ShardableTensor(NamedTuple):
    """R-POLICY-11 (RFC 001): "all the information about a tensor that a user will need to perform
    custom sharding".

    It is a named tuple rather than a dataclass because 100,000 of them are made in a tenth of a
    second; both are frozen. Two are equal only if they are the same object: their tensors are
    neither compared nor read.
    """

    tensor: Any
    """The values: a ``LazySlice``, which reads them only when they are needed; a callback may put
    any array instead."""
    dtype: np.dtype[Any]
    """The dtype of the elements; ``object`` for strings."""
    device: str
    """The full name of the device that holds it in memory."""
    name: str
    """The name of its variable, or the key if there is none."""
    shape: tuple[int, ...]
    """The shape of the slice, not of the whole tensor."""
    slice_spec: str
    """The part of the tensor as TensorFlow writes it: ``"13 4 3,3:0,4"``; empty for all."""
    checkpoint_key: str
    """The key in the checkpoint; slices of one tensor share it."""
    trackable: Any = None
    """The object that it is saved for; None for arrays and for the graph of objects."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)

    @property
    def task(self) -> str:
        """The task of the device; tensors of different tasks may not share a file."""
        return task_of(self.device or LOCAL_DEVICE)


Axis = tuple[range | int, bool]
"""Positions in the held slice (one, if an integer chose it), and True if ``None`` made the axis."""


class LazySlice(LazyArray, NDArrayOperatorsMixin):
    """A tensor whose values are read when they are needed: by ``np.asarray``, by arithmetic, by
    being saved.

    NumPy's basic indices give another such tensor and read nothing. Operators and functions of
    NumPy read it and give an array.
    """

    __slots__ = ("_axes", "_holder", "_row")

    def __init__(
        self, holder: "SliceSource", row: int, axes: tuple[Axis, ...] | None = None
    ) -> None:
        self._holder = holder
        self._row = row
        self._axes = axes

    @property
    def row(self) -> int:
        """The row of the held slice that it is a part of."""
        return self._row

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements; ``object`` for strings."""
        return _dtype_of(self._holder.slices.dtype(self._row))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        if self._axes is None:
            return self._holder.slices.region(self._row).shape
        return tuple(len(indices) for indices, _ in self._axes if isinstance(indices, range))

    @property
    def nbytes(self) -> int:
        """The bytes of its payload; a part of strings is read to know them."""
        if self._axes is None:
            return int(self._holder.slices.nbytes[self._row])
        if self.dtype == np.object_:
            return sum(map(len, np.asarray(self).flat))
        return self.size * self.dtype.itemsize

    @property
    def name(self) -> str:
        """The name of its variable, or the key if there is none."""
        return self._holder.name_of(self._holder.slices.key(self._row))

    @property
    def device(self) -> str:
        """The full name of the device that holds it in memory."""
        return self._holder.slices.device_of(self._row)

    @property
    def region(self) -> Region | None:
        """The part of the tensor; None if it has steps or other axes, so is not a region."""
        held = self._holder.slices.region(self._row)
        if self._axes is None:
            return held
        starts = [
            axis.start
            for axis, new in self._axes
            if isinstance(axis, range) and axis.step == 1 and not new
        ]
        if len(starts) < len(self._axes):
            return None
        return Region((a + b for a, b in zip(held.offset, starts, strict=True)), self.shape)

    def __getitem__(self, index: Any) -> "LazySlice":
        before = (
            self._axes
            if self._axes is not None
            else [(range(extent), False) for extent in self.shape]
        )
        # Each axis that is left takes the next selection; axes that an integer dropped stay
        # dropped. Example: of the axes (range(2, 9), False), (3, False), the index [4::-2, None]
        # makes (range(6, 1, -2), False), (3, False) and then the new axis (range(1), True).
        rest = iter(select_basic(index, self.shape))
        axes: list[Axis] = []
        for indices, new in before:
            if isinstance(indices, int):
                axes.append((indices, new))
                continue
            while (along := next(rest)) is None:
                axes.append((range(1), True))
            picked = indices[along] if isinstance(along, int) else indices[slice_of(along)]
            if isinstance(picked, range) or not new:  # an integer drops a new axis without a trace
                axes.append((picked, new))
        axes.extend((range(1), True) for _ in rest)
        return LazySlice(self._holder, self._row, tuple(axes))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if any(isinstance(each, LazySlice) for each in options.get("out", ())):
            # The result would have to be written into a lazy slice, which has no memory.
            return NotImplemented
        arrays = [np.asarray(each) if isinstance(each, LazySlice) else each for each in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def numpy(self) -> Array:
        """The values, as a fresh array."""
        held = self._holder.slices.region(self._row)
        if self._axes is None:
            return self._holder.read(self._row, held)
        spans = [span_of(indices) for indices, new in self._axes if not new]
        offset = [start + low for start, (low, _, _) in zip(held.offset, spans, strict=True)]
        array = self._holder.read(self._row, Region(offset, [count for _, count, _ in spans]))
        picked = array[(*(pick for _, _, pick in spans), ...)]
        # The reshape adds the axes that None made; they have the length 1.
        return picked.reshape(self.shape) if self.size else np.empty(self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"<LazySlice of {self.name!r}: {self.dtype}{list(self.shape)}>"


def row_of(value: Any, holder: "SliceSource") -> int:
    """The row of the held slice that the value is, all of it; -1 for anything else."""
    if type(value) is LazySlice and value._axes is None and value._holder is holder:
        return value._row
    return -1


def is_held_by(value: Any, holder: "SliceSource") -> bool:
    return isinstance(value, LazySlice) and value._holder is holder


class ShardingCallback(ABC):
    """R-POLICY-18 (RFC 001): "Checkpoint sharding callback function, along with a text
    description."

    A base to derive from; any callable with a text ``description`` also works. Arguments of the
    callback are given to its constructor (RFC 001, kwargs). Callbacks of one class whose fields are
    equal are equal.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> import shardvar as sv
    >>> class OneFileEach(sv.ShardingCallback):
    ...     description = "A file for each tensor."
    ...
    ...     def __call__(self, shardable_tensors):
    ...         return [{each.checkpoint_key: {each.slice_spec: each.tensor}} for each in shardable_tensors]
    >>> path = os.path.join(tempfile.mkdtemp(), "model")
    >>> sv.save(path, {"a": np.zeros(2), "b": np.ones(3)}, policy=OneFileEach()).file_nbytes
    (16, 24)
    """

    @property
    @abstractmethod
    def description(self) -> str:
        """One sentence about the callback, stored in the checkpoint and repeated in errors."""

    @abstractmethod
    def __call__(
        self, shardable_tensors: Sequence[ShardableTensor], /
    ) -> Sequence[TensorSliceDict]:
        """Return for each file a mapping from checkpoint keys to mappings from slice specs to
        tensors.

        Every element of every tensor must be in one of them, with its dtype and in its shape;
        tensors may be sliced differently, and values may change. A mapping without tensors makes no
        file. The callback is called once for each save, before anything is written.
        """

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        fields, others = _fields(self), _fields(other)
        return fields.keys() == others.keys() and all(
            np.array_equal(fields[name], others[name]) for name in fields
        )

    def __hash__(self) -> int:
        # Fields that cannot be hashed, such as lists and arrays, still tell unequal callbacks apart
        # in ``__eq__``.
        hashes = set[tuple[str, int]]()
        for name, value in _fields(self).items():
            with suppress(TypeError):
                hashes.add((name, hash(value)))
        return hash((type(self), frozenset(hashes)))


def _fields(callback: object) -> dict[str, Any]:
    slots = [name for kind in type(callback).__mro__ for name in vars(kind).get("__slots__", ())]
    return {
        **getattr(callback, "__dict__", {}),
        **{name: getattr(callback, name, None) for name in slots},
    }


ShardingCallback.register(ColumnarPolicy)


@dataclass(slots=True, eq=False)
class SliceSource:
    slices: SliceTable
    entries: EntryTable
    """The entries of the source for the same tensors, perhaps in other slices."""
    source: Source | None
    """The source that reads them; None if a plan is made from metadata only."""
    trackables: Mapping[str, Any]
    """The object that each key is saved for, if there is one."""
    _groups: tuple[Ints, Ints] | None = field(default=None, init=False)

    def read(self, row: int, region: Region) -> Array:
        """The verified values of a part of the tensor; strings are read whole, and cut then."""
        if self.source is None:
            raise ArgumentError(
                f"{self.slices.key(row)!r} has no values in a plan.",
                "Decide from shapes, dtypes and sizes.",
            )
        if self._groups is None:
            self._groups = self.entries.slices.by_tensor()
        order, bounds = self._groups
        tensor = int(self.slices.tensor[row])
        rows = order[bounds[tensor] : bounds[tensor + 1]]  # the entries of one key
        if not is_whole(self.slices.dtype(row)):
            return read_region(self.source, self.entries, rows, region)
        whole = Region.whole(self.slices.tensors.shape(tensor))
        strings = read_region(self.source, self.entries, rows, whole)
        return strings[region.slices] if region.rank else strings

    def shardable_tensors(self) -> list[ShardableTensor]:
        slices, tensors = self.slices, self.slices.tensors
        rows = slices.tensor.tolist()
        keys = [tensors.keys[tensor] for tensor in rows]
        dtypes = [_dtype_of(NAMES[number]) for number in range(len(NAMES))]
        known: dict[Shape, Shape] = {}  # most shapes come again and again
        shapes = [known.setdefault(shape, shape) for shape in map(tuple, slices.shape.tolist())]
        for row in np.flatnonzero(tensors.ranks[slices.tensor] < slices.shape.shape[1]).tolist():
            shapes[row] = shapes[row][: tensors.ranks[rows[row]]]  # without the padding
        specs = [""] * len(rows)
        for row in np.flatnonzero(~slices.is_whole()).tolist():
            specs[row] = slice_spec(tensors.shape(rows[row]), slices.region(row))
        count = len(rows)
        places = np.zeros(count, dtype=np.int64) if slices.device is None else slices.device
        devices = slices.devices or (LOCAL_DEVICE,)
        # Columns are zipped by map, without a loop in Python: there may be 100,000 slices.
        return list(
            map(
                ShardableTensor,
                [LazySlice(self, row) for row in range(count)],
                map(dtypes.__getitem__, slices.codes().tolist()),
                map(devices.__getitem__, places.tolist()),
                map(self.name_of, keys) if self.trackables else keys,
                shapes,
                specs,
                keys,
                map(self.trackables.get, keys) if self.trackables else [None] * count,
            )
        )

    def name_of(self, key: str) -> str:
        name = getattr(self.trackables.get(key), "name", None)
        return name if isinstance(name, str) else key


def _dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name; void if NumPy has no such type, whose values cannot be read."""
    return np.dtype("V") if is_opaque(name) else numpy_dtype(name)
