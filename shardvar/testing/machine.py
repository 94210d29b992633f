"""A state machine: any sequence of reads and writes of a sharded variable is that of the whole array.

    class MyMachine(ShardedVariableMachine):
        def make(self, full, sizes):
            return MyShardedTable(np.split(full, np.cumsum(sizes)[:-1]))

        def lookup(self, ids):
            return self.variable.rows(ids)

    TestMyTable = MyMachine.TestCase

Only ``make`` must be overridden; the other methods speak TensorFlow's names to whatever it returned, and are
overridden where an implementation has others. One that raises ``NotImplementedError`` is left out.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shardvar.devices import Device
from shardvar.layout.dtypes import Array
from shardvar.testing.arrays import counting
from shardvar.testing.compare import assert_matches_oracle
from shardvar.testing.geometry import layouts
from shardvar.testing.operations import Ids, Key, Update, ids, slices, updated, updates
from shardvar.variables import IndexedSlices, ShardedVariable, Variable

# Strategies for sharded variables together with the array that they are.


ROW_SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (2,), (3, 2), (0,))
"""What one row may be like: a number, a vector, a matrix, nothing."""


def sharded_of(array: Array, sizes: Sequence[int], name: str = "w") -> ShardedVariable:
    """The array cut into shards of so many rows, each on a simulated server of its own.

    >>> import numpy as np
    >>> [shard.shape for shard in sharded_of(np.ones((5, 2)), [2, 0, 3]).variables]
    [(2, 2), (0, 2), (3, 2)]
    """
    stops = np.cumsum(sizes).tolist()
    return ShardedVariable(
        [
            Variable(array[stop - size : stop], name=f"{name}/part_{number}", device=Device(f"ps:{number}"))
            for number, (size, stop) in enumerate(zip(sizes, stops, strict=True))
        ]
    )


@st.composite
def sharded_variables(
    draw: st.DrawFn,
    dtype: npt.DTypeLike = np.float32,
    row_shapes: Sequence[tuple[int, ...]] = ROW_SHAPES,
    max_shards: int = 5,
) -> tuple[ShardedVariable, Array]:
    """A sharded variable and the array that it is: random layouts, uneven, with empty shards.

    Values count 1, 2, 3 and so on, so that a wrong row shows where it came from. They shrink to one shard without rows.
    """
    sizes = draw(layouts(max_shards))
    array = counting((sum(sizes), *draw(st.sampled_from(list(row_shapes)))), dtype)
    return sharded_of(array, sizes), array


class ShardedVariableMachine(RuleBasedStateMachine):
    """Reads and writes of a sharded variable and of the array that it is, side by side; subclasses give ``make``."""

    dtype: npt.DTypeLike = np.float32
    """The dtype of the variables."""

    def __init__(self) -> None:
        super().__init__()
        self.full: Array = np.empty(0)
        self.variable: Any = None

    def make(self, full: Array, sizes: list[int]) -> Any:
        """A sharded variable that holds ``full``, in shards of ``sizes`` rows or as nearly so as you can."""
        return sharded_of(full, sizes)

    def read(self) -> Array:
        """The whole value."""
        return np.asarray(self.variable)

    def lookup(self, ids: Ids) -> Array:
        """The rows of these ids, in their order."""
        return np.asarray(self.variable.sparse_read(ids))

    def index(self, key: Key) -> Array:
        """The value at a basic index."""
        return np.asarray(self.variable[key])

    def write(self, update: Update) -> Any:
        """Carry out a write; what replaces the variable, or None where it was changed in place."""
        if update.ids is not None:
            getattr(self.variable, f"scatter_{update.op}")(IndexedSlices(update.values, update.ids))
        else:
            verb = "assign" if update.op == "assign" else f"assign_{update.op}"
            getattr(self.variable, verb)(update.values)

    @initialize(sizes=layouts(), row_shape=st.sampled_from([(), (1,), (2,)]))
    def start(self, sizes: list[int], row_shape: tuple[int, ...]) -> None:
        """Make both."""
        self.full = counting((sum(sizes), *row_shape), self.dtype)
        self.variable = self.make(self.full.copy(), sizes)

    @precondition(lambda self: self.variable is not None)
    @rule(data=st.data())
    def reads_rows(self, data: st.DataObject) -> None:
        """A lookup gives the rows of the ids, in their order."""
        rows = data.draw(ids(len(self.full)))
        try:
            assert_matches_oracle(self.lookup(rows), self.full[rows], what="The lookup")
        except NotImplementedError:
            return

    @precondition(lambda self: self.variable is not None)
    @rule(data=st.data())
    def reads_at_an_index(self, data: st.DataObject) -> None:
        """Indexing is NumPy's on the whole."""
        key = data.draw(slices(self.full.shape))
        try:
            assert_matches_oracle(self.index(key), self.full[key], what="What stands at the index")
        except NotImplementedError:
            return

    @precondition(lambda self: self.variable is not None)
    @rule(data=st.data())
    def writes(self, data: st.DataObject) -> None:
        """A write changes the rows that it names, in the order of its ids, and no others."""
        update = data.draw(updates(self.full.shape, self.dtype))
        try:
            replacement = self.write(update)
        except NotImplementedError:
            return
        self.variable = self.variable if replacement is None else replacement
        self.full = updated(self.full, update)

    @invariant()
    def is_the_whole(self) -> None:
        """The value is that of the whole array, shape and dtype included."""
        if self.variable is not None:
            assert_matches_oracle(self.read(), self.full, what="The variable")
