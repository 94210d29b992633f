"""MirroredStrategy and CollectiveAllReduceStrategy: every replica has a copy of everything.

R-MIRROR-3 (RFC 002): "we will start with mirroring everything". The first copy is created as any
variable is; the others are copies of its value, so that even a random one is the same everywhere.
``hint_scope`` may move the copies to the hosts, and ``variable_partitioning_scope`` cuts a variable
instead of mirroring it: R-MIRROR-4 (RFC 000), "strategies like MultiworkerMirroredStrategy can
choose to partition the variables in different flavors: on hosts of each worker, or on the replicas
(GPUs)".
"""

from collections.abc import Sequence
from typing import Any, Self

from shardvar.errors import ArgumentTypeError
from shardvar.layout.cutting import plan_rows
from shardvar.layout.dtypes import Array
from shardvar.reference.devices import Cluster, Device, current_device, device_scope, make_cluster
from shardvar.reference.training.serialization import check_config, serializable
from shardvar.reference.training.strategies.arguments import check_devices, check_size_known
from shardvar.reference.training.strategies.scope import Partitioning, Scope
from shardvar.reference.training.strategies.strategy import (
    Strategy,
    create_copies,
    create_spread,
    open_arguments,
)
from shardvar.reference.variables import (
    IndexedSlices,
    MirroredVariable,
    PerReplica,
    SyncOnReadVariable,
    VariableInterface,
    VariableSynchronization,
)
from shardvar.reference.variables.scopes import NextCreator
from shardvar.reference.variables.updates import ADD, SUB, UpdateKind
from shardvar.reference.variables.variable import parse_mode


class DenseUpdatesVariable(MirroredVariable):
    """A mirrored variable whose sparse additions are made dense before they cross between devices.

    R-HINT-2 (RFC 002): "Updates can be casted to dense tensors and use the existing allreduce
    primitive to exchange gradients. This can still be faster than running allgather on their
    corresponding sparse updates." Updates of the same row are summed before they are added, so the
    result may differ from the sparse one in the last bit: w + (a + b) is not always (w + a) + b.
    Other writes than additions stay sparse, since a dense form would change every row.
    """

    def _write_sparse(self, update: UpdateKind, sparse_delta: Any, name: str) -> Any:
        if update not in (ADD, SUB):
            return super()._write_sparse(update, sparse_delta, name)
        if not isinstance(sparse_delta, PerReplica):
            return self._write_dense(
                update, self._dense(sparse_delta, current_device()), name, True
            )
        devices = sparse_delta.devices or (current_device(),) * len(sparse_delta.values)
        dense = [
            self._dense(value, device)
            for value, device in zip(sparse_delta.values, devices, strict=True)
        ]
        return self._write_dense(update, PerReplica(dense, devices), name, True)

    def _dense(self, value: Any, device: Device) -> Array | Any:
        """Return the update as an array of the variable's shape, on the slices' device."""
        if not isinstance(value, IndexedSlices):
            return value
        with device_scope(device):
            return IndexedSlices(value.values, value.indices, self.shape).to_dense()


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
        """Create a mirrored variable, or a sharded one where a partitioning scope cuts it into at
        least two parts.

        A variable that is synchronized on read has a copy on each replica, and ignores scopes and
        hints.
        """
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

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**check_config(cls, config))

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
        """Return the number of workers, and of the accelerators of each.

        Returns
        -------
        dict
            ``num_workers`` and ``replicas_per_worker``.
        """
        return dict(self._config)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**check_config(cls, config))

    def __repr__(self) -> str:
        return f"CollectiveAllReduceStrategy(**{self._config})"
