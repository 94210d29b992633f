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

Hints of a user about mirrored variables, and RFC 002's heuristics that choose them.

R-HINT-1 (RFC 002): "we will allow users to provide some hints for performance improvement on
embedding variables ... e.g. whether to mirror the variable on host or not, whether to cast its
updates to dense tensors or not." A hint changes where a variable lives and what crosses between
devices, never a value. None leaves the choice to the strategy.

The heuristics compare sizes and explain the choice in words; they change nothing by themselves.
Strategies mirror on devices without a hint, and ``hints_for`` turns the heuristics into hints.

    mirror or shard           does a copy fit where it would live
    host or device            does it fit a device, and how much of it is touched in a step
    sparse update or dense    which moves fewer bytes: gathering rows from all replicas, or reducing
                              the whole
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import cycle
from math import prod
from threading import local
from typing import Any, Protocol, Self

import numpy.typing as npt

from shardvar.errors import ArgumentError, ArgumentTypeError, ScopeError
from shardvar.layout.dtypes import Shape
from shardvar.layout.partition import AnyPartitioner, Cut, PartitionSpec
from shardvar.layout.region import read_declared_shape
from shardvar.layout.shard_counts import element_nbytes
from shardvar.records import field, frozen, replace
from shardvar.reference.devices import Device, device_scope, full_name, operation_scope
from shardvar.reference.training.module import configured
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
class Hints:
    """Hints that a strategy follows for the variables created in ``hint_scope``.

    ``hints | other`` are these hints, overridden by the hints that ``other`` gives.

    Parameters
    ----------
    mirror_on_host : bool, optional
        True: one copy on each host. False: one on each replica. None leaves the choice to the
        strategy.
    cast_updates_to_dense : bool, optional
        True: sparse updates are made dense and reduced. False: their rows are gathered.

    Examples
    --------
    >>> Hints(mirror_on_host=True) | Hints(cast_updates_to_dense=False)
    Hints(mirror_on_host=True, cast_updates_to_dense=False)
    """

    mirror_on_host: bool | None = None
    cast_updates_to_dense: bool | None = None

    def __or__(self, other: "Hints") -> "Hints":
        """Return these hints, overridden by the hints that ``other`` gives."""
        return Hints(
            self.mirror_on_host if other.mirror_on_host is None else other.mirror_on_host,
            self.cast_updates_to_dense
            if other.cast_updates_to_dense is None
            else other.cast_updates_to_dense,
        )


# Heuristics.


_ID_NBYTES = 8
"""Size of the id that is sent with each row, an int64."""
_FILL_SHARE = 0.5
"""Largest share of a device that a variable takes: its gradient and the slots of its optimizer also
live there."""
_STRING_NBYTES = 16
"""Size that a string counts as, the same as for partitioners."""


@frozen
class Choice:
    """The answer of a heuristic."""

    decision: str
    """``mirror`` or ``shard``; ``host`` or ``device``; ``sparse`` or ``dense``."""
    reason: str
    """The reason in words, with the numbers that were compared."""


@frozen
class Workload:
    """A variable, and how much of it a step touches.

    Parameters
    ----------
    shape : sequence of int
        The shape of the variable.
    dtype : dtype_like
        The dtype of the variable.
    rows_a_step : int, optional
        The number of rows that one replica looks up and updates in a step; None for all, as a dense
        layer does.
    num_replicas : int, default 1
        The number of replicas that compute at once.

    Raises
    ------
    ArgumentError
        If `num_replicas` is below 1, or `rows_a_step` is negative.
    """

    shape: Shape
    dtype: Any
    rows_a_step: int | None = None
    num_replicas: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        if self.num_replicas < 1 or (self.rows_a_step is not None and self.rows_a_step < 0):
            raise ArgumentError(
                f"Invalid workload {self}.", "Give num_replicas >= 1 and rows_a_step >= 0."
            )

    @property
    def nbytes(self) -> int:
        """The bytes of the whole variable."""
        return prod(self.shape) * element_nbytes(self.dtype, _STRING_NBYTES)

    @property
    def step_nbytes(self) -> int:
        """The bytes of the rows that a replica touches in a step; repeated rows count again."""
        if self.rows_a_step is None or not self.shape:
            return self.nbytes
        return self.rows_a_step * self.nbytes // max(1, self.shape[0])


def choose_mirror_or_shard(load: Workload, device_memory: int, host_memory: int) -> Choice:
    """Choose to mirror a variable that fits a host, and to shard one that does not.

    R-HEUR-1 (RFC 002): "mirroring could be cheaper than sharding in terms of communication cost
    since it requires smaller number of communications although it transfers more data"; R-HEUR-2:
    "For large embeddings that cannot be fit in a single host, ParameterServerStrategy should be
    preferred".

    Parameters
    ----------
    load : Workload
        The variable.
    device_memory : int
        The bytes of a device.
    host_memory : int
        The bytes of a host.

    Examples
    --------
    >>> choose_mirror_or_shard(Workload((1000, 64), "float32"), 1 << 30, 8 << 30).decision
    'mirror'
    """
    # A host of 8 GiB has room for 4 GiB: the gradient, or one optimizer slot, is as large as the
    # variable itself.
    room = int(max(device_memory, host_memory) * _FILL_SHARE)
    if load.nbytes > room:
        return Choice(
            "shard",
            f"{load.nbytes} bytes do not fit a single host, which has room for {room} bytes.",
        )
    return Choice(
        "mirror",
        f"{load.nbytes} bytes fit the {room} bytes of one task, and mirroring needs fewer "
        "messages.",
    )


def choose_host_or_device(load: Workload, device_memory: int) -> Choice:
    """Choose the device for a variable that fits it, and the host for one that does not.

    R-HEUR-3 (RFC 002): "When an embedding variable is small, it may benefit from being mirrored on
    devices. Lookup can be performed local to each device"; R-HEUR-4: "when an embedding variable is
    sufficiently large, we will place it on host memory", "at the cost of transferring embeddings
    from host to devices".

    See ``choose_mirror_or_shard`` for the parameters.
    """
    room = int(device_memory * _FILL_SHARE)
    if load.nbytes <= room:
        return Choice(
            "device",
            f"{load.nbytes} bytes fit the {room} bytes of a device, where lookups move nothing.",
        )
    cost = 2 * load.step_nbytes  # rows come to the device for the lookup, and their updates go back
    return Choice(
        "host",
        f"{load.nbytes} bytes do not fit the {room} bytes of a device; a step moves {cost} "
        "instead.",
    )


def choose_sparse_or_dense(load: Workload) -> Choice:
    """Choose the form of an update that moves fewer bytes.

    R-HEUR-5 (RFC 002): "When updates to an embedding are not very sparse, converting them to dense
    updates and applying allreduce ... can be faster", and "when an embedding variable is smaller
    than some threshold we will cast their gradients to dense tensors". The threshold is where both
    cost the same: to gather, each replica sends its rows and their ids to all others; to reduce,
    each sends 2 (n - 1) / n of the whole (scatter, then gather).

    Parameters
    ----------
    load : Workload
        The variable, and the rows of it that a step touches.

    Examples
    --------
    >>> few, many = Workload((1000, 4), "float32", 10, 4), Workload((1000, 4), "float32", 900, 4)
    >>> choose_sparse_or_dense(few).decision, choose_sparse_or_dense(many).decision
    ('sparse', 'dense')
    """
    if load.rows_a_step is None:
        return Choice("dense", "Every row is touched in a step.")
    # Of 1000 rows of 4 float32 (16,000 bytes) on 4 replicas: 10 rows a step cost 3 * (160 + 80) =
    # 720 bytes to gather, 900 rows 64,800; to reduce the whole costs 2 * 3 * 16,000 / 4 = 24,000 in
    # either case.
    others = load.num_replicas - 1
    if not others:
        return Choice(
            "sparse",
            "There is one replica: nothing is exchanged, and the rows need not be made dense.",
        )
    gathered = others * (load.step_nbytes + load.rows_a_step * _ID_NBYTES)
    reduced = 2 * others * load.nbytes // load.num_replicas
    compared = (
        f"a replica sends {gathered} bytes to gather {load.rows_a_step} rows, {reduced} to reduce "
        "the whole."
    )
    return Choice("sparse" if gathered < reduced else "dense", f"In a step {compared}")


def hints_for(load: Workload, device_memory: int) -> Hints:
    """Return the hints that the heuristics choose.

    R-HEUR-6 (RFC 002): "Add heuristics in Distribution Strategy to auto-set performance improvement
    hints, such as whether to place an embedding on host or whether to cast sparse updates to dense
    tensors."

    Parameters
    ----------
    load : Workload
        The variable, and the rows of it that a step touches.
    device_memory : int
        The bytes of a device.

    Examples
    --------
    >>> hints_for(Workload((1 << 20, 64), "float32", 100, 8), device_memory=1 << 20)
    Hints(mirror_on_host=True, cast_updates_to_dense=False)
    """
    return Hints(
        mirror_on_host=choose_host_or_device(load, device_memory).decision == "host",
        cast_updates_to_dense=choose_sparse_or_dense(load).decision == "dense",
    )


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
