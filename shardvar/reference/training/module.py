"""Modules: their variables and submodules, and their configuration as data.

An attribute that has state (a variable, a module, a list of them) becomes a child of that name, in
*folded* form: a sharded variable is one child, and so is saved and restored as one. ``variables``
gives them in *expanded* form: what gradients and optimizers work on are the shards. R-FORM-1 (RFC
000): "Folded form: sharded variable is represented as a ShardedVariable instance. Expanded form:
sharded variable is expanded to a list of variables." Its appendix has a table:

    | where  | when                           | form     |
    | Module | as attribute                   | folded   |
    | Module | variables, trainable_variables | expanded |

The order is fixed: a module's own attributes alphabetically, then the attributes of the modules
found in them, in the same order; lists and tuples in their order, dictionaries by their sorted
keys. A variable that was met before is left out.

Lists and dictionaries that become attributes are replaced by tracked ones. ``self.blocks = [block,
block]`` is still a list; it is also a child of the module, with its items as children, named by
their numbers or keys. If it grows later, it calls the hook for new children, as the module does for
an attribute. A tuple never changes, so it stays as it is, and a separate node has its items as
children.

R-SERIAL-2 (RFC 002): "we have plans to serialize Embedding layers and Distribution Strategies so
that when we load a saved model we would be able to recover these objects". An object becomes
``{"class_name": ..., "config": {...}}``: text, numbers, lists and dictionaries, which JSON can
hold. Only registered classes are created from such data: no name in it is ever imported. A function
has no plain form; the class of the same rule has one.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields, is_dataclass
from inspect import signature
from types import MappingProxyType
from typing import Any, Self, SupportsIndex, TypeVar

import numpy as np

from shardvar.errors import ArgumentError, ArgumentTypeError
from shardvar.layout.shard_counts import (
    AxisPartitioner,
    FixedShardsPartitioner,
    MaxSizePartitioner,
    MinSizePartitioner,
)
from shardvar.reference.tracking import Trackable
from shardvar.reference.variables import ShardedVariable, Variable, initializers

_UNTRACKED = ("_children", "_child_slots", "_child_hooks")


class Module(Trackable):
    """An object whose attributes are its state: the base class of layers and models.

    Parameters
    ----------
    name : str, optional
        The name; by default the class's name in snake case, ``user_model`` for ``UserModel``.

    Raises
    ------
    ArgumentTypeError
        If `name` is not a text.

    Examples
    --------
    >>> class Dense(Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.w = ShardedVariable([Variable([[1.0]], name="w/part_0"), Variable([[2.0]], name="w/part_1")])
    ...         self.b = Variable([0.0], name="b")
    >>> dense = Dense()
    >>> list(dense.children), [variable.name for variable in dense.variables]
    (['w', 'b'], ['b', 'w/part_0', 'w/part_1'])
    """

    def __init__(self, name: str | None = None) -> None:
        if not isinstance(name, str | None):
            raise ArgumentTypeError(f"Invalid name {name!r}.", "Give a str.")
        self._name = name

    @property
    def name(self) -> str:
        """The name of the module, by default its class's: ``user_model`` for ``UserModel``."""
        given: str | None = self.__dict__.get("_name")
        # An underscore goes between "r" and "M" of UserModel, and before the last capital of "MLP"
        # in MLPBlock.
        return (
            given
            or re.sub(
                r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(self).__name__
            ).lower()
        )

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables of this module and of the modules in it.

        R-MODULE-2 (RFC 000): "If a sharded variable is assigned to an attribute, the variables or
        trainable_variables can collect its component variables as opposed to the ShardedVariable
        instance".
        """
        return tuple(leaf for leaf in _leaves(self) if isinstance(leaf, Variable))

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """The ``variables`` that are trainable."""
        return tuple(variable for variable in self.variables if variable.trainable)

    @property
    def non_trainable_variables(self) -> tuple[Variable, ...]:
        """The ``variables`` that are not trainable."""
        return tuple(variable for variable in self.variables if not variable.trainable)

    @property
    def submodules(self) -> tuple["Module", ...]:
        """The modules in this one, at any depth, in the order of ``variables``."""
        return tuple(leaf for leaf in _leaves(self) if isinstance(leaf, Module))

    def __setattr__(self, name: str, value: Any) -> None:
        kept = _as_attribute(value)
        super().__setattr__(name, kept)
        node = _node_of(kept)
        # A plain value may replace an object with state, which must then no longer be saved.
        if node is None:
            self.untrack(name)
        # A property's setter keeps it elsewhere, under another name.
        elif self.__dict__.get(name) is kept:
            self.track(name, node)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self.untrack(name)


def _leaves(root: Module) -> Iterator[Any]:
    """Yield the variables and modules under ``root``, each once; a module's, then inner modules'."""
    # The order is Keras's. For root.a, a variable, root.m and root.n, modules, each with a variable
    # w, it is: root.a, root.m, root.n, then root.m.w with all that is in m, then root.n.w.
    seen = {id(root)}
    ahead = [iter([root])]
    while ahead:
        module = next(ahead[-1], None)
        if module is None:
            ahead.pop()
            continue
        inner = []
        for leaf in _flat(
            vars(module)[name] for name in sorted(vars(module).keys() - set(_UNTRACKED))
        ):
            if id(leaf) in seen:
                continue
            seen.add(id(leaf))
            yield leaf
            if isinstance(leaf, Module):
                inner.append(leaf)
        ahead.append(iter(inner))


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the variables and modules among the values and containers, shards singly."""
    # An explicit stack here too; the list itself marks the end of an iterator.
    ahead = [iter(values)]
    entered: set[int] = set()
    while ahead:
        value = next(ahead[-1], ahead)
        if value is ahead:
            ahead.pop()
        elif isinstance(value, ShardedVariable):
            yield from value.variables
        elif isinstance(value, Variable | Module):
            # Refuses a variable that became a shard after it became an attribute.
            yield _as_attribute(value)
        # A list may contain itself.
        elif isinstance(value, list | tuple | Mapping) and id(value) not in entered:
            entered.add(id(value))
            if isinstance(value, Mapping):
                # Keys of several kinds only have the order of insertion.
                with suppress(TypeError):
                    value = {key: value[key] for key in sorted(value)}
                value = value.values()
            ahead.append(iter(value))


# Attributes, and containers that are tracked with their items.


def _as_attribute(value: Any) -> Any:
    """Return ``value`` as it is kept: plain lists and dictionaries become tracked."""
    # R-MODULE-1 (RFC 000): "We should disallow assigning component variables of a sharded variable
    # to object attributes. It will result in unnecessary data duplications in checkpoints".
    if isinstance(value, Variable) and value.container is not None:
        raise ArgumentError(
            f"{value.name} is a shard of {value.container.name}, and a shard cannot be an "
            "attribute: it would be saved twice, and could not be restored to another number of "
            "shards.",
            "Assign the sharded variable itself.",
        )
    if type(value) is list:
        return TrackedList(value)
    if type(value) is dict:
        return TrackedDict(value)
    if isinstance(value, tuple):
        for item in value:
            _as_attribute(item)
    return value


def _node_of(value: Any) -> Trackable | None:
    """Return the node of an attribute in the graph of objects; None without state."""
    if isinstance(value, tuple):
        node = TupleNode(value)
        return node if node.children else None
    return value if isinstance(value, Trackable) else None


class _Container(Trackable):
    """The base class of tracked containers, whose children are their items of now."""

    def named_items(self) -> Iterator[tuple[str, Any]]:
        """Yield the items, each with its name as a child."""
        raise NotImplementedError

    @property
    def children(self) -> Mapping[str, Trackable]:
        nodes = ((name, _node_of(item)) for name, item in self.named_items())
        return MappingProxyType({name: node for name, node in nodes if node is not None})

    def _announce(self) -> None:
        """Call the hook for new children, and untrack items that left."""
        announced: dict[str, Trackable] = self.__dict__.setdefault("_children", {})
        children = self.children
        for name in announced.keys() - children.keys():
            self.untrack(name)
        for name, child in children.items():
            if announced.get(name) is not child:
                self.track(name, child)


class TrackedList(list[Any], _Container):
    """A list whose items are children, named '0', '1', ..."""

    # Changes that may add an item go through ``__setitem__``, which announces it. A lost item needs
    # no announcement: children are computed from the items.

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__(map(_as_attribute, items))
        self._announce()

    def named_items(self) -> Iterator[tuple[str, Any]]:
        return ((str(number), item) for number, item in enumerate(self))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(
            index,
            [*map(_as_attribute, value)] if isinstance(index, slice) else _as_attribute(value),
        )
        self._announce()

    def append(self, item: Any) -> None:
        self[len(self) :] = [item]

    def extend(self, items: Iterable[Any]) -> None:
        self[len(self) :] = items

    def insert(self, index: SupportsIndex, item: Any) -> None:
        self[index:index] = [item]

    # List's own is narrower than its +.
    def __iadd__(self, items: Iterable[Any]) -> Self:  # type: ignore[misc]
        self.extend(items)
        return self

    # A copy is new to every hook and graph. The default copies ``__dict__`` too: the hook and
    # children of the original.
    def __copy__(self) -> Self:
        return type(self)(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # In the memo before its items, which may include the list itself.
        twin = memo[id(self)] = type(self)()
        twin.extend([deepcopy(item, memo) for item in self])
        return twin


class TrackedDict(dict[Any, Any], _Container):
    """A dictionary whose values are children, named by their keys."""

    def __init__(self, items: Mapping[Any, Any] | None = None) -> None:
        super().__init__(_entries(items or {}))
        self._announce()

    def named_items(self) -> Iterator[tuple[str, Any]]:
        return ((str(key), value) for key, value in self.items())

    def __setitem__(self, key: Any, value: Any) -> None:
        self.update({key: value})

    def update(self, *others: Any, **items: Any) -> None:
        # Refused as a whole, before anything has changed.
        entries = _entries({**self, **dict(*others, **items)})
        super().update(entries)
        self._announce()

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    # Dict's own has an overload for each kind.
    def __ior__(self, other: Any) -> Self:  # type: ignore[misc]
        self.update(other)
        return self

    def __copy__(self) -> Self:
        return type(self)(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = memo[id(self)] = type(self)()
        twin.update({deepcopy(key, memo): deepcopy(value, memo) for key, value in self.items()})
        return twin


def _entries(items: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the entries as they are kept; ``ArgumentError`` if two are children of one name."""
    # R-MODULE-3: a child is saved under its name; of two with one name, the second would be lost.
    entries = {key: _as_attribute(value) for key, value in items.items()}
    named: dict[str, Any] = {}
    for key, value in entries.items():
        if _node_of(value) is not None and named.setdefault(str(key), key) is not key:
            raise ArgumentError(
                f"The keys {named[str(key)]!r} and {key!r} are both children named {str(key)!r}.",
                "Give keys that differ as text: of two children of one name, one would not be "
                "saved.",
            )
    return entries


class TupleNode(_Container):
    """The node of a tuple; its children are the items, named '0', '1', ..."""

    def __init__(self, items: tuple[Any, ...]) -> None:
        self._items = tuple(map(_as_attribute, items))
        self._announce()

    def named_items(self) -> Iterator[tuple[str, Any]]:
        return ((str(number), item) for number, item in enumerate(self._items))


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
    if hasattr(thing, "get_config"):
        config = thing.get_config()
    elif is_dataclass(thing):
        config = {field.name: getattr(thing, field.name) for field in fields(thing) if field.init}
    else:
        raise ArgumentTypeError(
            f"{kind.__name__} has no get_config.", "Give it one, and from_config."
        )
    return {"class_name": kind.__name__, "config": _plain(config)}


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
    if not _is_serialized(data):
        raise ArgumentTypeError(
            f"{data!r} is not a serialized object.", "Give {'class_name': ..., 'config': {...}}."
        )
    kind = _classes.get(data["class_name"]) if isinstance(data["class_name"], str) else None
    if kind is None:
        names = ", ".join(sorted(_classes))
        raise ArgumentError(
            f"No class {data['class_name']!r} is registered.", f"There are {names}."
        )
    if not isinstance(data["config"], Mapping):
        raise ArgumentTypeError(
            f"The config of {data['class_name']} is {data['config']!r}.", "Give a dictionary."
        )
    config = {**data["config"], **changes}
    if hasattr(kind, "from_config"):
        return kind.from_config(config)
    return configured(kind, config)


def configured(kind: Any, config: Any) -> Any:
    """Construct a class from its config, whose values may be serialized objects themselves."""
    given = check_config(kind, config).items()
    return kind(
        **{name: deserialize(value) if _is_serialized(value) else value for name, value in given}
    )


def _is_serialized(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"class_name", "config"}


def check_config(kind: type, config: Any) -> dict[str, Any]:
    """Return the config as arguments of the class; ``ArgumentError`` for unknown entries."""
    if not isinstance(config, Mapping):
        raise ArgumentTypeError(
            f"The config of {kind.__name__} is {config!r}.", "Give a dictionary."
        )
    # Checked by name, since the TypeError of the constructor would not blame the config.
    parameters = signature(kind).parameters
    unknown = [name for name in config if name not in parameters]
    if unknown:
        raise ArgumentError(
            f"{kind.__name__} has no argument {unknown[0]!r}.", f"It has {', '.join(parameters)}."
        )
    return dict(config)


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
