"""Sharded variables, and their creation from one initial value.

R-SV-1 (RFC 000): "ShardedVariable is a container of a list of variables that are placed on
different devices, and that list of variables compose a larger variable." R-VAR-9 (RFC 003):
"Implement PartitionedVariable as a subclass of the tf.Variable interface". Where one variable is
expected (a gradient, a module's list of variables), its shards take its place.

Python's protocols are the same as a plain variable's: iterating gives the rows, ``==`` compares
elements, the hash is the identity, and ``len`` is left out. The shards are ``variables``.

Creation calls the base creator once for each part, on the part's device.

1. A variable that is colocated with another one is created there, whole.
2. The initial value gives the geometry. It is made whole only where it cannot be made in parts.
3. The partitioner answers. Fewer than two parts are a plain variable.
4. The next creator makes each part with its value, shape, name and device.
5. The parts become shards of one sharded variable, which has the name.
"""

import weakref
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import cycle, pairwise
from typing import Any, Self

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, LayoutError
from shardvar.layout.dtypes import Array, DType, Ints, Shape, dtype_name
from shardvar.layout.partition import Cut, Partition, plan_rows
from shardvar.layout.region import Region
from shardvar.records import entity
from shardvar.reference.devices import Device, current_device, operation_scope
from shardvar.reference.variables.initial_value import (
    InitialValue,
    LayoutCall,
    NextCreator,
    makes_new_arrays,
    open_initial_value,
    plan_layout_calls,
    scoped_name,
)
from shardvar.reference.variables.rows import RowColumns, RowLayout, Rows, read_shards
from shardvar.reference.variables.values import Resource, UpdateKind, Write
from shardvar.reference.variables.variable import Variable


class ShardedVariable(Variable):
    """Variables that follow one another along the first axis, as one variable.

    Parameters
    ----------
    variables : sequence of Variable
        The shards, in the order of their rows. They may have any number of rows, 0 included. The
        other axes, the dtype and ``trainable`` must agree, and a shard may be in one container
        only.
    name : str, default "ShardedVariable"
        The name of the whole.

    Raises
    ------
    ArgumentTypeError
        If `variables` is not a non-empty sequence of variables that are not sharded.
    ArgumentError
        If dtypes, shapes behind the first axis, or ``trainable`` differ.
    LayoutError
        If a shard is a scalar, is given twice, or is a shard of another container.

    Examples
    --------
    >>> sharded = ShardedVariable([Variable([[0.0, 1.0]]), Variable([[2.0, 3.0], [4.0, 5.0]])])
    >>> sharded.shape, sharded[1:, 0]
    ((3, 2), array([2., 4.], dtype=float32))
    """

    def __init__(self, variables: Sequence[Variable], name: str = "ShardedVariable") -> None:
        shards = check_shards(variables)
        self._name, self._variables = name, tuple(shards)
        self._row_layout = RowLayout.of_sizes([shard.shape[0] for shard in shards])
        self._row_shape, self._dtype = tuple(shards[0].shape[1:]), shards[0].dtype
        # A weak reference: shards outlive a container that is dropped, and are then free for
        # another one.
        for shard in shards:
            shard._container = weakref.ref(self)

    @property
    def variables(self) -> list[Variable]:
        """The shards, in the order of their rows."""
        return list(self._variables)

    def get_variable_list(self) -> list[Variable]:
        """Return the shards, in the order of their rows.

        R-SV-2 (RFC 002): "Returns a list of partition variables."
        """
        return self.variables

    @property
    def shape(self) -> Shape:
        return (self._row_layout.num_rows, *self._row_shape)

    @property
    def dtype(self) -> DType:
        return self._dtype

    @property
    def name(self) -> str:
        return self._name

    @property
    def trainable(self) -> bool:
        return self._variables[0].trainable

    @property
    def device(self) -> Device:
        """The device of the first shard, for variables that are colocated with this one."""
        return self._variables[0].device

    @property
    def devices(self) -> tuple[Device, ...]:
        """The device of each shard."""
        return tuple(shard.device for shard in self._variables)

    @property
    def partition(self) -> Partition:
        """The region of the whole that each shard holds."""
        zeros = (0,) * len(self._row_shape)
        bounds = self._row_layout.bounds
        parts = tuple(
            Region((start, *zeros), (stop - start, *self._row_shape))
            for start, stop in pairwise(bounds)
        )
        return Partition(self.shape, parts)

    @property
    def resources(self) -> tuple[Resource, ...]:
        return tuple(resource for shard in self._variables for resource in shard.resources)

    def read_value(self) -> Array:
        """Return the full value, concatenated on the current device.

        R-SV-3 (RFC 000): "ShardedVariable will support read and update functions like read_value,
        assign_add and scatter_add."

        Raises
        ------
        DeviceFull
            If the value does not fit the current device.
        """
        with operation_scope("read_value"):
            return self._read_rows(range(self.shape[0]))

    def _read_rows(self, rows: Rows, columns: RowColumns = ()) -> Array:
        return read_shards(self, self._variables, self._row_layout, rows, columns)

    def plan_writes(self, update: UpdateKind, value: Array) -> list[Write]:
        bounds = pairwise(self._row_layout.bounds)
        return [
            write
            for shard, (start, stop) in zip(self._variables, bounds, strict=True)
            if start < stop
            for write in shard.plan_writes(update, value[start:stop])
        ]

    def plan_row_writes(
        self, update: UpdateKind, rows: Ints, values: Array, order: Ints | None = None
    ) -> list[Write]:
        bounds = self._row_layout.bounds
        edges = np.searchsorted(rows, bounds).tolist()
        writes = []
        for shard, (low, high) in enumerate(pairwise(edges)):
            if low < high:
                local = rows[low:high] - bounds[shard]
                own = (values[low:high], None) if order is None else (values, order[low:high])
                writes += self._variables[shard].plan_row_writes(update, local, *own)
        return writes

    def _written(self, read_value: bool) -> Any:
        # R-ASSIGN-2: as TensorFlow, every write returns the container itself, for any read_value.
        return self

    def __copy__(self) -> Self:
        """Return another container of the same shards, whose ``container`` stays the first one."""
        twin = object.__new__(type(self))
        for name in ("_name", "_variables", "_row_layout", "_row_shape", "_dtype"):
            setattr(twin, name, getattr(self, name))
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return independent shards of the same names, in a new container."""
        twin = type(self)([deepcopy(shard, memo) for shard in self._variables], self._name)
        memo[id(self)] = twin
        return twin

    def _repr_html_(self) -> str:
        """The shards as a drawing, and a table with the device of each, for notebooks."""
        # Imported on use, so that programs outside notebooks do not pay for the drawings.
        from shardvar.pictures.drawings import variable_html

        shards = [
            ((part.offset, part.shape), device.short_name)
            for part, device in zip(self.partition, self.devices, strict=True)
        ]
        about = (dtype_name(self.dtype), str(self.shape), f"{len(shards)} shards")
        return variable_html(f"ShardedVariable {self.name}", about, self.shape, shards)

    def __repr__(self) -> str:
        parts = ", ".join(
            f"{shard.name} {shard.shape} on {shard.device}" for shard in self._variables
        )
        return (
            f"<sv.ShardedVariable {self.name!r} shape={self.shape} dtype={dtype_name(self.dtype)} "
            f"of {parts}>"
        )


def check_shards(variables: Any) -> list[Variable]:
    # R-SV-4 (RFC 000): they "compose a larger variable": equal dtypes, equal shapes but for the
    # first axis.
    is_list = isinstance(variables, Sequence) and not isinstance(variables, str | bytes)
    if not is_list or not len(variables):
        raise ArgumentTypeError(
            f"ShardedVariable is given {type(variables).__name__} {_excerpt(variables)}.",
            "Give a non-empty list of variables.",
        )
    for number, shard in enumerate(variables):
        if not isinstance(shard, Variable) or isinstance(shard, ShardedVariable):
            raise ArgumentTypeError(
                f"Shard {number} is {type(shard).__name__} {_excerpt(shard)}.",
                "Give a variable that is not sharded for each shard.",
            )
    # Scalars are found before shapes are compared, because the shape of a scalar behind the first
    # axis equals a vector's: ().
    shards: list[Variable] = list(variables)
    _check_equal("dtype", [dtype_name(shard.dtype) for shard in shards])
    scalar = next((shard for shard in shards if not shard.shape), None)
    if scalar is not None:
        raise LayoutError(
            f"The shard {scalar.name} is a scalar.", "Give shards with at least one axis."
        )
    _check_equal("shape behind the first axis", [shard.shape[1:] for shard in shards])
    _check_equal("trainable property", [shard.trainable for shard in shards])
    for number, shard in enumerate(shards):
        if any(shard is other for other in shards[:number]):
            raise LayoutError(
                f"The variable {shard.name} is given twice.", "Create a variable for each shard."
            )
        if shard.container is not None:
            raise LayoutError(
                f"The variable {shard.name} is a shard of {shard.container.name} already.",
                "Use that sharded variable, or create a variable for this one.",
            )
    return shards


def _check_equal(what: str, values: list[Any]) -> None:
    odd = next((number for number, value in enumerate(values) if value != values[0]), None)
    if odd is not None:
        raise ArgumentError(
            f"Shards 0 and {odd} differ in {what}: {values[0]} and {values[odd]}.",
            "Give shards that agree in it.",
        )


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


@entity
class PartValue:
    """The initial value of one part, as a callable for its device; the caller owns it."""

    initial: InitialValue
    region: Region
    device: Device
    call: LayoutCall

    def __call__(self) -> Array:
        return self.initial.part(self.region, self.device, self.call)

    @property
    def source(self) -> Device:
        """The device of its result."""
        return self.device if self.initial.whole is None else self.initial.home

    @property
    def makes_new_arrays(self) -> bool:
        """True if nothing else refers to the array that it returns."""
        return self.initial.function is not None and makes_new_arrays(self.initial.function)


def open_arguments(kwargs: dict[str, Any]) -> tuple[InitialValue, dict[str, Any]]:
    """Return the initial value, and arguments that do not evaluate it a second time."""
    # ``initial.whole`` is the value if it had to be evaluated to know its shape; it replaces the
    # callable in kwargs.
    initial = open_initial_value(
        kwargs.get("initial_value"), kwargs.get("shape"), kwargs.get("dtype")
    )
    return initial, kwargs if initial.whole is None else kwargs | {"initial_value": initial.whole}


def create_partitioned(
    next_creator: NextCreator,
    kwargs: dict[str, Any],
    *,
    cut: Cut | None,
    place_next: Callable[[], Device] = current_device,
    num_shards: int = 1,
) -> Any:
    """Return a plain variable, also if ``cut`` is None, or a sharded one; this is the body of a
    strategy's creator.

    ``place_next`` is called once for each variable or part that is created, in their order.
    ``num_shards`` is passed to partitioners of three arguments.
    """
    # R-CREATE-3 (RFC 000): 'For variables that are "colocated_with" other variables, they will be
    # created as normal variables residing in the same device as the "colocated_with" variable.'
    if kwargs.get("colocated_with") is not None:
        return next_creator(**kwargs)
    if cut is None:
        return next_creator(**kwargs | {"device": place_next()})
    # Plan: geometry, parts, and a device for each.
    initial, kwargs = open_arguments(kwargs)
    partition = plan_rows(cut, initial.shape, initial.dtype, num_shards)
    # R-CREATE-2 (RFC 000): "We will fall back to creating normal variables when there are less than
    # two partitions."
    if len(partition) < 2:
        return next_creator(**kwargs | {"device": place_next()})
    # Create: one part after another, so that only one part at a time is in memory in addition to
    # the shards.
    name = kwargs.get("name")
    parts = []
    devices = [place_next() for _ in partition]
    calls = plan_layout_calls(partition, devices)
    for number, (region, device) in enumerate(zip(partition, devices, strict=True)):
        of_part = {
            "initial_value": PartValue(initial, region, device, calls[number]),
            "shape": region.shape,
            "dtype": initial.dtype,
            # R-CREATE-4 (RFC 000): 'dense.trainable_variables[0].name == "w/part_0"'.
            "name": None if name is None else f"{name}/part_{number}",
            "device": device,
        }
        parts.append(next_creator(**kwargs | of_part))
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
