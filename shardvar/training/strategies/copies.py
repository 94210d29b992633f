"""Creating one variable on many devices: spread over them in parts, or copied to each of them.

The first copy is created as any variable is. The others are made of its value, shard by shard and from device to
device, so that an initial value drawn by chance is the same everywhere, and nobody holds the whole of one that is cut.
"""

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

from shardvar.devices import Device, device_scope
from shardvar.errors import ArgumentTypeError
from shardvar.variables import MirroredVariable, ShardedVariable, VariableInterface, create_partitioned
from shardvar.variables.create import Cut
from shardvar.variables.initial_value import InitialValue, open_initial_value
from shardvar.variables.scopes import NextCreator


def create_cut(
    next_creator: NextCreator,
    kwargs: dict[str, Any],
    cut: Cut,
    *,
    place_next: Callable[[], Device],
    num_shards: int,
) -> Any:
    """``create_partitioned``, but that nothing is asked of an initial value where nothing can cut it.

    So even a callable whose shape is not known before it is called runs on the device where its value will live.
    """
    if cut is None:
        return next_creator(**kwargs | {"device": place_next()})
    return create_partitioned(next_creator, kwargs, cut=cut, place_next=place_next, num_shards=num_shards)


def opened(kwargs: dict[str, Any]) -> tuple[InitialValue, dict[str, Any]]:
    """The geometry of the variable that the arguments mean, and arguments by which nothing is evaluated twice."""
    initial = open_initial_value(kwargs.get("initial_value"), kwargs.get("shape"), kwargs.get("dtype"))
    return initial, kwargs if initial.whole is None else kwargs | {"initial_value": initial.whole}


def create_spread(
    next_creator: NextCreator, kwargs: dict[str, Any], cut: Cut, devices: Sequence[Device]
) -> VariableInterface:
    """A variable in the parts that ``cut`` says, on the devices in turn."""
    turn = cycle(devices)
    return _checked(create_cut(next_creator, kwargs, cut, place_next=turn.__next__, num_shards=len(devices)))


def create_copies(
    next_creator: NextCreator, kwargs: dict[str, Any], cut: Cut, homes: Sequence[Device]
) -> list[VariableInterface]:
    """A copy on each device, all cut alike."""
    copies = [create_spread(next_creator, kwargs, cut, homes[:1])]
    for number, home in enumerate(homes[1:], start=1):
        name = None if kwargs.get("name") is None else f"{kwargs['name']}/replica_{number}"
        with device_scope(homes[0]):
            copies.append(_copy(copies[0], next_creator, kwargs | {"name": name, "device": home}))
    return copies


def create_beside(next_creator: NextCreator, kwargs: dict[str, Any]) -> VariableInterface:
    """A variable that is not cut, where the ``colocated_with`` one lives: on each of its replicas if it is mirrored."""
    beside = kwargs["colocated_with"]
    if not isinstance(beside, MirroredVariable):
        return _checked(next_creator(**kwargs))
    homes = [copy.resources[0].device for copy in beside.copies]
    copies = create_copies(next_creator, kwargs | {"colocated_with": None}, None, homes)
    return MirroredVariable(copies, kwargs.get("aggregation"))


def _copy(first: VariableInterface, next_creator: NextCreator, kwargs: dict[str, Any]) -> VariableInterface:
    if not isinstance(first, ShardedVariable):
        return _checked(next_creator(**kwargs | {"initial_value": first.read_value(), "dtype": first.dtype}))
    shards = []
    for number, shard in enumerate(first.variables):
        name = None if kwargs["name"] is None else f"{kwargs['name']}/part_{number}"
        given = {"initial_value": shard.read_value(), "dtype": shard.dtype, "shape": shard.shape, "name": name}
        shards.append(next_creator(**kwargs | given))
    return ShardedVariable(shards, name=first.name)


def _checked(made: Any) -> VariableInterface:
    if not isinstance(made, VariableInterface):
        raise ArgumentTypeError(f"A variable creator returned {made!r}.", "Return a variable.")
    return made
