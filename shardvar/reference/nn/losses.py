"""Losses over so many classes that only a sample of them is computed, with the classes' weights in
a sharded variable.

1. sample: which classes stand for all the others, and how often each class is expected in such a
   sample;
2. look up the rows of weights and biases of all labels and samples, each from the shard that holds
   it;
3. compute logits: products with the inputs, less the logarithm of the class's expected count;
4. compute the loss of each example: the sum of logistic losses (``nce_loss``) or the softmax's
   cross-entropy.

R-LOSS-1 (RFC 002): "people have to write methods that respect the partitions, e.g.
tf.nn.sampled_softmax_loss". Here, as in lookups, no partition strategy has to be kept "consistent"
between them: the variable knows its row layout.
"""

from secrets import randbits
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array, DType, Ints, Shape
from shardvar.records import entity, fields
from shardvar.reference.nn.lookup import as_integers, check_table, embedding_lookup
from shardvar.reference.random import stateless_uniform
from shardvar.reference.variables.interface import VariableInterface
from shardvar.reference.variables.values import as_value, cast_value, check_shape

_MAX_DRAWS = 1 << 16
"""Uniform values drawn at a time, at most: 512 KiB."""


def nce_loss(
    weights: VariableInterface,
    biases: VariableInterface,
    labels: npt.ArrayLike,
    inputs: npt.ArrayLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = False,
    name: str = "nce_loss",
    *,
    seed: int | None = None,
) -> Array:
    """Return the noise-contrastive loss of each example: ``S max(z, 0) - z y + log(1 + exp(-|z|))``
    over logits z.

    Parameters
    ----------
    weights : Variable or ShardedVariable
        The weights of the classes, [classes, dim], real numbers.
    biases : Variable or ShardedVariable
        The biases of the classes, [classes].
    labels : array_like of int
        The classes of each example, [batch, num_true].
    inputs : array_like
        [batch, dim].
    num_sampled : int
        The number of distinct classes to draw.
    num_classes : int
        The number of classes to draw from.
    num_true : int, default 1
        The number of labels of each example.
    sampled_values : SampledValues or sequence of array_like, optional
        Classes that were sampled already; by default ``log_uniform_sampler`` draws them.
    remove_accidental_hits : bool, default False
        True: a sampled class that is one of an example's labels does not count for it.
    name : str, default "nce_loss"
        The operation's name in the transfer ledger.
    seed : int, optional
        The seed of the sampler; without a seed every call draws other classes.

    Returns
    -------
    ndarray
        [batch], of the dtype of `weights`.

    Raises
    ------
    ArgumentError
        If shapes or dtypes do not fit, or more classes are drawn than there are.
    ArgumentTypeError
        If `weights` or `biases` is not a variable, or `labels` are not integers.
    OutOfRange
        If a label is not a row of `weights`.
    """
    return logistic_losses(
        sampled_logits(
            weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
            remove_accidental_hits, name, seed,
        )
    )  # fmt: skip


def sampled_softmax_loss(
    weights: VariableInterface,
    biases: VariableInterface,
    labels: npt.ArrayLike,
    inputs: npt.ArrayLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = True,
    seed: int | None = None,
    name: str = "sampled_softmax_loss",
) -> Array:
    """Return the cross-entropy of each example over its labels and the sampled classes.

    See ``nce_loss`` for the other parameters.

    Parameters
    ----------
    remove_accidental_hits : bool, default True
        True: a sampled class that is one of an example's labels does not count for it.
    name : str, default "sampled_softmax_loss"
        The operation's name in the transfer ledger.
    """
    return softmax_losses(
        sampled_logits(
            weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
            remove_accidental_hits, name, seed,
        )
    )  # fmt: skip


# Candidate samplers.


@entity
class SampledValues:
    """The answer of a candidate sampler: classes, and the expected count of each class."""

    sampled_candidates: Ints
    """The sampled classes, [num_sampled]."""
    true_expected_count: Array
    """The expected count of each label among them, [batch, num_true]."""
    sampled_expected_count: Array
    """The expected count of each sampled class, [num_sampled]."""

    @classmethod
    def of(cls, values: Any, labels_shape: Shape) -> Self:
        """Parse sampled values, and check that they fit each other and the labels.

        Parameters
        ----------
        values : SampledValues or sequence of array_like
            (sampled_candidates, true_expected_count, sampled_expected_count).
        labels_shape : tuple of int
            The shape of the labels, (batch, num_true).

        Returns
        -------
        SampledValues
            The same values as arrays.

        Raises
        ------
        ArgumentError
            If there are not three arrays, or their shapes do not fit.
        ArgumentTypeError
            If the candidates are not integers.
        """
        if isinstance(values, cls):
            values = [getattr(values, field.name) for field in fields(cls)]
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
    """Draw distinct classes from the log-uniform distribution, for classes sorted by frequency.

        P(class) = log((class + 2) / (class + 1)) / log(range_max + 1)

    Classes are drawn until enough of them are distinct; after ``t`` draws the expected count of a
    class is ``1 - (1 - P)^t``. The draws are ``shardvar.reference.random.stateless_uniform`` of the
    seed.

    Parameters
    ----------
    true_classes : array_like of int
        The labels, [batch, num_true], whose expected counts are wanted.
    num_sampled : int
        The number of distinct classes to draw.
    range_max : int
        The number of classes.
    seed : int, optional
        The seed; without a seed every call draws other classes.

    Raises
    ------
    ArgumentError
        If `num_sampled` is negative or larger than `range_max`.

    Examples
    --------
    >>> sorted(log_uniform_sampler([[0]], 3, 3, seed=7).sampled_candidates.tolist())
    [0, 1, 2]
    """
    if not 0 <= num_sampled <= range_max:
        raise ArgumentError(
            f"{num_sampled} distinct classes below {range_max} do not exist.", "Sample fewer."
        )
    key = randbits(62) if seed is None else seed
    distinct: dict[int, None] = {}
    draws = batch = 0
    while len(distinct) < num_sampled:
        size = min(_MAX_DRAWS, 4 * num_sampled + 16)
        uniform = stateless_uniform([size], [key, batch], dtype="float64")
        batch += 1
        # The distribution function is log(c + 1) / log(range_max + 1), so its inverse is exp(u
        # log(range_max + 1)) - 1, rounded down. For range_max = 3 and u = 0.6 that is 4^0.6 - 1 =
        # 1.3: class 1. Rounding of expm1 may reach range_max itself, which the remainder makes
        # class 0.
        classes = np.expm1(uniform * np.log1p(range_max)).astype(np.int64) % range_max
        for drawn in classes.tolist():
            draws += 1
            distinct.setdefault(drawn)
            if len(distinct) == num_sampled:
                break
    candidates = np.fromiter(distinct, np.int64, len(distinct))
    true_count = expected_count(true_classes, range_max, draws)
    return SampledValues(candidates, true_count, expected_count(candidates, range_max, draws))


def expected_count(classes: npt.ArrayLike, range_max: int, draws: int) -> Array:
    """Return the expected count of each class among the distinct classes of the draws, float32."""
    # P(0) of 3 classes is log(2) / log(4) = 0.5, and in 2 draws 1 - 0.5^2 = 0.75.
    ids = np.asarray(classes, np.float64)
    # log((c + 2) / (c + 1)) = log1p(1 / (c + 1)), which keeps its digits for classes in the
    # millions.
    chance = np.log1p(1 / (ids + 1)) / np.log1p(range_max)
    # Of a single class it is 1, and log1p(-1) is infinite.
    chance = np.minimum(chance, np.nextafter(1, 0))
    # 1 - (1 - P)^t = -expm1(t log1p(-P)): for a rare class P is about 1e-9, and 1 - P would round
    # most of it away.
    return np.asarray(-np.expm1(draws * np.log1p(-chance)), np.float32)


# Logits and losses.


@entity
class SampledLogits:
    """The logits of each example's labels, then of the samples; and their operands."""

    logits: Array
    """[batch, num_true + num_sampled]."""
    labels: Array
    """The wanted distribution over them: 1 / num_true for the labels, 0 for the samples."""
    ids: Ints
    """The classes that were looked up: all labels row by row, then the samples."""
    true_rows: Array
    """The weights of the labels, [batch, num_true, dim]."""
    sampled_rows: Array
    """The weights of the samples, [num_sampled, dim]."""
    inputs: Array
    """The inputs, [batch, dim]."""


def sampled_logits(
    weights: VariableInterface,
    biases: VariableInterface,
    labels: npt.ArrayLike,
    inputs: npt.ArrayLike,
    num_sampled: int,
    num_classes: int,
    num_true: int,
    sampled_values: Any,
    remove_accidental_hits: bool,
    name: str = "sampled_logits",
    seed: int | None = None,
) -> SampledLogits:
    """Return what both losses are computed from."""
    features, classes = _check(weights, biases, labels, inputs, num_true)
    if sampled_values is None:
        if num_classes > check_table(weights).shape[0]:
            raise ArgumentError(
                f"There are {num_classes} classes and {weights.shape[0]} rows of weights."
            )
        sampled_values = log_uniform_sampler(classes, num_sampled, num_classes, seed)
    sampled = SampledValues.of(sampled_values, classes.shape)
    ids = np.concatenate([classes.ravel(), sampled.sampled_candidates])
    rows = embedding_lookup(weights, ids, name=name)
    offsets = embedding_lookup(biases, ids, name=name)
    true_rows = rows[: classes.size].reshape(*classes.shape, rows.shape[1])
    sampled_rows = rows[classes.size :]
    true = np.einsum("btd,bd->bt", true_rows, features) + offsets[: classes.size].reshape(
        classes.shape
    )
    others = features @ sampled_rows.T + offsets[classes.size :]
    if remove_accidental_hits:
        others = others + hit_penalties(classes, sampled.sampled_candidates, others.dtype)
    # A class that is drawn often would count often. To subtract log Q from its logit divides its
    # share exp(z) by Q: expected 2 times, it counts half. Then the sampled loss estimates the loss
    # over all classes.
    true = true - np.log(sampled.true_expected_count).astype(true.dtype)
    others = others - np.log(sampled.sampled_expected_count).astype(true.dtype)
    wanted = np.concatenate([np.full_like(true, 1 / num_true), np.zeros_like(others)], axis=1)
    logits = np.concatenate([true, others], axis=1)
    return SampledLogits(logits, wanted, ids, true_rows, sampled_rows, features)


def logistic_losses(sampled: SampledLogits) -> Array:
    """Return the sum of logistic losses of each example, without overflow."""
    # -y log s(z) - (1 - y) log(1 - s(z)) with the sigmoid s equals max(z, 0) - z y + log(1 +
    # exp(-|z|)), where exp never sees a positive number: z = 1000 and y = 1 give 1000 - 1000 +
    # log(1 + 0) = 0.
    z, y = sampled.logits, sampled.labels
    with np.errstate(invalid="ignore"):  # an infinite logit has the loss NaN
        return np.asarray(np.sum(np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z))), axis=1))


def softmax_losses(sampled: SampledLogits) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray(-np.sum(sampled.labels * log_softmax(sampled.logits), axis=1))


def log_softmax(z: Array) -> Array:
    """Return the logarithm of the softmax of each row, in the form that does not overflow."""
    # softmax(z) = softmax(z - c) for any c. With the maximum for c, exp is at most 1: [1000, 0]
    # becomes [0, -1000].
    with np.errstate(invalid="ignore"):
        below = z - np.max(z, axis=1, keepdims=True, initial=-np.inf)
        return np.asarray(below - np.log(np.sum(np.exp(below), axis=1, keepdims=True)))


def hit_penalties(labels: Ints, candidates: Ints, dtype: DType) -> Array:
    """Return the lowest number of the dtype where a sample is one of the example's labels, else 0."""
    # A sample that is also a label does not count against it; with such a logit its share is 0. Of
    # equal samples only the last is a hit, as in TensorFlow, whose samplers give distinct ones. The
    # first place from behind is the last from the front.
    reversed_first = np.unique(candidates[::-1], return_index=True)[1]
    is_last = np.zeros(len(candidates), np.bool_)
    is_last[len(candidates) - 1 - reversed_first] = True
    hits = (labels[:, :, None] == candidates).any(axis=1) & is_last
    return np.asarray(np.where(hits, np.finfo(dtype).min, dtype.type(0)))


def _check(
    weights: Any, biases: Any, labels: Any, inputs: Any, num_true: int
) -> tuple[Array, Ints]:
    """Return the inputs [batch, dim] and labels [batch, num_true], once they fit the tables."""
    table, offsets = check_table(weights), check_table(biases)
    check_shape(offsets.shape, (table.shape[0],), "The biases' variable")
    if len(table.shape) != 2 or table.dtype.kind != "f":
        raise ArgumentError(
            f"Weights have shape {table.shape} and dtype {table.dtype}.",
            "Give reals [classes, dim].",
        )
    features = cast_value(as_value(inputs), table.dtype, "The inputs")
    check_shape(features.shape, (None, table.shape[1]), "The array of inputs")
    classes = as_integers(labels, "Labels")
    if num_true < 1:
        raise ArgumentError(f"num_true is {num_true}.", "Give at least one label an example.")
    check_shape(classes.shape, (features.shape[0], num_true), "The array of labels")
    return features, classes.astype(np.int64)
