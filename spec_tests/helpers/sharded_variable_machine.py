"""A state machine of reads and writes on a sharded variable, held against one NumPy array."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import shardvar as sv
from shardvar.errors import OutOfRange
from spec_tests.helpers.sharded_variables import (
    counting,
    ids_of,
    layouts,
    row_shapes,
    sharded_of,
)


class Container(RuleBasedStateMachine):
    """Any sequence of reads and writes on any layout is the same sequence on one NumPy array."""

    @initialize(sizes=layouts, row_shape=row_shapes, dtype=st.sampled_from(["float32", "int64"]))
    def make(self, sizes: list[int], row_shape: tuple[int, ...], dtype: str) -> None:
        self.array = counting((sum(sizes), *row_shape), dtype)
        self.sharded = sharded_of(self.array, sizes)

    @rule(verb=st.sampled_from(["assign", "assign_add", "assign_sub"]), factor=st.integers(-3, 3))
    def write_all(self, verb: str, factor: int) -> None:
        value = counting(self.array.shape, self.array.dtype) * np.asarray(factor, self.array.dtype)
        getattr(self.sharded, verb)(value)
        self.array = {
            "assign": value,
            "assign_add": self.array + value,
            "assign_sub": self.array - value,
        }[verb]

    @rule(verb=st.sampled_from(["add", "sub", "mul", "min", "max", "update"]), data=st.data())
    def write_some(self, verb: str, data: st.DataObject) -> None:
        ids = np.array(data.draw(ids_of(self.array)), int)
        values = np.asarray(
            data.draw(st.lists(st.integers(-4, 4), min_size=len(ids), max_size=len(ids))),
            self.array.dtype,
        ).reshape(len(ids), *[1] * (self.array.ndim - 1))
        values = np.broadcast_to(values, (len(ids), *self.array.shape[1:]))
        getattr(self.sharded, f"scatter_{verb}")(sv.IndexedSlices(values, ids))
        self.array = self.array.copy()
        for row, value in zip(ids, values, strict=True):  # one after another: the definition
            old = self.array[row]
            self.array[row] = {
                "add": old + value,
                "sub": old - value,
                "mul": old * value,
                "min": np.minimum(old, value),
                "max": np.maximum(old, value),
                "update": value,
            }[verb]

    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        wrong = data.draw(st.sampled_from([-1, len(self.array)]))
        ids = [*data.draw(ids_of(self.array, 3)), wrong]
        with pytest.raises(OutOfRange):
            self.sharded.scatter_add(
                sv.IndexedSlices(np.ones((len(ids), *self.array.shape[1:]), self.array.dtype), ids)
            )

    @rule(data=st.data())
    def read_some(self, data: st.DataObject) -> None:
        ids = data.draw(ids_of(self.array))
        np.testing.assert_array_equal(self.sharded.sparse_read(ids), self.array[np.array(ids, int)])

    @rule(
        bounds=st.tuples(*[st.none() | st.integers(-22, 22)] * 2),
        step=st.sampled_from([None, 1, 2, -1, -3]),
    )
    def index(self, bounds: tuple[int | None, int | None], step: int | None) -> None:
        np.testing.assert_array_equal(
            self.sharded[slice(*bounds, step)], self.array[slice(*bounds, step)]
        )

    @rule(data=st.data())
    def write_one_shard(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.sharded.variables) - 1))
        part = self.sharded.partition.parts[number]
        self.sharded.variables[number].assign(np.zeros(part.shape, self.array.dtype))
        self.array = self.array.copy()
        self.array[part.slices] = 0

    @invariant()
    def holds_the_array(self) -> None:
        np.testing.assert_array_equal(np.asarray(self.sharded), self.array)
