"""The interface of variables, plain and sharded alike: what users call, in terms of what a kind of variable provides.

R-VAR-3 (RFC 000): "By conforming to the variable interface, we could also easily swap the implementation". Every public
method here has one shape: check the arguments, plan the writes, commit them. A kind of variable says how it reads rows
and how it plans a write; all else follows.

R-ASSIGN-3 (RFC 003): "Instead of having free functions which access internal state of variables, reading from and
writing to variables will be done via methods."
"""

from typing import Any

import numpy as np

from shardvar.devices import operation_scope
from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array, Ints
from shardvar.tracking import Trackable
from shardvar.variables.index import Rows, plan_gather_nd, read_index
from shardvar.variables.indexed_slices import IndexedSlices
from shardvar.variables.numpy_protocol import NumpyProtocol
from shardvar.variables.resource import Resource, Write, commit, holding
from shardvar.variables.row_layout import check_rows
from shardvar.variables.updates import ADD, DIV, MAX, MIN, MUL, REPLACE, SUB, Update, check_update
from shardvar.variables.values import cast_value, check_shape


class VariableInterface(NumpyProtocol, Trackable):
    """What code may expect of a variable without asking which kind it is.

    ``use_locking`` is accepted for TensorFlow's sake: every write is locked. ``name`` names the operation in the
    transfer ledger.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        raise NotImplementedError

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the value."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Its name."""
        raise NotImplementedError

    @property
    def trainable(self) -> bool:
        """Whether optimizers that are given no list of variables may change it."""
        raise NotImplementedError

    # What a kind of variable provides.

    @property
    def resources(self) -> tuple[Resource, ...]:
        """The resources that hold the value; whoever holds their mutexes is alone with it."""
        return ()

    @property
    def _assignable_shape(self) -> tuple[int | None, ...]:
        """The shape that a value to assign must have; None where any size will do."""
        return self.shape

    def _read_rows(self, rows: Rows, columns: tuple[slice, ...] = ()) -> Array:
        """The rows, in this order and in range, as an array that nobody else holds."""
        raise NotImplementedError

    def _plan_dense(self, update: Update, value: Array) -> list[Write]:
        """How all elements are combined with ``value``, which has the variable's shape and dtype."""
        raise NotImplementedError

    def _plan_sparse(self, update: Update, rows: Ints, values: Array) -> list[Write]:
        """How rows, in range, are combined with ``values``, which have the variable's dtype and row shape."""
        raise NotImplementedError

    def _written(self, read_value: bool) -> Any:
        """What a write returns."""
        raise NotImplementedError

    # Reading.

    def value(self) -> Array:
        """The value; a snapshot, as ``read_value`` gives it."""
        return self.read_value()

    def numpy(self) -> Array:
        """The value; a copy that may be written without the variable changing."""
        return self.read_value()

    def sparse_read(self, indices: Any, name: str | None = None) -> Array:
        """The rows at ``indices`` [*ids], in the order of the ids -> [*ids, *row].

        R-READ-1: the i-th row returned is that of the i-th id, whatever shards hold them.
        """
        rows = check_rows(indices, self._num_rows())
        with operation_scope(name or "sparse_read"):
            return self._read_rows(rows.ravel()).reshape((*rows.shape, *self.shape[1:]))

    def gather_nd(self, indices: Any, name: str | None = None) -> Array:
        """The elements or slices at ``indices`` [*n, k], each an index into the first k axes -> [*n, *shape[k:]]."""
        with operation_scope(name or "gather_nd"):
            return plan_gather_nd(indices, self.shape).read(self._read_rows)

    def __getitem__(self, key: Any) -> Array:
        """What NumPy's index selects from the value; only rows that it touches are moved."""
        with operation_scope("getitem"):
            return read_index(key, self.shape, self._read_rows, self.read_value)

    # Writing.

    def assign(self, value: Any, use_locking: Any = None, name: str | None = None, read_value: bool = True) -> Any:
        """Replace the value by one of the same shape."""
        return self._write_dense(REPLACE, value, name or "assign", read_value)

    def assign_add(self, delta: Any, use_locking: Any = None, name: str | None = None, read_value: bool = True) -> Any:
        """Add a value of the same shape."""
        return self._write_dense(ADD, delta, name or "assign_add", read_value)

    def assign_sub(self, delta: Any, use_locking: Any = None, name: str | None = None, read_value: bool = True) -> Any:
        """Subtract a value of the same shape."""
        return self._write_dense(SUB, delta, name or "assign_sub", read_value)

    def scatter_add(self, sparse_delta: IndexedSlices, use_locking: Any = None, name: str | None = None) -> Any:
        """Add the slices to their rows; what comes twice is added twice."""
        return self._write_sparse(ADD, sparse_delta, name or "scatter_add")

    def scatter_sub(self, sparse_delta: IndexedSlices, use_locking: Any = None, name: str | None = None) -> Any:
        """Subtract the slices from their rows."""
        return self._write_sparse(SUB, sparse_delta, name or "scatter_sub")

    def scatter_mul(self, sparse_delta: IndexedSlices, use_locking: Any = None, name: str | None = None) -> Any:
        """Multiply rows by the slices."""
        return self._write_sparse(MUL, sparse_delta, name or "scatter_mul")

    def scatter_div(self, sparse_delta: IndexedSlices, use_locking: Any = None, name: str | None = None) -> Any:
        """Divide rows by the slices, integers towards zero; a zero among the slices is refused."""
        return self._write_sparse(DIV, sparse_delta, name or "scatter_div")

    def scatter_min(self, sparse_delta: IndexedSlices, use_locking: Any = None, name: str | None = None) -> Any:
        """Keep the smaller of rows and slices."""
        return self._write_sparse(MIN, sparse_delta, name or "scatter_min")

    def scatter_max(self, sparse_delta: IndexedSlices, use_locking: Any = None, name: str | None = None) -> Any:
        """Keep the larger of rows and slices."""
        return self._write_sparse(MAX, sparse_delta, name or "scatter_max")

    def scatter_update(self, sparse_delta: IndexedSlices, use_locking: Any = None, name: str | None = None) -> Any:
        """Replace rows by the slices; of several for one row the last stays."""
        return self._write_sparse(REPLACE, sparse_delta, name or "scatter_update")

    def batch_scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: Any = None, name: str | None = None
    ) -> Any:
        """``scatter_update`` in every batch: indices [*batch, n] address the axis after the batch axes.

        With indices of one axis there is no batch, and it is ``scatter_update``.
        """
        slices = _slices(sparse_delta)
        if slices.indices.ndim <= 1:
            return self._write_sparse(REPLACE, slices, name or "batch_scatter_update")
        batch = slices.indices.shape[:-1]
        check_shape(self.shape[: len(batch)], batch, "The batch of the variable")
        inner = self.shape[len(batch) :]
        indices = check_rows(slices.indices, inner[0] if inner else 0)
        values = cast_value(slices.values, self.dtype, "The values")
        check_shape(values.shape, (*indices.shape, *inner[1:]), "The array of values")
        with operation_scope(name or "batch_scatter_update"), holding(self.resources):
            new = self.read_value()
            new[(*np.indices(indices.shape)[:-1], indices)] = values
            commit(self._plan_dense(REPLACE, new))
        return self._written(True)

    def _write_dense(self, update: Update, value: Any, name: str, read_value: bool) -> Any:
        array = cast_value(value, self.dtype, "The value")
        check_shape(array.shape, self._assignable_shape if update is REPLACE else self.shape, "The value")
        check_update(update, self.dtype, array)
        with operation_scope(name):
            commit(self._plan_dense(update, array))
        return self._written(read_value)

    def _write_sparse(self, update: Update, sparse_delta: IndexedSlices, name: str) -> Any:
        slices = _slices(sparse_delta)
        rows = check_rows(slices.indices, self._num_rows(), rank=1)
        values = cast_value(slices.values, self.dtype, "The values")
        check_shape(values.shape, (len(rows), *self.shape[1:]), "The array of values")
        check_update(update, self.dtype, values)
        # Strings are combined with those of now while the write is planned; numbers only while it is committed.
        alone = self.resources if self.dtype == np.object_ else ()
        with operation_scope(name), holding(alone):
            commit(self._plan_sparse(update, rows, values))
        return self._written(True)

    def _num_rows(self) -> int:
        if not self.shape:
            raise ArgumentError(f"{self.name} is a scalar and has no rows.", "Read and assign it whole.")
        return self.shape[0]


def _slices(sparse_delta: Any) -> IndexedSlices:
    if not isinstance(sparse_delta, IndexedSlices):
        raise ArgumentTypeError(
            f"A sparse write is given {type(sparse_delta).__name__}.", "Give sv.IndexedSlices(values, indices)."
        )
    return sparse_delta
