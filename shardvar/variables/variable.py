"""sv.Variable: an abstract interface, and the factory that makes variables.

R-VAR-4 (RFC 003): "This is implemented by having a custom metaclass for tf.Variable which, when asked to construct a
tf.Variable directly will call the factory functions, but when asked to construct subclasses of tf.Variable will do
nothing and construct the child class."

R-VAR-5 (RFC 003): "users will be able to implement their own variable-like objects by subclassing tf.Variable and
adding a scoped factory function to use those variables". A subclass provides ``shape``, ``dtype``, ``name``,
``read_value`` and ``assign``; this class writes everything else in terms of these.

R-VAR-8 (RFC 003): "tf.Variable will not add the Variable to any collections by default": nothing registers a variable
anywhere.
"""

import weakref
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from shardvar.devices import Buffer, Device, current_device
from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.dtypes import Array, Ints
from shardvar.variables.creators import create
from shardvar.variables.index import Rows
from shardvar.variables.interface import VariableInterface
from shardvar.variables.resource import Resource, Write
from shardvar.variables.scatter import scatter_sorted
from shardvar.variables.shards import one_shard
from shardvar.variables.updates import REPLACE, Update

if TYPE_CHECKING:
    from shardvar.variables.sharded import ShardedVariable


class VariableSynchronization(Enum):
    """When the copies of a mirrored variable are made equal."""

    AUTO = 0
    NONE = 1
    ON_WRITE = 2
    ON_READ = 3


class VariableAggregation(Enum):
    """How updates that come from several replicas become one."""

    NONE = 0
    SUM = 1
    MEAN = 2
    ONLY_FIRST_REPLICA = 3


class _Factory(type):
    """The metaclass: calling ``Variable`` itself asks the creators, calling a subclass constructs it."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is Variable:
            return create(_default_creator, _arguments(*args, **kwargs))
        return super().__call__(*args, **kwargs)


class Variable(VariableInterface, metaclass=_Factory):
    """A value that can be read and assigned.

    ``sv.Variable(initial_value, trainable=None, name=None, dtype=None, *, shape=None, constraint=None,
    synchronization="AUTO", aggregation="NONE", device=None, colocated_with=None, **more)``: ``initial_value`` is
    array-like or a callable that returns the value; ``shape`` may have None where any size may be assigned later.
    Creators get all of it as keyword arguments, ``more`` included. ``trainable`` is True unless the variable is
    synchronized on read.

    >>> variable = Variable([1.0, 2.0], name="w")
    >>> variable.assign_add([1.0, 1.0]).numpy()
    array([2., 3.], dtype=float32)
    """

    _container: "weakref.ref[ShardedVariable] | None" = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no __init__: a kind of variable constructs itself.")

    @property
    def trainable(self) -> bool:
        return True

    @property
    def device(self) -> Device:
        """Where the value lives."""
        return current_device()

    @property
    def container(self) -> "ShardedVariable | None":
        """The sharded variable that this is a shard of, as long as there is one."""
        return None if self._container is None else self._container()

    @property
    def resources(self) -> tuple[Resource, ...]:
        """The resources that hold the value; whoever holds their mutexes is alone with it."""
        return ()

    # What a sharded variable asks of its shards.

    def read_run(self, out: Array, run: tuple[slice, ...]) -> None:
        """``out[...] = value[run]``, a slice for each of the first axes, where ``out`` lives on the current device."""
        out[...] = self.read_value()[run]

    def rows_buffer(self) -> Buffer | None:
        """The buffer whose rows are the value's, for whoever holds the mutexes; None where a read does more.

        Shards that have one are read together, without ``gather_rows``.
        """
        return None

    def gather_rows(self, out: Array, rows: Ints, places: Ints | None) -> None:
        """``out[places] = value[rows]``, where ``out`` lives on the current device; places None means all."""
        out[slice(None) if places is None else places] = self.read_value()[rows]

    def plan_dense(self, update: Update, value: Array) -> Write:
        """The write of ``update.combine(value of now, value)``; shape and dtype are the variable's."""
        return Write(self.resources, lambda: self.assign(value if update is REPLACE else self._combined(update, value)))

    def plan_sparse(self, update: Update, rows: Ints, values: Array, order: Ints | None) -> Write:
        """The write of ``values[order]`` to ``rows``, which ascend and are in range; order None means as they are."""
        sorted_values = values if order is None else values[order]

        def apply() -> None:
            new = np.array(self.read_value())
            scatter_sorted(new, rows, sorted_values, update)
            self.assign(new)

        return Write(self.resources, apply)

    # The interface, of one shard.

    def _read_rows(self, rows: Rows, columns: tuple[slice, ...] = ()) -> Array:
        return one_shard(self).read_rows(rows, columns)

    def _plan_dense(self, update: Update, value: Array) -> list[Write]:
        return [self.plan_dense(update, value)]

    def _plan_sparse(self, update: Update, rows: Ints, values: Array) -> list[Write]:
        return one_shard(self).plan_sparse(update, rows, values)

    def _written(self, read_value: bool) -> Any:
        # R-ASSIGN-1 (RFC 003): "Implement the subclass to be returned from tf.assign*".
        from shardvar.variables.unread import UnreadVariable

        return UnreadVariable(self) if read_value else None

    def _combined(self, update: Update, value: Array) -> Array:
        return update.combine(self.read_value(), value)

    def __bool__(self) -> bool:
        return bool(self.read_value())

    def __int__(self) -> int:
        return int(self.read_value())

    def __float__(self) -> float:
        return float(self.read_value())

    def __complex__(self) -> complex:
        return complex(self.read_value())

    def __index__(self) -> int:
        return self.read_value().__index__()

    def __repr__(self) -> str:
        return f"<sv.{type(self).__name__} {self.name!r} shape={self.shape} dtype={self.dtype} value={self.numpy()!r}>"


def parse_mode(kind: type[VariableSynchronization] | type[VariableAggregation], value: Any) -> Any:
    """The member that ``value`` is or names; None is the first."""
    if value is None:
        return next(iter(kind))
    if isinstance(value, str) and value.upper() in kind.__members__:
        return kind[value.upper()]
    if not isinstance(value, kind):
        names = ", ".join(kind.__members__)
        raise ArgumentError(f"{value!r} is no {kind.__name__}.", f"Give one of {names}.")
    return value


def _default_creator(**kwargs: Any) -> Any:
    # R-VAR-6 (RFC 003): "the default implementation of the tf.Variable interface will be ResourceVariable".
    from shardvar.variables.resource_variable import ResourceVariable

    return ResourceVariable(**kwargs)


def _arguments(
    initial_value: Any = None,
    trainable: bool | None = None,
    name: str | None = None,
    dtype: Any = None,
    *,
    shape: Any = None,
    constraint: Any = None,
    synchronization: Any = VariableSynchronization.AUTO,
    aggregation: Any = VariableAggregation.NONE,
    **more: Any,
) -> dict[str, Any]:
    """The keyword arguments that creators see."""
    if name is not None and not isinstance(name, str):
        raise ArgumentTypeError(f"The name {name!r} is no text.", "Give a str.")
    return {
        "initial_value": initial_value,
        "trainable": trainable,
        "name": name,
        "dtype": dtype,
        "shape": shape,
        "constraint": constraint,
        "synchronization": synchronization,
        "aggregation": aggregation,
        **more,
    }
