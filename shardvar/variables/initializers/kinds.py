"""Initializers that draw independent elements, and those whose scale comes from the shape."""

from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import Any, Literal, Self

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.layout.region import Region
from shardvar.random.arguments import FLOATS, read_dtype
from shardvar.variables.initializers.base import Initializer, SeededInitializer, SeedMode, fresh_seed
from shardvar.variables.values import as_dtype, as_value

# Initializers without chance: zeros, ones, a constant, the identity matrix. Each part is made alone.


@dataclass(frozen=True, slots=True)
class Zeros(Initializer):
    """Zeros.

    >>> Zeros()((5, 2), "int32", partition=Region((3, 0), (2, 2))).tolist()
    [[0, 0], [0, 0]]
    """

    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
        """The part's zeros."""
        return np.zeros(region.shape, dtype)


@dataclass(frozen=True, slots=True)
class Ones(Initializer):
    """Ones."""

    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
        """The part's ones."""
        return np.ones(region.shape, dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Initializer):
    """A number or a string everywhere, or an array of as many elements as the variable has.

    Its dtype is the value's own where none is asked for.

    >>> Constant([1, 2, 3, 4])((2, 2), "float32", partition=Region((1, 0), (1, 2))).tolist()
    [[3.0, 4.0]]
    """

    value: Any = 0
    """The number, the string or the array; an array is read in C order."""

    def read_dtype(self, dtype: Any) -> np.dtype[Any]:
        """The dtype that is asked for, or the value's."""
        return as_value(self.value).dtype if dtype is None else as_dtype(dtype)

    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
        """The part's elements."""
        value, whole = as_value(self.value), Region.whole(shape)
        if value.size == whole.size:
            value = value.reshape(shape)[region.slices]
        elif value.size != 1:
            raise ArgumentError(
                f"A constant of shape {value.shape} has not as many elements as the shape {shape}.",
                "Give one number, or one for each element.",
            )
        else:
            value = value.reshape(())
        return np.array(np.broadcast_to(as_value(value, dtype), region.shape))


@dataclass(frozen=True, slots=True)
class Identity(Initializer):
    """A matrix of zeros with ``gain`` on its diagonal, square or not.

    >>> Identity()((3, 3), partition=Region((1, 0), (2, 3))).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """

    gain: float = 1.0
    """What stands on the diagonal."""

    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
        """The rows and columns of the part, from where the diagonal crosses it."""
        if len(shape) != 2:
            raise ArgumentError(f"An identity matrix has two axes, and the shape {shape} was asked for.")
        values = np.zeros(region.shape, dtype)
        diagonal = np.arange(max(region.offset), min(region.stop))
        values[diagonal - region.offset[0], diagonal - region.offset[1]] = self.gain
        return values


Mode = Literal["fan_in", "fan_out", "fan_avg"]
_MODES = "fan_in", "fan_out", "fan_avg"
_DISTRIBUTIONS = "uniform", "truncated_normal", "untruncated_normal", "normal"

_DEVIATION_OF_TRUNCATED = 0.87962566103423978
"""The standard deviation of a standard normal that is truncated at 2: ``sqrt(1 - 4 pdf(2) / (cdf(2) - cdf(-2)))``."""


@dataclass(frozen=True, slots=True)
class RandomUniform(SeededInitializer):
    """Values in [minval, maxval); integers too.

    >>> halves = (Region((0,), (3,)), Region((3,), (3,)))
    >>> init = RandomUniform(0, 10, seed=4, seed_mode="global")
    >>> [int(x) for half in halves for x in init([6], "int32", half)] == init([6], "int32").tolist()
    True
    """

    minval: float = -0.05
    """The lower limit."""
    maxval: float = 0.05
    """The upper limit, which is not in the range."""
    seed: int | None = None
    """Decides the values; without one every call draws others."""
    seed_mode: SeedMode = "rfc"
    """What the seed means for a part."""

    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
        """The part's values."""
        return self.draw("uniform", (self.minval, self.maxval), shape, dtype, region)


@dataclass(frozen=True, slots=True)
class RandomNormal(SeededInitializer):
    """Normal values."""

    mean: float = 0.0
    """Their mean."""
    stddev: float = 0.05
    """Their standard deviation."""
    seed: int | None = None
    """Decides the values; without one every call draws others."""
    seed_mode: SeedMode = "rfc"
    """What the seed means for a part."""

    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
        """The part's values."""
        return self.draw("normal", (self.mean, self.stddev), shape, dtype, region)


@dataclass(frozen=True, slots=True)
class TruncatedNormal(SeededInitializer):
    """Normal values within two standard deviations of the mean."""

    mean: float = 0.0
    """Their mean."""
    stddev: float = 0.05
    """The standard deviation that they would have without the limit."""
    seed: int | None = None
    """Decides the values; without one every call draws others."""
    seed_mode: SeedMode = "rfc"
    """What the seed means for a part."""

    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
        """The part's values."""
        return self.draw("truncated_normal", (self.mean, self.stddev), shape, dtype, region)


class ScaledInitializer(SeededInitializer):
    """Values whose variance is ``scale`` divided by a fan of the FULL shape, whatever the part.

    So the shards of a variable are scaled like the variable.
    """

    __slots__ = ()

    def law(self) -> tuple[float, str, str]:
        """Scale, mode and distribution."""
        raise NotImplementedError

    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
        """The part's values."""
        scale, mode, distribution = self.law()
        # R-INIT-6 (RFC 000): "shape is the full combined shape".
        fan_in, fan_out = fans(shape)
        variance = scale / max(1.0, {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[mode])
        if distribution == "uniform":
            limit = sqrt(3 * variance)
            return self.draw("uniform", (-limit, limit), shape, dtype, region)
        if distribution == "untruncated_normal":
            return self.draw("normal", (0.0, sqrt(variance)), shape, dtype, region)
        stddev = sqrt(variance) / _DEVIATION_OF_TRUNCATED
        return self.draw("truncated_normal", (0.0, stddev), shape, dtype, region)


@dataclass(frozen=True, slots=True)
class VarianceScaling(ScaledInitializer):
    """Values whose variance is ``scale`` divided by the fan that ``mode`` names."""

    scale: float = 1.0
    """The variance of a sum of fan products; positive."""
    mode: Mode = "fan_in"
    """``"fan_in"``, ``"fan_out"`` or ``"fan_avg"``, their mean."""
    distribution: str = "truncated_normal"
    """``"uniform"``, ``"truncated_normal"`` (or ``"normal"``), ``"untruncated_normal"``."""
    seed: int | None = None
    """Decides the values; without one every call draws others."""
    seed_mode: SeedMode = "rfc"
    """What the seed means for a part."""

    def __post_init__(self) -> None:
        SeededInitializer.__post_init__(self)
        if not self.scale > 0:
            raise ArgumentError(f"A scale of {self.scale} leaves no variance.", "Give a positive number.")
        if self.mode not in _MODES:
            raise ArgumentError(f"{self.mode!r} is no mode.", f"Give one of {', '.join(_MODES)}.")
        if self.distribution.lower() not in _DISTRIBUTIONS:
            raise ArgumentError(
                f"{self.distribution!r} is no distribution.", f"Give one of {', '.join(_DISTRIBUTIONS)}."
            )

    def law(self) -> tuple[float, str, str]:
        """Its own."""
        return self.scale, self.mode, self.distribution.lower()


@dataclass(frozen=True, slots=True)
class NamedScaling(ScaledInitializer):
    """A law of variance that has a name of its own."""

    seed: int | None = None
    """Decides the values; without one every call draws others."""
    seed_mode: SeedMode = "rfc"
    """What the seed means for a part."""


@dataclass(frozen=True, slots=True)
class GlorotUniform(NamedScaling):
    """Glorot and Bengio, 2010: uniform, variance 2 / (fan_in + fan_out)."""

    def law(self) -> tuple[float, str, str]:
        """Its own."""
        return 1.0, "fan_avg", "uniform"


@dataclass(frozen=True, slots=True)
class GlorotNormal(NamedScaling):
    """Glorot and Bengio, 2010: truncated normal, variance 2 / (fan_in + fan_out)."""

    def law(self) -> tuple[float, str, str]:
        """Its own."""
        return 1.0, "fan_avg", "truncated_normal"


@dataclass(frozen=True, slots=True)
class HeUniform(NamedScaling):
    """He et al., 2015: uniform, variance 2 / fan_in."""

    def law(self) -> tuple[float, str, str]:
        """Its own."""
        return 2.0, "fan_in", "uniform"


@dataclass(frozen=True, slots=True)
class HeNormal(NamedScaling):
    """He et al., 2015: truncated normal, variance 2 / fan_in."""

    def law(self) -> tuple[float, str, str]:
        """Its own."""
        return 2.0, "fan_in", "truncated_normal"


@dataclass(frozen=True, slots=True)
class LecunUniform(NamedScaling):
    """LeCun et al., 1998: uniform, variance 1 / fan_in."""

    def law(self) -> tuple[float, str, str]:
        """Its own."""
        return 1.0, "fan_in", "uniform"


@dataclass(frozen=True, slots=True)
class LecunNormal(NamedScaling):
    """LeCun et al., 1998: truncated normal, variance 1 / fan_in."""

    def law(self) -> tuple[float, str, str]:
        """Its own."""
        return 1.0, "fan_in", "truncated_normal"


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """How many inputs and outputs an element of a kernel has: its last two axes, times the size of the others.

    >>> fans((5, 3)), fans((3, 3, 16, 32)), fans((7,)), fans(())
    ((5, 3), (144, 288), (7, 7), (1, 1))
    """
    if len(shape) < 2:
        return prod(shape), prod(shape)
    receptive = prod(shape[:-2])
    return shape[-2] * receptive, shape[-1] * receptive


# Orthogonal matrices, whose parts must all come from the same one.


@dataclass(frozen=True, slots=True)
class Orthogonal(SeededInitializer):
    """The factor Q of a normal matrix, with the signs that make R's diagonal positive.

    All axes but the last are rows. Rows or columns, whichever are fewer, are orthonormal, times ``gain``.
    No part of Q can be had alone: every call makes the WHOLE matrix, in float64, and returns its part. Parts belong to
    one matrix, so the seed is the same for all of them, and without a seed a part is refused: ``joined`` gives one.
    """

    gain: float = 1.0
    """The length of each row or column."""
    seed: int | None = None
    """Decides the matrix; without one every call draws another."""
    seed_mode: SeedMode = "rfc"
    """From which stream the normal matrix is drawn."""

    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
        """The part's rows and columns of the whole matrix."""
        kind = read_dtype(dtype, FLOATS)
        if len(shape) < 2:
            raise ArgumentError(f"An orthogonal matrix has two axes or more, and the shape {shape} was asked for.")
        if self.seed is None and region != Region.whole(shape):
            raise ArgumentError(
                f"The part {region} was asked of an orthogonal matrix without a seed: the next would be another's.",
                "Give a seed, or ask joined() for the parts of one matrix.",
            )
        rows, columns = prod(shape[:-1]), shape[-1]
        tall = max(rows, columns), min(rows, columns)
        normal = self.draw("normal", (0.0, 1.0), tall, kind, Region.whole(tall))
        q, r = np.linalg.qr(normal.astype(np.float64))
        q *= np.where(np.diagonal(r) < 0, -1.0, 1.0)
        matrix = q.T if rows < columns else q
        return (self.gain * matrix.reshape(shape)[region.slices]).astype(kind)

    def joined(self) -> Self:
        """One matrix: with a seed drawn now, where there was none."""
        return self if self.seed is not None else replace(self, seed=fresh_seed())
