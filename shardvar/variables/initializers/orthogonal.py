"""Orthogonal matrices, whose parts must all come from the same one."""

from dataclasses import dataclass, replace
from math import prod
from typing import Any, Self

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.layout.region import Region
from shardvar.random.arguments import FLOATS, read_dtype
from shardvar.variables.initializers.seeds import SeededInitializer, SeedMode, fresh_seed


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
