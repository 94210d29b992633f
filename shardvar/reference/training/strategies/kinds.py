"""The kinds of strategies: mirrored, parameter servers, and both.

Two strategies mirror: every replica has a copy of everything. R-MIRROR-3 (RFC 002): "we will start
with mirroring everything". The first copy is created as any variable is; the others are copies of
its value, so that even a random one is the same everywhere. ``hint_scope`` may move the copies to
the hosts, and ``variable_partitioning_scope`` cuts a variable instead of mirroring it: R-MIRROR-4
(RFC 000), "strategies like MultiworkerMirroredStrategy can choose to partition the variables in
different flavors: on hosts of each worker, or on the replicas (GPUs)".

ParameterServerStrategy: variables live on servers, placed in turn, large ones in parts.

    turn    0         1         2         3         4     5
    server  ps:0      ps:1      ps:2      ps:0      ps:1  ps:2
    made    w/part_0  w/part_1  w/part_2  w/part_3  b     u/part_0  ...

The round goes on from variable to variable; each part, and each variable that is not cut, is one
turn. A variable that is colocated with another takes no turn, and neither does one that could not
be created.

R-HYBRID-1 (RFC 002): "a hybrid strategy that mirrors some variables and shards other variables";
"strategy_chooser: a callable that takes variable name, variable shape and variable dtype and
returns which strategy to apply".
"""

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.forks import new_lock
from shardvar.layout.dtypes import Shape
from shardvar.layout.partition import AnyPartitioner, plan_rows
from shardvar.reference.devices import Cluster, Device, current_device, device_scope, make_cluster
from shardvar.reference.training.module import serializable, serialize
from shardvar.reference.training.strategies.strategy import (
    Partitioning,
    Scope,
    Strategy,
    check_devices,
    check_partitioner,
    check_size_known,
    create_copies,
    create_spread,
)
from shardvar.reference.variables import (
    AggregatingVariable,
    IndexedSlices,
    MirroredVariable,
    PerReplica,
    SyncOnReadVariable,
    VariableAggregation,
    VariableInterface,
    VariableSynchronization,
    create_partitioned,
)
from shardvar.reference.variables.initial_value import NextCreator
from shardvar.reference.variables.sharded import open_arguments
from shardvar.reference.variables.values import ADD, SUB, UpdateKind
from shardvar.reference.variables.variable import parse_mode


class DenseUpdatesVariable(MirroredVariable):
    """A mirrored variable whose sparse additions are made dense before they cross between devices."""

    # R-HINT-2 (RFC 002): "Updates can be casted to dense tensors and use the existing allreduce
    # primitive to exchange gradients. This can still be faster than running allgather on their
    # corresponding sparse updates." Updates of the same row are summed before they are added, so
    # the result may differ from the sparse sum in the last bit: w + (a + b) is not always (w + a) +
    # b. Other writes than additions stay sparse, since a dense form would change every row.
    def _write_sparse(self, update: UpdateKind, sparse_delta: Any, name: str) -> Any:
        if update not in (ADD, SUB):
            return super()._write_sparse(update, sparse_delta, name)
        is_one = not isinstance(sparse_delta, PerReplica)
        given = PerReplica([sparse_delta]) if is_one else sparse_delta
        devices = given.devices or (current_device(),) * len(given.values)
        # Each an array of the variable's shape, on the slices' device.
        dense = []
        for value, device in zip(given.values, devices, strict=True):
            if isinstance(value, IndexedSlices):
                with device_scope(device):
                    value = IndexedSlices(value.values, value.indices, self.shape).to_dense()
            dense.append(value)
        whole = dense[0] if is_one else PerReplica(dense, devices)
        return self._write_dense(update, whole, name, True)


class _MirroringStrategy(Strategy):
    """The base class of both strategies, which differ only in how their devices are given."""

    def __init__(self, replicas: Sequence[Device], hosts: Sequence[Device]) -> None:
        self._replicas = check_devices(replicas)
        self._hosts = check_devices(hosts)

    @property
    def host_devices(self) -> tuple[Device, ...]:
        return self._hosts

    @property
    def replica_devices(self) -> tuple[Device, ...]:
        return self._replicas

    def create_free(
        self, next_creator: NextCreator, kwargs: dict[str, Any], scope: Scope
    ) -> VariableInterface:
        # A variable that is synchronized on read has a copy on each replica, and ignores scopes and
        # hints.
        mode = parse_mode(VariableSynchronization, kwargs.get("synchronization"))
        if mode is VariableSynchronization.ON_READ:
            copies = create_copies(next_creator, kwargs, None, self._replicas)
            return SyncOnReadVariable(copies, kwargs.get("aggregation"))
        how = scope.partitioning or Partitioning(None)
        check_size_known(kwargs.get("shape"), how.cut)
        # A partitioning scope spreads the parts over the devices, each part once. A partitioner may
        # answer with one part, as for a small variable; that one is mirrored like any other.
        if how.cut is not None and not how.is_mirrored:
            devices = how.devices or self._replicas
            initial, kwargs = open_arguments(kwargs)
            partition = plan_rows(how.cut, initial.shape, initial.dtype, len(devices))
            if len(partition) > 1:
                return create_spread(next_creator, kwargs, partition, devices)
            how = Partitioning(None)
        # Else each replica, or each host, gets a copy, which may be cut into parts that stay
        # together.
        homes = self._hosts if scope.hints.mirror_on_host else self._replicas
        kind = DenseUpdatesVariable if scope.hints.cast_updates_to_dense else MirroredVariable
        return kind(create_copies(next_creator, kwargs, how.cut, homes), kwargs.get("aggregation"))


@serializable
class MirroredStrategy(_MirroringStrategy):
    """Copies on the given devices.

    Parameters
    ----------
    devices : sequence of Device or str, or Cluster
        The devices that compute, or their names; or a cluster, whose replicas compute.

    Raises
    ------
    ArgumentTypeError
        If `devices` is not a list of devices or of names.
    ArgumentError
        If two devices have one name, or a name does not belong to a device.

    Examples
    --------
    >>> import shardvar as sv
    >>> strategy = sv.MirroredStrategy(["GPU:0", "GPU:1"])
    >>> with strategy.scope():
    ...     w = sv.Variable([1.0, 2.0], name="w")
    >>> _ = w.assign_add([1.0, 1.0])
    >>> [copy.numpy().tolist() for copy in w.copies]
    [[2.0, 3.0], [2.0, 3.0]]
    """

    def __init__(self, devices: Sequence[Device | str] | Cluster) -> None:
        if isinstance(devices, Cluster):
            super().__init__(devices.replicas, devices.hosts)
            return
        names = [devices] if isinstance(devices, str) else devices
        if not isinstance(names, Sequence):
            raise ArgumentTypeError(
                f"devices is {names!r}.",
                "Give a list of devices or of their names, such as ['GPU:0', 'GPU:1'].",
            )
        replicas = check_devices(
            [Device(name) if isinstance(name, str) else name for name in names]
        )
        # Cluster refuses two devices of one name.
        known = {device.name: device for device in Cluster(replicas)}
        # GPU:0 and GPU:1 of one worker have one host. A CPU that is a replica is its own host, and
        # not a second device.
        hosts = {
            name: known.get(name) or Device(name)
            for name in (device.host_name for device in replicas)
        }
        super().__init__(replicas, tuple(hosts.values()))

    def get_config(self) -> dict[str, Any]:
        """Return the names of the devices."""
        return {"devices": [device.short_name for device in self._replicas]}

    def __repr__(self) -> str:
        return f"MirroredStrategy({[device.short_name for device in self._replicas]})"


@serializable
class CollectiveAllReduceStrategy(_MirroringStrategy):
    """Copies on all replicas of all workers; on the workers' hosts where they have no accelerators.

    Parameters
    ----------
    num_workers : int, default 1
        The number of workers.
    replicas_per_worker : int, default 0
        The accelerators of each worker.

    Raises
    ------
    ArgumentError
        If a number is not an integer in its range.
    """

    def __init__(self, num_workers: int = 1, replicas_per_worker: int = 0) -> None:
        cluster = make_cluster(0, num_workers, replicas_per_worker)
        super().__init__(cluster.replicas, cluster.hosts)
        self._config = {"num_workers": num_workers, "replicas_per_worker": replicas_per_worker}

    def get_config(self) -> dict[str, Any]:
        """Return ``num_workers`` and ``replicas_per_worker``."""
        return dict(self._config)

    def __repr__(self) -> str:
        return f"CollectiveAllReduceStrategy(**{self._config})"


@serializable
class ParameterServerStrategy(Strategy):
    """Variables on parameter servers, placed in turn, large ones in parts.

    R-PSS-1 (RFC 000): "Variables created under strategy.scope() will be partitioned based on the
    strategy-level partitioner."

    Parameters
    ----------
    num_ps : int or Cluster
        The number of simulated servers, or a cluster; 0 servers are the local case.
    variable_partitioner : callable, optional
        ``partitioner(shape, dtype)`` returns the number of parts along each axis, such as
        ``sv.MinSizePartitioner``; by default variables are not cut.
    ps_memory_limit : int, optional
        The bytes that each server can hold.

    Raises
    ------
    ArgumentTypeError
        If `num_ps` is not an integer or a cluster, or the partitioner is not callable.
    ArgumentError
        If a limit is given together with a cluster, or a number is not in its range.

    Examples
    --------
    >>> import shardvar as sv
    >>> strategy = sv.ParameterServerStrategy(2, sv.FixedShardsPartitioner(3))
    >>> with strategy.scope():
    ...     w, b = sv.Variable([0.0] * 7, name="w"), sv.Variable(0.0, name="b")
    >>> [(shard.name, shard.device.short_name) for shard in [*w.variables, b]]
    [('w/part_0', 'ps:0'), ('w/part_1', 'ps:1'), ('w/part_2', 'ps:0'), ('b', 'ps:1')]
    """

    def __init__(
        self,
        num_ps: int | Cluster,
        variable_partitioner: AnyPartitioner | None = None,
        *,
        ps_memory_limit: int | None = None,
    ) -> None:
        self.variable_partitioner = check_partitioner(variable_partitioner)
        if isinstance(num_ps, Cluster):
            if ps_memory_limit is not None:
                raise ArgumentError(
                    "ps_memory_limit is given together with a cluster.", "Give it to make_cluster."
                )
            self.cluster = num_ps
        elif isinstance(num_ps, bool) or not hasattr(num_ps, "__index__"):
            raise ArgumentTypeError(
                f"num_ps is {num_ps!r}.", "Give the number of servers, or a cluster."
            )
        else:
            self.cluster = make_cluster(num_ps, ps_memory_limit=ps_memory_limit)
        self._turn = 0
        self._lock = new_lock()

    @property
    def num_ps(self) -> int:
        """The number of servers."""
        return len(self.cluster.servers)

    @property
    def host_devices(self) -> tuple[Device, ...]:
        return self.cluster.hosts

    @property
    def replica_devices(self) -> tuple[Device, ...]:
        return self.cluster.replicas

    @property
    def devices(self) -> tuple[Device, ...]:
        return self.cluster.devices

    def create_free(self, next_creator: NextCreator, kwargs: dict[str, Any], scope: Scope) -> Any:
        how = scope.partitioning or Partitioning(self.variable_partitioner)
        check_size_known(kwargs.get("shape"), how.cut)
        # The lock keeps the turns of one variable together where threads create several. It is
        # reentrant: an initial value may be a callable that creates variables itself.
        with self._lock:
            before, made = self._turn, None
            try:
                made = create_partitioned(
                    next_creator,
                    kwargs,
                    cut=how.cut,
                    # R-PSS-2 (RFC 000): "ParameterServerStrategy ... always partitions variables
                    # among parameter servers", unless other devices are named.
                    place_next=cycle(how.devices).__next__ if how.devices else self._next_server,
                    # R-PSS-3 (RFC 002): "The number of shards is the number of ps in multi-worker
                    # case and 1 in local case."
                    num_shards=len(how.devices) if how.devices else max(1, self.num_ps),
                )
            finally:
                if made is None:  # a variable that could not be created takes no turn
                    self._turn = before
        return self._aggregating(made, kwargs.get("aggregation"))

    def get_config(self) -> dict[str, Any]:
        """Return ``num_ps``, ``ps_memory_limit``, and ``variable_partitioner`` in plain form.

        Raises
        ------
        ArgumentError
            If the servers have several memory limits.
        ArgumentTypeError
            If the partitioner's class is not registered.
        """
        limits = {server.memory_limit for server in self.cluster.servers}
        if len(limits) > 1:
            raise ArgumentError(
                f"The servers of {self} have several memory limits.", "Give all servers the same."
            )
        return {
            "num_ps": self.num_ps,
            "variable_partitioner": serialize(self.variable_partitioner),
            "ps_memory_limit": limits.pop() if limits else None,
        }

    def __repr__(self) -> str:
        return (
            f"ParameterServerStrategy(num_ps={self.num_ps}, "
            f"variable_partitioner={self.variable_partitioner!r})"
        )

    @property
    def _own_partitioner(self) -> AnyPartitioner | None:
        return self.variable_partitioner

    def _next_server(self) -> Device:
        servers = self.cluster.servers
        if not servers:  # the local case, without a cluster
            return current_device()
        self._turn += 1
        return servers[(self._turn - 1) % len(servers)]

    def _aggregating(self, made: Any, aggregation: Any) -> Any:
        """Wrap a variable that several replicas update, if it has an aggregation."""
        # R-PSS-4 (RFC 002): "model variables can sometimes be AggregatingVariable with a underlying
        # ShardedVariable".
        mode = parse_mode(VariableAggregation, aggregation)
        if mode is VariableAggregation.NONE or len(self.replica_devices) < 2:
            return made
        return AggregatingVariable(made, mode)


Chooser = Callable[[str | None, tuple[int, ...], Any], "Strategy | int | None"]


@serializable
class HybridStrategy(Strategy):
    """Two strategies, and a function that chooses between them for each variable.

    Computation runs on the devices of the first one, which are also the default of its scopes.

    Parameters
    ----------
    strategy1 : Strategy
        The first strategy.
    strategy2 : Strategy
        The second strategy.
    strategy_chooser : callable
        ``chooser(name, shape, dtype)`` answers with one of the two, with 1 or 2, or None for the
        first.

    Raises
    ------
    ArgumentTypeError
        If one of them is not a strategy, or the chooser is not callable.
    """

    def __init__(self, strategy1: Strategy, strategy2: Strategy, strategy_chooser: Chooser) -> None:
        for strategy in (strategy1, strategy2):
            if not isinstance(strategy, Strategy):
                raise ArgumentTypeError(
                    f"{strategy!r} is not a strategy.", "Give two strategies and a chooser."
                )
        if not callable(strategy_chooser):
            raise ArgumentTypeError(
                f"The chooser {strategy_chooser!r} is not callable.",
                "Give chooser(name, shape, dtype).",
            )
        self.strategy1 = strategy1
        self.strategy2 = strategy2
        self.strategy_chooser = strategy_chooser

    @property
    def host_devices(self) -> tuple[Device, ...]:
        return self.strategy1.host_devices

    @property
    def replica_devices(self) -> tuple[Device, ...]:
        return self.strategy1.replica_devices

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple(dict.fromkeys((*self.strategy1.devices, *self.strategy2.devices)))

    def create_free(self, next_creator: NextCreator, kwargs: dict[str, Any], scope: Scope) -> Any:
        # The chooser wants shape and dtype, for which an initial value may have to be evaluated.
        # ``kwargs`` then holds the result, since a second evaluation of a random value would give
        # another one.
        initial, kwargs = open_arguments(kwargs)
        chosen = self._chosen(kwargs.get("name"), initial.shape, initial.dtype)
        return chosen.create_free(next_creator, kwargs, scope)

    def get_config(self) -> dict[str, Any]:
        """Return ``strategy1``, ``strategy2`` and ``strategy_chooser``, in plain form.

        Raises
        ------
        ArgumentTypeError
            If the chooser's class is not registered.
        """
        return {
            "strategy1": serialize(self.strategy1),
            "strategy2": serialize(self.strategy2),
            "strategy_chooser": serialize(self.strategy_chooser),
        }

    def __repr__(self) -> str:
        return f"HybridStrategy({self.strategy1}, {self.strategy2})"

    def _chosen(self, name: str | None, shape: Shape, dtype: Any) -> Strategy:
        # 1 and 2 are for choosers that were deserialized, and have no reference to the two
        # strategies.
        answer = self.strategy_chooser(name, shape, dtype)
        if answer is None or answer is self.strategy1 or answer == 1:
            return self.strategy1
        if answer is self.strategy2 or answer == 2:
            return self.strategy2
        raise ArgumentError(
            f"The chooser answered {answer!r} for the variable {name!r}.",
            "Answer with one of its two strategies.",
        )
