"""The kinds of initializers: constants, independent draws, draws scaled by the shape, orthogonal
matrices.

Each makes any part by itself, in memory of the part's size. The exception is ``Orthogonal``: an
orthogonal matrix exists only as a whole, so each call makes all of it and returns the part.
"""

from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import Any, Literal, Self

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.layout.region import Region
from shardvar.reference.random.arguments import FLOATS, read_dtype
from shardvar.reference.variables.initializers.base import (
    Initializer,
    SeededInitializer,
    SeedMode,
    fresh_seed,
)
from shardvar.reference.variables.values import as_dtype, as_value


@dataclass(frozen=True, slots=True)
class Zeros(Initializer):
    """Zeros.

    Examples
    --------
    >>> Zeros()((5, 2), "int32", partition=Region((3, 0), (2, 2))).tolist()
    [[0, 0], [0, 0]]
    """

    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
        return np.zeros(region.shape, dtype)


@dataclass(frozen=True, slots=True)
class Ones(Initializer):
    """Ones."""

    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
        return np.ones(region.shape, dtype)


@dataclass(frozen=True, slots=True, eq=False)
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

    def read_dtype(self, dtype: Any) -> np.dtype[Any]:
        return as_value(self.value).dtype if dtype is None else as_dtype(dtype)

    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
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


@dataclass(frozen=True, slots=True)
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

    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
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


@dataclass(frozen=True, slots=True)
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

    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
        return self.draw("uniform", (self.minval, self.maxval), shape, dtype, region)


@dataclass(frozen=True, slots=True)
class RandomNormal(SeededInitializer):
    """Normal values. See ``RandomUniform`` for the other parameters.

    Parameters
    ----------
    mean : float, default 0.0
        The mean.
    stddev : float, default 0.05
        The standard deviation.
    """

    mean: float = 0.0
    stddev: float = 0.05
    seed: int | None = None
    seed_mode: SeedMode = "rfc"

    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
        return self.draw("normal", (self.mean, self.stddev), shape, dtype, region)


@dataclass(frozen=True, slots=True)
class TruncatedNormal(SeededInitializer):
    """Normal values within two standard deviations of the mean.

    See ``RandomUniform`` for the other parameters.

    Parameters
    ----------
    mean : float, default 0.0
        The mean.
    stddev : float, default 0.05
        The standard deviation before values beyond the limit are drawn again.
    """

    mean: float = 0.0
    stddev: float = 0.05
    seed: int | None = None
    seed_mode: SeedMode = "rfc"

    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
        return self.draw("truncated_normal", (self.mean, self.stddev), shape, dtype, region)


class ScaledInitializer(SeededInitializer):
    """Values whose variance is ``scale`` divided by a fan of the FULL shape, for every part.

    So the shards of a variable are scaled like the variable.
    """

    __slots__ = ()

    def law(self) -> tuple[float, str, str]:
        """Return the law of the variance.

        Returns
        -------
        scale : float
            The variance times the fan.
        mode : str
            The fan: "fan_in", "fan_out" or "fan_avg".
        distribution : str
            The distribution.
        """
        raise NotImplementedError

    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
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


@dataclass(frozen=True, slots=True)
class VarianceScaling(ScaledInitializer):
    """Values whose variance is a scale divided by a fan of the FULL shape, for every part.

    Parameters
    ----------
    scale : float, default 1.0
        The variance of a sum of ``fan`` products with inputs of variance 1; positive.
    mode : {"fan_in", "fan_out", "fan_avg"}, default "fan_in"
        The fan: the inputs, the outputs, or their mean.
    distribution : {"truncated_normal", "normal", "untruncated_normal", "uniform"}, default
    "truncated_normal"
        The distribution; "normal" is the truncated one.
    seed : int, optional
        Determines the values; without a seed every call draws others.
    seed_mode : {"rfc", "global"}, default "rfc"
        The meaning of the seed for a part: "rfc" draws each part from the seed plus its first row,
        "global" gives each element of the full value the same number in any partition.

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


@dataclass(frozen=True, slots=True)
class NamedScaling(ScaledInitializer):
    """A law of variance that has a name. See ``RandomUniform`` for the parameters."""

    seed: int | None = None
    seed_mode: SeedMode = "rfc"


@dataclass(frozen=True, slots=True)
class GlorotUniform(NamedScaling):
    """Glorot and Bengio, 2010: uniform, variance 2 / (fan_in + fan_out).

    See ``RandomUniform`` for the parameters.
    """

    def law(self) -> tuple[float, str, str]:
        return 1.0, "fan_avg", "uniform"


@dataclass(frozen=True, slots=True)
class GlorotNormal(NamedScaling):
    """Glorot and Bengio, 2010: truncated normal, variance 2 / (fan_in + fan_out).

    See ``RandomUniform`` for the parameters.
    """

    def law(self) -> tuple[float, str, str]:
        return 1.0, "fan_avg", "truncated_normal"


@dataclass(frozen=True, slots=True)
class HeUniform(NamedScaling):
    """He et al., 2015: uniform, variance 2 / fan_in. See ``RandomUniform`` for the parameters."""

    def law(self) -> tuple[float, str, str]:
        return 2.0, "fan_in", "uniform"


@dataclass(frozen=True, slots=True)
class HeNormal(NamedScaling):
    """He et al., 2015: truncated normal, variance 2 / fan_in.

    See ``RandomUniform`` for the parameters.
    """

    def law(self) -> tuple[float, str, str]:
        return 2.0, "fan_in", "truncated_normal"


@dataclass(frozen=True, slots=True)
class LecunUniform(NamedScaling):
    """LeCun et al., 1998: uniform, variance 1 / fan_in.

    See ``RandomUniform`` for the parameters.
    """

    def law(self) -> tuple[float, str, str]:
        return 1.0, "fan_in", "uniform"


@dataclass(frozen=True, slots=True)
class LecunNormal(NamedScaling):
    """LeCun et al., 1998: truncated normal, variance 1 / fan_in.

    See ``RandomUniform`` for the parameters.
    """

    def law(self) -> tuple[float, str, str]:
        return 1.0, "fan_in", "truncated_normal"


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of inputs and of outputs of a kernel: its last two extents, each times all
    others.

    >>> fans((5, 3)), fans((3, 3, 16, 32)), fans((7,)), fans(())
    ((5, 3), (144, 288), (7, 7), (1, 1))
    """
    if len(shape) < 2:
        return prod(shape), prod(shape)
    # An output of a 3 x 3 convolution from 16 to 32 channels sums 3 * 3 inputs of each channel: 9 *
    # 16 = 144.
    receptive = prod(shape[:-2])
    return shape[-2] * receptive, shape[-1] * receptive


@dataclass(frozen=True, slots=True)
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

    def part(self, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region) -> Array:
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
