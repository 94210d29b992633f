"""SliceSource: the slices of a save or reshard as a callback gets them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardvar.engine.read import read_region
from shardvar.errors import ArgumentError
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import NAMES, Array, Ints, is_opaque, is_whole, numpy_dtype
from shardvar.layout.region import Region
from shardvar.planning.index import EntryTable
from shardvar.planning.policies.policy import slice_spec
from shardvar.planning.slices import LOCAL_DEVICE, SliceTable
from shardvar.verbs.callbacks.shardable_tensor import LazySlice, ShardableTensor


@dataclass(slots=True, eq=False)
class SliceSource:
    """The slices that a callback gets, and the source of their values. It is the ``Holder`` of
    their lazy slices."""

    slices: SliceTable
    """The slices, row by row."""
    entries: EntryTable
    """The entries of the source for the same tensors, perhaps in other slices."""
    source: Source | None
    """The source that reads them; None if a plan is made from metadata only."""
    trackables: Mapping[str, Any]
    """The object that each key is saved for, if there is one."""
    _groups: tuple[Ints, Ints] | None = field(default=None, init=False)

    def dtype(self, row: int) -> np.dtype[Any]:
        """The dtype of the elements."""
        return _dtype_of(self.slices.dtype(row))

    def region(self, row: int) -> Region:
        """The part of the whole tensor."""
        return self.slices.region(row)

    def nbytes(self, row: int) -> int:
        """The bytes of the payload."""
        return int(self.slices.nbytes[row])

    def name(self, row: int) -> str:
        """The name of the variable, or the key."""
        return self._name(self.slices.key(row))

    def device(self, row: int) -> str:
        """The full name of the device."""
        return self.slices.device_of(row)

    def read(self, row: int, region: Region) -> Array:
        """The verified values of a part of the tensor; strings are read whole, and cut then."""
        if self.source is None:
            raise ArgumentError(
                f"{self.slices.key(row)!r} has no values in a plan.",
                "Decide from shapes, dtypes and sizes.",
            )
        if is_whole(self.slices.dtype(row)):
            whole = Region.whole(self.slices.tensors.shape(int(self.slices.tensor[row])))
            strings = self._read(self.source, row, whole)
            return strings[region.slices] if region.rank else strings
        return self._read(self.source, row, region)

    def _read(self, source: Source, row: int, region: Region) -> Array:
        """Read from the entries of one key; the entries of other keys are not looked at."""
        if self._groups is None:
            self._groups = self.entries.slices.by_tensor()
        order, bounds = self._groups
        tensor = int(self.slices.tensor[row])
        return read_region(source, self.entries, order[bounds[tensor] : bounds[tensor + 1]], region)

    def shardable_tensors(self) -> list[ShardableTensor]:
        """The slices as a callback gets them, in order."""
        slices, tensors = self.slices, self.slices.tensors
        rows = slices.tensor.tolist()
        keys = [tensors.keys[tensor] for tensor in rows]
        dtypes = [_dtype_of(NAMES[number]) for number in range(len(NAMES))]
        known: dict[tuple[int, ...], tuple[int, ...]] = {}  # most shapes come again and again
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
                map(self._name, keys) if self.trackables else keys,
                shapes,
                specs,
                keys,
                map(self.trackables.get, keys) if self.trackables else [None] * count,
            )
        )

    def _name(self, key: str) -> str:
        name = getattr(self.trackables.get(key), "name", None)
        return name if isinstance(name, str) else key


def _dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name; void if NumPy has no such type, whose values cannot be read."""
    return np.dtype("V") if is_opaque(name) else numpy_dtype(name)
