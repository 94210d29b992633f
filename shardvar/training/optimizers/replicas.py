"""One gradient of those that several replicas computed for a variable.

R-OPT-8 (RFC 002): replicas exchange their updates, and each copy gets the same. ``aggregation`` says how: the sum, the
mean, or the first replica's alone. A variable that was created without one gets the sum, as TensorFlow's optimizers
always take it: where each replica has a part of the batch, gradients of a loss that is a sum add up.
"""

from typing import Any

from shardvar.errors import ArgumentError
from shardvar.nn.gradients import Gradient
from shardvar.variables.indexed_slices import IndexedSlices
from shardvar.variables.mirrored import PerReplica, aggregate
from shardvar.variables.values import as_value, check_shape
from shardvar.variables.variable import Variable, VariableAggregation


def aggregate_gradient(part: Gradient | PerReplica | None, variable: Variable) -> Gradient | None:
    """The gradient on the current device; None where no replica has one; what is not ``PerReplica`` as it is."""
    if not isinstance(part, PerReplica):
        return part
    if all(value is None for value in part.values):
        return None
    for number, value in enumerate(part.values):
        _check_value(value, variable, f"Replica {number}'s gradient of {variable.name}")
    mode = getattr(variable, "aggregation", VariableAggregation.NONE)
    made: Gradient = aggregate(part, VariableAggregation.SUM if mode is VariableAggregation.NONE else mode)
    return made


def _check_value(value: Any, variable: Variable, what: str) -> None:
    """Shapes are equal before anything is added, so that nothing is broadcast."""
    if value is None:
        raise ArgumentError(
            f"{what} is None, and another replica's is not.", "Give zeros, or IndexedSlices of no rows."
        )
    if isinstance(value, IndexedSlices):
        check_shape(value.values.shape[value.indices.ndim :], variable.shape[1:], f"A row of {what}")
    else:
        check_shape(as_value(value).shape, variable.shape, what)
