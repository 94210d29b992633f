"""Clusters of simulated devices: parameter servers, workers, and the replicas of each worker."""

from collections.abc import Iterator
from dataclasses import dataclass

from shardvar.devices.device import Device, full_name
from shardvar.errors import ArgumentError


@dataclass(frozen=True, slots=True, eq=False)
class Cluster:
    """Devices by their names.

    >>> cluster = make_cluster(num_ps=2, num_workers=1, replicas_per_worker=2)
    >>> [device.short_name for device in cluster]
    ['ps:0', 'ps:1', 'worker:0', 'worker:0/GPU:0', 'worker:0/GPU:1']
    >>> cluster["ps:1"] is cluster.servers[1]
    True
    """

    devices: tuple[Device, ...]
    """All of them, no two of one name."""

    def __post_init__(self) -> None:
        names = [device.name for device in self.devices]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ArgumentError(f"The cluster has two devices of the name {twice}.", "Number the tasks.")

    @property
    def servers(self) -> tuple[Device, ...]:
        """The parameter servers, in the order of their tasks."""
        return tuple(device for device in self.devices if device.name.startswith("/job:ps/"))

    @property
    def hosts(self) -> tuple[Device, ...]:
        """The CPUs of the workers."""
        return tuple(device for device in self._workers() if device.host_name == device.name)

    @property
    def replicas(self) -> tuple[Device, ...]:
        """The accelerators of the workers; the hosts themselves where there are none."""
        return tuple(device for device in self._workers() if device.host_name != device.name) or self.hosts

    def host_of(self, device: Device) -> Device:
        """The CPU of the device's task."""
        return self[device.host_name]

    def __getitem__(self, name: str) -> Device:
        wanted = full_name(name)
        for device in self.devices:
            if device.name == wanted:
                return device
        known = ", ".join(device.short_name for device in self.devices)
        raise ArgumentError(f"The cluster has no device {wanted}.", f"It has {known or 'none'}.")

    def __iter__(self) -> Iterator[Device]:
        return iter(self.devices)

    def __len__(self) -> int:
        return len(self.devices)

    def _workers(self) -> Iterator[Device]:
        return (device for device in self.devices if device.name.startswith("/job:worker/"))


def make_cluster(
    num_ps: int = 0,
    num_workers: int = 1,
    replicas_per_worker: int = 0,
    *,
    ps_memory_limit: int | None = None,
    host_memory_limit: int | None = None,
    replica_memory_limit: int | None = None,
) -> Cluster:
    """``num_ps`` parameter servers and ``num_workers`` hosts, each with so many accelerators; limits are in bytes."""
    counts = {"num_ps": num_ps, "num_workers": num_workers, "replicas_per_worker": replicas_per_worker}
    for name, count in counts.items():
        if count < 0:
            raise ArgumentError(f"{name} is {count}.", "Give a count of zero or more.")
    devices = [Device(f"ps:{task}", ps_memory_limit) for task in range(num_ps)]
    for task in range(num_workers):
        devices.append(Device(f"worker:{task}", host_memory_limit))
        devices += [Device(f"worker:{task}/GPU:{i}", replica_memory_limit) for i in range(replicas_per_worker)]
    return Cluster(tuple(devices))
