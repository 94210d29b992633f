"""The functions of nn together with their pullbacks, on request.

``vjp(function, *args)`` returns the function's value and its pullback, which takes the gradient of a scalar with
respect to that value and returns its gradients with respect to the function's differentiable arguments: for a variable
the pairs (gradient, shard), for an array an array. Chaining pullbacks is the whole of backpropagation; there is no
tape. The table at the end says which functions have one.
"""

import operator
from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.nn import losses
from shardvar.nn.bags import Bags, bag_gradients, check_combiner, distinct_ids, read_bags
from shardvar.nn.gradients import ShardGradients, check_upstream, dense_gradients, sparse_gradients, upstream_check
from shardvar.nn.lookup import check_max_norm, clip_rows, embedding_lookup, row_norms
from shardvar.nn.matmul import Mode, matmul, matmul_transposed
from shardvar.nn.params import as_integers, check_table
from shardvar.nn.sparse import (
    Compat,
    embedding_lookup_sparse,
    plan_bags,
    plan_safe_bags,
    safe_embedding_lookup_sparse,
)
from shardvar.nn.sparse_tensor import SparseTensor
from shardvar.variables.interface import VariableInterface
from shardvar.variables.values import as_value

Pullback = Callable[[Any], tuple[Any, ...]]
"""upstream -> the gradient with respect to each differentiable argument, in the order of the arguments."""


def vjp(function: Callable[..., Array], *args: Any, **kwargs: Any) -> tuple[Array, Pullback]:
    """``function(*args, **kwargs)`` and its pullback.

    >>> from shardvar.variables import Variable
    >>> table = Variable([[1.0], [2.0]])
    >>> rows, pullback = vjp(embedding_lookup, table, [1, 1])
    >>> ((gradient, shard),) = pullback([[3.0], [4.0]])[0]
    >>> gradient.indices.tolist(), gradient.values.tolist(), shard is table
    ([1, 1], [[3.0], [4.0]], True)
    """
    rule = _RULES.get(function)
    if rule is None:
        known = ", ".join(known.__name__ for known in _RULES)
        raise ArgumentError(f"{getattr(function, '__name__', function)} has no pullback.", f"Give one of {known}.")
    return rule(**_signature(function).bind(*args, **kwargs).arguments)


_signature = cache(signature)
"""Of the functions that have a rule, which are few: reading one takes as long as a small product."""


def _lookup(params: Any, ids: Any, max_norm: float | None = None, name: str | None = None) -> tuple[Array, Pullback]:
    table = check_table(params)
    limit = check_max_norm(max_norm, table.dtype)
    read = embedding_lookup(table, ids, None, name)
    numbers = as_integers(ids, "Ids")
    flat = numbers.ravel()
    value = read if limit is None else clip_rows(read, limit, numbers.ndim)
    check = upstream_check(value)
    clipped = None if limit is None else read  # what no gradient needs is not kept

    def pullback(upstream: Any) -> tuple[ShardGradients]:
        above = check(upstream)
        if limit is not None and clipped is not None:
            above = clip_gradient(clipped, above, limit, numbers.ndim)
        return (sparse_gradients(table, flat, above.reshape(len(flat), *table.shape[1:])),)

    return value, pullback


def clip_gradient(rows: Array, upstream: Array, max_norm: float, first_axis: int) -> Array:
    """The gradient of ``clip_rows``: where a row was shortened, what would lengthen it is taken out.

    ``d(x m / |x|) = (g - x (x . g) / |x|^2) m / |x|``.
    """
    axes = tuple(range(first_axis, rows.ndim))
    norm = row_norms(rows, first_axis)
    # A row of exactly max_norm has two one-sided gradients; as in TensorFlow it is that of longer rows.
    is_longer = (norm >= max_norm) & (norm > 0)
    safe = np.where(is_longer, norm, 1)
    along = np.sum(rows * upstream, axis=axes, keepdims=True)
    shortened = (upstream - rows * along / (safe * safe)) * rows.dtype.type(max_norm) / safe
    return np.where(is_longer, shortened, upstream).astype(rows.dtype, copy=False)


def _lookup_sparse(
    params: Any,
    sp_ids: SparseTensor,
    sp_weights: SparseTensor | None,
    combiner: str | None = None,
    max_norm: float | None = None,
    name: str | None = None,
    compat: Compat | None = None,
) -> tuple[Array, Pullback]:
    return _bags(check_table(params), plan_bags(sp_ids, sp_weights, compat), combiner, max_norm, name, None)


def _safe_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None = None,
    combiner: str | None = "mean",
    default_id: int | None = None,
    max_norm: float | None = None,
    name: str | None = None,
) -> tuple[Array, Pullback]:
    table = check_table(embedding_weights)
    chosen = check_combiner(combiner, table.dtype)
    bags = plan_safe_bags(table.dtype, sparse_ids, sparse_weights, chosen, default_id)
    return _bags(table, bags, chosen, max_norm, name, sparse_ids.dense_shape[:-1])


def _bags(
    table: VariableInterface,
    bags: Bags,
    combiner: str | None,
    max_norm: float | None,
    name: str | None,
    batch: tuple[int, ...] | None,
) -> tuple[Array, Pullback]:
    chosen, limit = check_combiner(combiner, table.dtype), check_max_norm(max_norm, table.dtype)
    answer = read_bags(table, bags, chosen, limit, name or "embedding_lookup_sparse")
    value = answer.reshape(*((bags.count,) if batch is None else batch), *table.shape[1:])

    def pullback(upstream: Any) -> tuple[ShardGradients]:
        above = check_upstream(upstream, value).reshape(answer.shape)
        ids, gradient = bag_gradients(bags, chosen, above, table.dtype)
        if limit is not None:
            gradient = clip_gradient(table.sparse_read(distinct_ids(bags.ids)[0]), gradient, limit, 1)
        return (sparse_gradients(table, ids, gradient),)

    return value, pullback


def _matmul(a: Any, b: Any, mode: Mode = "concat") -> tuple[Array, Pullback]:
    value = matmul(a, b, mode)
    check = upstream_check(value)

    def pullback(upstream: Any) -> tuple[Any, Any]:
        above = check(upstream)
        flat = above.reshape(-1, above.shape[-1])
        left, right = _plain(a), _plain(b)
        rows = left if isinstance(left, VariableInterface) else left.reshape(-1, left.shape[-1])
        # Where a variable is the other factor, its shards come or are gone to one by one, as for the product itself.
        of_left = matmul_transposed(flat, right, mode) if isinstance(right, VariableInterface) else flat @ right.T
        of_right = matmul(flat.T, rows, mode).T if isinstance(rows, VariableInterface) else rows.T @ flat
        return _cut(a, of_left.reshape(left.shape)), _cut(b, of_right)

    return value, pullback


def _sampled(scores: Callable[[losses.SampledLogits], Array], slopes: Callable[[losses.SampledLogits], Array]) -> Any:
    """The rule of a sampled loss, given the loss and its derivative by the logits."""

    def rule(weights: Any, biases: Any, labels: Any, inputs: Any, *args: Any, **kwargs: Any) -> tuple[Array, Pullback]:
        sampled = losses.sampled_logits(weights, biases, labels, inputs, *args, **kwargs)
        value = scores(sampled)

        def pullback(upstream: Any) -> tuple[ShardGradients, ShardGradients, Array]:
            by_logits = slopes(sampled) * check_upstream(upstream, value)[:, None]
            of_rows, of_offsets, of_inputs = _logit_gradients(sampled, by_logits)
            of_weights = sparse_gradients(check_table(weights), sampled.ids, of_rows)
            return of_weights, sparse_gradients(check_table(biases), sampled.ids, of_offsets), of_inputs

        return value, pullback

    return rule


def _logit_gradients(sampled: losses.SampledLogits, by_logits: Array) -> tuple[Array, Array, Array]:
    """The gradients of the looked-up rows [ids, dim], of the looked-up biases [ids] and of the inputs [batch, dim]."""
    num_true = sampled.true_rows.shape[1]
    true, others = by_logits[:, :num_true], by_logits[:, num_true:]
    of_true = np.einsum("bt,bd->btd", true, sampled.inputs).reshape(-1, sampled.inputs.shape[1])
    of_rows = np.concatenate([of_true, others.T @ sampled.inputs])
    of_inputs = np.einsum("bt,btd->bd", true, sampled.true_rows) + others @ sampled.sampled_rows
    return of_rows, np.concatenate([true.ravel(), others.sum(axis=0)]), of_inputs


def _softmax_slopes(sampled: losses.SampledLogits) -> Array:
    weight = sampled.labels.sum(axis=1, keepdims=True)
    return np.asarray(np.exp(losses.log_softmax(sampled.logits)) * weight - sampled.labels)


def _logistic_slopes(sampled: losses.SampledLogits) -> Array:
    decay = np.exp(-np.abs(sampled.logits))
    chance = np.where(sampled.logits >= 0, 1, decay) / (1 + decay)
    return np.asarray(chance - sampled.labels)


def _getitem(a: VariableInterface, b: Any) -> tuple[Array, Pullback]:
    """``a[b]``; the gradient of a shard that the index does not touch is None."""
    table = check_table(a)
    value = table[b]

    def pullback(upstream: Any) -> tuple[ShardGradients]:
        dense = np.zeros(table.shape, value.dtype)
        np.add.at(dense, b, check_upstream(upstream, value))
        touched = np.zeros(table.shape, np.bool_)
        touched[b] = True
        marks = [np.asarray(mark).any() for mark, _ in dense_gradients(table, touched)]
        parts = zip(dense_gradients(table, dense), marks, strict=True)
        return (tuple((part if is_touched else None, shard) for (part, shard), is_touched in parts),)

    return value, pullback


def _plain(value: Any) -> Any:
    return value if isinstance(value, VariableInterface) else as_value(value)


def _cut(argument: Any, gradient: Array) -> Any:
    return dense_gradients(argument, gradient) if isinstance(argument, VariableInterface) else gradient


_RULES: dict[Callable[..., Any], Callable[..., tuple[Array, Pullback]]] = {
    embedding_lookup: _lookup,
    embedding_lookup_sparse: _lookup_sparse,
    safe_embedding_lookup_sparse: _safe_lookup_sparse,
    matmul: _matmul,
    losses.sampled_softmax_loss: _sampled(losses.softmax_losses, _softmax_slopes),
    losses.nce_loss: _sampled(losses.logistic_losses, _logistic_slopes),
    operator.getitem: _getitem,
}
