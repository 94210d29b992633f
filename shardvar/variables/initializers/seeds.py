"""What a seed means for one part of a variable: ``seed_mode``.

``"rfc"``, the default, is RFC 000's rule on TensorFlow's stateless stream: each shard is a draw of its own, from the
seed plus the shard's first row. Whole variables are TensorFlow's, shards depend on the partition.

``"global"`` draws by index: an element depends on the seed and its place in the full tensor, so the shards of any
partition, put together, are bit for bit the whole variable.
"""

from collections.abc import Callable
from operator import index
from typing import Any, Literal

import numpy as np

from shardvar import random
from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array
from shardvar.layout.region import Region
from shardvar.variables.initializers.base import Initializer

SeedMode = Literal["rfc", "global"]
Distribution = Literal["uniform", "normal", "truncated_normal"]

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


class SeededInitializer(Initializer):
    """An initializer that draws; without a seed every call draws anew."""

    __slots__ = ()
    seed: int | None
    seed_mode: SeedMode

    def __post_init__(self) -> None:
        if self.seed is not None:
            check_seed(self.seed)
        if self.seed_mode not in ("rfc", "global"):
            raise ArgumentError(f"{self.seed_mode!r} is no seed_mode.", "Give 'rfc' or 'global'.")

    def draw(
        self,
        distribution: Distribution,
        limits: tuple[float, float],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        region: Region,
    ) -> Array:
        """The region's elements of a tensor that is distributed so, within limits or with mean and deviation."""
        seed = fresh_seed() if self.seed is None else self.seed
        if self.seed_mode == "global":
            return _INDEXED[distribution](shape, seed % 2**64, *limits, dtype, region)
        if self.seed is not None:
            seed = seed_of_part(self.seed, shape, region)
        return _STATELESS[distribution](region.shape, [seed % 2**64, 0], *limits, dtype)


def seed_of_part(seed: int, shape: tuple[int, ...], region: Region) -> int:
    """The seed of a shard.

    R-INIT-5 (RFC 000): "the seed must be changed deterministically for each shard, otherwise each shard will use the
    same values. This can be achieved by adding offset to the seed." "seed = self.seed + partition.offset[0] # assume
    partition on 0 axis". TensorFlow adds nothing, and its shards are equal (deviation D-INIT-1).

    >>> seed_of_part(7, (13, 4), Region((9, 0), (2, 4)))
    16
    """
    if region.shape[1:] != shape[1:]:
        raise ArgumentError(
            f"The part {region} of the shape {shape} is cut along another axis than the first, where RFC 000's seeds "
            "are equal for different parts.",
            'Use seed_mode="global", whose values do not depend on the partition.',
        )
    return seed + (region.offset[0] if region.offset else 0)


def check_seed(seed: Any) -> None:
    """``ArgumentTypeError`` or ``ArgumentError`` unless it is an integer of at most 64 bits."""
    try:
        value = index(seed)
    except TypeError:
        raise ArgumentTypeError(f"{seed!r} is no seed.", "Give an integer, or None.") from None
    if not -(2**63) <= value < 2**64:
        raise ArgumentError(f"The seed {value} has more than 64 bits.", "Give a smaller one.")


def fresh_seed() -> int:
    """64 bits from the operating system's entropy.

    >>> fresh_seed() != fresh_seed()
    True
    """
    return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
