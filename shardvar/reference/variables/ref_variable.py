"""RefVariable: the variables of TensorFlow 1, whose reads return the variable's own memory instead
of a value.

R-REF-1 (RFC 003): "A ref edge is a pair of pointers, one to a Tensor and one to a mutex, owned by
something other than the tf runtime. [...] This means that normal tensor objects in the graph can
silently alias a mutable tensor, and hence two ops with the same input can see it having different
values."

The RFC names two hazards that follow: a predicate that changes after it was read, so that parts of
both branches run; and a gradient taken at a value that an update has already changed.
spec_tests/test_variable_hazards.py shows both. The kind exists for that test and for teaching. The
library never creates one; construct it, or return it from a creator.
"""

from typing import Any

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.reference.variables.scopes import scoped_name
from shardvar.reference.variables.updates import ADD, REPLACE, SUB, UpdateKind
from shardvar.reference.variables.values import as_value, cast_value, check_shape
from shardvar.reference.variables.variable import Variable


class RefVariable(Variable):
    """A variable whose reads alias it.

    >>> variable = RefVariable([1.0, 2.0])
    >>> read = variable.read_value()
    >>> _ = variable.assign([7.0, 8.0])
    >>> read
    array([7., 8.], dtype=float32)
    """

    def __init__(
        self,
        initial_value: Any,
        trainable: bool | None = None,
        name: str | None = None,
        dtype: Any = None,
        **more: Any,
    ) -> None:
        unused = sorted(
            key
            for key, value in more.items()
            if value is not None and key in ("shape", "colocated_with")
        )
        if unused:
            raise ArgumentError(
                f"A RefVariable takes no {', '.join(unused)}.",
                "Create an sv.Variable, or leave it out.",
            )
        value = initial_value() if callable(initial_value) else initial_value
        self._array = np.array(as_value(value, dtype))
        self._trainable = trainable is not False
        self._name = scoped_name("Variable" if name is None else name)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._array.dtype

    @property
    def name(self) -> str:
        return self._name

    @property
    def trainable(self) -> bool:
        return self._trainable

    def read_value(self) -> Array:
        """Return the memory itself, which later writes change: the fault of this kind."""
        return self._array

    def assign(
        self, value: Any, use_locking: Any = None, name: str | None = None, read_value: bool = True
    ) -> Any:
        return self._apply(REPLACE, value)

    def assign_add(
        self, delta: Any, use_locking: Any = None, name: str | None = None, read_value: bool = True
    ) -> Any:
        return self._apply(ADD, delta)

    def assign_sub(
        self, delta: Any, use_locking: Any = None, name: str | None = None, read_value: bool = True
    ) -> Any:
        return self._apply(SUB, delta)

    def _apply(self, update: UpdateKind, value: Any) -> Array:
        """Write in place, and return the same memory, as ``tf.assign`` returned a ref."""
        # No mutex and no plan: two threads may interleave here, as ref variables allowed.
        array = cast_value(value, self.dtype, "The value")
        check_shape(array.shape, self.shape, "The value")
        update.apply(self._array, array)
        return self._array
