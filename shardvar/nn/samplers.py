"""Candidate samplers: which classes stand for all the others in a sampled loss."""

from dataclasses import dataclass
from secrets import randbits
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array, Ints
from shardvar.nn.params import as_integers
from shardvar.random import stateless_uniform
from shardvar.variables.values import as_value, check_shape

_DRAWN_AT_ONCE = 1 << 16
"""Uniform values drawn at a time, at most: 512 KiB."""


@dataclass(frozen=True, slots=True, eq=False)
class SampledValues:
    """What TensorFlow's candidate samplers return: the classes, and how often each class was to be expected."""

    sampled_candidates: Ints
    """The sampled classes, [num_sampled]."""
    true_expected_count: Array
    """The expected count of each label among them, [batch, num_true]."""
    sampled_expected_count: Array
    """The expected count of each sampled class, [num_sampled]."""

    @classmethod
    def of(cls, values: Any, labels_shape: tuple[int, ...]) -> Self:
        """From the three as anything array-like; ``ArgumentError`` where they do not fit each other and the labels."""
        if isinstance(values, cls):
            candidates, true_count, sampled_count = (
                values.sampled_candidates, values.true_expected_count, values.sampled_expected_count
            )  # fmt: skip
        else:
            try:
                candidates, true_count, sampled_count = values
            except (TypeError, ValueError):
                raise ArgumentError(
                    "sampled_values are not three arrays.",
                    "Give (sampled_candidates, true_expected_count, sampled_expected_count).",
                ) from None
        ids = as_integers(candidates, "Candidates")
        check_shape(ids.shape, (ids.size,), "sampled_candidates")
        true_array, sampled_array = as_value(true_count), as_value(sampled_count)
        check_shape(true_array.shape, labels_shape, "true_expected_count")
        check_shape(sampled_array.shape, ids.shape, "sampled_expected_count")
        return cls(ids.astype(np.int64), true_array, sampled_array)


def log_uniform_sampler(
    true_classes: npt.ArrayLike, num_sampled: int, range_max: int, seed: int | None = None
) -> SampledValues:
    """Distinct classes below ``range_max``, drawn from the log-uniform distribution, which suits classes by frequency.

        P(class) = log((class + 2) / (class + 1)) / log(range_max + 1)

    Classes are drawn until enough of them are distinct; with ``t`` draws a class was to be expected
    ``1 - (1 - P)^t`` times. The draws are ``shardvar.random.stateless_uniform`` of the seed; without one they differ
    from call to call.

    >>> sorted(log_uniform_sampler([[0]], 3, 3, seed=7).sampled_candidates.tolist())
    [0, 1, 2]
    """
    if not 0 <= num_sampled <= range_max:
        raise ArgumentError(f"{num_sampled} distinct classes below {range_max} do not exist.", "Sample fewer.")
    candidates, draws = _draw_distinct(num_sampled, range_max, randbits(62) if seed is None else seed)
    true_count = expected_count(np.asarray(true_classes), range_max, draws)
    return SampledValues(candidates, true_count, expected_count(candidates, range_max, draws))


def expected_count(classes: npt.ArrayLike, range_max: int, draws: int) -> Array:
    """How often each class is to be expected among the distinct ones of so many draws, float32."""
    ids = np.asarray(classes, np.float64)
    chance = np.log1p(1 / (ids + 1)) / np.log1p(range_max)
    chance = np.minimum(chance, np.nextafter(1, 0))  # of a single class it is 1, whose complement has no logarithm
    return np.asarray(-np.expm1(draws * np.log1p(-chance)), np.float32)


def _draw_distinct(count: int, range_max: int, seed: int) -> tuple[Ints, int]:
    """The first ``count`` distinct classes of a stream of draws, and how many draws that took."""
    found: dict[int, None] = {}
    draws = chunk = 0
    while len(found) < count:
        size = min(_DRAWN_AT_ONCE, 4 * count + 16)
        uniform = stateless_uniform([size], [seed, chunk], dtype="float64")
        chunk += 1
        for drawn in (np.expm1(uniform * np.log1p(range_max)).astype(np.int64) % range_max).tolist():
            draws += 1
            found.setdefault(drawn)
            if len(found) == count:
                break
    return np.fromiter(found, np.int64, len(found)), draws
