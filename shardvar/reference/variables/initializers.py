"""Initial values, whole or part by part: ``init(shape, dtype=None, partition=None)``.

R-INIT-4 (RFC 000): 'we propose adding a new "partition" parameter to all initializers:
__call__(self, shape, dtype=None, partition=None).' "partition.shape is the shape of the partition,
shape is the full combined shape".

A subclass writes ``part``: the elements of one region of a tensor of the full shape. Everything
else follows from it: the whole is the part that covers everything, and a ``layout`` (RFC 000's map
of devices) asks for one part a device. Each call makes a new array.

``seed_mode`` is the meaning of a seed for one part of a variable:

    "rfc"       the default, RFC 000's rule on TensorFlow's stateless stream: each shard is drawn
                separately, from the seed plus the shard's first row. Whole variables equal
                TensorFlow's; shards depend on the partition.
    "global"    draws by index: an element depends on the seed and its place in the full tensor. So
                the shards of any partition, put together, are bit for bit the whole variable.

Each kind makes any part by itself, in memory of the part's size. The exception is ``Orthogonal``:
an orthogonal matrix exists only as a whole, so each call makes all of it and returns the part.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from math import prod, sqrt
from operator import index
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar, overload

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError
from shardvar.layout.dtypes import STRING, Array, DType, Shape, dtype_name
from shardvar.layout.region import Region, read_shape
from shardvar.records import entity, fields, frozen, replace
from shardvar.reference import random
from shardvar.reference.devices import Device, device_scope
from shardvar.reference.random.indexed import FLOATS, read_dtype
from shardvar.reference.variables.values import as_dtype, as_value

__all__ = [
    "Constant",
    "GlorotNormal",
    "GlorotUniform",
    "HeNormal",
    "HeUniform",
    "Identity",
    "Initializer",
    "LecunNormal",
    "LecunUniform",
    "Ones",
    "Orthogonal",
    "RandomNormal",
    "RandomUniform",
    "TruncatedNormal",
    "VarianceScaling",
    "Zeros",
    "joined",
]

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

    shape: Shape
    """The shape of the part."""
    offset: list[int]
    """The part's first index along each axis of the full value."""

    @classmethod
    def of(cls, region: Region) -> Self:
        return cls(region.shape, list(region.offset))

    @property
    def slices(self) -> tuple[slice, ...]:
        """The NumPy index that selects the part from the full value."""
        return Region(self.offset, self.shape).slices


class PartitionLike(Protocol):
    """The fields of RFC 000's partition, as an ``InitialPart`` and a ``Region`` have them."""

    @property
    def shape(self) -> Sequence[int]:
        """..."""

    @property
    def offset(self) -> Sequence[int]:
        """..."""


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
        # R-INIT-7 (RFC 000): "Layout is a map from device string to the shard assigned to that
        # device, represented by a namedtuple of two fields: shape and offset." "__call__ returns a
        # map from device string to the initial value on that device." Each part is drawn on its
        # device, so its bytes count there and nothing crosses.
        joint, values = self.joined(), {}
        for device, part in layout.items():
            with device_scope(device) if isinstance(device, Device) else nullcontext():
                values[device] = joint.part(extents, kind, read_partition(extents, part))
        return values

    @abstractmethod
    def part(self, shape: Shape, dtype: DType, region: Region) -> Array:
        """Return a new array of the elements of a region of a tensor, and compute only these.

        Parameters
        ----------
        shape : tuple of int
            The full shape.
        dtype : numpy.dtype
            The dtype, as ``read_dtype`` returns it.
        region : Region
            The region to make.

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

    def read_dtype(self, dtype: Any) -> DType:
        """Return the dtype to make, by default float32.

        Parameters
        ----------
        dtype : dtype_like or None
            The dtype that is asked for; None for the default.

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
        """Return the arguments of an equal initializer: plain data, and arrays among them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Return an initializer equal to the origin of a config.

        Parameters
        ----------
        config : mapping
            The arguments of the class, as ``get_config`` returns them.
        """
        return cls(**config)


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
        shape: Shape,
        dtype: DType,
        region: Region,
    ) -> Array:
        """Return the region's elements; ``limits`` of a normal are its mean and deviation."""
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


def read_partition(shape: Shape, partition: PartitionLike | None) -> Region:
    """Return the region that a partition means, the whole by default."""
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


def seed_of_part(seed: int, shape: Shape, region: Region) -> int:
    # R-INIT-5 (RFC 000): "the seed must be changed deterministically for each shard, otherwise each
    # shard will use the same values. This can be achieved by adding offset to the seed." "seed =
    # self.seed + partition.offset[0] # assume partition on 0 axis". TensorFlow adds nothing, and
    # its shards are equal (deviation D-INIT-1). Two parts side by side, [0:4, 0:2] and [0:4, 2:4],
    # have the same first row, and would have the same seed.
    if region.shape[1:] != shape[1:]:
        raise ArgumentError(
            f"The part {region} of the shape {shape} is cut along another axis than the first, "
            "where RFC 000's seeds are equal for different parts.",
            'Use seed_mode="global", whose values do not depend on the partition.',
        )
    return seed + (region.offset[0] if region.offset else 0)


def check_seed(seed: Any) -> None:
    try:
        value = index(seed)
    except TypeError:
        raise ArgumentTypeError(f"Invalid seed {seed!r}.", "Give an integer, or None.") from None
    if not -(2**63) <= value < 2**64:
        raise ArgumentError(f"The seed {value} has more than 64 bits.", "Give a smaller one.")


def fresh_seed() -> int:
    return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])


@frozen
class Zeros(Initializer):
    """Zeros.

    Examples
    --------
    >>> Zeros()((5, 2), "int32", partition=Region((3, 0), (2, 2))).tolist()
    [[0, 0], [0, 0]]
    """

    def part(self, shape: Shape, dtype: DType, region: Region) -> Array:
        return np.zeros(region.shape, dtype)


@frozen
class Ones(Initializer):
    """Ones."""

    def part(self, shape: Shape, dtype: DType, region: Region) -> Array:
        return np.ones(region.shape, dtype)


@entity
class Constant(Initializer):
    """A number or a string everywhere, or an array of as many elements as the variable has.

    Parameters
    ----------
    value : array_like, default 0
        The number, the string or the array; an array is read in C order. Without a dtype, the
        variable has its dtype.

    Examples
    --------
    >>> Constant([1, 2, 3, 4])((2, 2), "float32", partition=Region((1, 0), (1, 2))).tolist()
    [[3.0, 4.0]]
    """

    value: Any = 0

    def read_dtype(self, dtype: Any) -> DType:
        return as_value(self.value).dtype if dtype is None else as_dtype(dtype)

    def part(self, shape: Shape, dtype: DType, region: Region) -> Array:
        # One element for each of the variable's is cut like the variable. A single one is repeated;
        # where the variable has one element too, both mean the same.
        value, whole = as_value(self.value), Region.whole(shape)
        if value.size == whole.size:
            value = value.reshape(shape)[region.slices]
        elif value.size != 1:
            raise ArgumentError(
                f"A constant of shape {value.shape} does not have as many elements as the shape "
                f"{shape}.",
                "Give one number, or one for each element.",
            )
        else:
            value = value.reshape(())
        return np.array(np.broadcast_to(as_value(value, dtype), region.shape))


@frozen
class Identity(Initializer):
    """A matrix of zeros with a number on its diagonal, square or not.

    Parameters
    ----------
    gain : float, default 1.0
        The number on the diagonal.

    Examples
    --------
    >>> Identity()((3, 3), partition=Region((1, 0), (2, 3))).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """

    gain: float = 1.0

    def part(self, shape: Shape, dtype: DType, region: Region) -> Array:
        if len(shape) != 2:
            raise ArgumentError(
                f"An identity matrix of shape {shape} was asked for.", "Give a shape of two axes."
            )
        values = np.zeros(region.shape, dtype)
        # Element (i, i) of the full matrix lies in the part if i is in its rows and in its columns.
        # Rows 1 to 4 and columns 2 to 9 share 2 and 3: in the part's own numbers these are (1, 0)
        # and (2, 1).
        diagonal = np.arange(max(region.offset), min(region.stop))
        values[diagonal - region.offset[0], diagonal - region.offset[1]] = self.gain
        return values


FanMode = Literal["fan_in", "fan_out", "fan_avg"]
_MODES = "fan_in", "fan_out", "fan_avg"
_DISTRIBUTIONS = "uniform", "truncated_normal", "untruncated_normal", "normal"

_DEVIATION_OF_TRUNCATED = 0.87962566103423978
"""The standard deviation of a standard normal that is truncated at 2: ``sqrt(1 - 4 pdf(2) / (cdf(2)
- cdf(-2)))``."""


@frozen
class RandomUniform(SeededInitializer):
    """Values of a uniform distribution, of floating-point or integer dtypes.

    Parameters
    ----------
    minval : float, default -0.05
        The lower limit.
    maxval : float, default 0.05
        The upper limit, which is outside the range.
    seed : int, optional
        Determines the values; without a seed every call draws others.
    seed_mode : {"rfc", "global"}, default "rfc"
        The meaning of the seed for a part: "rfc" draws each part from the seed plus its first row,
        "global" gives each element of the full value the same number in any partition.

    Examples
    --------
    >>> halves = (Region((0,), (3,)), Region((3,), (3,)))
    >>> init = RandomUniform(0, 10, seed=4, seed_mode="global")
    >>> [int(x) for half in halves for x in init([6], "int32", half)] == init([6], "int32").tolist()
    True
    """

    minval: float = -0.05
    maxval: float = 0.05
    seed: int | None = None
    seed_mode: SeedMode = "rfc"

    def part(self, shape: Shape, dtype: DType, region: Region) -> Array:
        return self.draw("uniform", (self.minval, self.maxval), shape, dtype, region)


@frozen
class NormalInitializer(SeededInitializer):
    _distribution: ClassVar[Distribution]
    mean: float = 0.0
    stddev: float = 0.05
    seed: int | None = None
    seed_mode: SeedMode = "rfc"

    def part(self, shape: Shape, dtype: DType, region: Region) -> Array:
        return self.draw(self._distribution, (self.mean, self.stddev), shape, dtype, region)


class RandomNormal(NormalInitializer):
    """Normal values. See ``RandomUniform`` for the other parameters.

    Parameters
    ----------
    mean : float, default 0.0
        The mean.
    stddev : float, default 0.05
        The standard deviation.
    """

    __slots__ = ()
    _distribution = "normal"


class TruncatedNormal(NormalInitializer):
    """Normal values within two standard deviations of the mean.

    See ``RandomUniform`` for the other parameters.

    Parameters
    ----------
    mean : float, default 0.0
        The mean.
    stddev : float, default 0.05
        The standard deviation before values beyond the limit are drawn again.
    """

    __slots__ = ()
    _distribution = "truncated_normal"


class ScaledInitializer(SeededInitializer):
    """Values whose variance is ``scale`` divided by a fan of the FULL shape, for every part."""

    __slots__ = ()

    def law(self) -> tuple[float, str, str]:
        raise NotImplementedError

    def part(self, shape: Shape, dtype: DType, region: Region) -> Array:
        scale, mode, distribution = self.law()
        # R-INIT-6 (RFC 000): "shape is the full combined shape". Example: a part [0:2, 0:3] of a
        # kernel (4, 3) has the fans 4 and 3 of the kernel, not 2 and 3. With scale 1 and fan_avg
        # the variance is 1 / 3.5.
        fan_in, fan_out = fans(shape)
        variance = scale / max(
            1.0, {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode]
        )
        if distribution == "uniform":
            limit = sqrt(3 * variance)  # uniform values in [-a, a) have the variance a * a / 3
            return self.draw("uniform", (-limit, limit), shape, dtype, region)
        if distribution == "untruncated_normal":
            return self.draw("normal", (0.0, sqrt(variance)), shape, dtype, region)
        # Truncation narrows a distribution, so it starts from a wider one: 1 / 0.8796 = 1.137 times
        # as wide.
        stddev = sqrt(variance) / _DEVIATION_OF_TRUNCATED
        return self.draw("truncated_normal", (0.0, stddev), shape, dtype, region)


@frozen
class VarianceScaling(ScaledInitializer):
    """Values whose variance is a scale divided by a fan of the FULL shape, for every part.

    See ``RandomUniform`` for the other parameters.

    Parameters
    ----------
    scale : float, default 1.0
        The variance of a sum of ``fan`` products with inputs of variance 1; positive.
    mode : {"fan_in", "fan_out", "fan_avg"}, default "fan_in"
        The fan: the inputs, the outputs, or their mean.
    distribution : {"truncated_normal", "normal", "untruncated_normal", "uniform"}, default
    "truncated_normal"
        The distribution; "normal" is truncated.

    Raises
    ------
    ArgumentError
        If `scale` is not positive, or `mode` or `distribution` is another text.
    """

    scale: float = 1.0
    mode: FanMode = "fan_in"
    distribution: str = "truncated_normal"
    seed: int | None = None
    seed_mode: SeedMode = "rfc"

    def __post_init__(self) -> None:
        SeededInitializer.__post_init__(self)
        if not self.scale > 0:
            raise ArgumentError(f"Invalid scale {self.scale}.", "Give a positive number.")
        if self.mode not in _MODES:
            raise ArgumentError(f"Invalid mode {self.mode!r}.", f"Give one of {', '.join(_MODES)}.")
        if self.distribution.lower() not in _DISTRIBUTIONS:
            raise ArgumentError(
                f"Invalid distribution {self.distribution!r}.",
                f"Give one of {', '.join(_DISTRIBUTIONS)}.",
            )

    def law(self) -> tuple[float, str, str]:
        return self.scale, self.mode, self.distribution.lower()


@frozen
class NamedScaling(ScaledInitializer):
    """A law of variance that has a name. See ``RandomUniform`` for the parameters."""

    _law: ClassVar[tuple[float, str, str]]
    seed: int | None = None
    seed_mode: SeedMode = "rfc"

    def law(self) -> tuple[float, str, str]:
        return self._law


class GlorotUniform(NamedScaling):
    """Glorot and Bengio, 2010: uniform, variance 2 / (fan_in + fan_out).

    See ``RandomUniform`` for the parameters.
    """

    __slots__ = ()
    _law = (1.0, "fan_avg", "uniform")


class GlorotNormal(NamedScaling):
    """Glorot and Bengio, 2010: truncated normal, variance 2 / (fan_in + fan_out).

    See ``RandomUniform`` for the parameters.
    """

    __slots__ = ()
    _law = (1.0, "fan_avg", "truncated_normal")


class HeUniform(NamedScaling):
    """He et al., 2015: uniform, variance 2 / fan_in. See ``RandomUniform`` for the parameters."""

    __slots__ = ()
    _law = (2.0, "fan_in", "uniform")


class HeNormal(NamedScaling):
    """He et al., 2015: truncated normal, variance 2 / fan_in.

    See ``RandomUniform`` for the parameters.
    """

    __slots__ = ()
    _law = (2.0, "fan_in", "truncated_normal")


class LecunUniform(NamedScaling):
    """LeCun et al., 1998: uniform, variance 1 / fan_in.

    See ``RandomUniform`` for the parameters.
    """

    __slots__ = ()
    _law = (1.0, "fan_in", "uniform")


class LecunNormal(NamedScaling):
    """LeCun et al., 1998: truncated normal, variance 1 / fan_in.

    See ``RandomUniform`` for the parameters.
    """

    __slots__ = ()
    _law = (1.0, "fan_in", "truncated_normal")


def fans(shape: Shape) -> tuple[int, int]:
    """Return the inputs and outputs of a kernel: its last two extents, each times all others."""
    if len(shape) < 2:
        return prod(shape), prod(shape)
    # An output of a 3 x 3 convolution from 16 to 32 channels sums 3 * 3 inputs of each channel: 9 *
    # 16 = 144.
    receptive = prod(shape[:-2])
    return shape[-2] * receptive, shape[-1] * receptive


@frozen
class Orthogonal(SeededInitializer):
    """The factor Q of a normal matrix, with the signs that make R's diagonal positive.

    All axes but the last are rows. Rows or columns, whichever are fewer, are orthonormal, times
    `gain`. A part of Q cannot be computed by itself: every call makes the WHOLE matrix, in float64,
    and returns its part. Parts belong to one matrix, so all of them use the same seed. Without a
    seed a part is refused; ``joined`` draws one.

    Parameters
    ----------
    gain : float, default 1.0
        The length of each row or column.
    seed : int, optional
        Determines the matrix; without a seed every call draws another.
    seed_mode : {"rfc", "global"}, default "rfc"
        The stream from which the normal matrix is drawn.
    """

    gain: float = 1.0
    seed: int | None = None
    seed_mode: SeedMode = "rfc"

    def part(self, shape: Shape, dtype: DType, region: Region) -> Array:
        kind = read_dtype(dtype, FLOATS)
        if len(shape) < 2:
            raise ArgumentError(
                f"An orthogonal matrix of shape {shape} was asked for.", "Give two axes or more."
            )
        if self.seed is None and region != Region.whole(shape):
            raise ArgumentError(
                f"The part {region} of an orthogonal matrix without a seed: the next part would "
                "be another matrix's.",
                "Give a seed, or ask joined() for the parts of one matrix.",
            )
        # QR needs at least as many rows as columns: a (3, 5) matrix is made as (5, 3) and
        # transposed.
        rows, columns = prod(shape[:-1]), shape[-1]
        tall = max(rows, columns), min(rows, columns)
        normal = self.draw("normal", (0.0, 1.0), tall, kind, Region.whole(tall))
        q, r = np.linalg.qr(normal.astype(np.float64))
        # Q is unique only up to the signs of its columns, which differ between LAPACKs; R's
        # diagonal settles them.
        q *= np.where(np.diagonal(r) < 0, -1.0, 1.0)
        matrix = q.T if rows < columns else q
        return (self.gain * matrix.reshape(shape)[region.slices]).astype(kind)

    def joined(self) -> Self:
        return self if self.seed is not None else replace(self, seed=fresh_seed())
