"""Plain data for the parts of a model: layers, strategies, partitioners, initializers.

R-SERIAL-2 (RFC 002): "we have plans to serialize Embedding layers and Distribution Strategies so
that when we load a saved model we would be able to recover these objects". An object becomes
``{"class_name": ..., "config": {...}}``: text, numbers, lists and dictionaries, which JSON can
hold. Only registered classes are created from such data: no name in it is ever imported. A function
has no plain form; the class of the same rule has one.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from inspect import signature
from typing import Any, TypeVar

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.shard_counts import (
    AxisPartitioner,
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
)
from shardvar.reference.variables import initializers

_C = TypeVar("_C", bound=type)
_classes: dict[str, type] = {}


def serializable(kind: _C) -> _C:
    """Register a class under its name, so that its objects have a plain form. A decorator.

    A class that is defined again, as in a notebook, replaces the earlier one.

    Parameters
    ----------
    kind : type
        A dataclass, or a class with ``get_config`` and ``from_config``.

    Returns
    -------
    type
        The class itself.

    Raises
    ------
    ArgumentError
        If another class of the same name is registered.
    """
    # Plain data hold the bare name. Two different classes of one name could not be told apart; the
    # same class, defined again by a notebook cell, has the same module and qualified name.
    known = _classes.get(kind.__name__, kind)
    if (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ArgumentError(
            f"Another class {kind.__name__} is registered already.", "Choose another name."
        )
    _classes[kind.__name__] = kind
    return kind


def serialize(thing: Any) -> Any:
    """Return plain data for an object of a registered class.

    Parameters
    ----------
    thing : object or None
        The object.

    Returns
    -------
    dict or None
        ``{"class_name": ..., "config": {...}}``: text, numbers, lists and dictionaries. None for
        None.

    Raises
    ------
    ArgumentTypeError
        If the class, or the class of an object in the config, is not registered.

    Examples
    --------
    >>> serialize(FixedShardsPartitioner(3))
    {'class_name': 'FixedShardsPartitioner', 'config': {'num_shards': 3}}
    """
    if thing is None:
        return None
    # The exact class: an unregistered subclass would be deserialized as its base class, without its
    # own behaviour.
    kind = type(thing)
    if _classes.get(kind.__name__) is not kind:
        raise ArgumentTypeError(
            f"{thing!r} has no plain form.",
            "Use a class of shardvar in its place, or decorate its class with sv.serializable.",
        )
    return {"class_name": kind.__name__, "config": _plain(_config(thing))}


def deserialize(data: Any, **changes: Any) -> Any:
    """Return the object that ``serialize`` was given, with some entries of its config changed.

    Parameters
    ----------
    data : dict or None
        Plain data, as ``serialize`` returns them.
    **changes : any
        Entries of the config to replace.

    Returns
    -------
    object or None
        A new object. None for None.

    Raises
    ------
    ArgumentTypeError
        If `data` is not of that form.
    ArgumentError
        If the class is not registered, or does not take an entry of the config.

    Examples
    --------
    >>> deserialize({"class_name": "FixedShardsPartitioner", "config": {"num_shards": 3}}, num_shards=5)
    FixedShardsPartitioner(num_shards=5)
    """
    if data is None:
        return None
    if not isinstance(data, Mapping) or set(data) != {"class_name", "config"}:
        raise ArgumentTypeError(
            f"{data!r} is not a serialized object.", "Give {'class_name': ..., 'config': {...}}."
        )
    kind = _classes.get(data["class_name"]) if isinstance(data["class_name"], str) else None
    if kind is None:
        known = ", ".join(sorted(_classes))
        raise ArgumentError(
            f"No class {data['class_name']!r} is registered.", f"There are {known}."
        )
    if not isinstance(data["config"], Mapping):
        raise ArgumentTypeError(
            f"The config of {data['class_name']} is {data['config']!r}.", "Give a dictionary."
        )
    config = {**data["config"], **changes}
    return (
        kind.from_config(config)
        if hasattr(kind, "from_config")
        else kind(**{name: _restored(value) for name, value in check_config(kind, config).items()})
    )


def _restored(value: Any) -> Any:
    """Return the object of a value of a config that is a serialized object itself."""
    is_object = isinstance(value, Mapping) and set(value) == {"class_name", "config"}
    return deserialize(value) if is_object else value


def check_config(kind: type, config: Any) -> dict[str, Any]:
    """Return the config as arguments of the class; ``ArgumentError`` for unknown entries."""
    if not isinstance(config, Mapping):
        raise ArgumentTypeError(
            f"The config of {kind.__name__} is {config!r}.", "Give a dictionary."
        )
    # Checked by name, since the TypeError of the constructor would not say that the config is to
    # blame.
    known = signature(kind).parameters
    unknown = [name for name in config if name not in known]
    if unknown:
        raise ArgumentError(
            f"{kind.__name__} has no argument {unknown[0]!r}.", f"It has {', '.join(known)}."
        )
    return dict(config)


def _config(thing: Any) -> dict[str, Any]:
    if hasattr(thing, "get_config"):
        config: dict[str, Any] = thing.get_config()
        return config
    if not is_dataclass(thing):
        raise ArgumentTypeError(
            f"{type(thing).__name__} has no get_config.", "Give it one, and from_config."
        )
    return {field.name: getattr(thing, field.name) for field in fields(thing) if field.init}


def _plain(value: Any) -> Any:
    """Return ``value`` as text, numbers, lists and dictionaries."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, np.dtype):
        return value.name
    return serialize(value)


# The library's classes below this layer cannot use the decorator, which they may not import; they
# are registered here.
for _kind in (AxisPartitioner, FixedShardsPartitioner, MinSizePartitioner, MaxSizePartitioner):
    serializable(_kind)
for _initializer in vars(initializers).values():
    if isinstance(_initializer, type) and _initializer is not initializers.Initializer:
        serializable(_initializer)
