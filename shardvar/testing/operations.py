"""Strategies for the reads and writes of a sharded variable: ids, bags, basic indexes, updates.

``updated`` is the definition of a write, by the plain rules of ``shardvar.spec``: one row after the
other.
"""

from collections.abc import Sequence
from math import prod
from types import EllipsisType
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shardvar.errors import ArgumentTypeError
from shardvar.layout.dtypes import Array, Shape
from shardvar.layout.region import read_shape
from shardvar.records import frozen
from shardvar.reference.devices import Device
from shardvar.reference.variables import IndexedSlices, ShardedVariable, Variable
from shardvar.spec import lookups, variables
from shardvar.testing.arrays import counting, layouts
from shardvar.testing.compare import assert_matches_oracle

Ids = npt.NDArray[np.int64]
Key = tuple[int | slice | EllipsisType | None, ...]


@frozen
class SparseIds:
    """Bags of ids: each row of the answer combines the rows of the table that one bag names."""

    bags: list[list[int]]
    """The ids of each bag; a bag may be empty."""
    weights: list[list[float]] | None
    """A positive weight for each id; None for weights of 1."""


def ids(length: int, max_size: int = 12, max_rank: int = 1) -> st.SearchStrategy[Ids]:
    """Return ids in ``[0, length)`` as int64: unsorted, duplicated, across shards; an empty array
    for length 0.

    Parameters
    ----------
    length : int
        The rows of the variable.
    max_size : int, default 12
        The most ids.
    max_rank : int, default 1
        Above 1, some arrays have several axes.

    Returns
    -------
    SearchStrategy of ndarray
        The strategy. Arrays shrink to fewer and smaller ids.
    """
    # Without rows the range would be 0 to -1, which Hypothesis refuses.
    flat = st.lists(st.integers(0, length - 1), max_size=max_size) if length else st.just([])
    one = flat.map(lambda some: np.array(some, np.int64))
    if max_rank < 2:
        return one
    column = one.map(lambda some: some.reshape(-1, 1))
    return st.one_of(one, column, one.map(lambda some: np.stack([some, some[::-1]])))


@st.composite
def sparse_ids(draw: st.DrawFn, length: int, max_bags: int = 4, max_ids: int = 4) -> SparseIds:
    """Draw bags of ids in ``[0, length)``, also empty ones, with and without weights.

    Parameters
    ----------
    length : int
        The rows of the variable.
    max_bags : int, default 4
        The most bags.
    max_ids : int, default 4
        The most ids of a bag.

    Returns
    -------
    SearchStrategy of SparseIds
        The strategy. Bags shrink to none.
    """
    bags = draw(st.lists(ids(length, max_ids).map(lambda some: some.tolist()), max_size=max_bags))
    if not draw(st.booleans()):
        return SparseIds(bags, None)
    weight = st.sampled_from([1.0, 2.0, 0.5, 3.0])
    return SparseIds(bags, [[draw(weight) for _ in bag] for bag in bags])


@st.composite
def slices(draw: st.DrawFn, shape: Shape, new_axes: bool = False) -> Key:
    """Draw legal basic indexes of NumPy for a shape, as tuples: integers, slices, an ellipsis.

    Parameters
    ----------
    shape : tuple of int
        The shape. Starts and stops lie beyond both ends of its axes, steps go backwards, axes are
        left out.
    new_axes : bool, default False
        Some indexes have a None.

    Returns
    -------
    SearchStrategy of tuple
        The strategy. Indexes shrink to ``()``.
    """
    key: list[Any] = []
    for extent in shape[: draw(st.integers(0, len(shape)))]:
        bound = st.none() | st.integers(-extent - 3, extent + 3)
        step = st.none() | st.sampled_from([1, 2, 3, -1, -2, -3])
        some: st.SearchStrategy[Any] = st.builds(slice, bound, bound, step)
        # An axis without elements has slices, but no valid integer.
        key.append(draw(some | st.integers(-extent, extent - 1) if extent else some))
    if len(key) == len(shape) and draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), ...)
    if new_axes and draw(st.booleans()):
        key.insert(draw(st.integers(0, len(key))), None)
    return tuple(key)


DENSE = ("assign", "add", "sub")
SPARSE = ("add", "sub", "mul", "div", "min", "max", "update")


@frozen
class Update:
    """One write of the whole variable, or of some rows."""

    op: str
    """``assign``, ``add`` or ``sub`` of the whole; ``add``, ``sub``, ``mul``, ``div``, ``min``,
    ``max``, ``update`` of rows."""
    ids: Ids | None
    """The rows in the order of writing, some repeated; None for the whole variable."""
    values: Array
    """The operand: of the shape of the variable, or one row an id."""


def updates(
    shape: Sequence[int], dtype: npt.DTypeLike = np.float32, op: str = ""
) -> st.SearchStrategy[Update]:
    """Return writes of a variable of this shape; with ``op``, sparse ones of that kind.

    Operands are the numbers 1, 2, 3 and so on, or powers of two that the dtype has, and for ``mul``
    and ``div`` always such powers: on a variable of small integers no order of the operands of one
    write rounds, and none is divided by zero. Booleans are only assigned and updated.

    Parameters
    ----------
    shape : sequence of int
        The shape of the variable.
    dtype : dtype_like, optional
        The dtype, float32 by default.
    op : str, default ''
        The kind of a sparse write, such as ``'add'``; any write by default.

    Returns
    -------
    SearchStrategy of Update
        The strategy. Writes shrink to small operands of few rows.

    Raises
    ------
    ArgumentTypeError
        If `shape` is not a sequence of integers, with one for the rows.
    """
    return _updates(_check_shape(shape), dtype, op)


def _check_shape(shape: Any) -> Shape:
    # A variable can be iterated, as an array can: its rows would be taken for extents.
    if not isinstance(shape, Sequence) or not shape:
        raise ArgumentTypeError(
            f"The shape is {shape!r}.", "Give the shape of a variable with rows: variable.shape."
        )
    return read_shape(shape)


@st.composite
def _updates(draw: st.DrawFn, shape: Shape, dtype: npt.DTypeLike, op: str) -> Update:
    sparse = bool(op) or draw(st.booleans())
    ops: Sequence[str] = SPARSE if sparse else DENSE
    if np.dtype(dtype).kind == "b":  # which have no arithmetic
        ops = ops[-1:] if sparse else ops[:1]
    name = op or draw(st.sampled_from(ops))
    rows = draw(ids(shape[0])) if sparse else None
    count = shape if rows is None else (len(rows), *shape[1:])
    if name not in ("mul", "div") and draw(st.booleans()):
        return Update(name, rows, counting(count, dtype))
    # An integer has no 0.25, which would become 0.
    some = (1.0, 2.0, 0.5, 4.0, 0.25, 8.0)
    held = [each for each in some if np.array(each).astype(dtype) == each]
    powers = st.lists(st.sampled_from(held), min_size=(n := prod(count)), max_size=n)
    return Update(name, rows, np.array(draw(powers)).reshape(count).astype(dtype))


def update_sequences(
    shape: Sequence[int], dtype: npt.DTypeLike = np.float32, max_size: int = 5
) -> st.SearchStrategy[list[Update]]:
    """Return sequences of writes, dense and sparse.

    Parameters
    ----------
    shape : sequence of int
        The shape of the variable.
    dtype : dtype_like, optional
        The dtype, float32 by default.
    max_size : int, default 5
        The most writes.

    Returns
    -------
    SearchStrategy of list of Update
        The strategy. Sequences shrink to fewer writes.
    """
    return st.lists(updates(shape, dtype), max_size=max_size)


def refused_updates(
    shape: Sequence[int], dtype: npt.DTypeLike = np.float32
) -> st.SearchStrategy[Update]:
    """Return writes that must be refused, and leave a variable of this shape as it was.

    The strategy samples ``every_refused_update``.

    Parameters
    ----------
    shape : sequence of int
        The shape of the variable.
    dtype : dtype_like, optional
        The dtype, float32 by default.

    Returns
    -------
    SearchStrategy of Update
        The strategy. Writes shrink to ids that are too large by one.
    """
    return st.sampled_from(every_refused_update(shape, dtype))


def every_refused_update(shape: Sequence[int], dtype: npt.DTypeLike = np.float32) -> list[Update]:
    """Return one write of each kind that must be refused, for each operation.

    An id is negative or too large (by one, or so that 32 bits of it are a row), among ids that are
    there. Or there are more or fewer operands than ids. Or a value for the whole has another shape.
    Some of these shapes NumPy would broadcast.

    Parameters
    ----------
    shape : sequence of int
        The shape of the variable.
    dtype : dtype_like, optional
        The dtype, float32 by default.

    Returns
    -------
    list of Update
        The writes: first into rows, then of the whole.

    Examples
    --------
    >>> every_refused_update((3, 2))[0].ids
    array([0, 1, 3])
    """
    length, *row_shape = _check_shape(shape)
    there = list(range(min(length, 2)))
    refused = []
    for op in SPARSE:
        for bad in (length, length + 2, -1, -length - 1, 2**32):
            rows = np.array([*there, bad], np.int64)
            refused.append(Update(op, rows, counting((len(rows), *row_shape), dtype)))
        rows = np.array(there, np.int64)
        shapes = _other_shapes((len(there), *row_shape))
        refused += [Update(op, rows, counting(wrong, dtype)) for wrong in shapes]
    for op in DENSE:
        refused += [Update(op, None, counting(wrong, dtype)) for wrong in _other_shapes(shape)]
    return refused


def _other_shapes(shape: Sequence[int]) -> list[Shape]:
    """Shapes that a value of some shape must not have; NumPy would broadcast the first three."""
    rows, rest = shape[0], tuple(shape[1:])
    others = [(1, *rest), (rows, *(1 for _ in rest)), rest, (rows + 1, *rest), (rows + 3, *rest)]
    if rest:
        others.append((rows, rest[0] + 1, *rest[1:]))
    # A shape of one row or one column may be right; and nothing, of any shape, is written into no
    # rows.
    return [other for other in others if other != tuple(shape) and (rows or other[:1] > (0,))]


def max_norms(rows: Array) -> st.SearchStrategy[float]:
    """Return limits of the l2 norm of a row: below, exactly at and above the norms of these rows.

    Parameters
    ----------
    rows : ndarray
        The rows, of shape ``[n, ...]``.

    Returns
    -------
    SearchStrategy of float
        The strategy. All limits are above 0.
    """
    norms = sorted({float(norm) for norm in norms_of(rows).ravel() if norm > 0}) or [1.0]
    # A half and twice are exact, so that a norm meets its limit to the last bit, or misses it by
    # far.
    return st.sampled_from(norms).flatmap(lambda norm: st.sampled_from([norm, norm / 2, norm * 2]))


def norms_of(rows: Array) -> Array:
    wide = rows.astype(np.float64)
    return np.asarray(np.sqrt((wide * wide).sum(axis=tuple(range(1, rows.ndim)), keepdims=True)))


def clipped(rows: Array, max_norm: float) -> Array:
    """Return rows scaled to a largest norm, by definition.

    Parameters
    ----------
    rows : ndarray
        The rows, of shape ``[n, ...]``.
    max_norm : float
        The largest l2 norm of a row. Rows with a smaller one stay as they are.

    Examples
    --------
    >>> clipped(np.array([[3.0, 4.0], [0.0, 1.0]], np.float32), 2.5).tolist()
    [[1.5, 2.0], [0.0, 1.0]]
    """
    found = rows.copy()
    for place, row in enumerate(rows):
        found[place] = lookups.clipped(row, max_norm)
    return found


@frozen
class Snapshot:
    """A value that was read, which no later write may change."""

    value: Array
    """The value as it came: perhaps a view of the variable's memory."""
    copy: Array
    """A copy, made when it was read."""

    @classmethod
    def of(cls, value: Any) -> "Snapshot":
        """Return the snapshot of a value that has just been read.

        Parameters
        ----------
        value : array_like
            The value as it came.
        """
        array = np.asarray(value)
        return cls(array, array.copy())

    def scribble(self) -> bool:
        """Overwrite the value, after which no variable may differ.

        Returns
        -------
        bool
            False for a value that cannot be written.
        """
        if not self.value.flags.writeable or not self.value.size:
            return False
        self.value[...] = np.zeros((), self.value.dtype)
        self.copy[...] = self.value
        return True


def updated(full: Array, update: Update) -> Array:
    """Return the array after a write, by definition: one row after the other, in the order of the
    ids.

    Parameters
    ----------
    full : ndarray
        The array before, which stays as it is.
    update : Update
        The write.
    """
    # Division by zero and overflow are results to be compared, so NumPy must not warn about them.
    with np.errstate(all="ignore"):
        if update.ids is None:
            return _WRITES[update.op]([full], update.values)[0].astype(full.dtype)
        return variables.scatter([full], update.op, update.ids.tolist(), update.values)[0]


_WRITES = {"assign": variables.assign, "add": variables.assign_add, "sub": variables.assign_sub}


ROW_SHAPES: tuple[Shape, ...] = ((), (1,), (2,), (3, 2), (0,))
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
    row_shapes: Sequence[Shape] = ROW_SHAPES,
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


@st.composite
def variables_and_updates(
    draw: st.DrawFn, dtype: npt.DTypeLike = np.float32
) -> tuple[ShardedVariable, Array, Update]:
    """Draw a sharded variable, its array, and one write that fits it.

    Parameters
    ----------
    dtype : dtype_like, optional
        The dtype, float32 by default.

    Returns
    -------
    SearchStrategy of tuple
        The strategy of ``ShardedVariable``, ndarray and ``Update``.
    """
    sharded, full = draw(sharded_variables(dtype))
    return sharded, full, draw(updates(full.shape, dtype))


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
    def start(self, sizes: list[int], row_shape: Shape) -> None:
        """Make the variable and the array."""
        self.full = counting((sum(sizes), *row_shape), self.dtype)
        # A copy, since an implementation that writes into the given array would change the oracle
        # too. It changes afterwards, which an implementation that keeps it shows.
        given = self.full.copy()
        self.variable = self.make(given, sizes)
        given[...] = np.zeros((), given.dtype)

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
        assert_matches_oracle(self.read(), self.full, what="The variable")
