"""Losses over so many classes that only a sample of them is computed, with the classes' weights in a sharded variable.

1. the rows of weights and biases of all labels and samples are looked up, each from the shard that holds it;
2. logits are products with the inputs, less the logarithm of how often the class was to be expected;
3. the loss of each example is the sum of logistic losses (``nce_loss``) or the softmax's cross-entropy.

R-LOSS-1 (RFC 002): "people have to write methods that respect the partitions, e.g. tf.nn.sampled_softmax_loss". Here,
as in lookups, there is no partition strategy to keep "consistent" between them: the variable knows its layout.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array, Ints
from shardvar.nn.lookup import embedding_lookup
from shardvar.nn.params import as_integers, check_table
from shardvar.nn.samplers import SampledValues, log_uniform_sampler
from shardvar.variables.values import as_value, cast_value, check_shape


@dataclass(frozen=True, slots=True, eq=False)
class SampledLogits:
    """The logits of each example's labels, then of the samples; and what they were computed from."""

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


def nce_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = False,
    name: str = "nce_loss",
    *,
    seed: int | None = None,
) -> Array:
    """The noise-contrastive loss of each example, [batch]: ``S max(z, 0) - z y + log(1 + exp(-|z|))`` over logits z.

    ``labels`` [batch, num_true] are classes, ``inputs`` [batch, dim]. Without ``sampled_values`` distinct classes are
    drawn by ``log_uniform_sampler(seed=seed)``.
    """
    sampled = sampled_logits(
        weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values, remove_accidental_hits,
        name, seed,
    )  # fmt: skip
    return logistic_losses(sampled)


def sampled_softmax_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = True,
    seed: int | None = None,
    name: str = "sampled_softmax_loss",
) -> Array:
    """The cross-entropy of each example, [batch], over its labels and the samples; arguments as for ``nce_loss``."""
    sampled = sampled_logits(
        weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values, remove_accidental_hits,
        name, seed,
    )  # fmt: skip
    return softmax_losses(sampled)


def logistic_losses(sampled: SampledLogits) -> Array:
    """Summed over the logits of each example, in the form that does not overflow."""
    z, y = sampled.logits, sampled.labels
    with np.errstate(invalid="ignore"):  # what is infinite or no number has a loss that is no number
        return np.asarray(np.sum(np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z))), axis=1))


def softmax_losses(sampled: SampledLogits) -> Array:
    """``-S y log softmax(z)`` of each example."""
    with np.errstate(invalid="ignore"):
        return np.asarray(-np.sum(sampled.labels * log_softmax(sampled.logits), axis=1))


def log_softmax(z: Array) -> Array:
    """The logarithm of the softmax of each row, in the form that does not overflow."""
    with np.errstate(invalid="ignore"):
        below = z - np.max(z, axis=1, keepdims=True, initial=-np.inf)
        return np.asarray(below - np.log(np.sum(np.exp(below), axis=1, keepdims=True)))


def sampled_logits(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = False,
    name: str = "sampled_logits",
    seed: int | None = None,
) -> SampledLogits:
    """What both losses are computed from."""
    features, classes = _check(weights, biases, labels, inputs, num_true)
    if sampled_values is None:
        if num_classes > check_table(weights).shape[0]:
            raise ArgumentError(f"There are {num_classes} classes and {weights.shape[0]} rows of weights.")
        sampled_values = log_uniform_sampler(classes, num_sampled, num_classes, seed)
    sampled = SampledValues.of(sampled_values, classes.shape)
    ids = np.concatenate([classes.ravel(), sampled.sampled_candidates])
    rows = embedding_lookup(weights, ids, name=name)
    offsets = embedding_lookup(biases, ids, name=name)
    true_rows = rows[: classes.size].reshape(*classes.shape, rows.shape[1])
    sampled_rows = rows[classes.size :]
    true = np.einsum("btd,bd->bt", true_rows, features) + offsets[: classes.size].reshape(classes.shape)
    others = features @ sampled_rows.T + offsets[classes.size :]
    if remove_accidental_hits:
        others = others + hit_penalties(classes, sampled.sampled_candidates, others.dtype)
    true = true - np.log(sampled.true_expected_count).astype(true.dtype)
    others = others - np.log(sampled.sampled_expected_count).astype(true.dtype)
    wanted = np.concatenate([np.full_like(true, 1 / num_true), np.zeros_like(others)], axis=1)
    return SampledLogits(np.concatenate([true, others], axis=1), wanted, ids, true_rows, sampled_rows, features)


def hit_penalties(labels: Ints, candidates: Ints, dtype: np.dtype[Any]) -> Array:
    """The lowest number of the dtype where a sample is one of the example's labels, else 0: [batch, num_sampled].

    Of equal samples the last alone is hit, as in TensorFlow, whose samplers give distinct ones.
    """
    reversed_first = np.unique(candidates[::-1], return_index=True)[1]
    is_last = np.zeros(len(candidates), np.bool_)
    is_last[len(candidates) - 1 - reversed_first] = True
    hits = (labels[:, :, None] == candidates).any(axis=1) & is_last
    return np.asarray(np.where(hits, np.finfo(dtype).min, dtype.type(0)))


def _check(weights: Any, biases: Any, labels: Any, inputs: Any, num_true: int) -> tuple[Array, Ints]:
    """Inputs [batch, dim] and labels [batch, num_true], once they fit the tables."""
    table, offsets = check_table(weights), check_table(biases)
    check_shape(offsets.shape, (table.shape[0],), "The biases' variable")
    if len(table.shape) != 2 or table.dtype.kind != "f":
        raise ArgumentError(f"Weights have shape {table.shape} and dtype {table.dtype}.", "Give reals [classes, dim].")
    features = cast_value(as_value(inputs), table.dtype, "The inputs")
    check_shape(features.shape, (None, table.shape[1]), "The array of inputs")
    classes = as_integers(labels, "Labels")
    if num_true < 1:
        raise ArgumentError(f"num_true is {num_true}.", "Give at least one label an example.")
    check_shape(classes.shape, (features.shape[0], num_true), "The array of labels")
    return features, classes.astype(np.int64)
