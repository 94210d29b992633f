"""Strategies: the scope that creates variables, what their arguments must be, and their base class.

Each thread has one innermost scope. Entering a scope of the same strategy again is allowed, and
changes only its partitioning and hints. Entering one of another strategy is refused; a
``HybridStrategy`` combines two.

R-STRATEGY-1 (RFC 000): "This RFC proposes to use variable creator scope (namely, strategy.scope())
to control the creation of sharded variables": a model's code does not know which strategy it runs
under.

A subclass creates one ``sv.Variable(...)`` in ``create_free``, and names the devices that compute.
A strategy can be rebuilt from plain data, also for another cluster:
``ParameterServerStrategy.from_config(config | {"num_ps": 5})``.

The functions at the end create one variable on many devices: spread over them in parts, or copied
to each of them. The first copy is created as any variable is. The others are made of its value,
shard by shard and from device to device, so that a random initial value is the same everywhere, and
no device holds the whole of a variable that is cut.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import cycle
from threading import local
from typing import Any, Protocol, Self

import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError, ScopeError
from shardvar.layout.partition import AnyPartitioner, Cut, PartitionSpec
from shardvar.layout.region import read_declared_shape
from shardvar.records import field, frozen, replace
from shardvar.reference.devices import Device, device_scope, full_name, operation_scope
from shardvar.reference.training.module import configured
from shardvar.reference.training.strategies.hints import Hints
from shardvar.reference.variables import (
    MirroredVariable,
    PerReplica,
    ShardedVariable,
    Variable,
    VariableAggregation,
    VariableInterface,
    create_partitioned,
    replica_scope,
    variable_creator_scope,
)
from shardvar.reference.variables.initial_value import NextCreator
from shardvar.reference.variables.initializers import Zeros
from shardvar.reference.variables.mirrored import aggregate
from shardvar.reference.variables.variable import device_of, parse_mode


@frozen
class Partitioning:
    """A way to cut variables, which overrides a strategy's partitioner."""

    cut: Cut | None
    """A partitioner, or what one may answer; None to leave variables whole."""
    devices: tuple[Device, ...] | None = None
    """The devices of the parts, in turn; None leaves it to the strategy."""
    is_mirrored: bool = False
    """For a strategy that mirrors: True gives each replica all parts, False spreads the parts over
    the replicas."""


class VariableFactory(Protocol):
    """The method of a strategy that a scope calls."""

    def create(self, next_creator: NextCreator, kwargs: dict[str, Any], scope: "Scope") -> Any: ...


@frozen
class Scope:
    strategy: VariableFactory
    partitioning: Partitioning | None = None
    hints: Hints = field(default_factory=Hints)

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Create variables by this scope inside the ``with`` block."""
        # Check. Of two strategies, it would be unclear which one creates a variable.
        outer = _current.scope
        if outer is not None and outer.strategy is not self.strategy:
            raise ScopeError(
                f"The scope of {self.strategy} was entered inside the scope of {outer.strategy}.",
                "Leave the outer one first, or give both to sv.HybridStrategy.",
            )
        # Enter, and restore the outer scope even if the user's code raises.
        _current.scope = self
        try:
            # One creator is on the thread's stack, and reads the innermost scope.
            with nullcontext() if outer is not None else variable_creator_scope(_create):
                yield
        finally:
            _current.scope = outer


def current_scope() -> Scope | None:
    """Return the innermost scope of this thread, or None outside of any."""
    return _current.scope


def _create(next_creator: NextCreator, **kwargs: Any) -> Any:
    scope = _current.scope
    if scope is None:
        return next_creator(**kwargs)
    return scope.strategy.create(next_creator, kwargs, scope)


class _Current(local):
    """The innermost scope of each thread; the stack of creators also belongs to the thread."""

    scope: Scope | None = None


_current = _Current()


def check_partitioner(partitioner: Any) -> AnyPartitioner | None:
    if partitioner is not None and not callable(partitioner):
        raise ArgumentTypeError(
            f"The partitioner {partitioner!r} is not callable.", "Give p(shape, dtype), or None."
        )
    checked: AnyPartitioner | None = partitioner
    return checked


def check_devices(devices: Any, known: Sequence[Device] = ()) -> tuple[Device, ...]:
    """Return the devices as a tuple; a name stands for the first known device of it."""
    # A str is a sequence too: "GPU:0" would be five devices of one letter.
    chosen: list[Any] = []
    if isinstance(devices, Sequence) and not isinstance(devices, str):
        by_name = {device.name: device for device in reversed(known)}
        for device in devices:
            if isinstance(device, str):
                name = full_name(device)
                if name not in by_name:
                    names = ", ".join(device.short_name for device in known)
                    raise ArgumentError(f"The strategy has no device {name}.", f"It has {names}.")
                device = by_name[name]
            chosen.append(device)
    if not chosen or not all(isinstance(device, Device) for device in chosen):
        raise ArgumentTypeError(
            f"{devices!r} is not a list of devices.",
            "Give devices: a strategy's host_devices or replica_devices.",
        )
    return tuple(chosen)


def check_size_known(shape: Any, cut: Any) -> None:
    """Refuse to cut a variable that may change its size: its shards could not."""
    if cut is not None and isinstance(shape, Sequence) and None in shape:
        raise ArgumentTypeError(
            f"A variable of the shape {tuple(shape)} cannot be cut, since its size is not known.",
            "Give its full shape, or create it outside of the partitioner's scope.",
        )


class Strategy:
    """The base class: a subclass provides ``create_free``, its devices and its config."""

    @property
    def host_devices(self) -> tuple[Device, ...]:
        """The CPUs of the workers."""
        raise NotImplementedError

    @property
    def replica_devices(self) -> tuple[Device, ...]:
        """The devices that compute; the hosts in a cluster without accelerators."""
        raise NotImplementedError

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices of the strategy."""
        return tuple(dict.fromkeys((*self.host_devices, *self.replica_devices)))

    def create(self, next_creator: NextCreator, kwargs: dict[str, Any], scope: Scope) -> Any:
        """Create what ``sv.Variable(**kwargs)`` gives under this strategy.

        A variable that is colocated with another is created on its device.

        Parameters
        ----------
        next_creator : callable
            The creator of a plain variable.
        kwargs : dict
            The arguments of ``sv.Variable``.
        scope : Scope
            The strategy's scope that is open.
        """
        if kwargs.get("colocated_with") is not None:
            return create_beside(next_creator, kwargs)
        return self.create_free(next_creator, kwargs, scope)

    def create_free(self, next_creator: NextCreator, kwargs: dict[str, Any], scope: Scope) -> Any:
        """Create a variable that is not colocated with another. See ``create`` for the parameters."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """Return the arguments as plain data, from which ``from_config`` makes an equal
        strategy."""
        raise NotImplementedError

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Create a strategy from a config, which may have been changed since ``get_config``.

        R-SERIAL-1 (RFC 002): "a cluster of different number of parameter servers" is another
        ``num_ps``.

        Parameters
        ----------
        config : dict
            The arguments of the constructor.

        Raises
        ------
        ArgumentError
            If the class does not take an entry of `config`.
        """
        made: Self = configured(cls, config)
        return made

    @contextmanager
    def scope(self) -> Iterator[Self]:
        """Create variables by this strategy inside the ``with`` block, which gets the strategy."""
        with self._scope_to_enter().enter():
            yield self

    @contextmanager
    def variable_partitioning_scope(
        self,
        partitioner: AnyPartitioner | None,
        partition_devices: Sequence[Device | str] | None = None,
    ) -> Iterator[Self]:
        """Cut the variables created inside by a partitioner; inside ``scope()`` or without it.

        R-PARTSCOPE-1 (RFC 000): "Per-layer partitioner overwrites strategy-level partitioner."
        R-PARTSCOPE-2: partition_devices is "A list of devices to partition the variable on. Set to
        the host devices if the desire is to place the variables on host, set to replica
        (accelerator) devices if the desire is to place the variables on replicas. Defaults to
        replica devices."

        Parameters
        ----------
        partitioner : callable or None
            ``partitioner(shape, dtype)`` returns the number of parts along each axis; None cuts
            nothing.
        partition_devices : sequence of Device or str, optional
            The strategy's ``host_devices``, ``replica_devices``, or some of their names.

        Yields
        ------
        Strategy
            The strategy itself.

        Raises
        ------
        ArgumentTypeError
            If `partitioner` is not callable, or `partition_devices` are not devices.
        ArgumentError
            If the strategy does not have a device of a name.
        """
        devices = (
            None if partition_devices is None else check_devices(partition_devices, self.devices)
        )
        partitioning = Partitioning(check_partitioner(partitioner), devices)
        with replace(self._scope_to_enter(), partitioning=partitioning).enter():
            yield self

    @contextmanager
    def hint_scope(self, hints: Hints) -> Iterator[Self]:
        """Follow hints for the variables created inside.

        Parameters
        ----------
        hints : Hints
            The hints, which override an outer scope's.

        Yields
        ------
        Strategy
            The strategy itself.

        Raises
        ------
        ArgumentTypeError
            If `hints` are other objects.
        """
        if not isinstance(hints, Hints):
            raise ArgumentTypeError(f"Invalid hints {hints!r}.", "Give sv.strategies.Hints(...).")
        scope = self._scope_to_enter()
        with replace(scope, hints=scope.hints | hints).enter():
            yield self

    def experimental_create_sharded_variable(
        self,
        name: str | None,
        shape: Sequence[int],
        dtype: npt.DTypeLike,
        partitions: Sequence[int] | PartitionSpec | None = None,
        *,
        initializer: Any = None,
        trainable: bool | None = None,
    ) -> VariableInterface:
        """Create a sharded variable.

        R-CREATESHARDED-1 (RFC 002): "Returns a ShardedVariable, sharded by the partitioner from its
        constructor or partitions." R-CREATESHARDED-2: "If this is given, override the partitioner
        from the constructor." A strategy that mirrors "Returns a Mirrored ShardedVariable": all
        shards on each replica.

        Parameters
        ----------
        name : str or None
            The name.
        shape : sequence of int
            The shape.
        dtype : dtype_like
            The dtype.
        partitions : sequence of int or PartitionSpec, optional
            The number of parts along each axis; by default the partitioner answers, and without one
            there is one shard.
        initializer : callable, optional
            The initial value; by default zeros.
        trainable : bool, optional
            True if optimizers may change the variable, the default.

        Raises
        ------
        ArgumentError
            If the variable is a scalar, or `partitions` does not fit the shape.
        """
        # Partitions given here come first, then a partitioning scope's, then the strategy's
        # partitioner.
        scope = self._scope_to_enter()
        if partitions is not None or scope.partitioning is None:
            how = scope.partitioning or Partitioning(self._own_partitioner, is_mirrored=True)
            scope = replace(
                scope, partitioning=how if partitions is None else replace(how, cut=partitions)
            )
        with scope.enter():
            value = Zeros() if initializer is None else initializer
            return _as_sharded(
                Variable(
                    value,
                    name=name,
                    shape=read_declared_shape(shape),
                    dtype=dtype,
                    trainable=trainable,
                )
            )

    def run(self, function: Callable[..., Any], *args: Any) -> PerReplica:
        """Call a function on each replica.

        Parameters
        ----------
        function : callable
            The function; inside it, the replica's device is the current one.
        *args : any
            Its arguments. Of ``PerReplica`` ones each replica gets its own value.

        Returns
        -------
        PerReplica
            The results, one for each replica.

        Raises
        ------
        ArgumentError
            If a ``PerReplica`` argument has another number of values than there are replicas.
        """
        devices = self.replica_devices
        for arg in args:
            if isinstance(arg, PerReplica) and len(arg.values) != len(devices):
                raise ArgumentError(
                    f"{len(arg.values)} values are given to {len(devices)} replicas.",
                    "Give one of each a replica.",
                )
        # One replica after another, in this thread, so that the simulation is deterministic.
        # ``replica_scope`` tells a variable which replica uses it.
        results = []
        for number, device in enumerate(devices):
            own = [arg.values[number] if isinstance(arg, PerReplica) else arg for arg in args]
            with device_scope(device), replica_scope(number):
                results.append(function(*own))
        return PerReplica(results, devices)

    def reduce(self, aggregation: VariableAggregation | str, value: PerReplica) -> Any:
        """Return one value made from all replicas' values, on the current device.

        The gradients that ``run`` gives become the gradients of the whole batch, with ``"sum"`` if
        losses are sums.

        Parameters
        ----------
        aggregation : VariableAggregation or str
            "SUM", "MEAN" or "ONLY_FIRST_REPLICA".
        value : PerReplica
            The values, as ``run`` returns them.

        Returns
        -------
        ndarray, IndexedSlices, list or None
            The value; of lists, a list of such values; None where all replicas give None.

        Raises
        ------
        ArgumentError
            If `aggregation` is another text, or the replicas' values do not fit each other.
        """
        with operation_scope("reduce"):
            return _reduced(value, parse_mode(VariableAggregation, aggregation))

    def __deepcopy__(self, memo: object) -> Self:
        """Return the strategy itself: it stands for a cluster, which cannot be copied."""
        return self

    @property
    def _own_partitioner(self) -> AnyPartitioner | None:
        return None

    def _scope_to_enter(self) -> Scope:
        """Return the current scope of this strategy, or a new one without any settings."""
        scope = current_scope()
        return scope if scope is not None and scope.strategy is self else Scope(self)


def _reduced(value: PerReplica, mode: VariableAggregation) -> Any:
    values, devices = value.values, value.devices
    if all(isinstance(one, list | tuple) for one in values):
        if len({len(one) for one in values}) > 1:
            raise ArgumentError(
                "The replicas give lists of different lengths.", "Give what belongs together."
            )
        return [_reduced(PerReplica(row, devices), mode) for row in zip(*values, strict=True)]
    # A variable that the loss does not depend on has no gradient anywhere.
    if all(one is None for one in values):
        return None
    if any(one is None for one in values):
        raise ArgumentError(
            "Some replicas give a value and some give none.", "Give zeros, or rows of none."
        )
    return aggregate(value, mode)


def _as_sharded(made: VariableInterface) -> VariableInterface:
    if isinstance(made, ShardedVariable):
        return made
    if not made.shape:
        raise ArgumentError(
            f"{made.name} is a scalar and cannot be sharded.", "Create it by sv.Variable."
        )
    if isinstance(made, MirroredVariable):
        return type(made)([_as_sharded(copy) for copy in made.copies], made.aggregation, made.name)
    return ShardedVariable([made], name=made.name) if isinstance(made, Variable) else made


# One variable on many devices.


def create_spread(
    next_creator: NextCreator, kwargs: dict[str, Any], cut: Cut | None, devices: Sequence[Device]
) -> VariableInterface:
    """Create a variable in the parts of ``cut``, on the devices in turn."""
    turn = cycle(devices)
    return _check_created(
        create_partitioned(
            next_creator, kwargs, cut=cut, place_next=turn.__next__, num_shards=len(devices)
        )
    )


def create_copies(
    next_creator: NextCreator, kwargs: dict[str, Any], cut: Cut | None, homes: Sequence[Device]
) -> list[VariableInterface]:
    """Create a copy on each device, all cut alike."""
    first = create_spread(next_creator, kwargs, cut, homes[:1])
    copies = [first]
    for number, home in enumerate(homes[1:], start=1):
        name = None if kwargs.get("name") is None else f"{kwargs['name']}/replica_{number}"
        given = kwargs | {"name": name, "device": home}
        # Inside the first copy's device, its value is read without a move, and then moves once, to
        # the new home: one shard at a time if it is sharded.
        with device_scope(homes[0]):
            if not isinstance(first, ShardedVariable):
                given |= {"initial_value": first.read_value(), "dtype": first.dtype}
                copies.append(_check_created(next_creator(**given)))
                continue
            shards = []
            for part, shard in enumerate(first.variables):
                own = {
                    "initial_value": shard.read_value(),
                    "dtype": shard.dtype,
                    "shape": shard.shape,
                    "name": None if name is None else f"{name}/part_{part}",
                }
                shards.append(next_creator(**given | own))
            copies.append(ShardedVariable(shards, name=first.name))
    return copies


def create_beside(next_creator: NextCreator, kwargs: dict[str, Any]) -> VariableInterface:
    """Create a whole variable on the device of ``colocated_with``, mirrored if that is mirrored."""
    neighbour = kwargs["colocated_with"]
    if not isinstance(neighbour, MirroredVariable):
        return _check_created(next_creator(**kwargs))
    homes = [device_of(copy) for copy in neighbour.copies]
    copies = create_copies(next_creator, kwargs | {"colocated_with": None}, None, homes)
    return MirroredVariable(copies, kwargs.get("aggregation"))


def _check_created(made: Any) -> VariableInterface:
    if not isinstance(made, VariableInterface):
        raise ArgumentTypeError(f"A variable creator returned {made!r}.", "Return a variable.")
    return made
