"""The tensors of one save or reshard, as callbacks are given them: in memory or in a checkpoint, it is all the same."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shardvar.checkpoint.callbacks.lazy_slice import LazySlice
from shardvar.checkpoint.callbacks.shardable_tensor import ShardableTensor
from shardvar.engine.read import read_region
from shardvar.errors import ArgumentError
from shardvar.formats.protocol import Source
from shardvar.layout.dtypes import NAMES, Ints, is_opaque, is_whole, numpy_dtype
from shardvar.layout.region import Region
from shardvar.planning.index import EntryTable
from shardvar.planning.policies.columnar import slice_spec
from shardvar.planning.slices import LOCAL_DEVICE, SliceTable


@dataclass(slots=True, eq=False)
class Held:
    """Slices that a callback is given, and where their values come from."""

    slices: SliceTable
    """The slices, row by row."""
    entries: EntryTable
    """What the source holds of the same tensors, perhaps in other slices."""
    source: Source | None
    """What reads them; None where a plan is made of metadata alone."""
    trackables: Mapping[str, Any]
    """The object that each key is saved for, where there is one."""
    _bounds: Ints | None = field(default=None, init=False)
    _order: Ints | None = field(default=None, init=False)

    def dtype(self, row: int) -> np.dtype[Any]:
        """The dtype of the elements."""
        return dtype_of(self.slices.dtype(row))

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

    def read(self, row: int, region: Region) -> npt.NDArray[Any]:
        """The values of a part of the whole tensor, verified; strings are read whole, and cut then."""
        if self.source is None:
            raise ArgumentError(f"{self.slices.key(row)!r} has no values: there is a plan alone.")
        if is_whole(self.slices.dtype(row)):
            whole = Region.whole(self.slices.tensors.shape(int(self.slices.tensor[row])))
            strings = self._read(self.source, row, whole)
            return strings[region.slices] if region.rank else strings
        return self._read(self.source, row, region)

    def _read(self, source: Source, row: int, region: Region) -> npt.NDArray[Any]:
        """From the entries of the one key; the others' are not looked at."""
        return read_region(source, self.entries, self._rows_of(int(self.slices.tensor[row])), region)

    def _rows_of(self, tensor: int) -> Ints:
        """The rows of ``entries`` that belong to one tensor; both tables are over the same tensors."""
        if self._order is None or self._bounds is None:
            column = self.entries.slices.tensor
            self._order = np.argsort(column, kind="stable")
            self._bounds = np.searchsorted(column[self._order], np.arange(len(self.entries.slices.tensors) + 1))
        return np.asarray(self._order[self._bounds[tensor] : self._bounds[tensor + 1]])

    def shardable_tensors(self) -> list[ShardableTensor]:
        """The slices as a callback is given them, in order."""
        slices, tensors = self.slices, self.slices.tensors
        rows = slices.tensor.tolist()
        keys = [tensors.keys[tensor] for tensor in rows]
        dtypes = [dtype_of(NAMES[number]) for number in range(len(NAMES))]
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


def dtype_of(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name; void where NumPy has no such type, whose values nobody can read."""
    return np.dtype("V") if is_opaque(name) else numpy_dtype(name)
