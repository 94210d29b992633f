"""MirroredStrategy and CollectiveAllReduceStrategy: every replica has a copy of everything.

R-MIRROR-3 (RFC 002): "we will start with mirroring everything". The first copy is created as any variable is; the
others are copies of its value, so that even a random one is the same everywhere. ``hint_scope`` may move the copies to
the hosts, and ``variable_partitioning_scope`` cuts a variable instead of mirroring it: R-MIRROR-4 (RFC 000),
"strategies like MultiworkerMirroredStrategy can choose to partition the variables in different flavors: on hosts of
each worker, or on the replicas (GPUs)".
"""

from collections.abc import Sequence
from typing import Any, Self

from shardvar.devices import Cluster, Device, make_cluster
from shardvar.training.serialization import check_config, serializable
from shardvar.training.strategies.checks import check_devices, check_size_known
from shardvar.training.strategies.copies import create_copies, create_spread, opened
from shardvar.training.strategies.dense_updates import DenseUpdatesVariable
from shardvar.training.strategies.scope import Partitioning, Scope
from shardvar.training.strategies.strategy import Strategy
from shardvar.variables import MirroredVariable, SyncOnReadVariable, VariableInterface, VariableSynchronization
from shardvar.variables.create import plan_cut
from shardvar.variables.scopes import NextCreator
from shardvar.variables.variable import parse_mode


class _Mirroring(Strategy):
    """What both do; they differ in how they are told of their devices."""

    def __init__(self, replicas: Sequence[Device], hosts: Sequence[Device]) -> None:
        self._replicas = check_devices(replicas)
        self._hosts = check_devices(hosts)

    @property
    def host_devices(self) -> tuple[Device, ...]:
        return self._hosts

    @property
    def replica_devices(self) -> tuple[Device, ...]:
        return self._replicas

    def create_free(self, next_creator: NextCreator, kwargs: dict[str, Any], said: Scope) -> VariableInterface:
        """A mirrored variable; a sharded one where a partitioning scope cuts it in two parts at least.

        One that is synchronized on read has a copy on each replica, whatever scopes and hints say.
        """
        mode = parse_mode(VariableSynchronization, kwargs.get("synchronization"))
        if mode is VariableSynchronization.ON_READ:
            copies = create_copies(next_creator, kwargs, None, self._replicas)
            return SyncOnReadVariable(copies, kwargs.get("aggregation"))
        how = said.partitioning or Partitioning(None)
        check_size_known(kwargs.get("shape"), how.cut)
        if how.cut is not None and not how.is_mirrored:
            devices = how.devices or self._replicas
            initial, kwargs = opened(kwargs)
            partition = plan_cut(how.cut, initial, len(devices))
            if len(partition) > 1:
                return create_spread(next_creator, kwargs, partition, devices)
            how = Partitioning(None)
        homes = self._hosts if said.hints.mirror_on_host else self._replicas
        kind = DenseUpdatesVariable if said.hints.cast_updates_to_dense else MirroredVariable
        return kind(create_copies(next_creator, kwargs, how.cut, homes), kwargs.get("aggregation"))


@serializable
class MirroredStrategy(_Mirroring):
    """Copies on the given devices, or on those of these names.

    >>> from shardvar.variables import Variable
    >>> strategy = MirroredStrategy(["GPU:0", "GPU:1"])
    >>> with strategy.scope():
    ...     w = Variable([1.0, 2.0], name="w")
    >>> _ = w.assign_add([1.0, 1.0])
    >>> [copy.numpy().tolist() for copy in w.copies]
    [[2.0, 3.0], [2.0, 3.0]]
    """

    def __init__(self, devices: Sequence[Device | str] | Cluster) -> None:
        if isinstance(devices, Cluster):
            super().__init__(devices.replicas, devices.hosts)
            return
        names = [devices] if isinstance(devices, str) else devices
        replicas = check_devices([Device(name) if isinstance(name, str) else name for name in names])
        known = {device.name: device for device in Cluster(replicas)}  # which refuses two of one name
        hosts = {name: known.get(name) or Device(name) for name in (device.host_name for device in replicas)}
        super().__init__(replicas, tuple(hosts.values()))

    def get_config(self) -> dict[str, Any]:
        """The names of the devices."""
        return {"devices": [device.short_name for device in self._replicas]}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**check_config(cls, config))

    def __repr__(self) -> str:
        return f"MirroredStrategy({[device.short_name for device in self._replicas]})"


@serializable
class CollectiveAllReduceStrategy(_Mirroring):
    """Copies on all replicas of all workers; on the workers' hosts where they have no accelerators."""

    def __init__(self, num_workers: int = 1, replicas_per_worker: int = 0) -> None:
        cluster = make_cluster(0, num_workers, replicas_per_worker)
        super().__init__(cluster.replicas, cluster.hosts)
        self._config = {"num_workers": num_workers, "replicas_per_worker": replicas_per_worker}

    def get_config(self) -> dict[str, Any]:
        """The number of workers, and of the accelerators of each."""
        return dict(self._config)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**check_config(cls, config))

    def __repr__(self) -> str:
        return f"CollectiveAllReduceStrategy(**{self._config})"
