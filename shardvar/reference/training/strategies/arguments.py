"""Arguments of strategies: partitioners, devices and shapes, checked."""

from collections.abc import Sequence
from typing import Any

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.cutting import AnyPartitioner
from shardvar.reference.devices import Device, full_name


def check_partitioner(partitioner: Any) -> AnyPartitioner | None:
    """Return the partitioner, a callable or None."""
    if partitioner is not None and not callable(partitioner):
        raise ArgumentTypeError(
            f"The partitioner {partitioner!r} is not callable.", "Give p(shape, dtype), or None."
        )
    checked: AnyPartitioner | None = partitioner
    return checked


def check_devices(devices: Any, known: Sequence[Device] = ()) -> tuple[Device, ...]:
    """Return the devices as a tuple; a name stands for the first known device of it."""
    # A str is a sequence too: "GPU:0" would be five devices of one letter.
    if isinstance(devices, Sequence) and not isinstance(devices, str):
        devices = [
            _named(device, known) if isinstance(device, str) else device for device in devices
        ]
    is_list = isinstance(devices, Sequence) and not isinstance(devices, str)
    if not is_list or not devices or not all(isinstance(device, Device) for device in devices):
        raise ArgumentTypeError(
            f"{devices!r} is not a list of devices.",
            "Give devices: a strategy's host_devices or replica_devices.",
        )
    return tuple(devices)


def _named(name: str, known: Sequence[Device]) -> Device:
    wanted = full_name(name)
    found = next((device for device in known if device.name == wanted), None)
    if found is None:
        names = ", ".join(device.short_name for device in known)
        raise ArgumentError(f"The strategy has no device {wanted}.", f"It has {names}.")
    return found


def check_size_known(shape: Any, cut: Any) -> None:
    """Refuse to cut a variable that may change its size: its shards could not."""
    if cut is not None and isinstance(shape, Sequence) and None in shape:
        raise ArgumentTypeError(
            f"A variable of the shape {tuple(shape)} cannot be cut, since its size is not known.",
            "Give its full shape, or create it outside of the partitioner's scope.",
        )
