"""``sv.Variable`` and its plain kinds: resource variables, ref variables, and unread ones.

R-VAR-4 (RFC 003): "tf.Variable will become an abstract base class with a well-defined interface and
a scoped factory to construct instances". "This is implemented by having a custom metaclass for
tf.Variable which, when asked to construct a tf.Variable directly will call the factory functions,
but when asked to construct subclasses of tf.Variable will do nothing and construct the child
class."

R-VAR-5 (RFC 003): "users will be able to implement their own variable-like objects by subclassing
tf.Variable and adding a scoped factory function to use those variables". A subclass provides
``shape``, ``dtype``, ``name``, ``read_value`` and ``assign``; this class writes everything else in
terms of these. A subclass that lacks one of them is abstract, and calling it raises
``AbstractClass``.

R-VAR-8 (RFC 003): "tf.Variable will not add the Variable to any collections by default": nothing
registers a variable anywhere.

``DelegatingVariable`` is the base of the kinds that hold no value themselves: mirrored, aggregating
and synchronize-on-read variables, and ``UnreadVariable``, the result of a write. The default kind
is ``ResourceVariable``.

The reads of a ``RefVariable``, the kind of TensorFlow 1, return its own memory instead of a value.
R-REF-1 (RFC 003): "A ref edge is a pair of pointers, one to a Tensor and one to a mutex, owned by
something other than the tf runtime. [...] This means that normal tensor objects in the graph can
silently alias a mutable tensor, and hence two ops with the same input can see it having different
values."

The RFC names two hazards that follow: a predicate that changes after it was read, so that parts of
both branches run; and a gradient taken at a value that an update has already changed.
spec_tests/variables/test_variable.py shows both. The kind exists for that test and for teaching. The
library never creates one; construct it, or return it from a creator.
"""

import weakref
from abc import ABCMeta
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from inspect import Signature, signature
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from shardvar.errors import AbstractClass, ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array, DType, Ints, Shape
from shardvar.layout.region import read_declared_shape
from shardvar.reference.devices import Buffer, Device, current_device, device_scope, operation_scope
from shardvar.reference.variables.initial_value import create, evaluate, scoped_name
from shardvar.reference.variables.interface import VariableInterface, abstract
from shardvar.reference.variables.operations import (
    gather_rows,
    plan_row_write,
    plan_write,
    read_range,
    read_variable_op,
)
from shardvar.reference.variables.rows import RowColumns, RowLayout, Rows, read_shards
from shardvar.reference.variables.values import (
    REPLACE,
    Resource,
    UpdateKind,
    Write,
    as_value,
    cast_value,
    check_shape,
    scatter_sorted,
)


class VariableSynchronization(Enum):
    """The moment at which the copies of a mirrored variable are made equal."""

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(Enum):
    """The rule by which updates of several replicas become one."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3


_signature = cache(signature)


class _Factory(ABCMeta):
    """The metaclass: ``Variable(...)`` asks the creators, a subclass is constructed."""

    def __init__(cls, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A kind assigns, or it plans its writes. By default each is written in terms of the other,
        # so one of them is abstract in a class that defines neither.
        kinds = cls.__mro__[: cls.__mro__.index(VariableInterface) - 1]
        if not any({"assign", "plan_writes"} & vars(kind).keys() for kind in kinds):
            cls.__abstractmethods__ = cls.__abstractmethods__ | {"assign"}

    @property
    def __signature__(cls) -> Signature:
        """The arguments of a call, for ``help`` and editors."""
        of_init = signature(cls.__init__)  # type: ignore[misc]  # `cls` is the class itself
        return of_init.replace(
            parameters=[*of_init.parameters.values()][1:], return_annotation=Signature.empty
        )

    if not TYPE_CHECKING:
        # Type checkers take the arguments from ``__init__``. From this method they would take
        # any arguments for every class, and return anything.
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls is not Variable:
                if cls.__abstractmethods__:
                    raise AbstractClass(
                        f"{cls.__name__} is an abstract variable: it does not define "
                        f"{', '.join(sorted(cls.__abstractmethods__))}.",
                        "Define them in the class.",
                    )
                return super().__call__(*args, **kwargs)
            bound = _signature(Variable).bind(*args, **kwargs)
            bound.apply_defaults()
            given = dict(bound.arguments)
            if given["name"] is not None and not isinstance(given["name"], str):
                raise ArgumentTypeError(
                    f"Invalid name {given['name']!r} of a variable.", "Give a str."
                )
            # R-VAR-6 (RFC 003): "the default implementation of the tf.Variable interface will be
            # ResourceVariable".
            return create(Variable.default_kind, given | given.pop("more"))


class Variable(VariableInterface, metaclass=_Factory):
    """A value that can be read and assigned.

    ``sv.Variable(...)`` asks the creators of the open scopes for a variable; they get all arguments
    as keyword arguments. Without scopes it makes a plain variable on the current device.

    Parameters
    ----------
    initial_value : array_like or callable, optional
        The value, or a function that returns it, such as an initializer; only a creator can make a
        variable without one. Python numbers become float32 and int32; arrays keep their dtype.
    trainable : bool, optional
        True if optimizers may change the variable; by default True unless it is synchronized on
        read.
    name : str, optional
        The name, by default "Variable", behind the prefixes of the open name scopes. Several
        variables may have the same.
    dtype : dtype_like, optional
        The dtype; by default the initial value's.
    shape : sequence of int or None, optional
        The shape, with None where any size may be assigned later; by default the initial value's.
    constraint : callable, optional
        A function that an optimizer applies to the value after an update.
    synchronization : VariableSynchronization or str, optional
        "AUTO", "NONE", "ON_WRITE" or "ON_READ": the moment at which the copies of a mirrored
        variable are made equal.
    aggregation : VariableAggregation or str, optional
        "NONE", "SUM", "MEAN" or "ONLY_FIRST_REPLICA": the rule by which updates of several replicas
        become one.
    **more : any
        ``device``, the device that holds the value, by default the current one; ``colocated_with``,
        a variable on whose device this one is created; and arguments for creators of your own.

    Raises
    ------
    ArgumentError
        If there is no initial value, its shape or dtype does not fit `shape` or `dtype`, or a mode
        has another name.
    ArgumentTypeError
        If `name` is not a text, or the initial value holds Python objects.
    DeviceFull
        If the value does not fit the device.

    Examples
    --------
    >>> variable = Variable([1.0, 2.0], name="w")
    >>> variable.assign_add([1.0, 1.0]).numpy()
    array([2., 3.], dtype=float32)
    """

    default_kind: ClassVar[type["Variable"]]
    """The class that ``sv.Variable(...)`` constructs by default."""
    _container: "weakref.ref[VariableInterface] | None" = None

    # These are the arguments of `Variable(...)`, for the metaclass and for type checkers, and what
    # creators see. Only a class that does not define `__init__` gets here.
    def __init__(
        self,
        initial_value: "npt.ArrayLike | Callable[..., Any] | None" = None,
        trainable: bool | None = None,
        name: str | None = None,
        dtype: npt.DTypeLike | None = None,
        *,
        shape: Sequence[int | None] | None = None,
        constraint: Callable[[Any], Any] | None = None,
        synchronization: VariableSynchronization | str | None = VariableSynchronization.AUTO,
        aggregation: VariableAggregation | str | None = VariableAggregation.NONE,
        **more: Any,
    ) -> None:
        raise AbstractClass(
            f"{type(self).__name__} has no __init__, and Variable has none to inherit.",
            "Define __init__ in the class, and do not call super().__init__().",
        )

    @property
    def trainable(self) -> bool:
        return True

    @property
    def device(self) -> Device:
        """The device on which the value lives."""
        return current_device()

    @property
    def container(self) -> VariableInterface | None:
        """The sharded variable that this is a shard of, while that exists."""
        return None if self._container is None else self._container()

    # The methods of a shard (`rows.read_shards`), and the interface by means of `read_value` and
    # `assign`.

    def read_range(self, out: Array, ranges: tuple[slice, ...]) -> None:
        """Copy a range of the value to an array on the current device: ``out[...] =
        value[ranges]``.

        Parameters
        ----------
        out : ndarray
            The array to write, of the range's shape.
        ranges : tuple of slice
            One slice for each of the first axes.
        """
        out[...] = self.read_value()[ranges]

    def rows_buffer(self) -> Buffer | None:
        """Return the buffer whose rows are the value's, if a read copies only.

        The caller holds the mutexes of ``resources``. Shards that all have a buffer are read
        together, without ``gather_rows``.

        Returns
        -------
        Buffer or None
            None where a read does more than copying.
        """
        return None

    def gather_rows(self, out: Array, rows: Ints, places: Ints | None) -> None:
        """Copy rows of the value to an array on the current device: ``out[places] = value[rows]``.

        Parameters
        ----------
        out : ndarray
            The array to write.
        rows : ndarray of int64
            The rows to read, in range.
        places : ndarray of int64 or None
            The rows of `out` to write, one for each row; None means all of them.
        """
        out[slice(None) if places is None else places] = self.read_value()[rows]

    # Two plans that use only `assign`. They read, combine and assign at the commit, while the
    # mutexes are held, with the value of that moment. A kind with resources plans in its own way,
    # which moves the operand ahead and writes in place.

    def plan_writes(self, update: UpdateKind, value: Array) -> list[Write]:
        def apply() -> None:
            self.assign(value if update is REPLACE else update.combine(self.read_value(), value))

        return [Write(self.resources, apply)]

    def plan_row_writes(
        self, update: UpdateKind, rows: Ints, values: Array, order: Ints | None = None
    ) -> list[Write]:
        sorted_values = values if order is None else values[order]

        def apply() -> None:
            new = np.array(self.read_value())
            scatter_sorted(new, rows, sorted_values, update)
            self.assign(new)

        return [Write(self.resources, apply)]

    def _read_rows(self, rows: Rows, columns: RowColumns = ()) -> Array:
        # A plain variable is its own only shard.
        return read_shards(self, (self,), RowLayout((0, self.shape[0])), rows, columns)

    def _written(self, read_value: bool) -> Any:
        # R-ASSIGN-1 (RFC 003): "Implement the subclass to be returned from tf.assign*".
        return UnreadVariable(self) if read_value else None

    def __repr__(self) -> str:
        return (
            f"<sv.{type(self).__name__} {self.name!r} shape={self.shape} dtype={self.dtype} "
            f"value={self.numpy()!r}>"
        )


class DelegatingVariable(Variable):
    """A variable whose value is held by other variables of its shape and dtype, the targets.

    Reads ask one of them, by default the first; writes are planned for all of them. A subclass
    provides ``_targets``.
    """

    @property
    @abstract
    def _targets(self) -> Sequence[VariableInterface]:
        raise NotImplementedError

    @property
    def _reader(self) -> VariableInterface:
        return self._targets[0]

    @property
    def shape(self) -> Shape:
        return self._targets[0].shape

    @property
    def dtype(self) -> DType:
        return self._targets[0].dtype

    @property
    def name(self) -> str:
        return self._targets[0].name

    @property
    def trainable(self) -> bool:
        return self._targets[0].trainable

    @property
    def device(self) -> Device:
        return device_of(self._reader)

    @property
    def resources(self) -> tuple[Resource, ...]:
        return tuple(resource for target in self._targets for resource in target.resources)

    def read_value(self) -> Array:
        return self._reader.read_value()

    def _read_rows(self, rows: Rows, columns: RowColumns = ()) -> Array:
        return self._reader._read_rows(rows, columns)

    def plan_writes(self, update: UpdateKind, value: Array) -> list[Write]:
        return [write for target in self._targets for write in target.plan_writes(update, value)]

    def plan_row_writes(
        self, update: UpdateKind, rows: Ints, values: Array, order: Ints | None = None
    ) -> list[Write]:
        return [
            write
            for target in self._targets
            for write in target.plan_row_writes(update, rows, values, order)
        ]


class UnreadVariable(DelegatingVariable):
    """Another name for a variable that was just written: what ``assign`` of a plain variable
    returns.

    R-ASSIGN-1 (RFC 003): "Implement the subclass to be returned from tf.assign*". Writes can be
    chained on it. It reads when it is asked and not before, so a write whose result is unused moves
    nothing; it is not a snapshot, and reads the value that the variable has by then.
    """

    def __init__(self, variable: Variable) -> None:
        self._variable = variable

    @property
    def _targets(self) -> tuple[Variable, ...]:
        return (self._variable,)

    @property
    def device(self) -> Device:
        return self._variable.device

    @property
    def _assignable_shape(self) -> tuple[int | None, ...]:
        return self._variable._assignable_shape

    def _written(self, read_value: bool) -> Any:
        return self._variable._written(read_value)


def parse_mode(kind: type[VariableSynchronization] | type[VariableAggregation], value: Any) -> Any:
    """Return ``value``, or the member of that name; None means the first."""
    if value is None:
        return next(iter(kind))
    if isinstance(value, str) and value.upper() in kind.__members__:
        return kind[value.upper()]
    if not isinstance(value, kind):
        raise ArgumentError(
            f"Invalid {kind.__name__} {value!r}.", f"Give one of {', '.join(kind.__members__)}."
        )
    return value


class _LabelledVariable(Variable):
    """A variable that keeps its name, and if it is trained."""

    _name: str
    _trainable: bool

    @property
    def name(self) -> str:
        return self._name

    @property
    def trainable(self) -> bool:
        return self._trainable


class RefVariable(_LabelledVariable):
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
    def shape(self) -> Shape:
        return self._array.shape

    @property
    def dtype(self) -> DType:
        return self._array.dtype

    def read_value(self) -> Array:
        """Return the memory itself, which later writes change: the fault of this kind."""
        return self._array

    assign = VariableInterface.assign  # its writes are not planned

    def _write_dense(self, update: UpdateKind, value: Any, name: str, read_value: bool) -> Array:
        """Write in place, and return the same memory, as ``tf.assign`` returned a ref."""
        # No mutex and no plan: two threads may interleave here, as ref variables allowed.
        array = cast_value(value, self.dtype, "The value")
        check_shape(array.shape, self.shape, "The value")
        update.apply(self._array, array)
        return self._array


class ResourceVariable(_LabelledVariable):
    """A variable whose value is in one resource on one device.

    R-VAR-7 (RFC 003): reads are snapshots, and a read sees each write that it is ordered after:
    both hold the mutex.
    """

    def __init__(
        self,
        initial_value: Any = None,
        trainable: bool | None = None,
        name: str | None = None,
        dtype: Any = None,
        *,
        shape: Any = None,
        constraint: Any = None,
        synchronization: Any = None,
        aggregation: Any = None,
        device: Device | None = None,
        colocated_with: VariableInterface | None = None,
    ) -> None:
        # Check: modes, name, shape. Nothing is evaluated before they are known to be valid.
        self._synchronization = parse_mode(VariableSynchronization, synchronization)
        self._aggregation = parse_mode(VariableAggregation, aggregation)
        on_read = self._synchronization is VariableSynchronization.ON_READ
        self._trainable = not on_read if trainable is None else bool(trainable)
        self._constraint = constraint
        self._name = scoped_name("Variable" if name is None else name)
        # R-CREATE-3 (RFC 000): "residing in the same device as the “colocated_with” variable".
        home = device or current_device() if colocated_with is None else device_of(colocated_with)
        declared = None if shape is None else read_declared_shape(shape)
        # Plan: the initial value, where it is, and whether its array may become the buffer. An
        # array of the caller's is copied, because the variable must not change with it.
        value, source, owns_value = evaluate(initial_value, declared, dtype, home)
        if declared is not None:
            check_shape(value.shape, declared, f"The initial value of {self._name}")
        self._declared_shape = value.shape if declared is None else declared
        # Move: this is where the device's limit is enforced.
        with operation_scope("create"):
            self._resource = Resource(value, home, source=source, owns_value=owns_value)

    @property
    def shape(self) -> Shape:
        return self._resource.array.shape

    @property
    def dtype(self) -> DType:
        return self._resource.array.dtype

    @property
    def synchronization(self) -> VariableSynchronization:
        """The moment at which the copies of a mirrored variable are made equal."""
        return self._synchronization  # type: ignore[no-any-return]

    @property
    def aggregation(self) -> VariableAggregation:
        """The rule by which updates of several replicas become one."""
        return self._aggregation  # type: ignore[no-any-return]

    @property
    def constraint(self) -> Any:
        """A function that an optimizer applies to the value after an update, or None."""
        return self._constraint

    @property
    def device(self) -> Device:
        return self._resource.device

    @property
    def resource(self) -> Resource:
        """The pair of a buffer and a mutex, for the low-level operations."""
        return self._resource

    @property
    def resources(self) -> tuple[Resource, ...]:
        return (self._resource,)

    def read_value(self) -> Array:
        with operation_scope("read_value"):
            return read_variable_op(self._resource)

    def read_range(self, out: Array, ranges: tuple[slice, ...]) -> None:
        read_range(self._resource, out, ranges)

    def rows_buffer(self) -> Buffer | None:
        return self._resource.buffer

    def gather_rows(self, out: Array, rows: Ints, places: Ints | None) -> None:
        gather_rows(self._resource, out, rows, places)

    def plan_writes(self, update: UpdateKind, value: Array) -> list[Write]:
        return [plan_write(self._resource, update, value)]

    def plan_row_writes(
        self, update: UpdateKind, rows: Ints, values: Array, order: Ints | None = None
    ) -> list[Write]:
        return [plan_row_write(self._resource, update, rows, values, order)]

    @property
    def _assignable_shape(self) -> tuple[int | None, ...]:
        return self._declared_shape

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a variable of the same name and device with a copy of the value."""
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(self.__dict__)
        # Tracked objects, and the sharded variable that it is a shard of, refer to the original.
        for name in ("_children", "_child_slots", "_child_hooks", "_container"):
            twin.__dict__.pop(name, None)
        # On its own device a read moves nothing, so the ledger does not count the copy.
        with device_scope(self.device):
            twin._resource = Resource(self.read_value(), self.device, owns_value=True)
        return twin


Variable.default_kind = ResourceVariable


def device_of(variable: Any) -> Device:
    """Return the device on which a variable lives; of a sharded one, its first shard's."""
    if not isinstance(variable, VariableInterface):
        raise ArgumentTypeError(f"colocated_with is {variable!r}.", "Give a variable.")
    # R-VAR-5 (RFC 003): "users will be able to implement their own variable-like objects", which
    # hold no resource, and may define no device: `Variable.device` is then the current one.
    if variable.resources:
        return variable.resources[0].device
    device: Device = getattr(variable, "device", current_device())
    return device
