"""Steps of an optimizer, and the slots that it keeps for variables.

A slot has the shape of its variable, and is on the same device.

R-SLOT-1 (RFC 000): "If var is a ShardedVariable, add_slot will iterate its underlying component
variables and create a slot for each of them, and get_slot will lookup the slots of var's component
variables, and construct a new ShardedVariable on the fly containing those slots. Slot variable is
partitioned in exactly the same way as the original variable."

The slot of a mirrored variable is mirrored on the same devices, so that every replica applies the
same updates to its copy.

A shard's slot is found by the shard, which is how training works; it is a child of the optimizer
within the sharded slot, which is how saving works. R-SLOT-2 (RFC 000): "At saving/loading time,
optimizer sees sharded variable as a ShardedVariable instance".

In a step the gradient goes to the variable's device, and the rule is applied there in place.

1. ``plan_steps`` checks the gradient, sums its rows once for all copies and shards, and moves it:
   all that can fail. Variable and slots do not move.
2. A ``Write`` that is returned applies the rule to value blocks that fit the processor's cache. A
   rule is elementwise, so neither blocks nor shards change a bit of the result (R-OPT-2). Dense
   gradients are applied by ranges of elements, sparse ones by the rows that they have, or if the
   rule also moves other rows, by all rows, with a gradient of zero.

``GradientRows`` is a sparse gradient as it is applied: every row once, with the sum of what came
for it.

R-OPT-1 (RFC 002): sparse updates are "essentially dicts mapping from indices to vectors". Sums go
from the first to the last, so they are the same bits however the rows are spread over shards. Keras
3 squares before it sums, which is not the gradient's square: of 1 and 2 for one row it makes 1 + 4
= 5, and not 9. ``compat="keras3"`` also does so, in float32 if the gradient has few bits.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import pairwise
from typing import Any, Self

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, UnknownKey
from shardvar.layout.dtypes import Array, Ints, Shape
from shardvar.records import entity
from shardvar.reference.devices import Device, current_device, move_array
from shardvar.reference.nn.gradients import Gradient
from shardvar.reference.nn.lookup import exact_dtype, row_layout_of
from shardvar.reference.tracking import Trackable
from shardvar.reference.variables.interface import VariableInterface
from shardvar.reference.variables.mirrored import AggregatingVariable, MirroredVariable
from shardvar.reference.variables.rows import IndexedSlices, check_rows
from shardvar.reference.variables.sharded import ShardedVariable
from shardvar.reference.variables.values import (
    Write,
    as_value,
    cast_value,
    check_shape,
    row_blocks,
    sort_rows,
    sum_sorted,
)
from shardvar.reference.variables.variable import Variable


class SlotTable:
    """The slots of one optimizer, each a child of ``owner``: a sharded slot is one child."""

    def __init__(self, owner: Trackable) -> None:
        # Weak: an optimizer and its table would form a cycle.
        self._owner_reference = weakref.ref(owner)
        self._slots: dict[tuple[int, str], VariableInterface] = {}
        self._numbers: Counter[tuple[str, str]] = Counter()
        # By the slot's id: its name among the owner's children.
        self._children: dict[int, str] = {}
        # Kept alive, so that their ids stay theirs.
        self._variables: dict[int, VariableInterface] = {}

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
        return sorted({name for _, name in self._slots})

    def find(self, variable: Any, name: str) -> VariableInterface | None:
        """Return the slot, or None; a sharded variable's is composed of its shards'."""
        variable = _slot_variable(variable)
        # Slots are found by identity, since variables may share a name.
        if isinstance(variable, ShardedVariable) and (id(variable), name) not in self._slots:
            found = [self.find(shard, name) for shard in variable.variables]
            slots = [slot for slot in found if isinstance(slot, Variable)]
            if len(slots) == len(found):
                self._compose(variable, name, slots)
        return self._slots.get((id(variable), name))

    def get(self, variable: Any, name: str) -> VariableInterface:
        slot = self.find(_check_variable(variable), name)
        if slot is None:
            names = ", ".join(self.names) or "none yet"
            raise UnknownKey(
                f"{variable.name} has no slot {name!r}.", f"The optimizer's slots are {names}."
            )
        return slot

    def add(self, variable: Any, name: str, initializer: Any = 0.0) -> VariableInterface:
        """Return the slot, created if it is new, for a shard together with its siblings'."""
        slot = self.find(_check_variable(variable), name)
        if slot is not None:
            return slot
        variable = _slot_variable(variable)
        if isinstance(variable, ShardedVariable):
            shards = [self._own(shard, name, initializer) for shard in variable.variables]
            self._compose(variable, name, shards)
        elif isinstance(variable, Variable) and variable.container is not None:
            # Saving wants all shards' slots, or none.
            self.add(variable.container, name, initializer)
        else:
            self._track(variable, name, self._own(variable, name, initializer))
        return self._slots[id(variable), name]

    def _own(self, variable: Any, name: str, initializer: Any) -> Variable:
        """Return the slot of a variable that is not sharded; "colocated_with" it, it is never cut."""
        slot: Any = self._slots.get((id(variable), name))
        if not isinstance(slot, Variable):
            make = _mirrored_slot if isinstance(variable, MirroredVariable) else _slot_beside
            slot = make(variable, f"{variable.name}/{name}", initializer)
            self._remember(variable, name, slot)
        return slot  # type: ignore[no-any-return]

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
        """Track a slot under its variable's name: "m" of two variables "w" are "w.m" and "w_1.m"."""
        base, children = variable.name.replace("/", "."), self._owner.children
        # Lower numbers are taken: a thousand variables may have one name.
        number = self._numbers[base, name]
        while (child := f"{base}{f'_{number}' if number else ''}.{name}") in children:
            number += 1
        self._numbers[base, name] = number + 1
        self._children[id(slot)] = child
        self._owner.track_slot(child, slot, variable, name)


def _slot_variable(variable: Any) -> Any:
    """Return the variable with the slots, which an ``AggregatingVariable`` wraps."""
    return variable.variable if isinstance(variable, AggregatingVariable) else variable


def _slot_beside(variable: Any, name: str, initializer: Any) -> Any:
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


def _mirrored_slot(variable: Any, name: str, initializer: Any) -> MirroredVariable:
    """Create a slot on the device of each copy, cut alike; an initializer is called once."""
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
    """Return the initializer of the next copy: the first copy's value, which may be random."""
    return (
        (lambda *_, **__: copies[0].read_value())
        if copies and callable(initializer)
        else initializer
    )


def _check_variable(variable: Any) -> Any:
    if not isinstance(variable, VariableInterface):
        raise ArgumentTypeError(f"{type(variable).__name__} has no slots.", "Give a variable.")
    return variable


@entity
class GradientRows:
    """The rows of a sparse gradient, ascending and distinct."""

    rows: Ints
    """The rows of the variable, [n]."""
    sums: Array
    """The gradient of each, [n, *row]."""
    squares: Array | None
    """The squares, in the dtype that rules compute in; None for ``sums * sums``."""

    @classmethod
    def of(
        cls,
        gradient: IndexedSlices,
        shape: Shape,
        dtype: np.dtype[np.generic],
        *,
        sum_squares: bool,
    ) -> Self:
        """Check and sum a gradient of a variable of this shape and dtype."""
        indices = check_rows(gradient.indices, shape[0] if shape else 0, rank=1)
        values = cast_value(gradient.values, dtype, "The gradient")
        check_shape(values.shape, (len(indices), *shape[1:]), "The gradient's array of values")
        if gradient.dense_shape is not None:
            check_shape(gradient.dense_shape, shape, "The gradient")
        ascending, order = sort_rows(indices)
        rows, sums = sum_sorted(ascending, values, order)
        if not sum_squares:
            return cls(rows, sums, None)
        exact = values.astype(exact_dtype(dtype), copy=False)
        return cls(rows, sums, sum_sorted(ascending, exact * exact, order)[1])

    def of_shard(self, start: int, stop: int) -> Self:
        """Return the gradients of the rows ``start`` to ``stop``, in the numbers of their shard."""
        # Rows ascend, so a shard's rows are a range of them: of rows 2, 5, 9 the shard [4, 8) has
        # 5, as its row 1.
        own = slice(*np.searchsorted(self.rows, [start, stop]))
        return type(self)(
            self.rows[own] - start,
            self.sums[own],
            None if self.squares is None else self.squares[own],
        )

    def moved(self, source: Device, target: Device) -> Self:
        squares = None if self.squares is None else move_array(self.squares, source, target)
        return type(self)(self.rows, move_array(self.sums, source, target), squares)


Slots = Mapping[str, Array]
Square = Callable[[], Array]
"""Computes the square of the gradient, for the rules that need it."""
UpdateRule = Callable[[Array, Array, Square, Slots], None]
"""``rule(value, gradient, square, slots)`` changes value and slots in place."""

_BLOCK_NBYTES = 1 << 17
"""Size of a value block of one array, 128 KiB. A rule holds about eight such arrays at a time: 1
MiB, which fits L2."""


def plan_steps(
    rule: UpdateRule,
    gradient: Gradient,
    variable: VariableInterface,
    slots: Mapping[str, VariableInterface],
    *,
    touches_all_rows: bool,
    sum_squares: bool = False,
) -> list[Write]:
    if variable.dtype.kind in "iubO":
        raise ArgumentError(
            f"{variable.name} has dtype {variable.dtype} and no gradient.", "Train real variables."
        )
    # Rows are summed here, once, and not for every copy and shard that takes them: the sums are the
    # same.
    summed: Array | GradientRows
    if isinstance(gradient, IndexedSlices):
        summed = GradientRows.of(gradient, variable.shape, variable.dtype, sum_squares=sum_squares)
    else:
        summed = cast_value(as_value(gradient), variable.dtype, "The gradient")
        check_shape(summed.shape, variable.shape, "The gradient")
    writes = []
    # One write for each shard of each copy. The gradient moves now; the rule is applied when the
    # write is committed, in the memory of the variable and its slots, so a step needs no second
    # copy of them. R-OPT-7 (RFC 000): mirrored variables "are always kept in sync by applying the
    # same updates to every copy": the gradient goes to each, and no copy's value moves.
    for part, own, own_slots in _leaves(summed, variable, slots):
        apply = _plan(rule, part, own, touches_all_rows)
        variables = (own, *own_slots.values())
        resources = tuple(resource for each in variables for resource in each.resources)
        writes.append(Write(resources, partial(_apply, apply, variables, own_slots)))
    return writes


def _leaves(
    gradient: Any, variable: Any, slots: Mapping[str, Any]
) -> Iterator[tuple[Any, Variable, Mapping[str, Variable]]]:
    """Yield each shard of each copy, with its part of the gradient and its slots."""
    if isinstance(variable, AggregatingVariable):
        yield from _leaves(gradient, variable.variable, slots)
        return
    if isinstance(variable, MirroredVariable):
        # With a slot that is not mirrored, the variable is updated as a whole: ``_apply`` assigns
        # it.
        if all(isinstance(slot, MirroredVariable) for slot in slots.values()):
            for number, copy in enumerate(variable.copies):
                yield from _leaves(
                    gradient, copy, {name: slot.copies[number] for name, slot in slots.items()}
                )
            return
    elif isinstance(variable, ShardedVariable):
        bounds = pairwise(row_layout_of(variable).bounds)
        for number, (shard, (start, stop)) in enumerate(
            zip(variable.variables, bounds, strict=True)
        ):
            part = (
                gradient.of_shard(start, stop)
                if isinstance(gradient, GradientRows)
                else gradient[start:stop]
            )
            yield from _leaves(
                part, shard, {name: slot.variables[number] for name, slot in slots.items()}
            )
        return
    yield gradient, variable, slots


def _apply(
    apply: Callable[[Array, Slots], None], variables: tuple[Variable, ...], slots: Mapping[str, Any]
) -> None:
    """Apply in place; to copies, which are then assigned, if a variable hides its memory."""
    is_hidden = any(len(each.resources) != 1 for each in variables)
    arrays = [
        np.array(each.read_value()) if is_hidden else each.resources[0].array for each in variables
    ]
    apply(arrays[0], dict(zip(slots, arrays[1:], strict=True)))
    if is_hidden:
        for each, array in zip(variables, arrays, strict=True):
            each.assign(array)


def _plan(
    rule: UpdateRule, gradient: "Array | GradientRows", variable: Variable, touches_all_rows: bool
) -> Callable[[Array, Slots], None]:
    """Move the gradient to the variable's device, and return the function that applies it there."""
    here, there = current_device(), variable.device
    dtype, exact = variable.dtype, exact_dtype(variable.dtype)
    by_rows = isinstance(gradient, GradientRows)
    moved: Any
    if isinstance(gradient, GradientRows):
        # Rows were summed before they move: of a thousand gradients for one row one crosses.
        moved = gradient.moved(here, there)
    else:
        moved = move_array(gradient, here, there).reshape(-1)

    def widened(array: Array) -> Array:
        # In bfloat16, with 8 bits of fraction, 256 + 1 is 256: a sum of squares would stop growing.
        # So values of few bits are widened to float32 for the whole rule, and rounded once at its
        # end. Elementwise, so a block at a time.
        return array if exact == dtype else array.astype(exact)

    def apply(value: Array, slots: Slots) -> None:
        if not by_rows:
            value, slots = value.reshape(-1), {key: slot.reshape(-1) for key, slot in slots.items()}
        for index, part, square in _portions(moved, value, touches_all_rows):
            new, wide = widened(value[index]), widened(part)
            new_slots = {key: widened(slot[index]) for key, slot in slots.items()}
            rule(new, wide, partial(_square, wide, square), new_slots)
            # NumPy's ``value[rows]`` is a copy too, and is written back.
            if exact != dtype or not isinstance(index, slice):
                value[index] = new.astype(dtype, copy=False)
                for key, slot in slots.items():
                    slot[index] = new_slots[key].astype(slot.dtype, copy=False)

    return apply


def _square(gradient: Array, square: Array | None) -> Array:
    return gradient * gradient if square is None else square


def _portions(
    gradient: "Array | GradientRows", value: Array, touches_all_rows: bool
) -> Iterator[tuple[Any, Array, Array | None]]:
    """Yield indexes of the value, each with its gradient, and with the square if it is another one."""
    if not isinstance(gradient, GradientRows):
        for block in row_blocks(len(value), value, _BLOCK_NBYTES):
            yield block, gradient[block], None
        return
    squares = gradient.squares
    if not touches_all_rows:
        # Rows are distinct: no update of a row is lost.
        for block in row_blocks(len(gradient.sums), gradient.sums, _BLOCK_NBYTES):
            square = None if squares is None else squares[block]
            yield gradient.rows[block], gradient.sums[block], square
        return
    # The gradient is made dense for one block at a time. Its rows ascend, so a block's rows are a
    # range of them: of rows 2, 5, 9 the block [4, 8) has the range 1 to 2, which is row 5, at 5 - 4
    # = 1 in the block.
    for block in row_blocks(len(value), value, _BLOCK_NBYTES):
        low, high = np.searchsorted(gradient.rows, [block.start, block.stop])
        local = gradient.rows[low:high] - block.start
        part = np.zeros_like(value[block])
        part[local] = gradient.sums[low:high]
        square = None
        if squares is not None:
            square = np.zeros(part.shape, squares.dtype)
            square[local] = squares[low:high]
        yield block, part, square
