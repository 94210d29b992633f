"""Matrix products with a variable, and the gradients of the functions of nn with respect to shards.

Products need no second copy of the variable:

    concat    the variable comes to the device where the program computes, one shard at a time, and
              is multiplied there
    sharded   the other matrix goes to each shard, is multiplied there, and the product comes back

R-MATMUL-1 (RFC 000): "tf.matmul will concat the sharded variable and then do the multiplication";
alternatively 'one can broadcast "b" to the parameter servers, do sharded multiplication on each
parameter server, send the results back and finally concat the results'. Both give the same product;
they differ in what crosses between devices, which ``sv.track_transfers()`` shows.

A variable on the left gives rows of the product, one on the right gives terms of a sum. Of two
shards with rows 0-1 and 2 of a [3, m] variable ``b``: ``a @ b = a[:, 0:2] @ b[0:2] + a[:, 2:3] @
b[2:3]``.

``vjp(function, *args)`` returns the function's value and its pullback. The pullback takes the
gradient of a scalar with respect to that value, and returns the gradients with respect to the
function's differentiable arguments: for a variable pairs (gradient, shard), for an array an array.
A program chains pullbacks, and needs no tape. The table at the end has the functions with one.

R-GRAD-1 (RFC 000): "gradient computation and update are always performed at the component variable
level". The gradient of rows that were looked up is one ``IndexedSlices`` a shard, with local row
numbers, in the order of the ids, rows that come twice kept; a shard that was not read has one
without rows. A dense gradient is cut like the variable.

``gradient`` adds what several pullbacks contribute to each variable.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from inspect import signature
from math import prod
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array
from shardvar.reference.devices import (
    copy_into,
    current_device,
    device_scope,
    move_array,
    operation_scope,
)
from shardvar.reference.nn import losses
from shardvar.reference.nn.lookup import (
    Bags,
    as_integers,
    bag_gradients,
    check_max_norm,
    check_table,
    clip_rows,
    components,
    distinct_ids,
    embedding_lookup,
    embedding_lookup_sparse,
    plan_bags,
    plan_safe_bags,
    read_bags,
    row_layout_of,
    row_norms,
    safe_embedding_lookup_sparse,
)
from shardvar.reference.variables.interface import VariableInterface
from shardvar.reference.variables.rows import IndexedSlices
from shardvar.reference.variables.sharded import ShardedVariable
from shardvar.reference.variables.values import as_value, holding
from shardvar.reference.variables.variable import Variable

MatmulMode = Literal["concat", "sharded"]
_Product = Callable[[Array, Array, Array], object]
"""``product(other, shard, out)`` writes the product of the two to ``out``."""


def matmul(a: npt.ArrayLike, b: npt.ArrayLike, mode: MatmulMode = "concat") -> Array:
    """Return ``a @ b``, where one of them may be a variable; a second variable is read whole.

    Parameters
    ----------
    a : array_like, Variable or ShardedVariable
        [*batch, n, k], a variable [n, k].
    b : array_like, Variable or ShardedVariable
        [k, m].
    mode : {"concat", "sharded"}, default "concat"
        "concat" brings the shards to the current device; "sharded" multiplies each shard on its own
        device.

    Returns
    -------
    ndarray
        [*batch, n, m].

    Raises
    ------
    ArgumentError
        If the factors have no product, or `mode` is another text.

    Examples
    --------
    >>> import shardvar as sv
    >>> table = sv.ShardedVariable([sv.Variable([[1.0], [2.0]]), sv.Variable([[3.0]])])
    >>> sv.matmul(table, [[2.0]], mode="sharded").tolist(), sv.matmul([[1.0, 1.0, 1.0]], table).tolist()
    ([[2.0], [4.0], [6.0]], [[6.0]])
    """
    if mode not in get_args(MatmulMode):
        raise ArgumentError(f"mode is {mode!r}.", "It is 'concat' or 'sharded'.")
    with operation_scope("matmul"):
        if isinstance(a, VariableInterface):
            other = _value(b)
            check_product(a, other)
            # Each shard gives its own rows.
            out = np.empty((a.shape[0], other.shape[1]), np.result_type(a.dtype, other.dtype))
            for shard, rows in _shards(a):
                _multiply(shard, other, out[rows], lambda x, w, y: np.matmul(w, x, y), mode)
            return out
        if isinstance(b, VariableInterface):
            other = _value(a)
            check_product(other, b)
            left = other.reshape(prod(other.shape[:-1]), other.shape[-1])
            # Each shard gives the term of its rows and their columns of ``left``. Terms are added
            # in the order of the shards, into the first one, so that only two products are ever in
            # memory.
            shape, dtype = (len(left), b.shape[1]), np.result_type(left.dtype, b.dtype)
            total: Array | None = None
            for shard, rows in _shards(b):
                term = np.empty(shape, dtype)
                _multiply(shard, left[:, rows], term, np.matmul, mode)
                total = term if total is None else np.add(total, term, out=total)
            out = np.zeros(shape, dtype) if total is None else total
            return out.reshape(*other.shape[:-1], b.shape[1])
        left, right = _value(a), _value(b)
        check_product(left, right)
        return np.asarray(left @ right)


def matmul_transposed(a: Array, b: VariableInterface, mode: MatmulMode) -> Array:
    """Return ``a @ b.T`` [n, k]; each shard gives the columns of its rows."""
    with operation_scope("matmul"):
        out = np.empty((a.shape[0], b.shape[0]), np.result_type(a.dtype, b.dtype))
        for shard, rows in _shards(b):
            _multiply(shard, a, out[:, rows], lambda x, w, y: np.matmul(x, w.T, y), mode)
        return out


def check_product(left: Array | VariableInterface, right: Array | VariableInterface) -> None:
    """Raise ``ArgumentError`` unless the factors are numbers [*batch, n, k] and [k, m]."""
    if np.object_ in (left.dtype, right.dtype):
        raise ArgumentError("Strings have no product.", "Give numbers.")
    a, b = left.shape, right.shape
    if len(a) < 2 or len(b) != 2 or a[-1] != b[0]:
        raise ArgumentError(f"Shapes {a} and {b} have no product.", "Give [n, k] and [k, m].")


def _multiply(
    shard: Variable, other: Array, out: Array, product: _Product, mode: MatmulMode
) -> None:
    """Compute ``product(other, shard, out)`` here, or on the shard's device."""
    if mode == "concat":
        with _value_here(shard) as value:
            product(other, value, out)
        return
    # Move the other factor there.
    here, there = current_device(), shard.device
    moved = move_array(np.ascontiguousarray(other), here, there)
    with device_scope(there), _value_here(shard) as value:
        if here is there:  # ``out`` is on the same device: no product has to come back
            product(moved, value, out)
            return
        computed = np.empty(out.shape, out.dtype)
        product(moved, value, computed)
    # Bring the product back.
    copy_into(out, computed, there, here)


@contextmanager
def _value_here(shard: Variable) -> Iterator[Array]:
    """Yield the shard's value on the current device: its locked memory, or a copy."""
    if len(shard.resources) == 1 and shard.device is current_device():
        with holding(shard.resources):
            yield shard.resources[0].array
    else:
        yield shard.read_value()


def _shards(variable: VariableInterface) -> Iterator[tuple[Variable, slice]]:
    """Yield the shards that hold rows, each with its range of rows."""
    bounds = row_layout_of(variable).bounds
    for shard, start, stop in zip(components(variable), bounds, bounds[1:], strict=False):
        if start < stop:
            yield shard, slice(start, stop)


def _value(value: Any) -> Array:
    # The second variable of a product of two is read whole: only one factor can be taken shard by
    # shard.
    return value.read_value() if isinstance(value, VariableInterface) else as_value(value)


Gradient = Array | IndexedSlices
ShardGradients = tuple[tuple[Gradient | None, Variable], ...]
"""Pairs as ``apply_gradients`` takes them, one for each shard."""
Pullback = Callable[[Any], tuple[Any, ...]]
"""upstream -> the gradient by each differentiable argument, in their order."""


# Parts and sums.


def sparse_gradients(table: VariableInterface, ids: Array, values: Array) -> ShardGradients:
    """Return the shards' parts of a gradient with ``values`` [n, *row] in the rows ``ids`` [n]."""
    shards, layout = components(table), row_layout_of(table)
    # A shard without rows that were read has an empty gradient, not None: Adam decays the slots of
    # such a shard too.
    nothing = np.zeros((0, *table.shape[1:]), values.dtype)
    parts = [IndexedSlices(nothing, np.zeros(0, ids.dtype), shard.shape) for shard in shards]
    for number, local, places in layout.split_rows(ids.astype(np.int64, copy=False)):
        own = values if places is None else values[places]
        parts[number] = IndexedSlices(
            own, local.astype(ids.dtype, copy=False), shards[number].shape
        )
    return tuple(zip(parts, shards, strict=True))


def dense_gradients(table: VariableInterface, value: Array) -> ShardGradients:
    """Return the shards' parts of a gradient, which must have the variable's shape."""
    if value.shape != tuple(table.shape):
        cause = f"The gradient of {table.name!r} has shape {value.shape}, not {tuple(table.shape)}."
        raise ArgumentError(cause, "Give a gradient of the variable's shape.")
    bounds = row_layout_of(table).bounds if table.shape else (0,)
    if len(bounds) == 1:  # a scalar has no rows to cut
        return ((value, components(table)[0]),)
    parts = zip(components(table), bounds, bounds[1:], strict=False)
    return tuple((value[start:stop], shard) for shard, start, stop in parts)


def gradient(contributions: Iterable[Any], sources: Sequence[Any]) -> list[Gradient | None]:
    """Return the sum of the contributions to each source: sparse if all of them are, or None.

    R-GRAD-2 (RFC 000): "We don't plan to support directly using ShardedVariable in TF gradient
    APIs": it is refused.

    Parameters
    ----------
    contributions : iterable of tuple
        Pairs (gradient, variable), as pullbacks return them; a variable may come several times.
    sources : Variable or sequence of Variable
        The variables to differentiate by, none of them sharded.

    Raises
    ------
    ArgumentTypeError
        If a source is a sharded variable, or not a variable, or a contribution is not a pair.
    """
    sums: dict[int, Gradient] = {}
    for pair in contributions:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ArgumentTypeError(
                f"A contribution is {type(pair).__name__}.", "Give pairs (gradient, variable)."
            )
        part, variable = pair
        if part is None:
            continue
        before = sums.get(id(variable))
        if before is None:
            total = part
        elif isinstance(before, IndexedSlices) and isinstance(part, IndexedSlices):
            total = IndexedSlices(
                np.concatenate([before.values, part.values]),
                np.concatenate([before.indices, part.indices]),
                before.dense_shape,
            )
        else:
            total = _dense(before) + _dense(part)
        sums[id(variable)] = total
    return [sums.get(id(variable)) for variable in check_sources(sources)]


def check_sources(sources: Any) -> list[Variable]:
    """Return the variables to differentiate by; ``ArgumentTypeError`` for a sharded one."""
    if isinstance(sources, ShardedVariable) or not isinstance(sources, list | tuple):
        sources = [sources]
    for source in sources:
        if isinstance(source, ShardedVariable):
            raise ArgumentTypeError(
                f"{source.name!r} is a sharded variable, which has no gradient as a whole.",
                "Gradients belong to shards: give its .variables, or a module's "
                ".trainable_variables.",
            )
        if not isinstance(source, Variable):
            raise ArgumentTypeError(f"{type(source).__name__} has no gradient.", "Give variables.")
    return list(sources)


def upstream_check(value: Array) -> Callable[[Any], Array]:
    """Return a function that makes an array of the value's dtype of its gradient, of its shape."""
    # The value need not be kept until its gradient comes.
    shape, dtype = value.shape, value.dtype

    def check(upstream: Any) -> Array:
        array = np.asarray(upstream)
        if array.shape != shape:
            raise ArgumentError(
                f"The gradient of a value of shape {shape} has shape {array.shape}.",
                "Give one number an element.",
            )
        return array.astype(dtype, copy=False)

    return check


def _dense(part: Gradient) -> Array:
    return part.to_dense() if isinstance(part, IndexedSlices) else part


# Pullbacks. A rule of ``_RULES`` takes all arguments of its function by name, and returns the value
# and the pullback.


def vjp(function: Callable[..., Array], *args: Any, **kwargs: Any) -> tuple[Array, Pullback]:
    """Return the value of a function and its pullback.

    The pullback maps a gradient by the value to the gradients by the arguments.

    Parameters
    ----------
    function : callable
        ``matmul``, ``operator.getitem``, or a lookup or a sampled loss of ``sv.nn``.
    *args : any
        The arguments of the function.
    **kwargs : any
        Its arguments by keyword.

    Returns
    -------
    value : ndarray
        ``function(*args, **kwargs)``.
    pullback : callable
        Takes a gradient of the shape of `value`, and returns a tuple: for each variable among the
        arguments pairs (gradient, shard), for each differentiable array an array.

    Raises
    ------
    ArgumentError
        If the function has no pullback, or refuses the arguments.

    Examples
    --------
    >>> import shardvar as sv
    >>> table = sv.Variable([[1.0], [2.0]])
    >>> rows, pullback = sv.nn.vjp(sv.nn.embedding_lookup, table, [1, 1])
    >>> ((gradient, shard),) = pullback([[3.0], [4.0]])[0]
    >>> gradient.indices.tolist(), gradient.values.tolist(), shard is table
    ([1, 1], [[3.0], [4.0]], True)
    """
    rule = _RULES.get(function)
    if rule is None:
        names = ", ".join(known.__name__ for known in _RULES)
        raise ArgumentError(
            f"{getattr(function, '__name__', function)} has no pullback.", f"Give one of {names}."
        )
    bound = _signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return rule(**bound.arguments)


_signature = cache(signature)
"""The signature of a function that has a rule; cached, since reading it is slow."""


def _lookup(
    params: Any, ids: Any, max_norm: float | None, name: str | None
) -> tuple[Array, Pullback]:
    table = check_table(params)
    limit = check_max_norm(max_norm, table.dtype)
    read = embedding_lookup(table, ids, None, name)
    numbers = as_integers(ids, "Ids")
    flat = numbers.ravel()
    value = read if limit is None else clip_rows(read, limit, numbers.ndim)
    check = upstream_check(value)
    # Keeps the rows alive only where the pullback needs them.
    clipped = None if limit is None else read

    def pullback(upstream: Any) -> tuple[ShardGradients]:
        above = check(upstream)
        if limit is not None and clipped is not None:
            above = clip_gradient(clipped, above, limit, numbers.ndim)
        return (sparse_gradients(table, flat, above.reshape(len(flat), *table.shape[1:])),)

    return value, pullback


def clip_gradient(rows: Array, upstream: Array, max_norm: float, first_axis: int) -> Array:
    """Return the gradient of ``clip_rows``: ``(g - x (x . g) / |x|^2) m / |x|`` for a long row x."""
    # A shortened row is m x / |x|, which does not change when x gets longer. So the part of g along
    # x is taken out: for x = (3, 4) and g = (5, 0) that is x * 15 / 25 = (1.8, 2.4), and the rest,
    # (3.2, -2.4), is scaled by m / 5.
    axes = tuple(range(first_axis, rows.ndim))
    norm = row_norms(rows, first_axis)
    # A row of exactly max_norm has two one-sided gradients; this takes the longer rows' shape, as
    # TensorFlow does.
    is_longer = (norm >= max_norm) & (norm > 0)
    safe = np.where(is_longer, norm, 1)
    along = np.sum(rows * upstream, axis=axes, keepdims=True)
    shortened = (upstream - rows * along / (safe * safe)) * rows.dtype.type(max_norm) / safe
    return np.where(is_longer, shortened, upstream).astype(rows.dtype, copy=False)


def _bags(plan: Callable[..., Bags], table_name: str) -> Any:
    """Return the rule of a lookup of bags, given their plan and the name of its table."""

    def rule(max_norm: float | None, name: str | None, **arguments: Any) -> tuple[Array, Pullback]:
        table = check_table(arguments.pop(table_name))
        bags = plan(table.dtype, **arguments)
        limit = check_max_norm(max_norm, table.dtype)
        value = read_bags(table, bags, limit, name or "embedding_lookup_sparse")
        check = upstream_check(value)

        def pullback(upstream: Any) -> tuple[ShardGradients]:
            ids, gradient = bag_gradients(bags, check(upstream), table.dtype)
            # The rows are read again: to keep them would cost memory until the pullback is called.
            if limit is not None:
                gradient = clip_gradient(
                    table.sparse_read(distinct_ids(bags.ids)[0]), gradient, limit, 1
                )
            return (sparse_gradients(table, ids, gradient),)

        return value, pullback

    return rule


def _matmul(a: Any, b: Any, mode: MatmulMode) -> tuple[Array, Pullback]:
    value = matmul(a, b, mode)
    check = upstream_check(value)

    def pullback(upstream: Any) -> tuple[Any, Any]:
        above = check(upstream)
        flat = above.reshape(-1, above.shape[-1])
        left, right = _plain(a), _plain(b)
        rows = left if isinstance(left, VariableInterface) else left.reshape(-1, left.shape[-1])
        # For y = a @ b with upstream g: d/da = g @ b.T and d/db = a.T @ g. Where the other factor
        # is a variable, its shards are used one by one in the mode of the product; a.T @ g is
        # computed as (g.T @ a).T for that.
        of_left = (
            matmul_transposed(flat, right, mode)
            if isinstance(right, VariableInterface)
            else flat @ right.T
        )
        of_right = (
            matmul(flat.T, rows, mode).T if isinstance(rows, VariableInterface) else rows.T @ flat
        )
        return _cut(a, of_left.reshape(left.shape)), _cut(b, of_right)

    return value, pullback


def _sampled(
    scores: Callable[[losses.SampledLogits], Array], slopes: Callable[[losses.SampledLogits], Array]
) -> Any:
    """Return the rule of a sampled loss, given the loss and its derivative by the logits."""

    def rule(weights: Any, biases: Any, **arguments: Any) -> tuple[Array, Pullback]:
        sampled = losses.sampled_logits(weights, biases, **arguments)
        value, inputs = scores(sampled), sampled.inputs
        check = upstream_check(value)

        def pullback(upstream: Any) -> tuple[ShardGradients, ShardGradients, Array]:
            # Each example has its own labels, and all share the samples: logits are
            # einsum("btd,bd->bt") and x @ rows.T. The products below are their transposes, in the
            # order of ``sampled.ids``: labels of all examples, then samples.
            by_logits = slopes(sampled) * check(upstream)[:, None]
            num_true = sampled.true_rows.shape[1]
            true, others = by_logits[:, :num_true], by_logits[:, num_true:]
            of_true = np.einsum("bt,bd->btd", true, inputs).reshape(-1, inputs.shape[1])
            of_rows = np.concatenate([of_true, others.T @ inputs])
            of_offsets = np.concatenate([true.ravel(), others.sum(axis=0)])
            of_inputs = np.einsum("bt,btd->bd", true, sampled.true_rows)
            return (
                sparse_gradients(check_table(weights), sampled.ids, of_rows),
                sparse_gradients(check_table(biases), sampled.ids, of_offsets),
                of_inputs + others @ sampled.sampled_rows,
            )

        return value, pullback

    return rule


def _softmax_slopes(sampled: losses.SampledLogits) -> Array:
    """Return the derivative of ``-S y log softmax(z)`` by z: ``softmax(z) S y - y``."""
    weight = sampled.labels.sum(axis=1, keepdims=True)
    return np.asarray(np.exp(losses.log_softmax(sampled.logits)) * weight - sampled.labels)


def _logistic_slopes(sampled: losses.SampledLogits) -> Array:
    """Return the derivative of the logistic loss by z: ``sigmoid(z) - y``."""
    # exp of -|z| never overflows: sigmoid(z) is 1 / (1 + exp(-z)) for z >= 0, and exp(z) / (1 +
    # exp(z)) below.
    decay = np.exp(-np.abs(sampled.logits))
    chance = np.where(sampled.logits >= 0, 1, decay) / (1 + decay)
    return np.asarray(chance - sampled.labels)


def _getitem(a: VariableInterface, b: Any) -> tuple[Array, Pullback]:
    """Return ``a[b]`` and its pullback; the gradient of an untouched shard is None."""
    table = check_table(a)
    value = table[b]
    check = upstream_check(value)

    def pullback(upstream: Any) -> tuple[ShardGradients]:
        dense = np.zeros(table.shape, value.dtype)
        # An index may name an element twice: add, not assign.
        np.add.at(dense, b, check(upstream))
        # Indexed like the value, since the index may hold slices, lists and masks.
        touched = np.zeros(table.shape, np.bool_)
        touched[b] = True
        marks = [np.asarray(mark).any() for mark, _ in dense_gradients(table, touched)]
        parts = zip(dense_gradients(table, dense), marks, strict=True)
        return (tuple((part if mark else None, shard) for (part, shard), mark in parts),)

    return value, pullback


def _plain(value: Any) -> Any:
    return value if isinstance(value, VariableInterface) else as_value(value)


def _cut(argument: Any, gradient: Array) -> Any:
    return (
        dense_gradients(argument, gradient) if isinstance(argument, VariableInterface) else gradient
    )


_RULES: dict[Callable[..., Any], Callable[..., tuple[Array, Pullback]]] = {
    embedding_lookup: _lookup,
    embedding_lookup_sparse: _bags(plan_bags, "params"),
    safe_embedding_lookup_sparse: _bags(plan_safe_bags, "embedding_weights"),
    matmul: _matmul,
    losses.sampled_softmax_loss: _sampled(losses.softmax_losses, _softmax_slopes),
    losses.nce_loss: _sampled(losses.logistic_losses, _logistic_slopes),
    operator.getitem: _getitem,
}
