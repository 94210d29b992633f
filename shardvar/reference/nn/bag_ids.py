"""SparseTensor: the ids of bags, as rows of a matrix with few entries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange
from shardvar.layout.dtypes import Array, Ints
from shardvar.reference.nn.lookup import (
    as_integers,
)
from shardvar.reference.variables.values import as_value


@dataclass(frozen=True, slots=True, eq=False)
class SparseTensor:
    """A tensor given by some elements with their indices; TensorFlow's form, in NumPy.

    Parameters
    ----------
    indices : array_like of int
        The indices of the entries, [n, rank].
    values : array_like
        The entries, [n]; ``values[i]`` is at ``indices[i]``.
    dense_shape : sequence of int
        The shape of the tensor; every index lies in it.

    Raises
    ------
    ArgumentError
        If `indices` does not fit `dense_shape`, or there is not one value for each index.
    OutOfRange
        If an index is outside of `dense_shape`.

    Examples
    --------
    >>> SparseTensor.from_rows([[1, 3], [], [0]]).indices.tolist()
    [[0, 0], [0, 1], [2, 0]]
    """

    indices: Ints
    values: Array
    dense_shape: tuple[int, ...]

    def __init__(
        self, indices: npt.ArrayLike, values: npt.ArrayLike, dense_shape: Sequence[int]
    ) -> None:
        shape = tuple(as_integers(dense_shape, "The extents of a dense shape").tolist())
        places = as_integers(indices, "Indices")
        places = places.reshape(-1, len(shape)) if places.size == 0 and shape else places
        if places.ndim != 2 or places.shape[1] != len(shape) or not shape:
            raise ArgumentError(
                f"Indices of shape {places.shape} do not fit the dense shape {shape}.",
                "Give integers [n, rank].",
            )
        # Parsed before the fields are set: the dataclass is frozen, and holds arrays only, never
        # lists.
        object.__setattr__(self, "indices", places.astype(np.int64))
        object.__setattr__(
            self, "values", as_value(values) if np.size(values) else np.asarray(values).reshape(-1)
        )
        object.__setattr__(self, "dense_shape", shape)
        self._check()

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[Any]], dtype: npt.DTypeLike | None = None) -> Self:
        """Return the matrix whose rows begin with given values; the longest one gives its width.

        Parameters
        ----------
        rows : sequence of sequences
            The values of each row, which may differ in number.
        dtype : dtype_like, optional
            The dtype of the values.

        Returns
        -------
        SparseTensor
            A matrix with an entry for each value.

        Raises
        ------
        ArgumentTypeError
            If a row is not a list, a tuple or an array.
        """
        if not all(isinstance(values, list | tuple | np.ndarray) for values in rows):
            raise ArgumentTypeError(
                "Not all rows are lists.", "Give a list of values for each row."
            )
        indices = [
            (row, column) for row, values in enumerate(rows) for column in range(len(values))
        ]
        values = np.asarray(
            [value for row in rows for value in row], dtype or (None if indices else np.int64)
        )
        return cls(indices, values, (len(rows), max(map(len, rows), default=0)))

    def _check(self) -> None:
        if self.values.shape != self.indices.shape[:1]:
            raise ArgumentError(
                f"There are {len(self.indices)} indices and values of shape {self.values.shape}.",
                "Give one value for each index.",
            )
        outside = np.flatnonzero(
            ((self.indices < 0) | (self.indices >= np.array(self.dense_shape))).any(axis=1)
        )
        if len(outside):
            first = int(outside[0])
            raise OutOfRange(
                f"Index {self.indices[first].tolist()} at {first} is outside {self.dense_shape}."
            )
