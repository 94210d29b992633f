"""Gradients with respect to shards: how the gradient of a table falls to its shards, and how several add up.

R-GRAD-1 (RFC 000): "gradient computation and update are always performed at the component variable level". The gradient
of rows that were looked up is one ``IndexedSlices`` a shard, with local row numbers, in the order of the ids, rows that
come twice kept; a shard of which nothing was read has one without rows. A dense gradient is cut like the variable.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array
from shardvar.nn.params import components, layout_of
from shardvar.variables.indexed_slices import IndexedSlices
from shardvar.variables.interface import VariableInterface
from shardvar.variables.sharded import ShardedVariable
from shardvar.variables.variable import Variable

Gradient = Array | IndexedSlices
ShardGradients = tuple[tuple[Gradient | None, Variable], ...]
"""Pairs as ``apply_gradients`` takes them, one for each shard."""


def sparse_gradients(table: VariableInterface, ids: Array, values: Array) -> ShardGradients:
    """The shards' parts of a gradient that has ``values`` [n, *row] in the rows ``ids`` [n], which are in range."""
    shards, layout = components(table), layout_of(table)
    nothing = np.zeros((0, *table.shape[1:]), values.dtype)
    parts = [IndexedSlices(nothing, np.zeros(0, ids.dtype), shard.shape) for shard in shards]
    for number, local, places in layout.split_rows(ids.astype(np.int64, copy=False)):
        own = values if places is None else values[places]
        parts[number] = IndexedSlices(own, local.astype(ids.dtype, copy=False), shards[number].shape)
    return tuple(zip(parts, shards, strict=True))


def dense_gradients(table: VariableInterface, value: Array) -> ShardGradients:
    """The shards' parts of a gradient that has the variable's shape."""
    bounds = layout_of(table).bounds if table.shape else (0,)
    if len(bounds) == 1:
        return ((value, components(table)[0]),)
    return tuple(
        (value[start:stop], shard) for shard, start, stop in zip(components(table), bounds, bounds[1:], strict=False)
    )


def gradient(
    contributions: Iterable[tuple[Gradient | None, Variable]], sources: Sequence[Any]
) -> list[Gradient | None]:
    """What the contributions add up to for each source; None where there is none.

    R-GRAD-2 (RFC 000): "We don't plan to support directly using ShardedVariable in TF gradient APIs": it is refused.
    """
    wanted = check_sources(sources)
    sums: dict[int, Gradient] = {}
    for part, variable in contributions:
        if part is not None:
            known = sums.get(id(variable))
            sums[id(variable)] = part if known is None else add_gradients(known, part)
    return [sums.get(id(variable)) for variable in wanted]


def add_gradients(first: Gradient, second: Gradient) -> Gradient:
    """The sum: sparse where both are, by letting the rows of the second follow those of the first."""
    if isinstance(first, IndexedSlices) and isinstance(second, IndexedSlices):
        return IndexedSlices(
            np.concatenate([first.values, second.values]),
            np.concatenate([first.indices, second.indices]),
            first.dense_shape,
        )
    return _dense(first) + _dense(second)


def check_sources(sources: Any) -> list[Variable]:
    """The variables that gradients are asked for; ``ArgumentTypeError`` for a sharded one, naming its shards."""
    if isinstance(sources, ShardedVariable) or not isinstance(sources, list | tuple):
        sources = [sources]
    for source in sources:
        if isinstance(source, ShardedVariable):
            raise ArgumentTypeError(
                f"A gradient is asked for the sharded variable {source.name!r}.",
                "Gradients belong to shards: give its .variables, or a module's .trainable_variables.",
            )
        if not isinstance(source, Variable):
            raise ArgumentTypeError(f"A gradient is asked for {type(source).__name__}.", "Give variables.")
    return list(sources)


def check_upstream(upstream: Any, value: Array) -> Array:
    """The gradient of what was computed, in its shape and dtype."""
    return upstream_check(value)(upstream)


def upstream_check(value: Array) -> Callable[[Any], Array]:
    """``check_upstream`` for a value that need not be kept until its gradient comes."""
    shape, dtype = value.shape, value.dtype

    def check(upstream: Any) -> Array:
        array = np.asarray(upstream)
        if array.shape != shape:
            raise ArgumentError(
                f"The gradient of a value of shape {shape} has shape {array.shape}.", "Give one number an element."
            )
        return array.astype(dtype, copy=False)

    return check


def _dense(part: Gradient) -> Array:
    return part.to_dense() if isinstance(part, IndexedSlices) else part
