"""Initial values: an array for the whole variable, or a callable that makes it, whole or part by
part.

R-INIT-1 (RFC 000): "initial value is either a Tensor-like value (for the entire variable), or a
callable (w/ no arguments) that returns the full initial value." Initializers are callables that
take ``shape``, ``dtype`` and ``partition``, often with the first two bound by
``functools.partial``.

R-INIT-2 (RFC 000): "we will inspect the initializer to see if it accepts the `partition` argument.
If not, this initializer is not partition aware and we will go ahead creating the entire value and
do slicing, otherwise we will pass in the `partition` argument, create initial values on each
sharding device."

The signature of a callable says what it accepts. Calling it and catching errors would hide the
callable's own errors from its caller. Four spellings of a partition are known: RFC 000's
``partition`` and the ``layout`` of its appendix, and TensorFlow's ``partition_shape`` with
``partition_offset``, and ``shard_info``.

1. ``open_initial_value`` finds out shape and dtype: declared, or bound to the callable, or taken
   from the value, which is made whole only then.
2. ``InitialValue.part`` makes each part on its device, or cuts it from the whole.
3. ``evaluate`` is the way of a plain variable: it makes the whole value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter, signature
from typing import Any, Self

import numpy as np

from shardvar.errors import ArgumentError
from shardvar.layout.dtypes import Array
from shardvar.layout.region import Region
from shardvar.reference.devices import Device, current_device, device_scope
from shardvar.reference.variables.initializers import joined
from shardvar.reference.variables.initializers.base import InitialPart
from shardvar.reference.variables.values import as_dtype, as_value, cast_value, check_shape

_SPELLINGS = (("partition",), ("partition_shape", "partition_offset"), ("shard_info",), ("layout",))


@dataclass(frozen=True, slots=True)
class _Signature:
    """The parameters of a callable, found without calling it."""

    names: frozenset[str]
    """All parameters, bound or not."""
    required: frozenset[str]
    """The parameters that must be given."""
    bound: Mapping[str, Any]
    """The parameters that ``functools.partial`` has given already."""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Self:
        try:
            parameters = signature(function).parameters
        except (
            TypeError,
            ValueError,
        ):  # some callables written in C have no signature: call them without arguments
            return cls(frozenset(), frozenset(), {})
        named = {
            name: p
            for name, p in parameters.items()
            if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        }
        required = frozenset(name for name, p in named.items() if p.default is Parameter.empty)
        # partial(init, (4, 2), dtype="int32") has bound the shape by position; bind_partial finds
        # its name.
        bound: dict[str, Any] = {}
        if isinstance(function, partial):
            bound = dict(
                signature(function.func).bind_partial(*function.args, **function.keywords).arguments
            )
        return cls(frozenset(named), required, bound)

    @property
    def partition_arguments(self) -> tuple[str, ...] | None:
        """The parameters by which it accepts a partition, or None."""
        return next((names for names in _SPELLINGS if self.names.issuperset(names)), None)

    def free_arguments(self, shape: Sequence[int | None] | None, dtype: Any) -> dict[str, Any]:
        """Return shape and dtype for an initializer that requires them and is not bound to them."""
        if "shape" not in self.required or shape is None:
            return {}
        given = {"shape": tuple(shape)}
        return given | {"dtype": dtype} if dtype is not None and "dtype" in self.names else given


@dataclass(frozen=True, slots=True, eq=False)
class InitialValue:
    """The initial value of a variable: its geometry, and each part of it."""

    shape: tuple[int, ...]
    """The full shape."""
    dtype: np.dtype[Any]
    """The dtype of all parts."""
    whole: Array | None
    """The full value, if it had to be made for the geometry, or by a simple callable."""
    function: Callable[..., Any] | None
    """The callable that makes a part, or None where parts are cut from the whole."""
    home: Device = field(default_factory=current_device)
    """The device of the full value, if it was made: the one on which the program computed then."""

    def part(self, region: Region, device: Device) -> Array:
        """Return the part's value; where a function makes it, the full value never exists."""
        if self.function is None:
            return as_value(self.whole)[region.slices]
        given = _Signature.of(self.function)
        made = self.function(
            **given.free_arguments(self.shape, self.dtype), **_partition(given, region, device)
        )
        if given.partition_arguments == ("layout",):
            # RFC 000's appendix: "returns a map from device string to the initial value".
            made = made[device.name]
        # Initializers may be anyone's: a part of another shape or dtype is refused before it
        # becomes a shard.
        value = cast_value(as_value(made), self.dtype, "The initial value of a part")
        check_shape(value.shape, region.shape, f"The initial value of the part {region}")
        return value


def open_initial_value(initial_value: Any, shape: Sequence[int] | None, dtype: Any) -> InitialValue:
    """Return the geometry of an initial value; the value itself is made only if nothing else tells
    the geometry.

    The shape is the declared one, or the one that the callable is bound to; the dtype likewise.
    """
    # `joined` first: without a seed, the parts of an orthogonal matrix would otherwise come from
    # different matrices.
    wanted = None if dtype is None else as_dtype(dtype)
    initial_value = joined(initial_value)
    if callable(initial_value):
        # A callable that accepts a partition and whose shape and dtype are known makes its parts.
        # Any other callable is called once, here, for the whole value, which is then cut.
        given = _Signature.of(initial_value)
        known_shape = given.bound.get("shape") if shape is None else shape
        known_dtype = given.bound.get("dtype") if wanted is None else wanted
        if "shape" in given.required and known_dtype is None:
            known_dtype = np.float32  # the dtype that initializers make by default
        if given.partition_arguments and known_shape is not None and known_dtype is not None:
            return InitialValue(tuple(known_shape), as_dtype(known_dtype), None, initial_value)
        initial_value = initial_value(**given.free_arguments(shape, wanted))
    if initial_value is None:
        raise ArgumentError(
            "A variable has no initial value.", "Give initial_value: an array, or a callable."
        )
    value = as_value(initial_value, wanted)
    if shape is not None:
        check_shape(value.shape, tuple(shape), "The initial value")
    return InitialValue(value.shape, value.dtype, value, None)


def evaluate(
    initial_value: Any, shape: tuple[int | None, ...] | None, dtype: Any, device: Device
) -> tuple[Array, Device, bool]:
    """Return the value for a plain variable on ``device``, the device of that array, and True if
    nothing else holds it.

    R-INIT-3 (RFC 000): initial values are created "on each sharding device": a callable runs where
    its value will live.
    """
    if initial_value is None:
        raise ArgumentError(
            "A variable has no initial value.", "Give initial_value: an array, or a callable."
        )
    wanted = None if dtype is None else as_dtype(dtype)
    # An array is where the program computes, and its owner may go on using it: it is copied, never
    # adopted.
    if not callable(initial_value):
        return as_value(initial_value, wanted), current_device(), False
    with device_scope(device):
        value = initial_value(**_Signature.of(initial_value).free_arguments(shape, wanted))
    return (
        as_value(value, wanted),
        getattr(initial_value, "source", device),
        makes_new_arrays(initial_value),
    )


def makes_new_arrays(function: Any) -> bool:
    """Return True if every call returns a new array to which nothing else refers, as initializers
    say of themselves."""
    # partial(partial(init, (4, 2)), "int32") is as good as `init` itself.
    while isinstance(function, partial):
        function = function.func
    return bool(getattr(function, "makes_new_arrays", False))


def _partition(given: _Signature, region: Region, device: Device) -> dict[str, Any]:
    # R-INIT-8 (RFC 000): '"partition" is a namedtuple of two fields: shape and offset.' So is
    # TensorFlow's ShardInfo.
    part = InitialPart.of(region)
    spelling = given.partition_arguments or ()
    values = {
        "partition": part,
        "partition_shape": part.shape,
        "partition_offset": part.offset,
        "shard_info": part,
        "layout": {device.name: part},
    }
    return {name: values[name] for name in spelling}
