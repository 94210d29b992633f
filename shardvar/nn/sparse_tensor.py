"""SparseTensor: the entries of a tensor that exist, as sparse ids and their weights come."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange
from shardvar.layout.dtypes import Array, Ints
from shardvar.nn.params import as_integers
from shardvar.variables.values import as_value


@dataclass(frozen=True, slots=True, eq=False)
class SparseTensor:
    """``values[i]`` stands at ``indices[i]`` in a tensor of ``dense_shape``; TensorFlow's form, in NumPy.

    >>> SparseTensor.from_rows([[1, 3], [], [0]]).indices.tolist()
    [[0, 0], [0, 1], [2, 0]]
    """

    indices: Ints
    """Where the entries stand, [n, rank]."""
    values: Array
    """The entries, [n]."""
    dense_shape: tuple[int, ...]
    """The shape of the tensor; every index lies in it."""

    def __init__(self, indices: Any, values: Any, dense_shape: Sequence[int]) -> None:
        shape = tuple(as_integers(dense_shape, "The extents of a dense shape").tolist())
        places = as_integers(indices, "Indices")
        places = places.reshape(-1, len(shape)) if places.size == 0 and shape else places
        if places.ndim != 2 or places.shape[1] != len(shape) or not shape:
            raise ArgumentError(
                f"Indices of shape {places.shape} do not fit the dense shape {shape}.",
                "Give integers [n, rank].",
            )
        object.__setattr__(self, "indices", places.astype(np.int64))
        object.__setattr__(self, "values", as_value(values) if np.size(values) else np.asarray(values).reshape(-1))
        object.__setattr__(self, "dense_shape", shape)
        self._check()

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[Any]], dtype: Any = None) -> Self:
        """The matrix whose rows begin with these values, the longest one giving its width."""
        if not all(isinstance(values, list | tuple | np.ndarray) for values in rows):
            raise ArgumentTypeError("Not all rows are lists.", "Give a list of values for each row.")
        indices = [(row, column) for row, values in enumerate(rows) for column in range(len(values))]
        values = np.asarray([value for row in rows for value in row], dtype or (None if indices else np.int64))
        return cls(indices, values, (len(rows), max(map(len, rows), default=0)))

    def _check(self) -> None:
        if self.values.shape != self.indices.shape[:1]:
            raise ArgumentError(
                f"There are {len(self.indices)} indices and values of shape {self.values.shape}.",
                "Give one value for each index.",
            )
        outside = np.flatnonzero(((self.indices < 0) | (self.indices >= np.array(self.dense_shape))).any(axis=1))
        if len(outside):
            first = int(outside[0])
            raise OutOfRange(f"Index {self.indices[first].tolist()} at {first} is outside {self.dense_shape}.")
