"""The interface of variables, plain and sharded alike: the methods that users call, and NumPy's protocols.

R-CONCAT-1 (RFC 000): a "tensor conversion function that concats shards to the full value. This
allows any Python op to accept sharded variable objects." The conversion is ``__array__``. Ufuncs,
the other functions of NumPy and Python's operators convert their arguments with it and continue
with plain arrays. Results are arrays. Nothing is written through ``out=``, because only the methods
of a variable write to it. What NumPy refuses is an error of the tree, which is also the builtin
that NumPy raises.

R-VAR-3 (RFC 000): "By conforming to the variable interface, we could also easily swap the
implementation". Every public method here has one shape: check the arguments, plan the writes,
commit them. A kind of variable provides a few methods, and everything else follows from them:

    read_value, _read_rows            read the value, or some of its rows
    plan_writes, plan_row_writes      plan how all elements, or some rows, are combined with given
                                      values
    resources                         the resources that hold the value

A plan is a list of ``Write``. Planning does all that may fail, so ``commit`` either performs all
writes or none. A variable that consists of others (shards, copies) plans by asking each of them and
joining the lists.

R-ASSIGN-3 (RFC 003): "Instead of having free functions which access internal state of variables,
reading from and writing to variables will be done via methods."
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from operator import eq, index, ne
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError, OutOfRange, ShardvarError
from shardvar.layout.dtypes import Array, DType, Ints, Shape
from shardvar.layout.indexing import expand_index
from shardvar.reference.devices import operation_scope
from shardvar.reference.tracking import Trackable
from shardvar.reference.variables.rows import (
    IndexedSlices,
    RowColumns,
    Rows,
    check_rows,
    check_slices,
    plan_gather_nd,
    plan_index,
)
from shardvar.reference.variables.values import (
    ADD,
    DIV,
    MAX,
    MIN,
    MUL,
    REPLACE,
    SUB,
    Resource,
    UpdateKind,
    Write,
    as_dtype,
    ascending,
    cast_value,
    check_shape,
    check_update,
    commit,
    holding,
)

_T = TypeVar("_T")
_Operator = Callable[[Any, Any], Any]
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


def _binary(ufunc: np.ufunc) -> _Operator:
    def operator(self: Any, other: Any) -> Any:
        if getattr(other, "__array_ufunc__", True) is None:
            # NumPy's protocol: the other operand computes the result by its own reflected operator.
            return NotImplemented
        return ufunc(self, other)

    return operator


def _reflected(ufunc: np.ufunc) -> _Operator:
    def operator(self: Any, other: Any) -> Any:
        return ufunc(other, self)

    return operator


def _unary(ufunc: np.ufunc) -> Callable[[Any], Any]:
    def operator(self: Any) -> Any:
        return ufunc(self)

    return operator


def _conversion(function: Callable[[Any], _T]) -> Callable[[Any], _T]:
    def convert(self: Any) -> _T:
        converted: _T = _computed(function, function.__name__, [self.read_value()])
        return converted

    return convert


_Method = TypeVar("_Method", bound=Callable[..., Any])


def abstract(method: _Method) -> _Method:
    """Mark a method that a kind of variable must define."""
    # Type checkers do not know of it, unlike ``abc.abstractmethod``, and allow
    # ``sv.Variable(...)``.
    return abstractmethod(method)


class NumpyProtocol(metaclass=ABCMeta):  # noqa: B024 - `abstract` is not known to ruff
    """The operators and conversions of an array, all derived from ``read_value``.

    In-place operators are left out: ``variable += 1`` binds the name to a new array, as in
    TensorFlow.
    """

    @abstract
    def read_value(self) -> Array:
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        # The value is always a new array, so a request without a copy cannot be met. NumPy makes it
        # in np.asarray(x, copy=False), and expects an error where that is so.
        if copy is False:
            raise ArgumentError(
                "A variable's value is always a copy.", "Ask for it without copy=False."
            )
        value = self.read_value()
        return value if dtype is None else value.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        # np.add.at(variable, ...) and out=variable would write past the mutex and the ledger.
        if method == "at" or any(
            isinstance(target, NumpyProtocol) for target in kwargs.get("out", ())
        ):
            raise ArgumentTypeError(
                f"{ufunc.__name__} would write to a variable.",
                "Use its assign and scatter methods.",
            )
        return _computed(getattr(ufunc, method), ufunc.__name__, [*map(_plain, inputs)], kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(kwargs.get("out"), NumpyProtocol) or (
            func in _WRITERS and isinstance(args[0], NumpyProtocol)
        ):
            raise ArgumentTypeError(
                f"{func.__name__} would write to a variable.", "Use its assign and scatter methods."
            )
        # np.shape and its like need no value: nothing is read or moved.
        if func in _METADATA and len(args) == 1 and not kwargs:
            return _METADATA[func](args[0])
        return _computed(func, func.__name__, _plain(args), kwargs)

    __add__, __radd__ = _binary(np.add), _reflected(np.add)
    __sub__, __rsub__ = _binary(np.subtract), _reflected(np.subtract)
    __mul__, __rmul__ = _binary(np.multiply), _reflected(np.multiply)
    __truediv__, __rtruediv__ = _binary(np.true_divide), _reflected(np.true_divide)
    __floordiv__, __rfloordiv__ = _binary(np.floor_divide), _reflected(np.floor_divide)
    __mod__, __rmod__ = _binary(np.remainder), _reflected(np.remainder)
    __divmod__, __rdivmod__ = _binary(np.divmod), _reflected(np.divmod)
    __pow__, __rpow__ = _binary(np.power), _reflected(np.power)
    __matmul__, __rmatmul__ = _binary(np.matmul), _reflected(np.matmul)
    __and__, __rand__ = _binary(np.bitwise_and), _reflected(np.bitwise_and)
    __or__, __ror__ = _binary(np.bitwise_or), _reflected(np.bitwise_or)
    __xor__, __rxor__ = _binary(np.bitwise_xor), _reflected(np.bitwise_xor)
    __lshift__, __rlshift__ = _binary(np.left_shift), _reflected(np.left_shift)
    __rshift__, __rrshift__ = _binary(np.right_shift), _reflected(np.right_shift)
    __lt__, __le__ = _binary(np.less), _binary(np.less_equal)
    __gt__, __ge__ = _binary(np.greater), _binary(np.greater_equal)
    __neg__, __pos__ = _unary(np.negative), _unary(np.positive)
    __abs__, __invert__ = _unary(np.absolute), _unary(np.invert)

    def __eq__(self, other: object) -> Any:
        # R-SV-EQ: elementwise, as for arrays and TensorFlow's variables; `is` compares identities.
        return _computed(eq, "equal", [self.read_value(), _plain(other)])

    def __ne__(self, other: object) -> Any:
        return _computed(ne, "not_equal", [self.read_value(), _plain(other)])

    __hash__ = object.__hash__

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rows of a snapshot, as over an array's.

        R-VAR-1 (RFC 000): "users' model code doesn't need to change w.r.t whether the variable is
        sharded or not", so a sharded variable also gives rows. Its shards are ``variables``.
        """
        value = self.read_value()
        if value.ndim == 0:
            raise ArgumentTypeError(
                "A variable without axes has no rows to iterate over.", "Read it by .numpy()."
            )
        return iter(value)

    # Conversions of a variable with one element, as of an array.
    __bool__, __int__, __float__ = _conversion(bool), _conversion(int), _conversion(float)
    __complex__, __index__ = _conversion(complex), _conversion(index)

    def astype(self, dtype: Any) -> Array:
        """Return the value converted to ``dtype``."""
        return self.read_value().astype(as_dtype(dtype))


_WRITERS = {np.copyto, np.put, np.put_along_axis, np.place, np.putmask, np.fill_diagonal}
_METADATA: dict[Any, Callable[[Any], Any]] = {
    np.shape: lambda variable: variable.shape,
    np.ndim: lambda variable: len(variable.shape),
    np.size: lambda variable: prod(variable.shape),
}
"""Functions that a variable answers from its shape, without moving its value."""


def _computed(
    function: Callable[..., Any],
    name: str,
    operands: Sequence[Any],
    options: Mapping[str, Any] = _NO_OPTIONS,
) -> Any:
    """Return the function of operands without variables; NumPy's errors are translated."""
    try:
        return function(*operands, **{key: _plain(value) for key, value in options.items()})
    except ShardvarError:
        raise
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        given = " and ".join(
            f"an array {operand.shape} of {operand.dtype}"
            if isinstance(operand, np.ndarray)
            else f"a {type(operand).__name__}"
            for operand in operands
        )
        # NumPy's AxisError is an IndexError and a ValueError, as OutOfRange is.
        kind = OutOfRange if isinstance(error, IndexError) else ArgumentError
        raise (ArgumentTypeError if isinstance(error, TypeError) else kind)(
            f"{name} of {given} fails: {str(error).rstrip('.')}.",
            "Give operands that NumPy accepts.",
        ) from error


def _plain(value: Any) -> Any:
    """Return ``value`` with arrays in place of variables, also inside lists and tuples."""
    if isinstance(value, NumpyProtocol):
        return np.asarray(value)
    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    return value


class VariableInterface(NumpyProtocol, Trackable):
    """The methods that every variable has, plain or sharded.

    NumPy's functions and operators take a variable as they take its value.
    """

    @property
    @abstract
    def shape(self) -> Shape:
        """The shape of the value."""
        raise NotImplementedError

    @property
    @abstract
    def dtype(self) -> DType:
        """The dtype of the value."""
        raise NotImplementedError

    @property
    @abstract
    def name(self) -> str:
        """The name, with the prefixes of its name scopes; several variables may have the same."""
        raise NotImplementedError

    @property
    @abstract
    def trainable(self) -> bool:
        """True if optimizers may change the variable when they are given no list of variables."""
        raise NotImplementedError

    # What a kind of variable provides.

    @property
    def resources(self) -> tuple[Resource, ...]:
        """The resources that hold the value; their mutexes keep other threads out."""
        return ()

    @property
    def _assignable_shape(self) -> tuple[int | None, ...]:
        """The shape that a value to assign must have; None stands for any extent."""
        return self.shape

    @abstract
    def _read_rows(self, rows: Rows, columns: RowColumns = ()) -> Array:
        """Return the rows, which are in range, in their order, as a new array."""
        raise NotImplementedError

    @abstract
    def plan_writes(self, update: UpdateKind, value: Array) -> list[Write]:
        """Return the writes, which cannot fail, that combine all elements with a value.

        Law: after ``commit(plan_writes(update, value))`` it is ``update.combine(old, value)``.

        Parameters
        ----------
        update : UpdateKind
            The way in which old and new elements are combined.
        value : ndarray
            [*shape], of the variable's dtype.

        Raises
        ------
        DeviceFull
            If the operand does not fit the variable's device.
        """
        raise NotImplementedError

    @abstract
    def plan_row_writes(
        self, update: UpdateKind, rows: Ints, values: Array, order: Ints | None = None
    ) -> list[Write]:
        """Return the writes that combine rows with values. See ``plan_writes`` for the parameters.

        A row that occurs several times is combined each time. The caller of a write of strings
        holds the mutexes of ``resources`` until the commit: planning combines strings.

        Parameters
        ----------
        update : UpdateKind
            The way in which old and new rows are combined.
        rows : ndarray of int64
            [n] ascending and in range, n > 0.
        values : ndarray
            [n, *row], of the variable's dtype.
        order : ndarray of int64, optional
            ``values[order[i]]`` belongs to ``rows[i]``; by default ``values[i]``.
        """
        raise NotImplementedError

    @abstract
    def _written(self, read_value: bool) -> Any:
        """Return the result of a write: something that reads the new value, or None."""
        raise NotImplementedError

    # Reading.

    def value(self) -> Array:
        """Return a snapshot of the value on the current device, as ``read_value`` does."""
        return self.read_value()

    def numpy(self) -> Array:
        """Return a copy of the value; changing the copy leaves the variable as it is."""
        return self.read_value()

    def sparse_read(self, indices: npt.ArrayLike, name: str | None = None) -> Array:
        """Return the rows at indices, in the order of the indices.

        R-READ-1: the i-th row returned belongs to the i-th id, whichever shards hold them.

        Parameters
        ----------
        indices : array_like of int
            Row numbers [*ids]; negative ones are refused.
        name : str, optional
            The operation's name in the transfer ledger.

        Returns
        -------
        ndarray
            [*ids, *row], of the variable's dtype.

        Raises
        ------
        OutOfRange
            If an index is negative or not below the number of rows.
        ArgumentTypeError
            If `indices` are not integers.
        ArgumentError
            If the variable is a scalar.
        """
        rows = check_rows(indices, self._num_rows())
        with operation_scope(name or "sparse_read"):
            return self._read_rows(rows.ravel()).reshape((*rows.shape, *self.shape[1:]))

    def gather_nd(self, indices: npt.ArrayLike, name: str | None = None) -> Array:
        """Return elements or slices by their indices along the first axes.

        Parameters
        ----------
        indices : array_like of int
            [*n, k], each an index into the first k axes; negative ones are refused.
        name : str, optional
            The operation's name in the transfer ledger.

        Returns
        -------
        ndarray
            [*n, ...], with the axes behind the first k.

        Raises
        ------
        OutOfRange
            If an index is outside of its axis.
        ArgumentTypeError
            If `indices` are not integers.
        ArgumentError
            If k is 0 or exceeds the rank.
        """
        with operation_scope(name or "gather_nd"):
            return plan_gather_nd(indices, self.shape).read(self._read_rows)

    def __getitem__(self, key: Any) -> Array:
        """Return what NumPy's index selects from the value; only rows that it touches are moved."""
        with operation_scope("getitem"):
            if self.shape:
                return plan_index(key, self.shape).read(self._read_rows)
            picked: Array = self.read_value()[tuple(expand_index(key, ()))]
            return picked

    # Writing.

    def assign(
        self, value: Any, use_locking: Any = None, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Replace the value by one of the same shape.

        Parameters
        ----------
        value : array_like
            The new value. A variable that was created with a partly unknown shape takes any extent
            there.
        use_locking : any, optional
            Ignored, for compatibility with TensorFlow: every write is locked.
        name : str, optional
            The operation's name in the transfer ledger.
        read_value : bool, default True
            False: return None. A sharded variable ignores it.

        Returns
        -------
        VariableInterface or None
            A variable on which writes can be chained and which reads the new value when it is
            asked: of a plain variable another name for it, of a sharded one itself.

        Raises
        ------
        ArgumentError
            If the shape differs, or the dtype cannot be cast: to a wider kind only, and integers
            only where they fit.
        DeviceFull
            If the operand does not fit the variable's device. The variable is unchanged after an
            error.
        """
        return self._write_dense(REPLACE, value, name or "assign", read_value)

    def assign_add(
        self, delta: Any, use_locking: Any = None, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Add a value of the same shape. See ``assign`` for the other parameters.

        Parameters
        ----------
        delta : array_like
            The value to add.

        Raises
        ------
        ArgumentError
            As of ``assign``, or if the variable holds texts or booleans.
        """
        return self._write_dense(ADD, delta, name or "assign_add", read_value)

    def assign_sub(
        self, delta: Any, use_locking: Any = None, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Subtract a value of the same shape. See ``assign_add`` for the other parameters.

        Parameters
        ----------
        delta : array_like
            The value to subtract.
        """
        return self._write_dense(SUB, delta, name or "assign_sub", read_value)

    def scatter_add(
        self, sparse_delta: IndexedSlices, use_locking: Any = None, name: str | None = None
    ) -> Any:
        """Add the slices to their rows; slices of the same row are all added.

        Parameters
        ----------
        sparse_delta : IndexedSlices
            Rows [n, *row] and their indices [n].
        use_locking : any, optional
            Ignored, for compatibility with TensorFlow: every write is locked.
        name : str, optional
            The operation's name in the transfer ledger.

        Returns
        -------
        VariableInterface
            A variable on which writes can be chained, as ``assign`` returns it.

        Raises
        ------
        OutOfRange
            If an index is negative or not below the number of rows.
        ArgumentTypeError
            If `sparse_delta` is not an ``IndexedSlices``, or its indices are not integers.
        ArgumentError
            If shapes or dtypes do not fit, the variable holds texts or booleans, or the variable is
            a scalar. It is unchanged after an error.
        """
        return self._write_sparse(ADD, sparse_delta, name or "scatter_add")

    def scatter_sub(
        self, sparse_delta: IndexedSlices, use_locking: Any = None, name: str | None = None
    ) -> Any:
        """Subtract the slices from their rows; slices of the same row are all subtracted.

        See ``scatter_add`` for the parameters.
        """
        return self._write_sparse(SUB, sparse_delta, name or "scatter_sub")

    def scatter_mul(
        self, sparse_delta: IndexedSlices, use_locking: Any = None, name: str | None = None
    ) -> Any:
        """Multiply rows by the slices. See ``scatter_add`` for the parameters."""
        return self._write_sparse(MUL, sparse_delta, name or "scatter_mul")

    def scatter_div(
        self, sparse_delta: IndexedSlices, use_locking: Any = None, name: str | None = None
    ) -> Any:
        """Divide rows by the slices, integers towards zero. See ``scatter_add`` for the parameters.

        Raises
        ------
        ArgumentError
            If shapes or dtypes do not fit, a value to divide by is zero, the variable holds texts
            or booleans, or the variable is a scalar. It is unchanged after an error.
        """
        return self._write_sparse(DIV, sparse_delta, name or "scatter_div")

    def scatter_min(
        self, sparse_delta: IndexedSlices, use_locking: Any = None, name: str | None = None
    ) -> Any:
        """Keep the smaller of rows and slices, element by element.

        See ``scatter_add`` for the parameters.
        """
        return self._write_sparse(MIN, sparse_delta, name or "scatter_min")

    def scatter_max(
        self, sparse_delta: IndexedSlices, use_locking: Any = None, name: str | None = None
    ) -> Any:
        """Keep the larger of rows and slices, element by element.

        See ``scatter_add`` for the parameters.
        """
        return self._write_sparse(MAX, sparse_delta, name or "scatter_max")

    def scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: Any = None, name: str | None = None
    ) -> Any:
        """Replace rows by the slices; of several slices for one row the last stays.

        See ``scatter_add`` for the parameters.

        Raises
        ------
        ArgumentError
            If shapes or dtypes do not fit, or the variable is a scalar. It is unchanged after an
            error.
        """
        return self._write_sparse(REPLACE, sparse_delta, name or "scatter_update")

    def batch_scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: Any = None, name: str | None = None
    ) -> Any:
        """Do ``scatter_update`` in every batch. See ``scatter_update`` for the other parameters.

        Parameters
        ----------
        sparse_delta : IndexedSlices
            Indices [*batch, n] address the axis after the batch axes. Indices of one axis have no
            batch axes, and the call is ``scatter_update``.
        """
        # Check. Nothing is read or moved before the arguments are known to fit.
        slices = check_slices(sparse_delta)
        if slices.indices.ndim <= 1:
            return self._write_sparse(REPLACE, slices, name or "batch_scatter_update")
        batch = slices.indices.shape[:-1]
        check_shape(self.shape[: len(batch)], batch, "The batch of the variable")
        inner = self.shape[len(batch) :]
        indices = check_rows(slices.indices, inner[0] if inner else 0)
        values = cast_value(slices.values, self.dtype, "The values")
        check_shape(values.shape, (*indices.shape, *inner[1:]), "The array of values")
        with operation_scope(name or "batch_scatter_update"), holding(self.resources):
            # Plan. The whole value is read and written again; the mutexes are held, so that no
            # write falls in between. indices [2, 3] of batch (2,): np.indices gives the batch
            # numbers [[0, 0, 0], [1, 1, 1]] for them.
            new = self.read_value()
            new[(*np.indices(indices.shape)[:-1], indices)] = values
            # Commit.
            commit(self.plan_writes(REPLACE, new))
        return self._written(True)

    def _write_dense(self, update: UpdateKind, value: Any, name: str, read_value: bool) -> Any:
        array = self._checked(update, value)
        # Plan, then commit: operands move to their devices before the first element changes.
        with operation_scope(name):
            commit(self.plan_writes(update, array))
        return self._written(read_value)

    def _checked(self, update: UpdateKind, value: Any) -> Array:
        array = cast_value(value, self.dtype, "The value")
        check_shape(
            array.shape, self._assignable_shape if update is REPLACE else self.shape, "The value"
        )
        check_update(update, self.dtype, array)
        return array

    def _write_sparse(self, update: UpdateKind, sparse_delta: IndexedSlices, name: str) -> Any:
        # Check.
        slices = check_slices(sparse_delta)
        rows = check_rows(slices.indices, self._num_rows(), rank=1)
        values = cast_value(slices.values, self.dtype, "The values")
        check_shape(values.shape, (len(rows), *self.shape[1:]), "The array of values")
        check_update(update, self.dtype, values)
        if len(rows) == 0:
            return self._written(True)
        # Plan, then commit. Rows are sorted once, here, for all shards and copies. The mutexes of
        # strings are held all along, because strings are combined with the old ones while the write
        # is planned; numbers only at the commit.
        rows, order = ascending(rows)
        with operation_scope(name), holding(self.resources if self.dtype == np.object_ else ()):
            commit(self.plan_row_writes(update, rows, values, order))
        return self._written(True)

    def _num_rows(self) -> int:
        if not self.shape:
            raise ArgumentError(
                f"{self.name} is a scalar and has no rows.", "Read and assign it whole."
            )
        return self.shape[0]
