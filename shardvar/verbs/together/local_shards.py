"""Local shards: the regions of tensors that one of several processes holds, as a source.

A tensor that is cut over processes is in none of them whole. Each gives its region and the full
shape.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from shardvar.engine.arrays import ArraySource, LazyPayload, array_source
from shardvar.errors import ArgumentError, InconsistentTensor, LayoutError
from shardvar.layout.dtypes import code
from shardvar.layout.region import Region, read_integers, read_shape
from shardvar.planning.slices import SliceTable, TensorTable, pad
from shardvar.verbs.arguments import check_mapping, stored_dtype
from shardvar.verbs.lazy import as_values
from shardvar.verbs.save import check_keys


@dataclass(frozen=True, slots=True, eq=False)
class LocalShard:
    """A region of a tensor that this process holds, with its values.

    Parameters
    ----------
    array : array_like
        The values of the region: anything that ``sv.save`` takes.
    offset : iterable of int
        The first index of the region along each axis of the whole tensor.
    full_shape : iterable of int
        The shape of the whole tensor.

    Raises
    ------
    LayoutError
        If the region reaches out of the whole tensor.

    Examples
    --------
    >>> shard = LocalShard(np.ones((5, 4), np.float32), offset=(8, 0), full_shape=(13, 4))
    >>> str(shard.region)
    '[8:13, 0:4]'
    """

    array: npt.ArrayLike
    offset: tuple[int, ...]
    full_shape: tuple[int, ...]
    region: Region = field(init=False)
    """The region that the array holds, in the coordinates of the whole tensor."""

    def __init__(
        self,
        array: npt.ArrayLike,
        offset: Iterable[SupportsIndex],
        full_shape: Iterable[SupportsIndex],
    ) -> None:
        # A tensor on a device is not copied to learn its shape.
        shape = getattr(array, "shape", None)
        region = Region(
            read_integers(offset, "offset"), np.shape(array) if shape is None else tuple(shape)
        )
        full = read_shape(full_shape)
        outside = len(full) != region.rank or any(
            stop > extent for stop, extent in zip(region.stop, full, strict=True)
        )
        if outside:
            cause = (
                f"An array of shape {region.shape} at offset {region.offset} is not within the "
                f"full shape {full}."
            )
            raise LayoutError(
                cause, "Give the offset in the whole tensor, and the shape of the whole tensor."
            )
        for name, value in (
            ("array", array),
            ("offset", region.offset),
            ("full_shape", full),
            ("region", region),
        ):
            object.__setattr__(self, name, value)


LocalTensors = Mapping[str, npt.ArrayLike | LocalShard | Iterable[LocalShard]]
"""The tensors that one process holds: an array is a whole tensor, a local shard or several are
regions of one."""


def source_of_shards(tensors: LocalTensors) -> ArraySource:
    """Return what a process holds as a source, one entry for each local shard.

    ``InconsistentTensor`` if the shards of one key disagree on dtype or full shape.
    """
    check_mapping(tensors, "keys to arrays or local shards")
    check_keys(list(tensors))
    rows: list[tuple[str, str, tuple[int, ...]]] = []
    which: list[int] = []
    regions: list[Region] = []
    arrays: list[npt.NDArray[Any] | LazyPayload] = []
    for key, value in tensors.items():
        for shard in _shards_of(key, value):
            array = as_values(key, shard.array)
            row = key, stored_dtype(key, array), shard.full_shape
            if not rows or rows[-1][0] != key:
                rows.append(row)
            elif rows[-1] != row:
                cause = (
                    f"The local shards of {key!r} are {rows[-1][1]}{list(rows[-1][2])} and "
                    f"{row[1]}{list(row[2])}."
                )
                raise InconsistentTensor(cause, "Give one dtype and one full shape.")
            which.append(len(rows) - 1)
            regions.append(shard.region)
            arrays.append(array)
    return array_source(_table(rows, which, regions), arrays)


def _table(
    rows: list[tuple[str, str, tuple[int, ...]]], which: list[int], regions: list[Region]
) -> SliceTable:
    """The slices of the regions, [m] each of the tensor ``which``."""
    keys = [key for key, _, _ in rows]
    codes = np.array([code(dtype) for _, dtype, _ in rows], np.int64)
    tensors = TensorTable(keys, codes, *pad([shape for _, _, shape in rows], fill=1))
    offset = pad([region.offset for region in regions], fill=0)[1]
    shape = pad([region.shape for region in regions], fill=1)[1]
    return SliceTable.of(tensors, np.array(which, np.int64), offset, shape)


def _shards_of(key: str, value: Any) -> Iterator[LocalShard]:
    """The local shards that are given for one key; an array is one that holds the whole tensor."""
    if isinstance(value, LocalShard):
        yield value
        return
    # A process that holds no region of a tensor may give an empty list; it is not an array without
    # elements.
    if isinstance(value, list | tuple) and (
        not value or any(isinstance(each, LocalShard) for each in value)
    ):
        for each in value:
            if not isinstance(each, LocalShard):
                cause = f"{key!r} has a {type(each).__name__} among its local shards."
                raise ArgumentError(cause, "Give only local shards, each an sv.LocalShard.")
            yield each
        return
    array: Any = as_values(key, value)
    yield LocalShard(array, (0,) * len(array.shape), array.shape)
