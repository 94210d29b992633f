"""The two hazards that RFC 003 names: what goes wrong where a read may change, and not where reads
are snapshots."""

from typing import Any

import numpy as np
import pytest

import shardvar as sv
from shardvar.errors import ArgumentError
from shardvar.reference.variables import RefVariable, ResourceVariable


def first_layers_gradient(first: Any, second: Any, x: float) -> float:
    """Two linear layers, y = (x * first) * second, trained on y itself; the second is updated
    before the first's gradient, which is x * second, is taken: nothing orders the two."""
    weight = second.read_value()
    hidden = x * float(first.read_value())
    second.assign_sub(np.float32(hidden))
    return x * float(weight)


def test_a_gradient_taken_at_a_value_that_an_update_has_changed_is_wrong() -> None:
    """R-REF-1 (RFC 003): "it would be possible for the value after the update to be used in the
    backward pass, leading to incorrect gradients".
    """
    assert first_layers_gradient(RefVariable(3.0), RefVariable(5.0), x=2.0) == 2.0 * (5.0 - 6.0)


def test_a_gradient_taken_at_a_snapshot_is_right() -> None:
    assert first_layers_gradient(ResourceVariable(3.0), ResourceVariable(5.0), x=2.0) == 2.0 * 5.0


def test_what_a_ref_variable_reads_and_returns_is_its_memory() -> None:
    """R-REF-1 (RFC 003): "two ops with the same input can see it having different values"."""
    variable = RefVariable([1.0, 2.0], name="r")
    read, returned = variable.read_value(), variable.assign_add([1.0, 1.0])
    assert read is returned and read.tolist() == [2, 3]
    assert (
        variable.assign_sub(np.ones(2)).tolist() == [1, 2]
        and variable.name == "r"
        and variable.trainable
    )
    with pytest.raises(ArgumentError, match="Expected"):
        variable.assign([1.0])
    with pytest.raises(ArgumentError, match="takes no shape"):
        RefVariable(1.0, shape=())


def test_a_creator_may_make_ref_variables() -> None:
    """R-REF-1 (RFC 003): "RefVariable will be kept in tf.compat.v1"; here whoever wants it asks for
    it."""
    with sv.variable_creator_scope(lambda next_creator, **kwargs: RefVariable(**kwargs)):
        assert type(sv.Variable(1.0)) is RefVariable


@pytest.mark.parametrize(("trainable", "expected"), [(None, True), (True, True), (False, False)])
def test_a_ref_variable_is_trainable_unless_it_is_told_otherwise(
    trainable: bool | None, expected: bool
) -> None:
    assert RefVariable(1.0, trainable=trainable).trainable is expected
