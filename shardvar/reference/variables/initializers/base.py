"""Initializers: frozen values that make the elements of a variable, whole or part by part.

R-INIT-4 (RFC 000): 'we propose adding a new "partition" parameter to all initializers:
__call__(self, shape, dtype=None, partition=None).' "partition.shape is the shape of the partition,
shape is the full combined shape".

A subclass writes ``part``: the elements of one region of a tensor of the full shape. Everything
else follows from it: the whole is the part that covers everything, and a ``layout`` (RFC 000's map
of devices) asks for one part a device. Each call makes a new array.

``seed_mode`` says what a seed means for one part of a variable:

    "rfc"       the default, RFC 000's rule on TensorFlow's stateless stream: each shard is drawn
                separately, from the seed plus the shard's first row. Whole variables equal
                TensorFlow's; shards depend on the partition.
    "global"    draws by index: an element depends on the seed and its place in the full tensor. So
                the shards of any partition, put together, are bit for bit the whole variable.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from operator import index
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar, overload

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError
from shardvar.layout.dtypes import STRING, Array, dtype_name
from shardvar.layout.region import Region, read_shape
from shardvar.reference import random
from shardvar.reference.devices import Device, device_scope
from shardvar.reference.variables.values import as_dtype

SeedMode = Literal["rfc", "global"]
Distribution = Literal["uniform", "normal", "truncated_normal"]
_Key = TypeVar("_Key", str, Device)

_STATELESS: dict[Distribution, Callable[..., Array]] = {
    "uniform": random.stateless_uniform,
    "normal": random.stateless_normal,
    "truncated_normal": random.stateless_truncated_normal,
}
_INDEXED: dict[Distribution, Callable[..., Array]] = {
    "uniform": random.indexed_uniform,
    "normal": random.indexed_normal,
    "truncated_normal": random.indexed_truncated_normal,
}


class InitialPart(NamedTuple):
    """RFC 000's partition, as every initializer gets it: ``shape, offset = partition``.

    R-INIT-8 (RFC 000): '"partition" is a namedtuple of two fields: shape and offset.'
    "partition.offset is a list of integers specifying offset of the partition with respect to the
    full value for each dimension."
    """

    shape: tuple[int, ...]
    """The shape of the part."""
    offset: list[int]
    """The part's first index along each axis of the full value."""

    @classmethod
    def of(cls, region: Region) -> Self:
        """Return the partition that a region is."""
        return cls(region.shape, list(region.offset))

    @property
    def slices(self) -> tuple[slice, ...]:
        """The NumPy index that selects the part from the full value."""
        return Region(self.offset, self.shape).slices


class PartitionLike(Protocol):
    """The fields of RFC 000's partition, as an ``InitialPart`` and a ``Region`` have them."""

    @property
    def shape(self) -> Sequence[int]:
        """The shape of the part."""

    @property
    def offset(self) -> Sequence[int]:
        """The part's first index along each axis of the full value."""


class Initializer(ABC):
    """A callable that returns the initial value of a variable, or of one part of it.

    ``init(shape, dtype=None, partition=None, *, layout=None)`` returns a new array of the full
    shape, or with a `partition`, a ``Region`` for example, of that part. A `layout` maps devices to
    partitions, and the answer maps them to arrays. The default dtype is float32.

    Law: ``init(shape, dtype, partition=p)`` has the shape ``p.shape``.
    """

    __slots__ = ()
    makes_new_arrays: ClassVar[bool] = True
    """True if every call returns an array to which nothing else refers, so that a buffer may take
    it without a copy."""

    @overload
    def __call__(
        self,
        shape: Sequence[int],
        dtype: Any = None,
        partition: PartitionLike | None = None,
        *,
        layout: None = None,
    ) -> Array: ...
    @overload
    def __call__(
        self,
        shape: Sequence[int],
        dtype: Any = None,
        partition: None = None,
        *,
        layout: Mapping[_Key, PartitionLike],
    ) -> dict[_Key, Array]: ...

    def __call__(
        self,
        shape: Sequence[int],
        dtype: Any = None,
        partition: PartitionLike | None = None,
        *,
        layout: Mapping[Any, PartitionLike] | None = None,
    ) -> Any:
        """Return the value of a partition, by default of everything; with a layout, the values by
        device.

        Parameters
        ----------
        shape : sequence of int
            The full shape, in every case.
        dtype : dtype_like, optional
            The dtype of the elements, by default float32.
        partition : Region or InitialPart, optional
            The part to make, an object with ``offset`` and ``shape``.
        layout : mapping, optional
            The partition of each device; instead of `partition`.

        Returns
        -------
        ndarray or dict of ndarray
            A new array of the partition's shape; with a `layout`, one for each of its keys.

        Raises
        ------
        ArgumentError
            If a partition and a layout are given, or these values have none of the dtype.
        ArgumentTypeError
            If `partition` has no offset and shape, or `shape` is not a sequence of integers.
        LayoutError
            If a partition reaches out of the shape.
        """
        # Check everything first: drawing a part of a large table takes a while.
        extents = read_shape(shape)
        kind = self.read_dtype(dtype)
        if layout is None:
            return self.part(extents, kind, read_partition(extents, partition))
        if partition is not None:
            raise ArgumentError(
                "An initializer was given a partition and a layout.", "Give one of them."
            )
        return self.joined()._parts(extents, kind, layout)

    @abstractmethod
    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
        """Return the elements of a region of a tensor, and compute only these.

        Parameters
        ----------
        shape : tuple of int
            The full shape.
        dtype : numpy.dtype
            The dtype, as ``read_dtype`` returns it.
        region : Region
            The region to make.

        Returns
        -------
        ndarray
            A new array of the region's shape.

        Raises
        ------
        ArgumentError
            If the initializer has no value of this shape or dtype.
        """

    def joined(self) -> Self:
        """Return an initializer whose parts, made by separate calls, belong to one value.

        Returns
        -------
        Initializer
            The initializer itself if its parts belong together anyway.
        """
        return self

    def read_dtype(self, dtype: Any) -> np.dtype[Any]:
        """Return the dtype to make.

        Parameters
        ----------
        dtype : dtype_like or None
            The dtype that is asked for; None for the default.

        Returns
        -------
        numpy.dtype
            The dtype, by default float32.

        Raises
        ------
        ArgumentError
            If these values have none of that dtype.
        """
        kind = np.dtype(np.float32) if dtype is None else as_dtype(dtype)
        if dtype_name(kind) == STRING:
            raise ArgumentError(
                f"{type(self).__name__} makes numbers, and strings were asked for.",
                "Give an array.",
            )
        return kind

    def get_config(self) -> dict[str, Any]:
        """Return the arguments that make an equal initializer.

        Returns
        -------
        dict
            Plain data, except for arrays among them.
        """
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return the initializer of a config.

        Parameters
        ----------
        config : mapping
            The arguments of the class, as ``get_config`` returns them.

        Returns
        -------
        Initializer
            An initializer equal to the one that gave the config.
        """
        return cls(**config)

    def _parts(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], layout: Mapping[Any, PartitionLike]
    ) -> dict[Any, Array]:
        # R-INIT-7 (RFC 000): "Layout is a map from device string to the shard assigned to that
        # device, represented by a namedtuple of two fields: shape and offset." "__call__ returns a
        # map from device string to the initial value on that device." Each part is drawn on its
        # device, so its bytes count there and nothing crosses.
        values = {}
        for device, partition in layout.items():
            with device_scope(device) if isinstance(device, Device) else nullcontext():
                values[device] = self.part(shape, dtype, read_partition(shape, partition))
        return values


class SeededInitializer(Initializer):
    """An initializer that draws. Without a seed, every call draws other values."""

    __slots__ = ()
    seed: int | None
    seed_mode: SeedMode

    def __post_init__(self) -> None:
        if self.seed is not None:
            check_seed(self.seed)
        if self.seed_mode not in ("rfc", "global"):
            raise ArgumentError(f"Invalid seed_mode {self.seed_mode!r}.", "Give 'rfc' or 'global'.")

    def draw(
        self,
        distribution: Distribution,
        limits: tuple[float, float],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        region: Region,
    ) -> Array:
        """Return the region's elements of a tensor of this shape and distribution.

        ``limits`` belong to a uniform distribution, mean and standard deviation to a normal one.
        """
        # The streams take seeds of 64 bits, so -1 means 2**64 - 1.
        seed = fresh_seed() if self.seed is None else self.seed
        if self.seed_mode == "global":
            return _INDEXED[distribution](shape, seed % 2**64, *limits, dtype, region)
        if self.seed is not None:
            seed = seed_of_part(self.seed, shape, region)
        return _STATELESS[distribution](region.shape, [seed % 2**64, 0], *limits, dtype)


def joined(initial_value: Any) -> Any:
    """Return an initial value with its initializer bound to what its parts must have in common;
    looks inside partials.

    The creator of a sharded variable calls this once, and then asks the result for every part.

    Parameters
    ----------
    initial_value : array_like or callable
        The initial value of a variable.

    Returns
    -------
    array_like or callable
        ``initial_value`` itself unless it is an initializer, or a partial of one, whose parts need
        something in common.
    """
    if isinstance(initial_value, partial):
        return partial(joined(initial_value.func), *initial_value.args, **initial_value.keywords)
    return initial_value.joined() if isinstance(initial_value, Initializer) else initial_value


def read_partition(shape: tuple[int, ...], partition: PartitionLike | None) -> Region:
    """Return the region that a partition means, the whole by default.

    >>> read_partition((13, 4), Region((9, 0), (2, 4)))
    Region(offset=(9, 0), shape=(2, 4))
    """
    whole = Region.whole(shape)
    if partition is None:
        return whole
    if not (hasattr(partition, "offset") and hasattr(partition, "shape")):
        raise ArgumentTypeError(
            f"Invalid partition {partition!r}.", "Give a Region: it has an offset and a shape."
        )
    region = Region(partition.offset, partition.shape)
    if region.rank != whole.rank or not whole.covers(region):
        raise LayoutError(
            f"The partition {region} reaches out of the shape {shape}.",
            "Give a part of that shape.",
        )
    return region


def seed_of_part(seed: int, shape: tuple[int, ...], region: Region) -> int:
    """Return the seed of a shard.

    R-INIT-5 (RFC 000): "the seed must be changed deterministically for each shard, otherwise each
    shard will use the same values. This can be achieved by adding offset to the seed." "seed =
    self.seed + partition.offset[0] # assume partition on 0 axis". TensorFlow adds nothing, and its
    shards are equal (deviation D-INIT-1).

    >>> seed_of_part(7, (13, 4), Region((9, 0), (2, 4)))
    16
    """
    # Two parts side by side, [0:4, 0:2] and [0:4, 2:4], have the same first row, and would have the
    # same seed.
    if region.shape[1:] != shape[1:]:
        raise ArgumentError(
            f"The part {region} of the shape {shape} is cut along another axis than the first, "
            "where RFC 000's seeds are equal for different parts.",
            'Use seed_mode="global", whose values do not depend on the partition.',
        )
    return seed + (region.offset[0] if region.offset else 0)


def check_seed(seed: Any) -> None:
    """Raise an error unless the seed is an integer of at most 64 bits."""
    try:
        value = index(seed)
    except TypeError:
        raise ArgumentTypeError(f"Invalid seed {seed!r}.", "Give an integer, or None.") from None
    if not -(2**63) <= value < 2**64:
        raise ArgumentError(f"The seed {value} has more than 64 bits.", "Give a smaller one.")


def fresh_seed() -> int:
    """Return 64 bits from the operating system's entropy.

    >>> fresh_seed() != fresh_seed()
    True
    """
    return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
