"""Chapter 7. Losses over so many classes that only a sample of them is computed.

weights  # shards of [classes, dim]
biases   # shards of [classes]
labels   # [batch, num_true] classes
inputs   # [batch, dim]
"""

from collections.abc import Sequence
from math import exp, fsum, log, log1p

import numpy as np

from shardvar.spec.lookups import embedding_lookup
from shardvar.spec.variables import Array, Shards

__all__ = [
    "expected_count",
    "nce_loss",
    "sampled_logits",
    "sampled_softmax_loss",
]


# TensorFlow, tf.random.log_uniform_candidate_sampler with unique=True.
def expected_count(one: int, num_classes: int, draws: int) -> float:
    """Return how often a class is expected among the distinct ones of so many draws.

    Classes are sorted by frequency, and drawn with P(c) = log((c + 2) / (c + 1)) / log(classes + 1).

    >>> expected_count(0, 3, draws=2)
    0.75
    """
    chance = log((one + 2) / (one + 1)) / log(num_classes + 1)
    return 1.0 - (1.0 - chance) ** draws


# R-LOSS-1 (RFC 002): "However, to parallelize computation, people have to write methods that
# respect the partitions, e.g. `tf.nn.sampled_softmax_loss`."
def sampled_logits(
    weights: Shards,
    biases: Shards,
    labels: Array,
    inputs: Array,
    sampled: Sequence[int],
    true_count: Array,
    sampled_count: Array,
    remove_accidental_hits: bool,
) -> Array:
    """Return the logits of each example's labels, then of the samples: [batch, num_true + sampled].

    A logit is the product of the class's row with the inputs, plus its bias, less the logarithm of
    the class's expected count. A sample that is one of the example's labels gets the logit -inf.

    >>> one = np.ones((1, 1))
    >>> sampled_logits([one], [np.zeros(1)], np.array([[0]]), 3 * one, [0], one, one[0], True).tolist()
    [[3.0, -inf]]
    """
    num_true, logits = labels.shape[1], []
    for classes, features, counts in zip(labels.tolist(), inputs, true_count, strict=True):
        asked = [*classes, *sampled]
        rows, offsets = embedding_lookup(weights, asked), embedding_lookup(biases, asked)
        expected = [*counts, *sampled_count]
        row = [
            fsum(float(w) * float(x) for w, x in zip(rows[n], features, strict=True))
            + float(offsets[n])
            - log(expected[n])
            for n in range(len(asked))
        ]
        if remove_accidental_hits:
            hits = [n for n, one in enumerate(asked) if n >= num_true and one in classes]
            row = [-np.inf if n in hits else value for n, value in enumerate(row)]
        logits.append(row)
    return np.array(logits, np.float64).reshape(len(labels), num_true + len(sampled))


# TensorFlow, tf.nn.nce_loss.
def nce_loss(logits: Array, num_true: int) -> list[float]:
    """Return the sum of the logistic losses of each example: ``-y log s(z) - (1 - y) log(1 - s(z))``.

    The wanted y is 1 / num_true for the labels and 0 for the samples, and s is the sigmoid.

    >>> nce_loss(np.array([[0.0, -np.inf]]), 1)
    [0.6931471805599453]
    """
    losses = []
    for row in logits.tolist():
        wanted = [1 / num_true] * num_true + [0.0] * (len(row) - num_true)
        terms = [
            max(z, 0.0) - (z * y if y else 0.0) + log1p(exp(-abs(z)))
            for z, y in zip(row, wanted, strict=True)
        ]
        losses.append(fsum(terms))
    return losses


# TensorFlow, tf.nn.sampled_softmax_loss.
def sampled_softmax_loss(logits: Array, num_true: int) -> list[float]:
    """Return the cross-entropy of each example: ``-sum(y log softmax(z))``.

    >>> sampled_softmax_loss(np.array([[0.0, 0.0]]), 1)
    [0.6931471805599453]
    """
    losses = []
    for row in logits.tolist():
        most = max(row)  # softmax(z) = softmax(z - c) for any c, and exp(0) does not overflow
        total = log(fsum(exp(z - most) for z in row))
        losses.append(-fsum((z - most - total) / num_true for z in row[:num_true]))
    return losses
