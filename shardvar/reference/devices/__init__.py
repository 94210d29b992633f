"""Simulated devices: where values live, what fits there, and what crosses between them."""

from shardvar.reference.devices.device import (
    Cluster,
    Device,
    current_device,
    device_scope,
    full_name,
    make_cluster,
    value_nbytes,
)
from shardvar.reference.devices.ledger import (
    Ledger,
    Traffic,
    Transfer,
    operation_scope,
    track_transfers,
)
from shardvar.reference.devices.moves import (
    Buffer,
    adopt,
    allocate,
    copy_into,
    gather_into,
    gather_parts,
    move,
    move_array,
    place,
)

__all__ = [
    "Buffer",
    "Cluster",
    "Device",
    "Ledger",
    "Traffic",
    "Transfer",
    "adopt",
    "allocate",
    "copy_into",
    "current_device",
    "device_scope",
    "full_name",
    "gather_into",
    "gather_parts",
    "make_cluster",
    "move",
    "move_array",
    "operation_scope",
    "place",
    "track_transfers",
    "value_nbytes",
]
