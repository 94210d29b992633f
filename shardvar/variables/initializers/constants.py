"""Initializers without chance: zeros, ones, a constant, the identity matrix. Each part is made alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.layout.region import Region
from shardvar.variables.initializers.base import Initializer
from shardvar.variables.values import as_dtype, as_value


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
