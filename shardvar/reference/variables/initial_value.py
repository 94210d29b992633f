"""Initial values of variables, and the scopes in which they are created.

R-INIT-1 (RFC 000): "initial value is either a Tensor-like value (for the entire variable), or a
callable (w/ no arguments) that returns the full initial value." Initializers are callables that
take ``shape``, ``dtype`` and ``partition``, often with the first two bound by
``functools.partial``.

R-INIT-2 (RFC 000): "we will inspect the initializer to see if it accepts the `partition` argument.
If not, this initializer is not partition aware and we will go ahead creating the entire value and
do slicing, otherwise we will pass in the `partition` argument, create initial values on each
sharding device."

A callable accepts the parameters of its signature. Calling it and catching errors would hide the
callable's own errors from its caller. Four spellings of a partition are known: RFC 000's
``partition`` and the ``layout`` of its appendix, and TensorFlow's ``partition_shape`` with
``partition_offset``, and ``shard_info``. A ``layout`` has the parts of all devices, one for each:
one call makes them, or as many calls as a device has parts.

1. ``open_initial_value`` finds out shape and dtype: declared, or bound to the callable, or taken
   from the value, which is made whole only then.
2. ``InitialValue.part`` makes each part on its device, or cuts it from the whole.
3. ``evaluate`` is the way of a plain variable: it makes the whole value.

R-CREATE-1 (RFC 003): "Under the hood this will call a hierarchy of scoped constructor functions". A
creator is called as ``creator(next_creator, **kwargs)``. It may

    - call ``next_creator(**kwargs)``, the base constructor as this creator sees it, to make the
      variable,
    - return a variable that exists already,
    - change arguments, and call the next creator any number of times.

Steps of one ``sv.Variable(...)``: ``create`` sorts the scopes of the thread by priority, chains
their creators, and calls the last one. The creator of the highest priority runs first; among equals
the innermost runs first. Both scopes belong to the thread, and leaving one, by an exception or
otherwise, restores what was there before.

R-NAME-1 (RFC 003): "to control variable naming users can use tf.name_scope + tf.Variable". Names
are labels, not keys: two variables may have the same name, and nothing is looked up by it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from inspect import Parameter, signature
from threading import local
from types import TracebackType
from typing import Any, Self

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError, ScopeError
from shardvar.layout.dtypes import Array, DType, Shape
from shardvar.layout.region import Region
from shardvar.records import entity, field, frozen
from shardvar.reference.devices import Device, current_device, device_scope
from shardvar.reference.variables.initializers import InitialPart, joined
from shardvar.reference.variables.values import as_dtype, as_value, cast_value, check_shape

_SPELLINGS = (("partition",), ("partition_shape", "partition_offset"), ("shard_info",), ("layout",))


@frozen
class _Signature:
    names: frozenset[str]
    """All parameters, bound or not."""
    required: frozenset[str]
    bound: Mapping[str, Any]
    """The parameters that ``functools.partial`` has given already."""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Self:
        try:
            parameters = signature(function).parameters
        except (TypeError, ValueError):
            # Some callables written in C have no signature: they are called without arguments.
            return cls(frozenset(), frozenset(), {})
        stars = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
        named = {name: p for name, p in parameters.items() if p.kind not in stars}
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


@entity
class LayoutCall:
    """One call of an initializer by RFC 000's ``layout``, and the values of parts that wait."""

    layout: dict[str, InitialPart] = field(default_factory=dict)
    """The part of each device, by its name."""
    made: dict[str, Any] = field(default_factory=dict)
    """The values of devices whose part is created later."""


def plan_layout_calls(partition: Iterable[Region], devices: Sequence[Device]) -> list[LayoutCall]:
    """Return the call that makes each part: the first one of each device, then the second ones."""
    # R-INIT-7 (RFC 000): "Layout is a map from device string to the shard assigned to that device":
    # a map holds one shard a device, so 4 shards on 2 servers are 2 calls, of shards 0 and 1, and
    # of 2 and 3.
    calls: list[LayoutCall] = []
    planned: list[LayoutCall] = []
    numbers: Counter[str] = Counter()
    for region, device in zip(partition, devices, strict=True):
        number = numbers[device.name]
        numbers[device.name] += 1
        if number == len(calls):
            calls.append(LayoutCall())
        calls[number].layout[device.name] = InitialPart.of(region)
        planned.append(calls[number])
    return planned


@entity
class InitialValue:
    """The initial value of a variable: its geometry, and each part of it."""

    shape: Shape
    dtype: DType
    whole: Array | None
    """The full value, if it had to be made for the geometry, or by a simple callable."""
    function: Callable[..., Any] | None
    """The callable that makes a part, or None where parts are cut from the whole."""
    home: Device = field(default_factory=current_device)
    """The device of the full value, if it was made: where the program computed then."""

    def part(self, region: Region, device: Device, call: LayoutCall) -> Array:
        """Return the part's value; where a function makes it, the full value never exists."""
        if self.function is None:
            return as_value(self.whole)[region.slices]
        given = _Signature.of(self.function)
        # R-INIT-8 (RFC 000): '"partition" is a namedtuple of two fields: shape and offset.' So is
        # TensorFlow's ShardInfo.
        part = InitialPart.of(region)
        values = {
            "partition": part,
            "partition_shape": part.shape,
            "partition_offset": part.offset,
            "shard_info": part,
            "layout": dict(call.layout),
        }
        wanted = {name: values[name] for name in given.partition_arguments or ()}
        # A value that is taken is forgotten: a second variable never gets the same array.
        made = call.made.pop(device.name, None)
        if made is None:
            made = self.function(**given.free_arguments(self.shape, self.dtype), **wanted)
            if "layout" in wanted:
                # R-INIT-7 (RFC 000): "`__call__` returns a map from device string to the initial
                # value on that device."
                if not isinstance(made, Mapping) or made.keys() != call.layout.keys():
                    answer = list(made) if isinstance(made, Mapping) else type(made).__name__
                    raise ArgumentError(
                        f"An initializer returned {answer} for a layout of the devices {list(call.layout)}.",
                        "Return a dict with a value for each device of the layout, and no other.",
                    )
                call.made.update(made)
                made = call.made.pop(device.name)
        # Initializers may be anyone's: a part of another shape or dtype is refused before it
        # becomes a shard.
        value = cast_value(as_value(made), self.dtype, "The initial value of a part")
        check_shape(value.shape, region.shape, f"The initial value of the part {region}")
        return value


def open_initial_value(initial_value: Any, shape: Sequence[int] | None, dtype: Any) -> InitialValue:
    """Return the geometry of an initial value, which is made only if nothing else tells it."""
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
    value = _as_given(initial_value, wanted)
    if shape is not None:
        check_shape(value.shape, tuple(shape), "The initial value")
    return InitialValue(value.shape, value.dtype, value, None)


def _as_given(value: Any, dtype: DType | None) -> Array:
    if value is None:
        raise ArgumentError(
            "A variable has no initial value.", "Give initial_value: an array, or a callable."
        )
    return as_value(value, dtype)


def evaluate(
    initial_value: Any, shape: tuple[int | None, ...] | None, dtype: Any, device: Device
) -> tuple[Array, Device, bool]:
    """Return the value of a plain variable, its device, and True if nothing else holds it."""
    wanted = None if dtype is None else as_dtype(dtype)
    # An array is where the program computes, and its owner may go on using it: it is copied, never
    # adopted.
    if not callable(initial_value):
        return _as_given(initial_value, wanted), current_device(), False
    # R-INIT-3 (RFC 000): initial values are created "on each sharding device": a callable runs
    # where its value will live.
    with device_scope(device):
        value = initial_value(**_Signature.of(initial_value).free_arguments(shape, wanted))
    return (
        as_value(value, wanted),
        getattr(initial_value, "source", device),
        makes_new_arrays(initial_value),
    )


def makes_new_arrays(function: Any) -> bool:
    """Return True if every call returns a new array to which nothing else refers."""
    # partial(partial(init, (4, 2)), "int32") is as good as `init` itself.
    while isinstance(function, partial):
        function = function.func
    return bool(getattr(function, "makes_new_arrays", False))


NextCreator = Callable[..., Any]
Creator = Callable[..., Any]


class _Stack(local):
    """The creator scopes of a thread, in the order in which they were entered."""

    scopes: tuple["variable_creator_scope", ...] = ()


_stack = _Stack()
_prefix: ContextVar[str] = ContextVar("prefix", default="")


class variable_creator_scope:  # noqa: N801 - a scope is written like a function, as in TensorFlow
    """A context in which a creator takes part in the creation of every ``sv.Variable``.

    Parameters
    ----------
    creator : callable
        Called as ``creator(next_creator, **kwargs)``; it returns a variable, usually
        ``next_creator(**kwargs)`` with some arguments changed.
    priority : int, default 100
        The creator of the highest priority runs first; among equals the innermost one.

    Raises
    ------
    ArgumentTypeError
        If `creator` is not callable.
    ScopeError
        On leaving, if a scope that was entered inside is still open.

    Examples
    --------
    >>> import shardvar as sv
    >>> def quiet(next_creator, **kwargs):
    ...     return next_creator(**kwargs | {"trainable": False})
    >>> with sv.variable_creator_scope(quiet):
    ...     variable = sv.Variable([1.0])
    >>> variable.trainable
    False
    """

    def __init__(self, creator: Creator, *, priority: int = 100) -> None:
        if not callable(creator):
            raise ArgumentTypeError(
                f"The creator {creator!r} is not callable.", "Give creator(next_creator, **kwargs)."
            )
        self.creator = creator
        self.priority = priority

    def __enter__(self) -> "variable_creator_scope":
        _stack.scopes = (*_stack.scopes, self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        scopes = _stack.scopes
        is_innermost = scopes[-1:] == (self,)
        # Remove this scope first, wherever it is in the stack, so that even a wrong order leaves
        # none behind.
        _stack.scopes = (
            scopes[:-1] if is_innermost else tuple(scope for scope in scopes if scope is not self)
        )
        # An error that is already on its way tells more than a second one about the order of
        # scopes.
        if not is_innermost and error is None:
            raise ScopeError(
                "A variable_creator_scope was left before one that was entered in it.",
                "Leave scopes in the reverse order, as `with` does.",
            )


def create(base: NextCreator, kwargs: dict[str, Any]) -> Any:
    """Return what the creators of this thread make of the arguments; ``base`` is the innermost."""
    # The sort is stable and the last creator of the chain runs first: among equals, the innermost
    # scope.
    following = base
    for scope in sorted(_stack.scopes, key=lambda scope: scope.priority):
        following = partial(scope.creator, following)
    made = following(**kwargs)
    if made is None:
        raise ArgumentError(
            "A variable creator returned None.", "Return a variable: return next_creator(**kwargs)."
        )
    return made


@contextmanager
def name_scope(name: str | None) -> Iterator[str]:
    """Put ``name/`` before the names of variables that are created inside.

    Parameters
    ----------
    name : str or None
        The name of the scope. None or "" starts again without a prefix. A name that ends with a
        slash is a whole prefix, as this context manager yields it: it enters that scope again.

    Yields
    ------
    str
        The whole prefix.

    Raises
    ------
    ArgumentTypeError
        If `name` is not a text.

    Examples
    --------
    >>> with name_scope("model"), name_scope("layer") as scope:
    ...     scoped_name("w"), scope
    ('model/layer/w', 'model/layer/')
    """
    if not isinstance(name, str | None):
        raise ArgumentTypeError(
            f"Invalid name {name!r} of a scope.", "Give a str, or None for no prefix."
        )
    if not name or name.endswith("/"):
        prefix = name or ""
    else:
        prefix = f"{_prefix.get()}{name}/"
    token = _prefix.set(prefix)
    try:
        yield prefix
    finally:
        _prefix.reset(token)


def scoped_name(name: str) -> str:
    return _prefix.get() + name
