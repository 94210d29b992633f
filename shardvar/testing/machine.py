"""A state machine: any sequence of reads and writes acts on a sharded variable as on the whole
array.

    class MyMachine(ShardedVariableMachine):
        def make(self, full, sizes):
            return MyShardedTable(np.split(full, np.cumsum(sizes)[:-1]))

        def lookup(self, ids):
            return self.variable.rows(ids)

    TestMyTable = MyMachine.TestCase

Only ``make`` must be overridden. The other methods call TensorFlow's names on the value that it
returned; override those for which an implementation has other names. A method that raises
``NotImplementedError`` is left out of the test. ``sharded_variables`` draws only the start of such
a sequence: a variable and its array.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shardvar.layout.dtypes import Array
from shardvar.reference.devices import Device
from shardvar.reference.variables import IndexedSlices, ShardedVariable, Variable
from shardvar.testing.arrays import counting
from shardvar.testing.compare import assert_matches_oracle
from shardvar.testing.geometry import layouts
from shardvar.testing.operations import (
    Ids,
    Key,
    Snapshot,
    Update,
    every_refused_update,
    ids,
    slices,
    updated,
    updates,
)

ROW_SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (2,), (3, 2), (0,))
"""The shapes of one row: a number, vectors, a matrix, a row without elements."""


def sharded_of(array: Array, sizes: Sequence[int], name: str = "w") -> ShardedVariable:
    """Return an array as shards with the given numbers of rows, each on a separate simulated
    server.

    Parameters
    ----------
    array : ndarray
        The whole value, of shape ``[rows, ...]``.
    sizes : sequence of int
        The rows of each shard; their sum equals the array's.
    name : str, default 'w'
        The name of the variable.

    Examples
    --------
    >>> import numpy as np
    >>> [shard.shape for shard in sharded_of(np.ones((5, 2)), [2, 0, 3]).variables]
    [(2, 2), (0, 2), (3, 2)]
    """
    stops = np.cumsum(sizes).tolist()
    return ShardedVariable(
        [
            Variable(
                array[stop - size : stop],
                name=f"{name}/part_{number}",
                device=Device(f"ps:{number}"),
            )
            for number, (size, stop) in enumerate(zip(sizes, stops, strict=True))
        ]
    )


@st.composite
def sharded_variables(
    draw: st.DrawFn,
    dtype: npt.DTypeLike = np.float32,
    row_shapes: Sequence[tuple[int, ...]] = ROW_SHAPES,
    max_shards: int = 13,
) -> tuple[ShardedVariable, Array]:
    """Draw a sharded variable and its array: uneven rows a shard, with empty shards, some in more
    than ten.

    Parameters
    ----------
    dtype : dtype_like, optional
        The dtype, float32 by default.
    row_shapes : sequence of tuple of int, optional
        The shapes of one row to choose from.
    max_shards : int, default 13
        The most shards.

    Returns
    -------
    SearchStrategy of tuple
        The strategy of pairs of ``ShardedVariable`` and ndarray. Values count 1, 2, 3 and so on, so
        that a wrong row shows its origin. They shrink to one shard without rows.
    """
    sizes = draw(layouts(max_shards))
    array = counting((sum(sizes), *draw(st.sampled_from(list(row_shapes)))), dtype)
    return sharded_of(array, sizes), array


class ShardedVariableMachine(RuleBasedStateMachine):
    """Reads and writes of a sharded variable and of the whole array, side by side; subclasses
    override ``make``."""

    dtype: npt.DTypeLike = np.float32
    """The dtype of the variables."""

    def __init__(self) -> None:
        super().__init__()
        self.full: Array = np.empty(0)
        self.variable: Any = None
        self.snapshots: list[Snapshot] = []

    def make(self, full: Array, sizes: list[int]) -> Any:
        """Return a sharded variable that holds an array.

        Parameters
        ----------
        full : ndarray
            The value, of shape ``[rows, ...]``.
        sizes : list of int
            The rows of each shard; an implementation may choose similar ones.

        Returns
        -------
        object
            The variable, which the other methods find as ``self.variable``.
        """
        return sharded_of(full, sizes)

    def read(self) -> Array:
        """Return the whole value."""
        return np.asarray(self.variable)

    def lookup(self, ids: Ids) -> Array:
        """Return rows in the order of their ids.

        Parameters
        ----------
        ids : ndarray of int64
            The ids, of shape ``[n]``.

        Returns
        -------
        ndarray
            The rows, of shape ``[n, ...]``.
        """
        return np.asarray(self.variable.sparse_read(ids))

    def index(self, key: Key) -> Array:
        """Return the value at a basic index.

        Parameters
        ----------
        key : tuple
            A basic index of NumPy: integers, slices, an ellipsis.

        Returns
        -------
        ndarray
            The part that it selects.
        """
        return np.asarray(self.variable[key])

    def write(self, update: Update) -> Any:
        """Write the whole variable or some rows.

        Parameters
        ----------
        update : Update
            The write.

        Returns
        -------
        object or None
            The new variable; None if the variable was changed in place.
        """
        if update.ids is not None:
            getattr(self.variable, f"scatter_{update.op}")(IndexedSlices(update.values, update.ids))
        else:
            method = "assign" if update.op == "assign" else f"assign_{update.op}"
            getattr(self.variable, method)(update.values)

    @initialize(sizes=layouts(), row_shape=st.sampled_from([(), (1,), (2,)]))
    def start(self, sizes: list[int], row_shape: tuple[int, ...]) -> None:
        """Make the variable and the array."""
        self.full = counting((sum(sizes), *row_shape), self.dtype)
        # A copy, since an implementation that writes into the array it was given would change the
        # oracle too. It changes afterwards, which an implementation that keeps it shows.
        given = self.full.copy()
        self.variable = self.make(given, sizes)
        given[...] = np.zeros((), given.dtype)

    @precondition(lambda self: self.variable is not None)
    @rule(data=st.data())
    def reads_rows(self, data: st.DataObject) -> None:
        """A lookup gives the rows of the ids, in their order."""
        rows = data.draw(ids(len(self.full)))
        try:
            found = self.lookup(rows)
        except NotImplementedError:
            return
        assert_matches_oracle(found, self.full[rows], what="The lookup")
        self.snapshots.append(Snapshot.of(found))

    @precondition(lambda self: self.variable is not None)
    @rule(data=st.data())
    def reads_at_an_index(self, data: st.DataObject) -> None:
        """Indexing gives what NumPy gives on the whole array."""
        key = data.draw(slices(self.full.shape))
        try:
            found = self.index(key)
        except NotImplementedError:
            return
        assert_matches_oracle(found, self.full[key], what="What stands at the index")
        self.snapshots.append(Snapshot.of(found))

    @precondition(lambda self: self.variable is not None)
    @rule(data=st.data())
    def writes(self, data: st.DataObject) -> None:
        """A write changes the rows that it names, in the order of its ids, and no others."""
        self._write(data.draw(updates(self.full.shape, self.dtype)))

    def _write(self, update: Update) -> None:
        """Write on both sides, and scribble over the operands afterwards."""
        given = Update(update.op, update.ids, update.values.copy())
        try:
            replacement = self.write(given)
        except NotImplementedError:
            return
        # Both sides change only now: an operation that is not implemented leaves them equal.
        self.variable = self.variable if replacement is None else replacement
        self.full = updated(self.full, update)
        # An implementation that keeps the caller's memory shows this.
        given.values[...] = np.zeros((), given.values.dtype)
        self.is_the_whole()

    @precondition(lambda self: self.variable is not None)
    @rule()
    def refuses(self) -> None:
        """A write of missing rows, or of another shape, raises and changes nothing."""
        # All of them, since an implementation that accepts one kind may refuse the others.
        for update in every_refused_update(self.full.shape, self.dtype):
            try:
                self.write(update)
            except NotImplementedError:
                continue
            except Exception:  # noqa: BLE001 - which exception it is, is the implementation's business
                self.is_the_whole()
                continue
            raise AssertionError(f"The write {update} must be refused.")

    @precondition(lambda self: self.variable is not None)
    @rule()
    def refuses_lookups(self) -> None:
        """A lookup of a row that is not there raises."""
        length = len(self.full)
        for bad in (length, length + 2, -1, -length - 1, 2**32):
            rows = np.array([*range(min(length, 2)), bad], np.int64)
            try:
                found = self.lookup(rows)
            except NotImplementedError:
                return
            except Exception:  # noqa: BLE001 - as above
                continue
            raise AssertionError(f"The lookup of {rows.tolist()} must be refused; it gave {found}.")

    @precondition(lambda self: self.variable is not None)
    @rule(op=st.sampled_from(["min", "max"]), is_held=st.booleans())
    def keeps_nan(self, op: str, is_held: bool) -> None:
        """A NaN is neither the least nor the greatest number: the row becomes NaN, as in NumPy."""
        if not len(self.full) or np.dtype(self.dtype).kind != "f":
            return
        row = self.full[:1]
        nan, number = np.full_like(row, np.nan), np.ones_like(row)
        first = np.zeros(1, np.int64)
        for values in (nan, number) if is_held else (number, nan):
            self._write(Update("update" if is_held and values is nan else op, first, values))
        # The NaN goes, since a comparison of later values would find it everywhere.
        self._write(Update("update", first, row.copy()))

    @precondition(lambda self: self.variable is not None)
    @rule()
    def reads_the_whole(self) -> None:
        """A value that was read is a snapshot: later writes do not change it."""
        self.snapshots.append(Snapshot.of(self.read()))

    @precondition(lambda self: bool(self.snapshots))
    @rule(data=st.data())
    def scribbles(self, data: st.DataObject) -> None:
        """A value that was read is not a view: overwriting it does not change the variable."""
        data.draw(st.sampled_from(self.snapshots)).scribble()

    @invariant()
    def snapshots_stay(self) -> None:
        """Every value that was read is as it was."""
        for snapshot in self.snapshots:
            assert_matches_oracle(snapshot.value, snapshot.copy, what="What was read before")

    @invariant()
    def is_the_whole(self) -> None:
        """The value equals the whole array, including shape and dtype."""
        if self.variable is not None:
            assert_matches_oracle(self.read(), self.full, what="The variable")
