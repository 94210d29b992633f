"""What all strategies share: scopes, in which ``sv.Variable`` makes what the strategy wants, and nothing else changes.

R-STRATEGY-1 (RFC 000): "This RFC proposes to use variable creator scope (namely, strategy.scope()) to control the
creation of sharded variables": a model's code does not know which strategy it runs under.

A strategy says in ``create_free`` what becomes of one ``sv.Variable(...)``, and which devices compute. It is rebuilt
from plain data, perhaps for another cluster: ``ParameterServerStrategy.from_config(config | {"num_ps": 5})``.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

from shardvar.devices import Device, device_scope, operation_scope
from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.partition import PartitionSpec
from shardvar.layout.partitioning import AnyPartitioner
from shardvar.training.strategies.checks import check_devices, check_partitioner
from shardvar.training.strategies.copies import create_beside
from shardvar.training.strategies.hints import Hints
from shardvar.training.strategies.scope import Partitioning, Scope, current_scope
from shardvar.variables import (
    MirroredVariable,
    PerReplica,
    ShardedVariable,
    Variable,
    VariableAggregation,
    VariableInterface,
    replica_scope,
)
from shardvar.variables.initializers import Zeros
from shardvar.variables.mirrored import aggregate
from shardvar.variables.resource_variable import parse_shape
from shardvar.variables.scopes import NextCreator
from shardvar.variables.variable import parse_mode


class Strategy:
    """The base class: a subclass provides ``create_free``, its devices and its config."""

    @property
    def host_devices(self) -> tuple[Device, ...]:
        """The CPUs of the workers."""
        raise NotImplementedError

    @property
    def replica_devices(self) -> tuple[Device, ...]:
        """The devices that compute; the hosts where there are no others."""
        raise NotImplementedError

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices that it knows."""
        return tuple(dict.fromkeys((*self.host_devices, *self.replica_devices)))

    def create(self, next_creator: NextCreator, kwargs: dict[str, Any], said: Scope) -> Any:
        """What ``sv.Variable(**kwargs)`` gives under this strategy: beside another variable, or where it is free."""
        if kwargs.get("colocated_with") is not None:
            return create_beside(next_creator, kwargs)
        return self.create_free(next_creator, kwargs, said)

    def create_free(self, next_creator: NextCreator, kwargs: dict[str, Any], said: Scope) -> Any:
        """What a variable becomes that is colocated with no other."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """Plain data, from which ``from_config`` makes an equal strategy."""
        raise NotImplementedError

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The strategy of a config, perhaps of one that was changed in between."""
        raise NotImplementedError

    @contextmanager
    def scope(self) -> Iterator[Self]:
        """Create variables as this strategy wants them."""
        with self._said().enter():
            yield self

    @contextmanager
    def variable_partitioning_scope(
        self, partitioner: AnyPartitioner | None, partition_devices: Sequence[Device | str] | None = None
    ) -> Iterator[Self]:
        """Cut the variables created inside as this partitioner says; it may stand inside ``scope()`` or alone.

        R-PARTSCOPE-1 (RFC 000): "Per-layer partitioner overwrites strategy-level partitioner." R-PARTSCOPE-2:
        partition_devices is "A list of devices to partition the variable on. Set to the host devices if the desire is
        to place the variables on host, set to replica (accelerator) devices if the desire is to place the variables on
        replicas. Defaults to replica devices." They are ``host_devices``, ``replica_devices``, or some of their names.
        """
        devices = None if partition_devices is None else check_devices(partition_devices, self.devices)
        partitioning = Partitioning(check_partitioner(partitioner), devices)
        with replace(self._said(), partitioning=partitioning).enter():
            yield self

    @contextmanager
    def hint_scope(self, hints: Hints) -> Iterator[Self]:
        """Obey these hints for the variables created inside."""
        if not isinstance(hints, Hints):
            raise ArgumentTypeError(f"{hints!r} are no hints.", "Give sv.strategies.Hints(...).")
        said = self._said()
        with replace(said, hints=said.hints | hints).enter():
            yield self

    def experimental_create_sharded_variable(
        self,
        name: str | None,
        shape: Sequence[int],
        dtype: Any,
        partitions: Sequence[int] | PartitionSpec | None = None,
        *,
        initializer: Any = None,
        trainable: bool | None = None,
    ) -> VariableInterface:
        """A sharded variable, of one shard where nothing says how to cut it; of zeros without an initializer.

        R-CREATESHARDED-1 (RFC 002): "Returns a ShardedVariable, sharded by the partitioner from its constructor or
        partitions." R-CREATESHARDED-2: "If this is given, override the partitioner from the constructor." A strategy
        that mirrors "Returns a Mirrored ShardedVariable": all shards on each replica.
        """
        said = self._said()
        if partitions is not None or said.partitioning is None:
            how = said.partitioning or Partitioning(self._own_partitioner, is_mirrored=True)
            said = replace(said, partitioning=how if partitions is None else replace(how, cut=partitions))
        with said.enter():
            value = Zeros() if initializer is None else initializer
            return _as_sharded(Variable(value, name=name, shape=parse_shape(shape), dtype=dtype, trainable=trainable))

    def run(self, function: Callable[..., Any], *args: Any) -> PerReplica:
        """``function`` on each replica, with that replica's part of arguments that are ``PerReplica``."""
        devices = self.replica_devices
        for arg in args:
            if isinstance(arg, PerReplica) and len(arg.values) != len(devices):
                raise ArgumentError(
                    f"{len(arg.values)} values are given to {len(devices)} replicas.", "Give one of each a replica."
                )
        results = []
        for number, device in enumerate(devices):
            own = [arg.values[number] if isinstance(arg, PerReplica) else arg for arg in args]
            with device_scope(device), replica_scope(number):
                results.append(function(*own))
        return PerReplica(results, devices)

    def reduce(self, aggregation: VariableAggregation | str, value: PerReplica) -> Any:
        """One value of those of all replicas, on the current device; of lists, a list of such values.

        So the gradients that ``run`` gives become those of the whole batch: with ``"sum"`` where losses are sums.
        """
        with operation_scope("reduce"):
            return _reduced(value, parse_mode(VariableAggregation, aggregation))

    def __deepcopy__(self, memo: object) -> Self:
        """Itself: a strategy is the cluster that it stands for, as a device is its memory."""
        return self

    @property
    def _own_partitioner(self) -> AnyPartitioner | None:
        return None

    def _said(self) -> Scope:
        scope = current_scope()
        return scope if scope is not None and scope.strategy is self else Scope(self)


def _reduced(value: PerReplica, mode: VariableAggregation) -> Any:
    values, devices = value.values, value.devices
    if all(isinstance(one, list | tuple) for one in values):
        if len({len(one) for one in values}) > 1:
            raise ArgumentError("The replicas give lists of different lengths.", "Give what belongs together.")
        return [_reduced(PerReplica(row, devices), mode) for row in zip(*values, strict=True)]
    if all(one is None for one in values):
        return None
    if any(one is None for one in values):
        raise ArgumentError("Some replicas give a value and some give none.", "Give zeros, or rows of none.")
    return aggregate(value, mode)


def _as_sharded(made: VariableInterface) -> VariableInterface:
    if isinstance(made, ShardedVariable):
        return made
    if not made.shape:
        raise ArgumentError(f"{made.name} is a scalar and cannot be sharded.", "Create it by sv.Variable.")
    if isinstance(made, MirroredVariable):
        return type(made)([_as_sharded(copy) for copy in made.copies], made.aggregation, made.name)
    return ShardedVariable([made], name=made.name) if isinstance(made, Variable) else made
