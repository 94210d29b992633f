"""Creation of a variable that may be partitioned: one call of the base creator for each part, on
the part's device.

1. A variable that is colocated with another one is created there, whole.
2. The initial value says the geometry. It is made whole only where it cannot be made in parts.
3. The partitioner answers. Fewer than two parts are a plain variable.
4. The next creator makes each part with its value, shape, name and device.
5. The parts become shards of one sharded variable, which has the name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from shardvar.layout.cutting import Cut, plan_rows
from shardvar.layout.dtypes import Array
from shardvar.layout.region import Region
from shardvar.reference.devices import Device, current_device
from shardvar.reference.variables.initial_value import (
    InitialValue,
    makes_new_arrays,
    open_initial_value,
)
from shardvar.reference.variables.scopes import NextCreator, scoped_name
from shardvar.reference.variables.sharded import ShardedVariable
from shardvar.reference.variables.variable import Variable


@dataclass(frozen=True, slots=True, eq=False)
class PartValue:
    """The initial value of one part, as a callable for its device; the caller owns it."""

    initial: InitialValue
    """The initial value of the whole."""
    region: Region
    """The region of the part."""
    device: Device
    """The device on which the part will live."""

    def __call__(self) -> Array:
        return self.initial.part(self.region, self.device)

    @property
    def source(self) -> Device:
        """The device of its result: the shape of the part, or the shape of the whole if the result
        is a slice of it."""
        return self.device if self.initial.whole is None else self.initial.home

    @property
    def makes_new_arrays(self) -> bool:
        """True if nothing else refers to the array that it returns."""
        return self.initial.function is not None and makes_new_arrays(self.initial.function)


def create_partitioned(
    next_creator: NextCreator,
    kwargs: dict[str, Any],
    *,
    cut: Cut | None,
    place_next: Callable[[], Device] = current_device,
    num_shards: int = 1,
) -> Any:
    """Return a plain variable or a sharded one; this is the body of a strategy's creator.

    ``place_next`` is called once for each variable or part that is created, in their order.
    ``num_shards`` is passed to partitioners of three arguments.
    """
    # R-CREATE-3 (RFC 000): 'For variables that are "colocated_with" other variables, they will be
    # created as normal variables residing in the same device as the "colocated_with" variable.'
    if kwargs.get("colocated_with") is not None:
        return next_creator(**kwargs)
    # Plan: geometry, parts, and a device for each.
    initial = open_initial_value(
        kwargs.get("initial_value"), kwargs.get("shape"), kwargs.get("dtype")
    )
    partition = plan_rows(cut, initial.shape, initial.dtype, num_shards)
    # R-CREATE-2 (RFC 000): "We will fall back to creating normal variables when there are less than
    # two partitions."
    if len(partition) < 2:
        value = kwargs["initial_value"] if initial.whole is None else initial.whole
        return next_creator(**kwargs | {"initial_value": value, "device": place_next()})
    # Create: one part after another, so that only one part at a time is in memory in addition to
    # the shards.
    name = kwargs.get("name")
    parts = [
        next_creator(**kwargs | _arguments_of_part(initial, region, place_next(), name, number))
        for number, region in enumerate(partition)
    ]
    return ShardedVariable(parts, name="ShardedVariable" if name is None else scoped_name(name))


def create_sharded_variable(
    initial_value: Any, cut: Cut | None, devices: Sequence[Device] | None = None, **kwargs: Any
) -> Any:
    """Return ``sv.Variable(initial_value, **kwargs)``, cut and placed round robin on devices,
    without a strategy.

    >>> sharded = create_sharded_variable([1.0, 2.0, 3.0, 4.0, 5.0], 2, name="w")
    >>> [(shard.name, shard.shape) for shard in sharded.variables]
    [('w/part_0', (3,)), ('w/part_1', (2,))]
    """
    homes = cycle(devices or [current_device()])
    kwargs["initial_value"] = initial_value
    return create_partitioned(Variable, kwargs, cut=cut, place_next=homes.__next__)


def _arguments_of_part(
    initial: InitialValue, region: Region, device: Device, name: str | None, number: int
) -> dict[str, Any]:
    """Return the arguments of the next creator that differ for one part."""
    # R-CREATE-4 (RFC 000): 'dense.trainable_variables[0].name == "w/part_0"'.
    return {
        "initial_value": PartValue(initial, region, device),
        "shape": region.shape,
        "dtype": initial.dtype,
        "name": None if name is None else f"{name}/part_{number}",
        "device": device,
    }
