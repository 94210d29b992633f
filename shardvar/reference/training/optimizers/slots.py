"""Slots: variables that an optimizer keeps for each one that it trains, of the same shape on the
same device.

R-SLOT-1 (RFC 000): "If var is a ShardedVariable, add_slot will iterate its underlying component
variables and create a slot for each of them, and get_slot will lookup the slots of var's component
variables, and construct a new ShardedVariable on the fly containing those slots. Slot variable is
partitioned in exactly the same way as the original variable."

The slot of a mirrored variable is mirrored on the same devices, so that every replica applies the
same updates to its copy.

A shard's slot is found by the shard, which is how training works; it is a child of the optimizer
within the sharded slot, which is how saving works. R-SLOT-2 (RFC 000): "At saving/loading time,
optimizer sees sharded variable as a ShardedVariable instance".
"""

import weakref
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any, Self

import numpy as np

from shardvar.errors import ArgumentTypeError, UnknownKey
from shardvar.reference.tracking import Trackable
from shardvar.reference.variables.interface import VariableInterface
from shardvar.reference.variables.mirrored import AggregatingVariable, MirroredVariable
from shardvar.reference.variables.sharded import ShardedVariable
from shardvar.reference.variables.variable import Variable


class SlotTable:
    """The slots of one optimizer, each a child of ``owner``: a sharded slot is one child."""

    def __init__(self, owner: Trackable) -> None:
        # Weak: an optimizer and its table would form a cycle.
        self._owner_reference = weakref.ref(owner)
        self._slots: dict[tuple[int, str], VariableInterface] = {}
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._children: dict[
            int, str
        ] = {}  # by the slot's id: the name that it has among the owner's children
        self._variables: dict[
            int, VariableInterface
        ] = {}  # kept alive, so that their ids stay theirs

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the table of a copy of the owner, with copies of the slots."""
        twin = memo[id(self)] = type(self)(deepcopy(self._owner, memo))
        twin._numbers = self._numbers.copy()
        for (number, name), slot in self._slots.items():
            copied = deepcopy(slot, memo)
            twin._remember(deepcopy(self._variables[number], memo), name, copied)
            if id(slot) in self._children:
                twin._children[id(copied)] = self._children[id(slot)]
        return twin

    @property
    def _owner(self) -> Trackable:
        owner: Any = self._owner_reference()  # never None, since only the owner refers to its table
        return owner  # type: ignore[no-any-return]

    @property
    def names(self) -> list[str]:
        """The names of all existing slots, sorted."""
        return sorted({name for _, name in self._slots})

    def find(self, variable: Any, name: str) -> VariableInterface | None:
        """Return the slot, or None.

        The slot of a sharded variable is composed of its shards' slots when it is first asked for,
        since they may be older than the sharded variable.
        """
        variable = _slot_variable(variable)
        # Slots are found by identity, since variables may share a name. ``_variables`` keeps the
        # identities theirs.
        if isinstance(variable, ShardedVariable) and (id(variable), name) not in self._slots:
            found = [self.find(shard, name) for shard in variable.variables]
            slots = [slot for slot in found if isinstance(slot, Variable)]
            if len(slots) == len(found):
                self._compose(variable, name, slots)
        return self._slots.get((id(variable), name))

    def get(self, variable: Any, name: str) -> VariableInterface:
        """Return the slot; ``UnknownKey`` if it does not exist."""
        slot = self.find(_check_variable(variable), name)
        if slot is None:
            known = ", ".join(self.names) or "none yet"
            raise UnknownKey(
                f"{variable.name} has no slot {name!r}.", f"The optimizer's slots are {known}."
            )
        return slot

    def add(self, variable: Any, name: str, initializer: Any = 0.0) -> VariableInterface:
        """Return the slot, created if it does not exist; for a shard, the slots of all shards are
        created with it."""
        known = self.find(_check_variable(variable), name)
        if known is not None:
            return known
        variable = _slot_variable(variable)
        if isinstance(variable, ShardedVariable):
            self._compose(
                variable,
                name,
                [self._own(shard, name, initializer) for shard in variable.variables],
            )
        elif isinstance(variable, Variable) and variable.container is not None:
            # Saving wants all shards' slots, or none.
            self.add(variable.container, name, initializer)
        else:
            self._track(variable, name, self._own(variable, name, initializer))
        return self._slots[id(variable), name]

    def _own(self, variable: Any, name: str, initializer: Any) -> Variable:
        """Return the slot of a variable that is not sharded; "colocated_with" it, the slot is never
        partitioned."""
        known = self._slots.get((id(variable), name))
        if isinstance(known, Variable):
            return known
        slot_name = f"{variable.name}/{name}"
        slot: Variable
        if isinstance(variable, MirroredVariable):
            slot = _mirrored_slot(variable, slot_name, initializer)
        else:
            slot = _slot_beside(variable, slot_name, initializer)
        self._remember(variable, name, slot)
        return slot

    def _compose(self, variable: ShardedVariable, name: str, slots: list[Variable]) -> None:
        sharded = ShardedVariable(slots, name=f"{variable.name}/{name}")
        # Variables may have had slots before they became shards. From now on those are saved as one
        # sharded slot, so each stops being a child by itself.
        for child in [self._children.pop(id(slot)) for slot in slots if id(slot) in self._children]:
            self._owner.untrack(child)
        self._remember(variable, name, sharded)
        self._track(variable, name, sharded)

    def _remember(self, variable: VariableInterface, name: str, slot: VariableInterface) -> None:
        self._variables[id(variable)] = variable
        self._slots[id(variable), name] = slot

    def _track(self, variable: VariableInterface, name: str, slot: VariableInterface) -> None:
        """Give the slot a name among the optimizer's children: the variable's, and a number if that
        is taken.

        Slots "m" of three variables named "w" are "w.m", "w_1.m" and "w_2.m".
        """
        base, children = variable.name.replace("/", "."), self._owner.children
        # Lower ones are taken: a thousand variables may have one name.
        number = self._numbers[base, name]
        while (child := f"{base}{f'_{number}' if number else ''}.{name}") in children:
            number += 1
        self._numbers[base, name] = number + 1
        self._children[id(slot)] = child
        self._owner.track_slot(child, slot, variable, name)


def _slot_variable(variable: Any) -> Any:
    """Return the variable with the slots: the one that an ``AggregatingVariable`` wraps."""
    return variable.variable if isinstance(variable, AggregatingVariable) else variable


def _slot_beside(variable: VariableInterface, name: str, initializer: Any) -> Any:
    # A callable for a number too, so that the array is made on the slot's device and not moved
    # there.
    first = (
        initializer
        if callable(initializer)
        else partial(np.full, variable.shape, initializer, variable.dtype)
    )
    return Variable(
        first,
        trainable=False,
        name=name,
        dtype=variable.dtype,
        shape=variable.shape,
        colocated_with=variable,
    )


def _mirrored_slot(variable: MirroredVariable, name: str, initializer: Any) -> MirroredVariable:
    """Create a slot on the device of each copy, cut as the copy is, in or out of a strategy's
    scope.

    All copies begin with equal values, so a callable initializer is called once.
    """
    copies: list[VariableInterface] = []
    for number, copy in enumerate(variable.copies):
        own = f"{name}/replica_{number}" if number else name
        if not isinstance(copy, ShardedVariable):
            copies.append(_slot_beside(copy, own, _of_first(initializer, copies)))
            continue
        # Shard by shard, so that no device holds the slot of a whole sharded copy.
        shards = []
        for part, shard in enumerate(copy.variables):
            firsts = [
                first.variables[part] for first in copies if isinstance(first, ShardedVariable)
            ]
            shards.append(_slot_beside(shard, f"{own}/part_{part}", _of_first(initializer, firsts)))
        copies.append(ShardedVariable(shards, name=own))
    return MirroredVariable(copies, variable.aggregation)


def _of_first(initializer: Any, copies: Sequence[VariableInterface]) -> Any:
    """Return the initializer of the next copy: the first copy's value, if a callable made it, which
    may be random."""
    return (
        (lambda *_, **__: copies[0].read_value())
        if copies and callable(initializer)
        else initializer
    )


def _check_variable(variable: Any) -> Any:
    if not isinstance(variable, VariableInterface):
        raise ArgumentTypeError(f"{type(variable).__name__} has no slots.", "Give a variable.")
    return variable
