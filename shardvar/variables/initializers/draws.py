"""Initializers that draw independent elements, and those whose scale comes from the shape."""

from dataclasses import dataclass
from math import prod, sqrt
from typing import Any, Literal

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.layout.region import Region
from shardvar.variables.initializers.seeds import SeededInitializer, SeedMode

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
